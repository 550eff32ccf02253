//! epoll_ctl and epoll_wait on sets with accelerated members.

use core::sync::atomic::{AtomicU32, Ordering};
use std::mem;

use csp_types::spin::Gap;
use libc::{c_int, epoll_event, sigset_t};

use super::epoll_sleep::{KernelSleep, kernel_wait};
use super::error_events::same_set;
use super::poll;
use crate::description::{Description, DescriptionId, KernelMembership, Kind, Membership};
use crate::engine::{ENGINE, Engine};
use crate::epoll_set::EpollSet;
use crate::fdtable::{self, Entry};
use crate::lock;
use crate::memory::is_unmappable;
use crate::sys::{self, Errno, syscall};
use crate::wait::{self, Busy, Deadline, sooner};

/// One in this many calls that find accelerated members ready also polls the kernel's members.
const KERNEL_TURN: u32 = 4;

static SETS_MADE: AtomicU32 = AtomicU32::new(0);

/// Number of sets that the filter has begun to serve. A call that began before such a change may have
/// received events of the filter's own registrations.
pub fn sets_made() -> u32 {
    SETS_MADE.load(Ordering::Relaxed)
}

/// epoll_ctl(); `None` means that the kernel has to do it.
///
/// # Safety
/// `event` must be null or readable.
pub unsafe fn control(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *const epoll_event,
) -> Option<Result<usize, Errno>> {
    if lock::inside() {
        return None;
    }
    let given = if operation == libc::EPOLL_CTL_DEL || is_unmappable(event) {
        None
    } else {
        // SAFETY: by the caller's contract `event` is null or points to an event.
        Some(unsafe { event.read_unaligned() })
    };
    match (fdtable::entry(fd), fdtable::entry(epoll)) {
        (Entry::Hidden, _) => Some(Err(libc::EBADF)),
        (Entry::Set(_), _) => ENGINE.with(|engine| engine.nest(epoll, operation, fd, given)),
        (Entry::Ours(index), _) => ENGINE.with(|engine| {
            if engine.is_epoll(index) {
                return engine.nest(epoll, operation, fd, given);
            }
            Some(engine.control(epoll, operation, fd, given).map(|()| 0))
        }),
        (Entry::Candidate(index), set) => {
            ENGINE.with(|engine| {
                if let Entry::Ours(set) = set {
                    engine.avoid_tag(epoll, set, given);
                }
                engine.note_kernel_member(index, epoll, operation, fd, given);
            });
            None
        }
        (Entry::Carried(index), set) => Some(ENGINE.with(|engine| {
            if let Entry::Ours(set) = set {
                engine.avoid_tag(epoll, set, given);
            }
            // SAFETY: by the caller's contract `event` is what the operation takes.
            unsafe { engine.control_carried(index, (epoll, fd), operation, event) }
        })),
        (_, Entry::Ours(index)) => {
            ENGINE.with(|engine| engine.avoid_tag(epoll, index, given));
            None
        }
        _ => None,
    }
}

impl Engine {
    /// Selects another tag if a kernel member carries the filter's.
    pub(super) fn avoid_tag(&mut self, epoll: c_int, index: usize, event: Option<epoll_event>) {
        if let (Some(Description { kind: Kind::Epoll(set), .. }), Some(event)) =
            (self.descriptions.get_mut(index), event)
            && set.is_tag(event.u64)
        {
            set.avoid(epoll, event.u64);
        }
    }

    /// Records where a candidate or a carried connection is registered.
    pub(super) fn note_kernel_member(
        &mut self,
        index: usize,
        epoll: c_int,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        d.kernel_sets.retain(|m| m.fd != fd || !same_set(m.epoll, epoll));
        if let (true, Some(event)) = (operation != libc::EPOLL_CTL_DEL, event) {
            let (events, data) = (event.events, event.u64);
            d.kernel_sets.push(KernelMembership { epoll, fd, events, data, shown: false });
        }
    }

    /// Moves the registrations of a candidate that became accelerated from the kernel's sets to accelerated
    /// ones.
    pub fn move_memberships(&mut self, index: usize) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        for member in mem::take(&mut d.kernel_sets) {
            // SAFETY: no event is read when deleting. For a set that was closed since, the call fails and
            // there is no member.
            let deleted =
                unsafe { syscall!(libc::SYS_epoll_ctl, member.epoll, libc::EPOLL_CTL_DEL, member.fd, 0) };
            if deleted.is_ok() {
                let event = epoll_event { events: member.events, u64: member.data };
                let _ = self.control(member.epoll, libc::EPOLL_CTL_ADD, member.fd, Some(event));
            }
        }
    }

    /// The set behind an epoll descriptor. It is created when the first accelerated member is added, or when
    /// it is nested with another set.
    pub(super) fn set_of(&mut self, epoll: c_int) -> Result<DescriptionId, Errno> {
        if let Some(id) = self.of_fd(epoll) {
            return if self.is_epoll(id.index) { Ok(id) } else { Err(libc::EINVAL) };
        }
        let set = EpollSet::new(epoll)?;
        let wake = set.wake;
        fdtable::hide(wake);
        let kind = Kind::Epoll(Box::new(set));
        let index = if let Entry::Set(index) = fdtable::entry(epoll) {
            self.descriptions.get_mut(index).ok_or(libc::ENOSPC)?.kind = kind;
            fdtable::promote(index);
            index
        } else {
            let index = self.descriptions.insert(kind, 0).ok_or(libc::ENOSPC)?;
            if !fdtable::set(epoll, index) {
                self.descriptions.remove(index);
                return Err(libc::ENOSPC);
            }
            index
        };
        SETS_MADE.fetch_add(1, Ordering::Relaxed);
        // Threads may have begun to sleep on the kernel's set before the filter served it: they poll again
        // and find that it does.
        sys::signal(wake);
        self.descriptions.id(index).ok_or(libc::ENOSPC)
    }

    /// Takes the set out of its description, so that the engine can be used meanwhile.
    pub(super) fn lend_set(&mut self, id: DescriptionId) -> Option<Box<EpollSet>> {
        let d = self.descriptions.get_mut(id.index).filter(|d| d.generation == id.generation)?;
        match mem::replace(&mut d.kind, Kind::Candidate) {
            Kind::Epoll(set) => Some(set),
            other => {
                d.kind = other;
                None
            }
        }
    }

    pub(super) fn return_set(&mut self, id: DescriptionId, set: Box<EpollSet>) {
        if let Some(d) = self.descriptions.get_mut(id.index) {
            d.kind = Kind::Epoll(set);
        }
    }

    fn control(
        &mut self,
        epoll: c_int,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        let target = self.of_fd(fd).ok_or(libc::EBADF)?;
        if operation != libc::EPOLL_CTL_ADD && self.of_fd(epoll).is_none() {
            return Err(libc::ENOENT);
        }
        let id = self.set_of(epoll)?;
        if operation != libc::EPOLL_CTL_DEL {
            self.show_interest(target.index);
        }
        let mut set = self.lend_set(id).ok_or(libc::EINVAL)?;
        let done = change(&mut set, operation, fd, target, event);
        if let Some(wakes) = self.wakes() {
            set.follow(epoll, wakes);
        }
        self.return_set(id, set);
        let member = done?;
        let membership = Membership { set: id, member };
        let Some(d) = self.descriptions.get_mut(target.index) else { return Err(libc::EBADF) };
        if operation == libc::EPOLL_CTL_DEL {
            d.sets.retain(|m| *m != membership);
            if d.sets.is_empty() {
                self.lose_interest(target.index);
            }
            return Ok(());
        }
        if operation == libc::EPOLL_CTL_ADD {
            d.sets.push(membership);
        }
        // A member that is ready already is reported at once, also if edge-triggered.
        if self.ready_bits(target) != 0 {
            self.on_member_change(membership);
        }
        Ok(())
    }

    /// Records that the program no longer waits for a listener's connections, so that other processes get
    /// them.
    pub fn lose_interest(&mut self, index: usize) {
        let Some(Description { kind: Kind::Listener(state), .. }) = self.descriptions.get_mut(index) else {
            return;
        };
        state.interest = false;
        if let (Some(id), Some(link)) = (state.id, &mut self.link) {
            let _ = link.app.set_interest(id, false);
        }
    }

    /// Announces the listeners of a set that a failed attachment has kept from being announced.
    fn interested(&mut self, set: &mut EpollSet) {
        let is_listener = |id: DescriptionId| {
            matches!(self.descriptions.get(id.index), Some(Description { kind: Kind::Listener(_), .. }))
        };
        for &(_, id) in set.listeners(is_listener) {
            let index = id.index;
            if self.descriptions.is_current(id)
                && let Some(Description { kind: Kind::Listener(state), .. }) = self.descriptions.get(index)
                && !state.interest
            {
                self.show_interest(index);
            }
        }
    }
}

/// Changes a set; returns the member's index.
fn change(
    set: &mut EpollSet,
    operation: c_int,
    fd: c_int,
    target: DescriptionId,
    event: Option<epoll_event>,
) -> Result<usize, Errno> {
    let found = set.find(fd, target);
    match operation {
        libc::EPOLL_CTL_ADD => set.add(fd, target, event.ok_or(libc::EFAULT)?),
        libc::EPOLL_CTL_MOD => {
            let at = found.ok_or(libc::ENOENT)?;
            set.modify(at, event.ok_or(libc::EFAULT)?)?;
            Ok(at)
        }
        libc::EPOLL_CTL_DEL => {
            let at = found.ok_or(libc::ENOENT)?;
            set.remove(at);
            Ok(at)
        }
        _ => Err(libc::EINVAL),
    }
}

/// The result of one check of a set.
enum SetState {
    /// The number of ready accelerated members.
    Ready(usize),
    /// Like `Ready`, and the kernel's members are polled for the remaining entries.
    Also(usize),
    /// The kernel's members are polled first; ready accelerated members get the remaining entries.
    KernelFirst,
    /// Work was done, so the set has to be checked again.
    Again,
    /// Nothing is ready: sleep in the kernel, at most for this time in nanoseconds.
    Sleep(Option<u64>),
    /// Like `Sleep`, for a set that does not wake by itself when an accelerated member becomes ready.
    SleepOutside,
    /// The descriptor is not, or no longer, a set that the filter serves.
    NotOurs,
}

/// epoll_wait and its variants; `None`: not a set that the filter serves.
///
/// # Safety
/// `mask` must be null or point to a signal set.
pub unsafe fn wait(
    epoll: c_int,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    let Entry::Ours(_) = fdtable::entry(epoll) else { return None };
    if lock::inside() {
        return Some(Ok(0));
    }
    let id = ENGINE.with(|engine| engine.of_fd(epoll).filter(|id| engine.is_epoll(id.index)))?;
    let deadline = Deadline::after(timeout_ns);
    let mut gap = Gap::new();
    let mut counted = false;
    // The kernel has reported that a member is ready.
    let mut ready = false;
    loop {
        let (state, epoll) = ENGINE.with(|engine| {
            let by = engine.still_by(epoll, id);
            let state = engine.check_once(by, id, events, ready, deadline, &mut gap);
            match (&state, counted) {
                (SetState::NotOurs | SetState::Ready(_), true) => engine.end_call(id),
                (SetState::NotOurs | SetState::Ready(_), false) | (_, true) => {}
                (_, false) => engine.begin_call(id.index),
            }
            (state, by)
        });
        counted = true;
        let mut kernel_sleep = KernelSleep { id, epoll, found: 0, turn: false, time_ns: Some(0), deadline };
        let mut let_in = core::ptr::null();
        match state {
            SetState::NotOurs => return Some(Err(libc::EBADF)),
            SetState::Again => {
                wait::yield_processor(&gap);
                continue;
            }
            SetState::Ready(count) => return Some(Ok(count)),
            SetState::Also(count) => kernel_sleep.found = count,
            SetState::KernelFirst => kernel_sleep.turn = true,
            // The mask applies to each sleep as a whole.
            SetState::Sleep(time_ns) => (kernel_sleep.time_ns, let_in) = (time_ns, mask),
            SetState::SleepOutside => {
                // SAFETY: by the caller's contract `mask` is null or points to a signal set.
                match unsafe { poll::poll_set(epoll, id, deadline.left(), mask) } {
                    Ok(found) => ready = found,
                    Err(errno) => {
                        ENGINE.with(|engine| engine.end_call(id));
                        return Some(Err(errno));
                    }
                }
                continue;
            }
        }
        ready = false;
        gap.woke();
        // SAFETY: by the caller's contract `mask` is null or points to a signal set.
        if let Some(result) = unsafe { kernel_wait(&kernel_sleep, events, let_in) }.transpose() {
            return Some(result);
        }
    }
}

impl Engine {
    /// Collects the events of ready accelerated members, as many as there is room for.
    pub(super) fn collect(&mut self, id: DescriptionId, events: &mut [epoll_event]) -> Option<usize> {
        let mut set = self.lend_set(id)?;
        let count = set.collect(events, |member| self.ready_bits(member));
        self.return_set(id, set);
        Some(count)
    }

    fn check_once(
        &mut self,
        epoll: c_int,
        id: DescriptionId,
        events: &mut [epoll_event],
        ready: bool,
        deadline: Deadline,
        gap: &mut Gap,
    ) -> SetState {
        if !self.descriptions.is_current(id) {
            return SetState::NotOurs;
        }
        let moved = self.progress();
        self.refresh();
        let Some(mut set) = self.lend_set(id) else { return SetState::NotOurs };
        self.interested(&mut set);
        if let Some(wakes) = self.wakes() {
            set.follow(epoll, wakes);
        }
        let turn = set.turns.wrapping_add(1).is_multiple_of(KERNEL_TURN) && set.has_queued();
        // An event that is collected must be reported by this call: on the kernel's turn that is done last.
        let count = if turn { 0 } else { set.collect(events, |member| self.ready_bits(member)) };
        if count > 0 || turn {
            // A ready set inside this one is the kernel's member.
            let also = !self.raised.is_empty() && (1..events.len()).contains(&count);
            set.turns = set.turns.wrapping_add(1);
            set.sleepers += u32::from(turn || also);
            self.return_set(id, set);
            wait::found(&mut self.spin, gap);
            self.publish_soon();
            return match (turn, also) {
                (true, _) => SetState::KernelFirst,
                (false, true) => SetState::Also(count),
                (false, false) => SetState::Ready(count),
            };
        }
        if ready || deadline.is_over() {
            set.sleepers += 1;
            self.return_set(id, set);
            return SetState::Sleep(Some(0));
        }
        if set.watched && !set.foreign {
            self.return_set(id, set);
            return SetState::SleepOutside;
        }
        if self.raised.is_empty() && (moved || wait::looks_again(&mut self.spin, gap)) {
            self.return_set(id, set);
            return SetState::Again;
        }
        set.sleepers += 1;
        // The waker of a parent's set would wake threads of the parent as well.
        let waker = (!set.foreign).then_some(set.wake);
        self.return_set(id, set);
        match self.arm(waker) {
            Ok(_) => SetState::Sleep(sooner(deadline.left(), self.next_timeout())),
            Err(Busy) => {
                self.wake_sleeper(id);
                SetState::Again
            }
        }
    }
}
