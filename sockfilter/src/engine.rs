//! The state under the one lock: descriptions, the attachment, and the notification of waiting threads.

mod asleep;
mod shown;

use csp_app::{AppError, Handle, ListenerId, Readiness};
use csp_types::Instant;
use csp_types::spin::{SpinPolicy, SpinSetting, SpinWorth};
use csp_wire::agent::page::Reason;
use libc::c_int;

use crate::attach::{self, Link};
use crate::bootstrap;
use crate::description::{Description, DescriptionId, Descriptions, Kind, ListenState, Membership};
use crate::epoll_set::EpollSet;
use crate::fdtable::{self, Entry};
use crate::lock::Locked;
use crate::sys::{self, Errno};
use asleep::SleepingThread;

/// The engine of this process.
pub static ENGINE: Locked<Engine> = Locked::new(Engine::new());

/// Delay after a failed attachment before the next attempt, in nanoseconds.
const ATTACH_RETRY_NS: u64 = 1_000_000_000;

/// Time for which the results of the last processing count as current, in nanoseconds: less than a time slice
/// of the scheduler.
const FRESH_NS: u64 = 100_000;

/// Trace events that accumulate in a busy program before they are published to the agent.
const PUBLISH_EVENTS: usize = 64;

/// The filter's own counters, in the order of `COUNTER_NAMES` from index 20.
#[derive(Clone, Copy, Default, Debug)]
pub struct FilterCounters {
    /// listen() calls that were accelerated.
    pub listeners_accelerated: u64,
    /// listen() calls left to the kernel.
    pub listeners_kernel: u64,
    /// connect() calls left to the kernel.
    pub connects_kernel: u64,
    /// Uses of connections that only the parent of a fork can use.
    pub inherited_connections_lost: u64,
    /// Times a thread went to sleep.
    pub waits: u64,
    /// Times it was woken by an event of an accelerated socket.
    pub wakeups: u64,
    /// Attachments made.
    pub attaches: u64,
    /// Attachments that failed.
    pub attach_failures: u64,
    /// Forks of this process.
    pub forks: u64,
    /// Sockets for which the description table had no room.
    pub descriptors_full: u64,
    /// Connections that were passed to the agent, to be shared with other processes.
    pub connections_shared: u64,
}

/// The state.
pub struct Engine {
    /// Open descriptions.
    pub descriptions: Descriptions,
    /// The attachment, once made.
    pub link: Option<Link>,
    /// Counts.
    pub counters: FilterCounters,
    attach_not_before: u64,
    complained: bool,
    flow_owners: Vec<u32>,
    listener_owners: Vec<u32>,
    /// Eventfds for waiting threads that are currently unused.
    pub idle_waiters: Vec<c_int>,
    /// Epoll sets polled from outside that signal ready members.
    pub raised: Vec<DescriptionId>,
    /// Threads that sleep until the provider wakes them.
    pub asleep: Vec<SleepingThread>,
    /// Whether the provider was polled since it was armed, so that it wakes no thread.
    disarmed: bool,
    /// When [`progress`](Self::progress) was last called, in nanoseconds of CLOCK_MONOTONIC.
    progressed_at: u64,
    /// Busy-poll time of blocking calls before they sleep.
    pub spin: SpinPolicy,
}

/// The poll(2) events of a readiness.
pub fn poll_bits(ready: Readiness) -> u32 {
    let pairs = [
        (Readiness::READABLE, libc::EPOLLIN | libc::EPOLLRDNORM),
        (Readiness::WRITABLE, libc::EPOLLOUT | libc::EPOLLWRNORM),
        (Readiness::PEER_SHUTDOWN, libc::EPOLLRDHUP),
        (Readiness::HANG_UP, libc::EPOLLHUP),
        (Readiness::ERROR, libc::EPOLLERR),
    ];
    pairs.iter().filter(|(bit, _)| ready.contains(*bit)).fold(0, |bits, (_, event)| bits | *event as u32)
}

impl Engine {
    const fn new() -> Self {
        Engine {
            descriptions: Descriptions::new(),
            link: None,
            counters: FilterCounters {
                listeners_accelerated: 0,
                listeners_kernel: 0,
                connects_kernel: 0,
                inherited_connections_lost: 0,
                waits: 0,
                wakeups: 0,
                attaches: 0,
                attach_failures: 0,
                forks: 0,
                descriptors_full: 0,
                connections_shared: 0,
            },
            attach_not_before: 0,
            complained: false,
            flow_owners: Vec::new(),
            listener_owners: Vec::new(),
            idle_waiters: Vec::new(),
            raised: Vec::new(),
            asleep: Vec::new(),
            disarmed: false,
            progressed_at: 0,
            spin: SpinPolicy::new(SpinSetting::Fixed(0), SpinWorth::APPLICATION),
        }
    }

    /// The description that a descriptor refers to.
    pub fn of_fd(&self, fd: c_int) -> Option<DescriptionId> {
        match fdtable::entry(fd) {
            Entry::Ours(index) => self.descriptions.id(index),
            Entry::Kernel | Entry::Hidden | Entry::Candidate(_) | Entry::Carried(_) | Entry::Set(_) => None,
        }
    }

    /// The attachment. Makes one if there is none and the retry delay has passed.
    pub fn attached(&mut self) -> Result<&mut Link, Reason> {
        if self.link.is_none() {
            self.attach()?;
        }
        self.link.as_mut().ok_or(Reason::NoAgent)
    }

    fn attach(&mut self) -> Result<(), Reason> {
        let now = sys::monotonic_nanos();
        if now < self.attach_not_before {
            return Err(Reason::NoAgent);
        }
        match attach::attach() {
            Ok(link) => {
                self.counters.attaches += 1;
                link.agent.into_iter().for_each(fdtable::hide);
                self.link = Some(link);
                self.hide_descriptors();
                self.rouse_sets();
                Ok(())
            }
            Err(error) => {
                self.counters.attach_failures += 1;
                self.attach_not_before = now + ATTACH_RETRY_NS;
                if !std::mem::replace(&mut self.complained, true) {
                    let then = if bootstrap::is_strict() {
                        "sockets are refused (strict mode)"
                    } else {
                        "sockets stay in the kernel"
                    };
                    sys::log_line(&format!("not accelerated: {error}; {then}"));
                }
                Err(Reason::NoAgent)
            }
        }
    }

    /// Hides the provider's descriptors, which the program must not close.
    fn hide_descriptors(&mut self) {
        let Some(link) = &self.link else { return };
        let mut owned = Vec::new();
        link.provider.descriptors(&mut owned);
        owned.into_iter().for_each(fdtable::hide);
    }

    /// Performs all pending work and notifies the threads concerned. Returns whether there was any work.
    pub fn progress(&mut self) -> bool {
        self.disarmed = true;
        let Some(link) = &mut self.link else { return false };
        let (now, unix) = (sys::monotonic_nanos(), sys::unix_seconds());
        self.progressed_at = now;
        let now = Instant::from_nanos(now);
        let before = (link.app.counters().links_up, link.agent);
        let attached = link.serve_agent(now, unix);
        let any = link.app.progress(now, unix);
        let after = (link.app.counters().links_up, link.agent);
        if after != before {
            link.agent.into_iter().for_each(fdtable::hide);
            self.hide_descriptors();
        }
        if attached {
            self.show_again();
        }
        self.notify_changed();
        any
    }

    /// Calls [`progress`](Self::progress) if the last call was more than [`FRESH_NS`] ago. Called before an
    /// offered connection is accepted, which cannot be undone: a thread that was preempted, or that checked
    /// its listener and then did other work, must not accept a connection that the proxy has withdrawn since.
    pub fn catch_up(&mut self) {
        if sys::monotonic_nanos().saturating_sub(self.progressed_at) > FRESH_NS {
            self.progress();
        }
    }

    /// Notifies the waiters of all sockets whose readiness may have changed.
    pub fn notify_changed(&mut self) {
        while let Some(handle) = self.link.as_mut().and_then(|l| l.app.poll_ready()) {
            let Some(index) = self.owner(handle) else { continue };
            if let Handle::Flow(flow) = handle {
                self.publish_change(index, flow);
            }
            self.on_change(index);
        }
    }

    /// The description that last owned a handle.
    fn owner(&self, handle: Handle) -> Option<usize> {
        let owner = match handle {
            Handle::Flow(id) => self.flow_owners.get(id.index()),
            Handle::Listener(id) => self.listener_owners.get(id.index()),
        };
        owner.copied()?.checked_sub(1).map(|index| index as usize)
    }

    /// Notifies a description's waiters, its epoll sets, and the threads that wait for these.
    pub fn on_change(&mut self, index: usize) {
        let Some(description) = self.descriptions.get(index) else { return };
        description.waiters.iter().copied().for_each(sys::signal);
        for at in 0..description.sets.len() {
            let Some(membership) = self.descriptions.get(index).and_then(|d| d.sets.get(at)).copied() else {
                break;
            };
            self.on_member_change(membership);
        }
    }

    /// Handles a possible change of a member's readiness in an epoll set.
    pub fn on_member_change(&mut self, membership: Membership) {
        if !self.descriptions.is_current(membership.set) {
            return;
        }
        let Some(set) = self.descriptions.get_mut(membership.set.index) else { return };
        set.waiters.iter().copied().for_each(sys::signal);
        let Kind::Epoll(epoll) = &mut set.kind else { return };
        let sleepers = epoll.enqueue(membership.member);
        if epoll.watched {
            let wanted = epoll.wanted(membership.member);
            if wanted.is_some_and(|(id, events)| self.ready_bits(id) & events != 0) {
                self.raise(membership.set);
            }
        } else if sleepers {
            sys::signal(epoll.wake);
        }
    }

    /// Records the description that owns a handle.
    pub fn own(&mut self, handle: Handle, index: usize) {
        let (owners, at) = match handle {
            Handle::Flow(id) => (&mut self.flow_owners, id.index()),
            Handle::Listener(id) => (&mut self.listener_owners, id.index()),
        };
        if owners.len() <= at {
            owners.resize(at + 1, 0);
        }
        if let Some(owner) = owners.get_mut(at) {
            *owner = index as u32 + 1;
        }
    }

    /// The readiness of a description, as bits of poll and epoll.
    pub fn ready_bits(&self, id: DescriptionId) -> u32 {
        if !self.descriptions.is_current(id) {
            return 0;
        }
        let Some(description) = self.descriptions.get(id.index) else { return 0 };
        let app = self.link.as_ref().map(|l| &l.app);
        match (&description.kind, app) {
            (Kind::Flow(flow), Some(app)) => {
                let queue = if description.zero_copy.is_pending() { libc::EPOLLERR as u32 } else { 0 };
                poll_bits(app.readiness(Handle::Flow(*flow))) | queue
            }
            (Kind::Listener(ListenState { id: Some(id), .. }), Some(app)) => {
                poll_bits(app.readiness(Handle::Listener(*id)))
            }
            (Kind::Carried { .. }, _) if description.zero_copy.is_pending() => libc::EPOLLERR as u32,
            (Kind::Lost, _) => (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLIN | libc::EPOLLOUT) as u32,
            (Kind::Epoll(set), _) if set.any_ready(|member| self.ready_bits(member)) => {
                (libc::EPOLLIN | libc::EPOLLRDNORM) as u32
            }
            _ => 0,
        }
    }

    /// Records that the program waits for connections: announces the listener to the proxies (again, in a
    /// forked child) and lets it accept connections.
    pub fn show_interest(&mut self, index: usize) -> Option<ListenerId> {
        let state = self.listen_state(index)?;
        if let (Some(id), true) = (state.id, state.interest) {
            return Some(id);
        }
        let id = match state.id {
            Some(id) => id,
            None => {
                let id = self.attached().ok()?.app.listen(state.address, state.backlog).ok()?;
                self.own(Handle::Listener(id), index);
                id
            }
        };
        self.attached().ok()?.app.set_interest(id, true).ok()?;
        if let Some(Description { kind: Kind::Listener(state), .. }) = self.descriptions.get_mut(index) {
            state.id = Some(id);
            state.interest = true;
        }
        Some(id)
    }

    fn listen_state(&self, index: usize) -> Option<ListenState> {
        match self.descriptions.get(index)?.kind {
            Kind::Listener(state) => Some(state),
            _ => None,
        }
    }

    /// Ends a description to which no descriptor refers any more.
    pub fn end(&mut self, index: usize) {
        let Some(id) = self.descriptions.id(index) else { return };
        let Some(mut description) = self.descriptions.remove(index) else { return };
        description.waiters.iter().copied().for_each(sys::signal);
        for membership in &description.sets {
            self.leave_set(*membership);
        }
        description.close_error_event();
        let now = Instant::from_nanos(sys::monotonic_nanos());
        match description.kind {
            Kind::Flow(flow) => {
                if let Some(link) = &mut self.link {
                    let _ = link.app.close(now, flow, description.linger_zero);
                }
            }
            Kind::Listener(ListenState { id: Some(listener), .. }) => {
                if let Some(link) = &mut self.link {
                    let _ = link.app.close_listener(listener);
                }
            }
            Kind::Epoll(set) => {
                self.leave_members(id, &set);
                if !set.foreign {
                    // A forked child may still use the kernel's set.
                    sys::clear(set.wake);
                }
                for fd in set.descriptors() {
                    fdtable::clear(fd);
                    sys::close(fd);
                }
            }
            Kind::Candidate | Kind::Carried { .. } | Kind::KernelSet | Kind::Lost | Kind::Listener(_) => {}
        }
        self.show_ours(index, None);
        self.publish_soon();
    }

    /// Removes an ended set from its members.
    pub fn leave_members(&mut self, id: DescriptionId, set: &EpollSet) {
        for member in set.members() {
            let Some(d) = self.descriptions.get_mut(member.description.index) else { continue };
            d.sets.retain(|m| m.set != id);
            if d.sets.is_empty() {
                self.lose_interest(member.description.index);
            }
        }
    }

    fn leave_set(&mut self, membership: Membership) {
        if !self.descriptions.is_current(membership.set) {
            return;
        }
        if let Some(Description { kind: Kind::Epoll(set), .. }) =
            self.descriptions.get_mut(membership.set.index)
        {
            set.remove(membership.member);
        }
    }
}

/// The error number of a failed operation.
pub fn errno_of(error: AppError) -> Errno {
    error.errno()
}
