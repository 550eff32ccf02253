//! How large a connection's segments may be on the path: lowered by ICMP (RFC 1191, RFC 8201) and by silence (black holes,
//! RFC 4821), raised again by probing (RFC 8899).
//!
//! ```text
//!   MSS_MIN        mss_limit        candidate          search_high       ceiling
//!      |---------------|················|···················|···············|
//!         known to pass      asked for         not refused         SYNs, interface
//! ```
//!
//! A probe is a copy of the bytes that follow it in segments of the size that is known to pass, sent in front of them. It
//! carries no risk: where it is lost nothing is missing, and no loss is seen that congestion control would answer. Where
//! it arrives, what follows is a duplicate up to its end, which is the end of no other segment: the receiver acknowledges
//! that number, or reports a duplicate that ends there (RFC 2883).

use csp_types::Instant;
use csp_wire::tcp::{Flags, Options, SackBlock};

use crate::output::Plan;
use crate::seq::Seq;
use crate::tcb::{Context, Tcb};

/// Sizes tried in turn, in bytes of MSS, when full segments seem to vanish: what most tunnels take, and what every host
/// does (RFC 9293 §3.7.1).
const FALLBACK_V4: [u16; 2] = [1_200, 536];
/// RFC 8200 §5: every link takes packets of 1280 bytes.
const FALLBACK_V6: [u16; 1] = [1_220];
/// Timeouts in succession from which on the size is suspected, a step for each.
const TIMEOUTS_SUSPECT: u8 = 3;
/// Probes of one size before it counts as too large (RFC 8899 §5.1.2, MAX_PROBES).
const PROBES_MAX: u8 = 3;
/// The search ends when it could win less than this, in bytes.
const GAIN_MIN: u16 = 16;

/// What a connection knows of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathMtu {
    /// When probing goes on; [`Instant::FAR_FUTURE`]: the ceiling is reached.
    raise_at: Instant,
    /// What the SYNs and our interface allow: `mss_limit` never exceeds it.
    ceiling: u16,
    /// Larger sizes than this were refused or lost.
    search_high: u16,
    /// The size of the probe that is out, 0: none.
    probing: u16,
    /// Where its bytes end.
    probe_end: Seq,
    /// Probes of this size that were lost.
    lost: u8,
    /// The size was lowered on suspicion; nothing has arrived since.
    suspect: bool,
}

impl PathMtu {
    /// A path on which every size up to `ceiling` is taken to pass.
    pub fn new(ceiling: u16) -> Self {
        PathMtu {
            raise_at: Instant::FAR_FUTURE,
            ceiling,
            search_high: ceiling,
            probing: 0,
            probe_end: Seq(0),
            lost: 0,
            suspect: false,
        }
    }

    /// The next size to ask for: all there is to win first, then the middle.
    fn candidate(&self, known: u16) -> u16 {
        if self.search_high == self.ceiling {
            self.ceiling
        } else {
            known + (self.search_high - known).div_ceil(2)
        }
    }
}

/// Bytes of IP and TCP header without options.
fn headers(v4: bool) -> u16 {
    if v4 { 40 } else { 60 }
}

impl Tcb {
    /// Both SYNs are known: sizes up to `ceiling` are agreed on. What the destination's path was seen to take counts.
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

    /// An ICMP error told the next hop's MTU. Says whether that was news: it only ever lowers.
    pub fn on_packet_too_big(&mut self, cx: &mut Context<'_>, mtu: u16) -> bool {
        let v4 = self.tuple.remote.is_ipv4();
        // RFC 5927 §7.1, RFC 8201 §4: smaller ones are no real link's, and must not make us send crumbs.
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
            // RFC 1191 §6.4: what is in flight is sent again in smaller segments; it was not lost to congestion.
            self.resend(cx);
        }
        true
    }

    /// RFC 4821 §7.7: timeouts in succession. Lowers the size where full-sized segments may be what does not arrive.
    pub fn suspect_black_hole(&mut self, cx: &mut Context<'_>) {
        self.path.probing = 0; // what is sent again has other ends
        let steps: &[u16] = if self.tuple.remote.is_ipv4() { &FALLBACK_V4 } else { &FALLBACK_V6 };
        if self.timers.retries < TIMEOUTS_SUSPECT {
            return;
        }
        // Smaller segments than what is in flight make no difference to it.
        let helps = |size: &&u16| **size < self.mss_limit && self.outstanding() > u32::from(**size);
        let Some(&smaller) = steps.iter().find(helps) else { return };
        if !self.path.suspect {
            self.path.search_high = self.mss_limit;
        }
        self.path.suspect = true;
        cx.counters.path_black_holes_suspected += 1;
        self.set_segment_size(smaller);
    }

    /// The peer acknowledged everything before `ack`, which is new, with these SACK blocks: a probe arrived, or what we
    /// suspected was right.
    pub fn on_path_progress(&mut self, cx: &mut Context<'_>, ack: Seq, sack: &[SackBlock]) {
        if self.path.suspect {
            // Whether size or weather was to blame, the search will tell.
            self.path.suspect = false;
            self.path.lost = 0;
            self.path.raise_at = cx.now;
        }
        let size = self.path.probing;
        if size == 0 || ack.before(self.path.probe_end) {
            return;
        }
        self.path.probing = 0;
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
        // Suspicion is not held against the destination, or bad weather would make all its connections small: only what
        // the search refused is.
        if self.path.search_high < self.path.ceiling || self.mss_limit >= self.path.ceiling {
            self.remember_path(cx);
        }
    }

    /// A probe, where one is due and what follows it will show whether it arrived.
    pub fn path_probe(&mut self, cx: &mut Context<'_>, options: Options, room: u32) -> Option<Plan> {
        if cx.now < self.path.raise_at || self.path.probing != 0 {
            return None;
        }
        if self.path.search_high.saturating_sub(self.mss_limit) < GAIN_MIN {
            self.path.search_high = self.path.ceiling; // the time of the last answer is over
        }
        let mut size = self.path.candidate(self.mss_limit);
        let options_len = options.len() as u16;
        let usual = u32::from(self.mss_limit.saturating_sub(options_len).max(1));
        let payload = |size: u16| u32::from(size.saturating_sub(options_len));
        if payload(size).is_multiple_of(usual) {
            size -= 1; // its end must be no other segment's
        }
        let unsent = self.data_end().since(self.snd_nxt);
        let window = self.snd_una.plus(self.snd_wnd).since(self.snd_nxt);
        if size <= self.mss_limit || unsent.min(window).min(room) < payload(size) + 2 * usual {
            return None;
        }
        self.path.probing = size;
        self.path.probe_end = self.snd_nxt.plus(payload(size));
        cx.counters.path_probes_sent += 1;
        let plan = self.plan(cx, self.snd_nxt, payload(size), Flags::ACK, options);
        Some(Plan { segment_size: payload(size) as u16, ..plan })
    }

    fn set_segment_size(&mut self, limit: u16) {
        self.mss_limit = limit;
        self.congestion.set_mss(u32::from(self.mss()));
    }

    /// New connections to this destination start from what this one found.
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
