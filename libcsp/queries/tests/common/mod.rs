//! Two channels, of flights and of weather.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;

use csp_formats::{MessageView, Name, Schema, json};
use csp_queries::{Catalog, Plan, QueryError};
use serde_json::Value as Json;

const HEADERS: &str = r#"
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<type name="airport" primitiveType="char" length="3"/>"#;

const FLIGHTS: &str = r#"
<type name="latin" primitiveType="char" length="8" characterEncoding="ISO-8859-1"/>
<type name="minutes" primitiveType="int16" presence="optional" nullValue="-9999"/>
<type name="seats" primitiveType="uint16" presence="constant">180</type>
<type name="aircraft" primitiveType="char" presence="constant">A320</type>
<enum name="Carrier" encodingType="char"><validValue name="United">U</validValue><validValue name="JetBlue">J</validValue></enum>
<set name="Services" encodingType="uint8"><choice name="meal">0</choice><choice name="wifi">3</choice></set>
<composite name="Price"><type name="mantissa" primitiveType="int32"/><type name="exponent" primitiveType="int8" presence="constant">-2</type></composite>
</types>
<message name="Flight" id="1">
<field name="origin" id="1" type="airport"/>
<field name="destination" id="2" type="airport"/>
<field name="delay" id="3" type="minutes" presence="optional"/>
<field name="distance" id="4" type="uint32"/>
<field name="carrier" id="5" type="Carrier"/>
<field name="services" id="6" type="Services" sinceVersion="1"/>
<field name="price" id="7" type="Price"/>
<field name="seats" id="8" type="seats"/>
<field name="aircraft" id="9" type="aircraft"/>
<field name="speed" id="10" type="float"/>
<field name="city" id="11" type="latin"/>
<group name="passengers" id="20"><field name="row" id="21" type="uint8"/><data name="meal" id="22" type="text"/></group>
<data name="remark" id="30" type="text"/>
</message>"#;

const WEATHER: &str = r#"
<enum name="Carrier" encodingType="char"><validValue name="United">X</validValue></enum>
</types>
<message name="Weather" id="1">
<field name="origin" id="1" type="airport"/>
<field name="wind" id="2" type="double"/>
<field name="hour" id="3" type="int64"/>
<field name="station" id="4" type="Carrier"/>
</message>"#;

pub struct Channels {
    pub flights: Arc<Schema>,
    pub weather: Arc<Schema>,
}

pub fn channels() -> Channels {
    let schema = |id: u16, body: &str| {
        let xml = format!(
            "<messageSchema id=\"{id}\" version=\"1\" byteOrder=\"bigEndian\"><types>{HEADERS}{body}</messageSchema>"
        );
        Arc::new(Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}")))
    };
    Channels { flights: schema(1, FLIGHTS), weather: schema(2, WEATHER) }
}

impl Catalog for Channels {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        match channel {
            "flights" => Some((self.flights.clone(), "Flight".into())),
            "weather" => Some((self.weather.clone(), "Weather".into())),
            _ => None,
        }
    }

    fn channels(&self) -> Vec<String> {
        vec!["flights".to_owned(), "weather".to_owned()]
    }
}

pub fn plan(sql: &str) -> Result<Plan, QueryError> {
    Plan::new(sql, &channels(), 99)
}

pub fn written(schema: &Schema, message: &Json) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let len = json::parse(schema, message.to_string().as_bytes(), &mut out)
        .unwrap_or_else(|error| panic!("{error}"));
    out.truncate(len);
    out
}

pub fn printed(schema: &Schema, bytes: &[u8]) -> Json {
    let slices = [bytes];
    let view = MessageView::new(schema, &slices).unwrap_or_else(|error| panic!("{error}"));
    let mut text = Vec::new();
    json::print(&view, &mut text, 1 << 16).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_slice(&text).expect("JSON")
}

/// A flight as JSON.
pub fn flight() -> Json {
    serde_json::json!({"$message": "Flight", "origin": "EWR", "destination": "ORD", "delay": 12, "distance": 719, "carrier": "United",
        "services": ["wifi"], "price": {"mantissa": 12999}, "speed": 0.5, "city": "Zürich", "remark": "späte Ankunft",
        "passengers": [{"row": 1, "meal": "fish"}, {"row": 2, "meal": "none"}]})
}
