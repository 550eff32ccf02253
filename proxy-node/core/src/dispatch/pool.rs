//! Pool members and their listeners: which processes may receive the next connection.
//!
//! A member is (host, port). The processes of an application node announce listeners over their channels and
//! grant accept credit: the number of connections that they would accept. A process that only holds the
//! listening socket (an nginx master) grants none and so is never offered a connection.
//!
//! ```text
//!  by_address ─▶ member ─▶ ready: listeners that take offers, fewest connections first
//!                        ─▶ idle: those of them that have answered every offer
//!  listeners: (channel, id) ─▶ member, credit, open, unanswered
//! ```
//! Listeners of one member may be bound to different addresses; the most specific ones are offered a
//! connection, as in the kernel (`bound`).
//!
//! A process is *in doubt* if it left an offer unanswered or handed one back. Others are preferred until it
//! accepts, one of its connections ends, or it is tried again after a while. A process is *slow* if it has
//! left an offer unanswered for long. It gets no further offers until it accepts: connections wait in the
//! service's backlog, where any process can get them.
//!
//! A *plain* server has no processes here: it is reached over TCP, and whether it can be reached is learnt
//! from the connections to it (`plain`).
//!
//! All lookups are by key, except that the members of one service are iterated (policy bounds their number).
//! A member is removed when no service names it, no process listens there and it has no connection.

mod bound;
mod changes;
mod choose;
mod listener;
mod owner;
mod place;
mod plain;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use csp_types::{Instant, NodeId};

use super::services::ServerHost;
use bound::Bound;
pub use changes::ServerChange;
use changes::{Change, Changes};
pub use choose::{Candidate, Chosen};
pub use listener::ListenError;
use listener::Listener;
pub use owner::Claim;
use place::Place;
use plain::Plain;
pub use plain::PlainState;
pub(super) use plain::WARM;

/// Largest number of members that one proxy worker keeps, named by policy (at most half of them) or announced
/// by applications.
pub const MEMBERS_MAX: usize = 65_536;
/// Largest number of listeners (processes) of one member.
pub const LISTENERS_PER_MEMBER_MAX: usize = 1024;

/// Largest number of listeners of one process.
pub const LISTENERS_PER_CHANNEL_MAX: usize = 256;
/// Largest accept credit of one listener; credit beyond it is discarded.
pub const ACCEPT_CREDIT_MAX: u32 = 4096;

/// Largest number of unanswered offers of a process: enough to keep it busy for one round trip.
pub const UNANSWERED_MAX: u32 = 64;

/// Identifies a channel to an application process within one worker; not reused during the worker's lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId(pub u32);

/// Index of a member in [`Pools`]. Valid while a service names the member, a process listens there, or a
/// connection that was [chosen](Pools::choose) for it has not been [released](Pools::release) or
/// [voided](Pools::void).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct MemberId(pub u32);

/// Identifies a member for as long as the worker runs, unlike [`MemberId`]. The default identifies no member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ServerId {
    pub(crate) member: MemberId,
    serial: u32,
}

/// One member of a pool.
#[derive(Clone, Debug)]
pub struct Member {
    /// Number of members created before it.
    serial: u32,
    /// Where it is.
    pub host: ServerHost,
    /// The port that it listens on.
    pub port: u16,
    /// Connections that are offered to it or open.
    pub open: u32,
    /// Connections that it has accepted.
    pub accepted: u64,
    /// Whether a plain server can be reached; `None` for members of application nodes.
    plain: Option<Plain>,
    listeners: usize,
    /// The owner of the port while any process listens.
    owner: Option<Claim>,
    credit: u64,
    bound: Bound,
    /// Since when no process listens there.
    unserved_since: Instant,
    /// Listeners that can be offered connections.
    ready: BTreeSet<Place>,
    /// Listeners of `ready` without an unanswered offer.
    idle: BTreeSet<Place>,
    /// Services that name this member, each once.
    services: Vec<u32>,
    /// Its node gets no new connections.
    draining: bool,
}

impl Member {
    /// Returns the number of processes that listen.
    pub fn listener_count(&self) -> usize {
        self.listeners
    }

    /// Returns the number of connections that its processes would accept now.
    pub fn accept_credit(&self) -> u64 {
        self.credit
    }

    /// Returns the identifier of this member, whose index is `member`.
    pub(crate) fn id(&self, member: MemberId) -> ServerId {
        ServerId { member, serial: self.serial }
    }

    /// Returns the application node.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self.host {
            ServerHost::Node(node) => Some(node),
            ServerHost::Address(_) => None,
        }
    }

    /// Returns whether its node gets no new connections.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Returns the services that name this member.
    pub fn services(&self) -> &[u32] {
        &self.services
    }

    /// Removes a listener from both lists.
    fn set_out(&mut self, listener: &Listener, channel: ChannelId, id: u32) {
        let place = (listener.doubted, listener.open, channel, id);
        self.ready.remove(&place);
        self.idle.remove(&place);
    }

    fn is_unused(&self) -> bool {
        self.services.is_empty() && self.listeners == 0 && self.open == 0
    }
}

/// The target of a connection: the member, the process's channel, and the listener's id on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The pool member.
    pub member: MemberId,
    /// The process.
    pub channel: ChannelId,
    /// Its listener.
    pub listener: u32,
}

/// All members known to this worker.
#[derive(Debug, Default)]
pub struct Pools {
    members: Vec<Option<Member>>,
    free: Vec<u32>,
    by_address: HashMap<(ServerHost, u16), MemberId>,
    listeners: HashMap<(ChannelId, u32), Listener>,
    /// The listener ids of each channel that has any.
    by_channel: HashMap<ChannelId, Vec<u32>>,
    /// Nodes that get no new connections.
    draining: HashSet<NodeId>,
    /// Whether a listener has become ready that could not be offered connections before.
    readied: bool,
    /// When plain servers that are down may be tried again.
    retries: BTreeSet<(Instant, MemberId)>,
    /// Number of members created so far.
    made: u32,
    changes: Changes,
}

impl Pools {
    /// Creates an empty table.
    pub fn new() -> Self {
        Pools::default()
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Records that `service` names the member (`host`, `port`), which is created if new; `None` if
    /// [`MEMBERS_MAX`] is reached.
    pub fn name(&mut self, now: Instant, host: ServerHost, port: u16, service: u32) -> Option<MemberId> {
        let id = self.member(now, host, port)?;
        let member = self.get_mut(id)?;
        if !member.services.contains(&service) {
            member.services.push(service);
            self.named_while_down(id);
        }
        Some(id)
    }

    /// Records that `service` no longer names the member.
    pub fn unname(&mut self, member: MemberId, service: u32) {
        if let Some(known) = self.get_mut(member) {
            known.services.retain(|s| *s != service);
        }
        self.remove_if_unused(member);
    }

    /// Returns a member.
    pub fn get(&self, member: MemberId) -> Option<&Member> {
        self.members.get(member.0 as usize)?.as_ref()
    }

    /// Replaces the nodes that get no new connections. Connections that they have, and outstanding offers,
    /// continue.
    pub fn set_draining(&mut self, nodes: HashSet<NodeId>) {
        for member in self.members.iter_mut().flatten() {
            member.draining = member.node().is_some_and(|node| nodes.contains(&node));
        }
        self.draining = nodes;
        self.readied = true; // a node may serve again
    }

    /// Adds a listener of a process of `node` at `address`.
    pub fn listen(
        &mut self,
        node: NodeId,
        address: SocketAddr,
        channel: ChannelId,
        listener: u32,
    ) -> Result<MemberId, ListenError> {
        if self.listeners.contains_key(&(channel, listener)) {
            return Err(ListenError::Duplicate);
        }
        if self.by_channel.get(&channel).is_some_and(|ids| ids.len() >= LISTENERS_PER_CHANNEL_MAX) {
            return Err(ListenError::Full);
        }
        // The member has a listener from now on, so `unserved_since` has no meaning.
        let host = ServerHost::Node(node);
        let id = self.member(Instant::ZERO, host, address.port()).ok_or(ListenError::Full)?;
        let member = self.get_mut(id).ok_or(ListenError::Full)?;
        if member.listeners >= LISTENERS_PER_MEMBER_MAX {
            return Err(ListenError::Full);
        }
        member.listeners += 1;
        let (address, is_first) = (address.ip(), member.listeners == 1);
        member.bound.add(address);
        self.changed_if(is_first, id, Change::Up);
        let new = Listener {
            member: id,
            address,
            credit: 0,
            open: 0,
            unanswered: 0,
            doubted: Instant::ZERO,
            slow: false,
        };
        self.listeners.insert((channel, listener), new);
        self.by_channel.entry(channel).or_default().push(listener);
        Ok(id)
    }

    /// Adds `more` accept credit to a listener. If it had none left, the process has come back to its
    /// listener and is no longer in doubt. Returns the member, or `None` if there is no such listener.
    pub fn grant(&mut self, channel: ChannelId, listener: u32, more: u32) -> Option<MemberId> {
        self.change(channel, listener, |l| {
            if l.credit == 0 {
                l.doubted = Instant::ZERO;
            }
            l.credit = l.credit.saturating_add(more).min(ACCEPT_CREDIT_MAX);
        })
    }

    /// Withdraws the accept credit of a listener; returns the amount.
    pub fn withdraw_credit(&mut self, channel: ChannelId, listener: u32) -> u32 {
        let mut unused = 0;
        self.change(channel, listener, |l| unused = std::mem::take(&mut l.credit));
        unused
    }

    /// Removes a listener; returns its member, which may have been removed with it.
    pub fn unlisten(&mut self, now: Instant, channel: ChannelId, listener: u32) -> Option<MemberId> {
        let member = self.remove_listener(now, channel, listener)?;
        let of_channel = self.by_channel.get_mut(&channel)?;
        of_channel.retain(|id| *id != listener);
        if of_channel.is_empty() {
            self.by_channel.remove(&channel);
        }
        Some(member)
    }

    /// Removes all listeners of a channel that is down.
    pub fn remove_channel(&mut self, now: Instant, channel: ChannelId) {
        for listener in self.by_channel.remove(&channel).unwrap_or_default() {
            self.remove_listener(now, channel, listener);
        }
    }

    /// Returns since when none of these members can get connections; `None` if one can.
    pub fn unserved_since(&self, members: impl IntoIterator<Item = MemberId>) -> Option<Instant> {
        let mut since = Instant::ZERO;
        for member in members.into_iter().filter_map(|id| self.get(id)) {
            if member.is_served() {
                return None;
            }
            since = since.max(member.unserved_since);
        }
        Some(since)
    }

    /// Returns whether a member can get connections: it is up, and its node does not drain. `plain`: plain
    /// servers count.
    pub(crate) fn is_usable(&self, member: MemberId, plain: bool) -> bool {
        let counts = |member: &Member| plain || member.plain.is_none();
        self.get(member).is_some_and(|member| member.is_served() && !member.draining && counts(member))
    }

    /// Returns whether a listener has become ready since the last call.
    pub fn take_readied(&mut self) -> bool {
        std::mem::take(&mut self.readied)
    }

    /// Returns what the next [`take_readied`](Self::take_readied) will return.
    pub fn is_readied(&self) -> bool {
        self.readied
    }

    /// Makes the next [`take_readied`](Self::take_readied) return true.
    pub fn set_readied(&mut self) {
        self.readied = true;
    }

    /// Records that the process has accepted its offer.
    pub fn accepted(&mut self, choice: Choice) {
        if let Some(member) = self.get_mut(choice.member) {
            member.accepted += 1;
        }
        self.change(choice.channel, choice.listener, |l| {
            l.answered();
            (l.slow, l.doubted) = (false, Instant::ZERO);
        });
    }

    /// Marks a process that has left an offer unanswered for long: it gets no further offers until it
    /// accepts.
    pub fn mark_slow(&mut self, choice: Choice) {
        self.change(choice.channel, choice.listener, |l| l.slow = l.unanswered > 0);
    }

    /// Releases an accepted connection that has ended, or that its process has left.
    pub fn release(&mut self, choice: Choice) {
        self.leave(choice, |l| l.doubted = Instant::ZERO);
    }

    /// Releases an unanswered offer whose client or process has gone.
    pub fn void(&mut self, choice: Choice) {
        self.leave(choice, Listener::answered);
    }

    /// Releases an offer and puts its process in doubt: it did not answer, or handed the connection back.
    pub fn doubt(&mut self, now: Instant, choice: Choice) {
        self.leave(choice, |l| {
            l.answered();
            l.doubted = now;
        });
    }

    /// As [`void`](Self::void), for a process whose channel is about to go down: it gets no further offers.
    pub fn give_up(&mut self, choice: Choice) {
        self.leave(choice, |l| {
            l.answered();
            l.credit = 0;
        });
    }

    /// Removes a connection from its listener.
    fn leave(&mut self, choice: Choice, f: impl FnOnce(&mut Listener)) {
        self.change(choice.channel, choice.listener, |l| {
            l.open = l.open.saturating_sub(1);
            f(l);
        });
        if let Some(member) = self.get_mut(choice.member) {
            member.open = member.open.saturating_sub(1);
        }
        self.remove_if_unused(choice.member);
    }

    fn get_mut(&mut self, member: MemberId) -> Option<&mut Member> {
        self.members.get_mut(member.0 as usize)?.as_mut()
    }

    /// Returns the member (`host`, `port`), created if new.
    fn member(&mut self, now: Instant, host: ServerHost, port: u16) -> Option<MemberId> {
        if let Some(known) = self.by_address.get(&(host, port)) {
            return Some(*known);
        }
        if self.by_address.len() >= MEMBERS_MAX {
            return None;
        }
        self.made = self.made.wrapping_add(1);
        let (plain, draining) = match host {
            ServerHost::Node(node) => (None, self.draining.contains(&node)),
            ServerHost::Address(_) => (Some(Plain::default()), false),
        };
        let new = Member {
            serial: self.made,
            host,
            port,
            plain,
            open: 0,
            accepted: 0,
            listeners: 0,
            owner: None,
            credit: 0,
            bound: Bound::default(),
            unserved_since: now,
            ready: BTreeSet::new(),
            idle: BTreeSet::new(),
            services: Vec::new(),
            draining,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() as u32 - 1
        });
        self.members[at as usize] = Some(new);
        self.by_address.insert((host, port), MemberId(at));
        Some(MemberId(at))
    }

    /// Changes a listener, and updates its entry in the lists of ready ones; returns its member.
    fn change(&mut self, channel: ChannelId, id: u32, f: impl FnOnce(&mut Listener)) -> Option<MemberId> {
        let listener = self.listeners.get_mut(&(channel, id))?;
        let before = *listener;
        f(listener);
        let after = *listener;
        let member = self.get_mut(after.member)?;
        member.set_out(&before, channel, id);
        let place = (after.doubted, after.open, channel, id);
        if after.is_ready() {
            member.ready.insert(place);
        }
        if after.is_ready() && after.unanswered == 0 {
            member.idle.insert(place);
        }
        member.credit = member.credit + u64::from(after.credit) - u64::from(before.credit);
        self.readied |= after.is_ready() && !before.is_ready();
        Some(after.member)
    }

    fn remove_listener(&mut self, now: Instant, channel: ChannelId, id: u32) -> Option<MemberId> {
        let gone = self.listeners.remove(&(channel, id))?;
        if let Some(member) = self.get_mut(gone.member) {
            member.set_out(&gone, channel, id);
            member.listeners -= 1;
            member.bound.remove(gone.address);
            member.unserved_since = now;
            member.credit -= u64::from(gone.credit);
            let unserved = member.listeners == 0;
            self.readied |= unserved; // those that wait for it may go to a backup
            self.changed_if(unserved, gone.member, Change::Unserved);
        }
        self.remove_if_unused(gone.member);
        Some(gone.member)
    }

    fn remove_if_unused(&mut self, id: MemberId) {
        let Some(slot) = self.members.get_mut(id.0 as usize) else { return };
        if let Some(gone) = slot.take_if(|m| m.is_unused()) {
            self.by_address.remove(&(gone.host, gone.port));
            if let Some(at) = gone.plain.and_then(|plain| plain.retry_at()) {
                self.retries.remove(&(at, id));
            }
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests;
