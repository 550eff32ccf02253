//! Path MTU discovery: the segment size is lowered by ICMP errors (RFC 1191, RFC 8201) and by missing
//! acknowledgements (black holes, RFC 4821), and raised by probing (RFC 8899).
//!
//! ```text
//!   MSS_MIN        mss_limit        candidate          search_high       ceiling
//!      |---------------|················|···················|···············|
//!         known to pass     next probe        not refused       peer's MSS and ours
//! ```
//!
//! A probe is a copy of the bytes that follow it in segments of the size known to pass, and is sent before
//! them. A lost probe does no harm: no data is missing, so congestion control sees no loss. If the probe
//! arrives, the following segments are duplicates up to its end. No other segment ends there, so an
//! acknowledgement of that number, or a duplicate report that ends there (RFC 2883), shows its arrival.
//!
//! The bytes normally follow at once. If pacing, a timeout or a lack of records delays them, the peer may
//! acknowledge them before:
//!
//! ```text
//!   SND.UNA            SND.NXT         SEG.ACK       probe_end
//!      |---- in flight ----|------ sent by the probe ----|---- not yet sent ----
//! ```

use csp_types::Instant;
use csp_wire::tcp::{Flags, Options, SackBlock};

use crate::output::Plan;
use crate::recovery::ack_summary::AckSummary;
use crate::seq::{Seq, SeqRange};
use crate::tcb::{Context, Tcb};

/// Sizes tried in turn when full-sized segments seem to vanish, in bytes of MSS: one that passes through most
/// tunnels, and one that every host accepts (RFC 9293 §3.7.1).
const FALLBACK_V4: [u16; 2] = [1_200, 536];
/// RFC 8200 §5: every link takes packets of 1280 bytes.
const FALLBACK_V6: [u16; 1] = [1_220];
/// Number of successive timeouts after which the size is suspected; each further one lowers it by a step.
const TIMEOUTS_SUSPECT: u8 = 3;
/// Number of lost probes after which a size counts as too large (RFC 8899 §5.1.2, MAX_PROBES).
const PROBES_MAX: u8 = 3;
/// The search ends when the possible gain is smaller than this, in bytes.
const GAIN_MIN: u16 = 16;

/// Path MTU state of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathMtu {
    /// When probing resumes; [`Instant::FAR_FUTURE`] if the ceiling is reached.
    raise_at: Instant,
    /// Upper bound of `mss_limit`: the smaller of the peer's MSS and our own.
    ceiling: u16,
    /// Sizes above this were refused or lost.
    search_high: u16,
    /// Size of the outstanding probe; 0 if there is none. A probe is outstanding until its last byte is
    /// acknowledged.
    probing: u16,
    /// Sequence number after the probe's last byte.
    probe_end: Seq,
    /// Number of lost probes of this size.
    lost: u8,
    /// The size was lowered after timeouts, and nothing was acknowledged since.
    suspect: bool,
    /// A timeout occurred after the probe was sent. Retransmitted segments may end at `probe_end`, so
    /// acknowledgements no longer show whether the probe arrived.
    inconclusive: bool,
}

impl PathMtu {
    /// The state in which every size up to `ceiling` is assumed to pass.
    pub fn new(ceiling: u16) -> Self {
        PathMtu {
            raise_at: Instant::FAR_FUTURE,
            ceiling,
            search_high: ceiling,
            probing: 0,
            probe_end: Seq(0),
            lost: 0,
            suspect: false,
            inconclusive: false,
        }
    }

    /// The next size to probe: the ceiling first, then the middle of the remaining range.
    fn candidate(&self, known: u16) -> u16 {
        if self.search_high == self.ceiling {
            self.ceiling
        } else {
            known + (self.search_high - known).div_ceil(2)
        }
    }
}

/// Length of IP and TCP header without options, in bytes.
fn headers(v4: bool) -> u16 {
    if v4 { 40 } else { 60 }
}

impl Tcb {
    /// Starts path MTU discovery when both MSS options are known; `ceiling` is the negotiated size. A cached
    /// path MTU of the destination lowers the initial size.
    pub fn start_path(&mut self, cx: &Context<'_>, ceiling: u16) {
        self.path = PathMtu::new(ceiling);
        self.mss_limit = ceiling;
        let headers = headers(self.tuple.remote.is_ipv4());
        if let Some((mtu, until)) = cx.paths.get(cx.now, self.tuple.remote.ip()) {
            let limit = mtu.saturating_sub(headers).max(crate::MSS_MIN);
            if limit < ceiling {
                (self.mss_limit, self.path.search_high, self.path.raise_at) = (limit, limit, until);
            }
        }
    }

    /// Processes the next hop's MTU from an ICMP error. Returns whether the size was lowered; it is never
    /// raised.
    pub fn on_packet_too_big(&mut self, cx: &mut Context<'_>, mtu: u16) -> bool {
        let v4 = self.tuple.remote.is_ipv4();
        // RFC 5927 §7.1, RFC 8201 §4: no real link has a smaller MTU; a forged one must not make us send tiny
        // segments.
        let least = if v4 { cx.config.path_mtu_min_v4 } else { 1_280 };
        let limit = mtu.max(least) - headers(v4);
        if limit >= self.mss_limit {
            return false;
        }
        self.path.search_high = limit;
        self.path.raise_at = cx.now + cx.config.path_mtu_age;
        self.set_segment_size(limit);
        cx.counters.path_mtu_lowered += 1;
        self.remember_path(cx);
        if self.is_synchronised() {
            // RFC 1191 §6.4: data in flight is retransmitted in smaller segments. It was not lost to
            // congestion.
            self.resend(cx);
        }
        true
    }

    /// RFC 4821 §7.7: after successive timeouts, lowers the size if full-sized segments may be the ones that
    /// are lost.
    pub fn suspect_black_hole(&mut self, cx: &mut Context<'_>) {
        self.path.inconclusive = true;
        let steps: &[u16] = if self.tuple.remote.is_ipv4() { &FALLBACK_V4 } else { &FALLBACK_V6 };
        if self.timers.retries < TIMEOUTS_SUSPECT {
            return;
        }
        // A smaller size helps only if the data in flight does not fit into one such segment beside its
        // options.
        let options = self.mss_limit - self.mss();
        let helps = |size: &&u16| {
            **size < self.mss_limit && self.outstanding() > u32::from(size.saturating_sub(options))
        };
        let Some(&smaller) = steps.iter().find(helps) else { return };
        if !self.path.suspect {
            self.path.search_high = self.mss_limit;
        }
        self.path.suspect = true;
        cx.counters.path_black_holes_suspected += 1;
        self.set_segment_size(smaller);
    }

    /// Processes an acknowledgement of new data up to `ack` with its SACK blocks: it may show that a probe
    /// arrived, or that segments of the lowered size pass.
    pub fn on_path_progress(&mut self, cx: &mut Context<'_>, ack: Seq, sack: &[SackBlock]) {
        if self.path.suspect {
            // The search determines whether the size was really the cause.
            self.path.suspect = false;
            self.path.lost = 0;
            self.path.raise_at = cx.now;
        }
        let size = self.path.probing;
        if size == 0 || ack.before(self.path.probe_end) {
            return;
        }
        self.path.probing = 0;
        if self.path.inconclusive {
            return; // the next probe may be sent at once
        }
        let end = self.path.probe_end;
        let arrived = ack == end || sack.iter().any(|block| block.end == end.0);
        if arrived {
            self.path.lost = 0;
            cx.counters.path_mtu_raised += 1;
            self.set_segment_size(size);
        } else {
            self.path.lost += 1;
            if self.path.lost >= PROBES_MAX {
                self.path.lost = 0;
                self.path.search_high = size - 1;
            }
        }
        let more = self.path.search_high.saturating_sub(self.mss_limit) >= GAIN_MIN;
        self.path.raise_at = match more {
            true => cx.now + self.rtt.rto(cx.config),
            false if self.mss_limit >= self.path.ceiling => Instant::FAR_FUTURE,
            false => cx.now + cx.config.path_mtu_age,
        };
        // A size lowered by suspicion alone is not cached for the destination, because otherwise a lossy
        // period would make all its connections use small segments. Only sizes that the search refused are.
        if self.path.search_high < self.path.ceiling || self.mss_limit >= self.path.ceiling {
            self.remember_path(cx);
        }
    }

    /// Returns a probe if one is due and enough data follows it to show whether it arrived.
    pub fn path_probe(&mut self, cx: &mut Context<'_>, options: Options, room: u32) -> Option<Plan> {
        if cx.now < self.path.raise_at || self.path.probing != 0 {
            return None;
        }
        if self.path.search_high.saturating_sub(self.mss_limit) < GAIN_MIN {
            self.path.search_high = self.path.ceiling; // the result of the last search has expired
        }
        let mut size = self.path.candidate(self.mss_limit);
        let options_len = options.len() as u16;
        let usual = u32::from(self.mss_limit.saturating_sub(options_len).max(1));
        let payload = |size: u16| u32::from(size.saturating_sub(options_len));
        if payload(size).is_multiple_of(usual) {
            size -= 1; // the probe must not end where another segment ends
        }
        let unsent = self.data_end().since(self.snd_nxt);
        let window = self.snd_una.plus(self.snd_wnd).since(self.snd_nxt);
        if size <= self.mss_limit || unsent.min(window).min(room) < payload(size) + 2 * usual {
            return None;
        }
        (self.path.probing, self.path.inconclusive) = (size, false);
        self.path.probe_end = self.snd_nxt.plus(payload(size));
        cx.counters.path_probes_sent += 1;
        let plan = self.plan(cx, self.snd_nxt, payload(size), Flags::ACK, options);
        Some(Plan { segment_size: payload(size) as u16, ..plan })
    }

    /// The sequence number after the last byte sent: SND.NXT, or the end of the probe if the bytes that it
    /// copies have not all followed it.
    pub fn sent_end(&self) -> Seq {
        match self.path.probing {
            0 => self.snd_nxt,
            _ => self.snd_nxt.max(self.path.probe_end),
        }
    }

    /// Advances SND.NXT to `ack`, which acknowledges bytes that only the probe has carried, so that they are
    /// not sent again. Everything in flight is acknowledged with them; `advance` releases its records.
    pub fn advance_into_probe(&mut self, summary: &mut AckSummary, ack: Seq) {
        self.recovery.on_unrecorded_delivered(summary, SeqRange::new(self.snd_nxt, ack));
        self.snd_nxt = ack;
    }

    fn set_segment_size(&mut self, limit: u16) {
        self.mss_limit = limit;
        self.congestion.set_mss(u32::from(self.mss()));
    }

    /// Caches the path MTU for new connections to this destination.
    fn remember_path(&mut self, cx: &mut Context<'_>) {
        let ip = self.tuple.remote.ip();
        if self.mss_limit >= self.path.ceiling {
            cx.paths.remove(ip);
        } else {
            let until = cx.now + cx.config.path_mtu_age;
            cx.paths.set(ip, self.mss_limit + headers(ip.is_ipv4()), until);
        }
    }
}
