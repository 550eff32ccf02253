//! Where a connection's fields lie: what segments in order touch in as few cache lines as possible.
//!
//! ```text
//!   line 0, 1   hot       all that a segment with data in order reads and writes: identity, sequence space, receive
//!                         queue, deadline of the acknowledgement. The two are one access to memory (a pair of lines).
//!   line 2      sending   send queue, and when and from where it is sent: data out, acknowledgements of data in
//!   line 3 …    timers, flight, RACK, round-trip times, congestion window: the same, as far as it is needed
//!   behind      cold      recovery from loss, handshake, path, options, addresses, the end
//! ```
//!
//! With 100,000 connections each line that is touched is a miss, and costs more than what is computed from it. Data out and
//! acknowledgements cannot do with two lines: what is in flight, the congestion window, round-trip times and timers
//! are 400 bytes, and each of them changes with each. An acknowledgement that repeats the last one, as segments with data
//! carry it while nothing is sent, touches none of them ([`Tcb::quiet`]).

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
use crate::seq::Seq;
use crate::tcb::{Context, FinalTransmit, Pending, Probe};
use crate::timeouts::Timers;

/// One connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Tcb {
    // Hot.
    pub label: FlowLabel,
    pub via: u32,
    /// Ours and the peer's, as in `tuple`.
    pub ports: (u16, u16),
    pub rcv_nxt: Seq,
    /// The right edge of the window as it was told.
    pub rcv_edge: Seq,
    pub last_ack_sent: Seq,
    /// TS.Recent and when it was taken, in seconds (RFC 7323 §4.3).
    pub ts_recent: u32,
    pub ts_recent_at_s: u32,
    pub snd_una: Seq,
    pub snd_nxt: Seq,
    pub snd_wnd: u32,
    pub snd_wl1: Seq,
    pub snd_wl2: Seq,
    /// Payload per full-sized segment from the peer, as it is estimated: what we allow at first, and at most.
    pub full_sized: u16,
    pub state: State,
    pub send_shift: u8,
    pub last_received: Instant,
    /// When an acknowledgement is due that waits for company; [`Instant::FAR_FUTURE`]: none waits.
    pub delayed_ack: Instant,
    pub receive: ReceiveQueue,
    pub short_segment: ShortSegment,
    pub receive_shift: u8,
    pub quick_acks: u8,
    /// Keepalive probes without an answer.
    pub keepalive_probes: u8,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: Ecn,
    pub pending: Pending,
    /// `abort` was called, or nobody ever knew of the connection: no events.
    pub events_off: bool,
    /// The network node `via` knows label and addresses.
    pub announced: bool,
    /// The peer's FIN was seen, at `fin_at`.
    pub fin_seen: bool,
    pub ack_now: bool,
    /// Something changed that may allow to transmit.
    pub maybe_transmit: bool,
    /// As of the last acknowledgement nothing is in flight and nothing left to be found out: one that repeats it, before
    /// something is sent, tells nothing.
    pub quiet: bool,
    /// Other deadlines than `delayed_ack` may have changed.
    pub rearm: bool,

    // Sending.
    pub send: SendQueue,
    pub iss: Seq,
    pub timestamp_offset: u32,
    /// Largest payload per segment from the peer; the unit of the window.
    pub receive_mss: u16,
    /// Largest payload plus options per segment towards the peer, in bytes.
    pub mss_limit: u16,
    /// FIN follows the send queue.
    pub fin_queued: bool,
    pub fin_acked: bool,
    pub probe: Option<Probe>,
    /// Any network node knows label and addresses.
    pub ever_announced: bool,
    pub last_sent: Instant,
    /// When something sent was last acknowledged; with nothing in flight, when something was first sent or queued.
    pub progress_at: Instant,
    pub timers: Timers,
    pub recovery: Recovery,
    pub rtt: Rtt,
    pub congestion: Congestion,
    pub duplicate: Option<(Seq, Seq)>,
    pub irs: Seq,
    pub options: KeptOptions,
    pub path: PathMtu,

    // Cold.
    pub tuple: FourTuple,
    pub service: u32,
    pub snd_wnd_max: u32,
    /// When the SYN was sent, where it was sent once; [`Instant::FAR_FUTURE`] otherwise.
    pub syn_sent: Instant,
    /// Challenge ACKs are not sent again before.
    pub challenge_after: Instant,
    /// Bytes read since then.
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
    /// `close` was called: the state is ESTABLISHED no longer.
    pub closed: bool,
    /// TIME-WAIT follows.
    pub time_wait: bool,
    /// The stack has taken the connection out of its map and timers.
    pub detached: bool,
}

const LINE: usize = 64;
// The picture above.
const _: () = assert!(offset_of!(Tcb, rearm) < 2 * LINE);
const _: () = assert!(offset_of!(Tcb, send) == 2 * LINE && offset_of!(Tcb, timers) <= 3 * LINE);
const _: () = assert!(offset_of!(Tcb, congestion) + size_of::<Congestion>() <= 10 * LINE);
// An idle connection is to take 1 KiB at most, tables included.
const _: () = assert!(size_of::<Option<Tcb>>() <= 12 * LINE);

impl Tcb {
    /// A connection that will send a SYN; `isn` is its initial sequence number. (Long, because it names every field.)
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
            announced: false,
            fin_seen: false,
            ack_now: false,
            maybe_transmit: true,
            quiet: false,
            rearm: true,
            fin_queued: false,
            fin_acked: false,
            send: SendQueue::EMPTY,
            iss: isn,
            irs: Seq(0),
            timestamp_offset: 0,
            receive_mss: mss,
            probe: None,
            ever_announced: false,
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

/// What a connection starts from.
struct ConnectionDefaults {
    options: KeptOptions,
    mss: u16,
    shift: u8,
}

impl ConnectionDefaults {
    fn of(config: &StackConfig, tuple: &FourTuple) -> Self {
        let options = config.connection_options().into();
        let mss = if tuple.remote.is_ipv4() { config.mss_v4 } else { config.mss_v6 };
        // RFC 7323 §2.2: the smallest shift with which the whole window can be told.
        let bits = u32::BITS - config.receive_window_max.leading_zeros();
        let shift = bits.saturating_sub(16).min(u32::from(WINDOW_SCALE_MAX)) as u8;
        ConnectionDefaults { options, mss, shift }
    }
}
