//! HyStart++ (RFC 9406): the first slow start ends when round-trip times rise, before queues overflow.
//!
//! ```text
//!   slow start ──RTT rose──▶ conservative slow start ──5 rounds──▶ congestion avoidance
//!        ▲                       │
//!        └──────RTT fell again───┘
//! ```

use core::time::Duration;

/// RFC 9406 §4.3.
const RTT_THRESHOLD_MIN_US: u32 = 4_000;
const RTT_THRESHOLD_MAX_US: u32 = 16_000;
const RTT_DIVISOR: u32 = 8;
const SAMPLES: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// No round-trip time measured yet.
const NONE: u32 = u32::MAX;

/// Round-trip times of slow start, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    last_round_min: u32,
    current_round_min: u32,
    /// The round-trip time at which conservative slow start began.
    css_baseline: u32,
    samples: u8,
    /// Rounds of conservative slow start, including the current one; 0 outside of it.
    css_rounds: u8,
}

impl HyStart {
    pub const fn new() -> Self {
        HyStart {
            last_round_min: NONE,
            current_round_min: NONE,
            css_baseline: NONE,
            samples: 0,
            css_rounds: 0,
        }
    }

    /// Begins a round. Returns `true` if conservative slow start has lasted long enough and congestion
    /// avoidance must begin.
    pub fn on_round(&mut self) -> bool {
        self.last_round_min = self.current_round_min;
        self.current_round_min = NONE;
        self.samples = 0;
        if self.css_rounds == 0 {
            return false;
        }
        self.css_rounds += 1;
        self.css_rounds > CSS_ROUNDS
    }

    /// Growth of the window for `acked` acknowledged bytes.
    pub fn growth(&self, acked: u32) -> u32 {
        if self.css_rounds > 0 { acked / CSS_GROWTH_DIVISOR } else { acked }
    }

    /// Processes a round-trip time sample.
    pub fn on_rtt(&mut self, rtt: Duration) {
        let rtt = u32::try_from(rtt.as_micros()).unwrap_or(NONE - 1);
        self.current_round_min = self.current_round_min.min(rtt);
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES {
            return;
        }
        if self.css_rounds > 0 {
            if self.current_round_min < self.css_baseline {
                // The rise was temporary jitter.
                (self.css_baseline, self.css_rounds) = (NONE, 0);
            }
        } else if self.last_round_min != NONE {
            let threshold =
                (self.last_round_min / RTT_DIVISOR).clamp(RTT_THRESHOLD_MIN_US, RTT_THRESHOLD_MAX_US);
            if self.current_round_min >= self.last_round_min.saturating_add(threshold) {
                (self.css_baseline, self.css_rounds) = (self.current_round_min, 1);
            }
        }
    }
}
