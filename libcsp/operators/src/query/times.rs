//! Watermarks: how far the time of each source has come, kept in the state's header.

use csp_handlers::State;
use csp_types::Duration;

use super::setup::Limits;
use crate::counters::OWN;

/// Most sources of an operator that has time.
pub(crate) const SOURCES_MAX: usize = 7;

const CLOSED: usize = OWN + 16 * SOURCES_MAX;
const STARTED: usize = CLOSED + 8;

/// The clocks of an operator's sources, in microseconds.
#[derive(Debug)]
pub(super) struct Times {
    lateness: Vec<i64>,
    idle: Option<i64>,
    flush: Option<i64>,
}

/// How far time has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reached {
    /// Rows before this time are late.
    Time(i64),
    /// All sources are silent: time stands still, so that none of their later rows is late for it.
    Silence,
}

/// Times lie in the state with their sign bit inverted: a block of zeros is before all times.
#[inline]
fn time(state: &State, at: usize) -> i64 {
    state.number(at) as i64 ^ i64::MIN
}

#[inline]
fn set_time(state: &mut State, at: usize, time: i64) {
    state.set_number(at, (time ^ i64::MIN) as u64);
}

impl Times {
    /// Clocks of sources that may be late by so much, under the limits of an operator.
    pub fn new(lateness: Vec<i64>, limits: &Limits) -> Self {
        let micros =
            |time: Option<Duration>| time.map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        Times { lateness, idle: micros(limits.idle), flush: micros(limits.flush) }
    }

    /// Whether no source has sent a row for so long that the windows that are open close.
    #[inline]
    pub fn is_over(&self, state: &State, now: i64) -> bool {
        let Some(flush) = self.flush else { return false };
        let heard = (0..self.lateness.len()).map(|source| time(state, OWN + 16 * source + 8));
        let last = heard.fold(time(state, STARTED), i64::max);
        last != i64::MIN && now.saturating_sub(last) > flush
    }

    /// The watermark of one source: the latest time that was seen, less what may be late.
    #[inline]
    pub fn of(&self, state: &State, source: usize) -> i64 {
        time(state, OWN + 16 * source).saturating_sub(self.lateness[source])
    }

    /// The watermark of a source once it has sent a row of this time.
    #[inline]
    pub fn with(&self, state: &State, source: usize, at: i64) -> i64 {
        self.of(state, source).max(at.saturating_sub(self.lateness[source]))
    }

    /// The least watermark of the sources that are not silent. `row` is a row that is being processed.
    #[inline]
    pub fn reached(&self, state: &State, now: i64, row: Option<(usize, i64)>) -> Reached {
        let (mut least, mut silent) = (i64::MAX, true);
        for source in 0..self.lateness.len() {
            let watermark = match row {
                Some((own, at)) if own == source => self.with(state, source, at),
                _ if self.is_silent(state, source, now) => continue,
                _ => self.of(state, source),
            };
            least = least.min(watermark);
            silent = false;
        }
        if silent { Reached::Silence } else { Reached::Time(least.max(self.closed(state))) }
    }

    #[inline]
    fn is_silent(&self, state: &State, source: usize, now: i64) -> bool {
        let Some(idle) = self.idle else { return false };
        let heard = time(state, OWN + 16 * source + 8).max(time(state, STARTED));
        heard != i64::MIN && now.saturating_sub(heard) > idle
    }

    /// Records a row.
    #[inline]
    pub fn record(&self, state: &mut State, (source, at): (usize, i64), now: i64) {
        let place = OWN + 16 * source;
        if time(state, place) < at {
            set_time(state, place, at);
        }
        set_time(state, place + 8, now);
    }

    /// Records when the operator began to wait.
    #[inline]
    pub fn start(&self, state: &mut State, now: i64) {
        if time(state, STARTED) == i64::MIN {
            set_time(state, STARTED, now);
        }
    }

    /// Windows that end before this time are closed.
    #[inline]
    pub fn closed(&self, state: &State) -> i64 {
        time(state, CLOSED)
    }

    #[inline]
    pub fn close(&self, state: &mut State, at: i64) {
        if self.closed(state) < at {
            set_time(state, CLOSED, at);
        }
    }
}
