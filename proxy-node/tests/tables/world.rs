//! The harness: a scripted network node, clients and processes around one core.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_proxy_node::core::{
    Blocked, ChannelId, CoreConfig, HairpinConfig, Lane, PoolServer, Process, ProxyCore, ProxyOutput,
    ServiceSpec, Verdict, Way,
};
use csp_support::packets;
use csp_tcp::StackConfig;
use csp_types::{FlowLabel, FourTuple, Grant, Instant};
use csp_wire::channel::{ListenPayload, Message, MessageHeader, MessageKind};
use csp_wire::tcp::{Flags as TcpFlags, Options, Repr, Segment};
use csp_wire::tunnel::{Flags, Record, RecordKind};

use crate::local::Chat;

pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Records all output of the core.
#[derive(Default)]
pub struct Out {
    /// What the last segment carried.
    pub data: Vec<u8>,
    /// Network nodes whose tunnels have no room.
    pub stuck: BTreeSet<u32>,
    /// DATA messages that a lane still accepts; lanes without an entry accept all.
    pub descriptors: BTreeMap<Lane, usize>,
    /// Tunnel records: network node, client port, sequence number.
    pub records: Vec<(u32, u16, u32)>,
    /// By client port: the sequence number behind the last byte of data that was sent.
    pub ends: BTreeMap<u16, u32>,
    /// The flags of the last segment.
    pub flags: TcpFlags,
    /// The kind of the last record, and its bytes after the header.
    pub last: Option<(RecordKind, Vec<u8>)>,
    /// Channel messages: lane and header.
    pub messages: Vec<(Lane, MessageHeader)>,
    /// The payloads of messages that have one: lane, kind and bytes.
    pub payloads: Vec<(Lane, MessageKind, Vec<u8>)>,
    /// Number of DATA messages refused.
    pub refused: usize,
}

impl ProxyOutput for Out {
    fn tunnel_ready(&self, via: u32) -> bool {
        !self.stuck.contains(&via)
    }

    fn tunnel(&mut self, _: Instant, via: u32, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Blocked> {
        let bytes = parts.concat();
        let skip = if record.flags.contains(Flags::COMPACTED) { 0 } else { 20 };
        if let Some(segment) = bytes.get(skip..).and_then(|tcp| Segment::parse(tcp).ok()) {
            self.records.push((via, segment.destination_port(), segment.seq()));
            self.flags = segment.flags();
            self.data = segment.payload().to_vec();
            let end = segment.seq().wrapping_add(self.data.len() as u32);
            let known = self.ends.entry(segment.destination_port()).or_insert(end);
            if end.wrapping_sub(*known) < 1 << 31 {
                *known = end;
            }
        }
        self.last = Some((record.kind, bytes));
        Ok(())
    }

    fn network_node(&self, _: &FourTuple) -> Option<Way> {
        Some(Way { via: 1, is_far: false })
    }

    fn channel(
        &mut self,
        _: Instant,
        lane: Lane,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), Blocked> {
        if header.kind == MessageKind::Data
            && let Some(left) = self.descriptors.get_mut(&lane)
        {
            if *left == 0 {
                self.refused += 1;
                return Err(Blocked::NoCredit);
            }
            *left -= 1;
        }
        self.messages.push((lane, header));
        if header.payload_len > 0 {
            self.payloads.push((lane, header.kind, parts.concat()));
        }
        Ok(())
    }

    fn lane_ready(&self, lane: Lane) -> bool {
        self.descriptors.get(&lane).is_none_or(|left| *left > 0)
    }

    fn lane(&self, channel: ChannelId, _: u32) -> Option<Lane> {
        Some(Lane(channel.0))
    }
}

impl Out {
    /// Returns the labels of messages of this kind on a lane since the last call.
    pub fn take(&mut self, lane: u32, kind: MessageKind) -> Vec<u32> {
        let is = |m: &(Lane, MessageHeader)| m.0 == Lane(lane) && m.1.kind == kind;
        let labels = self.messages.iter().filter(|m| is(m)).map(|m| m.1.id).collect();
        self.messages.retain(|m| !is(m));
        labels
    }
}

pub struct World {
    pub core: ProxyCore<Chat>,
    pub out: Out,
    pub processes: BTreeSet<u32>,
    pub now: Instant,
    /// The address of the clients.
    pub from: Ipv4Addr,
    /// The flags of the records that bring their segments.
    pub record_flags: Flags,
}

pub fn web(servers: &[u16]) -> ServiceSpec {
    let node = "an-1".parse().unwrap();
    let pool = servers.iter().map(|port| PoolServer::of_node(node, *port)).collect();
    ServiceSpec { pool, ..ServiceSpec::new("web".to_owned(), (VIP, 80).into()) }
}

impl World {
    /// Returns a world with one service and a process listening on each of `servers`; process n has channel
    /// and lane n.
    pub fn new(servers: &[u16]) -> Self {
        World::sized(servers, 64, 2048)
    }

    /// Returns a world as [`new`](Self::new) does, for this many connections and blocks of memory, and a
    /// hairpin for each 32 connections.
    pub fn sized(servers: &[u16], connections: usize, blocks: usize) -> Self {
        let mut world = World::bare(connections, blocks);
        world.policy(vec![web(servers)]);
        servers.iter().for_each(|port| world.process(*port));
        world
    }

    /// Returns a world as [`new`](Self::new) does, whose core has had no policy yet.
    pub fn without_policy(servers: &[u16]) -> Self {
        let mut world = World::bare(64, 2048);
        servers.iter().for_each(|port| world.process(*port));
        world
    }

    fn bare(connections: usize, blocks: usize) -> Self {
        let tcp = StackConfig { connections, blocks, ..StackConfig::default() };
        let hairpin = HairpinConfig { first_label_index: 10_000, pairs: connections / 32 };
        let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 16, hairpin, upstreams: 0 };
        let core = ProxyCore::with_local_services(config, Chat::default());
        World {
            core,
            out: Out::default(),
            processes: BTreeSet::new(),
            now: NOW,
            from: Ipv4Addr::new(10, 0, 0, 2),
            record_flags: Flags::NONE,
        }
    }

    pub fn policy(&mut self, services: Vec<ServiceSpec>) {
        self.core.set_policy(self.now, services, Vec::new(), &mut self.out);
    }

    pub fn process(&mut self, port: u16) {
        self.process_at(port.into(), port);
    }

    /// Adds a process on this channel that listens on `port`.
    pub fn process_at(&mut self, channel: u32, port: u16) {
        self.processes.insert(channel);
        let (node, name) = ("an-1".parse().unwrap(), "p".to_owned());
        let process = Process { node, name, uid: None, grant: Grant::all() };
        assert!(self.core.channel_up(ChannelId(channel), process));
        let listen = ListenPayload { address: SocketAddr::from(([0, 0, 0, 0], port)) }.emit();
        self.send(channel, MessageHeader::new(MessageKind::Listen, 7, 64, listen.len() as u32), &listen);
        self.send(channel, MessageHeader::new(MessageKind::AcceptCredit, 7, 64, 0), &[]);
    }

    pub fn send(&mut self, channel: u32, header: MessageHeader, payload: &[u8]) {
        let message = Message { header, payload };
        let from = (ChannelId(channel), Lane(channel));
        let verdict = self.core.on_message(self.now, from, &message, None, &mut self.out);
        assert_eq!(verdict, Verdict::Fine);
        self.drive();
    }

    /// Has the core move what can be moved, in as many turns as it takes; a flood that never ends has 64.
    fn drive(&mut self) {
        for _ in 0..64 {
            self.core.drive(self.now, &mut self.out);
            if !self.core.is_unfinished() {
                break;
            }
        }
    }

    /// Delivers a segment of the client with this port to port 80, through network node `via`.
    pub fn client(&mut self, via: u32, port: u16, seq: u32, ack: u32, flags: TcpFlags, payload: &[u8]) {
        self.segment(via, (port, 80), (seq, ack), flags, payload);
    }

    pub fn segment(
        &mut self,
        via: u32,
        (port, to): (u16, u16),
        (seq, ack): (u32, u32),
        flags: TcpFlags,
        payload: &[u8],
    ) {
        let tcp = Repr {
            source_port: port,
            destination_port: to,
            seq,
            ack,
            flags,
            window: 60_000,
            options: Options::default(),
        };
        let packet = packets::tcp_packet(self.from, VIP, &tcp, payload);
        let record = packets::record(self.record_flags, &packet);
        self.core.on_record(self.now, via, &record, None, &mut self.out);
        self.drive();
    }

    /// Performs a handshake; returns the sequence number that the client expects next.
    pub fn connect(&mut self, via: u32, port: u16) -> u32 {
        self.client(via, port, 100, 0, TcpFlags::SYN, &[]);
        let syn_ack = self.out.records.iter().rev().find(|r| r.1 == port).unwrap().2;
        self.client(via, port, 101, syn_ack.wrapping_add(1), TcpFlags::ACK, &[]);
        syn_ack.wrapping_add(1)
    }

    /// Performs a handshake with another service of the VIP.
    pub fn connect_to(&mut self, service: u16, port: u16) {
        self.segment(1, (port, service), (100, 0), TcpFlags::SYN, &[]);
        let syn_ack = self.out.records.iter().rev().find(|r| r.1 == port).unwrap().2;
        self.segment(1, (port, service), (101, syn_ack.wrapping_add(1)), TcpFlags::ACK, &[]);
    }

    pub fn connect_all(&mut self, ports: std::ops::Range<u16>) {
        for port in ports {
            self.connect(1, port);
        }
    }

    /// Lets time pass while nothing arrives.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.core.next_timeout().filter(|due| *due <= until) {
            self.core.on_timeout(due, &mut self.out);
            self.core.drive(due, &mut self.out);
            let next = self.core.next_timeout();
            assert!(next.is_none_or(|next| next > due), "a timer that is due stays so");
        }
        self.now = until;
    }

    /// Has the processes accept every connection offered to them; returns (channel, label) of each.
    pub fn accept_all(&mut self) -> Vec<(u32, u32)> {
        let mut taken = Vec::new();
        for channel in self.processes.clone() {
            for label in self.out.take(channel, MessageKind::Open) {
                let label = FlowLabel::from_wire(label).unwrap();
                self.send(channel, MessageHeader::of_flow(MessageKind::Accepted, label, 1 << 16, 0), &[]);
                taken.push((channel, label.to_wire()));
            }
        }
        taken
    }
}
