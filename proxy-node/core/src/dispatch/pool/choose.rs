//! Chooses the process of a service's pool that is offered a connection.

use std::collections::BTreeSet;
use std::net::IpAddr;

use csp_types::Instant;

use super::bound::Closeness;
use super::place::{Place, best};
use super::{ChannelId, Choice, Member, MemberId, Pools};

impl Pools {
    /// For a connection to `local`: chooses the member with the fewest open connections among those that
    /// would accept one, and in it the process with the fewest. Processes in doubt come last, `barred` ones
    /// are left out. Takes one accept credit.
    pub fn choose<'a>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = &'a MemberId>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Choice> {
        let best = |m: &Member| {
            self.best_of(now, m, &m.ready, local, &barred).map(|(in_doubt, place)| (in_doubt, m.open, place))
        };
        let found = candidates.into_iter().filter_map(|id| Some((*id, best(self.get(*id)?)?)));
        let (member, (_, _, place)) = found.min_by_key(|(_, (in_doubt, open, _))| (*in_doubt, *open))?;
        self.take(now, member, place)
    }

    /// As [`choose`](Self::choose), but only among processes that have answered all offers and are not in
    /// doubt.
    pub fn choose_idle<'a>(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = &'a MemberId>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<Choice> {
        let found =
            candidates.into_iter().filter_map(|id| Some((*id, self.idle_at(now, *id, local, &barred)?)));
        let (member, (_, place)) = found.min_by_key(|(_, (open, _))| *open)?;
        self.take(now, member, place)
    }

    /// Returns whether [`choose_idle`](Self::choose_idle) would find a process.
    pub fn any_idle<'a>(
        &self,
        now: Instant,
        candidates: impl IntoIterator<Item = &'a MemberId>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> bool {
        candidates.into_iter().any(|id| self.idle_at(now, *id, local, &barred).is_some())
    }

    /// Returns whether a process can be offered connections, idle or not, that is neither barred nor in
    /// doubt.
    pub fn any_ready<'a>(
        &self,
        now: Instant,
        candidates: impl IntoIterator<Item = &'a MemberId>,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> bool {
        let best = |member: &Member| self.best_of(now, member, &member.ready, local, &barred);
        candidates.into_iter().filter_map(|id| best(self.get(*id)?)).any(|(in_doubt, _)| !in_doubt)
    }

    /// Returns the member's number of open connections, and the best place among its idle listeners.
    fn idle_at(
        &self,
        now: Instant,
        id: MemberId,
        local: IpAddr,
        barred: impl Fn(ChannelId) -> bool,
    ) -> Option<(u32, Place)> {
        let member = self.get(id)?;
        self.best_of(now, member, &member.idle, local, barred)
            .filter(|(in_doubt, _)| !in_doubt)
            .map(|(_, place)| (member.open, place))
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
