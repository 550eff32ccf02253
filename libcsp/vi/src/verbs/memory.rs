//! Memory that a device reads and writes: the provider's own, and its registration.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use super::sys::ibv::{self, Pd};
use super::sys::{self, Api};
use crate::ViError;
use crate::region::{Backing, Memory};

/// Pages of the provider's own. They are shared with forked children rather than copied on write, so that the pages
/// which the device knows stay those that the process sees.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages are reached through raw pointers only, and unmapped once.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: the mapping stays until the value is dropped.
unsafe impl Backing for Pages {
    fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `pages`, with this length.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// So many zero bytes, page-aligned.
pub(super) fn pages(len: usize) -> Result<Span, ViError> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: no address is asked for; the result is checked.
    let at = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    let start = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) };
    let start = start.ok_or_else(|| sys::failed("mmap"))?;
    Ok(Span::new(Memory::new(Pages { start, len })))
}

/// Memory whose place is looked up once: the data path reaches into it several times a message.
#[derive(Clone)]
pub(super) struct Span {
    start: *mut u8,
    len: usize,
    memory: Memory,
}

impl Span {
    pub(super) fn new(memory: Memory) -> Self {
        let len = memory.len();
        Span { start: memory.at(0, 0).unwrap_or(null_mut()), len, memory }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where `len` bytes from `offset` on lie; `None` where they are not all within.
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the memory, which stays mapped as long as it is held.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }

    /// Copies from `offset` on to `into`; `false` where that is not all within.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let from = self.at(offset, into.len());
        if let Some(from) = from {
            // SAFETY: mapped, and `into` is no part of it.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
        from.is_some()
    }

    /// Copies `from` to `offset` on; `false` where that is not all within.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        let to = self.at(offset, from.len());
        if let Some(to) = to {
            // SAFETY: as for `read`.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        }
        to.is_some()
    }

    /// The `count` words at `offset`, which others may change at any time. Empty where they are not all within, or
    /// misaligned.
    pub(super) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        match self.at(offset, count * 8) {
            // SAFETY: mapped as long as this is borrowed, aligned as checked, and plain bytes; what shares them uses
            // atomics or is a device.
            Some(at) if at.cast::<AtomicU64>().is_aligned() => unsafe {
                std::slice::from_raw_parts(at.cast(), count)
            },
            _ => &[],
        }
    }
}

/// Memory registered with a device; until dropped.
pub(super) struct Registration {
    api: &'static Api,
    mr: NonNull<ibv::Mr>,
}

impl Registration {
    /// Registers `len` bytes from `offset` on, for `access` (of [`ibv`]). The caller keeps `memory` longer than this.
    pub(super) fn new(
        api: &'static Api,
        pd: *mut Pd,
        memory: &Memory,
        (offset, len): (usize, usize),
        access: c_int,
    ) -> Result<Self, ViError> {
        let at = memory.at(offset, len).ok_or(ViError::Config("a piece is not within its region"))?;
        // SAFETY: the memory is mapped and stays so, by the caller.
        let mr = unsafe { (api.reg_mr)(pd, at.cast::<c_void>(), len, access) };
        let mr = NonNull::new(mr).ok_or_else(|| sys::failed("ibv_reg_mr"))?;
        Ok(Registration { api, mr })
    }

    /// What this end's work requests name it by.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the library's struct lives until deregistered.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// What the peer's name it by.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: deregistered once; the protection domain outlives it, by the device's owner.
        unsafe { (self.api.dereg_mr)(self.mr.as_ptr()) };
    }
}
