//! Memory that a device accesses: pages of the provider's own, and registrations.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use super::sys::ibv::{self, Pd};
use super::sys::{self, Api};
use crate::ViError;
use crate::region::{Backing, Memory};

/// Pages of the provider's own. The mapping is shared with forked children rather than copied on write, so
/// that the process keeps the physical pages that the device accesses.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: no reference to the bytes is made other than to atomics; all other access is through raw pointers,
// and the pages are unmapped once, by `Drop`.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives access to address and length only, which do not change.
unsafe impl Sync for Pages {}

// SAFETY: `pages` has mapped `len` bytes at `start` readable and writable, and they stay mapped until the
// value is dropped.
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
        // SAFETY: `pages` mapped this range with this length, and this is the only unmapping; `Memory`
        // handles, the only access to it, are gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Allocates `len` zero bytes at a page boundary.
pub(super) fn pages(len: usize) -> Result<Span, ViError> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address, so no mapping is replaced; the result is checked.
    let at = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    let start = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) };
    let start = start.ok_or_else(|| sys::failed("mmap"))?;
    Ok(Span::new(Memory::new(Pages { start, len })))
}

/// Memory whose address is cached: the data path accesses it several times per message.
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

    /// Returns the address of the `len` bytes at `offset`, or `None` if they are not entirely within the
    /// range.
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset + len` is at most the length, so the result lies within the range, or one byte past
        // its end, which `memory` keeps mapped at `start`.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }

    /// Copies from `offset` to `into`. Returns `false`, without copying, if that exceeds the range.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let from = self.at(offset, into.len());
        if let Some(from) = from {
            // SAFETY: `from` points to `into.len()` bytes that `memory` keeps mapped; `into` is a Rust
            // reference, hence no part of the range.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
        from.is_some()
    }

    /// Copies `from` to `offset`. Returns `false`, without copying, if that exceeds the range.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        let to = self.at(offset, from.len());
        if let Some(to) = to {
            // SAFETY: `to` points to `from.len()` bytes that `memory` keeps mapped; `from` is a Rust
            // reference, hence no part of the range.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        }
        to.is_some()
    }

    /// Returns the `count` words at `offset`, which the peer may change at any time. Empty if they are not
    /// entirely within the range, or misaligned.
    pub(super) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        match self.at(offset, count * 8) {
            // SAFETY: `at` points to `count` aligned words that `memory` keeps mapped while `self` is
            // borrowed. Any bytes are valid words. This process accesses them as atomics only; other writers
            // are devices.
            Some(at) if at.cast::<AtomicU64>().is_aligned() => unsafe {
                std::slice::from_raw_parts(at.cast(), count)
            },
            _ => &[],
        }
    }
}

/// A registration of memory with a device; ends when dropped.
pub(super) struct Registration {
    api: &'static Api,
    mr: NonNull<ibv::Mr>,
}

impl Registration {
    /// Registers the `len` bytes at `offset` for `access` (of [`ibv`]). The caller keeps `memory` for longer
    /// than the registration.
    pub(super) fn new(
        api: &'static Api,
        pd: *mut Pd,
        memory: &Memory,
        (offset, len): (usize, usize),
        access: c_int,
    ) -> Result<Self, ViError> {
        let at = memory.at(offset, len).ok_or(ViError::Config("a piece is not within its region"))?;
        // SAFETY: `at` points to `len` mapped bytes, and the caller keeps `memory` until the registration is
        // dropped. The protection domain is open.
        let mr = unsafe { (api.reg_mr)(pd, at.cast::<c_void>(), len, access) };
        let mr = NonNull::new(mr).ok_or_else(|| sys::failed("ibv_reg_mr"))?;
        Ok(Registration { api, mr })
    }

    /// Returns the key that names the memory in this end's work requests.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: `mr` is valid until `Drop` deregisters it.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// Returns the key that names the memory in the peer's work requests.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: `mr` is valid until `Drop` deregisters it.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: deregistered once, here. The provider drops all registrations before the device that owns
        // the protection domain.
        unsafe { (self.api.dereg_mr)(self.mr.as_ptr()) };
    }
}
