//! poll on sets of kernel and accelerated descriptors.

use csp_types::spin::Gap;
use libc::{c_int, c_short, pollfd, sigset_t};

use super::zerocopy;
use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock;
use crate::sys::Errno;
use crate::wait::{self, Busy, Deadline, Sleeper, Wakes, enroll, resign, sooner};

/// Events that poll(2) reports even when not requested.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Whether the filter serves any descriptor of a poll set.
pub fn concerns(fds: &[pollfd]) -> bool {
    !lock::inside() && fds.iter().any(|p| fdtable::is_ours(p.fd) || zerocopy::may_report(p.fd))
}

enum Readiness {
    Ready,
    Again,
    /// The descriptor number now refers to another file.
    Moved,
    Sleep(Option<(c_int, Option<Wakes>)>, Option<u64>),
}

/// poll, ppoll: returns how many entries have events.
///
/// # Safety
/// `mask` must be null or point to a signal set.
pub unsafe fn poll(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let ours = ENGINE.with(|engine| {
        let ours = |(at, p): (usize, &pollfd)| {
            let id = engine.of_fd(p.fd).or_else(|| engine.carried_zero_copy(p.fd));
            Some((at, id?))
        };
        fds.iter().enumerate().filter_map(ours).collect()
    });
    // SAFETY: by the caller's contract `mask` is null or points to a signal set.
    let result = unsafe { look_and_sleep(fds, ours, timeout_ns, mask, None) };
    // A signal handler may have run while the lists above were freed.
    ENGINE.settled();
    result
}

/// Like [`poll`], for a single set on which a call waits, by a descriptor of the program or [the filter's
/// own](Engine::outlive). Returns whether the set is ready.
///
/// # Safety
/// As for [`poll`].
pub(super) unsafe fn poll_set(
    epoll: c_int,
    id: DescriptionId,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<bool, Errno> {
    let mut set = [pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
    // SAFETY: by the caller's contract `mask` is null or points to a signal set.
    let found = unsafe { look_and_sleep(&mut set, vec![(0, id)], timeout_ns, mask, Some(id)) };
    found.map(|count| count > 0)
}

/// Returns the kernel's part of the set. Sockets of the filter have no descriptor in it, since the kernel's
/// view of them is meaningless. An epoll set in it must report its exact readiness.
fn kernels_part(fds: &[pollfd], ours: &[(usize, DescriptionId)]) -> Vec<pollfd> {
    let mut kernel = fds.to_vec();
    ENGINE.with(|engine| {
        for (at, id) in ours {
            let Some(entry) = kernel.get_mut(*at) else { continue };
            if engine.is_epoll(id.index) {
                engine.watch(entry.fd, *id);
            } else {
                entry.fd = -1;
            }
        }
    });
    kernel
}

/// # Safety
/// As [`poll`].
unsafe fn look_and_sleep(
    fds: &mut [pollfd],
    ours: Vec<(usize, DescriptionId)>,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    call: Option<DescriptionId>,
) -> Result<usize, Errno> {
    let deadline = Deadline::after(timeout_ns);
    let mut gap = Gap::new();
    // The kernel's part of the set, then three entries of the filter.
    let mut kernel = kernels_part(fds, &ours);
    let targets: Vec<DescriptionId> = ours.iter().map(|(_, id)| *id).collect();
    let count = fds.len();
    kernel.extend([pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 3]);
    loop {
        let state = ENGINE.with(|engine| {
            poll_carried(engine, &mut kernel, fds, &ours);
            // The caller continues with another descriptor of the set.
            if call.is_some_and(|set| is_another(fds, set)) {
                return Readiness::Moved;
            }
            check_once(engine, fds, &ours, &targets, deadline, &mut gap)
        });
        let (sleep_ns, enrolled) = match state {
            Readiness::Again => {
                wait::yield_processor(&gap);
                continue;
            }
            Readiness::Moved => return Ok(1),
            Readiness::Ready => (Some(0), None),
            Readiness::Sleep(enrolled, sleep_ns) => (sleep_ns, enrolled),
        };
        let (waiter, wakes) = enrolled.unwrap_or((-1, None));
        if let Some([first, rest @ ..]) = kernel.get_mut(count..) {
            first.fd = waiter;
            rest.copy_from_slice(&wait::pollfds(wakes));
        }
        // SAFETY: by the caller's contract `mask` is null or points to a signal set.
        let slept = unsafe {
            wait::ppoll(
                &mut kernel,
                sleep_ns,
                mask,
                &mut Sleeper { descriptions: &targets, waiter, mask: None, call },
            )
        };
        gap.woke();
        if waiter >= 0 {
            let agent = kernel.last().is_some_and(|k| k.revents != 0);
            ENGINE.with(|engine| {
                engine.woken(agent);
                resign(engine, &targets, waiter);
            });
        }
        match slept {
            // Readiness found before the signal is not lost: the next call reports it.
            Err(errno) if !matches!(look_result(fds, &ours), n if n > 0) => return Err(errno),
            Err(_) => kernel.iter_mut().for_each(|k| k.revents = 0),
            Ok(_) => {}
        }
        let ready = merge(fds, &kernel);
        if ready > 0 {
            return Ok(ready);
        }
        if deadline.is_over() && enrolled.is_none() {
            return Ok(0);
        }
    }
}

/// Polls connections that were passed to the agent, perhaps while this call slept: the kernel reports their
/// events from then on.
fn poll_carried(engine: &Engine, kernel: &mut [pollfd], fds: &[pollfd], ours: &[(usize, DescriptionId)]) {
    for (at, id) in ours {
        let carried = engine.descriptions.is_current(*id)
            && matches!(
                engine.descriptions.get(id.index),
                Some(Description { kind: Kind::Carried { .. }, .. })
            );
        if let (true, Some(entry), Some(asked)) = (carried, kernel.get_mut(*at), fds.get(*at)) {
            entry.fd = asked.fd;
        }
    }
}

/// Whether the descriptor by which a set is polled was closed, and may now refer to another file.
fn is_another(fds: &[pollfd], set: DescriptionId) -> bool {
    let entry = fds.first().map(|set| fdtable::entry(set.fd));
    !matches!(entry, Some(Entry::Hidden)) && entry != Some(Entry::Ours(set.index))
}

fn look_result(fds: &[pollfd], ours: &[(usize, DescriptionId)]) -> usize {
    ours.iter().filter(|(at, _)| fds.get(*at).is_some_and(|p| p.revents != 0)).count()
}

/// Merges the kernel's results with those of accelerated sockets; returns the number of entries with events.
fn merge(fds: &mut [pollfd], kernel: &[pollfd]) -> usize {
    let mut ready = 0;
    for (entry, kernel) in fds.iter_mut().zip(kernel) {
        if kernel.fd >= 0 {
            entry.revents |= kernel.revents;
        }
        ready += usize::from(entry.revents != 0);
    }
    ready
}

fn check_once(
    engine: &mut Engine,
    fds: &mut [pollfd],
    ours: &[(usize, DescriptionId)],
    targets: &[DescriptionId],
    deadline: Deadline,
    gap: &mut Gap,
) -> Readiness {
    let moved = engine.progress();
    engine.refresh();
    let mut ready = false;
    fds.iter_mut().for_each(|p| p.revents = 0);
    for (at, id) in ours {
        let Some(entry) = fds.get_mut(*at) else { continue };
        if let Some(Description { kind: Kind::Listener(_), .. }) = engine.descriptions.get(id.index) {
            engine.show_interest(id.index);
        }
        let open = engine.descriptions.is_open(*id) || fdtable::entry(entry.fd) == Entry::Hidden;
        entry.revents =
            if open { engine.ready_bits(*id) as c_short & (entry.events | ALWAYS) } else { libc::POLLNVAL };
        ready |= entry.revents != 0;
    }
    if ready {
        wait::found(&mut engine.spin, gap);
        engine.publish_soon();
        return Readiness::Ready;
    }
    if deadline.is_over() {
        return Readiness::Sleep(None, Some(0));
    }
    if engine.raised.is_empty() && (moved || wait::looks_again(&mut engine.spin, gap)) {
        return Readiness::Again;
    }
    let Ok(waiter) = enroll(engine, targets) else { return Readiness::Sleep(None, Some(0)) };
    match engine.arm(Some(waiter)) {
        Ok(wake) => Readiness::Sleep(Some((waiter, wake)), sooner(deadline.left(), engine.next_timeout())),
        Err(Busy) => {
            resign(engine, targets, waiter);
            Readiness::Again
        }
    }
}
