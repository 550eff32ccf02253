//! Admission: which promises can be kept together, from what handlers cost and what the link carries.
//!
//! A promise of R bits a second means: in any window of [`WINDOW`] in which the flow always has items, R
//! times the window leave. Items are served whole and one at a time, so the scheduler holds a little more
//! than R:
//!
//! ```text
//!   R' = (R · window + 2 · stages · longest item) / (window − slack)
//! ```
//! Two items per stage are lost at most to where the window's ends fall (the first may just have been served,
//! the last be under way). The slack is what others' items take that cannot be interrupted. The sum of all R'
//! must not exceed the capacity.

use std::sync::Arc;

use csp_types::Duration;

use crate::calendar::GRAIN_NS;
use crate::clocks::Rate;
use crate::flow::{FlowId, FlowSpec};
use crate::link::LinkConfig;
use crate::scheme::{Claim, Duties, Scheme, allot};
use crate::table::FlowTable;

/// The window in which a promise holds.
pub const WINDOW: Duration = Duration::from_millis(100);

/// What a handler costs a context, as its profile says.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Time of a call whatever the length.
    pub item: Duration,
    /// Further time for each KiB.
    pub kib: Duration,
    /// Whether it waits for output more than it computes.
    pub output_bound: bool,
}

impl Cost {
    /// Returns the time of a call for an item of `bytes`.
    pub fn of(&self, bytes: u32) -> Duration {
        let kib = self.kib.as_nanos() as u64;
        self.item + Duration::from_nanos((u128::from(kib) * u128::from(bytes) / 1_024) as u64)
    }
}

/// What a worker has to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Contexts.
    pub contexts: u16,
    /// Its output link.
    pub link: LinkConfig,
    /// Items between two resource-management points.
    pub point_every: u32,
}

/// A promise that cannot be kept beside those before it: the operator's mistake, or too little of something.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Too few contexts.
    #[error("flow {flow:?} asks for {asked:.2} contexts; {left:.2} of {total} are left")]
    Contexts {
        /// The flow.
        flow: String,
        /// Contexts that its promises need.
        asked: f64,
        /// Contexts that no flow before it needs.
        left: f64,
        /// All contexts.
        total: u16,
    },
    /// Too little capacity of the link.
    #[error("flow {flow:?} asks for {asked} b/s, which hold {held} b/s; {left} b/s of {total} are left")]
    Link {
        /// The flow.
        flow: String,
        /// What it asks for, in bits a second.
        asked: u64,
        /// What has to be held for it.
        held: u64,
        /// What no flow before it holds.
        left: u64,
        /// The link's capacity.
        total: u64,
    },
    /// The longest items, or the costliest handlers, take so long that no window can be kept.
    #[error(
        "flow {flow:?} cannot be promised a rate: the longest items of all flows and the link's quantum may take {slack:?}, and the window is {WINDOW:?}"
    )]
    Slack {
        /// The flow.
        flow: String,
        /// Time that items may take which cannot be interrupted.
        slack: Duration,
    },
    /// A handler without profile.
    #[error("flow {flow:?} is promised something, and its handler {handler:?} has no profile yet")]
    Profile {
        /// The flow.
        flow: String,
        /// The handler.
        handler: String,
    },
}

/// What is left when all promises are kept.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Left {
    /// Contexts.
    pub contexts: f64,
    /// Bits a second of the link.
    pub bits_per_second: u64,
}

/// What a flow holds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Held {
    /// Bits a second at the link.
    pub bits_per_second: f64,
    /// Contexts, those that are its own and what its rate needs of the others.
    pub contexts: f64,
    pub clock: Rate,
    /// By EAS and SA, at the link.
    pub equal: Rate,
    pub allotted: Rate,
}

impl Held {
    /// Returns the share of the link under EAS or SA.
    pub fn equal_or_allotted(&self, scheme: Scheme) -> Rate {
        if scheme == Scheme::Static { self.allotted } else { self.equal }
    }
}

/// A table of flows whose promises can be kept. Made beside the data path, and put into force as a whole.
#[derive(Clone, Debug)]
pub struct Plan {
    table: Arc<FlowTable>,
    capacity: Capacity,
    held: Vec<Held>,
    claims: Vec<Claim>,
    /// By flow: what its handler costs a context.
    costs: Vec<Option<Cost>>,
    left: Left,
}

impl Plan {
    /// Checks the promises of a table in the order of ids against what handlers cost and what there is.
    ///
    /// `profile` returns what a handler costs at most, from its measured profile or from what its maker says
    /// of it.
    pub fn new(
        table: Arc<FlowTable>,
        capacity: Capacity,
        profile: impl Fn(&str) -> Option<Cost>,
    ) -> Result<Plan, Refusal> {
        let slack = Slack::new(&table, &capacity, &profile);
        let mut plan = Plan {
            held: vec![Held::default(); table.capacity()],
            claims: Vec::new(),
            costs: vec![None; table.capacity()],
            left: Left {
                contexts: f64::from(capacity.contexts),
                bits_per_second: capacity.link.bits_per_second,
            },
            table: Arc::clone(&table),
            capacity,
        };
        for (id, spec) in table.flows() {
            if spec.post.is_some() {
                let contexts = spec.reservation.contexts;
                plan.claims.push(Claim { flow: id.0, priority: spec.priority, contexts });
            }
            let cost = spec.post.as_deref().and_then(&profile);
            plan.costs[id.index()] = cost;
            plan.hold(id, spec, cost, &slack)?;
        }
        plan.divide();
        Ok(plan)
    }

    fn hold(
        &mut self,
        id: FlowId,
        spec: &FlowSpec,
        cost: Option<Cost>,
        slack: &Slack,
    ) -> Result<(), Refusal> {
        let promise = spec.reservation;
        let flow = || spec.name.clone();
        let rated = promise.items_per_second > 0 || promise.bits_per_second > 0;
        let handler = spec.post.as_ref().filter(|_| rated || promise.contexts > 0);
        let (mut contexts, longest) = (f64::from(promise.contexts), f64::from(spec.item.bytes_max) * 8.0);
        let (mut bits, mut clock) = (0.0, Rate::default());
        if rated {
            let slack = slack.of(spec.post.is_some());
            let window = WINDOW.as_secs_f64() - slack.as_secs_f64();
            if window <= 0.0 {
                return Err(Refusal::Slack { flow: flow(), slack });
            }
            let lost = if spec.post.is_some() { 4.0 } else { 2.0 };
            let held = |rate: f64, one: f64| match rate > 0.0 {
                true => (rate * WINDOW.as_secs_f64() + lost * one) / window,
                false => 0.0,
            };
            let by_items = held(f64::from(promise.items_per_second), 1.0);
            let by_bits = held(promise.bits_per_second as f64, longest);
            bits = by_bits.max(by_items * longest);
            clock = Rate::new(by_items, by_bits, spec.item.bytes_max);
            if let Some(handler) = handler {
                let Some(cost) = cost else {
                    return Err(Refusal::Profile { flow: flow(), handler: handler.clone() });
                };
                // Items as long as they may be, as many as that makes of the rate.
                let items = by_items.max(by_bits / longest);
                contexts += items * cost.of(spec.item.bytes_max).as_secs_f64();
            }
        }
        if handler.is_some() && contexts > self.left.contexts + 1e-9 {
            let (left, total) = (self.left.contexts, self.capacity.contexts);
            return Err(Refusal::Contexts { flow: flow(), asked: contexts, left, total });
        }
        if bits > self.left.bits_per_second as f64 {
            let asked = promise.bits_per_second.max((f64::from(promise.items_per_second) * longest) as u64);
            let (left, total) = (self.left.bits_per_second, self.capacity.link.bits_per_second);
            return Err(Refusal::Link { flow: flow(), asked, held: bits as u64, left, total });
        }
        let contexts = if handler.is_some() { contexts } else { 0.0 };
        self.left.contexts -= contexts;
        self.left.bits_per_second -= bits.ceil() as u64;
        let held = &mut self.held[id.index()];
        (held.bits_per_second, held.contexts, held.clock) = (bits, contexts, clock);
        Ok(())
    }

    /// Divides the link among all flows as EAS and SA do.
    fn divide(&mut self) {
        let total = self.capacity.link.bits_per_second;
        let flows: Vec<(FlowId, &FlowSpec)> = self.table.flows().collect();
        // The flow of what no predicate matches has a share only if it is described.
        let count = flows.len().saturating_sub(usize::from(self.default_is_silent())).max(1);
        let silent = self.default_is_silent();
        let stated: Vec<(u64, u8)> = flows
            .iter()
            .filter(|(id, _)| !silent || *id != FlowId::DEFAULT)
            .map(|(_, spec)| (spec.reservation.bits_per_second, spec.priority))
            .collect();
        let mut shares = allot(total, &stated).into_iter();
        for (id, spec) in flows {
            let longest = spec.item.bytes_max;
            let held = &mut self.held[id.index()];
            if silent && id == FlowId::DEFAULT {
                // It must not stand still for ever: a thousandth.
                let rate = Rate::new(0.0, total as f64 / 1_000.0, longest);
                (held.equal, held.allotted) = (rate, rate);
                continue;
            }
            held.equal = Rate::new(0.0, total as f64 / count as f64, longest);
            held.allotted = Rate::new(0.0, shares.next().unwrap_or(0) as f64, longest);
        }
    }

    fn default_is_silent(&self) -> bool {
        let plain = FlowSpec::new(crate::table::DEFAULT_NAME, crate::Predicate::default());
        self.table.flow(FlowId::DEFAULT).is_some_and(|flow| FlowSpec { post: None, ..flow.clone() } == plain)
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<FlowTable> {
        &self.table
    }

    /// Returns what there is to give.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns what is left for further promises.
    pub fn left(&self) -> Left {
        self.left
    }

    /// Returns what an item of a flow costs a context, by the profile of its handler; `None` without handler
    /// or profile.
    pub fn cost(&self, flow: FlowId) -> Option<Cost> {
        self.costs.get(flow.index()).copied().flatten()
    }

    /// Returns what is held for a flow's promise, in bits a second of the link and in contexts.
    pub fn held(&self, flow: FlowId) -> (f64, f64) {
        self.held.get(flow.index()).map_or((0.0, 0.0), |held| (held.bits_per_second, held.contexts))
    }

    pub(crate) fn held_of(&self, flow: FlowId) -> Held {
        self.held.get(flow.index()).copied().unwrap_or_default()
    }

    /// Divides contexts among the flows that have a handler, and `leftovers`.
    pub(crate) fn duties(&self, scheme: Scheme, leftovers: &[Claim]) -> Duties {
        let claims: Vec<Claim> = self.claims.iter().chain(leftovers).copied().collect();
        Duties::new(scheme, usize::from(self.capacity.contexts), self.table.capacity(), &claims)
    }
}

/// What cannot be interrupted.
struct Slack {
    link: Duration,
    contexts: Duration,
}

impl Slack {
    fn new(table: &FlowTable, capacity: &Capacity, profile: &impl Fn(&str) -> Option<Cost>) -> Self {
        let longest = table.flows().map(|(_, spec)| spec.item.bytes_max).max().unwrap_or(0);
        let cost =
            |spec: &FlowSpec| spec.post.as_deref().and_then(profile).map(|cost| cost.of(spec.item.bytes_max));
        let costliest = table.flows().filter_map(|(_, spec)| cost(spec)).max().unwrap_or_default();
        let bits = (u64::from(capacity.link.quantum) + 2 * u64::from(longest)) * 8;
        let grains = Duration::from_nanos(2 * GRAIN_NS);
        Slack {
            link: Duration::from_secs_f64(bits as f64 / capacity.link.bits_per_second.max(1) as f64) + grains,
            // With several contexts a due item waits for one of them, and may be beside as many that were due
            // before it.
            contexts: costliest * u32::from(capacity.contexts + 1) + grains,
        }
    }

    fn of(&self, has_handler: bool) -> Duration {
        if has_handler { self.link + self.contexts } else { self.link }
    }
}
