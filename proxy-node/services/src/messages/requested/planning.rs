//! Plans that are being made on another thread, for queries and translations that programs ask for, and for
//! formats that they bring.
//!
//! ```text
//!  REQ {"query": …} ─▶ allowed? a place? time left to its address? ─▶ pending ─▶ PlanJob ─▶ another thread plans (or this one, where there is none)
//!                                                                        ▲                    │
//!                        the same is asked by others: one plan for all ──┤                 Planned, and how long it took
//!                                             its askers have gone ──────┘                    ▼
//!                                                      answers ◀── a channel, path, feeds; or a format
//! ```
//! The time of planning is divided among addresses. Each has a balance to which its planning is charged. When
//! one balance is used up, other addresses are still served.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};

use csp_formats::{Name, Schema};
use csp_handlers::{CONTEXTS_MAX, FormatId};
use csp_types::{Duration, FlowLabel, Instant};

use super::answer::Asker;
use super::{
    BroughtFormat, FormatAsked, QueryAsked, QueryPlan, QueryPlanner, QueryRefused, RequestPlace, Wanted,
    refused,
};

/// Most plans of a worker that are not made yet.
const WAITING_MAX: usize = 16;
/// Most of them for one address.
const WAITING_EACH_MAX: usize = 2;
/// Most requests that wait for one plan.
const ASKERS_MAX: usize = 64;
/// How long a request waits for its plan.
const WAITING_TIME: Duration = Duration::from_secs(60);
/// Most time of planning that an address has saved.
const BALANCE_MAX: Duration = Duration::from_secs(1);
/// The part of elapsed time that an address may use for planning: one twentieth.
const SHARE: u64 = 20;
/// Number of addresses with a known balance. When it is exceeded, the one with the largest balance is
/// removed.
const SOURCES_MAX: usize = 1024;

/// Where requests come from, as far as their time is divided: an address of IPv4, or the first 64 bits of one
/// of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::messages) struct Source(IpAddr);

impl Source {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Source(IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64))),
            v4 => Source(v4),
        }
    }
}

/// The planning time that an address has left, in nanoseconds. It can be negative.
#[derive(Clone, Copy, Debug)]
struct Balance {
    left: i64,
    at: Instant,
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl Balance {
    /// Adds the time that has accrued since the last call.
    fn refill(&mut self, now: Instant) {
        let came = nanos(now.saturating_since(self.at)) / SHARE.cast_signed();
        self.left = self.left.saturating_add(came).min(nanos(BALANCE_MAX));
        self.at = now;
    }
}

/// The balances of addresses. One that is not here has not used anything.
#[derive(Debug, Default)]
pub(super) struct Balances(HashMap<Source, Balance>);

impl Balances {
    /// Checks that a source may have something planned.
    fn check(&mut self, now: Instant, source: Source) -> Result<(), QueryRefused> {
        let Some(balance) = self.0.get_mut(&source) else { return Ok(()) };
        balance.refill(now);
        if balance.left > 0 {
            return Ok(());
        }
        let seconds = (balance.left.unsigned_abs() * SHARE).div_ceil(1_000_000_000).max(1);
        Err(refused(format!("the address has used up its time for planning; ask again in {seconds} s")))
    }

    fn charge(&mut self, now: Instant, source: Source, spent: Duration) {
        if !self.0.contains_key(&source) && self.0.len() >= SOURCES_MAX {
            self.0.retain(|_, balance| {
                balance.refill(now);
                balance.left < nanos(BALANCE_MAX)
            });
            let richest = self.0.iter().max_by_key(|(_, balance)| balance.left).map(|(source, _)| *source);
            if let Some(richest) = richest.filter(|_| self.0.len() >= SOURCES_MAX) {
                self.0.remove(&richest);
            }
        }
        let full = Balance { left: nanos(BALANCE_MAX), at: now };
        let balance = self.0.entry(source).or_insert(full);
        balance.refill(now);
        balance.left = balance.left.saturating_sub(nanos(spent));
    }
}

/// A translation that is to read a further format.
#[derive(Debug)]
pub(in crate::messages) struct Renewal {
    pub number: u32,
    pub topic: String,
    pub wanted: Wanted,
    pub json: bool,
}

/// Task of the planning thread.
#[derive(Debug)]
pub(in crate::messages) enum Task {
    Query {
        topic: String,
        number: u32,
        wanted: Wanted,
        json: bool,
        brought: Vec<BroughtFormat>,
    },
    Format {
        name: String,
        xml: Arc<str>,
        message: Option<String>,
        id: FormatId,
        brought: Vec<BroughtFormat>,
        renewals: Vec<Renewal>,
    },
}

/// Something to be planned, by a thread that may take its time.
#[derive(Debug)]
pub struct PlanJob {
    ticket: u64,
    task: Task,
    planner: Arc<dyn QueryPlanner>,
    pending: Weak<()>,
}

impl PlanJob {
    /// Returns whether its askers still wait for it.
    pub fn is_wanted(&self) -> bool {
        self.pending.strong_count() > 0
    }

    /// Makes the plan, and the parts that run in contexts of the worker.
    pub fn run(&self) -> Planned {
        let done = match &self.task {
            Task::Query { topic, number, wanted, json, brought } => {
                let asked = QueryAsked { topic, number: *number, wanted, json: *json, brought };
                Done::Query(self.planner.plan(asked).map(prepared))
            }
            Task::Format { name, xml, message, id, brought, renewals } => {
                let asked = FormatAsked { name, xml, message: message.as_deref() };
                let found = self.planner.bring(asked, brought);
                let renewed = match &found {
                    Ok((schema, message)) => {
                        let format = BroughtFormat {
                            name: name.clone(),
                            id: *id,
                            schema: schema.clone(),
                            message: message.clone(),
                            xml: xml.clone(),
                        };
                        let brought: Vec<_> = brought.iter().cloned().chain([format]).collect();
                        renewals.iter().filter_map(|renewal| self.renew(renewal, &brought)).collect()
                    }
                    Err(_) => Vec::new(),
                };
                Done::Format(found, renewed)
            }
        };
        Planned { ticket: self.ticket, spent: Duration::ZERO, done }
    }

    fn renew(&self, renewal: &Renewal, brought: &[BroughtFormat]) -> Option<(u32, QueryPlan)> {
        let Renewal { number, topic, wanted, json } = renewal;
        let asked = QueryAsked { topic, number: *number, wanted, json: *json, brought };
        Some((*number, prepared(self.planner.plan(asked).ok()?)))
    }

    /// Returns the answer in place of a plan that cannot be made.
    pub fn failed(&self, why: &str) -> Planned {
        let done = match &self.task {
            Task::Query { .. } => Done::Query(Err(refused(why))),
            Task::Format { .. } => Done::Format(Err(refused(why)), Vec::new()),
        };
        Planned { ticket: self.ticket, spent: Duration::ZERO, done }
    }
}

/// Has the handlers of a plan made before they are needed.
fn prepared(plan: QueryPlan) -> QueryPlan {
    let here = plan.path.stages.iter().filter(|stage| stage.context < CONTEXTS_MAX);
    here.filter_map(|stage| stage.maker.as_ref()).for_each(|maker| maker.prepare(1));
    plan
}

/// Result of a [`PlanJob`].
#[derive(Clone, Debug)]
pub struct Planned {
    pub(super) ticket: u64,
    spent: Duration,
    pub(super) done: Done,
}

/// Plans of translations, each with the number of its place.
pub(super) type Renewed = Vec<(u32, QueryPlan)>;

#[derive(Clone, Debug)]
pub(super) enum Done {
    Query(Result<QueryPlan, QueryRefused>),
    /// A format, and the plans of translations that read it.
    Format(Result<(Arc<Schema>, Name), QueryRefused>, Renewed),
}

impl Planned {
    /// Records the time that it took, which is charged to those that have asked.
    #[must_use]
    pub fn took(self, spent: Duration) -> Self {
        Planned { spent, ..self }
    }
}

/// Use of a finished plan.
#[derive(Debug)]
pub(in crate::messages) enum Purpose {
    /// `formats`: the brought formats at the time of the request.
    Query {
        wanted: Wanted,
        json: bool,
        place: Box<RequestPlace>,
        topic: String,
        formats: Vec<FormatId>,
    },
    Format {
        name: String,
        xml: Arc<str>,
        message: Option<String>,
        id: FormatId,
    },
}

/// Requests whose plan is being made.
#[derive(Debug)]
pub(in crate::messages) struct Waiting {
    pub ticket: u64,
    /// The channel that is asked.
    pub of: u32,
    pub source: Source,
    pub askers: Vec<(FlowLabel, Asker)>,
    pub purpose: Purpose,
    /// The planner at the time of the request. The policy may have changed since.
    pub planner: Arc<dyn QueryPlanner>,
    since: Instant,
    _alive: Arc<()>,
}

/// A [`PlanJob`] that was passed to the planning thread.
#[derive(Clone, Copy, Debug)]
struct Given {
    ticket: u64,
    /// Where its first asker comes from, which is charged.
    source: Source,
    /// When it was asked for.
    since: Instant,
}

/// The plans of a worker that are not made yet.
#[derive(Debug, Default)]
pub(in crate::messages) struct Plans {
    /// Another thread makes them.
    pub elsewhere: bool,
    waiting: Vec<Waiting>,
    /// Jobs that were not yet passed to the planning thread.
    jobs: VecDeque<PlanJob>,
    /// Jobs that were passed on and have not returned. They count even if their asker has left.
    given: Vec<Given>,
    balances: Balances,
    tickets: u64,
    /// Nanoseconds that were charged.
    pub spent: u64,
}

/// Set in tickets of plans, clear in those of handlers.
const PLAN: u64 = 1 << 63;

impl Plans {
    /// Checks that one more plan may wait for a source.
    pub fn check(&mut self, now: Instant, source: Source) -> Result<(), QueryRefused> {
        // A plan that did not come back in twice its time is lost: its worker's mailbox was full.
        self.given.retain(|given| given.since + WAITING_TIME + WAITING_TIME > now);
        let is_here = |ticket: u64| self.waiting.iter().any(|waiting| waiting.ticket == ticket);
        let left = self.given.iter().filter(|given| !is_here(given.ticket)).map(|given| given.source);
        let sources = || self.waiting.iter().map(|waiting| waiting.source).chain(left.clone());
        let its = sources().filter(|known| *known == source).count();
        if its >= WAITING_EACH_MAX {
            return Err(refused(format!(
                "{its} requests of the address for queries and formats are not answered yet, as many as may be; ask again"
            )));
        }
        if sources().count() >= WAITING_MAX {
            return Err(refused(format!(
                "{WAITING_MAX} requests for queries and formats wait, as many as may; ask again"
            )));
        }
        self.balances.check(now, source)
    }

    /// Adds a request; returns its ticket.
    pub fn add(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (task, purpose): (Task, Purpose),
        planner: Arc<dyn QueryPlanner>,
    ) -> u64 {
        self.tickets += 1;
        let (ticket, alive) = (self.tickets | PLAN, Arc::new(()));
        self.jobs.push_back(PlanJob {
            ticket,
            task,
            planner: planner.clone(),
            pending: Arc::downgrade(&alive),
        });
        self.waiting.push(Waiting {
            ticket,
            of: asker.number,
            source: asker.source,
            askers: vec![(label, asker)],
            purpose,
            planner,
            since: now,
            _alive: alive,
        });
        ticket
    }

    /// Adds the asker to a request for the same plan; `None`: there is none, or too many askers wait for it.
    pub fn join(&mut self, label: FlowLabel, asker: Asker, wanted: &Wanted, json: bool) -> Option<u64> {
        let same = |waiting: &&mut Waiting| {
            let is_it = matches!(&waiting.purpose, Purpose::Query { wanted: known, json: form, .. } if known == wanted && *form == json);
            waiting.of == asker.number && is_it && waiting.askers.len() < ASKERS_MAX
        };
        let waiting = self.waiting.iter_mut().find(same)?;
        waiting.askers.push((label, asker));
        Some(waiting.ticket)
    }

    /// Removes a request, and charges the planning time to its source; `None`: its askers have left.
    pub fn take(&mut self, now: Instant, planned: &Planned) -> Option<Waiting> {
        if let Some(at) = self.given.iter().position(|given| given.ticket == planned.ticket) {
            let given = self.given.swap_remove(at);
            self.balances.charge(now, given.source, planned.spent);
            self.spent = self.spent.saturating_add(nanos(planned.spent).unsigned_abs());
        }
        self.withdraw(planned.ticket)
    }

    /// Removes a request whose plan was not made.
    pub fn withdraw(&mut self, ticket: u64) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        Some(self.waiting.remove(at))
    }

    /// Removes the requests of a connection that has ended.
    pub fn gone(&mut self, label: FlowLabel) {
        if self.waiting.is_empty() {
            return;
        }
        for waiting in &mut self.waiting {
            waiting.askers.retain(|(known, _)| *known != label);
        }
        self.waiting.retain(|waiting| !waiting.askers.is_empty());
        self.jobs.retain(PlanJob::is_wanted);
    }

    /// Returns whether a place is reserved for a request.
    pub fn keeps(&self, place: u32) -> bool {
        let is_it = |waiting: &Waiting| matches!(&waiting.purpose, Purpose::Query { place: kept, .. } if kept.spec.number == place);
        self.waiting.iter().any(is_it)
    }

    /// Returns how many queries, or formats, of a channel wait that a requester has asked for.
    pub fn asked(&self, asker: Asker, formats: bool) -> usize {
        let its = |waiting: &&Waiting| {
            let by = waiting.askers.first().map(|(_, first)| first.requester);
            waiting.of == asker.number
                && by == Some(asker.requester)
                && matches!(waiting.purpose, Purpose::Format { .. }) == formats
        };
        self.waiting.iter().filter(its).count()
    }

    /// Returns how many formats of a channel wait.
    pub fn formats(&self, of: u32) -> usize {
        let is_format =
            |waiting: &&Waiting| waiting.of == of && matches!(waiting.purpose, Purpose::Format { .. });
        self.waiting.iter().filter(is_format).count()
    }

    /// Returns a request that has waited for too long.
    pub fn overdue(&self, now: Instant) -> Option<u64> {
        let is_over = |waiting: &&Waiting| waiting.since + WAITING_TIME <= now;
        self.waiting.iter().find(is_over).map(|waiting| waiting.ticket)
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.since + WAITING_TIME).min()
    }

    /// Returns the next plan to make. Each returned job comes back through [`Plans::take`], even if it is no
    /// longer wanted.
    pub fn next_job(&mut self) -> Option<PlanJob> {
        while let Some(job) = self.jobs.pop_front() {
            if let Some(waiting) = self.waiting.iter().find(|waiting| waiting.ticket == job.ticket) {
                let Waiting { ticket, source, since, .. } = *waiting;
                self.given.push(Given { ticket, source, since });
                return Some(job);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn a_source_is_an_address_or_a_64th_of_ipv6() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }

    #[test]
    fn who_has_used_up_its_time_waits_a_twentyfold_and_others_do_not() {
        let (mut balances, greedy) = (Balances::default(), source("10.0.0.1"));
        let start = Instant::ZERO + Duration::from_secs(9);
        assert!(balances.check(start, greedy).is_ok());
        balances.charge(start, greedy, Duration::from_secs(3));
        let refused = balances.check(start, greedy).unwrap_err().message;
        assert_eq!(refused, "the address has used up its time for planning; ask again in 40 s");
        assert!(balances.check(start, source("10.0.0.2")).is_ok());
        assert!(balances.check(start + Duration::from_secs(40), greedy).is_err());
        assert!(balances.check(start + Duration::from_secs(41), greedy).is_ok());
        // What is known of a source with debts is forgotten last.
        let start = start + Duration::from_secs(41);
        balances.charge(start, greedy, Duration::from_secs(3));
        for n in 0..2 * SOURCES_MAX as u32 {
            let many = Source(IpAddr::V4((0x0b00_0000 + n).into()));
            balances.charge(start, many, Duration::from_millis(1));
            assert!(balances.0.len() <= SOURCES_MAX);
        }
        assert!(balances.check(start, greedy).is_err(), "it stays known");
    }
}
