//! Plain servers: which gets a connection, what passes, and how connections end.
#![expect(clippy::unwrap_used, reason = "a panic is a failed test")]

mod by_service;
mod checks;
mod choice;
mod host;
mod log;
mod preface;
mod secure;
mod sni;
mod world;

use csp_proxy_core::{BacklogLimits, ProxyHeader, ServerOptions, ServiceSpec};
use csp_tcp::FailReason;
use csp_types::Duration;

use host::End;
use world::{CLIENT, World, server, web};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed)).collect()
}

#[test]
fn bytes_and_ends_of_streams_pass_in_both_directions() {
    let mut w = World::new(&[1]);
    w.server(1).echoes = true;
    let label = w.connect();
    let sent = bytes(1_000_000, 7);
    w.client().write(label, &sent);
    w.client().finish(label);
    w.run(S);
    let got = w.client().at(label);
    assert_eq!((got.read == sent, got.finished, got.end), (true, true, Some(End::Closed)));
    let of_server = w.server(1).accepted[0];
    assert!(w.server(1).at(of_server).finished && w.server(1).at(of_server).end == Some(End::Closed));
    assert_eq!(w.core.counters().connections_called, 1);
    assert_eq!(w.core.counters().joined_bytes, 2_000_000);
    w.run(2 * S);
    w.assert_empty("after both have closed");
}

#[test]
fn a_server_that_speaks_first_is_heard_and_a_half_closed_stream_goes_on() {
    let mut w = World::new(&[1]);
    let label = w.connect();
    w.run(20 * MS);
    let of_server = w.server(1).accepted[0];
    w.server(1).write(of_server, b"220 ready\r\n");
    w.server(1).finish(of_server);
    w.run(20 * MS);
    let got = w.client().at(label);
    assert_eq!((&got.read[..], got.finished), (&b"220 ready\r\n"[..], true));
    w.client().write(label, b"still here");
    w.run(20 * MS);
    assert_eq!(w.server(1).at(of_server).read, b"still here");
    w.client().finish(label);
    w.run(2 * S);
    assert_eq!(w.server(1).at(of_server).end, Some(End::Closed));
    w.assert_empty("after the second end");
}

#[test]
fn a_client_does_not_see_that_a_server_refuses_or_is_silent() {
    for silent in [false, true] {
        let mut w = World::new(&[1, 2]);
        match silent {
            true => w.server(1).silent = true,
            false => assert!(w.server(1).tcp.unlisten((server(1), world::PORT).into())),
        }
        let label = w.connect();
        w.client().write(label, b"hello");
        w.run(if silent { 3_500 * MS } else { 50 * MS });
        let of_server = w.server(2).accepted[0];
        assert_eq!(w.server(2).at(of_server).read, b"hello", "silent: {silent}");
        assert_eq!(w.members(), [(0, true), (1, false)]);
        assert_eq!(w.core.counters().calls_failed, 1);
        // While it is down others get all connections, without a try.
        for _ in 0..3 {
            w.connect();
        }
        w.run(20 * MS);
        assert_eq!((w.server(2).accepted.len(), w.core.counters().calls_failed), (4, 1));
        // After a while one connection tries it.
        w.server(1).silent = false;
        let _ = w.server(1).tcp.listen((server(1), world::PORT).into(), 0);
        w.run(S);
        w.connect();
        w.connect();
        w.run(20 * MS);
        assert_eq!((w.server(1).accepted.len(), w.members()[0].1), (1, false), "silent: {silent}");
    }
}

#[test]
fn without_any_server_a_client_waits_for_one_and_is_reset_in_the_end() {
    let mut w = World::new(&[1]);
    assert!(w.server(1).tcp.unlisten((server(1), world::PORT).into()));
    let (first, second) = (w.connect(), w.connect());
    w.run(500 * MS);
    assert_eq!((w.client().at(first).end, w.members()[0]), (None, (0, true)));
    w.run(4 * S);
    assert_eq!(w.client().at(first).end, Some(End::Failed(FailReason::Reset)));
    assert_eq!(w.client().at(second).end, Some(End::Failed(FailReason::Reset)));
    assert_eq!(w.core.counters().drop_no_server, 2);
    w.assert_empty("without servers");
    // One that comes back within the grace period serves those that wait.
    w.run(30 * S);
    let third = w.connect();
    w.run(20 * MS);
    assert_eq!(w.client().at(third).end, None);
    w.server(1).tcp.listen((server(1), world::PORT).into(), 0).unwrap();
    w.run(60 * S);
    let fourth = w.connect();
    w.run(20 * MS);
    assert_eq!(w.client().at(fourth).end, None);
    assert!(!w.server(1).accepted.is_empty() && !w.members()[0].1);
}

#[test]
fn resets_pass_after_the_bytes_before_them() {
    // The client resets.
    let mut w = World::new(&[1]);
    let label = w.connect();
    w.run(20 * MS);
    w.client().write(label, b"bye");
    w.run(20 * MS);
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(20 * MS);
    let of_server = w.server(1).accepted[0];
    assert_eq!(w.server(1).at(of_server).read, b"bye");
    assert_eq!(w.server(1).at(of_server).end, Some(End::Failed(FailReason::Reset)));
    w.assert_empty("after the client's reset");
    // The server answers early and resets: its last words arrive.
    let label = w.connect();
    w.run(20 * MS);
    let of_server = w.server(1).accepted[1];
    let last = bytes(100_000, 3);
    w.server(1).write(of_server, &last);
    w.run(200 * MS);
    let now = w.now;
    w.server(1).tcp.abort(now, of_server);
    w.run(S);
    let got = w.client().at(label);
    assert_eq!((got.read == last, got.end), (true, Some(End::Failed(FailReason::Reset))));
    w.assert_empty("after the server's reset");
}

#[test]
fn a_client_that_leaves_before_the_server_answers_takes_the_connection_along() {
    let mut w = World::new(&[1]);
    w.server(1).silent = true;
    let label = w.connect();
    w.run(20 * MS);
    assert_eq!(w.members()[0], (1, false));
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(20 * MS);
    w.assert_empty("after the client has left");
    assert_eq!(w.members()[0], (0, false), "the server is not to blame");
}

#[test]
fn a_client_that_never_ends_its_stream_does_not_hold_a_finished_server() {
    let mut w = World::new(&[1]);
    let (idle, busy) = (w.connect(), w.connect());
    w.run(20 * MS);
    for of_server in w.server(1).accepted.clone() {
        w.server(1).write(of_server, b"all there is");
        w.server(1).finish(of_server);
    }
    for _ in 0..5 {
        w.run(30 * S);
        w.client().write(busy, b"more");
    }
    w.run(S);
    assert_eq!(w.client().at(idle).end, Some(End::Failed(FailReason::Reset)));
    assert_eq!((w.client().at(busy).end, w.core.counters().half_closed_given_up), (None, 1));
    w.client().finish(busy);
    w.run(5 * S);
    assert_eq!(w.client().at(busy).end, Some(End::Closed));
    w.assert_empty("after both");
}

#[test]
fn a_client_gets_another_server_or_waits_while_nothing_can_be_sent() {
    let mut w = World::new(&[1]);
    let spec = ServiceSpec { backlog: BacklogLimits { connections: 100, time: None }, ..web(&[1]) };
    w.policy(vec![spec]);
    let label = w.connect();
    w.run(2 * MS);
    w.out.no_node = true;
    w.run(10 * S);
    assert_eq!((w.client().at(label).end, w.members()), (None, vec![(0, false)]), "it waits");
    w.out.no_node = false;
    w.run(2 * S);
    assert_eq!((w.server(1).accepted.len(), w.members()), (1, vec![(1, false)]));
}

/// A member that got nothing for long gets no more than its share afterwards.
#[test]
fn a_server_that_comes_back_gets_its_share_only() {
    let mut w = World::new(&[1, 2]);
    let one_after_the_other = |w: &mut World, count: u32| {
        for _ in 0..count {
            let label = w.connect();
            w.run(20 * MS);
            let now = w.now;
            w.client().tcp.abort(now, label);
            w.run(20 * MS);
        }
    };
    let mut spec = web(&[1, 2]);
    spec.pool[1].weight = 0;
    w.policy(vec![spec]);
    one_after_the_other(&mut w, 60);
    w.policy(vec![web(&[1, 2])]);
    one_after_the_other(&mut w, 40);
    let accepted = [1, 2].map(|number| w.server(number).accepted.len());
    assert!((79..=81).contains(&accepted[0]) && accepted[0] + accepted[1] == 100, "{accepted:?}");
}

#[test]
fn a_stalled_reader_holds_the_other_end_back() {
    let mut w = World::new(&[1]);
    let label = w.connect();
    w.run(20 * MS);
    w.client().at_mut(label).stalls = true;
    let of_server = w.server(1).accepted[0];
    let all = bytes(8_000_000, 1);
    w.server(1).write(of_server, &all);
    w.run(5 * S);
    let written = w.core.counters().joined_bytes as usize;
    assert!(written < 4_000_000, "{written} bytes lie between the two");
    w.client().at_mut(label).stalls = false;
    w.run(60 * S);
    assert!(w.client().at(label).read == all);
}

#[test]
fn connections_are_distributed_by_weight_and_bounded() {
    let mut w = World::new(&[1, 2, 3]);
    let mut spec = web(&[1, 2, 3]);
    (spec.pool[0].weight, spec.pool[1].weight, spec.pool[2].weight) = (3, 1, 0);
    w.policy(vec![spec.clone()]);
    // Connections that stay.
    for _ in 0..40 {
        w.connect();
    }
    w.run(50 * MS);
    assert_eq!(w.members().iter().map(|(open, _)| *open).collect::<Vec<_>>(), [30, 10, 0]);
    // Connections one after the other.
    let mut w = World::new(&[1, 2, 3]);
    w.policy(vec![spec.clone()]);
    for _ in 0..40 {
        let label = w.connect();
        w.run(20 * MS);
        let now = w.now;
        w.client().tcp.abort(now, label);
        w.run(20 * MS);
    }
    let accepted: Vec<usize> = [1, 2, 3].map(|number| w.server(number).accepted.len()).to_vec();
    assert_eq!(accepted, [30, 10, 0]);
    // A bound, behind which connections wait.
    let mut w = World::new(&[1, 2]);
    let mut spec = web(&[1, 2]);
    spec.pool.iter_mut().for_each(|server| server.connections_max = 2);
    w.policy(vec![spec]);
    let labels: Vec<_> = (0..5).map(|_| w.connect()).collect();
    w.run(50 * MS);
    assert_eq!((w.members(), w.core.waiting_count()), (vec![(2, false), (2, false)], 1));
    let now = w.now;
    w.client().tcp.abort(now, labels[0]);
    w.run(50 * MS);
    assert_eq!((w.members(), w.core.waiting_count()), (vec![(2, false), (2, false)], 0));
}

#[test]
fn a_server_learns_the_clients_address() {
    for header in [ProxyHeader::V1, ProxyHeader::V2] {
        let mut w = World::new(&[1]);
        let servers = ServerOptions { header: Some(header), ..ServerOptions::default() };
        w.policy(vec![ServiceSpec { servers, ..web(&[1]) }]);
        let label = w.connect();
        w.client().write(label, b"GET /");
        w.run(20 * MS);
        let of_server = w.server(1).accepted[0];
        let read = &w.server(1).at(of_server).read;
        let rest = match header {
            ProxyHeader::V1 => {
                read.strip_prefix(format!("PROXY TCP4 {CLIENT} {} 10001 80\r\n", world::VIP).as_bytes())
            }
            ProxyHeader::V2 => read.get(28..).filter(|_| read.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21\x11")),
        };
        assert_eq!(rest, Some(&b"GET /"[..]), "{header:?}: {read:?}");
    }
}

#[test]
fn a_connection_outlives_its_service_and_waits_for_a_network_node() {
    let mut w = World::new(&[1]);
    w.server(1).echoes = true;
    let label = w.connect();
    w.run(20 * MS);
    w.policy(Vec::new());
    w.client().write(label, b"after");
    w.run(20 * MS);
    assert_eq!(w.client().at(label).read, b"after");
    // Without a network node nothing can be opened: the client is reset, not forgotten.
    let mut w = World::new(&[1]);
    let spec = ServiceSpec { backlog: BacklogLimits { connections: 1, time: None }, ..web(&[1]) };
    w.policy(vec![spec]);
    let label = w.connect();
    w.run(MS);
    w.out.cut = true;
    w.run(S);
    w.out.cut = false;
    w.run(5 * S);
    assert!(w.client().at(label).established);
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(5 * S);
    w.assert_empty("after the cut");
}

/// Addresses in TIME-WAIT are used again after a second, so that many short connections to one server do not
/// run out of ports.
#[test]
fn short_connections_do_not_run_out_of_ports() {
    let mut w = World::new(&[1]);
    w.server(1).echoes = true;
    for round in 0..300 {
        let label = w.connect();
        w.client().finish(label);
        w.run(100 * MS);
        assert_eq!(w.client().at(label).end, Some(End::Closed), "{round}");
        w.client().connections.clear();
    }
    assert_eq!(w.core.counters().calls_unsent, 0);
}

/// Opens a connection; returns the port that the server sees.
fn port_of_next(w: &mut World) -> u16 {
    w.connect();
    w.run(20 * MS);
    let of_server = *w.server(1).accepted.last().unwrap();
    w.server(1).tcp.info(of_server).unwrap().tuple.remote.port()
}

#[test]
fn ports_that_lead_to_a_far_worker_are_passed_over_if_a_better_one_is_near() {
    let mut w = World::new(&[1]);
    let first = port_of_next(&mut w);
    assert_eq!(port_of_next(&mut w), first + 1);
    w.out.far = first + 2..first + 12;
    assert_eq!(port_of_next(&mut w), first + 12);
    assert_eq!(port_of_next(&mut w), first + 13);
    w.out.far = 0..u16::MAX;
    assert_eq!(port_of_next(&mut w), first + 30, "sixteen are passed over, not more");
}

/// Whatever is lost and whoever leaves when: streams are prefixes of what was sent, whole if they end
/// regularly, and nothing is left in the end.
#[test]
fn streams_are_right_with_losses_and_resets() {
    for seed in 0..150 {
        let mut w = World::new(&[1, 2]);
        w.seed(seed);
        w.loses = [0, 50, 12][(seed % 3) as usize];
        [1, 2].into_iter().for_each(|number| w.server(number).echoes = true);
        let mut all = Vec::new();
        for n in 0..8u8 {
            let label = w.connect();
            let sent = bytes(w.below(200_000) as usize, n);
            w.client().write(label, &sent);
            w.client().finish(label);
            all.push((label, sent));
            let pause = w.below(30) as u32;
            w.run(pause * MS);
            match w.below(10) {
                0 => {
                    let now = w.now;
                    w.client().tcp.abort(now, label);
                    w.client().at_mut(label).end = Some(End::Failed(FailReason::Reset));
                }
                1 => {
                    let number = 1 + w.below(2) as u8;
                    let now = w.now;
                    if let Some(label) = w.server(number).accepted.last().copied() {
                        w.server(number).tcp.abort(now, label);
                    }
                }
                _ => {}
            }
        }
        w.run(200 * S);
        w.loses = 0;
        w.run(200 * S);
        for (label, sent) in all {
            let got = w.client().at(label);
            assert!(sent.starts_with(&got.read), "seed {seed}");
            match got.end {
                Some(End::Closed) => assert!(got.read == sent && got.finished, "seed {seed}"),
                Some(End::Failed(_)) => {}
                None => panic!("seed {seed}: a connection has not ended: {} bytes", got.read.len()),
            }
        }
        w.assert_empty(&format!("seed {seed}"));
    }
}
