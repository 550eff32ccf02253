//! A program of the cluster with ZeroMQ peers: they reach the broker by CONNECT over the program's channel.

use std::collections::BTreeMap;

use csp_app::{AppError, AppSide, FlowId};
use csp_types::{Duration, Instant};

use super::peer::{Parting, Peer, Stage};
use super::plan::{ChannelPlan, PeerPlan};

const CHUNK: usize = 8 * 1024;

pub(super) struct Program {
    number: usize,
    side: AppSide,
    /// The peer of each connection.
    peers: BTreeMap<FlowId, usize>,
    /// While set, it does nothing at all.
    pub(super) stopped: bool,
}

impl Program {
    pub(super) fn new(number: usize, side: AppSide) -> Self {
        Program { number, side, peers: BTreeMap::new(), stopped: false }
    }

    /// Performs what is possible; returns whether anything was done. `now` is the program's clock; `since`:
    /// the time since the senders' start, if that was.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        since: Option<Duration>,
        peers: &mut [Peer],
        (channels, senders): (&[ChannelPlan], &[PeerPlan]),
    ) -> bool {
        if self.stopped {
            return false;
        }
        let mut any = self.side.progress(now, 1);
        for (at, peer) in peers.iter_mut().enumerate() {
            let is_here = peer.is_inside(self.number) && (since.is_some() || self.is_up());
            if is_here && peer.connects(since) {
                any = true;
                (peer.stage, peer.began) = (Stage::Open, since.unwrap_or_default());
                match self.side.connect(now, channels[peer.plan.channel].address, None) {
                    Ok(id) => drop(self.peers.insert(id, at)),
                    Err(error) => peer.stage = Stage::Failed(error.to_string()),
                }
            }
        }
        while self.side.poll_ready().is_some() {
            any = true;
        }
        let ids: Vec<(FlowId, usize)> = self.peers.iter().map(|(id, at)| (*id, *at)).collect();
        for (id, at) in ids {
            any |= self.converse(now, since, id, &mut peers[at], senders);
        }
        any
    }

    /// Reads and writes until it would block, and ends what is over.
    fn converse(
        &mut self,
        now: Instant,
        since: Option<Duration>,
        id: FlowId,
        peer: &mut Peer,
        senders: &[PeerPlan],
    ) -> bool {
        let (time, before) = (since.unwrap_or_default(), peer.bytes);
        let parting = peer.parts(time).filter(|_| since.is_some());
        let mut ended = None;
        if peer.reads(time) || parting.is_some() {
            ended = self.read((now, time), id, peer, senders);
        }
        while ended.is_none() && parting.is_none() {
            let output = peer.output(since);
            if output.is_empty() {
                break;
            }
            match self.side.write(now, id, &[output]) {
                Ok(len) => peer.wrote(len),
                Err(AppError::WouldBlock) => break,
                Err(error) => ended = Some(Stage::Failed(error.to_string())),
            }
        }
        let reset = parting == Some(Parting::Reset);
        if let Some(stage) = ended.or(parting.map(|_| Stage::Left)) {
            peer.stage = stage;
            self.peers.remove(&id);
            let _ = self.side.close(now, id, reset); // a broken flow is closed like any other
            return true;
        }
        peer.bytes > before
    }

    /// Reads until it would block; returns how the connection ended, if it has.
    fn read(
        &mut self,
        (now, time): (Instant, Duration),
        id: FlowId,
        peer: &mut Peer,
        senders: &[PeerPlan],
    ) -> Option<Stage> {
        let mut chunk = [0; CHUNK];
        let chunk = &mut chunk[..512 + peer.number as usize * 997 % (CHUNK - 512)];
        loop {
            match self.side.read(now, id, chunk, false) {
                Ok(0) => return Some(Stage::Ended),
                Ok(len) => peer.take(time, &chunk[..len], senders),
                Err(AppError::WouldBlock) => return None,
                Err(error) => return Some(Stage::Failed(error.to_string())),
            }
        }
    }

    /// Returns when it is to run again.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.side.next_timeout().filter(|_| !self.stopped)
    }

    /// Returns the number of connections.
    pub(super) fn open(&self) -> usize {
        self.side.flow_count()
    }

    /// Returns whether it has a channel to the proxy.
    pub(super) fn is_up(&self) -> bool {
        self.side.channels_up() == 1
    }

    /// Returns the library's side.
    pub(super) fn side(&self) -> &AppSide {
        &self.side
    }
}
