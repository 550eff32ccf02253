//! How long a thread that has run out of work looks again before it sleeps.
//!
//! A thread that sleeps is woken late and costs a system call on each side; a thread that looks again uses a processor.
//! The policy weighs the two by what it has seen: it keeps a short, fading record of *gaps* (the times from running out of work to the next
//! piece of work) and chooses the limit `L` for which
//!
//! ```text
//!   (share of gaps that end within L) × worth  −  mean of min(gap, L)
//! ```
//!
//! is largest, and no looking again where that is never positive. `worth` is the looking time that one avoided wake-up may
//! cost. It is large while the processor has nothing else to do, and small while other threads use it: a look that took far longer than
//! its predecessors means that another thread ran in between.
//!
//! ```text
//!  found() ── work ──▶ busy ── nothing() ──▶ looking ── L is over: nothing() returns false ──▶ asleep
//!                       ▲                      │                                                │ woke()
//!                       └────── found() ◀──────┴──────────────── found() ◀──────────────────────┘
//! ```
//! Owned here: the record of gaps and the choice. Refused: clocks, threads, yielding; the caller passes the time.

use core::fmt;
use core::time::Duration;

use crate::Instant;

/// Longest time that a setting may ask for, in microseconds.
pub const SPIN_MAX_US: u16 = 1000;

/// How long a thread looks again, as configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpinSetting {
    /// The policy chooses by what it sees.
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
        write!(f, "not a time to look again; allowed is auto, or 0 to {SPIN_MAX_US} microseconds")
    }
}

impl core::error::Error for SpinSettingError {}

/// What an avoided wake-up is worth, as processor time spent looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinWorth {
    /// While no other thread wants the processor.
    pub alone: Duration,
    /// While others use it.
    pub contended: Duration,
}

impl SpinWorth {
    /// For data threads of daemons, which stand in the way of every request.
    pub const DAEMON: SpinWorth =
        SpinWorth { alone: Duration::from_micros(100), contended: Duration::from_micros(25) };
    /// For threads of applications, whose processor time is the application's own: about what sleeping and waking cost there.
    pub const APPLICATION: SpinWorth =
        SpinWorth { alone: Duration::from_micros(10), contended: Duration::ZERO };
}

/// Upper bounds of the classes of gaps, in nanoseconds; longer gaps are one class more. Also the limits to choose from.
const BOUNDS: [u64; 7] = [4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000];
const CLASSES: usize = BOUNDS.len() + 1;
/// The weight of one gap when it is recorded; all weights fade by 1/[`FADE`] with each gap that follows.
const ONE: u32 = 1 << 16;
const FADE: u32 = 16;
/// What a wake-up adds to a gap that was slept through, in nanoseconds.
const WAKE_UP_NS: u64 = 15_000;
/// A look that took this many times as long as its predecessors was interrupted by another thread.
const INTERRUPTED: u64 = 4;
/// A look is never taken for interrupted below this.
const LOOK_MIN_NS: u64 = 4_000;
/// A look takes no longer than this by itself.
const LOOK_MAX_NS: u64 = 4_000;
/// Shares of time are counted in this many parts.
const WHOLE: u64 = 1024;

/// One gap: from a thread's running out of work to the next piece of work. Each waiting thread (or call) has its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap {
    /// The first look that found nothing; `None` while there is work.
    since: Option<Instant>,
    /// The last look that found nothing; `None` after a sleep.
    looked: Option<Instant>,
    slept: bool,
    /// Looking time within this gap in which other threads had the processor, in nanoseconds.
    lost: u64,
}

impl Gap {
    /// No gap: there is work.
    pub const fn new() -> Self {
        Gap { since: None, looked: None, slept: false, lost: 0 }
    }

    /// Whether the last look found nothing.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// The thread has slept. A look that finds nothing after that returns it to sleep at once.
    #[inline]
    pub fn woke(&mut self) {
        self.looked = None;
        self.slept = true;
    }
}

/// The policy of one thread, or of a process whose threads share what they see.
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    setting: SpinSetting,
    worth: SpinWorth,
    /// What a look takes when nothing interrupts it, in nanoseconds: a fading mean.
    look_ns: u64,
    /// The share of looking time that other threads had, lately, of [`WHOLE`].
    contention: u64,
    /// Weights of the gaps by class.
    gaps: [u32; CLASSES],
    /// The choice, in nanoseconds.
    limit: u64,
}

impl SpinPolicy {
    /// A policy that has seen nothing yet: `Auto` begins without looking again.
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

    /// Whether no look is ever repeated, by the setting: the caller then needs no clock.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.setting == SpinSetting::Fixed(0)
    }

    /// Work was found at `now`.
    #[inline]
    pub fn found(&mut self, gap: &mut Gap, now: Instant) {
        if let Some(since) = gap.since {
            self.end_gap(gap, now, since);
            *gap = Gap::new();
        }
    }

    /// A look at `now` found nothing. Returns whether to look again; otherwise the thread should sleep.
    #[inline]
    pub fn nothing(&mut self, gap: &mut Gap, now: Instant) -> bool {
        let since = *gap.since.get_or_insert(now);
        self.look(gap, now);
        gap.looked = Some(now);
        !gap.slept && nanos(now, since) < self.limit
    }

    /// How long a gap is looked through, by the present choice.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit)
    }

    /// Accounts for the time since the last look.
    fn look(&mut self, gap: &mut Gap, now: Instant) {
        let Some(before) = gap.looked else { return };
        let look = nanos(now, before);
        if look > LOOK_MIN_NS.max(INTERRUPTED * self.look_ns) {
            gap.lost = gap.lost.saturating_add(look);
            // Looks may always take so long: what counts as long follows slowly, and not far.
            self.look_ns = (self.look_ns + self.look_ns / 64).min(LOOK_MAX_NS);
        } else {
            self.look_ns = (self.look_ns * 15 + look) / 16;
        }
    }

    fn end_gap(&mut self, gap: &mut Gap, now: Instant, since: Instant) {
        let mut length = nanos(now, since);
        if gap.slept {
            length = length.saturating_sub(WAKE_UP_NS);
            // Nothing was seen of other threads: what was known fades, so that looking is tried again.
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
        // Where others had half of the time, processors are fewer than threads with work.
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
