//! The process page, as its writer: see `csp_wire::agent::page`.

use core::sync::atomic::{Ordering, fence};

use core::net::SocketAddr;

use csp_types::{FlowLabel, TraceEvent};
use csp_wire::agent::page as layout;
use csp_wire::agent::page::SocketEntry;
use csp_wire::channel::emit_address;
use libc::c_int;

use crate::sys::{self, syscall};

/// The page, mapped from the agent's memory.
#[derive(Debug)]
pub struct Page {
    start: *mut u8,
    traced: u64,
}

// SAFETY: the mapping is reached only through this value.
unsafe impl Send for Page {}

impl Page {
    /// Maps the page that the agent made. The descriptor can be closed afterwards.
    pub fn map(memory: c_int) -> Option<Page> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; the kernel checks the descriptor. The agent seals its size: it cannot shrink under us.
        let mapped =
            unsafe { syscall!(libc::SYS_mmap, 0, layout::PAGE_LEN, protection, libc::MAP_SHARED, memory, 0) };
        let mut page = Page { start: mapped.ok()? as *mut u8, traced: 0 };
        page.put(0, &layout::emit_header());
        Some(page)
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() <= layout::PAGE_LEN {
            // SAFETY: within the mapping of PAGE_LEN bytes, which only this value writes.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
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

    /// Shows a socket in entry `index`, or nothing there. Sockets beyond the table are not shown.
    pub fn socket(&mut self, index: usize, entry: Option<&SocketEntry>) {
        if index < layout::SOCKETS {
            let bytes = entry.map_or([0; layout::SOCKET_LEN], SocketEntry::emit);
            self.put(layout::socket_offset(index), &bytes);
        }
    }

    /// Shows what a connection in entry `index` got when it came about: its label, and its own address.
    pub fn socket_connected(&mut self, index: usize, label: FlowLabel, local: SocketAddr) {
        if index < layout::SOCKETS {
            self.put(layout::socket_label_offset(index), &label.to_wire().to_le_bytes());
            self.put(layout::socket_local_offset(index), &emit_address(local));
        }
    }

    /// Shows a connection's last error in entry `index`.
    pub fn socket_error(&mut self, index: usize, errno: u16) {
        if index < layout::SOCKETS {
            self.put(layout::socket_error_offset(index), &errno.to_le_bytes());
        }
    }

    /// Shows how many connections wait at the listener in entry `index`.
    pub fn socket_waiting(&mut self, index: usize, waiting: u32) {
        if index < layout::SOCKETS {
            self.put(layout::socket_waiting_offset(index), &waiting.to_le_bytes());
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping.
        if unsafe { syscall!(libc::SYS_munmap, self.start, layout::PAGE_LEN) }.is_err() {
            sys::complain("the process page could not be unmapped");
        }
    }
}
