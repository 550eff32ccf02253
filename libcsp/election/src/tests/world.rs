//! Nodes, voters and the messages between them, a millisecond at a time.

use std::collections::VecDeque;

use csp_types::{Instant, NodeId};
use csp_wire::election::{Election, LEN_MAX};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::node;
use crate::{Candidate, Change, Claims, Group, GroupId, Voter};

/// A clock that begins anywhere, and is up to 2 % fast or slow.
#[derive(Clone, Copy)]
struct Clock {
    offset: u64,
    rate: f64,
}

impl Clock {
    fn random(rng: &mut StdRng) -> Self {
        Clock { offset: rng.random_range(1..1 << 50), rate: rng.random_range(0.98..1.02) }
    }

    fn at(self, ms: u64) -> Instant {
        Instant::from_nanos(self.offset + (ms as f64 * 1e6 * self.rate) as u64)
    }
}

struct Node {
    clock: Clock,
    candidate: Candidate,
    lives: bool,
    stopped: bool,
    condition: (bool, bool),
    changes: Vec<Change>,
}

struct Proxy {
    clock: Clock,
    voter: Voter,
    claims: Claims,
    lives: bool,
    stopped: bool,
}

/// A message on its way, or the news that a node is dead.
enum Content {
    Bytes(Vec<u8>),
    Death,
}

/// What is on its way between a node and a voter.
#[derive(Default)]
struct Link {
    cut: bool,
    to_voter: VecDeque<(u64, Content)>,
    to_node: VecDeque<(u64, Content)>,
}

pub(super) struct World {
    pub(super) rng: StdRng,
    pub(super) now: u64,
    /// Longest time that a message takes, in ms.
    pub(super) delay: u64,
    nodes: Vec<Node>,
    proxies: Vec<Proxy>,
    links: Vec<Vec<Link>>,
    groups: Vec<Group>,
    /// How many of the proxies are members.
    members: usize,
    history: Vec<(u64, GroupId)>,
}

impl World {
    pub(super) fn new(seed: u64, nodes: usize, proxies: usize, groups: &[Group]) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let clocks: Vec<Clock> = (0..nodes + proxies).map(|_| Clock::random(&mut rng)).collect();
        let (of_nodes, of_proxies) = clocks.split_at(nodes);
        let one = |(at, clock): (usize, &Clock)| Node {
            clock: *clock,
            candidate: Candidate::new(node(at)),
            lives: false,
            stopped: false,
            condition: (true, false),
            changes: Vec::new(),
        };
        let proxy = |clock: &Clock| Proxy {
            clock: *clock,
            voter: Voter::new(clock.at(0)),
            claims: Claims::default(),
            lives: true,
            stopped: false,
        };
        let mut world = World {
            rng,
            now: 0,
            delay: 2,
            nodes: of_nodes.iter().enumerate().map(one).collect(),
            proxies: of_proxies.iter().map(proxy).collect(),
            links: (0..nodes).map(|_| (0..proxies).map(|_| Link::default()).collect()).collect(),
            groups: groups.to_vec(),
            members: proxies,
            history: Vec::new(),
        };
        (0..nodes).for_each(|at| world.start(at));
        world
    }

    fn names(&self) -> Vec<NodeId> {
        (0..self.proxies.len()).map(|at| format!("pn-{at}").parse().unwrap()).collect()
    }

    pub(super) fn start(&mut self, at: usize) {
        let (voters, groups, now) = (self.names(), self.groups.clone(), self.now);
        let Node { clock, candidate, lives, stopped, condition, .. } = &mut self.nodes[at];
        (*candidate, *lives, *stopped) = (Candidate::new(node(at)), true, false);
        candidate.set_voters(clock.at(now), &voters[..self.members]);
        candidate.set_condition(clock.at(now), condition.0, condition.1);
        candidate.set_groups(clock.at(now), &groups);
    }

    /// Its process ends. Voters that it reaches see its links hang up; others hear nothing.
    pub(super) fn kill(&mut self, at: usize) {
        if !std::mem::replace(&mut self.nodes[at].lives, false) {
            return;
        }
        for link in &mut self.links[at] {
            link.to_node.clear();
            if !link.cut {
                link.to_voter.push_back((self.now + 1, Content::Death));
            }
        }
    }

    pub(super) fn lives(&self, at: usize) -> bool {
        self.nodes[at].lives
    }

    pub(super) fn stop(&mut self, at: usize) {
        self.nodes[at].stopped = true;
    }

    pub(super) fn go_on(&mut self, at: usize) {
        self.nodes[at].stopped = false;
    }

    pub(super) fn kill_voter(&mut self, at: usize) {
        self.proxies[at].lives = false;
        for of_node in &mut self.links {
            of_node[at] = Link { cut: of_node[at].cut, ..Link::default() };
        }
    }

    pub(super) fn start_voter(&mut self, at: usize) {
        let proxy = &mut self.proxies[at];
        if !proxy.lives {
            (proxy.voter, proxy.claims) = (Voter::new(proxy.clock.at(self.now)), Claims::default());
            (proxy.lives, proxy.stopped) = (true, false);
        }
    }

    pub(super) fn stop_voter(&mut self, at: usize, stopped: bool) {
        self.proxies[at].stopped = stopped;
    }

    /// A cut loses what is on the way.
    pub(super) fn cut(&mut self, node: usize, voter: usize, cut: bool) {
        self.links[node][voter] = Link { cut, ..Link::default() };
    }

    pub(super) fn condition(&mut self, at: usize, able: bool, draining: bool) {
        let now = self.now;
        let Node { clock, candidate, condition, .. } = &mut self.nodes[at];
        *condition = (able, draining);
        candidate.set_condition(clock.at(now), able, draining);
    }

    pub(super) fn leave(&mut self, at: usize) {
        let now = self.now;
        let Node { clock, candidate, .. } = &mut self.nodes[at];
        candidate.leave(clock.at(now));
    }

    /// The first `count` proxies are the members from now on.
    pub(super) fn voters(&mut self, count: usize) {
        self.members = count;
        let (names, now) = (self.names(), self.now);
        for Node { clock, candidate, .. } in self.nodes.iter_mut().filter(|node| node.lives) {
            candidate.set_voters(clock.at(now), &names[..count]);
        }
    }

    pub(super) fn cut_off(&mut self, at: usize, cut_off: bool) {
        let now = self.now;
        let Node { clock, candidate, .. } = &mut self.nodes[at];
        candidate.set_cut_off(clock.at(now), cut_off);
    }

    /// Replaces the groups of one node.
    pub(super) fn groups_of(&mut self, at: usize, groups: &[Group]) {
        let now = self.now;
        let Node { clock, candidate, .. } = &mut self.nodes[at];
        candidate.set_groups(clock.at(now), groups);
    }

    pub(super) fn groups(&mut self, groups: &[Group]) {
        self.groups = groups.to_vec();
        let now = self.now;
        for Node { clock, candidate, .. } in self.nodes.iter_mut().filter(|node| node.lives) {
            candidate.set_groups(clock.at(now), groups);
        }
    }

    /// The nodes that may transmit for a group now: a stopped one cannot.
    pub(super) fn holders(&self, group: GroupId) -> Vec<usize> {
        let holds = |node: &Node| {
            let until = node.candidate.holds_until(group);
            node.lives && !node.stopped && until.is_some_and(|until| until > node.clock.at(self.now))
        };
        (0..self.nodes.len()).filter(|at| holds(&self.nodes[*at])).collect()
    }

    pub(super) fn changes(&self, at: usize) -> &[Change] {
        &self.nodes[at].changes
    }

    pub(super) fn epoch(&self, at: usize) -> u64 {
        let node = &self.nodes[at];
        node.candidate.groups(node.clock.at(self.now)).map(|group| group.epoch).max().unwrap()
    }

    pub(super) fn claimed(&self, group: GroupId) -> Vec<Option<NodeId>> {
        self.proxies.iter().map(|proxy| proxy.claims.holder(group)).collect()
    }

    /// The longest time within the last `ms` in which nobody held a group.
    pub(super) fn longest_vacancy(&self, group: GroupId, ms: u64) -> u64 {
        let (mut longest, mut length) = (0, 0);
        for at in self.now.saturating_sub(ms)..self.now {
            length = if self.history.contains(&(at, group)) { 0 } else { length + 1 };
            longest = longest.max(length);
        }
        longest
    }

    pub(super) fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }

    /// Runs until a condition is met; returns how long it took, in ms.
    pub(super) fn run_until(&mut self, most: u64, met: impl Fn(&World) -> bool) -> Option<u64> {
        (0..most).find(|_| {
            self.step();
            met(self)
        })
    }

    fn step(&mut self) {
        self.now += 1;
        self.check();
        for at in 0..self.proxies.len() {
            self.turn_of_proxy(at);
        }
        for at in 0..self.nodes.len() {
            self.turn_of_node(at);
        }
        self.check();
    }

    fn check(&mut self) {
        for group in self.groups.clone() {
            let holders = self.holders(group.id);
            assert!(holders.len() <= 1, "at {} ms {holders:?} hold {:?}", self.now, group.id);
            if !holders.is_empty() {
                self.history.push((self.now, group.id));
            }
        }
    }

    fn arrival(&mut self, queue: impl Fn(&World) -> Option<u64>) -> u64 {
        let delay = self.rng.random_range(0..=self.delay);
        queue(self).unwrap_or(0).max(self.now + delay)
    }

    fn turn_of_proxy(&mut self, at: usize) {
        let proxy = &mut self.proxies[at];
        if !proxy.lives || proxy.stopped {
            return;
        }
        let now = proxy.clock.at(self.now);
        for (from, of_node) in self.links.iter_mut().enumerate() {
            let arrived = &mut of_node[at].to_voter;
            while let Some((_, content)) = arrived.pop_front_if(|(due, _)| *due <= self.now) {
                match content {
                    Content::Death => {
                        proxy.voter.gone(now, node(from));
                        proxy.claims.lost(node(from));
                    }
                    Content::Bytes(bytes) => {
                        let Ok(Election::Beat(beat)) = Election::parse(&bytes) else { panic!("a beat") };
                        proxy.voter.on_beat(now, node(from), &beat);
                        proxy.claims.on_beat(now, node(from), &beat, |_| true);
                    }
                }
            }
        }
        if proxy.voter.next_timeout().is_some_and(|due| due <= now) {
            proxy.voter.on_timeout(now);
        }
        let mut out = [0; LEN_MAX];
        while let Some((to, len)) = self.proxies[at].voter.poll_ballot(now, &mut out) {
            let to = (0..self.nodes.len()).find(|number| node(*number) == to).unwrap();
            let due = self.arrival(|world| world.links[to][at].to_node.back().map(|(due, _)| *due));
            if !self.links[to][at].cut && self.nodes[to].lives {
                self.links[to][at].to_node.push_back((due, Content::Bytes(out[..len].to_vec())));
            }
        }
    }

    fn turn_of_node(&mut self, at: usize) {
        let voters = self.names();
        let Node { clock, candidate, lives, stopped, changes, .. } = &mut self.nodes[at];
        if !*lives || *stopped {
            return;
        }
        let now = clock.at(self.now);
        for (from, link) in self.links[at].iter_mut().enumerate() {
            while let Some((_, content)) = link.to_node.pop_front_if(|(due, _)| *due <= self.now) {
                let Content::Bytes(bytes) = content else { continue };
                let Ok(Election::Ballot(ballot)) = Election::parse(&bytes) else { panic!("a ballot") };
                candidate.on_ballot(now, voters[from], &ballot);
            }
        }
        if candidate.next_timeout().is_some_and(|due| due <= now) {
            candidate.on_timeout(now);
        }
        changes.extend(std::iter::from_fn(|| candidate.poll_change()));
        let mut out = [0; LEN_MAX];
        while let Some(len) = self.nodes[at].candidate.poll_beat(now, &mut out) {
            for to in 0..voters.len() {
                let due = self.arrival(|world| world.links[at][to].to_voter.back().map(|(due, _)| *due));
                if !self.links[at][to].cut && self.proxies[to].lives {
                    self.links[at][to].to_voter.push_back((due, Content::Bytes(out[..len].to_vec())));
                }
            }
        }
    }
}
