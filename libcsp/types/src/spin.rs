//! How long a thread without work polls before it sleeps.
//!
//! A sleeping thread starts late, and its wake-up costs a system call on each side. A polling thread uses a
//! processor. The policy weighs the two. A *gap* is the time from a thread's running out of work to its next
//! piece of work. The policy keeps a fading histogram of gaps and chooses the limit `L` that maximises
//!
//! ```text
//!   (share of gaps that end within L) × worth  −  mean of min(gap, L)
//! ```
//!
//! If no limit makes this positive, the thread does not poll. `worth` is the polling time that one avoided
//! wake-up may cost. It is large while the processor has no other work, and small while other threads use it.
//! A poll (a *look*) that took far longer than its predecessors shows that another thread ran in between.
//!
//! ```text
//!  found() ── work ──▶ busy ── nothing() ──▶ looking ── L is over: nothing() returns false ──▶ asleep
//!                       ▲                      │                                                │ woke()
//!                       └────── found() ◀──────┴──────────────── found() ◀──────────────────────┘
//! ```
//! This module owns the histogram and the choice. It has no clock, no threads and does not yield; the caller
//! passes the time.

use core::fmt;
use core::time::Duration;

use crate::Instant;

/// Longest time that a setting may ask for, in microseconds.
pub const SPIN_MAX_US: u16 = 1000;

/// How long a thread polls before it sleeps, as configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpinSetting {
    /// The policy chooses the time from recorded gaps.
    #[default]
    Auto,
    /// Always this many microseconds, at most [`SPIN_MAX_US`]; 0: never.
    Fixed(u16),
}

impl core::str::FromStr for SpinSetting {
    type Err = SpinSettingError;

    /// Reads `auto` or a number of microseconds.
    fn from_str(text: &str) -> Result<Self, SpinSettingError> {
        match text.parse() {
            _ if text == "auto" => Ok(SpinSetting::Auto),
            Ok(us) if us <= SPIN_MAX_US => Ok(SpinSetting::Fixed(us)),
            _ => Err(SpinSettingError),
        }
    }
}

/// The text is neither `auto` nor a number of microseconds in range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinSettingError;

impl fmt::Display for SpinSettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a polling time; allowed is auto, or 0 to {SPIN_MAX_US} microseconds")
    }
}

impl core::error::Error for SpinSettingError {}

/// Value of an avoided wake-up, as processor time spent polling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinWorth {
    /// While no other thread needs the processor.
    pub alone: Duration,
    /// While other threads use it.
    pub contended: Duration,
}

impl SpinWorth {
    /// For data threads of daemons: every request passes through them.
    pub const DAEMON: SpinWorth =
        SpinWorth { alone: Duration::from_micros(100), contended: Duration::from_micros(25) };
    /// For threads of applications, whose processor time is the application's own: about the cost of one
    /// sleep and wake-up there.
    pub const APPLICATION: SpinWorth =
        SpinWorth { alone: Duration::from_micros(10), contended: Duration::ZERO };
}

/// Upper bounds of the histogram's classes, in nanoseconds; longer gaps form one more class. Also the limits
/// to choose from.
const BOUNDS: [u64; 7] = [4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000];
const CLASSES: usize = BOUNDS.len() + 1;
/// The weight of one gap when it is recorded; all weights fade by 1/[`FADE`] with each gap that follows.
const ONE: u32 = 1 << 16;
const FADE: u32 = 16;
/// Time that a wake-up adds to a gap in which the thread slept, in nanoseconds.
const WAKE_UP_NS: u64 = 15_000;
/// A look that took more than this many times as long as its predecessors counts as interrupted by another
/// thread.
const INTERRUPTED: u64 = 4;
/// A shorter look never counts as interrupted.
const LOOK_MIN_NS: u64 = 4_000;
/// Upper limit of the mean duration of an uninterrupted look.
const LOOK_MAX_NS: u64 = 4_000;
/// Denominator of shares of time.
const WHOLE: u64 = 1024;

/// One gap: the time from a thread's running out of work to its next piece of work. Each waiting thread or
/// call has its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap {
    /// The first look that found nothing; `None` while there is work.
    since: Option<Instant>,
    /// The last look that found nothing; `None` after a sleep.
    looked: Option<Instant>,
    slept: bool,
    /// Time of interrupted looks within this gap, in nanoseconds.
    lost: u64,
}

impl Gap {
    /// Creates a closed gap: the thread has work.
    pub const fn new() -> Self {
        Gap { since: None, looked: None, slept: false, lost: 0 }
    }

    /// Whether the gap has begun: the last look found no work.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// Records that the thread has slept. If the next look finds no work, the thread should sleep again at
    /// once.
    #[inline]
    pub fn woke(&mut self) {
        self.looked = None;
        self.slept = true;
    }
}

/// The policy of one thread, or of a process whose threads share their record.
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    setting: SpinSetting,
    worth: SpinWorth,
    /// Fading mean of the duration of uninterrupted looks, in nanoseconds.
    look_ns: u64,
    /// Recent share of polling time in which other threads had the processor, as parts of [`WHOLE`].
    contention: u64,
    /// Weights of the gaps by class.
    gaps: [u32; CLASSES],
    /// The chosen limit, in nanoseconds.
    limit: u64,
}

impl SpinPolicy {
    /// Creates a policy without recorded gaps: `Auto` begins without polling.
    pub const fn new(setting: SpinSetting, worth: SpinWorth) -> Self {
        let limit = match setting {
            SpinSetting::Auto => 0,
            SpinSetting::Fixed(us) if us > SPIN_MAX_US => SPIN_MAX_US as u64 * 1000,
            SpinSetting::Fixed(us) => us as u64 * 1000,
        };
        SpinPolicy {
            setting,
            worth,
            look_ns: LOOK_MIN_NS / INTERRUPTED,
            contention: 0,
            gaps: [0; CLASSES],
            limit,
        }
    }

    /// Whether the setting disables polling. The caller then need not read the clock.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.setting == SpinSetting::Fixed(0)
    }

    /// Records that work was found at `now`, which ends the gap.
    #[inline]
    pub fn found(&mut self, gap: &mut Gap, now: Instant) {
        if let Some(since) = gap.since {
            self.end_gap(gap, now, since);
            *gap = Gap::new();
        }
    }

    /// Records that a look at `now` found no work. Returns whether to look again; otherwise the thread should
    /// sleep.
    #[inline]
    pub fn nothing(&mut self, gap: &mut Gap, now: Instant) -> bool {
        let since = *gap.since.get_or_insert(now);
        self.look(gap, now);
        gap.looked = Some(now);
        !gap.slept && nanos(now, since) < self.limit
    }

    /// The polling time of a gap, by the present choice.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit)
    }

    /// Accounts for the time since the last look.
    fn look(&mut self, gap: &mut Gap, now: Instant) {
        let Some(before) = gap.looked else { return };
        let look = nanos(now, before);
        if look > LOOK_MIN_NS.max(INTERRUPTED * self.look_ns) {
            gap.lost = gap.lost.saturating_add(look);
            // Looks may have become slower for good: the mean follows slowly, up to its limit.
            self.look_ns = (self.look_ns + self.look_ns / 64).min(LOOK_MAX_NS);
        } else {
            self.look_ns = (self.look_ns * 15 + look) / 16;
        }
    }

    fn end_gap(&mut self, gap: &mut Gap, now: Instant, since: Instant) {
        let mut length = nanos(now, since);
        if gap.slept {
            length = length.saturating_sub(WAKE_UP_NS);
            // A sleep shows nothing about other threads. The recorded contention fades, so that polling is
            // tried again.
            self.contention -= self.contention.div_ceil(32);
        } else {
            self.look(gap, now);
            let share = gap.lost.saturating_mul(WHOLE).checked_div(length).unwrap_or(0).min(WHOLE);
            self.contention = (self.contention * 15 + share) / 16;
        }
        for weight in &mut self.gaps {
            *weight -= *weight / FADE;
        }
        let class = BOUNDS.iter().position(|bound| length <= *bound).unwrap_or(CLASSES - 1);
        self.gaps[class] += ONE;
        if self.setting == SpinSetting::Auto {
            self.limit = self.choose();
        }
    }

    /// The limit whose gain is largest. With weights up to 2^20 and times up to 2^28 ns nothing overflows.
    fn choose(&self) -> u64 {
        let (alone, contended) = (self.worth.alone.as_nanos() as u64, self.worth.contended.as_nanos() as u64);
        // If others had half of the time, there are fewer processors than threads with work.
        let others = (2 * self.contention).min(WHOLE);
        let worth = (alone * (WHOLE - others) + contended * others) / WHOLE;
        let all: u64 = self.gaps.iter().map(|w| u64::from(*w)).sum();
        let (mut within, mut spent, mut lower) = (0, 0, 0);
        let (mut best, mut limit) = (0, 0);
        for (bound, weight) in BOUNDS.iter().zip(&self.gaps) {
            let weight = u64::from(*weight);
            within += weight;
            spent += weight * ((lower + bound) / 2);
            lower = *bound;
            let gain = (within * worth).saturating_sub(spent + (all - within) * bound);
            if gain > best {
                (best, limit) = (gain, *bound);
            }
        }
        limit
    }
}

fn nanos(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_since(since).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
