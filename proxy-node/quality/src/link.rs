//! Which flow enters the transmitter next, and when.
//!
//! An output link has a capacity. The items released so far occupy it for a known time; the next one is
//! released only when fewer bytes than a quantum are unsent, so that what waits, waits here and not behind
//! the scheduler. Flows of equal right are served by deficit round robin in bytes (Shreedhar and Varghese,
//! 1995); the quantum is at least the longest item seen, so that each turn serves at least one item.

use csp_types::{Duration, Instant};

use crate::clocks::{Clocks, Rate};
use crate::contexts::Choice;
use crate::lists::{Levels, Links, List};
use crate::scheme::Scheme;

/// An output link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Its capacity in bits a second, or this worker's part of it.
    pub bits_per_second: u64,
    /// Bytes that may be unsent when the next item is released; what a flow of equal right sends in a turn.
    pub quantum: u32,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig { bits_per_second: 1_000_000_000, quantum: 16 * 1024 }
    }
}

#[derive(Debug)]
pub(crate) struct LinkScheduler {
    config: LinkConfig,
    scheme: Scheme,
    quantum: i64,
    /// When everything released has been sent, in 2⁻¹⁰ ns: the remainders add up at high rates.
    free_at: u128,
    /// Bytes by which a flow's turn may go on, or which it owes.
    deficits: Vec<i64>,
    all: List,
    all_links: Links,
    levels: Levels,
    /// What flows are promised.
    promises: Clocks,
    /// What flows have under EAS or SA; active while one of them is in force.
    shares: Clocks,
}

const FRACTION: u32 = 10;

impl LinkScheduler {
    pub fn new(config: LinkConfig, flows: usize) -> Self {
        LinkScheduler {
            config,
            scheme: Scheme::RoundRobin,
            quantum: i64::from(config.quantum.max(1)),
            free_at: 0,
            deficits: vec![0; flows],
            all: List::EMPTY,
            all_links: Links::new(flows),
            levels: Levels::new(flows),
            promises: Clocks::new(flows),
            shares: Clocks::new(flows),
        }
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn config(&self) -> LinkConfig {
        self.config
    }

    /// Changes the capacity. What is unsent stays so many bytes: it takes as long as they take now.
    pub fn set_capacity(&mut self, bits_per_second: u64, now: Instant) {
        let (was, is) = (self.config.bits_per_second, bits_per_second.max(1));
        let now = u128::from(now.as_nanos()) << FRACTION;
        let left = self.free_at.saturating_sub(now);
        self.free_at = now + left * u128::from(was) / u128::from(is);
        self.config.bits_per_second = is;
    }

    pub fn set_quantum(&mut self, bytes: u32) {
        self.config.quantum = bytes;
        self.quantum = self.quantum.max(i64::from(bytes));
    }

    /// Returns a flow that has something ready, whatever the link has.
    pub fn any(&self) -> Option<u16> {
        self.all.front()
    }

    pub fn set_scheme(&mut self, scheme: Scheme, now: Instant) {
        if scheme == self.scheme {
            return;
        }
        self.promises.begin(now);
        self.shares.begin(now);
        let (was, is) = (self.scheme.is_static(), scheme.is_static());
        self.scheme = scheme;
        let mut flow = if was == is { None } else { self.all.front() };
        while let Some(at) = flow {
            match is {
                true => self.shares.activate(at, now),
                false => self.shares.deactivate(at),
            }
            flow = self.all.after(&self.all_links, at);
        }
    }

    pub fn set_priority(&mut self, flow: u16, priority: u8) {
        self.levels.set_level(flow, priority);
    }

    pub fn set_promise(&mut self, flow: u16, rate: Rate, now: Instant) {
        let active = self.is_active(flow);
        self.promises.set_rate(flow, rate, active, now);
    }

    pub fn set_share(&mut self, flow: u16, rate: Rate, now: Instant) {
        let active = self.is_active(flow) && self.scheme.is_static();
        self.shares.set_rate(flow, rate, active, now);
    }

    #[inline]
    pub fn is_active(&self, flow: u16) -> bool {
        self.all_links.is_linked(flow)
    }

    pub fn has_work(&self) -> bool {
        !self.all.is_empty()
    }

    pub fn set_active(&mut self, flow: u16, active: bool, now: Instant) {
        if active == self.is_active(flow) {
            return;
        }
        if active {
            self.all.push_back(&mut self.all_links, flow);
            self.levels.insert(flow);
            self.promises.activate(flow, now);
            if self.scheme.is_static() {
                self.shares.activate(flow, now);
            }
        } else {
            self.all.remove(&mut self.all_links, flow);
            self.levels.remove(flow);
            self.promises.deactivate(flow);
            self.shares.deactivate(flow);
            let deficit = &mut self.deficits[usize::from(flow)];
            *deficit = (*deficit).min(0);
        }
    }

    /// Returns how many released bytes are unsent.
    #[inline]
    pub fn unsent(&self, now: Instant) -> u64 {
        let left = self.free_at.saturating_sub(u128::from(now.as_nanos()) << FRACTION);
        let bits = (left * u128::from(self.config.bits_per_second)) >> FRACTION;
        (bits / 8_000_000_000) as u64
    }

    /// Returns when everything released has been sent.
    pub fn sent_at(&self) -> Instant {
        Instant::from_nanos((self.free_at >> FRACTION) as u64)
    }

    /// Returns when the next item can be released: now, when fewer bytes than a quantum are unsent, or when a
    /// share falls due.
    pub fn next_release(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_work() {
            return None;
        }
        let quantum = Duration::from_nanos(
            (u128::from(self.config.quantum.max(1)) * 8_000_000_000 / u128::from(self.config.bits_per_second))
                as u64,
        );
        let free = Instant::from_nanos(
            self.sent_at().as_nanos().saturating_sub(quantum.as_nanos() as u64).saturating_add(1),
        );
        match self.scheme.is_static() && self.shares.next(now).is_none() {
            true => self.shares.next_start(now).map(|start| start.max(free).max(now)),
            false => Some(free.max(now)),
        }
    }

    /// Returns the flow whose first item is released next, if one may be.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<Choice> {
        if self.unsent(now) >= u64::from(self.config.quantum.max(1)) {
            return None;
        }
        let promised = |flow| Choice { flow, promised: true };
        let beyond = |flow| Choice { flow, promised: false };
        let choice = match self.scheme {
            Scheme::RoundRobin => self.all.front().map(beyond),
            Scheme::PriorityAware => self.levels.first().map(beyond),
            Scheme::PriorityAwareReserved => {
                self.promises.next(now).map(promised).or_else(|| self.levels.first().map(beyond))
            }
            Scheme::EqualStatic | Scheme::Static => self.shares.next(now).map(promised),
        };
        if let Some(Choice { flow, promised: false }) = choice {
            let deficit = &mut self.deficits[usize::from(flow)];
            if *deficit <= 0 {
                *deficit += self.quantum;
            }
        }
        choice
    }

    /// Records that an item of the flow that was chosen has entered the transmitter.
    #[inline]
    pub fn charge(&mut self, choice: Choice, bytes: u32, now: Instant) {
        let Choice { flow, promised } = choice;
        let time =
            ((u128::from(bytes) * 8_000_000_000) << FRACTION) / u128::from(self.config.bits_per_second);
        self.free_at = self.free_at.max(u128::from(now.as_nanos()) << FRACTION) + time;
        self.quantum = self.quantum.max(i64::from(bytes));
        if promised {
            match self.scheme.is_static() {
                true => self.shares.charge(flow, bytes, now),
                false => self.promises.charge(flow, bytes, now),
            }
            return;
        }
        let deficit = &mut self.deficits[usize::from(flow)];
        *deficit -= i64::from(bytes);
        if *deficit <= 0 {
            self.all.rotate(&mut self.all_links, flow);
            self.levels.rotate(flow);
        }
        if self.scheme == Scheme::PriorityAwareReserved {
            self.promises.charge_beyond(flow, bytes, now);
        }
    }
}
