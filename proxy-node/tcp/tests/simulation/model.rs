//! A host with an independent TCP, written from RFC 9293 and related RFCs for clarity rather than speed, with
//! behaviours of many real stacks, good and bad. It shares only the byte formats with the engine.
//!
//! Positions count from the initial sequence number: 0 is the SYN, `n + 1` is byte `n` of the stream, the FIN
//! follows.

mod peer;
mod receiver;
mod sender;

use std::collections::{BTreeMap, VecDeque};

use csp_types::{Duration, FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr};

use crate::packet::{NOT_ECT, Packet};
use crate::random::Random;
use peer::{Peer, State};

/// Treatment of out-of-order data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OutOfOrder {
    /// It is stored (and SACKed if negotiated).
    Keep,
    /// It is discarded: the sender must go back.
    Discard,
    /// It is stored, but discarded with this probability at an arrival, SACKed or not (RFC 2018 §8).
    Renege(f64),
}

/// Behaviour of a peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Manners {
    pub mss: u16,
    pub sack: bool,
    pub timestamps: bool,
    pub window_scale: Option<u8>,
    pub ecn: bool,
    /// Receive buffer in bytes.
    pub buffer: u32,
    /// Probability that the window shrinks with an acknowledgement.
    pub shrinks: f64,
    pub out_of_order: OutOfOrder,
    /// It acknowledges after this many segments …
    pub ack_every: u32,
    /// … or this time.
    pub ack_delay: Duration,
    /// `None`: Reno; a number: a fixed number of bytes in flight.
    pub fixed_window: Option<u32>,
    /// New data is sent in segments of random sizes up to this, whatever the window.
    pub crumbs: Option<u16>,
    pub rto_min: Duration,
    pub time_wait: Duration,
    /// A bare FIN rather than one with the last data.
    pub lone_fin: bool,
}

/// Events that a peer reports to its application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event {
    Established { passive: bool },
    Readable,
    PeerFinished,
    Closed,
    Reset,
    Refused,
    TimedOut,
    DataAfterClose,
}

/// State shared by all peers of a host.
pub struct Shared {
    pub manners: Manners,
    pub random: Random,
    pub out: VecDeque<Packet>,
    pub events: VecDeque<(usize, Event)>,
    pub now: Instant,
}

impl Shared {
    /// Answers a packet that is for no connection, or acknowledges another SYN/ACK, with a RST (RFC 9293
    /// §3.10.7.1, §3.10.7.4).
    pub fn refuse(&mut self, packet: &Packet) {
        let Repr { flags, seq, ack, .. } = packet.header;
        if flags.rst() {
            return;
        }
        let tuple = packet.at_receiver();
        let (seq, ack, flags) = match flags.ack() {
            true => (ack, 0, Flags::RST),
            false => (0, seq.wrapping_add(packet.len()), Flags::RST | Flags::ACK),
        };
        let (source_port, destination_port) = (tuple.local.port(), tuple.remote.port());
        let options = Options::default();
        let header = Repr { source_port, destination_port, seq, ack, flags, window: 0, options };
        self.out.push_back(Packet {
            tuple,
            header,
            payload: Vec::new(),
            ecn: NOT_ECT,
            coalesced: 1,
            segment_size: 0,
        });
    }
}

pub struct ModelHost {
    shared: Shared,
    /// In order of creation; `None` if removed.
    peers: Vec<Option<Peer>>,
    by_tuple: BTreeMap<FourTuple, usize>,
    /// The port that accepts connections.
    listens: u16,
}

impl ModelHost {
    pub fn new(manners: Manners, listens: u16, seed: u64) -> ModelHost {
        let now = Instant::ZERO;
        let (out, events) = (VecDeque::new(), VecDeque::new());
        let shared = Shared { manners, random: Random(seed), out, events, now };
        ModelHost { shared, peers: Vec::new(), by_tuple: BTreeMap::new(), listens }
    }

    pub fn is_empty(&self) -> bool {
        self.by_tuple.is_empty()
    }

    fn add(&mut self, tuple: FourTuple, passive: bool) -> usize {
        // RFC 9293 §3.4.1: a clock of 4 µs, so that the numbers of a later connection follow those of an
        // earlier one.
        let clock = (self.shared.now.as_nanos() / 4_000) as u32;
        let mut iss = clock.wrapping_add(self.shared.random.below(1 << 16) as u32).wrapping_add(0xf000_0000);
        // RFC 9293 §3.4.3, RFC 6191: also if the earlier connection advanced faster than that clock.
        let before = self.by_tuple.get(&tuple).and_then(|&id| self.peers[id].as_ref());
        if let Some(end) = before.map(Peer::sequence_end)
            && (iss.wrapping_sub(end) as i32) <= 0
        {
            iss = end.wrapping_add(1 << 17);
        }
        let id = self.peers.len();
        self.peers.push(Some(Peer::new(id, tuple, iss, passive, &self.shared)));
        self.by_tuple.insert(tuple, id);
        id
    }

    pub fn connect(&mut self, now: Instant, tuple: FourTuple) -> Option<usize> {
        self.shared.now = now;
        if let Some(&id) = self.by_tuple.get(&tuple) {
            let reusable = self.peers[id].as_ref().is_none_or(|peer| peer.state == State::TimeWait);
            if !reusable {
                return None;
            }
        }
        let id = self.add(tuple, false);
        self.with(id, |peer, shared| peer.send_syn(shared));
        Some(id)
    }

    fn with<R>(&mut self, id: usize, f: impl FnOnce(&mut Peer, &mut Shared) -> R) -> Option<R> {
        let peer = self.peers.get_mut(id)?.as_mut()?;
        let result = f(peer, &mut self.shared);
        if peer.state == State::Gone && self.by_tuple.get(&peer.tuple) == Some(&id) {
            self.by_tuple.remove(&peer.tuple);
        }
        Some(result)
    }

    /// Runs `f` at `now`, then lets the peer send what it may.
    fn act<R>(&mut self, now: Instant, id: usize, f: impl FnOnce(&mut Peer, &mut Shared) -> R) -> Option<R> {
        self.shared.now = now;
        self.with(id, |peer, shared| {
            let result = f(peer, shared);
            peer.transmit(shared);
            result
        })
    }

    pub fn write(&mut self, now: Instant, id: usize, data: &[u8]) -> usize {
        self.act(now, id, |peer, _| peer.write(data)).unwrap_or(0)
    }

    /// Passes unread bytes to `f`, which returns how many it consumed.
    pub fn read(&mut self, now: Instant, id: usize, max: usize, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        self.act(now, id, |peer, shared| peer.read(shared, max, f)).unwrap_or(0)
    }

    pub fn shutdown(&mut self, now: Instant, id: usize) {
        self.act(now, id, |peer, _| peer.sender.fin = true);
    }

    pub fn close(&mut self, now: Instant, id: usize) {
        self.act(now, id, |peer, shared| peer.close(shared));
    }

    pub fn abort(&mut self, now: Instant, id: usize) {
        self.act(now, id, |peer, shared| peer.abort(shared));
    }

    pub fn on_packet(&mut self, now: Instant, packet: &Packet) {
        self.shared.now = now;
        let tuple = packet.at_receiver();
        let flags = packet.header.flags;
        let opens = flags.syn() && !flags.ack() && !flags.rst();
        let mut id = self.by_tuple.get(&tuple).copied();
        if let Some(old) = id
            && opens
            && self.peers[old].as_ref().is_some_and(|peer| peer.gives_way_to(packet))
        {
            id = None; // RFC 9293 §3.6.1, RFC 6191
        }
        match id {
            Some(id) => {
                self.act(now, id, |peer, shared| peer.on_packet(shared, packet));
            }
            None if opens && tuple.local.port() == self.listens => {
                let id = self.add(tuple, true);
                self.with(id, |peer, shared| peer.accept(shared, packet));
            }
            None => self.shared.refuse(packet),
        }
    }

    /// Processes an ICMP error: packets of `mtu` bytes are the largest that fit.
    pub fn on_too_big(&mut self, now: Instant, tuple: &FourTuple, mtu: usize) {
        let Some(&id) = self.by_tuple.get(tuple) else { return };
        self.act(now, id, |peer, shared| peer.on_too_big(shared, mtu));
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.by_tuple.values().filter_map(|&id| self.peers[id].as_ref()?.deadline()).min()
    }

    pub fn on_timeout(&mut self, now: Instant) {
        let all: Vec<usize> = self.by_tuple.values().copied().collect();
        for id in all {
            self.act(now, id, |peer, shared| peer.on_timeout(shared));
        }
    }

    pub fn poll_transmit(&mut self) -> Option<Packet> {
        self.shared.out.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<(usize, Event)> {
        self.shared.events.pop_front()
    }

    /// The addresses of a peer.
    pub fn tuple(&self, id: usize) -> FourTuple {
        self.peers[id].as_ref().expect("peers are kept").tuple
    }

    /// One line for each live peer.
    pub fn describe(&self) -> Vec<String> {
        self.by_tuple.values().filter_map(|&id| self.peers[id].as_ref()).map(Peer::describe).collect()
    }
}
