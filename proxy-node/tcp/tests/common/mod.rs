//! Two stacks, their network nodes and a link between them, in virtual time.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses a part; a failed unwrap fails the test

mod random;
pub mod transfer;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

pub use random::Random;

use csp_tcp::{Arrival, PathError, Stack, StackConfig, Transmit};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Repr, Segment};

/// Faults and capacity of one direction of the link.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFaults {
    pub delay: Duration,
    /// Random delay of each packet; if it exceeds a packet's transmission time, packets are reordered.
    pub jitter: Duration,
    pub loss: f64,
    pub duplication: f64,
    /// Probability that a packet is delayed, and by how much; zero means a few milliseconds.
    pub reordering: f64,
    pub held_back: Duration,
    /// Bandwidth in bytes per second, IP and TCP headers included; 0: unlimited.
    pub bandwidth: u64,
    /// Capacity of the queue in bytes; packets beyond it are lost.
    pub queue: u64,
    /// ECN-capable packets are marked if more than this many bytes are queued before them; 0: never.
    pub mark_above: u64,
    /// SYNs that propose ECN are lost.
    pub ecn_syns_lost: bool,
}

/// A packet on the link.
#[derive(Clone)]
pub struct Packet {
    pub tuple: FourTuple,
    pub bytes: Vec<u8>,
    /// The ECN field of its IP header.
    pub ecn: u8,
}

pub struct Host {
    pub stack: Stack,
    /// Label table of this host's network node: the receiver's tuple → label.
    pub known: BTreeMap<FourTuple, FlowLabel>,
    /// The identifier of its network node.
    pub via: u32,
}

/// Index 0 is the client, 1 the server.
pub struct Net {
    pub hosts: [Host; 2],
    pub now: Instant,
    pub faults: [LinkFaults; 2],
    pub random: Random,
    /// Deliver 64 KB records whole, as a network node with segmentation and receive offload does.
    pub whole_records: bool,
    /// Options that a middlebox removes from SYNs: (SACK permitted, timestamps, window scale).
    pub strip: (bool, bool, bool),
    pub transmitted: u64,
    /// Bytes of each direction that were lost, headers included.
    pub lost: [u64; 2],
    /// Packets of one direction are never reordered.
    pub hold_order: bool,
    /// Loses the packets for which it returns true. Arguments: the sender, how many packets it sent before,
    /// and the packet.
    pub drop: Option<fn(usize, u64, &Packet) -> bool>,
    /// Packets lost because a queue was full, by direction.
    pub overflows: [u64; 2],
    /// Print every packet (`CSP_TRACE=1`).
    pub trace: bool,
    /// Packets to these addresses are discarded: they belong to spoofed senders.
    pub unreachable: fn(&FourTuple) -> bool,
    /// The link's MTU, and whether larger packets cause an ICMP error.
    pub mtu: (usize, bool),
    errors: Vec<(usize, FourTuple, u32)>,
    /// Every header sent over the link, newest last, if recording is enabled.
    pub log: Option<Vec<(Instant, usize, Repr, usize)>>,
    /// The ECN fields that go with [`Net::log`], before any marking.
    pub ecn_log: Vec<u8>,
    link: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    packets: BTreeMap<u64, Packet>,
    serial: u64,
    sent: [u64; 2],
    /// Arrival time of the last packet of each direction.
    latest: [Instant; 2],
    /// When the last packet of each direction leaves the bottleneck.
    idle_at: [Instant; 2],
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn client_tuple(port: u16) -> FourTuple {
    FourTuple { local: SocketAddr::new(address("10.0.0.1:1").ip(), port), remote: address("10.0.0.2:80") }
}

pub fn small_config(seed: u64) -> StackConfig {
    let mut isn_secret = [0; 16];
    isn_secret[..8].copy_from_slice(&seed.to_le_bytes());
    StackConfig {
        connections: 64,
        half_open: 32,
        time_wait_entries: 64,
        blocks: 1024,
        range_sets: 64,
        isn_secret,
        ..StackConfig::default()
    }
}

impl Net {
    pub fn new(seed: u64, client: StackConfig, server: StackConfig) -> Self {
        let host = |config, via| Host { stack: Stack::new(config), known: BTreeMap::new(), via };
        let mut net = Net {
            hosts: [host(client, 7), host(server, 9)],
            now: Instant::from_nanos(1_000_000_000),
            faults: [LinkFaults { delay: Duration::from_micros(500), ..LinkFaults::default() }; 2],
            random: Random(seed),
            whole_records: false,
            strip: (false, false, false),
            transmitted: 0,
            lost: [0; 2],
            hold_order: false,
            latest: [Instant::ZERO; 2],
            drop: None,
            sent: [0; 2],
            idle_at: [Instant::ZERO; 2],
            unreachable: |_| false,
            mtu: (usize::MAX, false),
            errors: Vec::new(),
            overflows: [0, 0],
            log: None,
            ecn_log: Vec::new(),
            trace: std::env::var("CSP_TRACE").is_ok(),
            link: BinaryHeap::new(),
            packets: BTreeMap::new(),
            serial: 0,
        };
        net.hosts[1].stack.listen(address("10.0.0.2:80"), 5).unwrap();
        net.hosts[1].stack.listen(address("[::]:80"), 6).unwrap();
        net
    }

    pub fn with_rtt(mut self, rtt: Duration) -> Self {
        self.faults[0].delay = rtt / 2;
        self.faults[1].delay = rtt / 2;
        self
    }

    /// Transmits everything that the hosts have to send.
    pub fn flush(&mut self) {
        loop {
            self.flush_once();
            if !self.complain() {
                break;
            }
        }
    }

    fn flush_once(&mut self) {
        for from in 0..2 {
            let mut calls = 0;
            loop {
                let Host { stack, known, via } = &mut self.hosts[from];
                let Some(transmit) = stack.poll_transmit(self.now) else { break };
                calls += 1;
                assert!(calls < 100_000, "poll_transmit never returns None");
                let packets = network_node(&transmit, known, *via, self.whole_records);
                for packet in packets {
                    self.send(from, packet);
                }
            }
        }
    }

    /// The link's router reports packets that did not fit. Segments sent in response may not fit either.
    fn complain(&mut self) -> bool {
        let errors = std::mem::take(&mut self.errors);
        let (mtu, icmp) = self.mtu;
        for (from, tuple, sequence) in errors.iter().filter(|_| icmp) {
            let error = PathError::PacketTooBig { mtu: mtu as u16 };
            self.hosts[*from].stack.on_path_error(self.now, tuple, *sequence, error);
        }
        icmp && !errors.is_empty()
    }

    fn send(&mut self, from: usize, packet: Packet) {
        self.transmitted += 1;
        let mut packet = self.meddle(packet);
        if let Some(log) = &mut self.log {
            let segment = Segment::parse(&packet.bytes).unwrap();
            log.push((self.now, from, Repr::parse(&segment), segment.payload().len()));
            self.ecn_log.push(packet.ecn);
        }
        let faults = self.faults[from];
        let dropped = self.drop.is_some_and(|drop| drop(from, self.sent[from], &packet));
        let unreachable = (self.unreachable)(&packet.tuple);
        let waited = self.queue(from, packet.bytes.len());
        let flags = Segment::parse(&packet.bytes).unwrap().flags();
        let ecn_syn = flags.syn() && flags.intersects(Flags::ECE | Flags::CWR);
        let lost = self.random.chance(faults.loss)
            || dropped
            || unreachable
            || waited.is_none()
            || (faults.ecn_syns_lost && ecn_syn);
        self.sent[from] += 1;
        let backlog = waited.unwrap_or_default().as_nanos() as u64 * faults.bandwidth / 1_000_000_000;
        if packet.ecn != 0 && faults.mark_above > 0 && backlog > faults.mark_above {
            packet.ecn = 3;
        }
        if self.trace {
            let segment = Segment::parse(&packet.bytes).unwrap();
            let mark = if lost { " LOST" } else { "" };
            println!(
                "{:>12} {} {segment:?}{mark} {:?}",
                self.now.as_nanos() / 1000,
                ["->", "<-"][from],
                segment.options().sack.as_slice()
            );
        }
        if packet.bytes.len() + 20 > self.mtu.0 {
            let sequence = Segment::parse(&packet.bytes).unwrap().seq();
            self.errors.push((from, packet.tuple, sequence));
            return;
        }
        let Some(waited) = waited.filter(|_| !lost) else {
            self.lost[from] += packet.bytes.len() as u64;
            return;
        };
        let copies = 1 + usize::from(self.random.chance(faults.duplication));
        for _ in 0..copies {
            let mut delay = faults.delay + waited;
            if faults.jitter > Duration::ZERO {
                delay += Duration::from_nanos(self.random.below(faults.jitter.as_nanos() as u64));
            }
            if self.random.chance(faults.reordering) {
                delay += match faults.held_back {
                    Duration::ZERO => Duration::from_micros(200 + self.random.below(5_000)),
                    held_back => held_back,
                };
            }
            self.serial += 1;
            let mut at = self.now + delay;
            if self.hold_order {
                at = at.max(self.latest[from]);
            }
            self.latest[from] = self.latest[from].max(at);
            self.link.push(Reverse((at, self.serial, 1 - from)));
            self.packets.insert(self.serial, packet.clone());
        }
    }

    /// Queueing and transmission delay of a packet; `None` if the queue is full.
    fn queue(&mut self, from: usize, len: usize) -> Option<Duration> {
        let LinkFaults { bandwidth, queue, .. } = self.faults[from];
        if bandwidth == 0 {
            return Some(Duration::ZERO);
        }
        let wait = self.idle_at[from].max(self.now) - self.now;
        let len = len as u64 + 20;
        if wait.as_nanos() as u64 * bandwidth / 1_000_000_000 + len > queue {
            self.overflows[from] += 1;
            return None;
        }
        let wait = wait + Duration::from_nanos(len * 1_000_000_000 / bandwidth);
        self.idle_at[from] = self.now + wait;
        Some(wait)
    }

    fn meddle(&self, packet: Packet) -> Packet {
        let (sack, timestamps, scale) = self.strip;
        let mut repr = Repr::parse(&Segment::parse(&packet.bytes).unwrap());
        if !repr.flags.syn() || self.strip == (false, false, false) {
            return packet;
        }
        repr.options.sack_permitted &= !sack;
        repr.options.timestamps = repr.options.timestamps.filter(|_| !timestamps);
        repr.options.window_scale = repr.options.window_scale.filter(|_| !scale);
        let mut bytes = vec![0; repr.header_len()];
        repr.emit(&mut bytes).unwrap();
        Packet { bytes, ..packet }
    }

    /// Advances time to the next packet or timer, but not beyond `limit`. `false`: nothing happens before it.
    pub fn step(&mut self, limit: Instant) -> bool {
        let arrival = self.link.peek().map(|Reverse((at, _, _))| *at);
        let timeouts = self.hosts.iter().filter_map(|host| host.stack.next_timeout());
        let Some(next) = timeouts.chain(arrival).min() else {
            self.now = self.now.max(limit);
            return false;
        };
        if next > limit {
            self.now = self.now.max(limit);
            return false;
        }
        self.now = self.now.max(next);
        while let Some(&Reverse((at, serial, to))) = self.link.peek()
            && at <= self.now
        {
            self.link.pop();
            let packet = self.packets.remove(&serial).unwrap();
            self.deliver(to, &packet);
        }
        for host in &mut self.hosts {
            if host.stack.next_timeout().is_some_and(|at| at <= self.now) {
                host.stack.on_timeout(self.now);
            }
        }
        true
    }

    pub fn deliver(&mut self, to: usize, packet: &Packet) {
        let host = &mut self.hosts[to];
        let tuple = FourTuple { local: packet.tuple.remote, remote: packet.tuple.local };
        let label = host.known.get(&tuple).copied().unwrap_or(FlowLabel::NONE);
        let segment = Segment::parse(&packet.bytes).unwrap();
        let arrival = Arrival {
            label,
            tuple: label.is_none().then_some(tuple),
            ingress: self.now,
            via: host.via,
            ecn: packet.ecn,
            segment_size: 0,
        };
        let _ = host.stack.on_segment(self.now, arrival, &segment, segment.payload());
    }

    /// Replaces the network node of a host by one with an empty label table.
    pub fn replace_node(&mut self, side: usize) {
        let Host { stack, known, via } = &mut self.hosts[side];
        let from = *via;
        *via += self.random.below(2) as u32;
        known.clear();
        stack.redirect(from, *via);
    }

    pub fn on_link(&self) -> usize {
        self.packets.len()
    }

    /// Loses all packets on the link.
    pub fn cut(&mut self) {
        self.link.clear();
        self.packets.clear();
    }
}

/// The network node's processing of a record: it adds and removes labels, and splits payload into packets.
fn network_node(
    transmit: &Transmit<'_>,
    known: &mut BTreeMap<FourTuple, FlowLabel>,
    via: u32,
    whole: bool,
) -> Vec<Packet> {
    let tuple = transmit.tuple;
    if transmit.label != FlowLabel::NONE {
        assert_eq!(transmit.via, via, "through the node that the peer came through");
    }
    if transmit.flow_new {
        known.insert(tuple, transmit.label);
    }
    if transmit.label != FlowLabel::NONE {
        if !transmit.flow_end {
            assert_eq!(known.get(&tuple), Some(&transmit.label), "the flow was never announced to the node");
        }
        if transmit.flow_end && known.get(&tuple) == Some(&transmit.label) {
            known.remove(&tuple);
        }
    }
    let Some(header) = transmit.header else { return Vec::new() };
    assert_eq!((header.source_port, header.destination_port), (tuple.local.port(), tuple.remote.port()));
    let payload: Vec<u8> = transmit.payload().flatten().copied().collect();
    assert_eq!(payload.len(), transmit.payload_len);
    assert!(payload.is_empty() || transmit.segment_size > 0);
    let size =
        if whole || payload.is_empty() { payload.len().max(1) } else { usize::from(transmit.segment_size) };
    let mut packets = Vec::new();
    let count = payload.len().div_ceil(size).max(1);
    for n in 0..count {
        let chunk = &payload[n * size..payload.len().min((n + 1) * size)];
        let mut header = Repr { seq: header.seq.wrapping_add((n * size) as u32), ..header };
        if n + 1 < count {
            header.flags = Flags(header.flags.0 & !(Flags::FIN | Flags::PSH).0);
        }
        if n > 0 {
            header.flags = Flags(header.flags.0 & !Flags::CWR.0);
        }
        let mut bytes = vec![0; HEADER_LEN_MAX];
        let len = header.emit(&mut bytes).unwrap();
        assert!(whole || header.options.len() + chunk.len() <= 1460, "a packet larger than the MSS");
        bytes.truncate(len);
        bytes.extend_from_slice(chunk);
        packets.push(Packet { tuple, bytes, ecn: transmit.ecn });
    }
    packets
}

/// Byte `position` of the stream with this key.
pub fn stream_byte(key: u64, position: u64) -> u8 {
    (key ^ (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56)) as u8
}

/// The seeds to run: `CSP_SEED` replays one, `CSP_SEEDS` sets how many.
pub fn seeds(quick: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("CSP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CSP_SEEDS").unwrap_or(quick),
    }
}
