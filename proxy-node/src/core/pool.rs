//! Pool members and their listeners: who may get the next connection.
//!
//! A member is (application node, port). Its processes announce listeners over their channels and say how many
//! connections they would take (accept credit); a process that only holds the listening socket (an nginx master)
//! never grants any and so is never offered a connection.
//!
//! ```text
//!  by_address ─▶ member ─▶ ready: listeners with credit, fewest connections first
//!  listeners: (channel, id) ─▶ member, credit, open
//! ```
//! Everything is found by key; only the members of one service are looked at one by one (policy bounds them). A member
//! is forgotten when no service names it, nobody listens there and no connection is at it.

use std::collections::{BTreeSet, HashMap};

use csp_types::NodeId;

/// Members one proxy worker can know, named by policy or announced by applications.
pub const MEMBERS_MAX: usize = 4096;
/// Listeners (processes) of one member.
pub const LISTENERS_PER_MEMBER_MAX: usize = 1024;

/// Listeners that one process may have.
pub const LISTENERS_PER_CHANNEL_MAX: usize = 256;
/// Accept credit that one listener can hold: what a process grants beyond it is not believed.
pub const ACCEPT_CREDIT_MAX: u32 = 4096;

/// Names a channel to an application process within one worker; never reused while the worker lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId(pub u32);

/// Index of a member in [`Pools`]. Valid while a service names the member, a process listens there, or a connection
/// that was [chosen](Pools::choose) for it is not [released](Pools::release).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemberId(pub u32);

/// A process' listening socket at a member.
#[derive(Clone, Copy, Debug)]
struct Listener {
    member: MemberId,
    credit: u32,
    open: u32,
}

/// One server of a pool.
#[derive(Clone, Debug)]
pub struct Member {
    /// The application node.
    pub node: NodeId,
    /// The port its processes listen on.
    pub port: u16,
    /// Connections offered to it or open at it.
    pub open: u32,
    listeners: usize,
    credit: u64,
    /// Listeners with accept credit, by their open connections.
    ready: BTreeSet<(u32, ChannelId, u32)>,
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
    pub fn name(&mut self, node: NodeId, port: u16, service: u32) -> Option<MemberId> {
        let id = self.member(node, port)?;
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
        self.forget_if_unused(member);
    }

    /// Looks at a member.
    pub fn get(&self, member: MemberId) -> Option<&Member> {
        self.members.get(member.0 as usize)?.as_ref()
    }

    /// A process listens at (`node`, `port`).
    pub fn listen(
        &mut self,
        node: NodeId,
        port: u16,
        channel: ChannelId,
        listener: u32,
    ) -> Result<MemberId, ListenError> {
        if self.listeners.contains_key(&(channel, listener)) {
            return Err(ListenError::Duplicate);
        }
        if self.by_channel.get(&channel).is_some_and(|ids| ids.len() >= LISTENERS_PER_CHANNEL_MAX) {
            return Err(ListenError::Full);
        }
        let id = self.member(node, port).ok_or(ListenError::Full)?;
        let member = self.get_mut(id).ok_or(ListenError::Full)?;
        if member.listeners >= LISTENERS_PER_MEMBER_MAX {
            return Err(ListenError::Full);
        }
        member.listeners += 1;
        self.listeners.insert((channel, listener), Listener { member: id, credit: 0, open: 0 });
        self.by_channel.entry(channel).or_default().push(listener);
        Ok(id)
    }

    /// A process would take `more` further connections at its listener; returns the member, or `None` for a listener
    /// that it does not have.
    pub fn grant(&mut self, channel: ChannelId, listener: u32, more: u32) -> Option<MemberId> {
        self.change(channel, listener, |l| l.credit = l.credit.saturating_add(more).min(ACCEPT_CREDIT_MAX))
    }

    /// A process stops listening; returns the member, which may be forgotten by it.
    pub fn unlisten(&mut self, channel: ChannelId, listener: u32) -> Option<MemberId> {
        let member = self.remove_listener(channel, listener)?;
        let of_channel = self.by_channel.get_mut(&channel)?;
        of_channel.retain(|id| *id != listener);
        if of_channel.is_empty() {
            self.by_channel.remove(&channel);
        }
        Some(member)
    }

    /// A process is gone: all its listeners go.
    pub fn forget_channel(&mut self, channel: ChannelId) {
        for listener in self.by_channel.remove(&channel).unwrap_or_default() {
            self.remove_listener(channel, listener);
        }
    }

    /// The member with the fewest open connections among those that would take one, and in it the process with the
    /// fewest; takes one accept credit.
    pub fn choose(&mut self, candidates: &[MemberId]) -> Option<Choice> {
        let ready = |id: &&MemberId| self.get(**id).filter(|m| !m.ready.is_empty()).map(|m| m.open);
        let member = *candidates.iter().filter(|id| ready(id).is_some()).min_by_key(ready)?;
        let chosen = self.get_mut(member)?;
        let (_, channel, listener) = *chosen.ready.first()?;
        chosen.open += 1;
        self.change(channel, listener, |l| (l.credit, l.open) = (l.credit.saturating_sub(1), l.open + 1));
        Some(Choice { member, channel, listener })
    }

    /// A connection that was chosen for `choice` is over, or was handed back.
    pub fn release(&mut self, choice: Choice) {
        self.change(choice.channel, choice.listener, |l| l.open = l.open.saturating_sub(1));
        if let Some(member) = self.get_mut(choice.member) {
            member.open = member.open.saturating_sub(1);
        }
        self.forget_if_unused(choice.member);
    }

    /// As [`release`](Self::release), for a process that cannot be reached any more: it is offered nothing further.
    pub fn give_up(&mut self, choice: Choice) {
        self.change(choice.channel, choice.listener, |l| l.credit = 0);
        self.release(choice);
    }

    fn get_mut(&mut self, member: MemberId) -> Option<&mut Member> {
        self.members.get_mut(member.0 as usize)?.as_mut()
    }

    /// The member (`node`, `port`), made when it is new.
    fn member(&mut self, node: NodeId, port: u16) -> Option<MemberId> {
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
            listeners: 0,
            credit: 0,
            ready: BTreeSet::new(),
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
        member.ready.remove(&(before.open, channel, id));
        if after.credit > 0 {
            member.ready.insert((after.open, channel, id));
        }
        member.credit = member.credit + u64::from(after.credit) - u64::from(before.credit);
        Some(after.member)
    }

    fn remove_listener(&mut self, channel: ChannelId, id: u32) -> Option<MemberId> {
        let gone = self.listeners.remove(&(channel, id))?;
        if let Some(member) = self.get_mut(gone.member) {
            member.ready.remove(&(gone.open, channel, id));
            member.listeners -= 1;
            member.credit -= u64::from(gone.credit);
        }
        self.forget_if_unused(gone.member);
        Some(gone.member)
    }

    fn forget_if_unused(&mut self, id: MemberId) {
        let Some(slot) = self.members.get_mut(id.0 as usize) else { return };
        if let Some(gone) = slot.take_if(|m| m.is_unused()) {
            self.by_address.remove(&(gone.node, gone.port));
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    #[test]
    fn a_listener_without_credit_gets_nothing() {
        let mut pools = Pools::new();
        let web = pools.listen(node("an-1"), 80, ChannelId(1), 7).unwrap();
        assert_eq!(pools.choose(&[web]), None);
        pools.grant(ChannelId(1), 7, 1).unwrap();
        let choice = pools.choose(&[web]).unwrap();
        assert_eq!(choice, Choice { member: web, channel: ChannelId(1), listener: 7 });
        assert_eq!(pools.choose(&[web]), None, "one credit is one connection");
    }

    #[test]
    fn the_member_with_the_fewest_open_connections_is_chosen() {
        let mut pools = Pools::new();
        let a = pools.listen(node("an-1"), 80, ChannelId(1), 1).unwrap();
        let b = pools.listen(node("an-2"), 80, ChannelId(2), 1).unwrap();
        pools.grant(ChannelId(1), 1, 10);
        pools.grant(ChannelId(2), 1, 10);
        let first = pools.choose(&[a, b]).unwrap();
        let second = pools.choose(&[a, b]).unwrap();
        assert_ne!(first.member, second.member);
        pools.release(first);
        assert_eq!(pools.choose(&[a, b]).unwrap().member, first.member);
    }

    #[test]
    fn within_a_member_connections_spread_over_processes() {
        let mut pools = Pools::new();
        let web = pools.listen(node("an-1"), 80, ChannelId(1), 1).unwrap();
        pools.listen(node("an-1"), 80, ChannelId(2), 1).unwrap();
        pools.grant(ChannelId(1), 1, 10);
        pools.grant(ChannelId(2), 1, 10);
        let channels = [pools.choose(&[web]).unwrap().channel, pools.choose(&[web]).unwrap().channel];
        assert_ne!(channels[0], channels[1]);
        pools.forget_channel(ChannelId(1));
        assert_eq!(pools.choose(&[web]).unwrap().channel, ChannelId(2));
    }

    #[test]
    fn a_listener_id_is_used_once_per_channel() {
        let mut pools = Pools::new();
        pools.listen(node("an-1"), 80, ChannelId(1), 1).unwrap();
        assert_eq!(pools.listen(node("an-1"), 81, ChannelId(1), 1), Err(ListenError::Duplicate));
        assert!(pools.listen(node("an-1"), 81, ChannelId(2), 1).is_ok());
    }

    #[test]
    fn a_member_goes_when_nobody_names_it_listens_there_or_is_connected() {
        let mut pools = Pools::new();
        let web = pools.name(node("an-1"), 80, 3).unwrap();
        assert_eq!(pools.listen(node("an-1"), 80, ChannelId(1), 7), Ok(web));
        pools.grant(ChannelId(1), 7, 2);
        let choice = pools.choose(&[web]).unwrap();
        assert_eq!(pools.get(web).map(|m| (m.open, m.accept_credit(), m.listener_count())), Some((1, 1, 1)));
        pools.unname(web, 3);
        pools.forget_channel(ChannelId(1));
        assert!(pools.get(web).is_some(), "a connection is at it");
        pools.release(choice);
        assert!(pools.get(web).is_none() && pools.is_empty());
        // Its place is used again, and nothing of the old one is left.
        assert_eq!(pools.listen(node("an-2"), 81, ChannelId(1), 7), Ok(web));
        assert_eq!(pools.choose(&[web]), None);
        pools.unlisten(ChannelId(1), 7);
        assert!(pools.is_empty());
    }

    #[test]
    fn announcing_and_leaving_does_not_use_members_up() {
        let mut pools = Pools::new();
        for port in 1..=2 * MEMBERS_MAX as u32 {
            let member = pools.listen(node("an-1"), port as u16, ChannelId(port), 1);
            assert!(member.is_ok(), "at {port}");
            pools.forget_channel(ChannelId(port));
        }
        assert!(pools.is_empty());
    }

    #[test]
    fn a_process_that_cannot_be_reached_gets_nothing_until_it_grants_again() {
        let mut pools = Pools::new();
        let web = pools.listen(node("an-1"), 80, ChannelId(1), 1).unwrap();
        pools.grant(ChannelId(1), 1, 5);
        let choice = pools.choose(&[web]).unwrap();
        pools.give_up(choice);
        assert_eq!((pools.choose(&[web]), pools.get(web).map(|m| m.open)), (None, Some(0)));
        pools.grant(ChannelId(1), 1, 1);
        assert!(pools.choose(&[web]).is_some());
    }
}
