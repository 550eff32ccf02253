//! The process page: what the host's agent sees of this process (`csp_wire::agent::page`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use csp_types::TraceEvent;
use csp_wire::agent::page as layout;

/// The page, mapped from the agent's memory.
#[derive(Debug)]
pub struct Page {
    start: *mut u8,
    traced: u64,
}

// SAFETY: the mapping is reached only through this value.
unsafe impl Send for Page {}

impl Page {
    /// Maps the page that the agent made.
    pub fn map(memory: &OwnedFd) -> Option<Page> {
        let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, layout::PAGE_LEN);
        // SAFETY: a new mapping at a place of the kernel's choice. The agent seals the memory's size.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let mut page = Page { start: start.cast(), traced: 0 };
        page.put(0, &layout::emit_header());
        Some(page)
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() <= layout::PAGE_LEN {
            // SAFETY: within the mapping of PAGE_LEN bytes, which only this value writes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
        }
    }

    /// Writes all counters.
    pub fn counters(&mut self, values: impl Iterator<Item = u64>) {
        for (index, value) in values.enumerate().take(layout::COUNTERS) {
            self.put(layout::counter_offset(index), &value.to_le_bytes());
        }
    }

    /// Writes an event; the reader takes it for whole once the count includes it.
    pub fn trace(&mut self, event: &TraceEvent) {
        self.put(layout::trace_offset(self.traced), &layout::emit_trace(self.traced, event));
        self.traced += 1;
        fence(Ordering::Release);
        self.put(layout::TRACE_NEXT_OFFSET, &self.traced.to_le_bytes());
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping.
        unsafe { libc::munmap(self.start.cast(), layout::PAGE_LEN) };
    }
}
