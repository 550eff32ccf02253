//! Memory cost of an idle connection: all of the engine's tables that grow with the number of connections,
//! and nothing else.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, client_tuple, small_config};
use csp_support::allocation;
use csp_tcp::{Stack, StackConfig};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const FEW: usize = 8;
/// A power of two: the hash table for connections and TIME-WAIT entries has then just doubled, so that its
/// load is lowest.
const MANY: usize = 8_192;

fn config(connections: usize, seed: u64) -> StackConfig {
    StackConfig {
        connections,
        half_open: connections,
        time_wait_entries: 64,
        blocks: 8_192,
        ..small_config(seed)
    }
}

/// Bytes that a stack for this many connections allocates.
fn tables(connections: usize) -> usize {
    let config = config(connections, 1);
    let before = allocation::process_held();
    let stack = Stack::new(config);
    let bytes = allocation::process_held() - before;
    drop(stack);
    bytes as usize
}

// There is only one test in this file, because others would allocate at the same time.
#[test]
fn an_idle_connection_takes_a_kibibyte_at_most() {
    let each = (tables(MANY) - tables(FEW)).div_ceil(MANY - FEW);
    println!("{each} bytes for a connection");
    assert!(each <= 1_024, "{each} bytes");

    // An exchange leaves no block, no record and no range set in use.
    let mut net = Net::new(3, config(MANY, 1), config(MANY, 2));
    let open = |n| net.hosts[0].stack.connect(net.now, client_tuple(1_000 + n), 7, 1).unwrap();
    let clients: Vec<_> = (0..MANY as u16).map(open).collect();
    net.flush();
    while net.step(net.now + Duration::from_secs(1)) {
        net.flush();
    }
    for client in clients.iter().step_by(10) {
        assert_eq!(net.hosts[0].stack.write(net.now, *client, &[1; 5_000]), 5_000);
        net.flush();
    }
    while net.step(net.now + Duration::from_secs(1)) {
        net.flush();
    }
    let labels = |stack: &Stack| stack.connections().map(|c| c.label).collect::<Vec<_>>();
    let mut read = 0;
    for server in labels(&net.hosts[1].stack) {
        read += net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len());
    }
    assert_eq!(read, clients.len().div_ceil(10) * 5_000);
    for host in &net.hosts {
        let all = host.stack.occupancy();
        assert_eq!((all.connections.0, all.half_open.0), (MANY, 0));
        assert_eq!((all.blocks.0, all.records.0, all.range_sets.0), (0, 0, 0));
    }
}
