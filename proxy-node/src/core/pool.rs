//! Pool members and their listeners: who may get the next connection.
//!
//! A member is (application node, port). Its processes announce listeners over their channels and say how many
//! connections they would take (accept credit); a process that only holds the listening socket (an nginx master)
//! never grants any and so is never offered a connection.

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

/// Index of a member in [`Pools`]. Members are never removed, so that it stays valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemberId(pub u32);

/// A process' listening socket at a member.
#[derive(Clone, Debug)]
struct Listener {
    channel: ChannelId,
    id: u32,
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
    listeners: Vec<Listener>,
}

impl Member {
    fn find(&mut self, choice: Choice) -> Option<&mut Listener> {
        self.listeners.iter_mut().find(|l| (l.channel, l.id) == (choice.channel, choice.listener))
    }

    /// Processes that listen there.
    pub fn listener_count(&self) -> usize {
        self.listeners.len()
    }

    /// Connections its processes would take now.
    pub fn accept_credit(&self) -> u64 {
        self.listeners.iter().map(|l| u64::from(l.credit)).sum()
    }
}

/// Why a listener was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// [`MEMBERS_MAX`] or [`LISTENERS_PER_MEMBER_MAX`] is reached.
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
    members: Vec<Member>,
}

impl Pools {
    /// No members yet.
    pub fn new() -> Self {
        Pools::default()
    }

    /// The member (`node`, `port`), made when it is new; `None` when [`MEMBERS_MAX`] is reached.
    pub fn member(&mut self, node: NodeId, port: u16) -> Option<MemberId> {
        if let Some(at) = self.members.iter().position(|m| m.node == node && m.port == port) {
            return Some(MemberId(at as u32));
        }
        if self.members.len() >= MEMBERS_MAX {
            return None;
        }
        self.members.push(Member { node, port, open: 0, listeners: Vec::new() });
        Some(MemberId(self.members.len() as u32 - 1))
    }

    /// Looks at a member.
    pub fn get(&self, member: MemberId) -> Option<&Member> {
        self.members.get(member.0 as usize)
    }

    /// A process listens at (`node`, `port`).
    pub fn listen(
        &mut self,
        node: NodeId,
        port: u16,
        channel: ChannelId,
        listener: u32,
    ) -> Result<MemberId, ListenError> {
        if self.listener_mut(channel, listener).is_some() {
            return Err(ListenError::Duplicate);
        }
        let of_channel =
            self.members.iter().flat_map(|m| &m.listeners).filter(|l| l.channel == channel).count();
        if of_channel >= LISTENERS_PER_CHANNEL_MAX {
            return Err(ListenError::Full);
        }
        let member = self.member(node, port).ok_or(ListenError::Full)?;
        let listeners = &mut self.members[member.0 as usize].listeners;
        if listeners.len() >= LISTENERS_PER_MEMBER_MAX {
            return Err(ListenError::Full);
        }
        listeners.push(Listener { channel, id: listener, credit: 0, open: 0 });
        Ok(member)
    }

    /// A process would take `more` further connections at its listener; returns the member, or `None` for a listener
    /// that it does not have.
    pub fn grant(&mut self, channel: ChannelId, listener: u32, more: u32) -> Option<MemberId> {
        let (member, found) = self.listener_mut(channel, listener)?;
        found.credit = found.credit.saturating_add(more).min(ACCEPT_CREDIT_MAX);
        Some(member)
    }

    /// A process stops listening; returns the member.
    pub fn unlisten(&mut self, channel: ChannelId, listener: u32) -> Option<MemberId> {
        let (member, _) = self.listener_mut(channel, listener)?;
        self.members[member.0 as usize].listeners.retain(|l| (l.channel, l.id) != (channel, listener));
        Some(member)
    }

    /// A process is gone: all its listeners go.
    pub fn forget_channel(&mut self, channel: ChannelId) {
        for member in &mut self.members {
            member.listeners.retain(|l| l.channel != channel);
        }
    }

    /// The member with the fewest open connections among those that would take one, and in it the process with the
    /// fewest; takes one accept credit.
    pub fn choose(&mut self, candidates: &[MemberId]) -> Option<Choice> {
        let member = candidates
            .iter()
            .filter_map(|id| self.members.get(id.0 as usize).map(|m| (id, m)))
            .filter(|(_, m)| m.listeners.iter().any(|l| l.credit > 0))
            .min_by_key(|(_, m)| m.open)
            .map(|(id, _)| *id)?;
        let chosen = &mut self.members[member.0 as usize];
        let listener = chosen.listeners.iter_mut().filter(|l| l.credit > 0).min_by_key(|l| l.open)?;
        listener.credit -= 1;
        listener.open += 1;
        chosen.open += 1;
        Some(Choice { member, channel: listener.channel, listener: listener.id })
    }

    /// A connection that was chosen for `choice` is over, or was handed back.
    pub fn release(&mut self, choice: Choice) {
        let Some(member) = self.members.get_mut(choice.member.0 as usize) else { return };
        member.open = member.open.saturating_sub(1);
        if let Some(listener) = member.find(choice) {
            listener.open = listener.open.saturating_sub(1);
        }
    }

    /// As [`release`](Self::release), for a process that cannot be reached any more: it is offered nothing further.
    pub fn give_up(&mut self, choice: Choice) {
        self.release(choice);
        let member = self.members.get_mut(choice.member.0 as usize);
        if let Some(listener) = member.and_then(|m| m.find(choice)) {
            listener.credit = 0;
        }
    }

    fn listener_mut(&mut self, channel: ChannelId, id: u32) -> Option<(MemberId, &mut Listener)> {
        self.members.iter_mut().enumerate().find_map(|(at, member)| {
            let found = member.listeners.iter_mut().find(|l| l.channel == channel && l.id == id)?;
            Some((MemberId(at as u32), found))
        })
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
}
