//! Memory layout of the connection block: fields that segments in order touch share as few cache lines as
//! possible.
//!
//! ```text
//!   line 0, 1   hot       everything that a segment with data in order reads and writes: identity, sequence numbers,
//!                         receive queue, deadline of the acknowledgement. The processor fetches both lines at once.
//!   line 2      sending   send queue and its sequence numbers: sent data, acknowledgements of data
//!   line 3 …    timers, flight, RACK, round-trip times, congestion window: for the same segments, as needed
//!   last        cold      loss recovery, handshake, path, options, addresses, end of the connection
//! ```
//!
//! With 100,000 connections every line touched is a cache miss, which costs more than the computation.
//! Sending data and processing its acknowledgements need more than two lines: flight, congestion window,
//! round-trip times and timers take 400 bytes, and every segment changes all of them. While nothing is sent,
//! segments with data repeat the last acknowledgement; such an acknowledgement touches none of those lines
//! ([`Tcb::quiet`]).

use core::mem::offset_of;

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::WINDOW_SCALE_MAX;

use crate::api::State;
use crate::config::{KeptOptions, StackConfig};
use crate::congestion::Congestion;
use crate::ecn::Ecn;
use crate::input::{HoleAcks, ShortSegment};
use crate::path_mtu::PathMtu;
use crate::reassembly::ReceiveQueue;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::sendqueue::SendQueue;
use crate::seq::{Seq, SeqRange};
use crate::tcb::{Announced, Context, Fin, FinalTransmit, Pending, Probe};
use crate::timeouts::Timers;

/// One connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Tcb {
    // Hot.
    pub label: FlowLabel,
    pub via: u32,
    /// Local and remote port, as in `tuple`.
    pub ports: (u16, u16),
    pub rcv_nxt: Seq,
    /// Right edge of the receive window as last advertised.
    pub rcv_edge: Seq,
    pub last_ack_sent: Seq,
    /// TS.Recent and the time of its last update in seconds (RFC 7323 §4.3).
    pub ts_recent: u32,
    pub ts_recent_at_s: u32,
    pub snd_una: Seq,
    pub snd_nxt: Seq,
    pub snd_wnd: u32,
    pub snd_wl1: Seq,
    pub snd_wl2: Seq,
    /// Estimated payload of the peer's full-sized segments; starts with, and never exceeds, the largest that
    /// we permit.
    pub full_sized: u16,
    pub state: State,
    pub send_shift: u8,
    pub last_received: Instant,
    /// Deadline of a delayed acknowledgement; [`Instant::FAR_FUTURE`] if none is pending.
    pub delayed_ack: Instant,
    pub receive: ReceiveQueue,
    pub short_segment: ShortSegment,
    pub receive_shift: u8,
    pub quick_acks: u8,
    /// Keepalive probes sent in succession without a response.
    pub keepalive_probes: u8,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: Ecn,
    pub pending: Pending,
    /// No further events: `abort` was called, the last event was reported, or the connection ended before it
    /// was ever reported.
    pub events_off: bool,
    pub announced: Announced,
    /// The peer's FIN was received; its sequence number is `fin_at`.
    pub fin_seen: bool,
    pub ack_now: bool,
    /// A change since the last attempt may permit transmission.
    pub maybe_transmit: bool,
    /// As of the last acknowledgement nothing is in flight and no loss or probe is pending: until something
    /// is sent, a repetition of it carries no information.
    pub quiet: bool,
    /// Deadlines other than `delayed_ack` may have changed.
    pub rearm: bool,

    // Sending.
    pub send: SendQueue,
    pub iss: Seq,
    pub timestamp_offset: u32,
    /// Largest payload per segment from the peer that we permit; the unit of the receive window.
    pub receive_mss: u16,
    /// Largest payload plus options per segment to the peer, in bytes; lowered and raised by path MTU
    /// discovery.
    pub mss_limit: u16,
    pub fin: Fin,
    pub probe: Option<Probe>,
    pub last_sent: Instant,
    /// When SND.UNA last advanced; if nothing is in flight, when data was first sent or queued.
    pub progress_at: Instant,
    pub timers: Timers,
    pub recovery: Recovery,
    pub rtt: Rtt,
    pub congestion: Congestion,
    pub duplicate: Option<SeqRange>,
    pub irs: Seq,
    pub options: KeptOptions,
    pub path: PathMtu,

    // Cold.
    pub tuple: FourTuple,
    pub service: u32,
    pub snd_wnd_max: u32,
    /// When the SYN was sent, if it was sent only once; [`Instant::FAR_FUTURE`] otherwise.
    pub syn_sent: Instant,
    /// Earliest time of the next challenge ACK.
    pub challenge_after: Instant,
    /// Start of the current measurement of `read_bytes`, the bytes that the application has read. In state
    /// `Resetting`, in which nothing is read, the time of the reset.
    pub read_since: Instant,
    pub read_bytes: u32,
    pub hole_acks: HoleAcks,
    pub retransmits: u32,
    pub fin_at: Seq,
    pub final_transmit: FinalTransmit,
    pub passive: bool,
    pub scaling: bool,
    pub syn_due: bool,
    pub write_blocked: bool,
    /// `Stack::close` was called: received data has no reader. The state is ESTABLISHED no longer.
    pub closed: bool,
    /// The connection enters TIME-WAIT when it leaves the table.
    pub time_wait: bool,
    /// The stack has removed the connection from its tuple map and timer wheel.
    pub detached: bool,
}

const LINE: usize = 64;
// The assertions check the diagram above.
const _: () = assert!(offset_of!(Tcb, rearm) < 2 * LINE);
const _: () = assert!(offset_of!(Tcb, send) == 2 * LINE && offset_of!(Tcb, timers) <= 3 * LINE);
const _: () = assert!(offset_of!(Tcb, congestion) + size_of::<Congestion>() <= 10 * LINE);
// An idle connection must take at most 1 KiB, tables included.
const _: () = assert!(size_of::<Option<Tcb>>() <= 12 * LINE);

impl Tcb {
    /// A connection that sends a SYN with the initial sequence number `isn`. (The function is long because it
    /// names every field.)
    pub fn new(
        cx: &Context<'_>,
        label: FlowLabel,
        tuple: FourTuple,
        via: u32,
        service: u32,
        isn: Seq,
    ) -> Self {
        let ConnectionDefaults { options, mss, shift } = ConnectionDefaults::of(cx.config, &tuple);
        Tcb {
            label,
            via,
            ports: ports(&tuple),
            rcv_nxt: Seq(0),
            rcv_edge: Seq(0),
            last_ack_sent: Seq(0),
            ts_recent: 0,
            ts_recent_at_s: 0,
            snd_una: isn,
            snd_nxt: isn,
            snd_wnd: 0,
            snd_wl1: Seq(0),
            snd_wl2: Seq(0),
            full_sized: mss,
            mss_limit: mss,
            last_received: cx.now,
            delayed_ack: Instant::FAR_FUTURE,
            receive: ReceiveQueue::EMPTY,
            state: State::SynSent,
            send_shift: 0,
            receive_shift: shift,
            quick_acks: cx.config.quick_acks,
            keepalive_probes: 0,
            sack: true,
            timestamps: true,
            ecn: Ecn::default(),
            pending: Pending::default(),
            events_off: false,
            announced: Announced::Never,
            fin_seen: false,
            ack_now: false,
            maybe_transmit: true,
            quiet: false,
            rearm: true,
            fin: Fin::None,
            send: SendQueue::EMPTY,
            iss: isn,
            irs: Seq(0),
            timestamp_offset: 0,
            receive_mss: mss,
            probe: None,
            last_sent: cx.now,
            progress_at: cx.now,
            timers: Timers::default(),
            recovery: Recovery::new(isn),
            rtt: Rtt::new(),
            congestion: Congestion::new(cx.config.congestion),
            duplicate: None,
            options,
            path: PathMtu::new(mss),
            tuple,
            service,
            snd_wnd_max: 0,
            fin_at: Seq(0),
            syn_sent: Instant::FAR_FUTURE,
            challenge_after: Instant::ZERO,
            read_since: Instant::ZERO,
            read_bytes: 0,
            hole_acks: HoleAcks::default(),
            short_segment: ShortSegment::default(),
            retransmits: 0,
            final_transmit: FinalTransmit::None,
            passive: false,
            scaling: true,
            syn_due: true,
            write_blocked: false,
            closed: false,
            time_wait: false,
            detached: false,
        }
    }
}

/// The local and the remote port.
pub(crate) fn ports(tuple: &FourTuple) -> (u16, u16) {
    (tuple.local.port(), tuple.remote.port())
}

/// Configured values that a connection starts with.
struct ConnectionDefaults {
    options: KeptOptions,
    mss: u16,
    shift: u8,
}

impl ConnectionDefaults {
    fn of(config: &StackConfig, tuple: &FourTuple) -> Self {
        let options = config.connection_options().into();
        let mss = if tuple.remote.is_ipv4() { config.mss_v4 } else { config.mss_v6 };
        // RFC 7323 §2.2: the smallest shift with which the largest window can be advertised.
        let bits = u32::BITS - config.receive_window_max.leading_zeros();
        let shift = bits.saturating_sub(16).min(u32::from(WINDOW_SCALE_MAX)) as u8;
        ConnectionDefaults { options, mss, shift }
    }
}
