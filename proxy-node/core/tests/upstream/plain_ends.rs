//! The ends of upstream connections to plain servers: how bytes, the ends of streams and resets pass in
//! either direction.

use std::time::Duration;

use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::Ended;
use csp_support::Random;
use csp_tcp::FailReason;
use csp_types::FlowLabel;

use crate::plain_requests::{opened, world};
use crate::script::{Script, Told};
use crate::world::World;
use crate::world::host::{Connection, End};
use crate::world::plain::SERVER_WINDOW;

const S: Duration = Duration::from_secs(1);
/// The engine's window for what a server sends, in the world.
const WINDOW: usize = 1 << 15;

/// A world with one upstream connection, and its label at the server.
fn one() -> (World<Script>, FlowLabel, FlowLabel) {
    let mut w = world(&[1]);
    let label = opened(&mut w).label;
    let of_server = w.server(1).accepted[0];
    (w, label, of_server)
}

fn gone(label: FlowLabel, how: Ended) -> Vec<Told> {
    vec![Told::Gone(label, how)]
}

fn at(w: &mut World<Script>, label: FlowLabel) -> &mut Connection {
    w.server(1).at_mut(label)
}

fn says(w: &mut World<Script>, label: FlowLabel, bytes: &[u8]) {
    w.server(1).write(label, bytes);
    w.settle();
}

fn finishes(w: &mut World<Script>, label: FlowLabel) {
    w.server(1).finish(label);
    w.settle();
}

fn resets(w: &mut World<Script>, label: FlowLabel) {
    let now = w.now;
    w.server(1).tcp.abort(now, label);
    w.settle();
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn either_side_finishes_first_and_the_connection_ends_with_both() {
    for service_first in [true, false] {
        let (mut w, label, of_server) = one();
        let finish = |w: &mut World<Script>, by_service: bool| match by_service {
            true => w.serve(label, b"last words", Some(Step::Finish)),
            false => finishes(w, of_server),
        };
        finish(&mut w, service_first);
        let finished = w.core.local().finished[&label];
        assert_eq!((at(&mut w, of_server).finished, finished), (service_first, (!service_first, None)));
        // The other direction goes on.
        match service_first {
            true => says(&mut w, of_server, b"more"),
            false => w.serve(label, b"more", None),
        }
        assert!(w.told().is_empty());
        finish(&mut w, !service_first);
        assert_eq!(w.told(), gone(label, Ended::Closed));
        w.pass(2 * S);
        let expected: &[u8] = if service_first { b"last words" } else { b"morelast words" };
        let server = at(&mut w, of_server);
        assert_eq!((server.end, &server.read[..]), (Some(End::Closed), expected), "{service_first}");
        assert_eq!(w.core.counters().connections_failed, 0);
        w.assert_empty();
    }
}

/// What a server sent before its end is read after it, at the service's pace.
#[test]
fn what_arrived_before_the_end_of_the_server_is_read() {
    for is_reset in [false, true] {
        let (mut w, label, of_server) = one();
        w.core.local_mut().reads = Some(0);
        says(&mut w, of_server, &[7; 1_000]);
        match is_reset {
            true => resets(&mut w, of_server),
            false => finishes(&mut w, of_server),
        }
        let how = is_reset.then_some(Ended::Reset);
        assert_eq!(w.core.local().finished[&label], (true, how));
        // A slow client may keep the service from reading for long.
        w.pass(Duration::from_secs(300));
        w.core.local_mut().reads = Some(600);
        w.serve(label, b"", None);
        assert_eq!((w.told(), w.core.local().read[&label].len()), (Vec::new(), 600));
        w.core.local_mut().reads = None;
        w.serve(label, b"", None);
        assert_eq!(w.core.local().read[&label].len(), 1_000);
        if is_reset {
            assert_eq!(w.told(), gone(label, Ended::Reset));
        } else {
            assert!(w.told().is_empty(), "the service has not finished");
            w.serve(label, b"", Some(Step::Close));
            assert_eq!(w.told(), gone(label, Ended::ByService));
        }
        w.pass(2 * S);
        w.assert_empty();
    }
}

#[test]
fn a_reset_without_unread_bytes_is_reported_at_once() {
    let (mut w, label, of_server) = one();
    w.serve(label, b"a request", None);
    resets(&mut w, of_server);
    assert_eq!(w.told(), gone(label, Ended::Reset));
    w.assert_empty();
    // After its end of stream, too.
    let (mut w, label, of_server) = one();
    finishes(&mut w, of_server);
    assert!(w.told().is_empty());
    resets(&mut w, of_server);
    assert_eq!(w.told(), gone(label, Ended::Reset));
    w.assert_empty();
}

/// The service writes, and a server that has gone answers nothing.
#[test]
fn a_server_that_has_gone_is_noticed() {
    let (mut w, label, _) = one();
    w.server(1).silent = true;
    w.serve(label, b"is anybody there?", None);
    w.pass(Duration::from_secs(3_600));
    assert_eq!(w.told(), gone(label, Ended::Reset));
    w.assert_empty();
}

#[test]
fn a_service_that_closes_or_resets_is_done_at_once() {
    // What was written arrives before the reset.
    let (mut w, label, of_server) = one();
    w.serve(label, b"last words", Some(Step::Reset));
    assert_eq!((w.told(), w.core.upstream_count()), (gone(label, Ended::ByService), 0));
    w.pass(S);
    let server = at(&mut w, of_server);
    assert_eq!((server.end, &server.read[..]), (Some(End::Failed(FailReason::Reset)), &b"last words"[..]));
    w.assert_empty();
    // RFC 9293 §3.6.1: the server is informed that its data was not read.
    let (mut w, label, of_server) = one();
    w.core.local_mut().reads = Some(0);
    says(&mut w, of_server, b"unread");
    w.serve(label, b"", Some(Step::Close));
    assert_eq!(w.told(), gone(label, Ended::ByService));
    assert_eq!(at(&mut w, of_server).end, Some(End::Failed(FailReason::Reset)));
    w.assert_empty();
    // Closed, and the server goes on sending.
    let (mut w, label, of_server) = one();
    w.serve(label, b"bye", Some(Step::Close));
    assert_eq!(w.told(), gone(label, Ended::ByService));
    says(&mut w, of_server, b"more");
    assert_eq!(at(&mut w, of_server).end, Some(End::Failed(FailReason::Reset)));
    w.assert_empty();
    // Closed, and the server ends its stream, or nothing.
    for is_ended in [true, false] {
        let (mut w, label, of_server) = one();
        w.serve(label, b"bye", Some(Step::Close));
        assert_eq!(w.told(), gone(label, Ended::ByService));
        if is_ended {
            finishes(&mut w, of_server);
        } else {
            w.pass(Duration::from_secs(61));
        }
        w.pass(2 * S);
        assert!(w.told().is_empty(), "once");
        let counters = w.core.counters();
        // Both the service's and the engine's.
        let expected = if is_ended { (2, 0) } else { (1, 1) };
        assert_eq!((counters.connections_closed, counters.connections_failed), expected);
        w.assert_empty();
    }
}

/// A server that closes a connection which no request uses wakes the service.
#[test]
fn a_kept_connection_that_the_server_closes_wakes_the_service() {
    for is_reset in [false, true] {
        let (mut w, label, of_server) = one();
        w.serve(label, b"request", None);
        says(&mut w, of_server, b"response");
        w.pass(5 * S);
        let visits = w.core.local().visits;
        w.core.local_mut().step = Some(Step::Close);
        match is_reset {
            true => resets(&mut w, of_server),
            false => finishes(&mut w, of_server),
        }
        assert!(w.core.local().visits > visits);
        assert_eq!(w.told(), gone(label, if is_reset { Ended::Reset } else { Ended::ByService }));
        w.pass(2 * S);
        w.assert_empty();
    }
}

/// Both sides read slowly; neither holds more than its window.
#[test]
fn bytes_go_both_ways_under_both_windows() {
    let total = 400_000;
    let sent = bytes(total);
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let (mut w, label, of_server) = one();
        w.core.local_mut().sends.insert(label, sent.clone());
        w.core.local_mut().reads = Some(0);
        w.server(1).write(of_server, &sent);
        for round in 0.. {
            assert!(round < 50_000, "seed {seed}: {} of {total}", w.core.local().read[&label].len());
            at(&mut w, of_server).stalls = random.below(3) > 0;
            w.core.local_mut().reads = Some(random.below(9_000) as usize);
            w.core.local_mut().ready.push(label);
            w.settle();
            w.pass(Duration::from_millis(random.below(300)));
            let flows = w.core.flows(w.now, 8);
            let flow = flows.iter().find(|flow| flow.state == "Established/joined").unwrap();
            assert!(flow.queued.0 <= WINDOW, "seed {seed}: {} bytes of the server", flow.queued.0);
            assert!(flow.queued.1 <= 1 << 16, "seed {seed}: {} bytes for the server", flow.queued.1);
            assert!(w.server(1).tcp.readable(of_server) <= SERVER_WINDOW as usize);
            let read = w.core.local().read[&label].len();
            if (read, at(&mut w, of_server).read.len()) == (total, total) {
                break;
            }
        }
        assert!(at(&mut w, of_server).read == sent && w.core.local().read[&label] == sent);
        w.serve(label, b"", Some(Step::Close));
        finishes(&mut w, of_server);
        w.pass(2 * S);
        assert_eq!(w.told(), gone(label, Ended::ByService));
        w.assert_empty();
    }
}

/// A service that waits for room without a write that was refused is called when there is some.
#[test]
fn a_service_that_waits_for_room_is_called() {
    let (mut w, label, of_server) = one();
    at(&mut w, of_server).stalls = true;
    // The send queue has 64 KiB, and the server's window 20,000 bytes.
    w.serve(label, &bytes(40_000), None);
    w.pass(S);
    w.serve(label, &bytes(40_000), None);
    assert!(w.core.local().sends[&label].is_empty(), "all of it was accepted");
    w.core.local_mut().wants = Some((label, 30_000));
    w.serve(label, b"", None);
    assert!(w.core.local().wants.is_some());
    at(&mut w, of_server).stalls = false;
    w.settle();
    w.pass(10 * S);
    assert!(w.core.local().wants.is_none(), "there is room");
    assert_eq!(at(&mut w, of_server).read.len(), 80_000);
}

#[test]
fn several_connections_to_one_server_are_told_apart() {
    let mut w = world(&[1]);
    w.server(1).echoes = true;
    let labels = [0; 5].map(|_| opened(&mut w).label);
    for (n, label) in labels.into_iter().enumerate() {
        w.serve(label, &[n as u8; 100], None);
    }
    for (n, label) in labels.into_iter().enumerate() {
        assert_eq!(w.core.local().read[&label], [n as u8; 100]);
    }
    let third = w.server(1).accepted[2];
    resets(&mut w, third);
    assert_eq!(w.told(), gone(labels[2], Ended::Reset));
    let again = opened(&mut w).label;
    assert!(again != labels[2], "another generation");
    w.serve(labels[2], b"nobody", None);
    w.serve(again, b"new", None);
    assert_eq!(w.core.local().read[&again], b"new");
}
