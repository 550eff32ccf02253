//! The worker's part in the election of addresses' owners: worker 0 votes, every worker learns who holds what
//! and moves connections there.

use csp_election::Voter;
use csp_transport::{DeathCause, DownReason};
use csp_types::{Duration, Instant, NodeId};
use csp_wire::election::{Election as Message, LEN_MAX};

use super::ProxyWorker;

/// Most messages that wait within a turn. A network node sends a few each second.
const INBOX_MAX: usize = 64;

/// How long all tunnels of a network node are without a VI before its process counts as dead. The end of a
/// process ends its VIs at once, and one that lives connects again within milliseconds; a cut ends none
/// before the votes have run out.
const DEAD_AFTER: Duration = Duration::from_millis(100);

/// The votes of worker 0.
#[derive(Debug)]
pub(super) struct Election {
    /// `None`: another worker votes, or no network node has asked yet.
    voter: Option<Voter>,
    /// CLOCK_BOOTTIME; `None`: the time of the calls.
    clock: Option<fn() -> Instant>,
    /// How far that clock is ahead of the worker's, in nanoseconds.
    ahead: u64,
    buffer: Box<[u8]>,
    /// VIs of tunnels that have ended, and when to look for nodes that are left without.
    interruptions: u64,
    look_at: Option<Instant>,
    /// Messages of network nodes' workers that were not processed yet.
    inbox: Vec<(u32, Vec<u8>)>,
}

impl Election {
    pub(super) fn new() -> Self {
        let buffer = vec![0; LEN_MAX].into_boxed_slice();
        Election {
            voter: None,
            clock: None,
            ahead: 0,
            buffer,
            interruptions: 0,
            look_at: None,
            inbox: Vec::new(),
        }
    }

    /// Keeps a message until the worker has read what it came with.
    pub(super) fn arrived(&mut self, via: u32, message: &[u8]) {
        if self.inbox.len() < INBOX_MAX {
            self.inbox.push((via, message.to_vec()));
        }
    }

    fn time(&mut self, now: Instant) -> Instant {
        let time = self.clock.map_or(now, |clock| clock());
        self.ahead = time.as_nanos().saturating_sub(now.as_nanos());
        time
    }

    /// Returns when the voter has something to do, on the worker's clock.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let due = self.voter.as_ref()?.next_timeout();
        let due = due.map(|due| Instant::from_nanos(due.as_nanos().saturating_sub(self.ahead)));
        due.into_iter().chain(self.look_at).min()
    }
}

impl ProxyWorker {
    /// Sets the clock of the election, CLOCK_BOOTTIME. Without it, the worker's own time is used.
    pub fn set_election_clock(&mut self, clock: fn() -> Instant) {
        self.election.clock = Some(clock);
    }

    /// Processes a network node's message.
    fn on_beat(&mut self, now: Instant, via: u32, bytes: &[u8]) {
        let Some(node) = self.links.node_of(via) else { return };
        let Ok(Message::Beat(beat)) = Message::parse(bytes) else { return self.malformed += 1 };
        if self.links.holders.on_beat(now, node, &beat) {
            self.follow_holders();
        }
        if self.number == 0 {
            let time = self.election.time(now);
            self.election.voter.get_or_insert_with(|| Voter::new(time)).on_beat(time, node, &beat);
            self.send_ballots(now, time);
        }
    }

    /// Processes what has arrived, and does what is due.
    pub(super) fn take_part(&mut self, now: Instant) {
        for (via, message) in std::mem::take(&mut self.election.inbox) {
            self.on_beat(now, via, &message);
        }
        if self.election.voter.is_some() {
            self.look_for_the_dead(now);
        }
        if self.election.next_timeout().is_some_and(|due| due <= now) {
            let time = self.election.time(now);
            self.election.voter.iter_mut().for_each(|voter| voter.on_timeout(time));
            self.send_ballots(now, time);
        }
    }

    /// Processes the end of the last link of a network node. If the node's process has ended, its votes are
    /// free.
    pub(super) fn network_node_unlinked(&mut self, now: Instant, node: NodeId, reason: &DownReason) {
        self.links.holders.lost(node);
        if matches!(reason, DownReason::Closed | DownReason::Died(DeathCause::HangUp)) {
            self.free_votes(now, &[node]);
        }
    }

    /// Frees the votes of network nodes whose processes have ended.
    fn free_votes(&mut self, now: Instant, ended: &[NodeId]) {
        let time = self.election.time(now);
        let Some(voter) = &mut self.election.voter else { return };
        ended.iter().for_each(|node| voter.gone(time, *node));
        self.send_ballots(now, time);
    }

    /// Finds network nodes whose processes have ended although their tunnels wait for another VI.
    fn look_for_the_dead(&mut self, now: Instant) {
        let interruptions = self.links.interruptions();
        if std::mem::replace(&mut self.election.interruptions, interruptions) != interruptions {
            self.election.look_at = Some(now + DEAD_AFTER);
        }
        if self.election.look_at.take_if(|due| *due <= now).is_none() {
            return;
        }
        let ended = self.links.interrupted_nodes();
        ended.iter().for_each(|node| self.links.holders.lost(*node));
        self.free_votes(now, &ended);
    }

    fn send_ballots(&mut self, now: Instant, time: Instant) {
        let Election { voter, buffer, .. } = &mut self.election;
        let Some(voter) = voter else { return };
        while let Some((to, len)) = voter.poll_ballot(time, buffer) {
            self.links.send_election(now, to, self.number, &buffer[..len]);
        }
    }

    /// Moves connections to the network nodes that hold their addresses. Walks through all connections,
    /// unless no address is in a group.
    pub(super) fn follow_holders(&mut self) {
        let links = &self.links;
        if links.holders.is_empty() {
            return;
        }
        self.core.move_to_holders(|local, via| links.holders_worker(local, via));
    }
}
