//! The engine's public interface and its tables.

mod bytes;
mod demux;
pub(crate) mod held;
mod listener;
mod metering;
mod path;
mod settle;

use core::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple, Instant, LabelAllocator};

use crate::api::{ConnectError, ConnectionInfo, Event, Figures, ListenError, Occupancy, State, Transmit};
use crate::blocks::BlockPool;
use crate::chain::Slices;
use crate::config::{ConnectionOptions, StackConfig};
use crate::counters::Counters;
use crate::isn::Keys;
use crate::list::IndexList;
use crate::listen::{Listener, Listeners};
use crate::output::Plan;
use crate::output::metering::Meter;
use crate::path_cache::PathCache;
use crate::ranges::RangePool;
use crate::recovery::pool::RecordPool;
use crate::replies::Replies;
use crate::tcb::{Context, FinalTransmit, Tcb};
use crate::timers::Wheel;
use crate::timewait::TimeWaitTable;
use crate::transmitqueue::TransmitQueue;
use crate::tuple_map::TupleMap;

/// A TCP engine for one worker. It owns connections indexed by flow label, listeners, timers and payload
/// memory.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    counters: Counters,
    keys: Keys,
    /// Connection blocks, indexed by label index minus [`StackConfig::first_label_index`].
    tcbs: Vec<Option<Tcb>>,
    labels: LabelAllocator<Vec<u32>>,
    tuples: TupleMap,
    listeners: Listeners,
    time_wait: TimeWaitTable,
    replies: Replies,
    /// Memory for received data.
    blocks: BlockPool,
    /// Memory for written data.
    send_blocks: BlockPool,
    ranges: RangePool,
    records: RecordPool,
    paths: PathCache,
    wheel: Wheel,
    /// Passive connections in SYN-RECEIVED, oldest first.
    half_open: IndexList,
    /// Connections that may be able to transmit.
    dirty: TransmitQueue,
    /// Connections with events to report.
    eventful: IndexList,
    /// Connections whose writer waits until payload blocks are free.
    block_waiters: IndexList,
    /// Indexed by slot; empty until the first connection is metered.
    meters: Vec<Meter>,
    /// Metered connections that could send more than their allowance.
    wanting: IndexList,
    /// Metered connections that ended while they waited for an allowance.
    withdrawn: Vec<FlowLabel>,
    /// Figures of the connection that was released last.
    last_figures: (FlowLabel, Figures),
}

impl Stack {
    /// Creates a stack and allocates all of its tables. Nothing is allocated afterwards.
    pub fn new(config: StackConfig) -> Self {
        let config = config.clamped();
        let n = config.connections;
        Stack {
            keys: Keys::new(&config.isn_secret),
            tcbs: core::iter::repeat_with(|| None).take(n).collect(),
            labels: LabelAllocator::new(config.first_label_index, vec![0; n], vec![0; n]),
            tuples: TupleMap::new(n + config.time_wait_entries),
            listeners: Listeners::new(config.listeners),
            time_wait: TimeWaitTable::new(config.time_wait_entries),
            replies: Replies::new(config.replies, config.replies_per_second, config.cookie_replies),
            blocks: BlockPool::new(config.receive_blocks(), config.block_len, config.receive_message_len),
            send_blocks: BlockPool::new(config.send_blocks(), config.block_len, config.send_message_len),
            ranges: RangePool::new(config.range_sets),
            records: RecordPool::new(n, config.records, config.records_per_connection),
            paths: PathCache::new(config.path_entries, &config.isn_secret),
            wheel: Wheel::new(n),
            half_open: IndexList::new(n),
            last_figures: (FlowLabel::NONE, Figures::default()),
            dirty: TransmitQueue::new(n),
            eventful: IndexList::new(n),
            block_waiters: IndexList::new(n),
            meters: Vec::new(),
            wanting: IndexList::new(0),
            withdrawn: Vec::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Accepts connections to `address`; an unspecified address stands for all addresses of its family.
    /// `service` is returned in [`Event::Established`].
    ///
    /// # Errors
    /// [`ListenError`]: the address is taken, the table is full.
    pub fn listen(&mut self, address: SocketAddr, service: u32) -> Result<(), ListenError> {
        self.listen_with(address, service, self.config.connection_options())
    }

    /// As [`Stack::listen`]; connections to this address start with `options`.
    ///
    /// # Errors
    /// [`ListenError`]: the address is taken, the table is full.
    pub fn listen_with(
        &mut self,
        address: SocketAddr,
        service: u32,
        options: ConnectionOptions,
    ) -> Result<(), ListenError> {
        self.listeners.insert(address, Listener { service, options, backlog_full: false })
    }

    /// Sets whether the backlog of the listener on `address` is full. While it is, SYNs and acknowledgements
    /// of SYN cookies are dropped without a reply, so that clients retransmit them. Connections already
    /// half-open still complete; [`StackConfig::half_open`] bounds their number.
    pub fn set_backlog_full(&mut self, address: SocketAddr, full: bool) {
        self.listeners.set_backlog_full(&address, full);
    }

    /// Removes the listener on `address`; existing connections are not affected. Returns `false` if there was
    /// none.
    pub fn unlisten(&mut self, address: SocketAddr) -> bool {
        self.listeners.remove(&address)
    }

    /// Opens a connection: sends a SYN from `tuple.local` to `tuple.remote` through network node `via`, and
    /// returns the connection's label.
    ///
    /// # Errors
    /// [`ConnectError`]: the addresses are invalid or in use, or the table is full. Nothing was sent.
    pub fn connect(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        via: u32,
        service: u32,
    ) -> Result<FlowLabel, ConnectError> {
        self.connect_with(now, tuple, via, service, self.config.connection_options())
    }

    /// As [`connect`](Self::connect), with `options`, which determine what the SYN proposes.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn connect_with(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        via: u32,
        service: u32,
        options: ConnectionOptions,
    ) -> Result<FlowLabel, ConnectError> {
        let FourTuple { local, remote } = tuple;
        let ends = [local, remote];
        if local.is_ipv4() != remote.is_ipv4()
            || local == remote
            || ends.iter().any(|end| end.port() == 0 || end.ip().is_unspecified() || end.ip().is_multicast())
        {
            return Err(ConnectError::BadAddress);
        }
        let isn = match self.find_by_tuple(&tuple) {
            None => self.keys.isn(now, &tuple),
            Some(slot) => self.isn_after_time_wait(now, &tuple, slot).ok_or(ConnectError::InUse)?,
        };
        let slot = self.open(now, tuple, via, service, isn).ok_or(ConnectError::TableFull)?;
        if let Some((tcb, _)) = self.split(slot, now) {
            tcb.apply(options);
        }
        self.counters.active_opens += 1;
        self.settle(slot, now);
        Ok(self.tcbs[slot as usize].as_ref().map_or(FlowLabel::NONE, |tcb| tcb.label))
    }

    /// Returns the next record to send, with up to 64 KB of payload. `None` until a segment arrives, data is
    /// written or read, or a timer expires. Call it in a loop after each batch of calls to other methods.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        self.poll_transmit_if(now, |_| true)
    }

    /// As [`Stack::poll_transmit`], but only for network nodes that are `ready` to accept a segment of full
    /// size. A node that is not is held back ([`Stack::held_transmits`]): its connections are skipped until
    /// [`Stack::resume_transmit`].
    pub fn poll_transmit_if(
        &mut self,
        now: Instant,
        mut ready: impl FnMut(u32) -> bool,
    ) -> Option<Transmit<'_>> {
        while let Some(reply) = self.replies.pop() {
            if !ready(reply.via) {
                self.counters.replies_suppressed += 1;
                continue;
            }
            self.counters.segments_sent += 1;
            return Some(Transmit {
                label: FlowLabel::NONE,
                tuple: reply.tuple,
                via: reply.via,
                header: Some(reply.header),
                payload_len: 0,
                segment_size: 0,
                flow_new: false,
                flow_end: reply.last,
                retransmission: false,
                ecn: crate::ecn::NOT_ECT,
                slices: Slices::EMPTY,
            });
        }
        let (slot, label, tuple, via, plan) = self.next_plan(now, ready)?;
        let Plan { header, payload: (offset, len), segment_size, flow_new, flow_end, retransmission, ecn } =
            plan;
        let payload_len = len as usize;
        let slices = match self.tcbs[slot as usize].as_mut() {
            Some(tcb) if len > 0 => tcb.send.slices(&self.send_blocks, offset, payload_len),
            _ => Slices::EMPTY,
        };
        Some(Transmit {
            label,
            tuple,
            via,
            header,
            payload_len,
            segment_size,
            flow_new,
            flow_end,
            retransmission,
            ecn,
            slices,
        })
    }

    /// Network nodes that are held back because they were not ready.
    pub fn held_transmits(&self) -> impl Iterator<Item = u32> + '_ {
        self.dirty.held()
    }

    /// Resumes transmission of the connections of network node `via`, which has room again or no longer
    /// exists.
    pub fn resume_transmit(&mut self, via: u32) {
        self.dirty.resume(via);
    }

    fn next_plan(
        &mut self,
        now: Instant,
        mut ready: impl FnMut(u32) -> bool,
    ) -> Option<(u32, FlowLabel, FourTuple, u32, Plan)> {
        while let Some(slot) = self.dirty.pop_front() {
            let Some(via) = self.tcbs[slot as usize].as_ref().map(|tcb| tcb.via) else { continue };
            if !ready(via) {
                let held = self.dirty.hold(via);
                self.dirty.push_back(slot, via);
                if held {
                    continue;
                }
                return None;
            }
            let Some((tcb, mut cx)) = self.split(slot, now) else { continue };
            let plan = tcb.next_transmit(&mut cx);
            let (label, tuple, via) = (tcb.label, tcb.tuple, tcb.via);
            self.settle(slot, now);
            if let Some(plan) = plan {
                return Some((slot, label, tuple, via, plan));
            }
        }
        None
    }

    /// Whether a queue of replies to segments without a connection is at least half full. Replies beyond a
    /// queue's capacity are dropped, so the caller should run [`Stack::poll_transmit`] first.
    pub fn replies_press(&self) -> bool {
        let (cookies, most) = self.replies.cookies();
        2 * cookies >= most || 2 * self.replies.len() >= self.replies.capacity()
    }

    /// Returns the next event. The last event of a label is exactly one of [`Event::Closed`] and
    /// [`Event::Failed`], or [`Event::Reset`] after [`Stack::reset`], unless the caller has called
    /// [`Stack::abort`]; then no event follows.
    pub fn poll_event(&mut self) -> Option<(FlowLabel, Event)> {
        self.wake_block_waiters();
        while let Some(slot) = self.eventful.pop_front() {
            let Some(tcb) = self.tcbs[slot as usize].as_mut() else { continue };
            let (label, event, more, over) = (tcb.label, tcb.next_event(), tcb.has_event(), tcb.is_over());
            if more {
                self.eventful.push_back(slot);
            } else if over {
                self.release(slot);
            }
            if let Some(event) = event {
                return Some((label, event));
            }
        }
        None
    }

    /// Sends FIN after the written data; the caller can still read.
    pub fn shutdown(&mut self, now: Instant, label: FlowLabel) {
        self.with(now, label, |tcb, cx| tcb.queue_fin(cx.now));
    }

    /// Resets the connection after the written data: data and a FIN that was queued are transmitted and, if
    /// lost, retransmitted until the peer has acknowledged them, then RST follows. A kernel transmits at the
    /// time of the write, so its RST never overtakes that data. The wait ends early when the peer
    /// acknowledges nothing for [`StackConfig::reset_stall`], and in any case after
    /// [`StackConfig::reset_wait`]. Received data is discarded.
    ///
    /// Returns `true` if the reset waits: the label remains valid, and [`Event::Reset`], [`Event::Closed`] or
    /// [`Event::Failed`] follows. `false`: RST is sent at once, the label is invalid, and no event follows.
    pub fn reset(&mut self, now: Instant, label: FlowLabel) -> bool {
        self.with(now, label, |tcb, cx| tcb.reset(cx)) == Some(true)
    }

    /// Sends RST and discards the connection with all written data. The label is invalid at once, and no
    /// event follows.
    pub fn abort(&mut self, now: Instant, label: FlowLabel) {
        self.with(now, label, |tcb, cx| tcb.abort(cx));
    }

    /// Closes both directions: written data is delivered, then FIN. Data that is unread, or arrives later, is
    /// answered with RST (RFC 9293 §3.6.1), which follows the written data as that of [`Stack::reset`].
    /// [`Event::Closed`] or [`Event::Failed`] still follows.
    pub fn close(&mut self, now: Instant, label: FlowLabel) {
        self.with(now, label, |tcb, cx| tcb.close(cx));
    }

    /// Changes the options of one connection. Returns `false` if the label is stale.
    pub fn set_options(&mut self, now: Instant, label: FlowLabel, options: ConnectionOptions) -> bool {
        self.with(now, label, |tcb, cx| {
            tcb.apply(options);
            tcb.start_keepalive(cx);
            tcb.maybe_transmit = true;
        })
        .is_some()
    }

    /// The options of one connection; `None` if the label is stale.
    pub fn options(&self, label: FlowLabel) -> Option<ConnectionOptions> {
        self.tcb(label).map(Tcb::options)
    }

    /// What the log says of a connection: of one that exists, or of the one that was released last; zeros of
    /// others.
    pub fn figures(&self, label: FlowLabel) -> Figures {
        let at = label.index().checked_sub(self.config.first_label_index as usize);
        let tcb = at.and_then(|at| self.tcbs.get(at)?.as_ref()).filter(|tcb| tcb.label == label);
        match tcb {
            // Also of one that has ended, and only has a last segment to send.
            Some(tcb) => tcb.figures(),
            None if self.last_figures.0 == label => self.last_figures.1,
            None => Figures::default(),
        }
    }

    /// A snapshot of one connection; `None` if the label is stale.
    pub fn info(&self, label: FlowLabel) -> Option<ConnectionInfo> {
        self.tcb(label).map(|tcb| tcb.info(&self.config, &self.ranges))
    }

    /// Snapshots of all connections, those in SYN-RECEIVED included.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        let live = self.tcbs.iter().flatten().filter(|tcb| tcb.state != State::Done);
        live.map(|tcb| tcb.info(&self.config, &self.ranges))
    }

    /// When to call [`Stack::on_timeout`] next. The call may find that no timer is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        let time_wait = self.time_wait.oldest().map(|(_, entry)| entry.deadline);
        [self.wheel.next_deadline(), time_wait].into_iter().flatten().min()
    }

    /// Runs every timer that is due at `now`.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(slot) = self.wheel.pop_due(now) {
            if let Some((tcb, mut cx)) = self.split(slot, now) {
                tcb.on_timers(&mut cx);
                self.settle(slot, now);
            }
        }
        self.expire_time_wait(now);
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full the tables are.
    pub fn occupancy(&self) -> Occupancy {
        let connections = self.config.connections;
        let used = |free: usize, all: usize| (all - free, all);
        Occupancy {
            connections: used(self.labels.available(), connections),
            half_open: (self.half_open.len(), self.config.half_open),
            time_wait: (self.time_wait.len(), self.time_wait.capacity()),
            blocks: used(
                self.blocks.free() + self.send_blocks.free(),
                self.blocks.capacity() + self.send_blocks.capacity(),
            ),
            send_blocks: used(self.send_blocks.free(), self.send_blocks.capacity()),
            range_sets: used(self.ranges.free(), self.ranges.capacity()),
            records: used(self.records.free(), self.records.capacity()),
            listeners: (self.listeners.len(), self.listeners.capacity()),
            replies: (self.replies.len(), self.replies.capacity()),
            cookie_replies: self.replies.cookies(),
            paths: (self.paths.len(), self.paths.capacity()),
        }
    }

    /// The configuration in use, with values clamped to their valid ranges.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }
}

impl Tcb {
    /// Applies options.
    pub(crate) fn apply(&mut self, options: ConnectionOptions) {
        self.options = options.into();
        self.congestion.set_algorithm(options.congestion);
    }

    /// See [`Stack::options`].
    fn options(&self) -> ConnectionOptions {
        self.options.with(self.congestion.algorithm())
    }

    /// See [`Stack::close`].
    fn close(&mut self, cx: &mut Context<'_>) {
        let unread = self.receive.readable() > 0;
        self.closed = true;
        self.write_blocked = false;
        match self.state {
            State::Done => self.receive.clear(cx.blocks, cx.ranges),
            State::SynSent if self.send.len() == 0 => self.finish(cx, FinalTransmit::Record),
            _ if unread => self.begin_reset(cx),
            State::FinWait2 => self.timers.linger = cx.now + cx.config.fin_wait_2,
            _ => self.queue_fin(cx.now),
        }
    }
}
