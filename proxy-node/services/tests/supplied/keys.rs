//! Who may bring handlers to a channel with keys.

use csp_messages::StageMaker;
use csp_services::{MadeHandler, Rights};

use super::*;
use crate::common;

#[test]
fn a_key_needs_the_right_to_supply() {
    let supplies = Rights { supply: true, ..Rights::default() };
    let spec = with_keys(keyed_channel(), |keys| _ = keys.clients.insert(public(READER), supplies));
    let mut w = World::new(spec.clone());
    w.apply([asked(&spec, Some(rules(1)))]).unwrap();
    let request = json!({"handler": {"name": "count"}}).to_string();
    let ask = |w: &mut World, n: u32, client: &mut client::CurveClient| {
        let sealed =
            [client.sealed(0, 1, b""), client.sealed(0, 1, request.as_bytes()), client.sealed(0, 0, b"code")];
        w.arrive(n, &sealed.concat());
        let answer = open_all(client, &w.taken(n));
        answer.last().map(|(_, body)| String::from_utf8(body.clone()).unwrap())
    };
    let mut other = w.connect_curve(1, BOTH, "REQ");
    assert_eq!(ask(&mut w, 1, &mut other).unwrap(), r#"{"error":"the key has not the right `supply`"}"#);
    let mut supplier = w.connect_curve(2, READER, "REQ");
    assert_eq!(ask(&mut w, 2, &mut supplier), None);
    let job = w.broker.poll_handler_job().unwrap();
    assert_eq!(job.by, common::tcp::text(public(READER)));
    // The policy takes the right away while the handler is made.
    let spec = with_keys(spec, |keys| {
        keys.clients.insert(public(READER), Rights { control: true, ..Rights::default() });
    });
    w.apply([asked(&spec, Some(rules(1)))]).unwrap();
    let maker = StageMaker::once("same", builtin::make("forward").unwrap());
    w.broker.handler_made(w.now, job.ticket, Ok(MadeHandler { maker, module: String::new() }));
    w.settle();
    let answer = open_all(&mut supplier, &w.taken(2));
    assert!(String::from_utf8_lossy(&answer.last().unwrap().1).contains("the right `supply`"));
}
