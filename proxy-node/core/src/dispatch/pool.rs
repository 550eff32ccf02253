//! Pool members and their listeners: who may get the next connection.
//!
//! A member is (application node, port). Its processes announce listeners over their channels and say how many
//! connections they would take (accept credit); a process that only holds the listening socket (an nginx master)
//! never grants any and so is never offered a connection.
//!
//! ```text
//!  by_address ─▶ member ─▶ ready: listeners that take offers, fewest connections first
//!                        ─▶ idle: those of them that have answered every offer
//!  listeners: (channel, id) ─▶ member, credit, open, unanswered
//! ```
//! Listeners of one member may be bound to different addresses; the most specific get a connection, as in the kernel (`bound`).
//!
//! A process that lost an offer unanswered, or handed one back, is in doubt: others come first until it accepts or one of
//! its connections ends, but for a trial now and then. A process that is *slow*, with an offer unanswered for long, gets no
//! further ones until it accepts: connections wait in the service's backlog, where any process can have them.
//!
//! Everything is found by key; only the members of one service are looked at one by one (policy bounds them). A member
//! is forgotten when no service names it, nobody listens there and no connection is at it.

mod bound;
mod choose;
mod listener;
mod owner;
mod place;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use csp_types::{Instant, NodeId};

use bound::Bound;
use listener::Listener;
pub use owner::Claim;
use place::Place;

/// Members one proxy worker can know, named by policy or announced by applications.
pub const MEMBERS_MAX: usize = 4096;
/// Listeners (processes) of one member.
pub const LISTENERS_PER_MEMBER_MAX: usize = 1024;

/// Listeners that one process may have.
pub const LISTENERS_PER_CHANNEL_MAX: usize = 256;
/// Accept credit that one listener can hold: what a process grants beyond it is not believed.
pub const ACCEPT_CREDIT_MAX: u32 = 4096;

/// Offers that a process may leave unanswered: enough to keep it busy over the way to it and back.
pub const UNANSWERED_MAX: u32 = 64;

/// Names a channel to an application process within one worker; never reused while the worker lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId(pub u32);

/// Index of a member in [`Pools`]. Valid while a service names the member, a process listens there, or a connection
/// that was [chosen](Pools::choose) for it is not [released](Pools::release) or [void](Pools::void).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemberId(pub u32);

/// One server of a pool.
#[derive(Clone, Debug)]
pub struct Member {
    /// The application node.
    pub node: NodeId,
    /// The port its processes listen on.
    pub port: u16,
    /// Connections offered to it or open at it.
    pub open: u32,
    /// Connections that its processes accepted.
    pub accepted: u64,
    listeners: usize,
    /// Whose the port is while any process listens.
    owner: Option<Claim>,
    credit: u64,
    bound: Bound,
    /// Since when nobody listens there.
    unserved_since: Instant,
    /// Listeners that take offers.
    ready: BTreeSet<Place>,
    /// Those of them without an unanswered offer.
    idle: BTreeSet<Place>,
    /// Services that name it, each once.
    services: Vec<u32>,
}

impl Member {
    /// Processes that listen there.
    pub fn listener_count(&self) -> usize {
        self.listeners
    }

    /// Connections its processes would take now.
    pub fn accept_credit(&self) -> u64 {
        self.credit
    }

    /// The services that name it.
    pub fn services(&self) -> &[u32] {
        &self.services
    }

    /// Takes a listener out of both lists.
    fn set_out(&mut self, listener: &Listener, channel: ChannelId, id: u32) {
        let place = (listener.doubted, listener.open, channel, id);
        self.ready.remove(&place);
        self.idle.remove(&place);
    }

    fn is_unused(&self) -> bool {
        self.services.is_empty() && self.listeners == 0 && self.open == 0
    }
}

/// Why a listener was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// [`MEMBERS_MAX`], [`LISTENERS_PER_MEMBER_MAX`] or [`LISTENERS_PER_CHANNEL_MAX`] is reached.
    Full,
    /// The channel used this listener id already.
    Duplicate,
}

/// Where a connection goes: the member, the process' channel, and the listener's id on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The pool member.
    pub member: MemberId,
    /// The process.
    pub channel: ChannelId,
    /// Its listener.
    pub listener: u32,
}

/// All members that this worker knows.
#[derive(Debug, Default)]
pub struct Pools {
    members: Vec<Option<Member>>,
    free: Vec<u32>,
    by_address: HashMap<(NodeId, u16), MemberId>,
    listeners: HashMap<(ChannelId, u32), Listener>,
    /// The listener ids of each channel that has any.
    by_channel: HashMap<ChannelId, Vec<u32>>,
    /// A listener that took no offers takes some now.
    readied: bool,
}

impl Pools {
    /// No members yet.
    pub fn new() -> Self {
        Pools::default()
    }

    /// Members that are known.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// `service` names the member (`node`, `port`), which is made when it is new; `None` when [`MEMBERS_MAX`] is
    /// reached.
    pub fn name(&mut self, now: Instant, node: NodeId, port: u16, service: u32) -> Option<MemberId> {
        let id = self.member(now, node, port)?;
        let member = self.get_mut(id)?;
        if !member.services.contains(&service) {
            member.services.push(service);
        }
        Some(id)
    }

    /// `service` no longer names the member.
    pub fn unname(&mut self, member: MemberId, service: u32) {
        if let Some(known) = self.get_mut(member) {
            known.services.retain(|s| *s != service);
        }
        self.remove_if_unused(member);
    }

    /// Looks at a member.
    pub fn get(&self, member: MemberId) -> Option<&Member> {
        self.members.get(member.0 as usize)?.as_ref()
    }

    /// A process of `node` listens at `address`.
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
        // Somebody listens there from now on: when nobody did before does not matter.
        let id = self.member(Instant::ZERO, node, address.port()).ok_or(ListenError::Full)?;
        let member = self.get_mut(id).ok_or(ListenError::Full)?;
        if member.listeners >= LISTENERS_PER_MEMBER_MAX {
            return Err(ListenError::Full);
        }
        member.listeners += 1;
        let address = address.ip();
        member.bound.add(address);
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

    /// A process would take `more` further connections at its listener. One that had no credit left has come back to its
    /// listener: there is no doubt of it any more. Returns the member, or `None` for a listener that it does not have.
    pub fn grant(&mut self, channel: ChannelId, listener: u32, more: u32) -> Option<MemberId> {
        self.change(channel, listener, |l| {
            if l.credit == 0 {
                l.doubted = Instant::ZERO;
            }
            l.credit = l.credit.saturating_add(more).min(ACCEPT_CREDIT_MAX);
        })
    }

    /// A process takes back the credit of its listener; returns how much that was.
    pub fn withdraw_credit(&mut self, channel: ChannelId, listener: u32) -> u32 {
        let mut unused = 0;
        self.change(channel, listener, |l| unused = std::mem::take(&mut l.credit));
        unused
    }

    /// A process stops listening; returns the member, which may be forgotten by it.
    pub fn unlisten(&mut self, now: Instant, channel: ChannelId, listener: u32) -> Option<MemberId> {
        let member = self.remove_listener(now, channel, listener)?;
        let of_channel = self.by_channel.get_mut(&channel)?;
        of_channel.retain(|id| *id != listener);
        if of_channel.is_empty() {
            self.by_channel.remove(&channel);
        }
        Some(member)
    }

    /// A process is gone: all its listeners go.
    pub fn remove_channel(&mut self, now: Instant, channel: ChannelId) {
        for listener in self.by_channel.remove(&channel).unwrap_or_default() {
            self.remove_listener(now, channel, listener);
        }
    }

    /// Since when nobody listens at any of these members; `None`: somebody does.
    pub fn unserved_since(&self, members: &[MemberId]) -> Option<Instant> {
        let members = || members.iter().filter_map(|id| self.get(*id));
        let served = members().any(|member| member.listeners > 0);
        (!served).then(|| members().map(|member| member.unserved_since).max().unwrap_or(Instant::ZERO))
    }

    /// Whether a listener that took no offers takes some since this was last asked.
    pub fn take_readied(&mut self) -> bool {
        std::mem::take(&mut self.readied)
    }

    /// What the next [`take_readied`](Self::take_readied) returns.
    pub fn is_readied(&self) -> bool {
        self.readied
    }

    /// The next [`take_readied`](Self::take_readied) is true.
    pub fn set_readied(&mut self) {
        self.readied = true;
    }

    /// The process has accepted what was offered to it.
    pub fn accepted(&mut self, choice: Choice) {
        if let Some(member) = self.get_mut(choice.member) {
            member.accepted += 1;
        }
        self.change(choice.channel, choice.listener, |l| {
            l.answered();
            (l.slow, l.doubted) = (false, Instant::ZERO);
        });
    }

    /// An offer of the process goes unanswered for long: it gets no further ones until it accepts.
    pub fn mark_slow(&mut self, choice: Choice) {
        self.change(choice.channel, choice.listener, |l| l.slow = l.unanswered > 0);
    }

    /// An accepted connection is over, or its process has left it.
    pub fn release(&mut self, choice: Choice) {
        self.leave(choice, |l| l.doubted = Instant::ZERO);
    }

    /// An offer is over that the process did not answer: its client left, or the process did.
    pub fn void(&mut self, choice: Choice) {
        self.leave(choice, Listener::answered);
    }

    /// An offer is void, for which the process is in doubt: it did not answer, or handed the connection back.
    pub fn doubt(&mut self, now: Instant, choice: Choice) {
        self.leave(choice, |l| {
            l.answered();
            l.doubted = now;
        });
    }

    /// As [`void`](Self::void), for a process that cannot be reached any more: it is offered nothing further.
    pub fn give_up(&mut self, choice: Choice) {
        self.leave(choice, |l| {
            l.answered();
            l.credit = 0;
        });
    }

    /// A connection is at its listener no longer.
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

    /// The member (`node`, `port`), made when it is new.
    fn member(&mut self, now: Instant, node: NodeId, port: u16) -> Option<MemberId> {
        if let Some(known) = self.by_address.get(&(node, port)) {
            return Some(*known);
        }
        if self.by_address.len() >= MEMBERS_MAX {
            return None;
        }
        let new = Member {
            node,
            port,
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
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() as u32 - 1
        });
        self.members[at as usize] = Some(new);
        self.by_address.insert((node, port), MemberId(at));
        Some(MemberId(at))
    }

    /// Changes a listener and its place among those that are ready; returns its member.
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
        }
        self.remove_if_unused(gone.member);
        Some(gone.member)
    }

    fn remove_if_unused(&mut self, id: MemberId) {
        let Some(slot) = self.members.get_mut(id.0 as usize) else { return };
        if let Some(gone) = slot.take_if(|m| m.is_unused()) {
            self.by_address.remove(&(gone.node, gone.port));
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests;
