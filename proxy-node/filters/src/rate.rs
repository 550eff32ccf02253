//! Rates by key: GCRA in one atomic number for each key.
//!
//! ```text
//!  a place:  tag (20 bits) │ theoretical arrival time in µs (44 bits, which wrap after 203 days)
//!
//!  now ─────────────┬──────────────────▶ arrival time        ahead = arrival time - now
//!      ◀── ahead ──▶│                                         passes if ahead <= tolerance
//!                                                            then arrival time = now + ahead + interval
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use csp_types::Instant;

use crate::Mistake;

/// Places in which a key may be.
pub(crate) const WAYS: usize = 8;
/// Attempts to change a place while other workers change it.
pub(crate) const TRIES: usize = 32;
/// Most requests in a second: intervals are whole µs.
pub(crate) const RATE_MAX: u64 = 100_000;
const TIME_BITS: u32 = 44;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// Longest time in µs in which a burst is paid back.
const TOLERANCE_MAX_US: u64 = 86_400_000_000;
/// By how much the times of two workers may differ in µs.
const SKEW_MAX_US: u64 = 60_000_000;

/// A rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSpec {
    /// Requests in that time.
    pub requests: u32,
    /// The time in seconds.
    pub period_s: u32,
    /// Requests that pass at once after a pause.
    pub burst: u32,
}

impl RateSpec {
    fn interval_us(self) -> u64 {
        (u64::from(self.period_s) * 1_000_000).div_ceil(u64::from(self.requests.max(1)))
    }

    pub(crate) fn check(self) -> Result<(), Mistake> {
        if self.requests == 0 || self.period_s == 0 || self.burst == 0 {
            return Err(Mistake::Zero);
        }
        if u64::from(self.requests) > RATE_MAX * u64::from(self.period_s) {
            return Err(Mistake::Rate);
        }
        let most = (TOLERANCE_MAX_US / self.interval_us()).max(1);
        if u64::from(self.burst) > most { Err(Mistake::Burst(most)) } else { Ok(()) }
    }
}

/// A table of rates, of all workers of a proxy.
#[derive(Debug)]
pub struct RateTable {
    places: Box<[AtomicU64]>,
    interval_us: u64,
    tolerance_us: u64,
    evicted: AtomicU64,
}

impl RateTable {
    /// Creates a table of at least `entries` places. The rate was checked.
    pub(crate) fn new(rate: RateSpec, entries: usize) -> Self {
        let interval_us = rate.interval_us();
        RateTable {
            places: places(entries),
            interval_us,
            tolerance_us: interval_us * u64::from(rate.burst.saturating_sub(1)),
            evicted: AtomicU64::new(0),
        }
    }

    /// Counts a request of the key with this hash. An error: it is beyond the rate; after so many seconds one
    /// will pass.
    pub fn take(&self, hash: u64, now: Instant) -> Result<(), u32> {
        let now = (now.as_nanos() / 1_000) & TIME_MASK;
        let (tag, set) = (hash >> TIME_BITS, set(&self.places, hash));
        for _ in 0..TRIES {
            let Some(found) = self.find(set, tag, now) else { return Ok(()) };
            let ahead = if found.is_own { found.ahead } else { 0 };
            if ahead > self.tolerance_us {
                let wait_us = ahead - self.tolerance_us;
                return Err(wait_us.div_ceil(1_000_000) as u32);
            }
            let next = tag << TIME_BITS | (now + ahead + self.interval_us) & TIME_MASK;
            if found.place.compare_exchange(found.value, next, Relaxed, Relaxed).is_ok() {
                if !found.is_own && found.ahead > 0 {
                    self.evicted.fetch_add(1, Relaxed);
                }
                return Ok(());
            }
        }
        Err(1) // so many others have passed in between
    }

    /// Returns how many keys were evicted before they were within their rate again.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Returns the place of a key, or else the one whose key needs it least.
    fn find<'a>(&self, set: &'a [AtomicU64], tag: u64, now: u64) -> Option<Found<'a>> {
        let mut best: Option<Found<'a>> = None;
        for place in set {
            let value = place.load(Relaxed);
            let ahead = self.ahead(value, now);
            let is_own = value != 0 && value >> TIME_BITS == tag;
            if is_own || best.as_ref().is_none_or(|best| ahead < best.ahead) {
                best = Some(Found { place, value, ahead, is_own });
            }
            if is_own {
                break;
            }
        }
        best
    }

    /// Returns by how much the arrival time is ahead of now, in µs; 0 if it is past. A time farther ahead
    /// than any can be is one of the past.
    fn ahead(&self, value: u64, now: u64) -> u64 {
        let ahead = (value & TIME_MASK).wrapping_sub(now) & TIME_MASK;
        let is_past = value == 0 || ahead > self.tolerance_us + self.interval_us + SKEW_MAX_US;
        if is_past { 0 } else { ahead }
    }
}

struct Found<'a> {
    place: &'a AtomicU64,
    value: u64,
    ahead: u64,
    is_own: bool,
}

/// Creates places: a power of two, at least one set.
pub(crate) fn places(entries: usize) -> Box<[AtomicU64]> {
    let count = entries.clamp(WAYS, crate::ENTRIES_MAX).next_power_of_two();
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Returns the places in which the key with this hash may be.
pub(crate) fn set(places: &[AtomicU64], hash: u64) -> &[AtomicU64] {
    let sets = places.len() / WAYS;
    let first = (hash as usize & (sets - 1)) * WAYS;
    &places[first..first + WAYS]
}
