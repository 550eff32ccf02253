//! The descriptor table: which descriptors the filter serves. One relaxed load suffices for a call that is
//! passed on.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

/// Descriptors beyond this number are never accelerated.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// A descriptor of the filter itself: the program must not close it.
const HIDDEN: u32 = u32::MAX;
/// Set for descriptors whose description the kernel still serves.
const CANDIDATE: u32 = 1 << 31;
/// Set for descriptors of connections that the agent carries.
const CARRIED: u32 = 1 << 30;
/// Both are set for epoll descriptors that the kernel serves alone.
const SET: u32 = CANDIDATE | CARRIED;

// Pages that are never written take no memory.
static TABLE: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// The filter's view of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A descriptor that the filter does not serve.
    Kernel,
    /// The filter's own descriptor.
    Hidden,
    /// A kernel TCP socket that may become accelerated; its description has this index.
    Candidate(usize),
    /// A connection that the agent carries over a Unix socket: the kernel moves its bytes, the filter answers
    /// for names and options.
    Carried(usize),
    /// An epoll descriptor that the kernel serves alone; its description has this index.
    Set(usize),
    /// An accelerated socket, or an epoll descriptor with such members; its description has this index.
    Ours(usize),
}

/// Looks a descriptor up. Entries change only under the engine's lock, except when signal handlers close or
/// duplicate descriptors; without the lock the result may be stale.
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

/// Whether the filter serves calls on a descriptor.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    matches!(entry(fd), Entry::Ours(_))
}

/// Whether the filter answers for names and options of a descriptor.
#[inline]
pub fn is_named_by_us(fd: c_int) -> bool {
    matches!(entry(fd), Entry::Ours(_) | Entry::Carried(_))
}

/// Makes a descriptor refer to a description that the kernel still serves. Returns `false` if the number is
/// too large.
pub fn set_candidate(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | CANDIDATE)
}

/// Makes a descriptor refer to a connection that the agent carries. Returns `false` if the number is too
/// large.
pub fn set_carried(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | CARRIED)
}

/// Makes a descriptor refer to an epoll set that the kernel serves alone. Returns `false` if the number is
/// too large.
pub fn set_kernel_set(fd: c_int, description: usize) -> bool {
    put(fd, (description as u32 + 1) | SET)
}

/// Makes a descriptor refer to an accelerated description. Returns `false` if the number is too large for the
/// table.
pub fn set(fd: c_int, description: usize) -> bool {
    put(fd, description as u32 + 1)
}

/// Clears a descriptor's entry.
pub fn clear(fd: c_int) {
    put(fd, 0);
}

/// Clears a descriptor's entry and returns the description to which it referred; of several concurrent
/// callers only one gets it. The filter's own descriptors are left unchanged.
pub fn take(fd: c_int) -> Option<usize> {
    let old = update(fd, |entry| described(entry).map(|_| 0))?;
    described(meaning(old))
}

/// Clears a descriptor's entry if it still refers to this description. Returns whether it did.
pub fn remove_if(fd: c_int, index: usize) -> bool {
    update(fd, |entry| (described(entry) == Some(index)).then_some(0)).is_some()
}

/// The result of [`copy`]: the descriptions to which a number refers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// The description from now on.
    pub now: Option<usize>,
    /// The description until now.
    pub before: Option<usize>,
}

/// Makes `new` refer to the description of `old`. A number that is too large for the table remains the
/// kernel's.
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

/// Makes all descriptors of a candidate that became accelerated, or of an epoll set that the filter now
/// serves, refer to it as such.
pub fn promote(description: usize) {
    let ours = description as u32 + 1;
    for fd in 0..=highest() {
        update(fd, |entry| {
            matches!(entry, Entry::Candidate(at) | Entry::Set(at) if at == description).then_some(ours)
        });
    }
}

/// The reverse of [`promote`]: the kernel serves the description again.
pub fn demote(description: usize) {
    let candidate = (description as u32 + 1) | CANDIDATE;
    for fd in 0..=highest() {
        update(fd, |entry| (entry == Entry::Ours(description)).then_some(candidate));
    }
}

/// Records that the agent carries a descriptor's connection from now on. No effect if the descriptor no
/// longer refers to it.
pub fn carry(fd: c_int, description: usize) {
    let carried = (description as u32 + 1) | CARRIED;
    update(fd, |entry| (entry == Entry::Ours(description)).then_some(carried));
}

/// The highest descriptor that the table ever contained.
pub fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
}

/// Changes an entry as `f` returns; returns the former value if it was changed. A signal handler may run in
/// between.
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
