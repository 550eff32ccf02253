//! A host on the LAN with a TCP engine of its own: how it finds the network nodes and exchanges frames with
//! them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use csp_lan::{Frame, LanPort};
use csp_tcp::{Arrival, EcnMode, Stack, StackConfig};
use csp_types::{Duration, FlowLabel, FourTuple, Instant, MacAddr};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::{Ecn, arp};

use crate::frames;

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

/// The router in front of a host.
#[derive(Clone, Copy)]
pub(crate) struct Router {
    /// The largest packet that it forwards.
    pub mtu: u16,
    /// It marks one in this number of ECN-capable packets of each direction; 0: none.
    pub marks: u32,
}

/// Creates the TCP engine of a host. `marks`: routers on its path mark packets, and it proposes ECN.
pub(crate) fn host_tcp(seed: u64, marks: u32) -> Stack {
    Stack::new(StackConfig {
        connections: 512,
        half_open: 16,
        time_wait_entries: 1024,
        blocks: 2048,
        block_len: 16 * 1024,
        range_sets: 512,
        isn_secret: [seed as u8; 16],
        ecn: if marks > 0 { EcnMode::Active } else { EcnMode::Passive },
        time_wait: Duration::from_secs(2),
        fin_wait_2: Duration::from_secs(30),
        keepalive_idle: Some(Duration::from_secs(5)),
        keepalive_interval: Duration::from_secs(1),
        keepalive_probes: 8,
        ..StackConfig::default()
    })
}

/// A host.
pub(crate) struct LanHost {
    address: Ipv4Addr,
    port: LanPort,
    path_mtu: u16,
    marker: Marker,
    /// The network nodes that answered for the service; connections are distributed over them, as by a
    /// router.
    gateways: Vec<MacAddr>,
    /// An address that one network node at a time answers for: the sender of the last ARP packet in its name
    /// is the only gateway (RFC 826).
    followed: Option<Ipv4Addr>,
    /// The port on which it serves, if it does.
    server_port: Option<u16>,
    /// The network node from which a connection to that port last received a segment.
    paths: BTreeMap<SocketAddr, MacAddr>,
    pub(crate) tcp: Stack,
    next_port: u16,
}

impl LanHost {
    pub(crate) fn new(
        address: Ipv4Addr,
        port: LanPort,
        router: Router,
        tcp: Stack,
        server_port: Option<u16>,
    ) -> Self {
        LanHost {
            address,
            port,
            path_mtu: router.mtu,
            marker: Marker { every: router.marks, count: 0 },
            gateways: Vec::new(),
            followed: None,
            server_port,
            paths: BTreeMap::new(),
            tcp,
            next_port: 40_000,
        }
    }

    /// Sends everything to the network node that answers for `service`, from its first answer on.
    pub(crate) fn follow(&mut self, service: Ipv4Addr) {
        self.followed = Some(service);
    }

    /// Requests the MAC address of `service`; until the answer arrives no connection can be opened.
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

    /// Opens a connection.
    pub(crate) fn connect(&mut self, now: Instant, service: SocketAddr) -> FlowLabel {
        self.next_port += 1;
        let tuple = FourTuple { local: (self.address, self.next_port).into(), remote: service };
        self.tcp.connect(now, tuple, 0, 0).expect("the host's table is larger than its load")
    }

    /// Receives frames and runs timers that are due; returns whether there was anything to do.
    pub(crate) fn receive(&mut self, now: Instant) -> bool {
        let mut arrived: Vec<Vec<u8>> = Vec::new();
        self.port.receiver.receive(&mut |frame: Frame<'_>| arrived.push(frame.bytes.to_vec()));
        for frame in &arrived {
            self.on_frame(now, frame);
        }
        let due = self.tcp.next_timeout().is_some_and(|t| t <= now);
        if due {
            self.tcp.on_timeout(now);
        }
        due || !arrived.is_empty()
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
                if Some(tuple.local.port()) == self.server_port {
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
        if self.followed == Some(message.sender_ip) {
            self.gateways = vec![message.sender_mac];
        }
        if message.operation == arp::Operation::Reply {
            if self.followed.is_none() && !self.gateways.contains(&message.sender_mac) {
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

    /// Sends what the engine has to send; returns whether there was anything.
    pub(crate) fn transmit(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(transmit) = self.tcp.poll_transmit(now) {
            any = true;
            let FourTuple { local, remote } = transmit.tuple;
            let is_served = Some(local.port()) == self.server_port;
            let spread = self.gateways.get(usize::from(local.port()) % self.gateways.len().max(1));
            let gateway = self.paths.get(&remote).filter(|_| is_served).or(spread);
            if let Some(gateway) = gateway.copied() {
                let ecn = self.marker.pass(Ecn::from_bits(transmit.ecn));
                frames::send_segment(&mut self.port, gateway, &transmit, ecn);
            }
        }
        self.port.transmitter.flush();
        any
    }
}
