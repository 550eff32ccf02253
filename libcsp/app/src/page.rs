//! The process page, as its writer: see `csp_wire::agent::page`.

use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};

use csp_types::{FlowLabel, TraceEvent};
use csp_wire::agent::page as layout;
use csp_wire::agent::page::SocketEntry;
use csp_wire::channel::emit_address;

use crate::AppSide;

/// Memory of [`PAGE_LEN`](layout::PAGE_LEN) bytes that a process shares with the agent.
pub trait PageMemory {
    /// Writes `bytes` at `offset`; they lie within the memory.
    fn put(&mut self, offset: usize, bytes: &[u8]);
}

/// The page of this process.
#[derive(Debug)]
pub struct Page<M> {
    memory: M,
    traced: u64,
}

impl<M: PageMemory> Page<M> {
    /// A new page in the memory that came with ATTACHED.
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

    /// Writes the trace events that the application's end recorded since the last call, and all counters. `own` are the
    /// shell's, those that stand behind the transport's in [`COUNTER_NAMES`](layout::COUNTER_NAMES).
    pub fn publish(&mut self, app: &mut AppSide, own: impl IntoIterator<Item = u64>) {
        while let Some(event) = app.poll_trace() {
            self.trace(&event);
        }
        let values = app.counters().named().into_iter().map(|(_, number)| number).chain(own);
        for (index, value) in values.enumerate().take(layout::COUNTERS) {
            self.put(layout::counter_offset(index), &value.to_le_bytes());
        }
    }

    /// Writes an event; the reader takes it for whole once the count includes it.
    fn trace(&mut self, event: &TraceEvent) {
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

    /// Shows the label and the own address of the connection in entry `index`, known once it is established.
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
