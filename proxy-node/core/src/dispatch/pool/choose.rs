//! Chooses the process of a service's pool that is offered a connection.

use std::collections::BTreeSet;
use std::net::IpAddr;

use csp_types::{Duration, Instant};

use super::bound::Closeness;
use super::place::{Place, best};
use super::{ChannelId, Choice, Member, MemberId, Pools};
use crate::servers::affinity;

/// Bits by which connections are shifted to be divided by a share.
const LOAD_BITS: u32 = 24;

/// A member that may get the next connection of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The member.
    pub member: MemberId,
    /// Its share of the connections; 0: none.
    pub weight: u16,
    /// Largest number of connections, if it is a plain server.
    pub connections_max: u32,
    /// The smallest value is preferred among members with the same load.
    pub turn: u64,
    /// If members are chosen by the client's address: the number of the two.
    pub affinity: Option<u64>,
    /// How long a plain server that is up again gets less than its share.
    pub slow_start: Duration,
    /// It comes after those that are not.
    pub backup: bool,
    /// It may be chosen although checks have put it out of use.
    pub even_down: bool,
}

impl From<&MemberId> for Candidate {
    fn from(member: &MemberId) -> Self {
        Candidate {
            member: *member,
            weight: 1,
            connections_max: u32::MAX,
            turn: 0,
            affinity: None,
            slow_start: Duration::ZERO,
            backup: false,
            even_down: false,
        }
    }
}

/// The order of a candidate: in doubt, a backup, its load, its turn.
type Rank = (bool, bool, u64, u64);

impl Candidate {
    /// Returns the order of this candidate: the smallest is chosen.
    fn rank(&self, now: Instant, in_doubt: bool, member: &Member) -> Rank {
        let share = u64::from(self.weight.max(1)) * member.warmth(now, self.slow_start);
        let (load, turn) = match self.affinity {
            Some(affinity) => (u64::MAX - affinity::score(affinity, share), 0),
            None => ((u64::from(member.open) << LOAD_BITS) / share, self.turn),
        };
        (in_doubt, self.backup, load, turn)
    }
}

/// The target of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// A process of an application node.
    Process(Choice),
    /// A plain server.
    Plain(MemberId),
}

impl Pools {
    /// For a connection to `local`: chooses the member with the fewest open connections, relative to its
    /// weight, or the one that the client's address prefers, among those that would accept one, and in it
    /// the process with the fewest. Processes in doubt
    /// come last, `barred` ones are left out. Takes one accept credit.
    pub fn choose_any<C: Into<Candidate>>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Chosen> {
        self.choose_of(now, candidates, (local, true), barred)
    }

    /// As [`choose_any`](Self::choose_any), among processes only.
    pub fn choose<C: Into<Candidate>>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Choice> {
        match self.choose_of(now, candidates, (local, false), barred)? {
            Chosen::Process(choice) => Some(choice),
            Chosen::Plain(_) => None,
        }
    }

    /// `plain`: plain servers may be chosen.
    fn choose_of<C: Into<Candidate>>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        (local, plain): (IpAddr, bool),
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Chosen> {
        let rank = |candidate: Candidate| {
            let member = self.get(candidate.member).filter(|_| candidate.weight > 0)?;
            if member.plain.is_some() {
                let is_ready = plain && member.plain_ready(now, &candidate);
                return is_ready.then(|| (candidate.rank(now, false, member), candidate.member, None));
            }
            let (in_doubt, place) = self.best_of(now, member, &member.ready, local, &barred)?;
            Some((candidate.rank(now, in_doubt, member), candidate.member, Some(place)))
        };
        let found = candidates.into_iter().filter_map(|candidate| rank(candidate.into()));
        let (_, member, place) = found.min_by_key(|(rank, ..)| *rank)?;
        let Some(place) = place else {
            self.take_plain(member);
            return Some(Chosen::Plain(member));
        };
        self.take(now, member, place).map(Chosen::Process)
    }

    /// As [`choose`](Self::choose), but only among processes that have answered all offers and are not in
    /// doubt.
    pub fn choose_idle<C: Into<Candidate>>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Choice> {
        let idle = |candidate: Candidate| {
            let (member, place) = self.idle_at(now, candidate, local, &barred)?;
            Some((candidate.rank(now, false, member), candidate.member, place))
        };
        let found = candidates.into_iter().filter_map(|candidate| idle(candidate.into()));
        let (_, member, place) = found.min_by_key(|(rank, ..)| *rank)?;
        self.take(now, member, place)
    }

    /// Returns whether [`choose_idle`](Self::choose_idle) would find a process.
    pub fn any_idle<C: Into<Candidate>>(
        &self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> bool {
        candidates.into_iter().any(|candidate| self.idle_at(now, candidate.into(), local, &barred).is_some())
    }

    /// Returns whether a process can be offered connections, idle or not, that is neither barred nor in
    /// doubt.
    pub fn any_ready<C: Into<Candidate>>(
        &self,
        now: Instant,
        candidates: impl IntoIterator<Item = C>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> bool {
        let best = |candidate: Candidate| {
            let member = self.get(candidate.member).filter(|_| candidate.weight > 0)?;
            self.best_of(now, member, &member.ready, local, &barred)
        };
        candidates.into_iter().filter_map(|candidate| best(candidate.into())).any(|(in_doubt, _)| !in_doubt)
    }

    /// Returns the member, and the best place among its idle listeners.
    fn idle_at(
        &self,
        now: Instant,
        candidate: Candidate,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<(&Member, Place)> {
        let member = self.get(candidate.member).filter(|_| candidate.weight > 0)?;
        self.best_of(now, member, &member.idle, local, barred)
            .filter(|(in_doubt, _)| !in_doubt)
            .map(|(_, place)| (member, place))
    }

    /// Returns the best of these places among the listeners that receive connections to `local`.
    fn best_of(
        &self,
        now: Instant,
        member: &Member,
        places: &BTreeSet<Place>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<(bool, Place)> {
        if member.draining {
            return None;
        }
        let Some(wanted) = member.bound.wanted(local) else {
            return best(places, now, |place| barred(place.2));
        };
        let is_close = |(_, _, channel, id): &Place| {
            let listener = self.listeners.get(&(*channel, *id));
            listener.is_some_and(|l| Closeness::of(l.address, local) == wanted)
        };
        best(places, now, |place| barred(place.2) || !is_close(place))
    }

    fn take(&mut self, now: Instant, member: MemberId, place: Place) -> Option<Choice> {
        let (_, _, channel, listener) = place;
        self.get_mut(member)?.open += 1;
        self.change(channel, listener, |l| {
            (l.credit, l.open) = (l.credit.saturating_sub(1), l.open + 1);
            l.unanswered += 1;
            if l.doubted > Instant::ZERO {
                l.doubted = now; // this is its trial; next time another process in doubt gets one
            }
        });
        Some(Choice { member, channel, listener })
    }
}
