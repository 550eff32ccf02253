//! The ends of upstream connections: how bytes, shutdown and close pass in either direction.

use std::time::Duration;

use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::Ended;
use csp_proxy_core::{CLOSING_MAX, ChannelId};
use csp_types::FlowLabel;
use csp_wire::channel::{CLOSE_UNREAD, Message, MessageHeader, MessageKind, TakeOverPayload, Ticket};

use crate::script::{Script, Told};
use crate::world::World;

const A: u16 = 8001;
const B: u16 = 8002;

fn gone(label: FlowLabel, how: Ended) -> Vec<Told> {
    vec![Told::Gone(label, how)]
}

/// A world with one upstream connection, whose process has this much room.
fn world(room: u32) -> (World<Script>, FlowLabel) {
    let mut w = World::script(&[A, B]);
    let label = w.opened(room).label;
    (w, label)
}

/// The numbers of connections that have ended without and with an error.
fn counted(w: &World<Script>) -> (u64, u64) {
    (w.core.counters().connections_closed, w.core.counters().connections_failed)
}

#[test]
fn either_side_finishes_first_and_the_connection_ends_with_both() {
    for service_first in [true, false] {
        let (mut w, label) = world(1 << 16);
        let finish = |w: &mut World<Script>, by_service: bool| match by_service {
            true => w.serve(label, b"last words", Some(Step::Finish)),
            false => w.says(label, MessageKind::Shutdown, 0, &[]),
        };
        finish(&mut w, service_first);
        let served = &w.served[&label.to_wire()];
        assert_eq!((served.finished, w.core.local().finished[&label].0), (service_first, !service_first));
        // The other direction goes on.
        match service_first {
            true => assert_eq!(w.sends(label, b"more"), 4),
            false => w.serve(label, b"more", None),
        }
        assert!(w.told().is_empty());
        finish(&mut w, !service_first);
        assert_eq!(w.told(), gone(label, Ended::Closed));
        let served = &w.served[&label.to_wire()];
        assert!(served.closed && !served.reset, "{service_first}");
        let expected: &[u8] = if service_first { b"last words" } else { b"morelast words" };
        assert_eq!(served.received, expected);
        w.assert_empty();
    }
}

/// What a process sent before its end is read after it, at the service's pace.
#[test]
fn what_arrived_before_the_end_of_the_process_is_read() {
    type End = fn(&mut World<Script>, FlowLabel);
    let ends: [(End, Ended); 5] = [
        (|w, label| w.says(label, MessageKind::Close, 0, &[]), Ended::Closed),
        (|w, label| w.says(label, MessageKind::Reset, 0, &[]), Ended::Reset),
        (
            |w, label| {
                let header = MessageHeader::of_flow(MessageKind::Close, label, 0, 0);
                w.message(A.into(), MessageHeader { flags: CLOSE_UNREAD, ..header }, &[]);
            },
            Ended::Reset,
        ),
        (|w, _| w.core.channel_down(w.now, ChannelId(A.into()), true, &mut w.out), Ended::Closed),
        (|w, _| w.core.channel_down(w.now, ChannelId(A.into()), false, &mut w.out), Ended::Reset),
    ];
    for (at, (end, how)) in ends.into_iter().enumerate() {
        let (mut w, label) = world(1 << 16);
        w.core.local_mut().reads = Some(0);
        w.sends(label, &[7; 1_000]);
        end(&mut w, label);
        w.settle();
        assert_eq!(w.core.local().finished[&label], (true, Some(how)), "{at}");
        w.serve(label, b"nobody reads this", None);
        w.core.local_mut().reads = Some(600);
        w.serve(label, b"", None);
        assert_eq!((w.told(), w.core.local().read[&label].len()), (Vec::new(), 600), "{at}");
        w.core.local_mut().reads = None;
        w.serve(label, b"", None);
        assert_eq!((w.told(), w.core.local().read[&label].len()), (gone(label, how), 1_000), "{at}");
        assert_eq!(counted(&w), if how == Ended::Closed { (1, 0) } else { (0, 1) }, "{at}");
        w.assert_empty();
    }
}

#[test]
fn a_service_that_closes_or_resets_is_done_at_once() {
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"", Some(Step::Reset));
    assert_eq!(w.told(), gone(label, Ended::ByService));
    assert!(w.served[&label.to_wire()].reset);
    w.assert_empty();
    // RFC 9293 §3.6.1: the process is informed that its data was not read.
    let (mut w, label) = world(1 << 16);
    w.core.local_mut().reads = Some(0);
    w.sends(label, b"unread");
    w.serve(label, b"", Some(Step::Close));
    assert_eq!(w.told(), gone(label, Ended::ByService));
    assert!(w.served[&label.to_wire()].reset);
    w.assert_empty();
    // Closed, and the process goes on sending.
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"bye", Some(Step::Close));
    assert_eq!((w.told(), w.core.upstream_count()), (gone(label, Ended::ByService), 1));
    w.sends(label, b"more");
    assert!(w.served[&label.to_wire()].reset && w.told().is_empty());
    w.assert_empty();
    // Closed, and the process ends its stream, or nothing.
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"bye", Some(Step::Close));
    w.says(label, MessageKind::Shutdown, 0, &[]);
    assert!(w.served[&label.to_wire()].closed);
    w.assert_empty();
    // Closed, and the process closes, too.
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"bye", Some(Step::Close));
    w.says(label, MessageKind::Close, 0, &[]);
    assert_eq!(counted(&w), (1, 0));
    w.assert_empty();
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"bye", Some(Step::Close));
    w.pass(CLOSING_MAX - Duration::from_millis(1));
    assert_eq!(w.core.upstream_count(), 1);
    w.pass(Duration::from_millis(1));
    assert!(w.served[&label.to_wire()].reset && w.told().len() == 1);
    w.assert_empty();
}

#[test]
fn bytes_go_both_ways_under_both_windows_and_the_lane_s_descriptors() {
    let total = 300_000;
    let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
    for (room, step) in [(700, 900), (1 << 20, 9_000)] {
        let (mut w, label) = world(room);
        w.core.local_mut().sends.insert(label, bytes.clone());
        w.core.local_mut().ready.push(label);
        let (mut sent, mut credited) = (0, 0);
        for round in 0.. {
            assert!(round < 100_000, "{} of {total}", w.core.local().read[&label].len());
            // The service reads more slowly than the process sends, in turns.
            w.core.local_mut().reads = Some(round * 977 % step);
            w.out.descriptors.insert(A.into(), round % 3);
            w.core.local_mut().ready.push(label);
            w.settle();
            sent += w.sends(label, &bytes[sent..]);
            let received = w.served[&label.to_wire()].received.len();
            assert!(received <= credited + room as usize);
            if received > credited {
                w.says(label, MessageKind::Credit, (received - credited) as u32, &[]);
                credited = received;
            }
            let read = w.core.local().read[&label].len();
            assert!(sent - read <= 64 * 1024, "no more than its window");
            if (read, received) == (total, total) {
                break;
            }
        }
        assert!(w.served[&label.to_wire()].received == bytes && w.core.local().read[&label] == bytes);
        assert_eq!(w.core.counters().drop_no_budget, 0);
        w.out.descriptors.clear();
        w.says(label, MessageKind::Close, 0, &[]);
        assert_eq!(w.told(), gone(label, Ended::Closed));
        w.assert_empty();
    }
}

#[test]
fn a_process_that_sends_more_than_its_window_is_disconnected() {
    let (mut w, label) = world(0);
    w.core.local_mut().reads = Some(0);
    let window = w.served[&label.to_wire()].window;
    let bytes = vec![0; window];
    let mut sent = 0;
    while sent < window {
        sent += w.sends(label, &bytes[sent..]);
    }
    let header = MessageHeader::of_flow(MessageKind::Data, label, 0, 1);
    let from = (ChannelId(A.into()), csp_proxy_core::Lane(A.into()));
    let verdict = w.core.on_message(w.now, from, &Message { header, payload: &[1] }, None, &mut w.out);
    assert_eq!(verdict, csp_proxy_core::Verdict::Violation);
    w.core.channel_down(w.now, from.0, false, &mut w.out);
    w.core.local_mut().reads = None;
    w.core.local_mut().ready.push(label);
    w.settle();
    assert_eq!(w.told(), gone(label, Ended::Reset));
    w.assert_empty();
}

/// The process hands the connection to another one, which gets the service's end of stream, too.
#[test]
fn a_connection_changes_hands() {
    let (mut w, label) = world(1 << 16);
    w.serve(label, b"for the first", Some(Step::Finish));
    let ticket = Ticket([7; 16]);
    let payload = ticket.0;
    w.says(label, MessageKind::HandOver, 0, &payload);
    let take = TakeOverPayload { label, ticket }.emit();
    let header = MessageHeader::new(MessageKind::TakeOver, 3, 500, take.len() as u32);
    w.served.get_mut(&label.to_wire()).unwrap().finished = false;
    w.message(B.into(), header, &take);
    let served = w.served.get_mut(&label.to_wire()).unwrap();
    served.process = B.into();
    assert!(served.finished, "it is told again");
    w.sends(label, b"from the second");
    assert_eq!(w.core.local().read[&label], b"from the second");
    w.says(label, MessageKind::Close, 0, &[]);
    assert_eq!(w.told(), gone(label, Ended::Closed));
    w.assert_empty();
}

/// The service goes on reading while nobody owns the connection. Then the next process has the window anew,
/// and does not wait for credit that nothing would cause any more.
#[test]
fn what_is_read_between_two_owners_is_room_for_the_second() {
    let (mut w, label) = world(1 << 16);
    w.core.local_mut().reads = Some(0);
    let window = w.served[&label.to_wire()].window;
    let (bytes, mut sent) = (vec![5; window], 0);
    while sent < window {
        sent += w.sends(label, &bytes[sent..]);
    }
    let ticket = Ticket([7; 16]);
    w.says(label, MessageKind::HandOver, 0, &ticket.0);
    w.core.local_mut().reads = None;
    w.serve(label, b"", None);
    assert_eq!((w.core.local().read[&label].len(), w.served[&label.to_wire()].window), (window, 0));
    let take = TakeOverPayload { label, ticket }.emit();
    w.served.get_mut(&label.to_wire()).unwrap().process = B.into();
    w.message(B.into(), MessageHeader::new(MessageKind::TakeOver, 3, 500, take.len() as u32), &take);
    assert_eq!(w.served[&label.to_wire()].window, window, "all of it is free");
    assert_eq!(w.sends(label, b"from the second"), 15);
    assert!(w.core.local().read[&label].ends_with(b"from the second"));
    w.says(label, MessageKind::Close, 0, &[]);
    assert_eq!(w.told(), gone(label, Ended::Closed));
    w.assert_empty();
}

/// Of several ways to end a client's connection the first one counts: a reset would take bytes of a closed
/// one.
#[test]
fn a_client_that_was_closed_is_not_reset() {
    for at_once in [true, false] {
        let (mut w, label) = world(1 << 16);
        w.connect(1_000);
        w.clients.get_mut(&1_000).unwrap().stalled = true; // it acknowledges no FIN, so that the flow stays
        let client = w.core.local().clients[0];
        for how in [Step::Close, Step::Reset] {
            w.core.local_mut().others.push((client, how));
            if !at_once {
                w.serve(label, b"", None);
            }
        }
        w.serve(label, b"", None);
        let at_client = &w.clients[&1_000];
        assert!(w.core.local().clients.is_empty() && !at_client.rst, "{at_once}");
    }
}

/// A connection that is written to while others wait for its lane is served after them, although none of them
/// sends anything.
#[test]
fn a_connection_behind_others_that_send_nothing_is_served() {
    let mut w = World::script(&[A]);
    let labels = [0; 3].map(|_| w.opened(1 << 16).label);
    w.out.descriptors.insert(A.into(), 0);
    labels.iter().for_each(|label| w.serve(*label, b"later", None));
    assert_eq!(w.core.parked_count(), 3);
    let script = w.core.local_mut();
    script.sends.clear(); // it has changed its mind
    script.across = Some((labels[1], labels[0], b"across".to_vec()));
    w.out.descriptors.insert(A.into(), 8);
    w.settle();
    assert_eq!(
        (w.served[&labels[0].to_wire()].received.as_slice(), w.core.parked_count()),
        (&b"across"[..], 0)
    );
}
