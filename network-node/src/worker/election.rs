//! The worker's part in the election of addresses' owners: worker 0 sends the node's beats through all its
//! tunnels, and takes the proxies' ballots. What is held, all workers read from [`AddressGroup::held`].

use std::collections::VecDeque;

use csp_election::{Candidate, Change, Group, GroupId, GroupState, Held};
use csp_types::{Duration, Instant, NodeId};
use csp_wire::election::{Election as Message, LEN_MAX};

use super::NetworkWorker;
use crate::links::Links;

/// Changes that wait to be logged; beyond this number the oldest are dropped.
const NOTICES_MAX: usize = 256;

/// A group of addresses that this node may hold, and where its workers read whether it does.
#[derive(Clone, Debug)]
pub struct OwnGroup {
    /// Its name, for the log.
    pub name: String,
    /// The group.
    pub group: Group,
    /// What the workers read.
    pub held: Held,
}

/// How a node is, as its control thread knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    /// All LAN ports have a link.
    pub able: bool,
    /// The node drains.
    pub draining: bool,
    /// etcd is silent.
    pub cut_off: bool,
}

/// A group as a node sees it, for people.
#[derive(Clone, Debug)]
pub struct HeldGroup {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: GroupState,
    /// How long this node has held it, if it does.
    pub held_for: Option<Duration>,
}

/// What a node holds, for people.
#[derive(Clone, Debug, Default)]
pub struct ElectionInfo {
    /// The groups.
    pub groups: Vec<HeldGroup>,
    /// Proxies whose votes count, and those that were heard lately.
    pub voters: (usize, usize),
}

/// Worker 0's candidate with its groups.
#[derive(Debug)]
pub(crate) struct Election {
    candidate: Candidate,
    groups: Vec<OwnGroup>,
    buffer: Box<[u8]>,
    /// CLOCK_BOOTTIME minus the worker's clock, in nanoseconds.
    ahead: u64,
    notices: VecDeque<(String, Change)>,
    gains: u64,
    losses: u64,
    /// A ballot has come: what is held until when has changed.
    news: bool,
}

impl Election {
    pub(crate) fn new(node: NodeId) -> Self {
        Election {
            candidate: Candidate::new(node),
            groups: Vec::new(),
            buffer: vec![0; LEN_MAX].into_boxed_slice(),
            ahead: 0,
            notices: VecDeque::new(),
            gains: 0,
            losses: 0,
            news: false,
        }
    }

    pub(crate) fn set_groups(&mut self, lan_time: Instant, groups: &[OwnGroup]) {
        for gone in self.groups.iter().filter(|had| groups.iter().all(|has| has.group.id != had.group.id)) {
            gone.held.set(None);
        }
        let candidates: Vec<Group> = groups.iter().map(|own| own.group.clone()).collect();
        self.candidate.set_groups(lan_time, &candidates);
        self.take_changes();
        self.groups = groups.to_vec();
    }

    pub(crate) fn set_condition(&mut self, lan_time: Instant, condition: &Condition) {
        self.candidate.set_condition(lan_time, condition.able, condition.draining);
        self.candidate.set_cut_off(lan_time, condition.cut_off);
    }

    pub(crate) fn set_voters(&mut self, lan_time: Instant, voters: &[NodeId]) {
        // A membership without proxies is one that etcd has lost: the votes of those that were there count.
        if !voters.is_empty() {
            self.candidate.set_voters(lan_time, voters);
        }
    }

    /// Takes a message of a proxy; `false` if it is none that a proxy may send.
    pub(crate) fn on_message(&mut self, lan_time: Instant, from: NodeId, bytes: &[u8]) -> bool {
        let Ok(Message::Ballot(ballot)) = Message::parse(bytes) else { return false };
        self.candidate.on_ballot(lan_time, from, &ballot);
        self.news = true;
        true
    }

    /// Does what is due at `now`, which is `lan_time` on the clock of the election. Returns the groups that
    /// the node holds from now on.
    pub(crate) fn turn(&mut self, now: Instant, lan_time: Instant, links: &mut Links) -> Vec<GroupId> {
        self.ahead = lan_time.as_nanos().saturating_sub(now.as_nanos());
        if self.candidate.next_timeout().is_some_and(|due| due <= lan_time) {
            self.candidate.on_timeout(lan_time);
        } else if !self.news {
            return Vec::new();
        }
        self.news = false;
        self.follow(now, lan_time, links)
    }

    /// Returns the groups that it has gained.
    fn take_changes(&mut self) -> Vec<GroupId> {
        let mut gained = Vec::new();
        while let Some(change) = self.candidate.poll_change() {
            let (Change::Gained { group, .. } | Change::Lost { group, .. }) = change;
            gained.retain(|known| *known != group);
            match change {
                Change::Gained { .. } => {
                    gained.push(group);
                    self.gains += 1;
                }
                Change::Lost { .. } => self.losses += 1,
            }
            let name = self.groups.iter().find(|own| own.group.id == group).map(|own| own.name.clone());
            if self.notices.len() == NOTICES_MAX {
                self.notices.pop_front();
            }
            self.notices.push_back((name.unwrap_or_default(), change));
        }
        gained
    }

    /// Puts changes into force, and sends the beat that is due.
    fn follow(&mut self, now: Instant, lan_time: Instant, links: &mut Links) -> Vec<GroupId> {
        let gained = self.take_changes();
        for own in &self.groups {
            own.held.set(self.candidate.holds_until(own.group.id));
        }
        while let Some(len) = self.candidate.poll_beat(lan_time, &mut self.buffer) {
            links.send_election(now, &self.buffer[..len]);
        }
        gained
    }

    /// Gives up everything for good, since the node stops.
    pub(crate) fn leave(&mut self, now: Instant, lan_time: Instant, links: &mut Links) {
        self.candidate.leave(lan_time);
        self.follow(now, lan_time, links);
    }

    /// Returns when to call [`turn`](Self::turn), on the worker's clock.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = self.candidate.next_timeout()?;
        Some(Instant::from_nanos(due.as_nanos().saturating_sub(self.ahead)))
    }

    pub(crate) fn poll_notice(&mut self) -> Option<(String, Change)> {
        self.notices.pop_front()
    }

    /// Returns how often it has gained and lost a group.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.gains, self.losses)
    }

    pub(crate) fn info(&self, lan_time: Instant) -> ElectionInfo {
        let shown = |state: GroupState| {
            let own = self.groups.iter().find(|own| own.group.id == state.group)?;
            let held_for = state.held_since.map(|since| lan_time - since);
            Some(HeldGroup { name: own.name.clone(), state, held_for })
        };
        let groups = self.candidate.groups(lan_time).filter_map(shown).collect();
        ElectionInfo { groups, voters: self.candidate.voters(lan_time) }
    }
}

impl NetworkWorker {
    /// Sets the clock of the election, CLOCK_BOOTTIME. Without it, the worker's own time is used.
    pub fn set_lan_clock(&mut self, clock: fn() -> Instant) {
        self.lan_clock = Some(clock);
    }

    /// Reads the clock by which groups are held. A node without groups needs none.
    pub(super) fn read_lan_clock(&mut self, now: Instant) {
        let clock = self.lan_clock.filter(|_| self.core.has_groups());
        self.core.set_lan_time(clock.map_or(now, |clock| clock()));
    }

    /// Takes part in the election, as far as something is due, and announces what has come of it.
    pub(super) fn take_part(&mut self, now: Instant) {
        let Some(election) = &mut self.election else { return };
        for group in election.turn(now, self.core.lan_time(), &mut self.links) {
            self.core.announce_group(now, group, &mut self.links);
        }
    }

    /// Replaces the groups that this node may hold. Their addresses and [`OwnGroup::held`] are in the rules,
    /// which all workers have by then; this call is for worker 0.
    pub fn set_groups(&mut self, now: Instant, groups: &[OwnGroup]) {
        self.read_lan_clock(now);
        if let Some(election) = &mut self.election {
            election.set_groups(self.core.lan_time(), groups);
        }
        self.count_voters();
    }

    /// Sets how the node is.
    pub fn set_condition(&mut self, now: Instant, condition: &Condition) {
        self.read_lan_clock(now);
        if let Some(election) = &mut self.election {
            election.set_condition(self.core.lan_time(), condition);
        }
    }

    pub(super) fn count_voters(&mut self) {
        if let Some(election) = &mut self.election {
            election.set_voters(self.core.lan_time(), &self.links.voters());
        }
    }

    pub(super) fn leave_election(&mut self, now: Instant) {
        self.read_lan_clock(now);
        if let Some(election) = &mut self.election {
            election.leave(now, self.core.lan_time(), &mut self.links);
            self.links.flush(now);
        }
    }

    /// Returns what this node holds, and what is known of the others; for worker 0.
    pub fn election(&self) -> ElectionInfo {
        let info = |election: &Election| election.info(self.core.lan_time());
        self.election.as_ref().map(info).unwrap_or_default()
    }

    /// Returns how often this node has gained and lost a group.
    pub fn election_counts(&self) -> (u64, u64) {
        self.election.as_ref().map_or((0, 0), Election::counts)
    }

    /// Returns the next change of what is held, with the group's name, to log.
    pub fn poll_change(&mut self) -> Option<(String, Change)> {
        self.election.as_mut()?.poll_notice()
    }
}
