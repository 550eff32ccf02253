//! Requests that pass a local service to a member and back over connections that exist allocate nothing.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[path = "upstream/lines.rs"]
#[allow(dead_code, reason = "another test counts what it did")]
mod lines;
#[path = "upstream/world.rs"]
#[allow(dead_code, reason = "another test asks for more")]
mod world;

use std::time::Duration;

use csp_proxy_core::ServiceSpec;
use csp_support::allocation;
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use lines::Lines;
use world::plain::plain;
use world::{World, pool};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const CLIENTS: std::ops::Range<u16> = 1_000..1_003;

/// Passes a request of a client, and a member's answer.
fn exchange(w: &mut World<Lines>, port: u16, request: &[u8], answer: &[u8]) {
    let mut sent = 0;
    while sent < request.len() {
        let len = w.client_sends(port, &request[sent..]);
        assert!(len > 0, "its window is open");
        sent += len;
    }
    match w.servers.is_empty() {
        true => answer_of_process(w, request, answer),
        false => answer_of_server(w, request, answer),
    }
    let received = std::mem::take(&mut w.clients.get_mut(&port).unwrap().received);
    assert!(received == answer, "{} of {} bytes", received.len(), answer.len());
}

fn answer_of_server(w: &mut World<Lines>, request: &[u8], answer: &[u8]) {
    w.pass(Duration::from_millis(50)); // acknowledgements may be delayed
    let label = w.server(1).accepted[0];
    assert_eq!(std::mem::take(&mut w.server(1).at_mut(label).read), request);
    w.server(1).write(label, answer);
    w.settle();
    w.pass(Duration::from_millis(50));
}

fn answer_of_process(w: &mut World<Lines>, request: &[u8], answer: &[u8]) {
    while !w.offers.is_empty() {
        w.accept(1 << 20);
    }
    let mut served = w.served.iter_mut().filter(|(_, served)| !served.received.is_empty());
    let (label, served) = served.next().expect("one has the request");
    assert_eq!(served.received, request);
    served.received.clear();
    let label = FlowLabel::from_wire(*label).unwrap();
    w.says(label, MessageKind::Credit, request.len() as u32, &[]);
    let mut sent = 0;
    while sent < answer.len() {
        let len = w.sends(label, &answer[sent..]);
        assert!(len > 0, "its window is open");
        sent += len;
    }
}

#[test]
fn a_request_over_connections_that_exist_allocates_nothing() {
    allocates_nothing(World::new(Lines::default(), &[8_001, 8_002]));
}

#[test]
fn a_request_to_a_plain_server_allocates_nothing() {
    let mut w = World::new(Lines::default(), &[]);
    w.add_servers(&[1]);
    w.policy(ServiceSpec { pool: vec![plain(1)], ..pool(&[]) });
    allocates_nothing(w);
}

fn allocates_nothing(mut w: World<Lines>) {
    CLIENTS.for_each(|port| w.connect(port));
    let sizes = [0, 1, 100, 3_000, 20_000];
    let mut allocations = Vec::new();
    for round in 0..60usize {
        let before = w.allocations - w.out.allocations;
        for (port, len) in CLIENTS.zip(sizes.into_iter().cycle().skip(round)) {
            let body = vec![round as u8; len];
            exchange(
                &mut w,
                port,
                format!("get {len}\n").as_bytes(),
                &[format!("{len}\n").as_bytes(), &body].concat(),
            );
            let put = [format!("put {len}\n").as_bytes(), &body].concat();
            exchange(&mut w, port, &put, format!("ok {len}\n").as_bytes());
        }
        allocations.push(w.allocations - w.out.allocations - before);
    }
    assert_eq!(allocations[20..], [0; 40], "after lists have their size: {allocations:?}");
    let lines = w.core.local();
    assert_eq!((lines.answered, lines.opened), (60 * 2 * CLIENTS.len(), 1), "one connection for all");
}
