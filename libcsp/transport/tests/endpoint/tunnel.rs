//! Tunnel batches: several records per message, in order, complete.

use csp_transport::TunnelBatch;
use csp_types::FlowLabel;
use csp_wire::Ecn;
use csp_wire::tunnel::{Age, Flags, RECORD_HEADER_LEN, Record, RecordKind, Records};
use proptest::prelude::*;

use crate::harness::*;

fn record(label: u32) -> Record<'static> {
    Record {
        kind: RecordKind::Segment,
        label: FlowLabel::from_wire(label).unwrap(),
        worker: 3,
        flags: Flags::COMPACTED | Flags::CHECKSUM_VERIFIED,
        ecn: Ecn::NotEct,
        age: Age::from_nanos(77),
        coalesced: 2,
        segment_size: 1448,
        payload: &[],
    }
}

/// The records that a side received: labels and payloads.
fn records(side: &Side) -> Vec<(u32, Vec<u8>)> {
    let bodies = side.messages.iter().map(|m| &m.body[..]);
    bodies
        .flat_map(Records::new)
        .map(|r| r.unwrap())
        .map(|r| (r.label.to_wire(), r.payload.to_vec()))
        .collect()
}

#[test]
fn records_travel_together_and_arrive_whole() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(8), world.network_node(8));
    let (link, _) = world.tunnel_up(&mut nn, &mut proxy);
    let mut batch = TunnelBatch::new(&nn.endpoint, link);
    batch.push(world.now, &record(1), &[b"head", b"er and data"]).unwrap();
    batch.push(world.now, &record(2), &[b"x"]).unwrap();
    batch.push(world.now, &Record::flow_end(FlowLabel::from_wire(3).unwrap(), 3), &[]).unwrap();
    assert!(!batch.is_empty());
    batch.flush(world.now, &mut nn.endpoint).unwrap();
    assert!(batch.is_empty());
    batch.flush(world.now, &mut nn.endpoint).unwrap();
    world.step(ms(1), &mut [&mut nn, &mut proxy]);
    assert_eq!(proxy.messages.len(), 1);
    assert_eq!(records(&proxy), [(1, b"header and data".to_vec()), (2, b"x".to_vec()), (3, vec![])]);
    let first = Records::new(&proxy.messages[0].body).next().unwrap().unwrap();
    assert_eq!(first, Record { payload: b"header and data", ..record(1) });
}

#[test]
fn a_full_batch_takes_nothing_and_loses_nothing() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(5), world.network_node(4));
    let (link, _) = world.tunnel_up(&mut nn, &mut proxy);
    proxy.receives = false;
    let mut batch = TunnelBatch::new(&nn.endpoint, link);
    let payload = [5; 300];
    let mut taken = 0;
    while batch.send(world.now, &mut nn.endpoint, &record(taken + 1), &[&payload]).is_ok() {
        taken += 1;
        assert!(taken < 100, "never full");
    }
    assert_eq!(taken, 3 * (2 + 1), "two messages on their way and one batch of 3 records of 320 bytes");
    assert!(batch.push(world.now, &record(99), &[&payload]).is_err());
    assert!(batch.push(world.now, &record(99), &[&[0; 2000]]).is_err(), "longer than any message");
    proxy.receives = true;
    world.run(ms(10), &mut [&mut nn, &mut proxy]);
    batch.flush(world.now, &mut nn.endpoint).unwrap();
    world.run(ms(10), &mut [&mut nn, &mut proxy]);
    let labels: Vec<_> = records(&proxy).into_iter().map(|(label, _)| label).collect();
    assert_eq!(labels, (1..=taken).collect::<Vec<_>>());
}

#[test]
fn a_queue_holds_so_many_messages_and_no_more() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(5), world.network_node(4));
    let (link, _) = world.tunnel_up(&mut nn, &mut proxy);
    proxy.receives = false;
    let mut batch = TunnelBatch::with_queue(&nn.endpoint, link, 4);
    let mut taken = 0;
    while batch.send(world.now, &mut nn.endpoint, &record(taken + 1), &[&[5; 300]]).is_ok() {
        taken += 1;
        assert!(taken < 100, "never full");
    }
    assert_eq!(taken, 3 * (2 + 4), "two messages on their way and four of 3 records that wait");
    proxy.receives = true;
    for _ in 0..4 {
        world.run(ms(10), &mut [&mut nn, &mut proxy]);
        let _ = batch.flush(world.now, &mut nn.endpoint); // there is credit for two at a time
    }
    world.run(ms(10), &mut [&mut nn, &mut proxy]);
    let labels: Vec<_> = records(&proxy).into_iter().map(|(label, _)| label).collect();
    assert_eq!(labels, (1..=taken).collect::<Vec<_>>());
    assert!(batch.is_empty());

    // A link that is replaced takes over nothing.
    assert!(batch.push(world.now, &record(1), &[b"x"]).is_ok());
    batch.reset(link);
    assert_eq!((batch.len(), batch.room()), (0, nn.endpoint.message_len() - RECORD_HEADER_LEN));
}

#[test]
fn a_record_that_waits_for_credit_carries_its_age() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(4), world.network_node(4));
    let (link, _) = world.tunnel_up(&mut nn, &mut proxy);
    proxy.receives = false;
    let mut batch = TunnelBatch::new(&nn.endpoint, link);
    let mut sent = Vec::new();
    // One record each millisecond, until there is no credit and the batch is full.
    while batch.send(world.now, &mut nn.endpoint, &record(sent.len() as u32 + 1), &[&[5; 300]]).is_ok() {
        sent.push(world.now);
        assert!(sent.len() < 100, "never full");
        world.step(ms(1), &mut [&mut nn, &mut proxy]);
    }
    let waiting = batch.len() / (RECORD_HEADER_LEN + 300);
    proxy.receives = true;
    world.run(ms(10), &mut [&mut nn, &mut proxy]);
    let posted = world.now;
    batch.flush(posted, &mut nn.endpoint).unwrap();
    world.run(ms(10), &mut [&mut nn, &mut proxy]);
    let bodies = proxy.messages.iter().map(|m| &m.body[..]);
    let ages: Vec<_> = bodies.flat_map(Records::new).map(|r| r.unwrap().age).collect();
    let last: Vec<Age> = ages[ages.len() - waiting..].to_vec();
    let expected: Vec<_> = sent[sent.len() - waiting..]
        .iter()
        .map(|at| Age::from_nanos(77).older(posted.saturating_since(*at)))
        .collect();
    assert!(waiting > 1 && last == expected, "{last:?} is not {expected:?}");
}

proptest! {
    #[test]
    fn whatever_is_taken_arrives_once_and_in_order(
        acts in prop::collection::vec((0..4u8, 0..6000usize), 1..80),
        messages_max in 1..5usize,
    ) {
        let mut world = World::new();
        let long = |mut config: csp_transport::EndpointConfig| { config.message_len = 8192; config };
        let nn = csp_transport::PeerIdentity::daemon(csp_types::Role::NetworkNode, node("nn-1"), 1, 0);
        let pn = csp_transport::PeerIdentity::daemon(csp_types::Role::ProxyNode, node(PROXY), 1, 0);
        let mut proxy = world.proxy_of(long(small(pn, 5, Some(key().into()))));
        let mut nn = world.side("nn-1", long(small(nn, 5, None)));
        let (link, _) = world.tunnel_up(&mut nn, &mut proxy);
        let mut batch = TunnelBatch::with_queue(&nn.endpoint, link, messages_max);
        let mut expected = Vec::new();
        for (number, (act, len)) in acts.into_iter().enumerate() {
            let label = number as u32 + 1;
            let payload = vec![label as u8; len.max(1)];
            let parts = payload.split_at(payload.len() / 3);
            let taken = match act {
                0 => batch.push(world.now, &record(label), &[parts.0, parts.1]).is_ok(),
                1 | 2 => batch.send(world.now, &mut nn.endpoint, &record(label), &[parts.0, parts.1]).is_ok(),
                _ => {
                    world.step(ms(1), &mut [&mut nn, &mut proxy]);
                    false
                }
            };
            if taken {
                expected.push((label, payload));
            }
        }
        for _ in 0..messages_max {
            world.run(ms(5), &mut [&mut nn, &mut proxy]);
            let _ = batch.flush(world.now, &mut nn.endpoint); // there may be credit for some of them only
        }
        prop_assert!(batch.is_empty());
        world.run(ms(5), &mut [&mut nn, &mut proxy]);
        prop_assert_eq!(records(&proxy), expected);
    }
}
