//! The state of one connection (the transmission control block), and how it begins and ends.
//!
//! ```text
//!            SYN ▶ SYN/ACK                              connect ▶ SYN
//!   listen ──────────────▶ SYN-RECEIVED ◀──SYN────────── SYN-SENT
//!                               │ ACK                       │ SYN/ACK ▶ ACK
//!                               ▼                           │
//!                          ESTABLISHED ◀────────────────────┘
//!        shutdown ▶ FIN │               │ FIN ▶ ACK
//!                       ▼               ▼
//!                  FIN-WAIT-1       CLOSE-WAIT
//!      FIN ▶ ACK │      │ ACK           │ shutdown ▶ FIN
//!                ▼      ▼               ▼
//!           CLOSING  FIN-WAIT-2      LAST-ACK
//!          ACK │        │ FIN ▶ ACK     │ ACK
//!              ▼        ▼               ▼
//!             TIME-WAIT (its own table)  Done
//! ```

mod layout;

pub(crate) use layout::{Tcb, ports};

use csp_types::Instant;
use csp_wire::tcp::Options;

use crate::api::{Event, FailReason, State};
use crate::blocks::BlockPool;
use crate::config::StackConfig;
use crate::counters::Counters;
use crate::path_cache::PathCache;
use crate::ranges::RangePool;
use crate::recovery::pool::RecordPool;
use crate::seq::Seq;
use crate::timeouts::Timers;

/// What a connection may use of its stack while it handles something.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub config: &'a StackConfig,
    /// Memory of what arrived.
    pub blocks: &'a mut BlockPool,
    /// Memory of what was written.
    pub send_blocks: &'a mut BlockPool,
    pub ranges: &'a mut RangePool,
    pub records: &'a mut RecordPool,
    pub paths: &'a mut PathCache,
    pub counters: &'a mut Counters,
}

/// Events that wait to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pending {
    pub established: bool,
    pub readable: bool,
    pub writable: bool,
    pub peer_finished: bool,
    /// The last event, once the protocol is done.
    pub last: Option<Ending>,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Closed,
    Failed(FailReason),
}

impl From<Ending> for Event {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Closed => Event::Closed,
            Ending::Failed(reason) => Event::Failed(reason),
        }
    }
}

/// What a connection that is done still has to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FinalTransmit {
    /// The acknowledgement of the FIN with which TIME-WAIT began.
    Acknowledgement,
    /// RST.
    Reset,
    /// No segment: the network node only forgets the flow.
    Record,
    /// Nothing (any more).
    None,
}

/// A probe that a timer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probe {
    /// One byte into a closed window (RFC 9293 §3.8.6.1).
    Window,
    /// The end of the flight again, or new data (RFC 8985 §7.3).
    Tail,
    /// An old sequence number, to see whether anybody answers (RFC 9293 §3.8.4).
    Keepalive,
}

impl Tcb {
    /// Takes over what the peer's SYN proposes (RFC 9293 §3.7.1, RFC 7323, RFC 2018).
    pub fn negotiate(&mut self, cx: &Context<'_>, seq: Seq, options: &Options) {
        let v4 = self.tuple.remote.is_ipv4();
        // RFC 9293 §3.7.1: MUST-15
        let peer_mss = options.mss.unwrap_or(if v4 { 536 } else { 1220 });
        let ours = if v4 { cx.config.mss_v4 } else { cx.config.mss_v6 };
        self.start_path(cx, peer_mss.min(ours).max(crate::MSS_MIN));
        self.timestamps &= options.timestamps.is_some();
        let timestamps_len = if self.timestamps { 12 } else { 0 };
        self.receive_mss = ours - timestamps_len;
        self.full_sized = self.receive_mss;
        self.sack &= options.sack_permitted;
        self.scaling &= options.window_scale.is_some();
        match options.window_scale {
            Some(shift) if self.scaling => self.send_shift = shift,
            _ => self.receive_shift = 0,
        }
        if let Some(timestamps) = options.timestamps {
            (self.ts_recent, self.ts_recent_at_s) = (timestamps.value, seconds(cx.now));
        }
        self.irs = seq;
        // The window that our SYN told counts from here; it must not be taken back (RFC 9293 §3.8.6).
        let window = self.rcv_edge.since(self.rcv_nxt);
        self.rcv_nxt = seq.plus(1);
        self.rcv_edge = self.rcv_nxt.plus(window);
        self.last_ack_sent = self.rcv_nxt;
    }

    /// The sequence number of the first byte in the send queue.
    pub fn send_base(&self) -> Seq {
        if self.snd_una == self.iss { self.iss.plus(1) } else { self.snd_una }
    }

    /// Whether FIN is still to be sent for the first time.
    pub fn fin_unsent(&self) -> bool {
        self.fin_queued && !self.fin_acked && !self.snd_nxt.after(self.data_end())
    }

    /// The sequence number behind the last byte in the send queue: that of the FIN, until it is acknowledged.
    pub fn data_end(&self) -> Seq {
        self.send_base().plus(self.send.len())
    }

    /// Payload per segment towards the peer without SACK blocks; the unit of congestion control.
    pub fn mss(&self) -> u16 {
        self.mss_limit - if self.timestamps { 12 } else { 0 }
    }

    /// Sequence numbers sent and not acknowledged.
    pub fn outstanding(&self) -> u32 {
        self.snd_nxt.since(self.snd_una)
    }

    /// What is believed to be in the network.
    pub fn pipe(&self) -> u32 {
        self.recovery.pipe()
    }

    /// Our timestamp clock (RFC 7323 §5.4).
    pub fn timestamp(&self, now: Instant) -> u32 {
        now.as_millis_u32().wrapping_add(self.timestamp_offset)
    }

    /// Whether both SYNs were exchanged and acknowledged, and the connection is not done.
    pub fn is_synchronised(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Done)
    }

    /// Whether peers' bytes are still taken in.
    pub fn receives(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// The handshake is complete; `ack` acknowledges our SYN, `window` is the peer's, scaled.
    pub fn establish(&mut self, cx: &mut Context<'_>, ack: Seq, seq: Seq, window: u32) {
        let lost_syn = self.timers.retries > 0;
        self.snd_una = ack;
        (self.snd_wnd, self.snd_wl1, self.snd_wl2) = (window, seq, ack);
        self.snd_wnd_max = window;
        self.congestion.start(
            u32::from(self.mss()),
            cx.config.initial_window_segments,
            lost_syn,
            self.snd_nxt,
        );
        if lost_syn {
            self.rtt.note_syn_retransmitted();
        }
        self.rtt.reset_backoff();
        self.timers.stop_retransmission();
        self.state = State::Established;
        self.syn_due = false;
        self.pending.established = true;
        self.progress_at = cx.now;
        self.start_keepalive(cx);
        self.maybe_transmit = true;
        cx.counters.established += 1;
        if self.fin_queued {
            self.state = State::FinWait1; // `shutdown` came before the handshake was complete
        }
    }

    /// Something is about to be queued. Where nothing waited before, the peer's window may be closed: it has from now on.
    pub fn note_queued(&mut self, now: Instant) {
        if self.send.len() == 0 && self.outstanding() == 0 {
            self.progress_at = now;
        }
    }

    /// Queues FIN behind what was written.
    pub fn queue_fin(&mut self, now: Instant) {
        if self.fin_queued {
            return;
        }
        self.note_queued(now);
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::SynSent | State::SynReceived => {}
            _ => return,
        }
        self.fin_queued = true;
        self.maybe_transmit = true;
    }

    /// The protocol ends well.
    pub fn finish(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit) {
        cx.counters.closed += 1;
        self.end(cx, final_transmit, Ending::Closed);
    }

    /// The protocol ends badly: unread bytes are discarded.
    pub fn fail(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit, reason: FailReason) {
        let counter = match reason {
            FailReason::Reset => &mut cx.counters.failed_reset,
            FailReason::Refused => &mut cx.counters.failed_refused,
            FailReason::TimedOut => &mut cx.counters.failed_timed_out,
            FailReason::DataAfterClose => &mut cx.counters.failed_data_after_close,
        };
        *counter += 1;
        // Nobody was told of a passive connection before it was established.
        self.events_off |= self.passive && matches!(self.state, State::SynReceived);
        self.receive.clear(cx.blocks, cx.ranges);
        self.pending = Pending { established: self.pending.established, ..Pending::default() };
        self.end(cx, final_transmit, Ending::Failed(reason));
    }

    /// `abort` was called: nothing is told.
    pub fn abort(&mut self, cx: &mut Context<'_>) {
        let final_transmit =
            if self.state == State::SynSent { FinalTransmit::Record } else { FinalTransmit::Reset };
        cx.counters.aborted += 1;
        self.events_off = true;
        if self.state != State::Done {
            self.end(cx, final_transmit, Ending::Closed);
        }
        self.receive.clear(cx.blocks, cx.ranges);
    }

    /// The connection was never told of and gives way to another.
    pub fn evict(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit) {
        self.events_off = true;
        self.end(cx, final_transmit, Ending::Closed);
    }

    fn end(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit, ending: Ending) {
        self.state = State::Done;
        self.pending.last = Some(ending);
        self.pending.writable = false;
        self.final_transmit = match final_transmit {
            FinalTransmit::Record if !self.ever_announced => FinalTransmit::None,
            final_transmit => final_transmit,
        };
        self.send.clear(cx.send_blocks);
        self.receive.discard_out_of_order(cx.blocks, cx.ranges);
        self.recovery.clear(cx.records);
        if self.closed {
            self.receive.clear(cx.blocks, cx.ranges);
        }
        self.timers = Timers::default();
        self.delayed_ack = Instant::FAR_FUTURE;
        self.maybe_transmit = true;
    }

    /// The next event to be told.
    pub fn next_event(&mut self) -> Option<Event> {
        let Pending { established, readable, writable, peer_finished, last } = self.pending;
        if self.events_off {
            return None;
        }
        if established {
            self.pending.established = false;
            return Some(Event::Established {
                passive: self.passive,
                service: self.service,
                tuple: self.tuple,
            });
        }
        if readable {
            self.pending.readable = false;
            return Some(Event::Readable);
        }
        if peer_finished {
            self.pending.peer_finished = false;
            return Some(Event::PeerFinished);
        }
        if writable {
            self.pending.writable = false;
            return Some(Event::Writable);
        }
        // What arrived is read before the connection is closed.
        if last.is_some() && self.receive.readable() == 0 {
            self.pending.last = None;
            self.events_off = true;
            return last.map(Event::from);
        }
        None
    }

    /// Whether [`Tcb::next_event`] would tell something.
    pub fn has_event(&self) -> bool {
        let Pending { established, readable, writable, peer_finished, last } = self.pending;
        let last = last.is_some() && self.receive.readable() == 0;
        !self.events_off && (established || readable || writable || peer_finished || last)
    }

    /// Whether nothing is left to be told, read or transmitted.
    pub fn is_over(&self) -> bool {
        self.state == State::Done && self.events_off && self.final_transmit == FinalTransmit::None
    }
}

/// The clock of [`Tcb::ts_recent_at_s`].
pub(crate) fn seconds(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}
