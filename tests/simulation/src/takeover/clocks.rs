//! The two clocks of a host: CLOCK_MONOTONIC, which stands still while the host sleeps, and CLOCK_BOOTTIME,
//! by which groups of addresses are held.

use std::cell::Cell;

use csp_types::{Duration, Instant};

use crate::clock::Clock;

/// How far CLOCK_BOOTTIME is ahead from the start: the host has slept before.
const SLEPT_BEFORE: Duration = Duration::from_secs(17);

thread_local! {
    /// CLOCK_BOOTTIME of the node that runs now: nodes read it through a plain function.
    static BOOT_TIME: Cell<Instant> = const { Cell::new(Instant::ZERO) };
}

/// Returns CLOCK_BOOTTIME of the node that runs now.
pub(super) fn boot_time() -> Instant {
    BOOT_TIME.get()
}

/// The clocks of a host.
#[derive(Clone, Copy, Default)]
pub(super) struct Clocks {
    clock: Clock,
    slept: Duration,
}

impl Clocks {
    /// Returns the clocks of the host of a node under a seed.
    pub(super) fn of(seed: u64, name: &str) -> Self {
        Clocks { clock: Clock::of(seed, name), slept: Duration::ZERO }
    }

    /// Records that the host has slept for this long, until now.
    pub(super) fn sleep(&mut self, length: Duration) {
        self.slept += length;
    }

    fn awake(&self, now: Instant) -> Instant {
        Instant::ZERO + (now - Instant::ZERO).saturating_sub(self.slept)
    }

    /// Makes the host's clocks those of the node that runs now; returns its CLOCK_MONOTONIC.
    pub(super) fn show(&self, now: Instant) -> Instant {
        BOOT_TIME.set(self.boot(now));
        self.clock.at(self.awake(now))
    }

    /// Returns what CLOCK_BOOTTIME shows at `now`.
    pub(super) fn boot(&self, now: Instant) -> Instant {
        self.clock.at(now) + SLEPT_BEFORE
    }

    /// Returns when CLOCK_MONOTONIC shows `shown`; see [`Clock::when`].
    pub(super) fn when(&self, now: Instant, shown: Instant) -> Instant {
        self.clock.when(self.awake(now), shown) + self.slept
    }
}
