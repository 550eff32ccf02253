//! What is counted by service and rule.

use std::sync::Arc;

use csp_types::Duration;

use crate::spec::HttpService;
use crate::{CacheResult, Reason};

/// Classes of statuses: 1xx (101 alone) to 5xx.
pub const CLASSES: usize = 5;
/// Upper bounds of the buckets of the time from the end of a request's head to the end of the exchange, in
/// nanoseconds; longer times have a bucket of their own.
pub const LATENCY_BOUNDS_NS: [u64; 7] = csp_proxy_core::FIRST_BYTE_BOUNDS_NS;

/// Counters of one rule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleCounters {
    /// Exchanges that have ended, by class of status.
    pub by_class: [u64; CLASSES],
    /// Exchanges with a reason, by reason; only those that occurred.
    pub by_reason: Vec<(Reason, u64)>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Exchanges under rules with a cache, by what came of it ([`CacheResult::ALL`]).
    pub by_cache: [u64; CacheResult::ALL.len()],
    /// Bytes of bodies that came from the cache.
    pub cached: u64,
    /// Bytes of bodies from clients.
    pub received: u64,
    /// Bytes of bodies to clients.
    pub sent: u64,
    /// Exchanges by duration ([`LATENCY_BOUNDS_NS`]), not cumulative. Tunnels are not counted.
    pub latency: [u64; LATENCY_BOUNDS_NS.len() + 1],
    /// The sum of these durations in nanoseconds.
    pub latency_ns: u64,
}

impl RuleCounters {
    /// Counts an exchange that has ended.
    pub(crate) fn ended(&mut self, status: u16, reason: Option<Reason>, took: Option<Duration>) {
        let class = usize::from(status / 100).clamp(1, CLASSES) - 1;
        self.by_class[class] += 1;
        if let Some(reason) = reason {
            match self.by_reason.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => self.by_reason.push((reason, 1)),
            }
        }
        if let Some(took) = took {
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let bucket = LATENCY_BOUNDS_NS.iter().take_while(|bound| **bound < ns).count();
            self.latency[bucket] += 1;
            self.latency_ns = self.latency_ns.wrapping_add(ns);
        }
    }

    /// Counts what came of the cache for an exchange that has ended, whose body had `sent` bytes.
    pub(crate) fn looked_up(&mut self, result: CacheResult, sent: u64) {
        self.by_cache[result as usize] += 1;
        self.cached += if result.is_stored() { sent } else { 0 };
    }

    /// Returns the number of exchanges that have ended.
    pub fn requests(&self) -> u64 {
        self.by_class.iter().sum()
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &RuleCounters) {
        self.by_class.iter_mut().zip(other.by_class).for_each(|(sum, one)| *sum += one);
        for (reason, count) in &other.by_reason {
            match self.by_reason.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum += count,
                None => self.by_reason.push((*reason, *count)),
            }
        }
        self.by_cache.iter_mut().zip(other.by_cache).for_each(|(sum, one)| *sum += one);
        self.cached += other.cached;
        self.retries += other.retries;
        self.received += other.received;
        self.sent += other.sent;
        self.latency.iter_mut().zip(other.latency).for_each(|(sum, one)| *sum += one);
        self.latency_ns = self.latency_ns.wrapping_add(other.latency_ns);
    }
}

/// Counters of one service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceCounters {
    /// Those of its rules, by their position, and behind them those of requests without a rule.
    pub rules: Vec<RuleCounters>,
    /// Connections of clients that have begun.
    pub connections: u64,
    /// Connections of clients that are open.
    pub open: u64,
}

/// A service and its counters.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) spec: Arc<HttpService>,
    pub(crate) counters: ServiceCounters,
    /// Requests that have passed since the last one that was recorded.
    unrecorded: u32,
}

impl Served {
    /// Creates a service without counts.
    pub(crate) fn new(spec: Arc<HttpService>) -> Self {
        let rules = vec![RuleCounters::default(); spec.rules().len() + 1];
        Served { spec, counters: ServiceCounters { rules, ..ServiceCounters::default() }, unrecorded: 0 }
    }

    /// Returns whether a request that has passed is recorded, of so many one.
    pub(crate) fn is_sampled(&mut self, sample: Option<u32>) -> bool {
        let Some(sample) = sample.filter(|sample| *sample > 0) else { return false };
        self.unrecorded += 1;
        let is_due = self.unrecorded >= sample;
        if is_due {
            self.unrecorded = 0;
        }
        is_due
    }

    /// Replaces the service. Rules that keep their name keep their counts.
    pub(crate) fn replace(&mut self, spec: Arc<HttpService>) {
        let mut rules = vec![RuleCounters::default(); spec.rules().len() + 1];
        for (old, counters) in self.spec.rules().iter().zip(&mut self.counters.rules) {
            let at = spec.rules().iter().position(|rule| rule.name == old.name);
            if let Some(new) = at.and_then(|at| rules.get_mut(at)) {
                *new = std::mem::take(counters);
            }
        }
        if let (Some(new), Some(old)) = (rules.last_mut(), self.counters.rules.last_mut()) {
            *new = std::mem::take(old);
        }
        (self.spec, self.counters.rules) = (spec, rules);
    }

    /// Returns the counters of a rule of `spec`, which may be an older version of this service; `None`: the
    /// rule is gone.
    pub(crate) fn of_rule(
        &mut self,
        spec: &Arc<HttpService>,
        rule: Option<usize>,
    ) -> Option<&mut RuleCounters> {
        let Some(rule) = rule else { return self.counters.rules.last_mut() };
        let at = match Arc::ptr_eq(&self.spec, spec) {
            true => Some(rule),
            false => {
                let name = &spec.rules().get(rule)?.name;
                self.spec.rules().iter().position(|rule| rule.name == *name)
            }
        };
        self.counters.rules.get_mut(at?)
    }
}

/// Counters of connections to members, of all services together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpstreamCounters {
    /// Connections that are open, idle ones included.
    pub open: u64,
    /// Connections that are kept and idle.
    pub idle: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Requests for connections that have failed.
    pub failed: u64,
    /// Requests that used a kept connection.
    pub reused: u64,
    /// Kept connections that turned out closed when a request used them.
    pub stale: u64,
}

/// What a gateway has counted, copied.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Services, in the order of their numbers.
    pub services: Vec<(Arc<HttpService>, ServiceCounters)>,
    /// Connections to members.
    pub upstreams: UpstreamCounters,
    /// Exchanges that are in progress.
    pub exchanges: u64,
}
