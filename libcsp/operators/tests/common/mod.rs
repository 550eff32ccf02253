//! A channel of flights and one of weather, and a port that has little room.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Arc, LazyLock};

use csp_formats::{MessageView, Name, Schema, json};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Piece, Place, Port, State, Stop, Tick};
use csp_operators::FormatSet;
use csp_queries::{Catalog, Plan};
use csp_types::{Duration, Instant};
use serde_json::Value as Json;

pub const FLIGHT: FormatId = FormatId(1);
pub const WEATHER: FormatId = FormatId(2);
pub const RESULT: FormatId = FormatId(9);

const HEADERS: &str = r#"
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<type name="airport" primitiveType="char" length="3"/>"#;

const FLIGHTS: &str = r#"
<type name="minutes" primitiveType="int16" presence="optional"/>
<type name="time" primitiveType="int64" presence="optional"/>
<enum name="Carrier" encodingType="char"><validValue name="United">U</validValue><validValue name="JetBlue">J</validValue></enum>
<set name="Services" encodingType="uint8"><choice name="meal">0</choice><choice name="wifi">3</choice></set>
<composite name="Price"><type name="mantissa" primitiveType="int32"/><type name="exponent" primitiveType="int8" presence="constant">-2</type></composite>
</types>
<message name="Flight" id="1">
<field name="origin" id="1" type="airport"/>
<field name="destination" id="2" type="airport"/>
<field name="number" id="3" type="uint32"/>
<field name="at" id="4" type="time" presence="optional"/>
<field name="delay" id="5" type="minutes" presence="optional"/>
<field name="carrier" id="6" type="Carrier"/>
<field name="services" id="7" type="Services" sinceVersion="1"/>
<field name="price" id="8" type="Price"/>
<group name="passengers" id="20"><field name="row" id="21" type="uint8"/><data name="meal" id="22" type="text"/></group>
<data name="remark" id="30" type="text"/>
</message>
<message name="Notice" id="2"><data name="text" id="1" type="text"/></message>"#;

const WEATHERS: &str = r#"
<type name="time" primitiveType="int64" presence="optional"/>
<type name="measure" primitiveType="double" presence="optional"/>
</types>
<message name="Weather" id="1">
<field name="origin" id="1" type="airport"/>
<field name="at" id="2" type="time" presence="optional"/>
<field name="wind" id="3" type="measure" presence="optional"/>
<field name="number" id="4" type="uint32"/>
</message>"#;

pub fn schema(id: u16, version: u16, body: &str) -> Arc<Schema> {
    let xml = format!(
        "<messageSchema id=\"{id}\" version=\"{version}\" byteOrder=\"littleEndian\"><types>{HEADERS}{body}</messageSchema>"
    );
    Arc::new(Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}")))
}

#[derive(Clone)]
pub struct Channels {
    pub flights: Arc<Schema>,
    pub weather: Arc<Schema>,
}

pub fn channels() -> Channels {
    static CHANNELS: LazyLock<Channels> =
        LazyLock::new(|| Channels { flights: schema(1, 1, FLIGHTS), weather: schema(2, 1, WEATHERS) });
    CHANNELS.clone()
}

impl Channels {
    /// The formats of a channel that has both.
    pub fn set(&self) -> Arc<FormatSet> {
        let mut set = FormatSet::new();
        set.add(FLIGHT, self.flights.clone(), "Flight".into()).expect("free");
        set.add(WEATHER, self.weather.clone(), "Weather".into()).expect("free");
        Arc::new(set)
    }
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

pub fn plan(sql: &str) -> Arc<Plan> {
    Arc::new(Plan::new(sql, &channels(), 99).unwrap_or_else(|error| panic!("{sql}: {error}")))
}

pub fn written(schema: &Schema, message: &Json) -> Vec<u8> {
    let mut out = vec![0; 1 << 16];
    let len = json::parse(schema, message.to_string().as_bytes(), &mut out)
        .unwrap_or_else(|error| panic!("{error}"));
    out.truncate(len);
    out
}

pub fn printed(schema: &Schema, bytes: &[u8]) -> Json {
    let slices = [bytes];
    let view = MessageView::new(schema, &slices).unwrap_or_else(|error| panic!("{error}"));
    let mut text = Vec::new();
    json::print(&view, &mut text, 1 << 20).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_slice(&text).expect("JSON")
}

/// A row of a query's result.
pub fn row(plan: &Plan, bytes: &[u8]) -> Json {
    let mut row = printed(&plan.derived.schema, bytes);
    row.as_object_mut().expect("an object").remove("$message");
    row
}

/// A flight as JSON.
pub fn flight() -> Json {
    serde_json::json!({"$message": "Flight", "origin": "EWR", "destination": "ORD", "number": 7, "at": 1000, "delay": 12, "carrier": "United",
        "services": ["wifi"], "price": {"mantissa": 12999}, "remark": "late", "passengers": [{"row": 1, "meal": "fish"}, {"row": 2, "meal": "none"}]})
}

/// What was emitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Emitted {
    pub output: u8,
    pub format: FormatId,
    pub frames: Vec<Vec<u8>>,
    /// Whether it is the message itself or a part of it, not a new one.
    pub shared: bool,
    /// Bytes that are pieces of the message.
    pub of: usize,
}

/// A message in slices, as a context gives it. It keeps to the contract of `Full`.
pub struct Mail {
    pub frames: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    format: FormatId,
    slice: usize,
    room: usize,
    skip: usize,
    calls: usize,
    pub emitted: Vec<Emitted>,
    /// Emits refused.
    pub full: usize,
}

impl Mail {
    pub fn new(format: FormatId, frames: &[&[u8]], slice: usize) -> Self {
        let frames: Vec<Vec<u8>> = frames.iter().map(|frame| frame.to_vec()).collect();
        let bytes = frames.concat();
        Mail {
            frames,
            bytes,
            format,
            slice,
            room: usize::MAX,
            skip: 0,
            calls: 0,
            emitted: Vec::new(),
            full: 0,
        }
    }

    fn put(&mut self, output: u8, emit: Emit<'_>) {
        let cut = |mut bytes: &[u8], lens: &[u32]| {
            lens.iter()
                .map(|len| {
                    let (frame, rest) = bytes.split_at(*len as usize);
                    bytes = rest;
                    frame.to_vec()
                })
                .collect::<Vec<_>>()
        };
        self.emitted.push(match emit {
            Emit::Same => Emitted {
                output,
                format: self.format,
                frames: self.frames.clone(),
                shared: true,
                of: self.bytes.len(),
            },
            Emit::Frames { format, first, count } => {
                let frames = self.frames[usize::from(first)..usize::from(first + count)].to_vec();
                Emitted { output, format, of: frames.iter().map(Vec::len).sum(), frames, shared: true }
            }
            Emit::Range { format, start, len } => {
                let frames = vec![self.bytes[start as usize..][..len as usize].to_vec()];
                Emitted { output, format, frames, shared: true, of: len as usize }
            }
            Emit::New { format, frames, pieces } => {
                let (mut all, mut of) = (Vec::new(), 0);
                for piece in pieces {
                    match piece {
                        Piece::Of { start, len } => {
                            all.extend_from_slice(&self.bytes[*start as usize..][..*len as usize]);
                            of += *len as usize;
                        }
                        Piece::Bytes(bytes) => all.extend_from_slice(bytes),
                    }
                }
                assert_eq!(
                    all.len(),
                    frames.iter().sum::<u32>() as usize,
                    "the pieces are as long as the frames"
                );
                Emitted { output, format, frames: cut(&all, frames), shared: false, of }
            }
        });
    }
}

impl Port for Mail {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        let end = (at - at % self.slice + self.slice).min(self.bytes.len());
        (&self.bytes[at..end], Place { at: end as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        self.frames.get(usize::from(frame)).map(|frame| frame.len() as u32)
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full> {
        if self.calls < self.skip {
            self.calls += 1;
            return Ok(());
        }
        if self.room == 0 {
            self.full += 1;
            return Err(Full);
        }
        self.room -= 1;
        self.calls += 1;
        self.put(output, emit);
        Ok(())
    }
}

/// A handler at a stage.
pub struct Stage {
    pub handler: Box<dyn Handler>,
    pub state: State,
    pub now: Instant,
    /// Emits that have room in one call; the call is then repeated.
    pub room: usize,
    pub slice: usize,
    /// Bytes of the state before a call that had no room.
    check: bool,
}

impl Stage {
    pub fn new(handler: Box<dyn Handler>, parameters: &str) -> Self {
        let mut state = State::new(&handler.needs());
        let mut handler = handler;
        if !parameters.is_empty() {
            handler.configure(parameters, &mut state).unwrap_or_else(|error| panic!("{parameters}: {error}"));
        }
        Stage {
            handler,
            state,
            now: Instant::from_nanos(1_000_000_000),
            room: usize::MAX,
            slice: 13,
            check: true,
        }
    }

    /// What the handler emits of a message, which is given to it again as long as there is no room.
    pub fn send(&mut self, format: FormatId, frames: &[&[u8]]) -> (Result<(), Stop>, Vec<Emitted>) {
        let mut mail = Mail::new(format, frames, self.slice);
        let len = mail.bytes.len() as u32;
        let message = Message { format, sequence: 1, arrived: self.now, len, frames: frames.len() as u8 };
        loop {
            (mail.room, mail.calls, mail.skip) = (self.room, 0, mail.emitted.len());
            let before = self.check.then(|| self.state.block().to_vec());
            let mut call = Call::new(message, self.now, &mut self.state, &mut mail);
            let done = self.handler.on_message(&mut call);
            if done != Err(Stop::Full) {
                return (done, mail.emitted);
            }
            self.unchanged(before);
        }
    }

    /// What the handler emits because of its timer.
    pub fn tick(&mut self) -> Vec<Emitted> {
        let mut mail = Mail::new(FormatId::UNKNOWN, &[], self.slice);
        loop {
            (mail.room, mail.calls, mail.skip) = (self.room, 0, mail.emitted.len());
            let before = self.check.then(|| self.state.block().to_vec());
            let done = self.handler.on_timer(&mut Tick::new(self.now, &mut self.state, &mut mail));
            if done != Err(Stop::Full) {
                done.expect("a timer is processed");
                return mail.emitted;
            }
            self.unchanged(before);
        }
    }

    /// A call that had no room has changed no state, but that the state is the handler's.
    fn unchanged(&mut self, before: Option<Vec<u8>>) {
        let Some(before) = before else { return };
        if before[..16] != [0; 16] {
            assert!(self.state.block() == &before[..], "a call without room changes no state");
        }
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub fn counters(&self) -> csp_operators::Counters {
        csp_operators::Counters::of(&self.state).expect("an operator's state")
    }
}
