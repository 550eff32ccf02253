//! A host of the LAN with ZeroMQ peers.

use std::collections::BTreeMap;

use csp_tcp::Event;
use csp_types::{Duration, FlowLabel, Instant};

use super::peer::{Parting, Peer, Stage};
use super::plan::{ChannelPlan, PeerPlan, Place};
use crate::host::LanHost;

pub(super) struct Outside {
    pub(super) lan: LanHost,
    /// The peer of each connection.
    peers: BTreeMap<FlowLabel, usize>,
}

impl Outside {
    pub(super) fn new(lan: LanHost) -> Self {
        Outside { lan, peers: BTreeMap::new() }
    }

    /// Performs what is possible; returns whether anything was done. `since`: the time since the senders'
    /// start, if that was.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        since: Option<Duration>,
        peers: &mut [Peer],
        (channels, senders): (&[ChannelPlan], &[PeerPlan]),
    ) -> bool {
        let mut any = false;
        for (at, peer) in peers.iter_mut().enumerate() {
            if self.lan.gateways() > 0 && peer.plan.place == Place::Outside && peer.connects(since) {
                let label = self.lan.connect(now, channels[peer.plan.channel].address);
                self.peers.insert(label, at);
                (peer.stage, peer.began, any) = (Stage::Open, since.unwrap_or_default(), true);
            }
        }
        any |= self.lan.receive(now);
        while let Some((label, event)) = self.lan.tcp.poll_event() {
            any = true;
            self.on_event((now, since.unwrap_or_default()), (label, event), peers, senders);
        }
        let labels: Vec<(FlowLabel, usize)> = self.peers.iter().map(|(label, at)| (*label, *at)).collect();
        for (label, at) in labels {
            any |= self.converse(now, since, label, &mut peers[at], senders);
        }
        any | self.lan.transmit(now)
    }

    fn on_event(
        &mut self,
        (now, time): (Instant, Duration),
        (label, event): (FlowLabel, Event),
        peers: &mut [Peer],
        senders: &[PeerPlan],
    ) {
        let Some(peer) = self.peers.get(&label).map(|at| &mut peers[*at]) else { return };
        let stage = match event {
            Event::Established { .. } | Event::Writable | Event::Readable | Event::Broken(_) => return,
            // The broker has ended it, or has acknowledged that the peer has.
            Event::PeerFinished | Event::Closed | Event::Reset => Stage::Ended,
            Event::Failed(reason) => Stage::Failed(format!("{reason:?}")),
        };
        self.read((now, time), label, peer, senders);
        if event == Event::PeerFinished {
            self.lan.tcp.close(now, label);
        }
        if peer.stage == Stage::Open {
            peer.stage = stage;
        }
        if event != Event::PeerFinished {
            self.peers.remove(&label);
        }
    }

    fn read(
        &mut self,
        (now, time): (Instant, Duration),
        label: FlowLabel,
        peer: &mut Peer,
        senders: &[PeerPlan],
    ) -> bool {
        let before = peer.bytes;
        self.lan.tcp.read_with(now, label, usize::MAX, |bytes| {
            peer.take(time, bytes, senders);
            bytes.len()
        });
        peer.bytes > before
    }

    /// Reads and writes until it would block.
    fn converse(
        &mut self,
        now: Instant,
        since: Option<Duration>,
        label: FlowLabel,
        peer: &mut Peer,
        senders: &[PeerPlan],
    ) -> bool {
        let time = since.unwrap_or_default();
        let mut any = peer.reads(time) && self.read((now, time), label, peer, senders);
        while peer.stage == Stage::Open {
            let output = peer.output(since);
            let taken = if output.is_empty() { 0 } else { self.lan.tcp.write(now, label, output) };
            if taken == 0 {
                break;
            }
            peer.wrote(taken);
            any = true;
        }
        let parting = peer.parts(time).filter(|_| peer.stage == Stage::Open && since.is_some());
        let Some(parting) = parting else { return any };
        // What its host has acknowledged counts as received.
        self.read((now, time), label, peer, senders);
        peer.stage = Stage::Left;
        match parting {
            Parting::Close => self.lan.tcp.close(now, label),
            Parting::Reset => {
                self.lan.tcp.abort(now, label);
                self.peers.remove(&label);
            }
        }
        true
    }

    /// Returns the number of connections.
    pub(super) fn open(&self) -> usize {
        self.peers.len()
    }

    /// Returns whether all that was sent is acknowledged.
    pub(super) fn is_quiet(&self) -> bool {
        self.peers.keys().all(|label| self.lan.tcp.info(*label).is_none_or(|info| info.send_queue == 0))
    }
}
