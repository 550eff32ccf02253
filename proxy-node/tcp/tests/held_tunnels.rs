//! A network node without room delays only its own connections.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::small_config;
use csp_tcp::Stack;
use csp_types::{FourTuple, Instant};

fn tuple(port: u16) -> FourTuple {
    FourTuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 80).into() }
}

/// The source ports and network nodes of everything that is sent while `stuck` has no room.
fn sent(stack: &mut Stack, stuck: u32) -> Vec<(u16, u32)> {
    let mut all = Vec::new();
    while let Some(transmit) = stack.poll_transmit_if(Instant::ZERO, |via| via != stuck) {
        all.push((transmit.tuple.local.port(), transmit.via));
    }
    all
}

#[test]
fn connections_of_other_network_nodes_go_on() {
    let mut stack = Stack::new(small_config(1));
    for port in 1..=6 {
        stack.connect(Instant::ZERO, tuple(port), 1 + u32::from(port % 2), 0).unwrap();
    }
    assert_eq!(sent(&mut stack, 2), [(2, 1), (4, 1), (6, 1)]);
    assert_eq!(stack.held_transmits().collect::<Vec<_>>(), [2]);
    assert_eq!(sent(&mut stack, 0), [], "nothing is sent before the node is resumed");
    stack.resume_transmit(2);
    assert_eq!(sent(&mut stack, 0), [(1, 2), (3, 2), (5, 2)]);
    assert_eq!(stack.held_transmits().count(), 0);
}

#[test]
fn what_is_held_goes_with_its_connections_to_another_node() {
    let mut stack = Stack::new(small_config(1));
    stack.connect(Instant::ZERO, tuple(1), 2, 0).unwrap();
    assert_eq!(sent(&mut stack, 2), []);
    stack.redirect(2, 3);
    assert_eq!(sent(&mut stack, 2), [(1, 3)]);
}
