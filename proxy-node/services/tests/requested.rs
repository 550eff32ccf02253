//! Queries and handlers on request at the broker: who may ask, and the program of docs/queries.md. What plans
//! queries is played here; the proxy's own is tested with its policy.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;
mod supplied;

use std::net::SocketAddr;
use std::sync::Arc;

use common::tcp::{Program, Server, has_pyzmq, subscriptions};
use common::*;
use csp_formats::{Name, Schema};
use csp_messages::{FormatId, StageMaker};
use csp_operators::FormatSet;
use csp_services::{
    BroughtFormat, ChannelFeed, ChannelFormats, ChannelPath, ChannelPolicy, ChannelSpec, FormatAsked,
    PathStage, QueryAsked, QueryPlan, QueryPlanner, QueryRefused, RequestPlace, RequestSpec,
};
use csp_types::Duration;

/// Number of the place for queries.
const PLACE: u32 = 8;

const SCHEMA: &str = r#"
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="airport" id="40" version="1">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/>
      <type name="version" primitiveType="uint16"/>
    </composite>
  </types>
  <sbe:message name="Flight" id="1"><field name="delay" id="1" type="int16"/></sbe:message>
</sbe:messageSchema>"#;

fn formats() -> Arc<FormatSet> {
    let (mut set, schema) = (FormatSet::new(), Schema::parse(SCHEMA).unwrap());
    let name = schema.messages[0].name.clone();
    set.add(FormatId(1), Arc::new(schema), name).unwrap();
    Arc::new(set)
}

/// Gives what the channel gets as JSON, whatever is asked.
#[derive(Debug)]
struct Print;

impl QueryPlanner for Print {
    fn plan(&self, asked: QueryAsked<'_>) -> Result<QueryPlan, QueryRefused> {
        let (handler, parameters) = ("to-json".to_owned(), String::new());
        let maker = StageMaker::new("print", || csp_operators::make("to-json", &formats()));
        let stage = PathStage {
            handler,
            context: 0,
            parameters,
            maker: Some(maker),
            auto: None,
            outputs: Vec::new(),
        };
        let (format, becomes) = (FormatId(1), FormatId(1));
        let feed = ChannelFeed { from: CHANNEL, format, to: asked.number, becomes };
        let path = ChannelPath::new(asked.number, vec![stage]);
        Ok(QueryPlan { path, feeds: vec![feed], schema: "<schema/>".to_owned() })
    }

    fn bring(&self, _: FormatAsked<'_>, _: &[BroughtFormat]) -> Result<(Arc<Schema>, Name), QueryRefused> {
        Err(QueryRefused { message: "no format".to_owned(), place: None })
    }
}

fn requests(of: &ChannelSpec, address: SocketAddr) -> RequestSpec {
    let mut channel = of.channel.clone();
    channel.name = "ticks.1".to_owned();
    let spec = ChannelSpec { keys: of.keys.clone(), derived: true, ..ChannelSpec::open(PLACE, channel) };
    RequestSpec {
        number: CHANNEL,
        places: vec![RequestPlace { spec, address }],
        each: 2,
        formats_max: 0,
        handlers: None,
        lease: Duration::from_secs(600),
        planner: Arc::new(Print),
    }
}

fn ask(w: &mut World, n: u32, asker: &mut client::CurveClient, request: &[u8]) -> String {
    w.arrive(n, &[asker.sealed(0, 1, b""), asker.sealed(0, 0, request)].concat());
    let answer = open_all(asker, &w.taken(n));
    String::from_utf8(answer.last().unwrap().1.clone()).unwrap()
}

#[test]
fn a_key_needs_the_right_to_ask_for_a_query() {
    const QUERY: &[u8] = br#"{"query": "SELECT 1"}"#;
    let spec = with_keys(keyed_channel(), |keys| {
        keys.clients.get_mut(&public(BOTH)).unwrap().query = false;
        keys.clients.get_mut(&public(READER)).unwrap().query = true;
    });
    let mut w = World::new(spec.clone());
    let requests = Some(requests(&spec, ([127, 0, 0, 1], 9).into()));
    w.apply([ChannelPolicy { requests, ..spec.into() }]).unwrap();
    let mut other = w.connect_curve(1, BOTH, "REQ");
    assert_eq!(ask(&mut w, 1, &mut other, QUERY), r#"{"error":"the key has not the right `query`"}"#);
    let mut reader = w.connect_curve(2, READER, "REQ");
    assert!(ask(&mut w, 2, &mut reader, QUERY).contains(r#""query":"ticks.1""#));
    // The others' right is `control`: they see it, and get no part in it.
    assert!(ask(&mut w, 1, &mut other, br#"{"get": "queries"}"#).contains(r#""yours":false"#));
    assert!(ask(&mut w, 1, &mut other, QUERY).contains("error"));
    assert!(ask(&mut w, 1, &mut other, br#"{"release": "ticks.1"}"#).contains("asked for by others"));
    let [(name, seen)] = &w.broker.requested()[..] else { panic!("it runs") };
    assert_eq!((&name[..], seen.requesters), ("ticks.1", 1));
    assert_eq!(seen.by, common::tcp::text(public(READER)));
}

/// The program of docs/queries.md that asks for a query.
fn program(here: &str) -> String {
    let text = include_str!("../../../docs/queries.md");
    let section = text.split("## On request").nth(1).unwrap();
    let code = section.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(code.contains("10.76.0.100:5601"), "the example's channel");
    code.replace("10.76.0.100:5601", here)
}

#[test]
fn the_program_of_the_documentation_gets_its_rows() {
    if !has_pyzmq() {
        return;
    }
    let spec = ChannelSpec { formats: Some(ChannelFormats::new("one", formats())), ..open_channel() };
    let mut server = Server::new(spec.clone());
    let address = server.listen(PLACE);
    let requests = Some(requests(&spec, address));
    server.apply(&of_channels([ChannelPolicy { requests, ..spec.into() }]));
    let here = format!("127.0.0.1:{}", server.port());
    let folder = std::env::temp_dir();
    let reader = Program::start_text(&program(&here), &folder);
    server.until(|broker| subscriptions(broker) == 1);
    // What a PUB sends before it is connected is lost: this one goes on sending.
    let publisher = format!(
        "import struct, time, zmq\npublisher = zmq.Context().socket(zmq.PUB)\npublisher.connect('tcp://{here}')\n\
         while True:\n    publisher.send(struct.pack('<HHHHh', 2, 1, 40, 1, 11))\n    time.sleep(0.02)\n"
    );
    let _publisher = Program::start_text(&publisher, &folder);
    assert_eq!(reader.line(&mut server), "{'$message': 'Flight', 'delay': 11}");
}
