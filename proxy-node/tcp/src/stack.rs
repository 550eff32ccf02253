//! The engine's outside.

use core::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Segment;

use crate::api::{
    Arrival, ConnectError, ConnectionInfo, DropReason, Event, ListenError, Occupancy, Transmit,
};
use crate::config::{ConnectionOptions, StackConfig};
use crate::counters::Counters;

/// A TCP engine for one worker: connections indexed by flow label, listeners, timers and payload memory.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    counters: Counters,
}

impl Stack {
    /// Allocates every table; nothing is allocated afterwards.
    pub fn new(config: StackConfig) -> Self {
        Stack { config: config.clamped(), counters: Counters::default() }
    }

    /// Accepts connections to `address`; the unspecified address stands for every one of its family.
    ///
    /// # Errors
    /// [`ListenError`]: the address is taken, the table is full.
    pub fn listen(&mut self, _address: SocketAddr, _service: u32) -> Result<(), ListenError> {
        Err(ListenError::TableFull)
    }

    /// Accepts no further connections to `address`; those that exist stay. `false`: it was not listened on.
    pub fn unlisten(&mut self, _address: SocketAddr) -> bool {
        false
    }

    /// Opens a connection: a SYN is sent from `tuple.local` to `tuple.remote` through network node `via`.
    ///
    /// # Errors
    /// [`ConnectError`]: nothing was started.
    pub fn connect(
        &mut self,
        _now: Instant,
        _tuple: FourTuple,
        _via: u32,
        _service: u32,
    ) -> Result<FlowLabel, ConnectError> {
        Err(ConnectError::TableFull)
    }

    /// Takes in a segment that arrived; `payload` is what follows its header.
    ///
    /// # Errors
    /// [`DropReason`]: the segment had no effect but possibly an answer. It is counted already.
    pub fn on_segment(
        &mut self,
        _now: Instant,
        _arrival: Arrival,
        _segment: &Segment<'_>,
        _payload: &[u8],
    ) -> Result<(), DropReason> {
        self.counters.count_drop(DropReason::NoConnection);
        Err(DropReason::NoConnection)
    }

    /// The next thing to be sent, up to 64 KB of payload at once; `None` when there is nothing until something arrives,
    /// is written, is read or times out. Call it in a loop after each batch of calls to other methods.
    pub fn poll_transmit(&mut self, _now: Instant) -> Option<Transmit<'_>> {
        None
    }

    /// The next event. A label's last event is exactly one of [`Event::Closed`] and [`Event::Failed`], unless the owner
    /// called [`Stack::abort`]: then there is none.
    pub fn poll_event(&mut self) -> Option<(FlowLabel, Event)> {
        None
    }

    /// Hands up to `max` readable bytes to `f`, slice by slice in order; `f` says how many of the slice it took, and
    /// taking fewer ends the reading. Returns how many were taken. Taken bytes open the window.
    pub fn read_with(
        &mut self,
        _now: Instant,
        _label: FlowLabel,
        _max: usize,
        _f: impl FnMut(&[u8]) -> usize,
    ) -> usize {
        0
    }

    /// Bytes that can be read now.
    pub fn readable(&self, _label: FlowLabel) -> usize {
        0
    }

    /// Bytes that `write` would take now, were there blocks enough in the pool.
    pub fn writable(&self, _label: FlowLabel) -> usize {
        0
    }

    /// Copies the start of `data` into the send queue and says how many bytes it took. Taking fewer than all promises
    /// an [`Event::Writable`] later on. 0 as well after `shutdown` and for stale labels.
    pub fn write(&mut self, _now: Instant, _label: FlowLabel, _data: &[u8]) -> usize {
        0
    }

    /// Sends FIN after what was written; reading goes on.
    pub fn shutdown(&mut self, _now: Instant, _label: FlowLabel) {}

    /// Sends RST and forgets the connection: the label is invalid at once, no event follows.
    pub fn abort(&mut self, _now: Instant, _label: FlowLabel) {}

    /// The application is gone: what was written is delivered, then FIN. Unread data, or data that arrives later, is
    /// answered by RST (RFC 9293 §3.6.1). [`Event::Closed`] or [`Event::Failed`] still follows.
    pub fn close(&mut self, _now: Instant, _label: FlowLabel) {}

    /// Changes options of one connection; `false` for stale labels.
    pub fn set_options(&mut self, _now: Instant, _label: FlowLabel, _options: ConnectionOptions) -> bool {
        false
    }

    /// A connection's figures.
    pub fn info(&self, _label: FlowLabel) -> Option<ConnectionInfo> {
        None
    }

    /// The figures of all connections, those in SYN-RECEIVED included.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        core::iter::empty()
    }

    /// When [`Stack::on_timeout`] is to be called next; it may find nothing due.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Handles every timer due at `now`.
    pub fn on_timeout(&mut self, _now: Instant) {}

    /// Counts since start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full the tables are.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }

    /// The configuration in force (values brought into range).
    pub fn config(&self) -> &StackConfig {
        &self.config
    }
}
