//! The state of one connection (the transmission control block), and the transitions that begin and end it.
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
use crate::output::metering::Meter;
use crate::path_cache::PathCache;
use crate::ranges::RangePool;
use crate::recovery::pool::RecordPool;
use crate::seq::Seq;
use crate::timeouts::Timers;

/// The parts of the stack that a connection uses while it processes something.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub config: &'a StackConfig,
    /// Memory for received data.
    pub blocks: &'a mut BlockPool,
    /// Memory for written data.
    pub send_blocks: &'a mut BlockPool,
    pub ranges: &'a mut RangePool,
    pub records: &'a mut RecordPool,
    pub paths: &'a mut PathCache,
    pub counters: &'a mut Counters,
    /// Meters of connections that share an output link; empty if no connection has ever been metered.
    pub meters: &'a mut [Meter],
}

/// Events that are due and not yet reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pending {
    pub established: bool,
    pub readable: bool,
    /// There is room again; after the end of the protocol: it has failed while bytes were unread.
    pub writable: bool,
    pub peer_finished: bool,
    /// The last event; set when the protocol ends.
    pub last: Option<Ending>,
}

/// How the protocol ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Closed,
    Failed(FailReason),
    /// By the caller's reset.
    Reset,
}

impl From<Ending> for Event {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Closed => Event::Closed,
            Ending::Failed(reason) => Event::Failed(reason),
            Ending::Reset => Event::Reset,
        }
    }
}

/// The last transmission that a connection in state `Done` has yet to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FinalTransmit {
    /// The acknowledgement of the FIN with which TIME-WAIT began.
    Acknowledgement,
    /// RST.
    Reset,
    /// No segment, only a `flow-end` record, by which the network node releases the flow.
    Record,
    /// Nothing, or already transmitted.
    None,
}

/// The FIN that we send, independent of that of the peer.
///
/// ```text
///   None ──shutdown, close──▶ Unacknowledged ──ACK of the FIN──▶ Acknowledged
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fin {
    /// The application may still write.
    None,
    /// FIN follows the send queue; whether it was sent follows from SND.NXT ([`Tcb::fin_unsent`]).
    Unacknowledged,
    /// The peer has acknowledged FIN and everything before it.
    Acknowledged,
}

impl Fin {
    /// Whether nothing can be written any more.
    pub fn is_queued(self) -> bool {
        self != Fin::None
    }
}

/// Whether the network node in use was sent the label and addresses of the connection.
///
/// ```text
///   Never ──first segment──▶ ToCurrent ──network node replaced, or without the label──▶ ToFormer
///                                ▲───────────────────next segment──────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Announced {
    /// None: nothing was sent.
    Never,
    /// One that is no longer in use, or has lost them: the next segment announces them.
    ToFormer,
    /// The one in use, `Tcb::via`.
    ToCurrent,
}

impl Announced {
    /// The network node in use no longer has label and addresses.
    pub fn invalidate(&mut self) {
        if *self == Announced::ToCurrent {
            *self = Announced::ToFormer;
        }
    }
}

/// A probe that a timer has requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probe {
    /// One byte beyond a closed window (RFC 9293 §3.8.6.1).
    Window,
    /// New data, or a retransmission of the last segment in flight (RFC 8985 §7.3).
    Tail,
    /// A segment with an old sequence number, which a live peer acknowledges (RFC 9293 §3.8.4).
    Keepalive,
}

impl Tcb {
    /// Applies the options of the peer's SYN (RFC 9293 §3.7.1, RFC 7323, RFC 2018).
    pub fn negotiate(&mut self, cx: &Context<'_>, seq: Seq, options: &Options) {
        let v4 = self.tuple.remote.is_ipv4();
        // RFC 9293 §3.7.1: MUST-15
        let peer_mss = options.mss.unwrap_or(if v4 { 536 } else { 1220 });
        let ours = self.own_mss(cx.config);
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
        // The window advertised in our SYN is relative to RCV.NXT, which changes here; the window must not
        // shrink (RFC 9293 §3.8.6).
        let window = self.rcv_edge.since(self.rcv_nxt);
        self.rcv_nxt = seq.plus(1);
        self.rcv_edge = self.rcv_nxt.plus(window);
        self.last_ack_sent = seq; // the SYN is not acknowledged yet (RFC 7323 §4.3 (1))
    }

    /// The sequence number of the first byte in the send queue.
    pub fn send_base(&self) -> Seq {
        if self.snd_una == self.iss { self.iss.plus(1) } else { self.snd_una }
    }

    /// Whether FIN is queued and has not been sent yet.
    pub fn fin_unsent(&self) -> bool {
        self.fin == Fin::Unacknowledged && !self.snd_nxt.after(self.data_end())
    }

    /// The sequence number after the last byte in the send queue. It is that of the FIN until the FIN is
    /// acknowledged.
    pub fn data_end(&self) -> Seq {
        self.send_base().plus(self.send.len())
    }

    /// The MSS to advertise, and the limit of segments to the peer.
    pub fn own_mss(&self, config: &StackConfig) -> u16 {
        let configured = if self.tuple.remote.is_ipv4() { config.mss_v4 } else { config.mss_v6 };
        configured.min(self.options.mss_max)
    }

    /// Largest payload of a segment to the peer that carries no SACK blocks; the unit of congestion control
    /// (SMSS).
    pub fn mss(&self) -> u16 {
        self.mss_limit - if self.timestamps { 12 } else { 0 }
    }

    /// Sequence numbers sent and not yet acknowledged.
    pub fn outstanding(&self) -> u32 {
        self.snd_nxt.since(self.snd_una)
    }

    /// Estimate of the sequence numbers in the network ([`crate::recovery::Recovery::pipe`]).
    pub fn pipe(&self) -> u32 {
        self.recovery.pipe()
    }

    /// The value of our timestamp clock at `now`, in milliseconds (RFC 7323 §5.4).
    pub fn timestamp(&self, now: Instant) -> u32 {
        now.as_millis_u32().wrapping_add(self.timestamp_offset)
    }

    /// Whether the handshake is complete and the protocol has not ended.
    pub fn is_synchronised(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Done)
    }

    /// Whether the state permits receiving data.
    pub fn receives(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2 | State::Resetting)
    }

    /// Completes the handshake. `ack` acknowledges our SYN; `seq` is the sequence number of the peer's
    /// segment; `window` is the peer's window in bytes.
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
        // Without our SYN/ACK the peer's SYN is not acknowledged yet. That is so after a simultaneous open,
        // too, if the peer's SYN/ACK arrives before ours is sent.
        self.ack_now |= self.last_ack_sent != self.rcv_nxt;
        self.pending.established = true;
        self.progress_at = cx.now;
        self.start_keepalive(cx);
        self.maybe_transmit = true;
        cx.counters.established += 1;
        if self.fin.is_queued() {
            self.state = State::FinWait1; // `shutdown` was called before the handshake was complete
        }
    }

    /// Must be called before data or FIN is queued. If the queue was empty and nothing was in flight, the
    /// time without progress starts now: it is measured for the user timeout and for closed windows.
    pub fn note_queued(&mut self, now: Instant) {
        if self.send.len() == 0 && self.outstanding() == 0 {
            self.progress_at = now;
        }
    }

    /// Queues FIN after the written data.
    pub fn queue_fin(&mut self, now: Instant) {
        if self.fin.is_queued() {
            return;
        }
        self.note_queued(now);
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::SynSent | State::SynReceived => {}
            _ => return,
        }
        self.fin = Fin::Unacknowledged;
        self.maybe_transmit = true;
    }

    /// Ends the protocol regularly.
    pub fn finish(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit) {
        cx.counters.closed += 1;
        self.end(cx, final_transmit, Ending::Closed);
    }

    /// Ends the protocol with a failure. Unread bytes remain readable, as in the kernel's receive queue after
    /// a RST.
    pub fn fail(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit, reason: FailReason) {
        let counter = match reason {
            FailReason::Reset => &mut cx.counters.failed_reset,
            FailReason::Refused => &mut cx.counters.failed_refused,
            FailReason::TimedOut => &mut cx.counters.failed_timed_out,
            FailReason::DataAfterClose => &mut cx.counters.failed_data_after_close,
        };
        *counter += 1;
        // A passive connection is not reported to the caller before it is established, so its failure is not
        // reported either.
        self.events_off |= self.passive && matches!(self.state, State::SynReceived);
        self.end(cx, final_transmit, Ending::Failed(reason));
        self.pending.writable = self.receive.readable() > 0;
    }

    /// Ends the connection for `Stack::abort`; no event is reported.
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

    /// Ends a half-open connection, which was never reported, to make room for another.
    pub fn evict(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit) {
        self.events_off = true;
        self.end(cx, final_transmit, Ending::Closed);
    }

    pub(crate) fn end(&mut self, cx: &mut Context<'_>, final_transmit: FinalTransmit, ending: Ending) {
        self.state = State::Done;
        self.pending.last = Some(ending);
        self.pending.writable = false;
        self.final_transmit = match final_transmit {
            FinalTransmit::Record if self.announced == Announced::Never => FinalTransmit::None,
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

    /// Removes and returns the next event.
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
            match last {
                None => return Some(Event::Writable),
                Some(Ending::Failed(reason)) if self.receive.readable() > 0 => {
                    return Some(Event::Broken(reason));
                }
                Some(_) => {}
            }
        }
        // The last event is reported only after all received data was read.
        if last.is_some() && self.receive.readable() == 0 {
            self.pending.last = None;
            self.events_off = true;
            return last.map(Event::from);
        }
        None
    }

    /// Whether [`Tcb::next_event`] would return an event.
    pub fn has_event(&self) -> bool {
        let Pending { established, readable, writable, peer_finished, last } = self.pending;
        let last = last.is_some() && self.receive.readable() == 0;
        !self.events_off && (established || readable || writable || peer_finished || last)
    }

    /// Whether nothing is left to report, read or transmit, so that the block can be released.
    pub fn is_over(&self) -> bool {
        self.state == State::Done && self.events_off && self.final_transmit == FinalTransmit::None
    }
}

/// `now` in the unit of [`Tcb::ts_recent_at_s`].
pub(crate) fn seconds(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}
