//! The accelerated members of one kernel epoll descriptor.
//!
//! The kernel's set remains authoritative for kernel descriptors. Two descriptors of the filter are
//! registered in it, so that a thread that waits on it (also by poll, or through another epoll set) wakes for
//! accelerated members too: the provider's wake descriptor, and an eventfd for readiness that another thread
//! found. Their registrations carry a random tag.

use std::collections::VecDeque;

use libc::c_int;

use crate::description::DescriptionId;
use crate::sys::{self, Errno, syscall};
use crate::wait::Wakes;

/// The mode bits of a mask, which request no events.
const MODE_BITS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
/// Events that poll(2) and epoll report even when not requested.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// An accelerated member.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The descriptor by which it was added.
    pub fd: c_int,
    /// The description to which that descriptor referred.
    pub description: DescriptionId,
    /// The program's mask with its mode bits.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// Whether it is in the ready list.
    queued: bool,
    /// EPOLLONESHOT has reported it.
    disabled: bool,
}

impl Member {
    /// The mask for the kernel's set when the member moves there.
    pub fn kernel_events(&self) -> u32 {
        // A one-shot member that was reported stays disabled until EPOLL_CTL_MOD.
        if self.disabled { self.events & MODE_BITS } else { self.events }
    }

    /// The events reported for it.
    fn wanted(&self) -> u32 {
        if self.disabled { 0 } else { (self.events & !MODE_BITS) | ALWAYS }
    }
}

/// The set.
#[derive(Debug)]
pub struct EpollSet {
    /// Wakes a thread that sleeps in the kernel's epoll_wait on this set.
    pub wake: c_int,
    /// The filter's own descriptor of the kernel's set. It is created when the program closes a descriptor of
    /// the set while threads wait on it, so that they can continue to sleep.
    pub outliving: Option<c_int>,
    /// Tag of the filter's own registrations.
    pub tag: u64,
    /// Threads that sleep in the kernel on this set.
    pub sleepers: u32,
    /// The descriptors of the attachment that are registered in it.
    followed: Option<Wakes>,
    /// Whether the set was inherited over a fork. The kernel's set is then shared with the parent, which owns
    /// the registrations in it.
    pub foreign: bool,
    /// Calls that found accelerated members ready. Every few of them also poll the kernel's members.
    pub turns: u32,
    /// Whether the kernel's set is polled from outside, by another epoll set or by poll. Its readiness must
    /// then be exact (see `ops::watched`).
    pub watched: bool,
    /// Whether `wake` is readable, to report a ready member to those pollers.
    pub raised: bool,
    /// Threads that slept in the kernel when polling from outside began, and have to wake once.
    pub roused: u32,
    members: Vec<Option<Member>>,
    free: Vec<usize>,
    by_fd: Vec<u32>,
    ready: VecDeque<usize>,
    /// Members added since the last call of [`listeners`](EpollSet::listeners).
    fresh: Vec<usize>,
    /// Members that are listeners.
    listeners: Vec<(usize, DescriptionId)>,
}

/// Registers one of the filter's own descriptors in a kernel set.
fn register(epoll: c_int, fd: c_int, tag: u64, operation: c_int) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: tag };
    // SAFETY: `event` is readable.
    unsafe { syscall!(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) }.map(drop)
}

impl EpollSet {
    /// Creates a set for the kernel's `epoll`, with the filter's registrations.
    pub fn new(epoll: c_int) -> Result<Self, Errno> {
        let wake = sys::eventfd()?;
        let tag = sys::random();
        if let Err(errno) = register(epoll, wake, tag, libc::EPOLL_CTL_ADD) {
            sys::close(wake);
            return Err(errno);
        }
        Ok(EpollSet {
            wake,
            outliving: None,
            tag,
            sleepers: 0,
            followed: None,
            foreign: false,
            turns: 0,
            watched: false,
            raised: false,
            roused: 0,
            members: Vec::new(),
            free: Vec::new(),
            by_fd: Vec::new(),
            ready: VecDeque::new(),
            fresh: Vec::new(),
            listeners: Vec::new(),
        })
    }

    /// The filter's own descriptors that are closed with the set.
    pub fn descriptors(&self) -> impl Iterator<Item = c_int> {
        [Some(self.wake), self.outliving].into_iter().flatten()
    }

    /// Registers the attachment's descriptors in the kernel's set, unless it is polled from outside: outside
    /// pollers would mistake their events for the program's.
    pub fn follow(&mut self, epoll: c_int, wakes: Wakes) {
        if self.followed == Some(wakes) || self.foreign || self.watched {
            return;
        }
        // Former descriptors left the set when they were closed; EEXIST for one that is unchanged.
        let _ = register(epoll, wakes.provider, provider_tag(self.tag), libc::EPOLL_CTL_ADD);
        if let Some(agent) = wakes.agent {
            let _ = register(epoll, agent, agent_tag(self.tag), libc::EPOLL_CTL_ADD);
        }
        self.followed = Some(wakes);
    }

    /// Removes the registrations made by [`follow`](Self::follow).
    pub fn unfollow(&mut self, epoll: c_int) {
        let Some(wakes) = self.followed.take() else { return };
        let _ = register(epoll, wakes.provider, 0, libc::EPOLL_CTL_DEL);
        if let Some(agent) = wakes.agent {
            let _ = register(epoll, agent, 0, libc::EPOLL_CTL_DEL);
        }
    }

    /// Selects other tags because the program uses one of them as its own data.
    pub fn avoid(&mut self, epoll: c_int, data: u64) {
        while self.is_tag(data) {
            self.tag = sys::random();
        }
        let _ = register(epoll, self.wake, self.tag, libc::EPOLL_CTL_MOD);
        if let Some(wakes) = self.followed {
            let _ = register(epoll, wakes.provider, provider_tag(self.tag), libc::EPOLL_CTL_MOD);
            if let Some(agent) = wakes.agent {
                let _ = register(epoll, agent, agent_tag(self.tag), libc::EPOLL_CTL_MOD);
            }
        }
    }

    /// Whether the program's data equals one of the filter's tags.
    pub fn is_tag(&self, data: u64) -> bool {
        data.wrapping_sub(self.tag) < TAGS
    }

    fn place(&self, fd: c_int) -> Option<usize> {
        (self.by_fd.get(fd as usize).copied()? as usize).checked_sub(1)
    }

    /// The member that was added by `fd` for `description`.
    pub fn find(&self, fd: c_int, description: DescriptionId) -> Option<usize> {
        let at = self.place(fd)?;
        self.members.get(at)?.filter(|m| m.description == description).map(|_| at)
    }

    /// EPOLL_CTL_ADD; returns the member's index.
    pub fn add(
        &mut self,
        fd: c_int,
        description: DescriptionId,
        event: libc::epoll_event,
    ) -> Result<usize, Errno> {
        const WITH_EXCLUSIVE: i32 = libc::EPOLLIN
            | libc::EPOLLOUT
            | libc::EPOLLERR
            | libc::EPOLLHUP
            | libc::EPOLLWAKEUP
            | libc::EPOLLET
            | libc::EPOLLEXCLUSIVE;
        let exclusive = event.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        if exclusive && event.events & !(WITH_EXCLUSIVE as u32) != 0 {
            return Err(libc::EINVAL);
        }
        if self.find(fd, description).is_some() {
            return Err(libc::EEXIST);
        }
        let member =
            Member { fd, description, events: event.events, data: event.u64, queued: false, disabled: false };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.members.push(None);
                self.members.len() - 1
            }
        };
        if let Some(slot) = self.members.get_mut(at) {
            *slot = Some(member);
        }
        self.fresh.push(at);
        let index = fd as usize;
        if index >= self.by_fd.len() {
            self.by_fd.resize(index + 1, 0);
        }
        if let Some(entry) = self.by_fd.get_mut(index) {
            *entry = at as u32 + 1;
        }
        Ok(at)
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(&mut self, at: usize, event: libc::epoll_event) -> Result<(), Errno> {
        let member = self.members.get_mut(at).and_then(Option::as_mut).ok_or(libc::ENOENT)?;
        let exclusive = libc::EPOLLEXCLUSIVE as u32;
        if (member.events | event.events) & exclusive != 0 {
            return Err(libc::EINVAL);
        }
        member.events = event.events;
        member.data = event.u64;
        member.disabled = false;
        Ok(())
    }

    /// EPOLL_CTL_DEL, or the end of the description. The member's entry in the ready list is skipped later.
    pub fn remove(&mut self, at: usize) -> Option<Member> {
        let member = self.members.get_mut(at)?.take()?;
        if self.place(member.fd) == Some(at)
            && let Some(entry) = self.by_fd.get_mut(member.fd as usize)
        {
            *entry = 0;
        }
        if member.queued {
            self.ready.retain(|&other| other != at);
        }
        self.free.push(at);
        Some(member)
    }

    /// Puts a member whose readiness may have changed into the ready list, for the next wait to check.
    /// Returns whether a sleeping thread has to be woken.
    pub fn enqueue(&mut self, at: usize) -> bool {
        let Some(member) = self.members.get_mut(at).and_then(Option::as_mut) else { return false };
        if !member.queued && !member.disabled {
            member.queued = true;
            self.ready.push_back(at);
        }
        self.sleepers > 0
    }

    /// Whether any member may be ready.
    pub fn has_queued(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A member's description, and the events reported for it.
    pub fn wanted(&self, at: usize) -> Option<(DescriptionId, u32)> {
        self.members.get(at)?.as_ref().map(|m| (m.description, m.wanted()))
    }

    /// Whether any member is ready; `now` returns the events of a description.
    pub fn any_ready(&self, now: impl Fn(DescriptionId) -> u32) -> bool {
        let wanted = self.ready.iter().filter_map(|at| self.wanted(*at));
        wanted.into_iter().any(|(id, events)| now(id) & events != 0)
    }

    /// Like [`any_ready`](Self::any_ready), and removes members that are no longer ready from the front of
    /// the list (as an outer poll does).
    pub fn settle(&mut self, now: impl Fn(DescriptionId) -> u32) -> bool {
        while let Some(&at) = self.ready.front() {
            if let Some(member) = self.members.get_mut(at).and_then(Option::as_mut) {
                if now(member.description) & member.wanted() != 0 {
                    return true;
                }
                member.queued = false;
            }
            self.ready.pop_front();
        }
        false
    }

    /// The members that are listeners; `is_listener` is called once for each member. So waiting on a set of
    /// thousands of connections costs no more than on an empty one.
    pub fn listeners(&mut self, is_listener: impl Fn(DescriptionId) -> bool) -> &[(usize, DescriptionId)] {
        let members = &self.members;
        let member = |at: usize| members.get(at).and_then(Option::as_ref).map(|m| m.description);
        // Removed members may have been replaced by others.
        self.listeners.retain(|(at, id)| member(*at) == Some(*id));
        if !self.fresh.is_empty() {
            let fresh = self.fresh.drain(..).filter_map(|at| member(at).map(|id| (at, id)));
            self.listeners.extend(fresh.filter(|(_, id)| is_listener(*id)));
            self.listeners.sort_unstable_by_key(|(at, _)| *at);
            self.listeners.dedup();
        }
        &self.listeners
    }

    /// Whether a member is still that description.
    #[cfg(test)]
    fn is_member(&self, at: usize, description: DescriptionId) -> bool {
        self.members.get(at).and_then(Option::as_ref).is_some_and(|m| m.description == description)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    /// Stores the events of ready members in `events`, up to its length. `now` returns the events of a
    /// description. Level-triggered members move to the back of the list, so that a busy member does not
    /// starve the others (as in the kernel).
    pub fn collect(&mut self, events: &mut [libc::epoll_event], now: impl Fn(DescriptionId) -> u32) -> usize {
        let mut count = 0;
        for _ in 0..self.ready.len() {
            let Some(slot) = events.get_mut(count) else { break };
            let Some(at) = self.ready.pop_front() else { break };
            let Some(member) = self.members.get_mut(at).and_then(Option::as_mut) else { continue };
            member.queued = false;
            let found = now(member.description) & member.wanted();
            if found == 0 {
                continue;
            }
            *slot = libc::epoll_event { events: found, u64: member.data };
            count += 1;
            if member.events & libc::EPOLLONESHOT as u32 != 0 {
                member.disabled = true;
            } else if member.events & libc::EPOLLET as u32 == 0 {
                member.queued = true;
                self.ready.push_back(at);
            }
        }
        count
    }

    /// Removes the filter's own events from those that the kernel returned.
    pub fn strip(&self, events: &mut [libc::epoll_event]) -> Stripped {
        let mut found = Stripped { kept: 0, ours: false, woken: false, agent: false };
        for at in 0..events.len() {
            let event = events[at];
            if self.is_tag(event.u64) {
                found.ours = true;
                found.woken |= event.u64 == self.tag;
                found.agent |= event.u64 == agent_tag(self.tag);
            } else {
                events[found.kept] = event;
                found.kept += 1;
            }
        }
        found
    }
}

/// The result of [`EpollSet::strip`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripped {
    /// Events of the program, now at the front.
    pub kept: usize,
    /// Whether there were events of the filter.
    pub ours: bool,
    /// The set's own eventfd was among them.
    pub woken: bool,
    /// The agent's socket was among them.
    pub agent: bool,
}

/// Tags of a set: that of the eventfd, and the next two for the agent's socket and the provider's descriptor.
const TAGS: u64 = 3;

fn agent_tag(tag: u64) -> u64 {
    tag.wrapping_add(1)
}

fn provider_tag(tag: u64) -> u64 {
    tag.wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: usize) -> DescriptionId {
        DescriptionId { index, generation: 0 }
    }

    fn set() -> EpollSet {
        // SAFETY: no pointers.
        let epoll = unsafe { syscall!(libc::SYS_epoll_create1, 0) }.unwrap() as c_int;
        EpollSet::new(epoll).unwrap()
    }

    fn event(events: c_int, data: u64) -> libc::epoll_event {
        libc::epoll_event { events: events as u32, u64: data }
    }

    fn data(events: &[libc::epoll_event]) -> Vec<u64> {
        events.iter().map(|e| e.u64).collect()
    }

    const IN: u32 = libc::EPOLLIN as u32;

    #[test]
    fn level_members_rotate_and_edge_members_are_reported_once() {
        let mut s = set();
        for (fd, mode) in [(1, 0), (2, 0), (3, libc::EPOLLET)] {
            let at = s.add(fd, id(fd as usize), event(libc::EPOLLIN | mode, fd as u64)).unwrap();
            s.enqueue(at);
        }
        let mut one = [event(0, 0)];
        let mut next = || if s.collect(&mut one, |_| IN) == 1 { one[0].u64 } else { 0 };
        let seen: Vec<u64> = (0..5).map(|_| next()).collect();
        assert_eq!(seen, [1, 2, 3, 1, 2]);
        assert_eq!(s.collect(&mut one, |_| 0), 0, "nothing is ready any more");
        assert!(!s.has_queued());
    }

    #[test]
    fn oneshot_fires_once_until_modified() {
        let mut s = set();
        let at = s.add(4, id(1), event(libc::EPOLLIN | libc::EPOLLONESHOT, 9)).unwrap();
        let mut events = [event(0, 0); 4];
        s.enqueue(at);
        assert_eq!(s.collect(&mut events, |_| IN), 1);
        s.enqueue(at);
        assert_eq!(s.collect(&mut events, |_| IN), 0);
        s.modify(at, event(libc::EPOLLIN, 10)).unwrap();
        s.enqueue(at);
        let n = s.collect(&mut events, |_| IN | libc::EPOLLHUP as u32);
        assert_eq!(data(&events[..n]), [10]);
        let reported = events[0].events;
        assert_eq!(reported, IN | libc::EPOLLHUP as u32, "HUP is reported without being requested");
    }

    #[test]
    fn an_outer_poll_sees_members_that_are_still_ready() {
        let mut s = set();
        let gone = s.add(3, id(3), event(libc::EPOLLIN, 3)).unwrap();
        let edge = s.add(4, id(4), event(libc::EPOLLIN | libc::EPOLLET, 4)).unwrap();
        s.enqueue(gone);
        s.enqueue(edge);
        let now = |id: DescriptionId| if id.index == 4 { IN } else { libc::EPOLLOUT as u32 };
        assert!(s.any_ready(now) && s.settle(now) && s.settle(now), "asking takes nothing away");
        let mut events = [event(0, 0); 4];
        assert_eq!(s.collect(&mut events, now), 1);
        assert!(!s.any_ready(now) && !s.settle(now), "an edge is reported once");
        s.enqueue(gone);
        assert!(!s.settle(now) && !s.has_queued());
        s.enqueue(gone);
        assert!(s.settle(|_| IN), "a member that left the list returns after a change");
    }

    #[test]
    fn members_are_found_by_descriptor_and_description() {
        let mut s = set();
        let at = s.add(7, id(1), event(libc::EPOLLIN, 1)).unwrap();
        assert_eq!(s.add(7, id(1), event(libc::EPOLLIN, 1)), Err(libc::EEXIST));
        assert_eq!((s.find(7, id(1)), s.find(7, id(2)), s.find(8, id(1))), (Some(at), None, None));
        s.enqueue(at);
        s.remove(at);
        assert_eq!((s.find(7, id(1)), s.has_queued()), (None, false));
        let exclusive = s.add(7, id(1), event(libc::EPOLLIN | libc::EPOLLEXCLUSIVE, 1)).unwrap();
        assert_eq!(s.modify(exclusive, event(libc::EPOLLIN, 1)), Err(libc::EINVAL));
    }

    #[test]
    fn only_new_members_are_asked_whether_they_are_listeners() {
        let mut s = set();
        let listens = |wanted: usize| move |id: DescriptionId| id.index == wanted;
        let first = s.add(3, id(3), event(libc::EPOLLIN, 3)).unwrap();
        for fd in 4..100 {
            s.add(fd, id(fd as usize), event(libc::EPOLLIN, 0)).unwrap();
        }
        assert_eq!(s.listeners(listens(3)), [(first, id(3))]);
        assert_eq!(s.listeners(|_| unreachable!("nothing is new")), [(first, id(3))]);
        s.remove(first);
        assert!(!s.is_member(first, id(3)));
        let again = s.add(200, id(200), event(libc::EPOLLIN, 0)).unwrap();
        assert_eq!((again, s.listeners(listens(200))), (first, &[(first, id(200))][..]));
    }

    #[test]
    fn our_own_events_are_taken_out() {
        let s = set();
        let provider = event(1, provider_tag(s.tag));
        let mut events = [event(1, 5), provider, event(1, 6)];
        assert_eq!(s.strip(&mut events), Stripped { kept: 2, ours: true, woken: false, agent: false });
        assert_eq!(data(&events[..2]), [5, 6]);
    }
}
