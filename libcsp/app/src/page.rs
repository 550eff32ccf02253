//! The process page, from the writer's side; `csp_wire::agent::page` describes its layout.

use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};

use csp_types::{FlowLabel, TraceEvent};
use csp_wire::agent::page as layout;
use csp_wire::agent::page::SocketEntry;
use csp_wire::channel::emit_address;

use crate::AppSide;

/// Memory of [`PAGE_LEN`](layout::PAGE_LEN) bytes that the process shares with the agent.
pub trait PageMemory {
    /// Writes `bytes` at `offset`. The range lies within the memory.
    fn put(&mut self, offset: usize, bytes: &[u8]);
}

/// The page of this process.
#[derive(Debug)]
pub struct Page<M> {
    memory: M,
    traced: u64,
}

impl<M: PageMemory> Page<M> {
    /// Creates a page in the memory received with ATTACHED.
    pub fn new(memory: M) -> Self {
        let mut page = Page { memory, traced: 0 };
        page.put(0, &layout::emit_header());
        page
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() <= layout::PAGE_LEN {
            self.memory.put(offset, bytes);
        }
    }

    /// Writes the trace events recorded since the last call, and all counters. `own` are the shell's counters, which
    /// follow the transport's in [`COUNTER_NAMES`](layout::COUNTER_NAMES).
    pub fn publish(&mut self, app: &mut AppSide, own: impl IntoIterator<Item = u64>) {
        while let Some(event) = app.poll_trace() {
            self.trace(&event);
        }
        let values = app.counters().named().into_iter().map(|(_, number)| number).chain(own);
        for (index, value) in values.enumerate().take(layout::COUNTERS) {
            self.put(layout::counter_offset(index), &value.to_le_bytes());
        }
    }

    /// Writes an event. The reader regards it as complete once the count, stored after the fence, includes it.
    fn trace(&mut self, event: &TraceEvent) {
        self.put(layout::trace_offset(self.traced), &layout::emit_trace(self.traced, event));
        self.traced += 1;
        fence(Ordering::Release);
        self.put(layout::TRACE_NEXT_OFFSET, &self.traced.to_le_bytes());
    }

    /// Writes a socket to entry `index`, or clears the entry. Sockets beyond the table are not shown.
    pub fn socket(&mut self, index: usize, entry: Option<&SocketEntry>) {
        if index < layout::SOCKETS {
            let bytes = entry.map_or([0; layout::SOCKET_LEN], SocketEntry::emit);
            self.put(layout::socket_offset(index), &bytes);
        }
    }

    /// Writes the label and the local address of the connection in entry `index`, which are known once it is
    /// established.
    pub fn socket_connected(&mut self, index: usize, label: FlowLabel, local: SocketAddr) {
        if index < layout::SOCKETS {
            self.put(layout::socket_label_offset(index), &label.to_wire().to_le_bytes());
            self.put(layout::socket_local_offset(index), &emit_address(local));
        }
    }

    /// Writes a connection's last error to entry `index`.
    pub fn socket_error(&mut self, index: usize, errno: u16) {
        if index < layout::SOCKETS {
            self.put(layout::socket_error_offset(index), &errno.to_le_bytes());
        }
    }

    /// Writes the number of connections that wait at the listener in entry `index`.
    pub fn socket_waiting(&mut self, index: usize, waiting: u32) {
        if index < layout::SOCKETS {
            self.put(layout::socket_waiting_offset(index), &waiting.to_le_bytes());
        }
    }
}
