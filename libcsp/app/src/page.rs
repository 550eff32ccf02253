//! The process page, from the writer's side; `csp_wire::agent::page` describes its layout.

use core::sync::atomic::{Ordering, fence};

use csp_types::{FlowLabel, TraceEvent};
use csp_wire::agent::page as layout;
use csp_wire::agent::page::{SocketEntry, SocketKind};
use csp_wire::channel::emit_address;

use crate::{AppSide, FlowId};

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
    /// One bit for each entry: it shows a connection without a label.
    unlabelled: [u64; layout::SOCKETS.div_ceil(64)],
}

impl<M: PageMemory> Page<M> {
    /// Creates a page in the memory received with ATTACHED.
    pub fn new(memory: M) -> Self {
        let mut page = Page { memory, traced: 0, unlabelled: [0; layout::SOCKETS.div_ceil(64)] };
        page.put(0, &layout::emit_header());
        page
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() <= layout::PAGE_LEN {
            self.memory.put(offset, bytes);
        }
    }

    /// Writes the trace events recorded since the last call, and all counters. `own` are the shell's
    /// counters, which follow the transport's in [`COUNTER_NAMES`](layout::COUNTER_NAMES).
    pub fn publish(&mut self, app: &mut AppSide, own: impl IntoIterator<Item = u64>) {
        while let Some(event) = app.poll_trace() {
            self.trace(&event);
        }
        let values = app.counters().named().into_iter().map(|(_, number)| number).chain(own);
        for (index, value) in values.enumerate().take(layout::COUNTERS) {
            self.put(layout::counter_offset(index), &value.to_le_bytes());
        }
    }

    /// Writes an event. The reader regards it as complete once the count, stored after the fence, includes
    /// it.
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
            self.set_unlabelled(
                index,
                entry.is_some_and(|entry| {
                    entry.kind == SocketKind::Connection && entry.label == FlowLabel::NONE
                }),
            );
        }
    }

    /// Writes the label and the local address of `flow`, the connection in entry `index`, once it is
    /// established. Does nothing for an entry that has them already.
    pub fn socket_connected(&mut self, index: usize, app: &AppSide, flow: FlowId) {
        if !self.is_unlabelled(index) {
            return;
        }
        let Some((local, _, true)) = app.addresses(flow) else { return };
        self.put(layout::socket_label_offset(index), &app.label(flow).to_wire().to_le_bytes());
        self.put(layout::socket_local_offset(index), &emit_address(local));
        self.set_unlabelled(index, false);
    }

    fn is_unlabelled(&self, index: usize) -> bool {
        self.unlabelled.get(index / 64).is_some_and(|bits| bits & (1 << (index % 64)) != 0)
    }

    fn set_unlabelled(&mut self, index: usize, unlabelled: bool) {
        if let Some(bits) = self.unlabelled.get_mut(index / 64) {
            *bits = *bits & !(1 << (index % 64)) | u64::from(unlabelled) << (index % 64);
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
