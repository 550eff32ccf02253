//! CUBIC's window in congestion avoidance (RFC 9438).
//!
//! ```text
//!   cwnd ┤                              ╱  convex: probing
//!        │ W_max  ╲          ___------‘
//!        │         ╲     ,-‘   plateau
//!        │          ╲  ╱  concave
//!        │ β·W_max   ╲╱
//!        └───────────┬───────┬──────────▶ t     W_cubic(t) = C·(t − K)³ + W_max
//!                    0       K
//! ```
//!
//! Windows are in bytes here and in segments in the RFC: C is scaled by the segment size. The time t advances
//! only while the window is used (§5.8), so that the window does not grow while the application is idle or
//! slow.

use core::time::Duration;

use csp_types::Instant;

use super::{AckSample, Window};

/// RFC 9438 §4.6.
const BETA: f32 = 0.7;
/// RFC 9438 §5.1, in segments per second³.
const C: f32 = 0.4;
/// RFC 9438 §4.3: the additive increase with which AIMD with [`BETA`] has the average rate of Reno.
const ALPHA: f32 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State of CUBIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    curve: Curve,
    /// A stage of congestion avoidance has begun.
    running: bool,
    /// When t last advanced, in microseconds modulo 2³².
    counted_at_us: u32,
    /// Fractional growth, less than a byte.
    credit: f32,
    /// The curve before the latest reduction, for undoing it (§4.9).
    before: Curve,
}

/// Parameters of the growth curve.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    /// W_max in bytes; 0: the next stage takes the current window as W_max.
    max: u32,
    /// cwnd_prior in bytes.
    prior: u32,
    /// K in seconds.
    k: f32,
    /// W_est in bytes.
    estimate: f32,
    /// t in microseconds.
    elapsed_us: u32,
}

impl Curve {
    /// W_cubic(t) in bytes, for segments of `mss` bytes and t in seconds (RFC 9438 §4.2, equation 1).
    fn window_at(&self, mss: u32, t: f32) -> f32 {
        let beyond = t - self.k;
        C * mss as f32 * beyond * beyond * beyond + self.max as f32
    }

    fn seconds(&self) -> f32 {
        self.elapsed_us as f32 / 1e6
    }
}

/// `at` in the unit of [`Cubic::counted_at_us`].
fn micros(at: Instant) -> u32 {
    (at.as_nanos() / 1_000) as u32
}

impl Default for Cubic {
    fn default() -> Self {
        let curve = Curve::default();
        Cubic { curve, running: false, counted_at_us: 0, credit: 0.0, before: curve }
    }
}

impl Cubic {
    /// Processes `sample.acked` acknowledged bytes in congestion avoidance while the window is used.
    pub fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        if !self.running {
            self.begin_stage(window, sample.now);
        }
        let now = micros(sample.now);
        let passed = now.wrapping_sub(self.counted_at_us);
        self.counted_at_us = now;
        self.curve.elapsed_us = self.curve.elapsed_us.saturating_add(passed);

        let cwnd = window.cwnd as f32;
        let share = sample.acked as f32 / cwnd;
        self.estimate_reno(window, share);
        let t = self.curve.seconds();
        // RFC 9438 §4.3: in the Reno-friendly region, Reno's window would be larger.
        if self.curve.window_at(window.mss, t) < self.curve.estimate {
            let growth = (self.curve.estimate - cwnd).max(0.0);
            return self.grow(window, growth);
        }
        // RFC 9438 §4.2: the target is the curve's value one round trip from now, between 1 and 1.5 times the
        // window.
        let rtt = sample.srtt.unwrap_or(Duration::ZERO).as_secs_f32();
        let target = self.curve.window_at(window.mss, t + rtt).clamp(cwnd, 1.5 * cwnd);
        // RFC 9438 §4.4, §4.5
        self.grow(window, (target - cwnd) * share);
    }

    /// Advances the clock without advancing t, because the window was not used (RFC 9438 §5.8).
    pub fn skip(&mut self, now: Instant) {
        self.counted_at_us = micros(now);
    }

    /// Begins a stage of congestion avoidance (RFC 9438 §4.2, §4.8, §4.10).
    fn begin_stage(&mut self, window: &Window, now: Instant) {
        (self.running, self.counted_at_us) = (true, micros(now));
        self.credit = 0.0;
        let curve = &mut self.curve;
        curve.elapsed_us = 0;
        curve.estimate = window.cwnd as f32;
        if window.cwnd >= curve.max {
            // After a timeout, or a slow start that ended without loss, the curve starts at its plateau.
            (curve.max, curve.k) = (window.cwnd, 0.0);
        } else {
            // Equation 2.
            let segments = (curve.max - window.cwnd) as f32 / window.mss as f32;
            curve.k = (segments / C).cbrt();
        }
    }

    /// Updates W_est, the window that Reno would have (RFC 9438 §4.3), after `share` of a window was
    /// acknowledged.
    fn estimate_reno(&mut self, window: &Window, share: f32) {
        let alpha = if self.curve.estimate < self.curve.prior as f32 { ALPHA } else { 1.0 };
        self.curve.estimate += alpha * share * window.mss as f32;
    }

    fn grow(&mut self, window: &mut Window, bytes: f32) {
        self.credit += bytes;
        let whole = self.credit as u32;
        self.credit -= whole as f32;
        window.grow(whole);
    }

    /// Reduces the window after loss or ECN (RFC 9438 §4.6, §4.7).
    pub fn reduce(&mut self, window: &mut Window) {
        self.before = self.curve;
        let cwnd = window.flight().min(window.cwnd);
        // Fast convergence: a flow that did not reach its old W_max releases bandwidth to other flows.
        self.curve.max = match cwnd < self.curve.max {
            true => (cwnd as f32 * (1.0 + BETA) / 2.0) as u32,
            false => cwnd,
        };
        self.curve.prior = cwnd;
        window.ssthresh = ((cwnd as f32 * BETA) as u32).max(2 * window.mss);
        self.end_stage();
    }

    /// Marks the reduction as that of a timeout: the curve restarts from the window at which slow start ends
    /// (RFC 9438 §4.8).
    pub fn on_timeout(&mut self) {
        self.curve.max = 0;
        self.end_stage();
    }

    /// Ends the stage; the next acknowledgement in congestion avoidance begins another.
    pub fn end_stage(&mut self) {
        self.running = false;
    }

    /// Restores the curve after a spurious reduction (RFC 9438 §4.9).
    pub fn undo(&mut self, now: Instant) {
        self.curve = self.before;
        (self.running, self.counted_at_us) = (self.curve.max > 0, micros(now));
    }

    #[cfg(test)]
    pub fn k(&self) -> f32 {
        self.curve.k
    }

    #[cfg(test)]
    pub fn max(&self) -> u32 {
        self.curve.max
    }
}
