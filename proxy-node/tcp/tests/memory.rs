//! Payload memory: payload that is not copied, guaranteed capacities, idle connections, growth of windows.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, Random, client_tuple, small_config, stream_byte};
use csp_tcp::{Direction, Event, Stack, StackConfig, send_memory};
use csp_types::FlowLabel;

/// Both ends of established connections from ports 1000 on.
fn establish(net: &mut Net, count: u16) -> Vec<(FlowLabel, FlowLabel)> {
    let mut open = |n| net.hosts[0].stack.connect(net.now, client_tuple(1000 + n), 7, 1).unwrap();
    let clients: Vec<_> = (0..count).map(&mut open).collect();
    let mut servers = std::collections::BTreeMap::new();
    while servers.len() < usize::from(count) {
        net.flush();
        while let Some((label, event)) = net.hosts[1].stack.poll_event() {
            if let Event::Established { tuple, .. } = event {
                servers.insert(tuple.remote.port(), label);
            }
        }
        assert!(servers.len() == usize::from(count) || net.step(net.now + Duration::from_secs(1)));
    }
    while net.step(net.now + Duration::from_millis(200)) {
        net.flush();
    }
    clients.into_iter().zip(servers.into_values()).collect()
}

#[test]
fn written_bytes_are_sent_from_the_buffer_they_arrived_in() {
    let mut net = Net::new(1, small_config(1), small_config(2));
    let (client, server) = establish(&mut net, 1)[0];
    let stack = &mut net.hosts[1].stack;
    let mut buffer = stack.lend(Direction::Send).unwrap();
    let expected: Vec<u8> = (0..16_000).map(|at| stream_byte(5, at)).collect();
    buffer.bytes_mut()[40..16_040].copy_from_slice(&expected);
    let (from, len) = (buffer.bytes()[40..].as_ptr(), buffer.bytes().len());
    assert_eq!(stack.write_in(net.now, server, &buffer.bytes()[40..16_040], &buffer), 16_000);
    assert!(stack.occupancy().send_blocks.0 * stack.config().block_len >= len);
    stack.give_back(buffer);
    assert_eq!(stack.occupancy().send_blocks.0, 4, "blocks that the message does not need are free again");
    let transmit = stack.poll_transmit(net.now).unwrap();
    let slices: Vec<&[u8]> = transmit.payload().collect();
    assert_eq!((slices.len(), slices[0].as_ptr()), (1, from), "sent without a copy");
    drop(slices);
    // The record is lost and retransmitted from the same place.
    while net.step(net.now + Duration::from_secs(2)) {
        net.flush();
    }
    let mut received = Vec::new();
    net.hosts[0].stack.read_with(net.now, client, usize::MAX, |slice| {
        received.extend_from_slice(slice);
        slice.len()
    });
    assert_eq!(received.len(), expected.len());
    assert!(received == expected);
    assert_eq!(net.hosts[1].stack.occupancy().send_blocks.0, 0, "acknowledged bytes are free");
}

/// Some clients acknowledge nothing, others send data that is never read; writers waste as much memory as
/// they can.
#[test]
fn a_write_within_the_capacity_is_never_short() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let config = StackConfig { blocks: 2_048, send_buffer_max: 1 << 20, ..small_config(2) };
        let mut net = Net::new(seed, small_config(1), config);
        let labels = establish(&mut net, 40);
        let stack = &mut net.hosts[1].stack;
        let (_, send_blocks) = stack.occupancy().send_blocks;
        let landing = 2 * stack.config().send_message_len.next_multiple_of(4_096);
        let mut left = (send_blocks * 4_096 - landing) as u64;
        let mut flows = Vec::new();
        for (_, label) in labels {
            let capacity = random.pick(&[16_384u32, 65_536, 262_144]);
            if send_memory(capacity, 4_096) <= left {
                left -= send_memory(capacity, 4_096);
                assert!(stack.set_send_capacity(label, capacity));
                flows.push((label, capacity as usize));
            }
        }
        assert!(left < send_memory(262_144, 4_096), "seed {seed}: the memory is fully allotted");
        while flows.iter().any(|(_, room)| *room > 0) {
            let at = random.below(flows.len() as u64) as usize;
            let (label, room) = &mut flows[at];
            let start = random.below(300) as usize;
            let len = random.pick(&[1, 100, 2_049, 4_097, 16_000]).min(*room);
            let buffer = stack.lend(Direction::Send);
            let copied = vec![7; len];
            let taken = match &buffer {
                Some(buffer) => stack.write_in(net.now, *label, &buffer.bytes()[start..start + len], buffer),
                None => stack.write(net.now, *label, &copied),
            };
            assert_eq!(taken, len, "seed {seed}: {:?}", stack.occupancy());
            *room -= len;
            buffer.into_iter().for_each(|buffer| stack.give_back(buffer));
        }
        let (used, _) = stack.occupancy().send_blocks;
        assert!(used > send_blocks / 2, "seed {seed}: {used} blocks: this test would test nothing");
    }
}

#[test]
fn ten_thousand_idle_connections_hold_no_buffers() {
    let config = |seed| StackConfig {
        connections: 10_100,
        half_open: 10_100,
        time_wait_entries: 64,
        ..small_config(seed)
    };
    let mut net = Net::new(3, config(1), config(2));
    let labels = establish(&mut net, 10_000);
    for (client, _) in labels.iter().step_by(100) {
        assert_eq!(net.hosts[0].stack.write(net.now, *client, &[1; 100]), 100);
    }
    while net.step(net.now + Duration::from_secs(1)) {
        net.flush();
    }
    assert_eq!(net.hosts[1].stack.occupancy().blocks.0, 100, "a block for each connection with unread data");
    for (_, server) in &labels {
        net.hosts[1].stack.read_with(net.now, *server, usize::MAX, |slice| slice.len());
    }
    let all = |stack: &Stack| (stack.occupancy().connections.0, stack.occupancy().blocks.0);
    assert_eq!(net.hosts.each_ref().map(|host| all(&host.stack)), [(10_000, 0); 2]);
}

/// How long a transfer of `bytes` takes over 100 ms if the receive window starts with 64 KiB and may grow to
/// `most`, and the peak number of the receiver's blocks in use.
fn transfer(most: u32, bytes: u64) -> (Duration, usize) {
    let client = StackConfig { blocks: 8_192, send_buffer_max: 6 << 20, ..small_config(1) };
    let (receive_window_max, receive_window_initial) = (most, 64 << 10);
    let server = StackConfig { blocks: 8_192, receive_window_max, receive_window_initial, ..small_config(2) };
    let mut net = Net::new(4, client, server).with_rtt(Duration::from_millis(100));
    net.whole_records = true;
    let (client, server) = establish(&mut net, 1)[0];
    let (start, chunk) = (net.now, vec![1; 1 << 16]);
    let (mut written, mut received, mut peak) = (0, 0, 0);
    while received < bytes {
        while written < bytes {
            let want = chunk.len().min((bytes - written) as usize);
            match net.hosts[0].stack.write(net.now, client, &chunk[..want]) {
                0 => break,
                n => written += n as u64,
            }
        }
        peak = peak.max(net.hosts[1].stack.occupancy().blocks.0);
        received += net.hosts[1].stack.read_with(net.now, server, usize::MAX, |slice| slice.len()) as u64;
        net.flush();
        assert!(net.now - start < Duration::from_secs(600), "{received} bytes");
        net.step(net.now + Duration::from_secs(1));
    }
    (net.now - start, peak)
}

/// 200 Mbit/s × 100 ms are 2.5 MB: with a smaller window the window limits throughput.
#[test]
fn the_receive_window_grows_until_a_long_path_is_full() {
    let bytes = 64 << 20;
    let at_ninety_percent = bytes as f64 / (0.9 * 25e6);
    let (time, _) = transfer(6 << 20, bytes);
    let start_up = 1.2; // slow start from ten segments doubles eight times
    assert!(time.as_secs_f64() < start_up + at_ninety_percent, "{time:?}");
    let (time, _) = transfer(64 << 10, bytes / 16);
    assert!(time.as_secs_f64() > 5.0, "{time:?}: a small window must be slow, or this test tests nothing");
}
