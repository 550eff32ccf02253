//! The formats of the SAN and of the agent's socket. SAN messages have one encoding only: a message that parses is
//! emitted unchanged.

use csp_wire::agent::AgentMessage;
use csp_wire::bytes::Writer;
use csp_wire::channel::{
    ConnectPayload, InfoPayload, ListenPayload, Messages, OpenPayload, OptionPayload, TakeOverPayload,
    TakenOverPayload,
};
use csp_wire::link::{HELLO_LEN_MAX, Header, Hello, HelloAck, HelloRefused};
use csp_wire::tunnel::Records;

use crate::check_error;

/// The link header and the bodies of the HELLO messages.
pub fn link(bytes: &[u8]) {
    match Header::parse(bytes) {
        Ok((header, body)) => {
            assert_eq!([&header.emit()[..], body].concat(), bytes);
            hellos(body);
        }
        Err(error) => check_error(error, bytes),
    }
    hellos(bytes);
}

fn hellos(body: &[u8]) {
    let mut out = [0xaa; HELLO_LEN_MAX];
    match Hello::parse(body).map(|hello| hello.emit(&mut out)) {
        Ok(len) => assert_eq!(&out[..len.expect("the longest hello fits")], body),
        Err(error) => check_error(error, body),
    }
    match HelloAck::parse(body).map(|ack| ack.emit(&mut out)) {
        Ok(len) => assert_eq!(&out[..len.expect("the longest hello fits")], body),
        Err(error) => check_error(error, body),
    }
    match HelloRefused::parse(body) {
        Ok(refused) => {
            let len = refused.emit(&mut out).expect("the longest refusal fits");
            assert_eq!(HelloRefused::parse(&out[..len]), Ok(refused));
        }
        Err(error) => check_error(error, body),
    }
}

/// The records of a tunnel message.
pub fn tunnel(bytes: &[u8]) {
    let mut out = vec![0xaa; bytes.len()];
    let mut writer = Writer::new(&mut out);
    let mut whole = true;
    for record in Records::new(bytes) {
        match record {
            Ok(record) => record.emit_to(&mut writer).expect("what was read fits where it stood"),
            Err(error) => {
                whole = false;
                check_error(error, bytes);
            }
        }
    }
    assert!(bytes.starts_with(writer.written()));
    assert!(!whole || writer.len() == bytes.len());
}

/// The messages of a channel message, and their payloads.
pub fn channel(bytes: &[u8]) {
    let mut out = vec![0xaa; bytes.len()];
    let mut writer = Writer::new(&mut out);
    let mut whole = true;
    for message in Messages::new(bytes) {
        match message {
            Ok(message) => {
                message.emit_to(&mut writer).expect("what was read fits where it stood");
                payloads(message.payload);
            }
            Err(error) => {
                whole = false;
                check_error(error, bytes);
            }
        }
    }
    assert!(bytes.starts_with(writer.written()));
    assert!(!whole || writer.len() == bytes.len());
    payloads(bytes);
}

fn payloads(payload: &[u8]) {
    match ListenPayload::parse(payload) {
        Ok(listen) => assert_eq!(listen.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match OpenPayload::parse(payload) {
        Ok(open) => assert_eq!(open.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match OptionPayload::parse(payload) {
        Ok(option) => assert_eq!(option.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match InfoPayload::parse(payload) {
        Ok(info) => assert_eq!(info.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match TakeOverPayload::parse(payload) {
        Ok(take) => assert_eq!(take.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match TakenOverPayload::parse(payload) {
        Ok(taken) => assert_eq!(taken.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match ConnectPayload::parse(payload) {
        Ok(connect) => {
            let mut out = [0xaa; ConnectPayload::LEN_MAX];
            assert_eq!(connect.emit(&mut out), Ok(payload.len()));
            assert_eq!(&out[..payload.len()], payload);
        }
        Err(error) => check_error(error, payload),
    }
}

/// Messages between a process and its agent.
pub fn agent(bytes: &[u8]) {
    if let Err(error) = AgentMessage::parse(bytes) {
        check_error(error, bytes);
    }
}
