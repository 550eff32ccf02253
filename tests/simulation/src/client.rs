//! A client host: its own TCP engine on a LAN port, the transactions that it requests, and a server for those that
//! applications request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use csp_lan::{Frame, LanPort};
use csp_tcp::{Arrival, EcnMode, Event, Stack, StackConfig};
use csp_types::{Duration, FlowLabel, FourTuple, Instant, MacAddr};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::{Ecn, arp};

use crate::conversation::{Conversation, Ended};
use crate::frames;
use crate::pattern::Request;
use crate::scenario::Scenario;

/// The port on which it serves applications.
pub(crate) const SERVER_PORT: u16 = 9_000;
const CHUNK: usize = 16 * 1024;

/// Progress of an upload of the client.
pub(crate) struct Upload {
    /// Identifies the transaction.
    pub key: u32,
    /// Bytes that the proxy has acknowledged.
    pub acknowledged: u64,
    /// Bytes that the proxy would accept now.
    pub window: u32,
}

/// A router that marks packets with CE.
struct Marker {
    every: u32,
    count: u32,
}

impl Marker {
    /// Returns the codepoint with which a packet leaves the router.
    fn pass(&mut self, ecn: Ecn) -> Ecn {
        if ecn == Ecn::NotEct || self.every == 0 {
            return ecn;
        }
        self.count += 1;
        if self.count.is_multiple_of(self.every) { Ecn::Ce } else { ecn }
    }
}

/// One client host.
pub(crate) struct Client {
    address: Ipv4Addr,
    port: LanPort,
    /// The largest packet that the last router in front of it forwards.
    path_mtu: u16,
    marker: Marker,
    /// The network nodes that answered for the service; connections are distributed over them, as by a router.
    gateways: Vec<MacAddr>,
    /// The network node from which a connection to our server last received a segment.
    paths: BTreeMap<SocketAddr, MacAddr>,
    tcp: Stack,
    talks: BTreeMap<FlowLabel, Conversation>,
    /// Conversations that do not read, until when, and whether the other side has ended meanwhile.
    deaf: BTreeMap<FlowLabel, (Instant, bool)>,
    /// Conversations that did not read, and now do.
    woken: BTreeSet<FlowLabel>,
    /// When the last conversation that always read ended.
    pub(crate) prompt_end: Instant,
    /// How each transaction that it requested ended, by its key.
    pub(crate) ended: Vec<(u32, Ended)>,
    /// Corrupt streams: must stay empty.
    pub(crate) corrupt: Vec<String>,
    next_port: u16,
}

impl Client {
    pub(crate) fn new(address: Ipv4Addr, port: LanPort, scenario: &Scenario) -> Self {
        let config = StackConfig {
            connections: 512,
            half_open: 16,
            time_wait_entries: 1024,
            blocks: 2048,
            block_len: 16 * 1024,
            range_sets: 512,
            isn_secret: [scenario.seed as u8; 16],
            ecn: if scenario.marks > 0 { EcnMode::Active } else { EcnMode::Passive },
            time_wait: Duration::from_secs(2),
            fin_wait_2: Duration::from_secs(30),
            keepalive_idle: Some(Duration::from_secs(5)),
            keepalive_interval: Duration::from_secs(1),
            keepalive_probes: 8,
            ..StackConfig::default()
        };
        let mut tcp = Stack::new(config);
        tcp.listen((address, SERVER_PORT).into(), 0).expect("an empty table takes a listener");
        Client {
            address,
            port,
            path_mtu: scenario.path_mtu,
            marker: Marker { every: scenario.marks, count: 0 },
            gateways: Vec::new(),
            paths: BTreeMap::new(),
            tcp,
            talks: BTreeMap::new(),
            deaf: BTreeMap::new(),
            woken: BTreeSet::new(),
            prompt_end: Instant::ZERO,
            ended: Vec::new(),
            corrupt: Vec::new(),
            next_port: 40_000,
        }
    }

    /// Requests the MAC address of `service`; until the answer arrives no transaction can start.
    pub(crate) fn resolve(&mut self, service: Ipv4Addr) {
        let request = arp::Repr {
            operation: arp::Operation::Request,
            sender_mac: self.port.info.mac,
            sender_ip: self.address,
            target_mac: MacAddr::default(),
            target_ip: service,
        };
        frames::send_arp(&mut self.port, MacAddr::BROADCAST, request);
    }

    /// Returns the number of network nodes that have answered.
    pub(crate) fn gateways(&self) -> usize {
        self.gateways.len()
    }

    /// Removes a network node that is down: its connections use the others.
    pub(crate) fn remove_gateway(&mut self, mac: MacAddr) {
        self.gateways.retain(|g| *g != mac);
        self.paths.retain(|_, g| *g != mac);
    }

    /// Opens a connection and sends the request.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        service: SocketAddr,
        request: Request,
        abort_after: Option<u64>,
        deaf_until: Option<Instant>,
    ) {
        self.next_port += 1;
        let tuple = FourTuple { local: (self.address, self.next_port).into(), remote: service };
        let label = self.tcp.connect(now, tuple, 0, 0).expect("the client's table is larger than its load");
        self.talks.insert(label, Conversation::asking(request, abort_after));
        self.deaf.extend(deaf_until.map(|until| (label, (until, false))));
    }

    /// Receives frames, runs TCP, sends frames; returns whether anything was done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let mut arrived: Vec<Vec<u8>> = Vec::new();
        self.port.receiver.receive(&mut |frame: Frame<'_>| arrived.push(frame.bytes.to_vec()));
        for frame in &arrived {
            self.on_frame(now, frame);
        }
        let mut any = !arrived.is_empty();
        if self.tcp.next_timeout().is_some_and(|t| t <= now) {
            self.tcp.on_timeout(now);
            any = true;
        }
        while let Some((label, event)) = self.tcp.poll_event() {
            any = true;
            self.on_event(now, label, event);
        }
        while let Some((&label, &(_, finished))) = self.deaf.iter().find(|(_, (until, _))| *until <= now) {
            any = true;
            self.deaf.remove(&label);
            self.woken.insert(label);
            let event = if finished { Event::PeerFinished } else { Event::Readable };
            self.on_event(now, label, event);
        }
        any | self.transmit(now)
    }

    fn on_frame(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(frame) = ethernet::Frame::parse(bytes) else { return };
        match frame.ether_type() {
            Some(EtherType::Arp) => self.on_arp(frame.payload()),
            Some(EtherType::Ipv4) => {
                if frames::packet_len(frame.payload()) > usize::from(self.path_mtu) {
                    frames::send_too_big(&mut self.port, frame.source(), frame.payload(), self.path_mtu);
                    return;
                }
                let Some((tuple, segment)) = frames::segment_in(frame.payload(), self.address) else {
                    return;
                };
                let ecn = self.marker.pass(frames::ecn(frame.payload())).bits();
                if tuple.local.port() == SERVER_PORT {
                    self.paths.insert(tuple.remote, frame.source());
                }
                let arrival = Arrival {
                    label: FlowLabel::NONE,
                    tuple: Some(tuple),
                    ingress: now,
                    via: 0,
                    ecn,
                    segment_size: 0,
                };
                let _ = self.tcp.on_segment(now, arrival, &segment, segment.payload()); // the engine counts what it drops
            }
            _ => {}
        }
    }

    fn on_arp(&mut self, bytes: &[u8]) {
        let Ok(packet) = arp::Packet::parse(bytes) else { return };
        let message = arp::Repr::parse(&packet);
        if message.operation == arp::Operation::Reply {
            if !self.gateways.contains(&message.sender_mac) {
                self.gateways.push(message.sender_mac);
                self.gateways.sort_unstable();
            }
        } else if message.target_ip == self.address {
            let (sender_mac, sender_ip) = (self.port.info.mac, self.address);
            let (target_mac, target_ip) = (message.sender_mac, message.sender_ip);
            let operation = arp::Operation::Reply;
            let answer = arp::Repr { operation, sender_mac, sender_ip, target_mac, target_ip };
            frames::send_arp(&mut self.port, target_mac, answer);
        }
    }

    fn on_event(&mut self, now: Instant, label: FlowLabel, event: Event) {
        match event {
            Event::Established { passive, .. } => {
                if passive {
                    self.talks.insert(label, Conversation::serving());
                }
                self.converse(now, label);
            }
            Event::Writable | Event::Readable => self.converse(now, label),
            Event::PeerFinished if self.deaf.contains_key(&label) => {
                self.deaf.entry(label).and_modify(|(_, finished)| *finished = true);
            }
            Event::PeerFinished => {
                self.read(now, label);
                if let Some(talk) = self.talks.get_mut(&label) {
                    talk.on_end();
                }
                self.converse(now, label);
            }
            Event::Closed => self.end(now, label, None),
            Event::Failed(reason) => self.end(now, label, Some(format!("{reason:?}"))),
        }
    }

    fn end(&mut self, now: Instant, label: FlowLabel, failure: Option<String>) {
        let Some(mut talk) = self.talks.remove(&label) else { return };
        if self.deaf.remove(&label).is_none() && !self.woken.remove(&label) {
            self.prompt_end = now;
        }
        self.corrupt.extend(talk.wrong.take());
        if talk.asks() {
            self.ended.push((talk.key(), talk.ended(failure)));
        }
    }

    fn read(&mut self, now: Instant, label: FlowLabel) {
        let Some(talk) = self.talks.get_mut(&label).filter(|_| !self.deaf.contains_key(&label)) else {
            return;
        };
        self.tcp.read_with(now, label, usize::MAX, |bytes| {
            talk.take(bytes);
            bytes.len()
        });
    }

    /// Reads and writes until it would block.
    fn converse(&mut self, now: Instant, label: FlowLabel) {
        self.read(now, label);
        let Some(talk) = self.talks.get_mut(&label) else { return };
        let mut chunk = [0; CHUNK];
        loop {
            if talk.aborts() {
                self.tcp.abort(now, label);
                let (key, wrong) = (talk.key(), talk.wrong.take());
                self.corrupt.extend(wrong);
                self.ended.push((key, Ended::Aborted));
                self.talks.remove(&label);
                return;
            }
            let len = talk.next(&mut chunk);
            let taken = if len == 0 { 0 } else { self.tcp.write(now, label, &chunk[..len]) };
            talk.sent(taken);
            if taken < len || len == 0 {
                break;
            }
        }
        if talk.ends_sending() {
            self.tcp.shutdown(now, label);
        }
        if talk.is_over() {
            self.tcp.close(now, label);
        }
    }

    fn transmit(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(transmit) = self.tcp.poll_transmit(now) {
            any = true;
            let FourTuple { local, remote } = transmit.tuple;
            let spread = self.gateways.get(usize::from(local.port()) % self.gateways.len().max(1));
            let gateway = self.paths.get(&remote).filter(|_| local.port() == SERVER_PORT).or(spread);
            if let Some(gateway) = gateway.copied() {
                let ecn = self.marker.pass(Ecn::from_bits(transmit.ecn));
                frames::send_segment(&mut self.port, gateway, &transmit, ecn);
            }
        }
        self.port.transmitter.flush();
        any
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let wakes = self.deaf.values().map(|(until, _)| *until);
        self.tcp.next_timeout().into_iter().chain(wakes).min()
    }

    /// Returns the number of transactions that it requested and that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.talks.values().filter(|t| t.asks()).count()
    }

    /// Returns the number of conversations of either kind that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.talks.len()
    }

    /// Returns its uploads that have not ended.
    pub(crate) fn uploads(&self) -> impl Iterator<Item = Upload> + '_ {
        self.talks.iter().filter(|(_, talk)| talk.asks()).filter_map(|(label, talk)| {
            let info = self.tcp.info(*label)?;
            let acknowledged = talk.given() - info.send_queue as u64;
            Some(Upload { key: talk.key(), acknowledged, window: info.send_window })
        })
    }

    pub(crate) fn tcp(&self) -> &Stack {
        &self.tcp
    }
}
