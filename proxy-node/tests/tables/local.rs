//! A service of the proxy itself: connections that end at it, by TCP and by a hairpin, and what one of them
//! causes at others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use csp_proxy_node::core::service::ClientEnd;
use csp_proxy_node::core::service::between::Between;
use csp_proxy_node::core::service::local::{LocalServices, Step};
use csp_proxy_node::core::service::upstream::Ends;
use csp_proxy_node::core::{EgressRule, ServiceSpec, ServiceTcp};
use csp_quality::OutputLink;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};
use csp_wire::channel::{CONNECT_BY_LAN, ConnectPayload, MessageHeader, MessageKind, Redirect};
use csp_wire::tcp::Flags as TcpFlags;

use crate::world::{VIP, World, web};

pub const PORT: u16 = 5555;
const NUMBER: u32 = 3;

/// A service that passes what a connection says to all others, ends one that says `bye`, its own side of one
/// that says `fin`, and resets one that says `!`.
#[derive(Default)]
pub struct Chat {
    /// What each connection has still to be sent.
    waiting: BTreeMap<u32, VecDeque<u8>>,
    ready: BTreeSet<u32>,
    /// Whether connections are refused.
    closed: bool,
    /// The worker that serves programs of the cluster.
    owner: Option<Owner>,
    /// A connection that always has something to send.
    endless: Option<FlowLabel>,
}

impl Chat {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Between for Chat {}

impl LocalServices for Chat {
    fn connected(&mut self, _: Instant, label: FlowLabel, number: u32, _: FourTuple) -> bool {
        assert_eq!(number, NUMBER);
        if !self.closed {
            assert!(self.waiting.insert(label.to_wire(), VecDeque::new()).is_none());
        }
        !self.closed
    }

    fn elsewhere(&self, number: u32) -> Option<Owner> {
        self.owner.filter(|_| number == NUMBER)
    }

    fn serve(&mut self, _: Instant, label: FlowLabel, ends: &mut impl Ends, _: &mut OutputLink) -> Step {
        let mut client = ends.client(label).expect("it is connected");
        let own = label.to_wire();
        let said: Vec<u8> = client.peek(client.readable()).flatten().copied().collect();
        client.consume(said.len());
        for (other, waiting) in self.waiting.iter_mut().filter(|(other, _)| **other != own) {
            waiting.extend(&said);
            if !said.is_empty() {
                self.ready.insert(*other);
            }
        }
        let waiting = self.waiting.get_mut(&own).expect("it is connected");
        let taken = client.write(waiting.make_contiguous(), None);
        waiting.drain(..taken);
        match &said[..] {
            b"bye" => Step::Close,
            b"fin" => Step::Finish,
            b"!" => Step::Reset,
            _ if client.is_finished() => Step::Close,
            [] if taken == 0 => Step::Idle,
            _ => Step::Moved,
        }
    }

    fn gone(&mut self, _: Instant, label: FlowLabel) {
        assert!(self.waiting.remove(&label.to_wire()).is_some(), "once for each connection");
        self.ready.remove(&label.to_wire());
    }

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        self.endless.or_else(|| FlowLabel::from_wire(self.ready.pop_first()?))
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

/// The chat at [`PORT`].
pub fn service() -> ServiceSpec {
    ServiceSpec { name: "chat".to_owned(), address: (VIP, PORT).into(), local: Some(NUMBER), ..web(&[]) }
}

/// A world whose port [`PORT`] is the chat.
fn chat() -> World {
    let mut w = World::new(&[8001]);
    let address = Ipv4Addr::new(10, 0, 0, 9).into();
    let destinations = vec!["10.0.0.0/24".parse().unwrap()];
    let rule = EgressRule { address, destinations, except: Vec::new(), tcp: ServiceTcp::default() };
    w.core.set_policy(w.now, vec![web(&[8001]), service()], vec![rule], &mut w.out);
    w
}

/// Connects a client with this port; returns the sequence number that it expects next.
fn join(w: &mut World, port: u16) -> u32 {
    w.connect_to(PORT, port);
    w.out.records.iter().rev().find(|r| r.1 == port).map_or(0, |r| r.2.wrapping_add(1))
}

fn says(w: &mut World, port: u16, ack: u32, flags: TcpFlags, text: &[u8]) {
    w.segment(1, (port, PORT), (101, ack), flags | TcpFlags::ACK, text);
}

/// Returns the client ports that segments went to since the last call.
fn sent_to(w: &mut World) -> BTreeSet<u16> {
    w.out.records.drain(..).map(|r| r.1).collect()
}

#[test]
fn what_one_connection_says_reaches_the_others_in_the_same_turn() {
    let mut w = chat();
    let acks: Vec<u32> = [1000, 1001, 1002].map(|port| join(&mut w, port)).to_vec();
    assert_eq!((w.core.flow_count(), w.core.waiting_count()), (3, 0), "none waits for a process");
    sent_to(&mut w);
    says(&mut w, 1001, acks[1], TcpFlags::PSH, b"hello");
    let others = sent_to(&mut w);
    assert!(others.contains(&1000) && others.contains(&1002), "{others:?}");
    assert_eq!(w.out.data, b"hello");
    assert!(w.out.messages.is_empty(), "no process takes part: {:?}", w.out.messages);
}

#[test]
fn a_connection_ends_by_either_side_and_leaves_nothing() {
    for (text, flags, rst) in
        [(&b"bye"[..], TcpFlags::PSH, false), (b"!", TcpFlags::PSH, true), (b"", TcpFlags::FIN, false)]
    {
        let mut w = chat();
        let ack = join(&mut w, 1000);
        says(&mut w, 1000, ack, flags, text);
        assert_eq!((w.out.flags.rst(), w.out.flags.fin()), (rst, !rst), "{text:?}");
        assert!(w.core.local().waiting.is_empty(), "{text:?}");
    }
    let mut w = chat();
    let ack = join(&mut w, 1000);
    w.segment(1, (1000, PORT), (101, ack), TcpFlags::RST, &[]);
    assert_eq!((w.core.local().waiting.len(), w.core.flow_count(), w.core.budget_reserved()), (0, 0, 0));
}

#[test]
fn a_connection_that_the_service_refuses_is_reset() {
    let mut w = chat();
    w.core.local_mut().closed = true;
    w.connect_to(PORT, 1000);
    assert!(w.out.flags.rst());
    assert_eq!((w.core.flow_count(), w.core.budget_reserved()), (0, 0));
}

/// Has a program of the cluster connect to the chat.
fn connect(w: &mut World, flags: u8) {
    let mut payload = [0; 64];
    let len = ConnectPayload { remote: (VIP, PORT).into(), local: None }.emit(&mut payload).unwrap();
    let header = MessageHeader::new(MessageKind::Connect, 9, 65_536, len as u32);
    w.send(8001, MessageHeader { flags, ..header }, &payload[..len]);
}

#[test]
fn a_program_is_sent_to_the_worker_that_serves_it_or_goes_by_the_lan() {
    let mut w = chat();
    let owner = Owner { proxy: "pn-9".parse().unwrap(), worker: 3 };
    w.core.local_mut().owner = Some(owner);
    connect(&mut w, 0);
    let refused = w.out.messages.iter().find(|m| m.1.kind == MessageKind::Refused).unwrap().1;
    assert_eq!((refused.id, Redirect::from_argument(refused.argument)), (9, Some(Redirect::at(&owner))));
    assert_eq!((w.core.counters().connects_elsewhere, w.core.flow_count()), (1, 0));
    connect(&mut w, CONNECT_BY_LAN);
    assert_eq!((w.core.hairpin_count(), w.core.flow_count()), (0, 1), "a SYN is under way");
    join(&mut w, 1000); // a network node's choice is not questioned
    assert_eq!(w.core.local().waiting.len(), 1);
}

#[test]
fn a_service_that_sends_no_more_goes_on_reading() {
    let mut w = chat();
    let ack = join(&mut w, 1000);
    says(&mut w, 1000, ack, TcpFlags::PSH, b"fin");
    assert!(w.out.flags.fin(), "{:?}", w.out.flags);
    join(&mut w, 1001);
    sent_to(&mut w);
    w.segment(1, (1000, PORT), (104, ack + 1), TcpFlags::ACK | TcpFlags::PSH, b"more");
    assert!(sent_to(&mut w).contains(&1001));
    w.segment(1, (1000, PORT), (108, ack + 1), TcpFlags::ACK | TcpFlags::FIN, b"last");
    assert!(sent_to(&mut w).contains(&1001));
    assert_eq!(w.core.local().waiting.len(), 1, "the client has ended its stream");

    connect(&mut w, 0);
    let label = FlowLabel::from_wire(w.out.take(8001, MessageKind::Connected)[0]).unwrap();
    let send = |w: &mut World, text: &[u8]| {
        w.send(8001, MessageHeader::of_flow(MessageKind::Data, label, 0, text.len() as u32), text);
    };
    send(&mut w, b"fin");
    assert_eq!(w.out.take(8001, MessageKind::Shutdown), [label.to_wire()]);
    sent_to(&mut w);
    send(&mut w, b"more");
    assert!(sent_to(&mut w).contains(&1001));
    w.send(8001, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
    assert_eq!((w.core.local().waiting.len(), w.core.hairpin_count()), (1, 0));
}

#[test]
fn a_program_of_the_cluster_talks_to_it_over_its_channel() {
    let mut w = chat();
    let ack = join(&mut w, 1000);
    connect(&mut w, 0);
    let connected = w.out.take(8001, MessageKind::Connected);
    assert_eq!((connected.len(), w.core.local().waiting.len()), (1, 2));
    says(&mut w, 1000, ack, TcpFlags::PSH, b"to the program");
    let data: Vec<&Vec<u8>> =
        w.out.payloads.iter().filter(|p| p.1 == MessageKind::Data).map(|p| &p.2).collect();
    assert_eq!(data, [b"to the program"]);
    sent_to(&mut w);
    let label = FlowLabel::from_wire(connected[0]).unwrap();
    w.send(8001, MessageHeader::of_flow(MessageKind::Data, label, 0, 4), b"back");
    assert_eq!((sent_to(&mut w), w.out.data.clone()), (BTreeSet::from([1000]), b"back".to_vec()));
    w.send(8001, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
    assert_eq!((w.core.local().waiting.len(), w.core.hairpin_count()), (1, 0));
}

/// A flood that never ends leaves the worker its turns: it receives, and serves byte streams.
#[test]
fn a_connection_that_always_has_something_to_send_stops_no_others() {
    let mut w = chat();
    let ack = join(&mut w, 1000);
    says(&mut w, 1000, ack, TcpFlags::PSH, b"hello");
    assert!(!w.core.is_unfinished());
    let label =
        w.core.flows(w.now, 8).iter().find(|flow| flow.tuple.local.port() == PORT).map(|flow| flow.label);
    w.core.local_mut().endless = label;
    w.core.drive(w.now, &mut w.out);
    assert!(w.core.is_unfinished() && w.core.next_timeout() == Some(Instant::ZERO));
    let opens = w.out.take(8001, MessageKind::Open).len();
    w.connect(1, 1001);
    assert_eq!(
        w.out.take(8001, MessageKind::Open).len(),
        opens + 1,
        "a client of the byte service is offered"
    );
    w.core.local_mut().endless = None;
    w.core.drive(w.now, &mut w.out);
    assert!(!w.core.is_unfinished() && w.core.next_timeout() != Some(Instant::ZERO));
}

#[test]
fn a_program_that_closes_while_the_service_writes_leaves_nothing() {
    let mut w = chat();
    let mut payload = [0; 64];
    let len = ConnectPayload { remote: (VIP, PORT).into(), local: None }.emit(&mut payload).unwrap();
    w.send(8001, MessageHeader::new(MessageKind::Connect, 9, 65_536, len as u32), &payload[..len]);
    let label = FlowLabel::from_wire(w.out.take(8001, MessageKind::Connected)[0]).unwrap();
    assert_eq!((w.core.hairpin_count(), w.core.local().waiting.len()), (2, 1));
    w.core.local_mut().waiting.values_mut().for_each(|waiting| waiting.extend(b"too late"));
    w.send(8001, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
    assert_eq!((w.core.hairpin_count(), w.core.flow_count(), w.core.local().waiting.len()), (0, 0, 0));
}
