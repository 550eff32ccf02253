//! What an idle connection has in memory. It stands alone: the whole process is measured.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::OK;
use common::raw::{ACK, END_STREAM, PREFACE, SETTINGS, frame, get};
use csp_http2::{ClientConnection, Limits, ServerConnection};
use csp_support::allocation::{Counting, process_held};
use csp_types::Instant;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Most bytes of an idle connection.
const HELD_MAX: i64 = 48 << 10;

fn server() -> ServerConnection {
    let mut server = ServerConnection::new(&Limits::default(), 0);
    server.receive(Instant::ZERO, &[PREFACE, &frame(SETTINGS, 0, 0, &[]), &get(1, &[], END_STREAM)]);
    server.poll();
    assert!(server.next_event().is_some());
    server.respond_text(1, OK, false).unwrap();
    server.send(1, &[0; 20_000], true);
    server.poll();
    assert!(server.next_event().is_some());
    server.poll();
    server.sent(server.output().len());
    assert!(!server.wants_poll() && server.output().is_empty());
    server
}

fn client() -> ClientConnection {
    let mut client = ClientConnection::new(&Limits::default());
    let settings = [frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat();
    client.receive(Instant::ZERO, &[&settings]);
    client.poll();
    client.sent(client.output().len());
    client
}

#[test]
fn an_idle_connection() {
    let before = process_held();
    let mut servers: Vec<_> = (0..100).map(|_| server()).collect();
    let busy = (process_held() - before) / 100;
    servers.iter_mut().for_each(ServerConnection::shrink);
    let held = (process_held() - before) / 100;
    println!("an idle connection of a client after a request: {busy} bytes, {held} after shrink");
    assert!(held < HELD_MAX, "{held} bytes");
    drop(servers);
    assert!(process_held() - before < 10_000, "all is released");

    let before = process_held();
    let mut clients: Vec<_> = (0..100).map(|_| client()).collect();
    clients.iter_mut().for_each(ClientConnection::shrink);
    let held = (process_held() - before) / 100;
    println!("an idle connection to a member: {held} bytes");
    assert!(held < HELD_MAX, "{held} bytes");
}
