//! What a CURVE publisher sends is opened, distributed and sealed for each subscriber without allocating,
//! while there is room.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::*;
use csp_proxy_core::service::local::LocalServices as _;
use csp_quality::OutputLink;
use csp_support::allocation;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Serves the publisher and whoever is ready then; returns the number of allocations.
fn serve(w: &mut World) -> u64 {
    let before = allocation::count();
    let mut next = Some(World::label(1));
    while let Some(label) = next {
        w.broker.serve(
            w.now,
            label,
            w.ends.get_mut(&(label.index() as u32)).unwrap(),
            &mut OutputLink::default(),
        );
        next = w.broker.next_ready(&mut OutputLink::default());
    }
    allocation::count() - before
}

#[test]
fn messages_between_curve_peers_allocate_nothing() {
    let mut w = World::new(keyed_channel());
    let mut writer = w.connect_curve(1, WRITER, "PUB");
    let mut readers: Vec<_> = (2..5).map(|n| w.connect_curve(n, READER, "SUB")).collect();
    for (n, reader) in (2..).zip(&mut readers) {
        w.arrive(n, &reader.sealed(0, 2, b"\x09SUBSCRIBE"));
    }
    for end in w.ends.values_mut() {
        (end.sent, end.arrived) = (Vec::with_capacity(8 << 20), Vec::with_capacity(1 << 20));
    }
    let mut allocations = Vec::new();
    for n in 0..60usize {
        let body = vec![n as u8; n * 100];
        let sealed = [writer.sealed(0, 1, b"topic"), writer.sealed(0, 0, &body)].concat();
        w.ends.get_mut(&1).unwrap().arrived.extend_from_slice(&sealed);
        allocations.push(serve(&mut w));
    }
    assert_eq!(allocations[10..], [0; 50], "after lists have their size: {allocations:?}");
    for (n, mut reader) in (2..).zip(readers) {
        let got = open_all(&mut reader, &w.taken(n));
        assert_eq!(got.len(), 120, "each reader has every frame");
    }
}
