//! Congestion control: how much data of a connection may be in flight, and at which rate it is sent.
//!
//! The module owns the congestion window and the slow start threshold, in bytes, and the round trips by which
//! they grow. It does not detect losses, does not send, and uses sequence numbers only to delimit round
//! trips. Loss recovery reports events to it; output reads [`Congestion::cwnd`] and
//! [`Congestion::pacing_rate`].
//!
//! ```text
//!   output ──── on_transmit, restart_after_idle ─────▶ ┌────────────┐
//!   input ───── on_ack(AckSample), on_ecn ───────────▶ │ Congestion │ ──▶ cwnd, ssthresh, pacing_rate
//!   recovery ── on_loss, on_timeout, undo ───────────▶ └────────────┘
//! ```
//!
//! Every acknowledgement that delivers data becomes one [`AckSample`], whatever the phase of recovery.
//! Window-based algorithms ignore the samples of fast recovery, when the window stays at
//! [`Congestion::ssthresh`] and proportional rate reduction limits sending; rate-based algorithms need them.

mod cubic;
mod hystart;
mod newreno;

use core::time::Duration;

use csp_types::Instant;

use crate::config::CongestionControl;
use crate::recovery::Phase;
use crate::seq::Seq;
use cubic::Cubic;
use hystart::HyStart;
use newreno::NewReno;

/// Upper bound of the window: no receive window is larger (RFC 7323 §2.3).
const CWND_MAX: u32 = 1 << 30;

/// Delivery rate of the path, measured over one acknowledged transmission (draft-ietf-ccwg-bbr, delivery rate
/// samples).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RateSample {
    /// Bytes delivered during `interval`.
    pub delivered: u32,
    /// The longer of the time it took to send them and the time it took to acknowledge them.
    pub interval: Duration,
    /// The sender ran out of data in the interval: the path may deliver faster.
    pub app_limited: bool,
}

impl RateSample {
    /// Bytes per second; `None` if the interval is empty.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let nanos = u64::try_from(self.interval.as_nanos()).ok().filter(|&n| n > 0)?;
        Some(u64::from(self.delivered).saturating_mul(1_000_000_000) / nanos)
    }
}

/// Measurements of one acknowledgement.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // rate-based algorithms read what window-based ones do not
pub(crate) struct AckSample {
    pub now: Instant,
    /// SND.UNA after this acknowledgement, and SND.NXT: they delimit round trips.
    pub una: Seq,
    pub nxt: Seq,
    /// Bytes newly acknowledged cumulatively; 0 if the segment only adds SACK blocks.
    pub acked: u32,
    /// Bytes newly delivered: acknowledged and not SACKed before, or newly SACKed.
    pub delivered: u32,
    /// Estimate of the bytes in the network before this acknowledgement.
    pub in_flight: u32,
    /// The round trip that it measured, if any.
    pub rtt: Option<Duration>,
    /// The smoothed round-trip time.
    pub srtt: Option<Duration>,
    /// The phase of loss recovery when it arrived.
    pub phase: Phase,
    pub rate: Option<RateSample>,
}

/// The congestion control of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window: Window,
    algorithm: Algorithm,
    hystart: HyStart,
    /// The current round trip ends when this sequence number is acknowledged.
    round_end: Seq,
    /// While set, congestion signals for data before this sequence number cause no further reduction (RFC
    /// 3168 §6.1.2).
    ecn_until: Option<Seq>,
    /// The window was reduced, and CWR has not been sent yet.
    cwr_pending: bool,
    /// The acknowledgement being processed carries ECE: it must not increase the window.
    growth_withheld: bool,
    /// The latest delivery rate in units of 64 bytes per second, which allows for up to a quarter of a
    /// terabyte per second; 0: unknown.
    delivery_rate: u32,
}

/// The algorithm of congestion avoidance. Slow start is the same for all.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    NewReno(NewReno),
    Cubic(Cubic),
}

impl From<CongestionControl> for Algorithm {
    fn from(wanted: CongestionControl) -> Self {
        match wanted {
            CongestionControl::NewReno => Algorithm::NewReno(NewReno::default()),
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
        }
    }
}

/// State shared by all window-based algorithms.
#[derive(Clone, Copy, Debug)]
struct Window {
    cwnd: u32,
    /// [`CWND_MAX`] until the first reduction or the end of the first slow start.
    ssthresh: u32,
    mss: u32,
    /// Most bytes in flight in this round trip and in the previous one. The amount in flight when an
    /// acknowledgement arrives is smaller, the more so the more acknowledgements arrive at once.
    flight: (u32, u32),
    /// (cwnd, ssthresh) to restore if the loss response turns out to be spurious; 0: nothing to restore.
    before: (u32, u32),
}

impl Window {
    fn flight(&self) -> u32 {
        self.flight.0.max(self.flight.1)
    }

    fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Whether the connection used its window. An unused window is no evidence about the path (RFC 7661
    /// §4.1).
    fn is_used(&self) -> bool {
        let flight = self.flight();
        let used =
            if self.in_slow_start() { flight.saturating_mul(2) } else { flight.saturating_add(self.mss) };
        used >= self.cwnd
    }

    fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(CWND_MAX);
    }
}

impl Congestion {
    /// The state before the handshake.
    pub fn new(wanted: CongestionControl) -> Self {
        let window = Window { cwnd: 1, ssthresh: CWND_MAX, mss: 1, flight: (0, 0), before: (0, 0) };
        Congestion {
            window,
            algorithm: wanted.into(),
            hystart: HyStart::new(),
            round_end: Seq(0),
            ecn_until: None,
            cwr_pending: false,
            growth_withheld: false,
            delivery_rate: 0,
        }
    }

    /// Sets the initial window: `segments` segments of `mss` bytes, or one segment if the SYN was lost (RFC
    /// 6928 §2, RFC 5681 §3.1). `nxt` is the first sequence number of data.
    pub fn start(&mut self, mss: u32, segments: u32, lost_syn: bool, nxt: Seq) {
        let mss = mss.max(1);
        // RFC 6928 §2: min (10*MSS, max (2*MSS, 14600)), scaled to other numbers of segments.
        let initial = (segments * mss).min((2 * mss).max(segments * 1460));
        self.window.mss = mss;
        self.window.cwnd = if lost_syn { mss } else { initial };
        self.round_end = nxt;
    }

    /// Changes the algorithm; the window keeps its size.
    pub fn set_algorithm(&mut self, wanted: CongestionControl) {
        if wanted != self.algorithm() {
            self.algorithm = wanted.into();
            self.discard_undo();
        }
    }

    /// The algorithm in use.
    pub fn algorithm(&self) -> CongestionControl {
        match self.algorithm {
            Algorithm::NewReno(_) => CongestionControl::NewReno,
            Algorithm::Cubic(_) => CongestionControl::Cubic,
        }
    }

    /// Sets the segment size after path MTU discovery changed it.
    pub fn set_mss(&mut self, mss: u32) {
        self.window.mss = mss.max(1);
    }

    /// The congestion window in bytes.
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// The slow start threshold in bytes; in fast recovery it is the target of proportional rate reduction.
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// The pacing rate in bytes per second, given the smoothed round-trip time; `None`: no pacing, only the
    /// window limits sending.
    pub fn pacing_rate(&self, srtt: Option<Duration>) -> Option<u64> {
        let nanos = u64::try_from(srtt?.as_nanos()).ok().filter(|&n| n > 0)?;
        let window = &self.window;
        // Twice the window per round trip while it doubles; later enough to let it grow and to compensate
        // jitter.
        let percent = if window.cwnd < window.ssthresh / 2 { 200 } else { 120 };
        Some((u64::from(window.cwnd) * percent / 100).saturating_mul(1_000_000_000) / nanos)
    }

    /// The latest delivery rate sample in bytes per second; 0 before the first.
    pub fn delivery_rate(&self) -> u64 {
        u64::from(self.delivery_rate) * 64
    }

    /// Records a transmission, after which `in_flight` bytes are in flight.
    pub fn on_transmit(&mut self, in_flight: u32) {
        self.window.flight.0 = self.window.flight.0.max(in_flight);
    }

    /// Processes an acknowledgement that acknowledges or SACKs data.
    pub fn on_ack(&mut self, sample: &AckSample) {
        if let Some(rate) = sample.rate.and_then(|rate| rate.bytes_per_second()) {
            self.delivery_rate = u32::try_from(rate / 64).unwrap_or(u32::MAX);
        }
        // RFC 9406 §4.2: a round ends when windowEnd is acknowledged. An acknowledgement of exactly windowEnd
        // still measured data of the ending round; one beyond it measured data of the next.
        let ends = sample.acked > 0 && !sample.una.before(self.round_end);
        let reaches_further = sample.una.after(self.round_end);
        if ends && reaches_further {
            self.on_round(sample.nxt);
        }
        self.update_window(sample);
        if ends && !reaches_further {
            self.on_round(sample.nxt);
        }
    }

    fn update_window(&mut self, sample: &AckSample) {
        if self.ecn_until.is_some_and(|end| !sample.una.before(end)) {
            self.ecn_until = None;
        }
        let withheld = core::mem::take(&mut self.growth_withheld);
        if sample.phase == Phase::Recovery || sample.acked == 0 || withheld {
            return;
        }
        let mut left = sample.acked;
        if self.window.in_slow_start() {
            left = self.slow_start(sample);
        }
        if left > 0 && !self.window.in_slow_start() {
            self.grow_in_avoidance(&AckSample { acked: left, ..*sample });
        }
    }

    fn on_round(&mut self, nxt: Seq) {
        self.round_end = nxt;
        self.window.flight = (0, self.window.flight.0);
        // RFC 9406 §4.2: the last round of conservative slow start has ended.
        if self.is_first_slow_start() && self.hystart.on_round() {
            self.window.ssthresh = self.window.cwnd;
        }
    }

    /// Whether ssthresh has its initial value, so that HyStart++ applies (RFC 9406 §4.3).
    fn is_first_slow_start(&self) -> bool {
        self.window.ssthresh == CWND_MAX
    }

    /// Returns how many of the acknowledged bytes were not needed to reach the threshold.
    fn slow_start(&mut self, sample: &AckSample) -> u32 {
        let left = self.grow_fast(sample);
        // RFC 9406 §4.2: the window grows before the delay is examined.
        if self.is_first_slow_start()
            && let Some(rtt) = sample.rtt
        {
            self.hystart.on_rtt(rtt);
        }
        left
    }

    fn grow_fast(&mut self, sample: &AckSample) -> u32 {
        let window = &mut self.window;
        if !window.is_used() {
            return 0;
        }
        // RFC 3465 §2.3: after a timeout at most one segment per acknowledgement. Otherwise every byte
        // counts, so that acknowledgements of 64 KB records do not slow down slow start.
        let counted = match sample.phase {
            Phase::Timeout => sample.acked.min(window.mss),
            _ => self.hystart.growth(sample.acked),
        };
        let wanted = window.ssthresh - window.cwnd;
        window.grow(counted.min(wanted));
        counted.saturating_sub(wanted)
    }

    fn grow_in_avoidance(&mut self, sample: &AckSample) {
        let window = &mut self.window;
        match (&mut self.algorithm, window.is_used()) {
            (Algorithm::NewReno(newreno), true) => newreno.on_ack(window, sample.acked),
            (Algorithm::Cubic(cubic), true) => cubic.on_ack(window, sample),
            (Algorithm::Cubic(cubic), false) => cubic.skip(sample.now),
            (Algorithm::NewReno(_), false) => {}
        }
    }

    /// Reduces the window when fast recovery begins; `in_flight` is the estimate of bytes in the network.
    /// Called once per recovery (RFC 6675 §5 step 4.2).
    pub fn on_loss(&mut self, in_flight: u32) {
        self.window.flight.0 = self.window.flight.0.max(in_flight);
        if self.ecn_until.is_some() {
            // RFC 3168 §6.1.2: one reduction per window of data, however many congestion signals it contains.
            return self.discard_undo();
        }
        self.reduce();
        self.window.cwnd = self.window.ssthresh;
    }

    /// Processes an acknowledgement with ECE. `una` and `nxt` as in [`AckSample`]; `open`: no loss recovery
    /// is in progress. Returns whether the window was reduced (RFC 3168 §6.1.2: once per window of data).
    pub fn on_ecn(&mut self, una: Seq, nxt: Seq, open: bool) -> bool {
        self.growth_withheld = true;
        if !open {
            self.cwr_pending = true; // the loss has reduced the window; CWR ends the peer's echo
            return false;
        }
        if self.ecn_until.is_some_and(|end| una.before(end)) {
            return false;
        }
        self.reduce();
        self.window.cwnd = self.window.ssthresh;
        self.discard_undo();
        self.ecn_until = Some(nxt);
        true
    }

    /// Whether the window was reduced since the last call: the next new data then carries CWR.
    pub fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.cwr_pending)
    }

    /// Processes a retransmission timeout; `first`: it is the first since progress (RFC 5681 §3.1).
    pub fn on_timeout(&mut self, first: bool) {
        if first {
            self.reduce();
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_timeout();
        }
        self.window.cwnd = self.window.mss;
    }

    fn reduce(&mut self) {
        self.cwr_pending = true;
        self.window.before = (self.window.cwnd, self.window.ssthresh);
        match &mut self.algorithm {
            Algorithm::NewReno(newreno) => newreno.reduce(&mut self.window),
            Algorithm::Cubic(cubic) => cubic.reduce(&mut self.window),
        }
    }

    /// Restores the window after a spurious loss response (RFC 4015 §3.2, RFC 9438 §4.9), unless it has grown
    /// larger since.
    pub fn undo(&mut self, now: Instant) {
        let (cwnd, ssthresh) = self.window.before;
        if let Algorithm::Cubic(cubic) = &mut self.algorithm
            && cwnd > self.window.cwnd
        {
            cubic.undo(now);
        }
        self.window.cwnd = self.window.cwnd.max(cwnd);
        self.window.ssthresh = self.window.ssthresh.max(ssthresh);
        self.discard_undo();
    }

    /// Discards the state to restore: the coming retransmission has not reduced the window, or its reduction
    /// is final.
    pub fn discard_undo(&mut self) {
        self.window.before = (0, 0);
    }

    /// Restarts from a window of `segments` segments after an idle time longer than a retransmission timeout
    /// (RFC 5681 §4.1). The threshold is set to three quarters of the old window, so that slow start returns
    /// to it quickly, as after a period in which the window is not used (RFC 7661 §4.4).
    pub fn restart_after_idle(&mut self, segments: u32) {
        let window = &mut self.window;
        let restart = segments.saturating_mul(window.mss);
        if window.cwnd <= restart {
            return;
        }
        window.ssthresh = window.ssthresh.max(window.cwnd / 4 * 3);
        window.cwnd = restart.max(window.mss);
        self.hystart = HyStart::new();
        match &mut self.algorithm {
            Algorithm::NewReno(newreno) => newreno.reset(),
            Algorithm::Cubic(cubic) => cubic.end_stage(),
        }
    }
}

#[cfg(test)]
mod tests;
