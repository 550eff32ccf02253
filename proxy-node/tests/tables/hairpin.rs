//! Connections of a program of the cluster to a service of the cluster: each end observes what it would
//! observe over TCP.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use csp_proxy_node::core::{
    BacklogLimits, ChannelId, EgressRule, HAIRPIN_WINDOW, Lane, NO_SERVER_GRACE, Process, ServiceSpec,
    ServiceTcp,
};
use csp_types::limits::RESET_STALL;
use csp_types::{FlowLabel, Grant};
use csp_wire::channel::{
    CLOSE_UNREAD, ConnectPayload, ConnectedPayload, MessageHeader, MessageKind, OpenPayload,
};

use super::world::{NOW, VIP, World, web};

/// The channels, and lanes, of the connecting and of the serving process.
const CLIENT: u32 = 9000;
const SERVER: u32 = 8001;

/// One step of a test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client connects, with this receive window.
    Connect(u32),
    /// The server accepts, with this receive window.
    Accept(u32),
    /// The server hands the connection back.
    Refuse,
    /// A process sends a message without payload and argument.
    Send(u32, MessageKind),
    /// A process closes with unread data.
    CloseUnread(u32),
    /// A process sends this number of bytes.
    Write(u32, usize),
    /// A process ends (`true`), or its link is lost.
    Gone(u32, bool),
    /// A process advertises room for this number of bytes.
    Credit(u32, u32),
    /// Time passes.
    Wait(Duration),
}
use MessageKind::{Accepted, Close, Connected, Data, Open, Refused, Reset, Shutdown};
use Step::{Accept, CloseUnread, Connect, Credit, Gone, Refuse, Send, Wait, Write};

fn of(label: u32, kind: MessageKind, argument: u32, len: usize) -> MessageHeader {
    MessageHeader::of_flow(kind, FlowLabel::from_wire(label).unwrap(), argument, len as u32)
}

/// Returns a world with a server, a client that may connect to it, and this backlog.
fn world(backlog: BacklogLimits) -> World {
    let mut w = World::new(&[]);
    let destinations = vec!["10.0.0.0/24".parse().unwrap()];
    let address = Ipv4Addr::new(10, 0, 0, 9).into();
    let rule = EgressRule { address, destinations, except: Vec::new(), tcp: ServiceTcp::default() };
    let service = ServiceSpec { backlog, ..web(&[SERVER as u16]) };
    w.core.set_policy(NOW, vec![service], vec![rule], &mut w.out);
    w.process(SERVER as u16);
    let (node, name) = ("an-2".parse().unwrap(), "client".to_owned());
    assert!(w.core.channel_up(ChannelId(CLIENT), Process { node, name, uid: None, grant: Grant::all() }));
    w
}

fn connect(w: &mut World, request: u32, window: u32) {
    let mut payload = [0; ConnectPayload::LEN_MAX];
    let len = ConnectPayload { remote: (VIP, 80).into(), local: None }.emit(&mut payload).unwrap();
    let header = MessageHeader::new(MessageKind::Connect, request, window, len as u32);
    w.send(CLIENT, header, &payload[..len]);
}

/// Returns the label of the last message of this kind on a lane.
fn label(w: &World, lane: u32, kind: MessageKind) -> u32 {
    let named = |m: &&(Lane, MessageHeader)| m.0 == Lane(lane) && m.1.kind == kind;
    w.out.messages.iter().rev().find(named).unwrap().1.id
}

fn label_of(w: &World, side: u32) -> u32 {
    label(w, side, if side == CLIENT { Connected } else { Open })
}

fn take(w: &mut World, step: Step) {
    match step {
        Connect(window) => connect(w, 1, window),
        Accept(window) => w.send(SERVER, of(label_of(w, SERVER), Accepted, window, 0), &[]),
        Refuse => w.send(SERVER, of(label_of(w, SERVER), Refused, 111, 0), &[]),
        Send(side, kind) => w.send(side, of(label_of(w, side), kind, 0, 0), &[]),
        CloseUnread(side) => {
            let header = of(label_of(w, side), Close, 0, 0);
            w.send(side, MessageHeader { flags: CLOSE_UNREAD, ..header }, &[]);
        }
        Write(side, len) => w.send(side, of(label_of(w, side), Data, 0, len), &vec![7; len]),
        Credit(side, room) => w.send(side, of(label_of(w, side), MessageKind::Credit, room, 0), &[]),
        Gone(side, hangup) => w.core.channel_down(w.now, ChannelId(side), hangup, &mut w.out),
        Wait(time) => w.pass(time),
    }
}

/// Checks which messages client and server receive in these steps, credits excluded, and how many flows are
/// left.
fn check(steps: &[Step], client: &[MessageKind], server: &[MessageKind], left: usize) {
    let mut w = world(BacklogLimits::default());
    steps.iter().for_each(|step| take(&mut w, *step));
    let received = |lane| {
        let to = w.out.messages.iter().filter(|m| m.0 == Lane(lane) && m.1.kind != MessageKind::Credit);
        to.map(|m| m.1.kind).collect::<Vec<_>>()
    };
    assert_eq!((&received(CLIENT)[..], &received(SERVER)[..]), (client, server), "{steps:?}");
    assert_eq!((w.core.flow_count(), w.core.hairpin_count()), (left, left), "{steps:?}");
    assert!(w.out.records.is_empty(), "nothing goes through a network node: {steps:?}");
    assert_eq!((w.core.budget_reserved(), w.core.counters().violations), (0, 0), "{steps:?}");
}

#[test]
fn each_end_sees_what_it_would_see_over_tcp() {
    const ALL: u32 = 1 << 16;
    let open = |then: &[Step]| [&[Connect(ALL), Accept(ALL)], then].concat();
    check(&[Connect(ALL)], &[Connected], &[Open], 2);
    // Data, then the end of the stream and both closed, in either order.
    let talk = [Write(CLIENT, 5), Write(SERVER, 70), Send(SERVER, Close)];
    check(&open(&talk), &[Connected, Data, Shutdown], &[Open, Data, Close], 2);
    let closed = [&talk[..], &[Send(CLIENT, Close)]].concat();
    check(&open(&closed), &[Connected, Data, Shutdown, Close], &[Open, Data, Close], 0);
    // Half-close: the response follows the end of the request; when both have finished, both are closed.
    let half = [Send(CLIENT, Shutdown), Write(SERVER, 9), Send(SERVER, Shutdown)];
    check(&open(&half), &[Connected, Data, Shutdown, Close], &[Open, Shutdown, Close], 0);
    // Resets, and unread data (RFC 9293 §3.6.1).
    check(&open(&[Send(CLIENT, Reset)]), &[Connected, Close], &[Open, Reset], 0);
    check(&open(&[CloseUnread(SERVER)]), &[Connected, Reset], &[Open, Close], 0);
    check(&open(&[Send(CLIENT, Close), Write(SERVER, 1)]), &[Connected, Close], &[Open, Shutdown, Reset], 0);
    let unread = [Connect(4), Accept(ALL), Write(SERVER, 10), Send(CLIENT, Close)];
    check(&unread, &[Connected, Data, Close], &[Open, Reset], 0);
    // A process ends, or its link is lost.
    check(&open(&[Gone(SERVER, true)]), &[Connected, Shutdown], &[Open], 2);
    check(&open(&[Gone(SERVER, false)]), &[Connected, Reset], &[Open], 0);
    check(&open(&[Write(CLIENT, 3), Gone(CLIENT, true)]), &[Connected], &[Open, Data, Shutdown], 2);
    check(&open(&[Gone(CLIENT, false)]), &[Connected], &[Open, Reset], 0);
}

#[test]
fn what_one_end_wrote_reaches_the_other_before_a_reset() {
    const ALL: u32 = 1 << 16;
    // The client has room for 4 bytes: the others wait.
    let narrow = |then: &[Step]| [&[Connect(4), Accept(ALL), Write(SERVER, 10)], then].concat();
    for end in [CloseUnread(SERVER), Send(SERVER, Reset), Gone(SERVER, false)] {
        let answer: &[MessageKind] = if matches!(end, Gone(..)) { &[Open] } else { &[Open, Close] };
        check(&narrow(&[end]), &[Connected, Data], answer, 1);
        let all = narrow(&[end, Credit(CLIENT, 100)]);
        check(&all, &[Connected, Data, Data, Reset], answer, 0);
        // The end of the stream, if it was asked for, comes before the reset as well.
        let finished = narrow(&[Send(SERVER, Shutdown), end, Credit(CLIENT, 100)]);
        check(&finished, &[Connected, Data, Data, Shutdown, Reset], answer, 0);
        // The time is bounded, and longer while the client takes something.
        let slow = narrow(&[end, Wait(RESET_STALL)]);
        check(&slow, &[Connected, Data, Reset], answer, 0);
        let some = narrow(&[end, Credit(CLIENT, 1), Wait(RESET_STALL)]);
        check(&some, &[Connected, Data, Data], answer, 1);
        let nearly = [some, vec![Wait(RESET_STALL)]].concat();
        check(&nearly, &[Connected, Data, Data, Reset], answer, 0);
        // A client that closes meanwhile ends it.
        check(&narrow(&[end, Send(CLIENT, Close)]), &[Connected, Data, Close], answer, 0);
        check(&narrow(&[end, Write(CLIENT, 3), Send(CLIENT, Reset)]), &[Connected, Data, Close], answer, 0);
    }
    // Data for a server that has closed resets the client after what the server wrote.
    let late = narrow(&[Send(SERVER, Close), Write(CLIENT, 1), Credit(CLIENT, 100)]);
    check(&late, &[Connected, Data, Data, Shutdown, Reset], &[Open, Close], 0);
    // A server that has not accepted yet receives what the client wrote before its reset.
    let early = [Connect(ALL), Write(CLIENT, 5), Send(CLIENT, Reset), Accept(ALL)];
    check(&early, &[Connected, Close], &[Open, Data, Reset], 0);
    check(&early[..3], &[Connected, Close], &[Open], 1);
    check(&[&early[..3], &[Wait(RESET_STALL)]].concat(), &[Connected, Close], &[Open, Reset], 0);
}

#[test]
fn a_hairpin_waits_in_the_backlog_like_any_other_connection() {
    const ALL: u32 = 1 << 16;
    // What the client wrote meanwhile, including the end of the stream, is delivered once a process accepts.
    check(&[Connect(ALL), Write(CLIENT, 5), Accept(ALL)], &[Connected], &[Open, Data], 2);
    let left = [Connect(ALL), Write(CLIENT, 5), Send(CLIENT, Close), Accept(ALL)];
    check(&left, &[Connected, Close], &[Open, Data, Shutdown], 2);
    check(&[Connect(ALL), Send(CLIENT, Reset)], &[Connected, Close], &[Open, Reset], 0);
    // Handed back, it is offered again; without a server it is reset after a while.
    check(&[Connect(ALL), Refuse, Accept(ALL), Write(SERVER, 1)], &[Connected, Data], &[Open, Open], 2);
    let lost = [Connect(ALL), Gone(SERVER, true)];
    check(&lost, &[Connected], &[Open], 2);
    check(&[&lost[..], &[Wait(NO_SERVER_GRACE)]].concat(), &[Connected, Reset], &[Open], 0);
}

#[test]
fn both_ends_know_each_other_by_the_address_that_policy_gives_the_client() {
    let mut w = world(BacklogLimits::default());
    connect(&mut w, 1, 100);
    let payload = |kind| w.out.payloads.iter().find(|(_, k, _)| *k == kind).unwrap().2.clone();
    let client = ConnectedPayload::parse(&payload(Connected)).unwrap();
    let server = OpenPayload::parse(&payload(Open)).unwrap();
    assert_eq!((client.local, client.remote), (server.remote, server.local));
    assert_eq!((client.local.ip().to_string().as_str(), client.remote), ("10.0.0.9", (VIP, 80).into()));
    let flows = w.core.flows(NOW, 8);
    let mut services: Vec<_> = flows.iter().map(|f| (f.service.as_str(), f.state.as_str())).collect();
    services.sort_unstable();
    assert_eq!(services, [("egress", "Hairpin/open"), ("web", "Hairpin/offered")]);
    assert_eq!(w.core.counters().connections_hairpin, 1);
}

#[test]
fn where_no_hairpin_or_no_place_in_the_backlog_is_left_it_goes_by_the_lan() {
    let mut w = world(BacklogLimits::default());
    (1..=3).for_each(|request| connect(&mut w, request, 100));
    assert_eq!((w.core.hairpin_count(), w.out.records.last().map(|r| r.1)), (4, Some(80)));
    let mut w = world(BacklogLimits { connections: 0, time: None });
    connect(&mut w, 1, 100);
    assert_eq!((w.core.hairpin_count(), w.out.records.last().map(|r| r.1)), (0, Some(80)));
    // If the policy assigns it no source address, it is refused as any connection.
    let mut w = world(BacklogLimits::default());
    w.policy(vec![web(&[SERVER as u16])]);
    connect(&mut w, 1, 100);
    assert_eq!((w.out.take(CLIENT, Refused), w.core.flow_count()), (vec![1], 0));
}

/// Moves `total` bytes from `from` to the other end, which has room for `room` bytes and a lane of few
/// descriptors.
fn stream(from: u32, total: usize, room: u32) {
    let to = CLIENT + SERVER - from;
    let mut w = world(BacklogLimits::default());
    connect(&mut w, 1, if to == CLIENT { room } else { 1 << 20 });
    let labels = [(CLIENT, label_of(&w, CLIENT)), (SERVER, label_of(&w, SERVER))];
    let label = |side| labels.iter().find(|l| l.0 == side).unwrap().1;
    w.send(SERVER, of(label(SERVER), Accepted, if to == SERVER { room } else { 1 << 20 }, 0), &[]);
    let (mut window, mut sent, mut received) = (HAIRPIN_WINDOW as usize, 0, 0);
    let mut held: VecDeque<u32> = VecDeque::new();
    for round in 0.. {
        assert!(round < 100_000, "{received} of {total} bytes");
        let len = window.min(total - sent).min(1 + round * 977 % 9_000);
        let bytes: Vec<u8> = (sent..sent + len).map(|at| (at % 251) as u8).collect();
        w.out.descriptors.insert(Lane(to), round % 3);
        if len > 0 {
            w.send(from, of(label(from), Data, 0, len), &bytes);
            (sent, window) = (sent + len, window - len);
        }
        w.core.drive(NOW, &mut w.out);
        for (lane, header) in std::mem::take(&mut w.out.messages) {
            match header.kind {
                MessageKind::Credit if lane == Lane(from) => window += header.argument as usize,
                Data if lane == Lane(to) => held.push_back(header.payload_len),
                _ => {}
            }
        }
        for (_, _, bytes) in std::mem::take(&mut w.out.payloads).into_iter().filter(|p| p.1 == Data) {
            let expected = (received..).map(|at| (at % 251) as u8);
            assert!(bytes.iter().copied().eq(expected.take(bytes.len())), "at {received}");
            received += bytes.len();
        }
        assert!(sent - received <= HAIRPIN_WINDOW as usize);
        if received == total {
            break;
        }
        if let Some(len) = held.pop_front() {
            w.send(to, of(label(to), MessageKind::Credit, len, 0), &[]);
        }
    }
    assert_eq!(w.core.counters().drop_no_budget, 0);
}

#[test]
fn bytes_go_both_ways_in_order_under_both_windows_and_the_lane_s_descriptors() {
    for room in [1, 700, 1 << 20] {
        let total = if room == 1 { 2_000 } else { 1_000_000 };
        stream(CLIENT, total, room);
        stream(SERVER, total, room);
    }
}
