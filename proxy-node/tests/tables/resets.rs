//! Whatever ends a client's connection by a reset transmits first what the process had written, and keeps its
//! place and memory for a bounded time only.

use std::time::Duration;

use csp_proxy_node::core::{ChannelId, HANDOVER_TIMEOUT, Lane, reason};
use csp_types::FlowLabel;
use csp_types::limits::{RESET_STALL, RESET_WAIT};
use csp_wire::channel::{CLOSE_UNREAD, MessageHeader, MessageKind, TakeOverPayload, Ticket};
use csp_wire::tcp::Flags as TcpFlags;

use crate::world::World;

const SERVER: u32 = 8001;
const PORT: u16 = 1000;
const REQUEST: &[u8] = b"POST /";
const REFUSAL: &[u8] = b"413 Too large";

/// A connection whose request the process has, or has left with the proxy.
struct Open {
    w: World,
    label: FlowLabel,
    /// What the client expects next.
    expects: u32,
}

fn open() -> Open {
    let mut w = World::new(&[SERVER as u16]);
    let expects = w.connect(1, PORT);
    let label = FlowLabel::from_wire(w.accept_all()[0].1).unwrap();
    w.client(1, PORT, 101, expects, TcpFlags::ACK, REQUEST);
    Open { w, label, expects }
}

impl Open {
    fn send(&mut self, kind: MessageKind, flags: u8, payload: &[u8]) {
        let header = MessageHeader::of_flow(kind, self.label, 0, payload.len() as u32);
        self.w.send(SERVER, MessageHeader { flags, ..header }, payload);
    }

    /// The client acknowledges this many bytes, FIN included.
    fn acknowledge(&mut self, len: usize) {
        let ack = self.expects.wrapping_add(len as u32);
        self.w.client(1, PORT, 101 + REQUEST.len() as u32, ack, TcpFlags::ACK, &[]);
    }

    fn is_reset(&self) -> bool {
        self.w.out.flags.contains(TcpFlags::RST)
    }

    /// Nothing of the connection is left.
    fn is_over(&self) -> bool {
        self.w.core.flow_count() == 0
            && self.w.core.budget_reserved() == 0
            && self.w.core.tcp().occupancy().connections.0 == 0
    }
}

/// A way in which a process, or its end, resets a connection.
type End = (&'static str, fn(&mut Open));

/// The ways in which a process, or its end, resets a connection.
const ENDS: [End; 4] = [
    ("close with unread bytes", |open| open.send(MessageKind::Close, CLOSE_UNREAD, &[])),
    ("linger 0", |open| open.send(MessageKind::Reset, 0, &[])),
    ("its link is lost", |open| {
        open.w.core.channel_down(open.w.now, ChannelId(SERVER), false, &mut open.w.out);
    }),
    ("one of its links is lost", |open| {
        let lane = Lane(SERVER);
        open.w.core.lane_down(open.w.now, ChannelId(SERVER), lane, false, &mut open.w.out);
    }),
];

#[test]
fn what_was_written_and_the_end_that_was_asked_for_come_before_the_reset() {
    for (what, end) in ENDS {
        for shuts in [false, true] {
            let mut open = open();
            let window = open.w.core.budget_reserved();
            open.send(MessageKind::Data, 0, REFUSAL);
            assert_eq!(open.w.out.data, REFUSAL);
            if shuts {
                open.send(MessageKind::Shutdown, 0, &[]);
                assert!(open.w.out.flags.contains(TcpFlags::FIN));
            }
            end(&mut open);
            assert!(!open.is_reset(), "{what}, {shuts}");
            // It holds the bytes that wait, and not the window of its process.
            assert_eq!((open.w.core.flow_count(), open.w.core.tcp().occupancy().send_blocks.0), (1, 1));
            assert!(open.w.core.budget_reserved() < window / 4, "{what}: {}", open.w.core.budget_reserved());
            let members = &open.w.core.services()[0].members;
            assert!(members.iter().all(|member| member.open == 0), "{what}: the process has left it");
            open.acknowledge(REFUSAL.len() + usize::from(shuts));
            assert!(open.is_reset() && open.is_over(), "{what}, {shuts}");
            let at = open.expects.wrapping_add((REFUSAL.len() + usize::from(shuts)) as u32);
            assert_eq!(open.w.out.records.last(), Some(&(1, PORT, at)), "{what}: RFC 5961 §3.2");
        }
    }
}

#[test]
fn without_written_bytes_the_reset_is_sent_at_once() {
    for (what, end) in ENDS {
        let mut open = open();
        end(&mut open);
        assert!(open.is_reset() && open.is_over(), "{what}");
    }
}

#[test]
fn bytes_that_wait_for_a_process_that_closes_turn_its_close_into_a_reset_after_its_data() {
    let mut open = open();
    open.send(MessageKind::Data, 0, REFUSAL);
    // Its window is used up: these bytes wait in the engine.
    open.w.out.descriptors.insert(Lane(SERVER), 0);
    let (seq, ack) = (101 + REQUEST.len() as u32, open.expects);
    open.w.client(1, PORT, seq, ack, TcpFlags::ACK, b"more of the body");
    open.send(MessageKind::Close, 0, &[]);
    assert!(!open.is_reset() && !open.w.out.flags.contains(TcpFlags::FIN));
    let ack = open.expects.wrapping_add(REFUSAL.len() as u32);
    open.w.client(1, PORT, seq + 16, ack, TcpFlags::ACK, &[]);
    assert!(open.is_reset() && open.is_over());
}

#[test]
fn bytes_that_arrive_after_the_close_do_not_overtake_what_was_written() {
    let mut open = open();
    open.send(MessageKind::Data, 0, REFUSAL);
    open.send(MessageKind::Close, 0, &[]);
    let (seq, ack) = (101 + REQUEST.len() as u32, open.expects);
    open.w.client(1, PORT, seq, ack, TcpFlags::ACK, b"more of the body");
    assert!(!open.is_reset());
    let ack = open.expects.wrapping_add(REFUSAL.len() as u32 + 1);
    open.w.client(1, PORT, seq + 16, ack, TcpFlags::ACK, &[]);
    assert!(open.is_reset() && open.is_over());
}

#[test]
fn a_client_that_acknowledges_nothing_is_reset_in_bounded_time() {
    for (what, end) in ENDS {
        let mut open = open();
        open.send(MessageKind::Data, 0, REFUSAL);
        end(&mut open);
        open.w.pass(RESET_STALL - Duration::from_millis(1));
        assert!(!open.is_reset() && open.w.core.flow_count() == 1, "{what}");
        open.w.pass(Duration::from_millis(2));
        assert!(open.is_reset() && open.is_over(), "{what}");
        assert_eq!(open.w.core.tcp().counters().resets_overdue, 1);
    }
    assert!(RESET_STALL < RESET_WAIT);
}

/// How a client goes, and the reason that its process is to be given, as a kernel gives it.
type Departure = (&'static str, u32, fn(&mut Open));

const DEPARTURES: [Departure; 2] = [
    ("reset", reason::CONNECTION_RESET, |open| {
        let ack = open.expects;
        open.w.client(1, PORT, 101 + UNREAD_END, ack, TcpFlags::RST, &[]);
    }),
    // It acknowledges nothing of what the process writes, until the retransmissions are used up.
    ("silence", reason::TIMED_OUT, |open| {
        open.send(MessageKind::Data, 0, b"response");
        open.w.pass(Duration::from_secs(1_800));
    }),
];

const UNREAD: &[u8] = b"last words";
/// Bytes that the client sends in all.
const UNREAD_END: u32 = (REQUEST.len() + UNREAD.len()) as u32;

/// A connection that has failed while bytes of it wait for its process.
fn broken((what, _, departs): Departure) -> Open {
    let mut open = open();
    open.w.out.descriptors.insert(Lane(SERVER), 0);
    let (seq, ack) = (101 + REQUEST.len() as u32, open.expects);
    open.w.client(1, PORT, seq, ack, TcpFlags::ACK, UNREAD);
    departs(&mut open);
    assert!(open.w.out.take(SERVER, MessageKind::Reset).is_empty(), "{what}: bytes are unread");
    assert_eq!(
        (open.w.core.flow_count(), open.w.core.tcp().readable(open.label)),
        (1, UNREAD.len()),
        "{what}"
    );
    (open.w.out.messages, open.w.out.payloads) = Default::default();
    open
}

impl Open {
    /// Returns the messages for a process since the last call, each with its argument.
    fn messages(&mut self, process: u32) -> Vec<(MessageKind, u32)> {
        let of_process = |(lane, header): &(Lane, MessageHeader)| {
            (*lane == Lane(process)).then_some((header.kind, header.argument))
        };
        std::mem::take(&mut self.w.out.messages).iter().filter_map(of_process).collect()
    }
}

#[test]
fn a_process_that_reads_learns_why_its_client_is_gone_after_what_arrived_before() {
    for departure in DEPARTURES {
        let mut open = broken(departure);
        open.w.out.descriptors.clear();
        open.w.core.drive(open.w.now, &mut open.w.out);
        assert_eq!(open.w.out.payloads[0].2, UNREAD);
        let messages = open.messages(SERVER);
        assert_eq!(messages, [(MessageKind::Data, 0), (MessageKind::Reset, departure.1)], "{}", departure.0);
        assert!(open.is_over());
    }
}

#[test]
fn a_process_that_only_writes_learns_why_its_client_is_gone() {
    for departure in DEPARTURES {
        let mut open = broken(departure);
        open.send(MessageKind::Data, 0, b"stream");
        open.w.pass(RESET_STALL - Duration::from_millis(1));
        assert_eq!(open.messages(SERVER), [], "{}: it may be about to read", departure.0);
        open.w.pass(Duration::from_millis(1));
        assert_eq!(open.messages(SERVER), [(MessageKind::Reset, departure.1)], "{}", departure.0);
        assert!(open.is_over());
    }
}

#[test]
fn a_process_that_takes_over_a_failed_connection_receives_what_arrived_before() {
    const NEXT: u32 = 8002;
    let ticket = Ticket([7; 16]);
    let brief = Duration::from_millis(1);
    // The time that the wait has lasted already, and the time between both owners.
    for (waited, between) in [
        (brief, brief),
        (RESET_STALL - brief, brief),
        (RESET_STALL - brief, RESET_STALL),
        (brief, HANDOVER_TIMEOUT - brief),
    ] {
        for departure in DEPARTURES {
            let mut open = broken(departure);
            open.w.process(NEXT as u16);
            open.w.out.descriptors.insert(Lane(NEXT), 0);
            open.send(MessageKind::Data, 0, b"stream");
            open.w.pass(waited);
            open.send(MessageKind::HandOver, 0, &ticket.0);
            open.w.pass(between);
            let payload = TakeOverPayload { label: open.label, ticket }.emit();
            let header = MessageHeader::new(MessageKind::TakeOver, 1, 1 << 16, payload.len() as u32);
            open.w.send(NEXT, header, &payload);
            assert_eq!(open.w.out.take(NEXT, MessageKind::TakenOver).len(), 1, "{waited:?}, {between:?}");
            open.w.pass(RESET_STALL - brief);
            open.messages(NEXT);
            open.w.out.descriptors.clear();
            open.w.core.drive(open.w.now, &mut open.w.out);
            let messages = open.messages(NEXT);
            let expected = [(MessageKind::Data, 0), (MessageKind::Reset, departure.1)];
            assert_eq!(messages, expected, "{}, {waited:?}, {between:?}", departure.0);
            assert!(open.is_over());
        }
    }
    // A process that takes it over and receives nothing is notified in bounded time.
    let mut open = broken(DEPARTURES[1]);
    open.w.process(NEXT as u16);
    open.w.out.descriptors.insert(Lane(NEXT), 0);
    open.send(MessageKind::Data, 0, b"stream");
    open.send(MessageKind::HandOver, 0, &ticket.0);
    let payload = TakeOverPayload { label: open.label, ticket }.emit();
    let header = MessageHeader::new(MessageKind::TakeOver, 1, 1 << 16, payload.len() as u32);
    open.w.send(NEXT, header, &payload);
    open.messages(NEXT);
    open.w.pass(2 * RESET_STALL);
    assert_eq!(open.messages(NEXT), [(MessageKind::Reset, reason::TIMED_OUT)]);
    assert!(open.is_over());
}

#[test]
fn connections_whose_reset_waits_give_way_when_the_table_is_full() {
    let mut w = World::sized(&[SERVER as u16], 64, 2_048);
    for port in 1_000..1_062 {
        let ack = w.connect(1, port);
        for (channel, label) in w.accept_all() {
            let label = FlowLabel::from_wire(label).unwrap();
            w.client(1, port, 101, ack, TcpFlags::ACK, REQUEST);
            let data = MessageHeader::of_flow(MessageKind::Data, label, 0, REFUSAL.len() as u32);
            w.send(channel, data, REFUSAL);
            w.send(channel, MessageHeader::of_flow(MessageKind::Reset, label, 0, 0), &[]);
        }
        w.send(SERVER, MessageHeader::new(MessageKind::AcceptCredit, 7, 1, 0), &[]);
        w.pass(Duration::from_millis(30));
    }
    assert!(w.core.counters().idle_given_up > 0);
    assert_eq!(w.core.tcp().counters().dropped_table_full, 0);
    w.pass(RESET_WAIT);
    assert_eq!((w.core.flow_count(), w.core.budget_reserved()), (0, 0));
}
