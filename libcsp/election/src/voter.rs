//! A proxy's part: it gives its vote for a group to one network node at a time.

use csp_types::{Instant, NodeId};
use csp_wire::election::{Ballot, Beat, Condition, GroupBallot, GroupBeat, Stage};

use crate::{GRANTED_FOR, GROUPS_MAX, GroupId, NODES_MAX};

/// How long a vote is kept for the successor that its holder has named.
const RESERVED_FOR: csp_types::Duration = csp_types::Duration::from_millis(400);

/// How much higher than the last an epoch may be: a node that names the highest there is must not end the
/// race.
const EPOCH_STEP_MAX: u64 = 1 << 32;

/// A vote that is given, or kept for somebody.
#[derive(Clone, Copy, Debug)]
struct Vote {
    node: NodeId,
    until: Instant,
}

#[derive(Debug)]
struct Race {
    group: GroupId,
    /// The highest epoch for which it voted.
    epoch: u64,
    held: Option<Vote>,
    reserved: Option<Vote>,
}

#[derive(Debug)]
struct Node {
    id: NodeId,
    condition: Condition,
    /// [`Beat::sent`] of the last beat, and when that arrived.
    sent: u64,
    heard: Instant,
    /// The groups that it would take.
    stands: Vec<GroupId>,
    /// A ballot is to be sent to it: the answer to a beat, or news.
    answer: Option<u64>,
}

/// The votes of one proxy. Call [`poll_ballot`](Self::poll_ballot) after every other call.
#[derive(Debug)]
pub struct Voter {
    /// Before this time it may have votes that it has forgotten, and gives none.
    quiet_until: Instant,
    races: Vec<Race>,
    nodes: Vec<Node>,
}

impl Voter {
    /// Creates the voter of a proxy that starts at `now`.
    pub fn new(now: Instant) -> Self {
        Voter { quiet_until: now + GRANTED_FOR, races: Vec::new(), nodes: Vec::new() }
    }

    /// Takes a network node's beat. Beats of more than [`NODES_MAX`] nodes, and older ones than the last, are
    /// ignored.
    pub fn on_beat(&mut self, now: Instant, from: NodeId, beat: &Beat<'_>) {
        self.expire(now);
        let known = self.nodes.iter().position(|node| node.id == from);
        let at = match known {
            Some(at) => at,
            None if self.nodes.len() == NODES_MAX || beat.groups().next().is_none() => return,
            None => {
                self.nodes.push(Node {
                    id: from,
                    condition: beat.condition,
                    sent: 0,
                    heard: now,
                    stands: Vec::new(),
                    answer: None,
                });
                self.nodes.len() - 1
            }
        };
        let node = &mut self.nodes[at];
        if beat.sent < node.sent {
            return;
        }
        (node.condition, node.sent, node.heard, node.answer) =
            (beat.condition, beat.sent, now, Some(beat.sent));
        node.stands.clear();
        node.stands.extend(beat.groups().map(|said| GroupId(said.group)));
        let mut news = known.is_none();
        for said in beat.groups() {
            news |= self.vote(now, from, &said);
        }
        // What it does not name any more, it has given up.
        let Voter { races, nodes, .. } = self;
        for race in races.iter_mut().filter(|race| !nodes[at].stands.contains(&race.group)) {
            news |= race.held.take_if(|vote| vote.node == from).is_some();
        }
        if news {
            self.tell_all();
        }
    }

    /// Votes about one group of a beat. Returns whether the vote has another holder now.
    fn vote(&mut self, now: Instant, from: NodeId, said: &GroupBeat) -> bool {
        let quiet = now < self.quiet_until;
        let group = GroupId(said.group);
        let Some(race) = self.race(group) else { return false };
        let vote = Vote { node: from, until: now + GRANTED_FOR };
        let is_mine = race.held.is_some_and(|held| held.node == from);
        if said.epoch.saturating_sub(race.epoch) > EPOCH_STEP_MAX {
            return false;
        }
        let may = match said.stage {
            Stage::Asks | Stage::Holds if is_mine => said.epoch >= race.epoch,
            Stage::Asks => race.is_free_for(from) && said.epoch > race.epoch && !quiet,
            Stage::Holds => race.is_free_for(from) && said.epoch >= race.epoch && !quiet,
            Stage::Stands | Stage::Yields => {
                if !is_mine {
                    return false;
                }
                race.held = None;
                let kept = said.successor.filter(|_| said.stage == Stage::Yields);
                race.reserved = kept.map(|node| Vote { node, until: now + RESERVED_FOR });
                return true;
            }
        };
        if !may {
            return false;
        }
        race.epoch = said.epoch;
        (race.held, race.reserved) = (Some(vote), None);
        !is_mine
    }

    fn race(&mut self, group: GroupId) -> Option<&mut Race> {
        let at = match self.races.iter().position(|race| race.group == group) {
            Some(at) => at,
            None if self.races.len() == GROUPS_MAX => return None,
            None => {
                self.races.push(Race { group, epoch: 0, held: None, reserved: None });
                self.races.len() - 1
            }
        };
        self.races.get_mut(at)
    }

    /// Records that the process of a network node has ended, or that it has left: its votes are free. Not for
    /// a node that is only silent.
    pub fn gone(&mut self, now: Instant, node: NodeId) {
        self.expire(now);
        self.nodes.retain(|known| known.id != node);
        for race in &mut self.races {
            race.held.take_if(|vote| vote.node == node);
            race.reserved.take_if(|vote| vote.node == node);
        }
        self.tell_all();
    }

    /// Frees votes whose time is over.
    pub fn on_timeout(&mut self, now: Instant) {
        self.expire(now);
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        let votes = self.races.iter().flat_map(|race| [race.held, race.reserved]).flatten();
        let nodes = self.nodes.iter().map(|node| node.heard + GRANTED_FOR);
        votes.map(|vote| vote.until).chain(nodes).min()
    }

    fn expire(&mut self, now: Instant) {
        let Voter { races, nodes, .. } = self;
        let mut news = false;
        for race in races.iter_mut() {
            news |= race.held.take_if(|vote| vote.until <= now).is_some();
            race.reserved.take_if(|vote| vote.until <= now);
        }
        let before = nodes.len();
        nodes.retain(|node| node.heard + GRANTED_FOR > now);
        news |= nodes.len() != before;
        // A race that nobody runs in is over; its epoch is kept while somebody remembers it.
        races
            .retain(|race| race.held.is_some() || nodes.iter().any(|node| node.stands.contains(&race.group)));
        if news {
            self.tell_all();
        }
    }

    fn tell_all(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.answer = node.answer.or(Some(0)));
    }

    /// Writes the next ballot that is to be sent into `out`, of [`csp_wire::election::LEN_MAX`] bytes;
    /// returns to whom, and its length.
    pub fn poll_ballot(&mut self, now: Instant, out: &mut [u8]) -> Option<(NodeId, usize)> {
        if now < self.quiet_until {
            self.nodes.iter_mut().for_each(|node| node.answer = None);
        }
        let to = self.nodes.iter().position(|node| node.answer.is_some())?;
        let answers = self.nodes[to].answer.take()?;
        let Voter { races, nodes, .. } = self;
        let place = |vote: Option<Vote>| {
            let node = vote?.node;
            nodes.iter().position(|known| known.id == node).map(|at| at as u8)
        };
        let groups = races.iter().map(|race| {
            let stands = |node: &Node| node.stands.contains(&race.group);
            let bits = nodes.iter().enumerate().map(|(at, node)| u16::from(stands(node)) << at);
            GroupBallot {
                group: race.group.0,
                epoch: race.epoch,
                holder: place(race.held),
                successor: place(race.reserved),
                candidates: bits.sum(),
            }
        });
        let all = nodes.iter().map(|node| (node.id, node.condition));
        let len = Ballot::emit(answers, all, groups, out).ok()?;
        Some((nodes[to].id, len))
    }
}

impl Race {
    fn is_free_for(&self, node: NodeId) -> bool {
        self.held.is_none() && self.reserved.is_none_or(|vote| vote.node == node)
    }
}
