//! The two examples, built from source as their authors would: Rust for wasm32-unknown-unknown, C with clang
//! and wasm-ld.
#![allow(clippy::unwrap_used)]

mod build;
mod common;

use std::sync::Arc;

use build::{c, crate_dir, has_target, rust};
use common::{FakePort, at, engine, send};
use csp_formats::Schema;
use csp_handlers::{FormatId, Handler, State, Stop};
use csp_sandbox::{Engine, Limits, Module, NoFields, OnStop, SbeFields, StateKind, Supplied};

/// Samples of 16 bits as bytes.
fn samples(values: &[i16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_module_of_c_down_samples_a_payload_of_any_length() {
    let Some(bytes) = c(&crate_dir().join("modules/downsample.c"), 131_072) else { return };
    // Some forty instructions a sample: 200 KB take twenty times the usual fuel, which is for messages of a
    // context of a proxy worker.
    let engine = Engine::new(Limits { fuel: 5_000_000, ..Limits::default() }).unwrap();
    let module = Module::compile(&engine, &bytes).unwrap();
    assert_eq!((module.declaration().outputs, module.declaration().buffer.1), (1, 8192));
    let start = |parameters| Supplied::new(&module, Arc::new(NoFields), OnStop::default(), parameters);
    for wrong in ["0", "65", "x", "100"] {
        let error = start(wrong).unwrap_err().to_string();
        assert_eq!(error, "the parameter is the number of samples of which one is made, 1 to 64");
    }
    let mut handler = start("4").unwrap();
    let state = &mut State::new(&handler.needs());
    let mut reduce = |handler: &mut Supplied, values: &[i16]| {
        let mut port = FakePort::new(&samples(values));
        send(handler, state, &mut port, at(1)).unwrap();
        let (output, format, bytes) = port.emitted.pop().unwrap();
        assert_eq!((output, format, port.emitted.len()), (0, 7, 0));
        bytes
    };
    assert_eq!(reduce(&mut handler, &[1, 2, 3, 6, -10, -10, -20, -20, 5, 8]), samples(&[3, -15, 6]));
    assert!(reduce(&mut handler, &[]).is_empty());
    // In the buffer, just beyond it, and much longer: read in pieces.
    for len in [4096, 4097, 4100, 100_001] {
        let values: Vec<i16> = (0..len).map(|at| (at * 7 % 30_011 - 15_000) as i16).collect();
        let mean =
            |part: &[i16]| (part.iter().map(|it| i32::from(*it)).sum::<i32>() / part.len() as i32) as i16;
        let expected: Vec<i16> = values.chunks(4).map(mean).collect();
        assert_eq!(reduce(&mut handler, &values), samples(&expected), "{len} samples");
    }
    handler.configure("1", &mut State::default()).unwrap();
    assert_eq!(reduce(&mut handler, &[9, 8]), samples(&[9, 8]));
}

#[test]
fn a_topic_is_no_sample() {
    let Some(bytes) = c(&crate_dir().join("modules/downsample.c"), 131_072) else { return };
    let engine = Engine::new(Limits { fuel: 5_000_000, ..Limits::default() }).unwrap();
    let module = Module::compile(&engine, &bytes).unwrap();
    assert_eq!(module.memory_reserved(), 128 << 10, "docs/handlers.md grants it so much");
    let mut handler = Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "2").unwrap();
    let state = &mut State::new(&handler.needs());
    // In the buffer, and read in pieces; the topic has an even length, an odd one, and none.
    for (topic, len) in [("beat", 4), ("beats", 5), ("", 4), ("beats", 10_001)] {
        let values: Vec<i16> = (0..len).map(|at| (at % 30_000) as i16 * 2).collect();
        let mut port = FakePort::new(topic.as_bytes());
        port.frames.push(samples(&values));
        send(&mut handler, state, &mut port, at(1)).unwrap();
        let mean = |part: &[i16]| {
            (part.iter().map(|value| i32::from(*value)).sum::<i32>() / part.len() as i32) as i16
        };
        let expected = [topic.as_bytes(), &samples(&values.chunks(2).map(mean).collect::<Vec<_>>())].concat();
        assert_eq!(port.emitted, [(0, 7, expected)], "{topic:?} and {len} samples");
    }
}

const SCHEMA: &str = r#"<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="p" id="9" version="0">
  <types>
    <composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
    <type name="Name" primitiveType="char" length="12"/>
  </types>
  <sbe:message name="Booking" id="1"><field name="flight" id="1" type="uint32"/><field name="name" id="2" type="Name"/>
    <field name="document" id="3" type="uint64"/></sbe:message>
  <sbe:message name="Boarding" id="2"><field name="document" id="1" type="uint64"/><field name="seat" id="2" type="uint16"/>
    <field name="name" id="3" type="Name"/></sbe:message>
  <sbe:message name="Weather" id="3"><field name="wind" id="1" type="uint16"/></sbe:message>
</sbe:messageSchema>"#;

fn passengers() -> SbeFields {
    let schema = Arc::new(Schema::parse(SCHEMA).unwrap());
    let mut fields = SbeFields::default();
    for (format, name) in [(7, "Booking"), (8, "Boarding"), (9, "Weather")] {
        assert!(fields.add(FormatId(format), &schema, name));
    }
    assert!(!fields.add(FormatId(10), &schema, "Nothing"));
    fields
}

fn anonymise(engine: &Engine, parameters: &str) -> Supplied {
    let bytes = rust(&crate_dir().join("modules/anonymise.rs"), 131_072);
    assert!(bytes.len() < 256 << 10, "docs/handlers.md: a program may bring it, {} bytes", bytes.len());
    let module = Module::compile(engine, &bytes).unwrap();
    assert_eq!(module.declaration().state, StateKind::Dropped);
    Supplied::new(&module, Arc::new(passengers()), OnStop::default(), parameters).unwrap()
}

#[test]
fn a_module_of_rust_anonymises_passenger_records_of_two_formats() {
    if !has_target() {
        return;
    }
    let engine = engine();
    let mut handler = anonymise(&engine, "");
    let state = &mut State::default();
    let header = [0u8; 8];
    let booking = [&header[..], &7u32.to_le_bytes(), b"Ada Lovelace", &1234u64.to_le_bytes()].concat();
    let boarding =
        [&header[..], &1234u64.to_le_bytes(), &21u16.to_le_bytes(), b"Ada Lovelace", b"more"].concat();
    let mut hide = |handler: &mut Supplied, format, bytes: &[u8]| {
        let mut port = FakePort { format, slice: 5, ..FakePort::new(bytes) };
        let sent = send(handler, state, &mut port, at(1));
        sent.map(|()| port.emitted.pop().unwrap())
    };
    // Without a key nothing passes.
    let given_up = Err(Stop::Fault("the module gives the message up"));
    assert_eq!(hide(&mut handler, 7, &booking), given_up);
    assert!(
        handler
            .configure("secret", &mut State::default())
            .unwrap_err()
            .0
            .contains("the parameter is the key")
    );
    handler.configure("99", &mut State::default()).unwrap();

    let (output, format, hidden) = hide(&mut handler, 7, &booking).unwrap();
    assert_eq!((output, format), (0, 7));
    assert_eq!(hidden[..12], booking[..12]);
    assert_eq!(hidden[12..24], [b' '; 12]);
    assert_ne!(hidden[24..], booking[24..]);
    // The same document has the same hash in the other format, where it lies elsewhere.
    let (_, _, other) = hide(&mut handler, 8, &boarding).unwrap();
    assert_eq!(other[8..16], hidden[24..]);
    assert_eq!(
        (&other[16..18], &other[18..30], &other[30..]),
        (&boarding[16..18], &[b' '; 12][..], &b"more"[..])
    );
    // Longer than the buffer, and than the module has room for.
    let long = [&boarding[..], &[5; 3000]].concat();
    assert_eq!(hide(&mut handler, 8, &long).unwrap().2[34..], [5; 3000]);
    assert_eq!(hide(&mut handler, 8, &[0; 4097]), given_up);
    assert_eq!(hide(&mut handler, 8, &boarding[..20]), given_up);
    // A format without passengers, and one that the channel does not have.
    assert_eq!(hide(&mut handler, 9, &boarding), given_up);
    assert_eq!(hide(&mut handler, 1, &boarding), given_up);
    handler.configure("100", &mut State::default()).unwrap();
    assert_ne!(hide(&mut handler, 7, &booking).unwrap().2, hidden);
    assert_eq!(handler.report().status().stops, []);
}
