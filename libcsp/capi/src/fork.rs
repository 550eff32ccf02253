//! Detection of forks: whether this is still the process that created a context.
//!
//! A page that the kernel wipes in a forked child holds a number of the process. Reading it costs one load,
//! where getpid is a system call, and it detects every way of creating the child. A vfork child shares its
//! parent's memory, this page included; it may only call exec, as always.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

const PAGE_LEN: usize = 4096;

/// Identifies one address space of the program: a forked child has another number than its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessNumber(u64);

static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
/// The last number assigned here or in an ancestor.
static LAST: AtomicU64 = AtomicU64::new(0);

fn map() -> Option<&'static AtomicU64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_LEN, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped just now.
    if unsafe { libc::madvise(at, PAGE_LEN, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    // SAFETY: the page is zeroed, aligned, never unmapped, and used as this atomic only.
    Some(unsafe { &*at.cast::<AtomicU64>() })
}

/// This process's number; `None` in a child that has opened no context of its own.
pub fn current() -> Option<ProcessNumber> {
    let number = PAGE.get().copied().flatten()?.load(Ordering::Relaxed);
    (number != 0).then_some(ProcessNumber(number))
}

/// This process's number, assigned now if it has none.
pub fn establish() -> Result<ProcessNumber> {
    let page = (*PAGE.get_or_init(map)).ok_or(Error::IO)?;
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(ProcessNumber(fresh)),
        Err(number) => Ok(ProcessNumber(number)),
    }
}
