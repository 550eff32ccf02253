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

/// Looks a descriptor up. Changes only under the engine's lock; without it the answer may be stale.
#[inline]
pub fn entry(fd: c_int) -> Entry {
    match TABLE.get(fd as usize).map_or(0, |e| e.load(Ordering::Relaxed)) {
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

/// Marks a descriptor as the filter's own.
pub fn hide(fd: c_int) {
    put(fd, HIDDEN);
}

/// A candidate became accelerated, or an epoll set ours: all descriptors that refer to it do so from now on.
pub fn promote(description: usize) {
    for fd in 0..=highest() {
        if matches!(entry(fd), Entry::Candidate(at) | Entry::Set(at) if at == description) {
            set(fd, description);
        }
    }
}

/// The reverse: the kernel carries the description again.
pub fn demote(description: usize) {
    for fd in 0..=highest() {
        if entry(fd) == Entry::Ours(description) {
            set_candidate(fd, description);
        }
    }
}

/// No descriptor above this one was ever ours.
pub fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
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
