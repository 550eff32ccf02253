//! Which descriptors are ours. One relaxed load tells a passing call that it is not concerned.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

/// Descriptors beyond this number are never accelerated.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// A descriptor of the filter itself: the program may not close it.
const HIDDEN: u32 = u32::MAX;
/// Set for descriptors whose description the kernel still carries.
const CANDIDATE: u32 = 1 << 31;
/// Set for descriptors of connections that the agent carries.
const CARRIED: u32 = 1 << 30;
/// Both are set for epoll descriptors that the kernel serves alone.
const SET: u32 = CANDIDATE | CARRIED;

// Untouched pages of it cost nothing.
static TABLE: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// What a descriptor is to the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Not ours.
    Kernel,
    /// The filter's own.
    Hidden,
    /// A kernel TCP socket that may become accelerated; its description has this index.
    Candidate(usize),
    /// A connection that the agent carries over a Unix socket: the kernel moves its bytes, names and options are ours.
    Carried(usize),
    /// An epoll descriptor that the kernel serves alone; its description has this index.
    Set(usize),
    /// An accelerated socket, or an epoll descriptor with such members; its description has this index.
    Ours(usize),
}

/// Looks a descriptor up. Changes only under the engine's lock, but for what signal handlers close and duplicate; without it
/// the answer may be stale.
#[inline]
pub fn entry(fd: c_int) -> Entry {
    meaning(TABLE.get(fd as usize).map_or(0, |e| e.load(Ordering::Relaxed)))
}

fn meaning(value: u32) -> Entry {
    match value {
        0 => Entry::Kernel,
        HIDDEN => Entry::Hidden,
        n => {
            let description = (n & !SET) as usize - 1;
            match n & SET {
                0 => Entry::Ours(description),
                CANDIDATE => Entry::Candidate(description),
                CARRIED => Entry::Carried(description),
                _ => Entry::Set(description),
            }
        }
    }
}

/// The description that a descriptor refers to, of whatever kind.
pub fn description(fd: c_int) -> Option<usize> {
    described(entry(fd))
}

fn described(entry: Entry) -> Option<usize> {
    match entry {
        Entry::Candidate(index) | Entry::Carried(index) | Entry::Set(index) | Entry::Ours(index) => {
            Some(index)
        }
        Entry::Kernel | Entry::Hidden => None,
    }
}

/// Whether calls on a descriptor concern us.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    matches!(entry(fd), Entry::Ours(_))
}

/// Whether names and options of a descriptor are told by us.
#[inline]
pub fn is_named_by_us(fd: c_int) -> bool {
    matches!(entry(fd), Entry::Ours(_) | Entry::Carried(_))
}

/// Makes a descriptor refer to a description that the kernel carries so far. `false` where the number is too large.
pub fn set_candidate(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | CANDIDATE)
}

/// Makes a descriptor refer to a connection that the agent carries. `false` where the number is too large.
pub fn set_carried(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | CARRIED)
}

/// Makes a descriptor refer to an epoll set that the kernel serves alone. `false` where the number is too large.
pub fn set_kernel_set(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | SET)
}

/// Makes a descriptor refer to a description of ours. `false` where the number is too large for the table.
pub fn set(fd: c_int, description: usize) -> bool {
    put(fd, description as u32 + 1)
}

/// Forgets a descriptor.
pub fn clear(fd: c_int) {
    put(fd, 0);
}

/// Forgets a descriptor and tells what description it referred to, to one of all who ask; leaves the filter's own alone.
pub fn take(fd: c_int) -> Option<usize> {
    let old = update(fd, |entry| described(entry).map(|_| 0))?;
    described(meaning(old))
}

/// Forgets a descriptor if it refers to this description still.
pub fn remove_if(fd: c_int, index: usize) -> bool {
    update(fd, |entry| (described(entry) == Some(index)).then_some(0)).is_some()
}

/// What [`copy`] changed: the descriptions that a number refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// From now on.
    pub now: Option<usize>,
    /// And did until now.
    pub before: Option<usize>,
}

/// Makes `new` mean what `old` means. A number that is too large for the table stays the kernel's.
pub fn copy(old: c_int, new: c_int) -> Copied {
    let now = TABLE.get(old as usize).map_or(0, |e| e.load(Ordering::Relaxed));
    let now = if described(meaning(now)).is_some() { now } else { 0 };
    let Some(slot) = TABLE.get(new as usize) else { return Copied { now: None, before: None } };
    if now != 0 {
        HIGHEST.fetch_max(new, Ordering::Relaxed);
    }
    let before = slot.swap(now, Ordering::Relaxed);
    Copied { now: described(meaning(now)), before: described(meaning(before)) }
}

/// Marks a descriptor as the filter's own.
pub fn hide(fd: c_int) {
    put(fd, HIDDEN);
}

/// A candidate became accelerated, or an epoll set ours: all descriptors that refer to it do so from now on.
pub fn promote(description: usize) {
    let ours = description as u32 + 1;
    for fd in 0..=highest() {
        update(fd, |entry| {
            matches!(entry, Entry::Candidate(at) | Entry::Set(at) if at == description).then_some(ours)
        });
    }
}

/// The reverse: the kernel carries the description again.
pub fn demote(description: usize) {
    let candidate = (description as u32 + 1) | CANDIDATE;
    for fd in 0..=highest() {
        update(fd, |entry| (entry == Entry::Ours(description)).then_some(candidate));
    }
}

/// The agent carries the connection that a descriptor refers to from now on; nothing happens where it does not any more.
pub fn carry(fd: c_int, description: usize) {
    let carried = (description as u32 + 1) | CARRIED;
    update(fd, |entry| (entry == Entry::Ours(description)).then_some(carried));
}

/// No descriptor above this one was ever ours.
pub fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
}

/// Changes an entry as `f` says; the value of before, if it was changed. A signal handler may come between.
fn update(fd: c_int, f: impl Fn(Entry) -> Option<u32>) -> Option<u32> {
    let slot = TABLE.get(fd as usize)?;
    slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| f(meaning(value))).ok()
}

fn put(fd: c_int, value: u32) -> bool {
    match TABLE.get(fd as usize) {
        Some(entry) => {
            entry.store(value, Ordering::Relaxed);
            HIGHEST.fetch_max(fd, Ordering::Relaxed);
            true
        }
        None => false,
    }
}

static HIGHEST: AtomicI32 = AtomicI32::new(0);
