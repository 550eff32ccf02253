//! A client host with many connections: each sends a request and expects the same bytes and the end of the
//! stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use csp_lan::{Frame, LanPort};
use csp_tcp::{Arrival, Event, Stack, StackConfig};
use csp_types::{Duration, FlowLabel, FourTuple, Instant, MacAddr};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::{Ecn, arp};

use super::scenario::Visit;
use crate::frames;

/// Length of a request and of its response, in bytes.
pub(crate) const REQUEST_LEN: usize = 8;
const FIRST_PORT: u16 = 10_000;

/// How a connection ended for its client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It received its response and the end of the stream.
    Served,
    /// It aborted the connection.
    Left,
    /// The stream ended after this number of bytes.
    Short(usize),
    /// It received bytes of another connection.
    Wrong,
    /// The connection failed.
    Failed(String),
}

/// A client host.
pub(crate) struct Crowd {
    address: Ipv4Addr,
    service: SocketAddr,
    port: LanPort,
    gateway: Option<MacAddr>,
    tcp: Stack,
    /// Connections to be opened, by time; the number identifies the connection.
    starts: BTreeSet<(Instant, usize)>,
    leaves: BTreeSet<(Instant, usize)>,
    labels: BTreeMap<FlowLabel, usize>,
    answers: Vec<Vec<u8>>,
    /// How each connection ended, and when.
    pub fates: Vec<Option<(Instant, Fate)>>,
}

impl Crowd {
    pub(crate) fn new(address: Ipv4Addr, service: SocketAddr, port: LanPort, seed: u64) -> Self {
        let config = StackConfig {
            connections: 1024,
            half_open: 16,
            time_wait_entries: 1024,
            blocks: 8192,
            block_len: 2048,
            range_sets: 512,
            isn_secret: [seed as u8; 16],
            time_wait: Duration::from_secs(2),
            keepalive_idle: None,
            ..StackConfig::default()
        };
        Crowd {
            address,
            service,
            port,
            gateway: None,
            tcp: Stack::new(config),
            starts: BTreeSet::new(),
            leaves: BTreeSet::new(),
            labels: BTreeMap::new(),
            answers: Vec::new(),
            fates: Vec::new(),
        }
    }

    /// Requests the network node's MAC address.
    pub(crate) fn resolve(&mut self) {
        let SocketAddr::V4(service) = self.service else { return };
        let request = arp::Repr {
            operation: arp::Operation::Request,
            sender_mac: self.port.info.mac,
            sender_ip: self.address,
            target_mac: MacAddr::default(),
            target_ip: *service.ip(),
        };
        frames::send_arp(&mut self.port, MacAddr::BROADCAST, request);
    }

    pub(crate) fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }

    /// Schedules connections, relative to `began`.
    pub(crate) fn plan(&mut self, began: Instant, visits: &[Visit]) {
        for (number, visit) in visits.iter().enumerate() {
            self.starts.insert((began + visit.at, number));
            self.leaves.extend(visit.leaves.map(|at| (began + at, number)));
        }
        self.answers = vec![Vec::new(); visits.len()];
        self.fates = vec![None; visits.len()];
    }

    /// Returns the number of the connection from a client's address.
    pub(crate) fn number_of(remote: SocketAddr) -> usize {
        usize::from(remote.port() - FIRST_PORT)
    }

    fn tuple(&self, number: usize) -> FourTuple {
        FourTuple { local: (self.address, FIRST_PORT + number as u16).into(), remote: self.service }
    }

    fn request(number: usize) -> [u8; REQUEST_LEN] {
        (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    }

    /// Receives frames, opens and aborts connections, runs TCP, sends frames; returns whether anything was
    /// done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let mut arrived: Vec<Vec<u8>> = Vec::new();
        self.port.receiver.receive(&mut |frame: Frame<'_>| arrived.push(frame.bytes.to_vec()));
        arrived.iter().for_each(|frame| self.on_frame(now, frame));
        let mut any = !arrived.is_empty();
        if self.tcp.next_timeout().is_some_and(|at| at <= now) {
            self.tcp.on_timeout(now);
            any = true;
        }
        while let Some((_, number)) = pop_due(&mut self.starts, now) {
            any = true;
            let label = self.tcp.connect(now, self.tuple(number), 0, 0).expect("the table has room for all");
            self.labels.insert(label, number);
        }
        while let Some((_, number)) = pop_due(&mut self.leaves, now) {
            let label = self.tcp.label_of(&self.tuple(number));
            if let Some(label) = label.filter(|_| self.fates[number].is_none()) {
                any = true;
                self.tcp.abort(now, label);
                self.labels.remove(&label);
                self.ends(now, number, Fate::Left);
            }
        }
        while let Some((label, event)) = self.tcp.poll_event() {
            any = true;
            self.on_event(now, label, event);
        }
        any | self.transmit(now)
    }

    fn on_frame(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(frame) = ethernet::Frame::parse(bytes) else { return };
        match frame.ether_type() {
            Some(EtherType::Arp) => self.on_arp(frame.payload()),
            Some(EtherType::Ipv4) => {
                let Some((tuple, segment)) = frames::segment_in(frame.payload(), self.address) else {
                    return;
                };
                let arrival = Arrival {
                    label: FlowLabel::NONE,
                    tuple: Some(tuple),
                    ingress: now,
                    via: 0,
                    ecn: Ecn::NotEct.bits(),
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
            self.gateway = Some(message.sender_mac);
        } else if message.target_ip == self.address {
            let answer = arp::Repr {
                operation: arp::Operation::Reply,
                sender_mac: self.port.info.mac,
                sender_ip: self.address,
                target_mac: message.sender_mac,
                target_ip: message.sender_ip,
            };
            frames::send_arp(&mut self.port, message.sender_mac, answer);
        }
    }

    fn on_event(&mut self, now: Instant, label: FlowLabel, event: Event) {
        let Some(&number) = self.labels.get(&label) else { return };
        match event {
            Event::Established { .. } => {
                let written = self.tcp.write(now, label, &Self::request(number));
                assert_eq!(written, REQUEST_LEN, "a new connection has room for a request");
            }
            Event::Writable => {}
            Event::Readable | Event::Broken(_) => self.read(now, label, number),
            Event::PeerFinished => {
                self.read(now, label, number);
                let answer = &self.answers[number];
                let fate = match answer.len() {
                    _ if *answer == Self::request(number) => Fate::Served,
                    len if Self::request(number).starts_with(answer) => Fate::Short(len),
                    _ => Fate::Wrong,
                };
                self.ends(now, number, fate);
                self.tcp.close(now, label);
            }
            Event::Closed | Event::Reset => drop(self.labels.remove(&label)),
            Event::Failed(reason) => {
                self.labels.remove(&label);
                self.ends(now, number, Fate::Failed(format!("{reason:?}")));
            }
        }
    }

    fn read(&mut self, now: Instant, label: FlowLabel, number: usize) {
        let answer = &mut self.answers[number];
        self.tcp.read_with(now, label, usize::MAX, |bytes| {
            answer.extend_from_slice(bytes);
            bytes.len()
        });
    }

    fn ends(&mut self, now: Instant, number: usize, fate: Fate) {
        self.fates[number].get_or_insert((now, fate));
    }

    fn transmit(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(transmit) = self.tcp.poll_transmit(now) {
            any = true;
            if let Some(gateway) = self.gateway {
                frames::send_segment(&mut self.port, gateway, &transmit, Ecn::NotEct);
            }
        }
        self.port.transmitter.flush();
        any
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let plans = [self.starts.first(), self.leaves.first()].into_iter().flatten().map(|(at, _)| *at);
        self.tcp.next_timeout().into_iter().chain(plans).min()
    }

    /// Returns whether every connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.fates.iter().all(Option::is_some)
    }
}

fn pop_due(times: &mut BTreeSet<(Instant, usize)>, now: Instant) -> Option<(Instant, usize)> {
    times.first().filter(|(at, _)| *at <= now)?;
    times.pop_first()
}
