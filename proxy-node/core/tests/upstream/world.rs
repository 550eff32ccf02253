//! The harness: a core with a local service between TCP clients without loss, scripted processes and plain
//! servers.

#[path = "../servers/host.rs"]
pub mod host;
#[path = "plain.rs"]
pub mod plain;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_proxy_core::service::local::LocalServices;
use csp_proxy_core::{
    Blocked, ChannelId, CoreConfig, EgressRule, HairpinConfig, Lane, PoolServer, Process, ProxyCore,
    ProxyOutput, ServerHost, ServiceSpec, ServiceTcp, Verdict, Way,
};
use csp_support::{allocation, packets};
use csp_tcp::{Direction, StackConfig};
use csp_types::{FlowLabel, FourTuple, Grant, Instant, NodeId};
use csp_wire::channel::{ConnectPayload, ListenPayload, Message, MessageHeader, MessageKind, OpenPayload};
use csp_wire::tcp::{Flags as TcpFlags, Options, Repr, Segment};
use csp_wire::tunnel::{Flags, Record};

use host::Host;
use plain::Losses;

pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The port at which clients' connections end at the service.
pub const PORT: u16 = 80;
/// The number of the service.
pub const NUMBER: u32 = 1;
/// The name of the service whose processes are the upstream servers.
pub const POOL: &str = "pool";
/// Upstream connections of the worker.
pub const UPSTREAMS: usize = 8;

/// A segment to a client: port, flags, sequence number, acknowledgement, window, payload.
type ToClient = (u16, TcpFlags, u32, u32, u16, Vec<u8>);

/// What the core sends.
#[derive(Default)]
pub struct Out {
    pub segments: VecDeque<ToClient>,
    pub messages: VecDeque<(u32, MessageHeader, Vec<u8>)>,
    /// DATA messages that each process's lane still accepts; lanes without an entry accept all.
    pub descriptors: BTreeMap<u32, usize>,
    /// Segments to plain servers, with their addresses as the servers see them.
    pub packets: VecDeque<(FourTuple, Vec<u8>)>,
    labels: BTreeMap<u32, FourTuple>,
    /// No network node is connected for opens.
    pub no_node: bool,
    /// Allocations of its own.
    pub allocations: u64,
}

impl ProxyOutput for Out {
    fn tunnel_ready(&self, _: u32) -> bool {
        true
    }
    fn tunnel(&mut self, _: Instant, _: u32, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Blocked> {
        let before = allocation::count();
        let bytes = parts.concat();
        let compacted = record.flags.contains(Flags::COMPACTED);
        let skip = if compacted { 0 } else { 20 };
        if let Some(s) = bytes.get(skip..).and_then(|tcp| Segment::parse(tcp).ok()) {
            let known = self.labels.get(&record.label.to_wire()).copied().filter(|_| compacted);
            let tuple = known.unwrap_or_else(|| plain::tuple_of(&bytes, &s));
            if !record.label.is_none() {
                self.labels.insert(record.label.to_wire(), tuple);
            }
            if tuple.local.ip() != CLIENT {
                self.packets.push_back((tuple, bytes[skip..].to_vec()));
                self.allocations += allocation::count() - before;
                return Ok(());
            }
            let to = s.destination_port();
            self.segments.push_back((to, s.flags(), s.seq(), s.ack(), s.window(), s.payload().to_vec()));
        }
        self.allocations += allocation::count() - before;
        Ok(())
    }
    fn network_node(&self, _: &FourTuple) -> Option<Way> {
        (!self.no_node).then_some(Way { via: 1, is_far: false })
    }
    fn channel(&mut self, _: Instant, lane: Lane, of: MessageHeader, parts: &[&[u8]]) -> Result<(), Blocked> {
        if of.kind == MessageKind::Data
            && let Some(left) = self.descriptors.get_mut(&lane.0)
        {
            *left = left.checked_sub(1).ok_or(Blocked::NoCredit)?;
        }
        let before = allocation::count();
        self.messages.push_back((lane.0, of, parts.concat()));
        self.allocations += allocation::count() - before;
        Ok(())
    }
    fn lane_ready(&self, lane: Lane) -> bool {
        self.descriptors.get(&lane.0).is_none_or(|left| *left > 0)
    }
    fn lane(&self, channel: ChannelId, _: u32) -> Option<Lane> {
        Some(Lane(channel.0))
    }
}

/// A client of the kernel, without loss.
#[derive(Default)]
pub struct Client {
    pub seq: u32,
    pub ack: u32,
    /// The end of the proxy's window.
    pub most: u32,
    pub received: Vec<u8>,
    /// It acknowledges nothing at present.
    pub stalled: bool,
    pub fin: bool,
    pub rst: bool,
}

/// A connection at a process.
#[derive(Default)]
pub struct Served {
    pub process: u32,
    /// The peer's address, as the process sees it.
    pub peer: Option<SocketAddr>,
    /// Its own address.
    pub own: Option<SocketAddr>,
    pub received: Vec<u8>,
    /// Bytes that the process may send.
    pub window: usize,
    pub finished: bool,
    pub closed: bool,
    pub reset: bool,
}

pub struct World<S> {
    pub core: ProxyCore<S>,
    pub out: Out,
    pub now: Instant,
    pub clients: BTreeMap<u16, Client>,
    /// Plain servers.
    pub servers: BTreeMap<Ipv4Addr, Host>,
    /// Which segments from and to plain servers are lost.
    pub losses: Losses,
    /// By label.
    pub served: BTreeMap<u32, Served>,
    /// OPENs that no process has answered: process and label.
    pub offers: VecDeque<(u32, FlowLabel)>,
    /// Messages lie in memory of the engine.
    pub lends: bool,
    /// Allocations of the core with its output.
    pub allocations: u64,
}

/// The node of a member.
pub fn node(port: u16) -> NodeId {
    format!("an-{port}").parse().unwrap()
}

/// A member as it is reported.
pub fn member(port: u16) -> (ServerHost, u16) {
    (ServerHost::Node(node(port)), port)
}

/// The pool with these members, whose ports are the numbers of their processes, too.
pub fn pool(members: &[u16]) -> ServiceSpec {
    ServiceSpec {
        pool: members.iter().map(|port| PoolServer::of_node(node(*port), *port)).collect(),
        ..ServiceSpec::new(POOL.to_owned(), (Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

impl<S: LocalServices> World<S> {
    /// A world whose pool has these members, each with a process that listens.
    pub fn new(service: S, members: &[u16]) -> Self {
        let tcp = StackConfig {
            connections: 64,
            blocks: 8192,
            pacing: false,
            receive_window_max: 1 << 15,
            receive_window_initial: 1 << 14,
            send_buffer_max: 1 << 16,
            ..StackConfig::default()
        };
        let hairpin = HairpinConfig { first_label_index: 10_000, pairs: 2 };
        let config =
            CoreConfig { worker: 0, workers: 1, tcp, trace_events: 256, hairpin, upstreams: UPSTREAMS };
        let mut world = World {
            core: ProxyCore::with_local_services(config, service),
            out: Out::default(),
            now: Instant::from_nanos(1_000_000_000),
            clients: BTreeMap::new(),
            servers: BTreeMap::new(),
            losses: Losses::default(),
            served: BTreeMap::new(),
            offers: VecDeque::new(),
            lends: true,
            allocations: 0,
        };
        world.policy(pool(members));
        members.iter().for_each(|port| world.process((*port).into(), 64));
        world
    }

    pub fn policy(&mut self, pool: ServiceSpec) {
        let address = (VIP, PORT).into();
        let front = ServiceSpec {
            name: "front".to_owned(),
            address,
            pool: Vec::new(),
            local: Some(NUMBER),
            ..pool.clone()
        };
        let rule = EgressRule {
            address: [10, 0, 0, 9].into(),
            destinations: vec!["10.0.0.0/24".parse().unwrap()],
            except: Vec::new(),
            tcp: ServiceTcp::default(),
        };
        self.core.set_policy(self.now, vec![front, pool], vec![rule], &mut self.out);
        self.settle();
    }

    /// Adds a process that listens at the port of its number, and would accept so many connections.
    pub fn process(&mut self, process: u32, credit: u32) {
        let node = node(process as u16);
        let known = Process { node, name: "p".to_owned(), uid: None, grant: Grant::all() };
        assert!(self.core.channel_up(ChannelId(process), known));
        let listen = ListenPayload { address: SocketAddr::from(([0, 0, 0, 0], process as u16)) }.emit();
        self.message(process, MessageHeader::new(MessageKind::Listen, 7, 64, listen.len() as u32), &listen);
        if credit > 0 {
            self.message(process, MessageHeader::new(MessageKind::AcceptCredit, 7, credit, 0), &[]);
        }
    }

    pub fn message(&mut self, process: u32, header: MessageHeader, payload: &[u8]) {
        let from = (ChannelId(process), Lane(process));
        let before = allocation::count();
        let mut lent = if self.lends { self.core.lend_buffer(Direction::Send) } else { None };
        let verdict = match &mut lent {
            Some(buffer) => {
                buffer.bytes_mut()[..payload.len()].copy_from_slice(payload);
                let message = Message { header, payload: &buffer.bytes()[..payload.len()] };
                self.core.on_message(self.now, from, &message, Some(buffer), &mut self.out)
            }
            None => self.core.on_message(self.now, from, &Message { header, payload }, None, &mut self.out),
        };
        assert_eq!(verdict, Verdict::Fine);
        lent.into_iter().for_each(|buffer| self.core.return_buffer(buffer));
        self.allocations += allocation::count() - before;
        self.settle();
    }

    /// Has a process connect to the service, with room for so many bytes; returns the connection's label.
    pub fn dial(&mut self, process: u32, room: u32) -> FlowLabel {
        let mut payload = [0; 64];
        let remote = (VIP, PORT).into();
        let len = ConnectPayload { remote, local: None }.emit(&mut payload).unwrap();
        let header = MessageHeader::new(MessageKind::Connect, 9, room, len as u32);
        self.message(process, header, &payload[..len]);
        let of_process = self.served.iter().filter(|(_, served)| served.process == process);
        FlowLabel::from_wire(*of_process.map(|(label, _)| label).next_back().unwrap()).unwrap()
    }

    /// Has a process say something about a connection.
    pub fn says(&mut self, label: FlowLabel, kind: MessageKind, argument: u32, payload: &[u8]) {
        let process = self.served[&label.to_wire()].process;
        self.message(process, MessageHeader::of_flow(kind, label, argument, payload.len() as u32), payload);
    }

    /// Accepts the oldest offer with room for so many bytes; returns process and label.
    pub fn accept(&mut self, room: u32) -> (u32, FlowLabel) {
        let (process, label) = self.offers.pop_front().expect("it was offered");
        self.says(label, MessageKind::Accepted, room, &[]);
        (process, label)
    }

    /// Has a process send as much of `bytes` as its window holds; returns how much.
    pub fn sends(&mut self, label: FlowLabel, bytes: &[u8]) -> usize {
        let served = self.served.get_mut(&label.to_wire()).unwrap();
        let len = bytes.len().min(served.window).min(15_000);
        if len > 0 {
            served.window -= len;
            self.says(label, MessageKind::Data, 0, &bytes[..len]);
        }
        len
    }

    pub fn connect(&mut self, port: u16) {
        self.clients.insert(port, Client { seq: 100, ..Client::default() });
        self.segment(port, TcpFlags::SYN, &[]);
        self.clients.get_mut(&port).unwrap().seq = 101;
        self.segment(port, TcpFlags::ACK, &[]);
    }

    pub fn segment(&mut self, port: u16, flags: TcpFlags, payload: &[u8]) {
        let Client { seq, ack, .. } = self.clients[&port];
        let options = Options::default();
        let tcp =
            Repr { source_port: port, destination_port: PORT, seq, ack, flags, window: 60_000, options };
        let packet = packets::tcp_packet(CLIENT, VIP, &tcp, payload);
        self.record(&packet);
    }

    fn record(&mut self, packet: &[u8]) {
        let record = packets::record(Flags::NONE, packet);
        let before = allocation::count();
        self.core.on_record(self.now, 1, &record, None, &mut self.out);
        self.allocations += allocation::count() - before;
        self.settle();
    }

    /// Has a client send as much of `bytes` as one segment and the proxy's window hold; returns how much.
    pub fn client_sends(&mut self, port: u16, bytes: &[u8]) -> usize {
        let client = &self.clients[&port];
        let room = client.most.wrapping_sub(client.seq) as i32;
        let len = bytes.len().min(1_400).min(room.max(0) as usize);
        if len > 0 {
            self.segment(port, TcpFlags::ACK, &bytes[..len]);
            let client = self.clients.get_mut(&port).unwrap();
            client.seq = client.seq.wrapping_add(len as u32);
        }
        len
    }

    pub fn client_finishes(&mut self, port: u16) {
        self.segment(port, TcpFlags::ACK | TcpFlags::FIN, &[]);
        let client = self.clients.get_mut(&port).unwrap();
        client.seq = client.seq.wrapping_add(1);
    }

    /// Lets the core move what it can, and clients and processes receive what was sent to them.
    pub fn settle(&mut self) {
        loop {
            let before = allocation::count();
            self.core.drive(self.now, &mut self.out);
            self.allocations += allocation::count() - before;
            while let Some((process, header, payload)) = self.out.messages.pop_front() {
                self.process_receives(process, header, &payload);
            }
            let mut acknowledge = Vec::new();
            while let Some(segment) = self.out.segments.pop_front() {
                let port = segment.0;
                if self.client_receives(segment) && !acknowledge.contains(&port) {
                    acknowledge.push(port);
                }
            }
            let served = self.run_servers();
            if acknowledge.is_empty() && !served && !self.core.is_unfinished() {
                return;
            }
            acknowledge.into_iter().for_each(|port| self.segment(port, TcpFlags::ACK, &[]));
        }
    }

    fn process_receives(&mut self, process: u32, header: MessageHeader, payload: &[u8]) {
        let Some(label) = header.label() else { return };
        if header.kind == MessageKind::Open {
            let open = OpenPayload::parse(payload).unwrap();
            let (own, peer) = (Some(open.local), Some(open.remote));
            let served = Served { process, own, peer, ..Served::default() };
            self.served.insert(header.id, Served { window: open.window as usize, ..served });
            self.offers.push_back((process, label));
            return;
        }
        if header.kind == MessageKind::Connected {
            let window = OpenPayload::parse(payload).unwrap().window as usize;
            self.served.insert(header.id, Served { process, window, ..Served::default() });
            return;
        }
        let offers = self.offers.len();
        if header.kind == MessageKind::Reset {
            self.offers.retain(|offer| *offer != (process, label));
        }
        if self.offers.len() < offers {
            // The offer was withdrawn, and may be another process's now.
            self.served.entry(header.id).and_modify(|served| served.reset = true);
            self.message(process, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
            return;
        }
        let Some(served) = self.served.get_mut(&header.id) else { return };
        match header.kind {
            MessageKind::Data => {
                assert!(!served.finished && !served.closed && !served.reset, "nothing follows the end");
                served.received.extend_from_slice(payload);
            }
            MessageKind::Credit => served.window += header.argument as usize,
            MessageKind::Shutdown => served.finished = true,
            MessageKind::Close => served.closed = true,
            MessageKind::Reset => served.reset = true,
            _ => {}
        }
    }

    /// Returns whether the client acknowledges the segment.
    fn client_receives(&mut self, (to, flags, seq, ack, window, payload): ToClient) -> bool {
        let Some(client) = self.clients.get_mut(&to) else { return false };
        client.rst |= flags.rst();
        if flags.rst() {
            return false;
        }
        client.most = ack.wrapping_add(u32::from(window));
        if flags.syn() {
            client.ack = seq.wrapping_add(1);
            return false;
        }
        if client.stalled {
            return false; // it is sent again
        }
        let known = client.ack.wrapping_sub(seq) as usize; // sent again
        if let Some(fresh) = payload.get(known..) {
            client.received.extend_from_slice(fresh);
            client.ack = client.ack.wrapping_add(fresh.len() as u32);
            if flags.fin() && !client.fin {
                client.fin = true;
                client.ack = client.ack.wrapping_add(1);
            }
        }
        !payload.is_empty() || flags.fin()
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let timers = self.servers.values().filter_map(|host| host.tcp.next_timeout());
            let due = timers.chain(self.core.next_timeout()).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            for host in self.servers.values_mut() {
                host.tcp.on_timeout(self.now);
            }
            let before = allocation::count();
            self.core.on_timeout(self.now, &mut self.out);
            self.allocations += allocation::count() - before;
            self.settle();
        }
        self.now = until;
    }

    /// Checks that no connection, and no memory of one, is left.
    pub fn assert_empty(&self) {
        assert_eq!(self.open_count(), 0, "no member has a connection");
        assert_eq!((self.core.upstream_count(), self.core.budget_reserved()), (0, 0));
        assert_eq!((self.core.flow_count(), self.core.waiting_count(), self.core.parked_count()), (0, 0, 0));
        assert_eq!(self.core.tcp().occupancy().send_blocks.0, 0, "all memory is free again");
    }
}
