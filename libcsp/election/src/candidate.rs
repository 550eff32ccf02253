//! A network node's part: it asks for groups that nobody holds, and gives them up.

use std::collections::VecDeque;

use csp_types::{Duration, Instant, NodeId};
use csp_wire::election::{Ballot, Beat, Condition, GROUPS_MAX, GroupBallot, GroupBeat, Stage};

use crate::order::Rank;
use crate::view::VoterView;
use crate::{BEAT_EVERY, Group, GroupId, HELD_FOR, hash};

/// How old a voter's last ballot may be, to count.
const FRESH_FOR: Duration = Duration::from_millis(800);
/// How long a node waits for votes before it gives up the attempt.
const ASK_FOR: Duration = Duration::from_millis(250);
/// How long a node waits for each better one that would take the group, too.
const WAIT_FOR_BETTER: Duration = Duration::from_millis(120);
/// How long a node pauses after an attempt without success, and after it yielded.
const PAUSE: Duration = Duration::from_millis(150);
const PAUSE_AFTER_YIELD: Duration = Duration::from_millis(500);
/// How long a node keeps a group at least before it gives it to one that is preferred: two nodes whose
/// policies prefer different ones must not pass it to and fro.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How long a voter that was added after a node took a group, and was not heard yet, does not raise the
/// number of votes that keep the group.
const NEW_FOR: Duration = Duration::from_secs(10);

/// Why a node does not hold a group any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostBy {
    /// Too few proxies have renewed their votes in time.
    Time,
    /// It gave the group to this node, or to whoever takes it.
    Yielding(Option<NodeId>),
    /// The group is not in the policy any more, or not this node's.
    Policy,
}

/// A change of what a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It holds the group.
    Gained {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: u64,
    },
    /// It does not hold the group any more.
    Lost {
        /// The group.
        group: GroupId,
        /// Why.
        by: LostBy,
    },
}

/// A group's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupState {
    /// The group.
    pub group: GroupId,
    /// The highest epoch that it has heard of.
    pub epoch: u64,
    /// The node that most of the heard voters vote for; `None` if they vote for none.
    pub holder: Option<NodeId>,
    /// How many voters have given the holder their votes.
    pub votes: usize,
    /// Since when it is this node; `None` if it is not.
    pub held_since: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It does not ask before a time, and asks at its turn if nobody else has by then.
    Standing {
        not_before: Instant,
        vacant_since: Option<Instant>,
        turn: Option<Instant>,
    },
    Asking {
        since: Instant,
    },
    Holding {
        since: Instant,
    },
}

#[derive(Debug)]
struct Race {
    group: Group,
    phase: Phase,
    /// Its own attempt's epoch, and the highest that it has heard of.
    epoch: u64,
    seen: u64,
    /// The newest beat of this attempt that each voter has answered with its vote.
    votes: Vec<(NodeId, Instant)>,
    /// Until when these votes keep the group.
    until: Instant,
    /// The next beat says that it yields, and to whom.
    yields: Option<Option<NodeId>>,
}

impl Race {
    fn held_since(&self) -> Option<Instant> {
        if let Phase::Holding { since } = self.phase { Some(since) } else { None }
    }
}

/// A network node's candidacy for its groups. After each call that takes `now`, send what
/// [`poll_beat`](Self::poll_beat) gives, and take its [`poll_change`](Self::poll_change)s.
#[derive(Debug)]
pub struct Candidate {
    me: NodeId,
    able: bool,
    draining: bool,
    leaving: bool,
    /// It does not know who else is there: etcd is silent.
    cut_off: bool,
    well_since: Option<Instant>,
    voters: Vec<VoterView>,
    races: Vec<Race>,
    changes: VecDeque<Change>,
    next_beat: Instant,
    due: bool,
}

impl Candidate {
    /// Creates the candidate of a node without groups.
    pub fn new(me: NodeId) -> Self {
        Candidate {
            me,
            able: true,
            draining: false,
            leaving: false,
            cut_off: false,
            well_since: None,
            voters: Vec::new(),
            races: Vec::new(),
            changes: VecDeque::new(),
            next_beat: Instant::ZERO,
            due: false,
        }
    }

    /// Replaces the groups that it may hold; those beyond [`GROUPS_MAX`] are ignored.
    pub fn set_groups(&mut self, now: Instant, groups: &[Group]) {
        let Candidate { races, changes, .. } = self;
        let had = !races.is_empty();
        races.retain(|race| {
            let stays = groups.iter().any(|group| group.id == race.group.id);
            if !stays && matches!(race.phase, Phase::Holding { .. }) {
                changes.push_back(Change::Lost { group: race.group.id, by: LostBy::Policy });
            }
            stays
        });
        for group in groups.iter().take(GROUPS_MAX) {
            match races.iter_mut().find(|race| race.group.id == group.id) {
                Some(race) => race.group = group.clone(),
                None => races.push(Race {
                    group: group.clone(),
                    phase: standing(now),
                    epoch: 0,
                    seen: 0,
                    votes: Vec::new(),
                    until: Instant::ZERO,
                    yields: None,
                }),
            }
        }
        // A last beat without groups frees the votes.
        self.due |= had || !races.is_empty();
    }

    /// Replaces the proxies whose votes count.
    pub fn set_voters(&mut self, now: Instant, voters: &[NodeId]) {
        self.voters.retain(|known| voters.contains(&known.node));
        for node in voters {
            if self.voters.iter().all(|known| known.node != *node) {
                let (nodes, groups) = (Vec::new(), Vec::new());
                self.voters.push(VoterView { node: *node, added: now, heard: None, nodes, groups });
            }
        }
        self.races.iter_mut().for_each(|race| race.votes.retain(|(voter, _)| voters.contains(voter)));
        self.evaluate(now);
    }

    /// Sets whether its LAN ports can transmit, and whether it drains.
    pub fn set_condition(&mut self, now: Instant, able: bool, draining: bool) {
        if (self.able, self.draining) != (able, draining) {
            (self.able, self.draining, self.well_since) = (able, draining, None);
            self.due = true;
            self.evaluate(now);
        }
    }

    /// Sets whether etcd is silent. Then a group is only kept with a majority: on the other side of a cut,
    /// the proxies of this side may have been given up.
    pub fn set_cut_off(&mut self, now: Instant, cut_off: bool) {
        self.cut_off = cut_off;
        self.evaluate(now);
    }

    /// Gives up all groups for good, since the node stops.
    pub fn leave(&mut self, now: Instant) {
        (self.leaving, self.draining, self.due) = (true, true, true);
        for at in 0..self.races.len() {
            if matches!(self.races[at].phase, Phase::Holding { .. }) {
                let successor = self.best_other(now, at).map(|(node, ..)| node);
                self.give(now, at, successor);
            }
        }
    }

    /// Takes a proxy's ballot.
    pub fn on_ballot(&mut self, now: Instant, from: NodeId, ballot: &Ballot<'_>) {
        let Candidate { me, voters, races, .. } = self;
        let Some(voter) = voters.iter_mut().find(|voter| voter.node == from) else { return };
        voter.heard = Some(now);
        voter.nodes.clear();
        voter.nodes.extend(ballot.nodes());
        voter.groups.clear();
        voter.groups.extend(ballot.groups());
        let answers = Instant::from_nanos(ballot.answers);
        for said in &voter.groups {
            let Some(race) = races.iter_mut().find(|race| race.group.id.0 == said.group) else { continue };
            race.seen = race.seen.max(said.epoch);
            let is_mine = voter.holder(said) == Some(*me) && said.epoch == race.epoch;
            let counts =
                !matches!(race.phase, Phase::Standing { .. }) && ballot.answers != 0 && answers <= now;
            if !is_mine || !counts {
                continue;
            }
            match race.votes.iter_mut().find(|(node, _)| *node == from) {
                Some((_, newest)) => *newest = answers.max(*newest),
                None => race.votes.push((from, answers)),
            }
        }
        self.evaluate(now);
    }

    /// Does what is due at `now`.
    pub fn on_timeout(&mut self, now: Instant) {
        self.evaluate(now);
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout); `None` if it has no groups.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.races.is_empty() {
            return self.due.then_some(Instant::ZERO);
        }
        let of_race = |race: &Race| match race.phase {
            Phase::Standing { turn, .. } => turn,
            Phase::Asking { since } => Some(since + ASK_FOR),
            Phase::Holding { .. } => Some(race.until),
        };
        let first = if self.due { Instant::ZERO } else { self.next_beat };
        self.races.iter().filter_map(of_race).chain([first]).min()
    }

    /// Writes the beat that is due into `out`, of [`csp_wire::election::LEN_MAX`] bytes, and returns its
    /// length: it goes to every worker of every proxy.
    pub fn poll_beat(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if !self.due && (now < self.next_beat || self.races.is_empty()) {
            return None;
        }
        (self.due, self.next_beat) = (false, now + BEAT_EVERY);
        let well = self.well_since.map_or(Duration::ZERO, |since| now - since);
        let well_ms = u32::try_from(well.as_millis()).unwrap_or(u32::MAX);
        let condition = Condition { able: self.able, draining: self.draining, well_ms };
        let groups = self.races.iter_mut().map(|race| {
            let (stage, epoch, successor) = match (race.yields.take(), race.phase) {
                (Some(to), _) => (Stage::Yields, race.epoch, to),
                (_, Phase::Standing { .. }) => (Stage::Stands, race.seen, None),
                (_, Phase::Asking { .. }) => (Stage::Asks, race.epoch, None),
                (_, Phase::Holding { .. }) => (Stage::Holds, race.epoch, None),
            };
            GroupBeat { group: race.group.id.0, epoch, stage, successor }
        });
        Beat::emit(condition, now.as_nanos(), groups, out).ok()
    }

    /// Returns the next change of what it holds.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns until when it holds a group; `None` if it does not.
    pub fn holds_until(&self, group: GroupId) -> Option<Instant> {
        let race = self.races.iter().find(|race| race.group.id == group)?;
        matches!(race.phase, Phase::Holding { .. }).then_some(race.until)
    }

    /// Returns the groups that it may hold.
    pub fn groups(&self, now: Instant) -> impl Iterator<Item = GroupState> + '_ {
        self.races.iter().map(move |race| {
            let said = self.said(now, race.group.id).map(|(voter, said)| voter.holder(said));
            let holders: Vec<NodeId> = said.flatten().collect();
            let count = |node: &NodeId| holders.iter().filter(|holder| *holder == node).count();
            let holder = holders.iter().copied().max_by_key(count);
            let (votes, held_since) = (holder.as_ref().map_or(0, count), race.held_since());
            GroupState { group: race.group.id, epoch: race.seen.max(race.epoch), holder, votes, held_since }
        })
    }

    /// Returns the number of proxies whose votes count, and of those that were heard lately.
    pub fn voters(&self, now: Instant) -> (usize, usize) {
        (self.voters.len(), self.fresh(now).count())
    }

    /// Votes that are needed to take a group: a majority.
    fn to_take(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Votes that are needed to keep it: so many that nobody else can have a majority.
    /// `since`: when the node took it. The voters of that time count, heard or not: their majority can elect
    /// another node.
    fn to_keep(&self, now: Instant, since: Instant) -> usize {
        let counts = |voter: &&VoterView| {
            voter.heard.is_some() || voter.added <= since || voter.added + NEW_FOR <= now
        };
        let known = self.voters.iter().filter(counts).count();
        let enough = if self.cut_off { known / 2 + 1 } else { known.div_ceil(2) };
        enough.max(1)
    }

    /// Determines until when votes keep groups.
    fn count_votes(&mut self, now: Instant) {
        for at in 0..self.races.len() {
            let to_keep = self.to_keep(now, self.races[at].held_since().unwrap_or(now));
            let race = &mut self.races[at];
            race.votes.sort_unstable_by_key(|(_, sent)| std::cmp::Reverse(*sent));
            race.until = race.votes.get(to_keep - 1).map_or(Instant::ZERO, |(_, sent)| *sent + HELD_FOR);
        }
    }

    fn fresh(&self, now: Instant) -> impl Iterator<Item = &VoterView> {
        self.voters.iter().filter(move |voter| voter.heard.is_some_and(|heard| heard + FRESH_FOR > now))
    }

    /// Returns what voters said lately of a group.
    fn said(&self, now: Instant, group: GroupId) -> impl Iterator<Item = (&VoterView, &GroupBallot)> {
        self.fresh(now)
            .filter_map(move |voter| Some((voter, voter.groups.iter().find(|said| said.group == group.0)?)))
    }

    fn own_condition(&self) -> Condition {
        Condition { able: self.able, draining: self.draining, well_ms: 0 }
    }

    /// Returns the other nodes that would take a group, with the number of voters that hear them.
    fn others(&self, now: Instant, group: GroupId) -> Vec<(NodeId, Condition, usize)> {
        let mut others: Vec<(NodeId, Condition, usize)> = Vec::new();
        for (voter, said) in self.said(now, group) {
            let stands = |at: usize| said.candidates >> at & 1 == 1;
            for (_, (node, condition)) in voter.nodes.iter().enumerate().filter(|(at, _)| stands(*at)) {
                match others.iter_mut().find(|(known, ..)| known == node) {
                    _ if *node == self.me => {}
                    Some((_, _, count)) => *count += 1,
                    None => others.push((*node, *condition, 1)),
                }
            }
        }
        others
    }

    /// Returns how many others are better for a group than this node.
    fn betters(&self, now: Instant, at: usize) -> usize {
        let group = &self.races[at].group;
        let mine = Rank::of(group, self.me, self.own_condition());
        let others = self.others(now, group.id);
        others.iter().filter(|(node, condition, _)| Rank::of(group, *node, *condition) < mine).count()
    }

    /// Returns the best other node that a majority of voters hears.
    fn best_other(&self, now: Instant, at: usize) -> Option<(NodeId, Condition, Rank)> {
        let group = &self.races[at].group;
        let heard = self.others(now, group.id).into_iter().filter(|(.., count)| *count >= self.to_take());
        let ranked = heard.map(|(node, condition, _)| (node, condition, Rank::of(group, node, condition)));
        ranked.min_by_key(|(.., rank)| *rank)
    }

    fn evaluate(&mut self, now: Instant) {
        self.count_votes(now);
        let heard = self.fresh(now).count() >= self.to_take();
        if !heard || !self.able || self.draining {
            self.well_since = None;
        } else {
            self.well_since.get_or_insert(now);
        }
        for at in 0..self.races.len() {
            match self.races[at].phase {
                Phase::Standing { not_before, vacant_since, .. } => {
                    self.stand(now, at, not_before, vacant_since);
                }
                Phase::Asking { since } => self.ask(now, at, since),
                Phase::Holding { since } => self.hold(now, at, since),
            }
        }
    }

    /// Asks for a group that nobody holds, once its betters had their time.
    fn stand(&mut self, now: Instant, at: usize, not_before: Instant, vacant_since: Option<Instant>) {
        let (mut free, mut named) = (0, 0);
        for (voter, said) in self.said(now, self.races[at].group.id) {
            let is_me = |node: NodeId| node == self.me;
            let successor = voter.node_at(said.successor);
            free += usize::from(
                voter.holder(said).is_none_or(is_me)
                    && said.successor.is_none_or(|_| successor == Some(self.me)),
            );
            named += usize::from(successor == Some(self.me));
        }
        let (to_take, betters) = (self.to_take(), self.betters(now, at));
        let race = &mut self.races[at];
        if free < to_take || self.leaving {
            race.phase = standing(not_before);
            return;
        }
        let since = vacant_since.unwrap_or(now);
        let turn = not_before.max(since + WAIT_FOR_BETTER * betters as u32);
        race.phase = Phase::Standing { not_before, vacant_since: Some(since), turn: Some(turn) };
        if named >= to_take || now >= turn {
            race.epoch = race.seen.saturating_add(1);
            race.seen = race.epoch;
            race.votes.clear();
            race.phase = Phase::Asking { since: now };
            self.due = true;
        }
    }

    fn ask(&mut self, now: Instant, at: usize, since: Instant) {
        let to_take = self.to_take();
        let race = &self.races[at];
        let votes = race.votes.iter().filter(|(_, sent)| *sent + HELD_FOR > now).count();
        // Others hold so many votes that there is no majority left.
        let taken = self.said(now, race.group.id).filter(|(voter, said)| {
            voter.holder(said).is_some_and(|holder| holder != self.me) && said.epoch >= race.epoch
        });
        let lost = taken.count() > self.voters.len() - to_take.min(self.voters.len());
        let betters = self.betters(now, at);
        let race = &mut self.races[at];
        if votes >= to_take {
            race.phase = Phase::Holding { since: now };
            self.changes.push_back(Change::Gained { group: race.group.id, epoch: race.epoch });
            self.due = true;
        } else if lost || now >= since + ASK_FOR {
            let jitter = hash(self.me.as_str().as_bytes(), race.epoch) % 50;
            let pause = PAUSE + WAIT_FOR_BETTER * betters as u32 + Duration::from_millis(jitter);
            race.phase = standing(now + pause);
            self.due = true;
        }
    }

    fn hold(&mut self, now: Instant, at: usize, since: Instant) {
        let race = &self.races[at];
        if race.until <= now {
            return self.lose(now, at, LostBy::Time);
        }
        let Some((node, condition, theirs)) = self.best_other(now, at) else { return };
        let mine = Rank::of(&race.group, self.me, self.own_condition());
        let well = Duration::from_millis(condition.well_ms.into());
        let kept = now - since;
        let is_back = theirs < mine
            && race.group.failback.is_some_and(|wanted| well >= wanted && kept >= wanted.max(KEPT_FOR));
        if theirs.is_urgently_better_than(&mine) || is_back {
            self.give(now, at, Some(node));
        }
    }

    fn give(&mut self, now: Instant, at: usize, to: Option<NodeId>) {
        self.races[at].yields = Some(to);
        self.lose(now, at, LostBy::Yielding(to));
    }

    fn lose(&mut self, now: Instant, at: usize, by: LostBy) {
        let race = &mut self.races[at];
        let pause = if matches!(by, LostBy::Yielding(_)) { PAUSE_AFTER_YIELD } else { Duration::ZERO };
        race.phase = standing(now + pause);
        self.changes.push_back(Change::Lost { group: race.group.id, by });
        self.due = true;
    }
}

fn standing(not_before: Instant) -> Phase {
    Phase::Standing { not_before, vacant_since: None, turn: None }
}
