//! After its handshake a connection allocates nothing: not for messages, subscriptions, heartbeats or
//! encryption.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::sync::Arc;

use common::Server;
use common::client::{CurveClient, command, command_body, greeting, message, property};
use csp_support::allocation;
use csp_types::Instant;
use csp_zmtp::{
    CONTROL_LEN_MAX, Config, Connection, Counters, Cursor, CurveKeys, Item, LocalType, sealed_len,
};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Receives `bytes` in short slices and answers what is due; returns how many items there were and how many
/// allocations.
fn receive(connection: &mut Connection, bytes: &[u8], counters: &mut Counters) -> (usize, u64) {
    let before = allocation::count();
    let (mut items, mut out) = (0, [0; CONTROL_LEN_MAX]);
    let mut input = Cursor::new(connection.examined(), bytes.chunks(100));
    while let Some(item) = connection.next(Instant::ZERO, &mut input, counters).unwrap() {
        items += usize::from(!matches!(item, Item::Ready(_)));
    }
    while connection.transmit(Instant::ZERO, &mut out, counters).unwrap() > 0 {}
    (items, allocation::count() - before)
}

#[test]
fn a_null_connection_allocates_nothing() {
    let mut server = Server::ready(Config::new(LocalType::Xpub), "XSUB", 1);
    let parts = [
        message(&[b"a", &[2; 5000], b""]),
        command("SUBSCRIBE", b"topic"),
        message(&[b"\x00topic"]),
        command("PING", b"\0\x09ctx"),
    ];
    let bytes = parts.concat().repeat(100);
    let (connection, counters) = (&mut server.connection, &mut server.counters);
    assert_eq!(receive(connection, &bytes, counters), (300, 0));
}

#[test]
fn a_curve_connection_allocates_nothing() {
    let keys = Arc::new(CurveKeys::new([1; 32]));
    let mut client = CurveClient::new(keys.public(), [2; 32], [3; 32]);
    let config = Arc::new(Config::new(LocalType::Xpub));
    let mut server = Server::new(Connection::curve(config, keys, &[4; 144], Instant::ZERO));
    server.feed(&[greeting(1, "CURVE"), client.hello()].concat()).unwrap();
    let initiate = client.initiate(&server.output()[64..], &property("Socket-Type", b"XSUB"));
    server.feed(&initiate).unwrap();
    let mut bytes = Vec::new();
    for _ in 0..100 {
        bytes.extend(client.sealed(0, 1, b"a"));
        bytes.extend(client.sealed(0, 0, &[2; 5000]));
        bytes.extend(client.sealed(0, 2, &command_body("SUBSCRIBE", b"topic")));
        bytes.extend(client.sealed(0, 2, &command_body("PING", b"\0\x09ctx")));
    }
    let (connection, counters) = (&mut server.connection, &mut server.counters);
    assert_eq!(receive(connection, &bytes, counters), (200, 0));
    let (body, mut out) = ([5; 5000], vec![0; sealed_len(5000)]);
    let before = allocation::count();
    for _ in 0..100 {
        connection.encrypt(&[&body], false, &mut out).unwrap();
    }
    assert_eq!(allocation::count(), before);
}
