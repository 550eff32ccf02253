//! The memory of the process page, which the agent created and reads. `csp_app::Page` defines its contents.

use csp_app::PageMemory;
use csp_wire::agent::page::PAGE_LEN;
use libc::c_int;

use crate::sys::{self, syscall};

/// The page of this process.
pub type Page = csp_app::Page<Mapping>;

/// A mapping of `PAGE_LEN` bytes.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
}

// SAFETY: the mapping is accessed only through this value.
unsafe impl Send for Mapping {}

/// Maps a page in the agent's memory. The descriptor can be closed afterwards.
pub fn map(memory: c_int) -> Option<Page> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; the kernel checks the descriptor. The
    // agent seals the memory's size, so that it cannot shrink below the mapping.
    let mapped = unsafe { syscall!(libc::SYS_mmap, 0, PAGE_LEN, protection, libc::MAP_SHARED, memory, 0) };
    Some(Page::new(Mapping { start: mapped.ok()? as *mut u8 }))
}

impl PageMemory for Mapping {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= PAGE_LEN);
        assert!(fits, "a page keeps to its memory");
        // SAFETY: within the mapping of PAGE_LEN bytes, as just checked, which only this value writes.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` created exactly this mapping, and nothing uses it after the drop.
        if unsafe { syscall!(libc::SYS_munmap, self.start, PAGE_LEN) }.is_err() {
            sys::log_line("the process page could not be unmapped");
        }
    }
}
