//! Clocks of promises: which flow is behind what it is promised.
//!
//! Each flow with a rate has a *start*: the time at which its next item falls due by that rate. An item may
//! be served for its promise from its start on (it is *eligible*), and the eligible item whose deadline comes
//! first is served first; its deadline is one longest item's time at the rate after its start. That is
//! earliest deadline first over regulated arrivals, which is feasible as long as the rates together do not
//! exceed the capacity (as the real-time criterion of H-FSC, without curves). A flow gains no credit while it
//! has no items, and service beyond its promise costs it none, so that what it had before takes nothing from
//! any later window.

use csp_types::Instant;

use crate::calendar::Calendar;
use crate::lists::Links;

/// Flows that one look-up moves at most from waiting to eligible. Each served item makes one flow wait, so
/// that one is enough in the long run; a scheme that has just begun catches up over several look-ups.
const MOVES_MAX: usize = 16;

/// What an item costs on a flow's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rate {
    /// Nanoseconds of an item, in 2⁻¹⁶; 0: no promise by items.
    item_q16: u64,
    /// Nanoseconds of a byte, in 2⁻¹⁶; 0: no promise by bytes.
    byte_q16: u64,
    /// The longest item.
    bytes_max: u32,
}

impl Rate {
    /// A rate of so many items and bits a second, whichever a flow's items reach first.
    pub fn new(items_per_second: f64, bits_per_second: f64, bytes_max: u32) -> Self {
        let q16 = |rate: f64, unit: f64| match rate > 0.0 {
            true => ((unit * 1e9 * 65_536.0 / rate) as u64).clamp(1, 1 << 60),
            false => 0,
        };
        Rate { item_q16: q16(items_per_second, 1.0), byte_q16: q16(bits_per_second, 8.0), bytes_max }
    }

    pub fn is_none(&self) -> bool {
        self.item_q16 == 0 && self.byte_q16 == 0
    }

    /// Returns the nanoseconds of an item: the least that any promise allows, so that all are kept.
    #[inline]
    fn step(&self, bytes: u32) -> u64 {
        let bytes = self.byte_q16.saturating_mul(u64::from(bytes)) >> 16;
        let item = self.item_q16 >> 16;
        match (self.item_q16, self.byte_q16) {
            (0, _) => bytes,
            (_, 0) => item,
            _ => item.min(bytes),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Waiting(u16),
    Eligible(u16),
}

#[derive(Debug)]
pub(crate) struct Clocks {
    rates: Vec<Rate>,
    starts: Vec<u64>,
    states: Vec<State>,
    links: Links,
    waiting: Calendar,
    eligible: Calendar,
    /// When the scheme that uses the clocks began: no start lies before.
    since: u64,
}

impl Clocks {
    pub fn new(flows: usize) -> Self {
        Clocks {
            rates: vec![Rate::default(); flows],
            starts: vec![0; flows],
            states: vec![State::Idle; flows],
            links: Links::new(flows),
            waiting: Calendar::new(),
            eligible: Calendar::new(),
            since: 0,
        }
    }

    /// Begins anew: flows are due from now on, and not for what they missed under another scheme.
    pub fn begin(&mut self, now: Instant) {
        self.since = now.as_nanos();
    }

    pub fn set_rate(&mut self, flow: u16, rate: Rate, active: bool, now: Instant) {
        let at = usize::from(flow);
        if self.rates[at] == rate {
            return;
        }
        self.deactivate(flow);
        self.rates[at] = rate;
        // A start that lay ahead was computed by the former rate.
        self.starts[at] = 0;
        if active {
            self.activate(flow, now);
        }
    }

    /// Records that a flow has items.
    #[inline]
    pub fn activate(&mut self, flow: u16, now: Instant) {
        let at = usize::from(flow);
        if self.rates[at].is_none() || self.states[at] != State::Idle {
            return;
        }
        let now = now.as_nanos();
        self.starts[at] = self.starts[at].max(now);
        self.place(flow, now);
    }

    /// Records that a flow has no items.
    #[inline]
    pub fn deactivate(&mut self, flow: u16) {
        let state = std::mem::replace(&mut self.states[usize::from(flow)], State::Idle);
        match state {
            State::Idle => {}
            State::Waiting(list) => self.waiting.remove(&mut self.links, flow, list),
            State::Eligible(list) => self.eligible.remove(&mut self.links, flow, list),
        }
    }

    fn place(&mut self, flow: u16, now: u64) {
        let at = usize::from(flow);
        let start = self.starts[at];
        self.states[at] = match start > now {
            true => State::Waiting(self.waiting.insert(&mut self.links, flow, start, now)),
            false => {
                let deadline = start + self.rates[at].step(self.rates[at].bytes_max);
                State::Eligible(self.eligible.insert(&mut self.links, flow, deadline, now))
            }
        };
    }

    /// Returns the flow that is due and must be served first.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<u16> {
        let now = now.as_nanos();
        for _ in 0..MOVES_MAX {
            let Some((flow, _)) = self.waiting.first(now).filter(|(_, begins)| *begins <= now) else { break };
            let at = usize::from(flow);
            // In the list of this very moment starts may lie ahead by less than a list's time.
            let State::Waiting(list) = self.states[at] else { break };
            self.waiting.remove(&mut self.links, flow, list);
            self.normalise(at);
            if self.starts[at] > now + crate::calendar::GRAIN_NS {
                self.place(flow, now);
                continue;
            }
            let deadline = self.starts[at] + self.rates[at].step(self.rates[at].bytes_max);
            self.states[at] = State::Eligible(self.eligible.insert(&mut self.links, flow, deadline, now));
        }
        self.eligible.first(now).map(|(flow, _)| flow)
    }

    fn normalise(&mut self, at: usize) {
        self.starts[at] = self.starts[at].max(self.since);
    }

    /// Returns when the next flow falls due that is not yet, about.
    pub fn next_start(&mut self, now: Instant) -> Option<Instant> {
        self.waiting.first(now.as_nanos()).map(|(_, begins)| Instant::from_nanos(begins))
    }

    /// Records service of a flow for its promise.
    #[inline]
    pub fn charge(&mut self, flow: u16, bytes: u32, now: Instant) {
        let at = usize::from(flow);
        if self.rates[at].is_none() {
            return;
        }
        self.normalise(at);
        self.starts[at] += self.rates[at].step(bytes);
        self.replace(flow, now);
    }

    /// Records service of a flow beyond its promise. It counts as far as the flow is behind.
    #[inline]
    pub fn charge_beyond(&mut self, flow: u16, bytes: u32, now: Instant) {
        let at = usize::from(flow);
        if self.rates[at].is_none() || self.starts[at] >= now.as_nanos() {
            return;
        }
        self.normalise(at);
        self.starts[at] = (self.starts[at] + self.rates[at].step(bytes)).min(now.as_nanos());
        self.replace(flow, now);
    }

    fn replace(&mut self, flow: u16, now: Instant) {
        if self.states[usize::from(flow)] != State::Idle {
            self.deactivate(flow);
            self.place(flow, now.as_nanos());
        }
    }
}
