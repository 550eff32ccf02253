//! The state of the link and of its flows, for display.

use std::sync::Arc;

use csp_types::{Duration, Instant};

use super::SharedLink;
use crate::monitor::{FlowCounters, Observation};
use crate::{FlowSpec, Scheme};

/// State of a flow at a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStatus {
    /// Its name.
    pub name: String,
    /// Its priority in the policy.
    pub priority: u8,
    /// Bits a second that it is promised: messages count with their longest length.
    pub promised: u64,
    /// Messages a second that it is promised.
    pub promised_messages: u32,
    /// Messages that wait, and their bytes in all copies.
    pub queued: (u32, u64),
    /// Outcomes of its messages.
    pub counters: FlowCounters,
    /// Time from arrival to release of all that were released.
    pub delay_sum: Duration,
    /// Observation of its meter; zero unless each flow is metered.
    pub seen: Observation,
    /// Its messages wait for receivers that hold back.
    pub blocked: bool,
    /// Contexts that it is promised.
    pub contexts: u16,
    /// Time of contexts used by its messages.
    pub context_time: Duration,
    /// Measured time that the worker needs for a message; zero: not measured.
    pub cost: Duration,
}

/// State of the link at a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The scheme in force.
    pub scheme: Scheme,
    /// The node's capacity in bits a second, and this worker's part.
    pub capacity: (u64, u64),
    /// Triggers, each with the number of its changes.
    pub triggers: Vec<(String, u64)>,
    /// A generation waits until items of a former flow have left.
    pub waits: bool,
    /// Number of contexts that flows share, and their part of the worker's time in percent.
    pub contexts: (u16, u8),
}

impl SharedLink {
    pub(super) fn status(&mut self, now: Instant) -> (LinkStatus, Vec<FlowStatus>) {
        let plan = Arc::clone(self.manager.plan());
        let triggers = (0..).zip(&self.triggers);
        let link = LinkStatus {
            scheme: self.manager.schemes().1,
            capacity: (plan.capacity().link.bits_per_second, self.part),
            triggers: triggers
                .map(|(at, trigger)| (trigger.name.clone(), self.manager.changes(at)))
                .collect(),
            waits: self.next.is_some(),
            contexts: (plan.capacity().contexts, self.percent),
        };
        let flows = plan.table().flows().map(|(id, spec)| FlowStatus {
            name: spec.name.clone(),
            priority: spec.priority,
            promised: promised(spec),
            promised_messages: spec.reservation.items_per_second,
            queued: self.manager.queued(id),
            counters: self.manager.counters(id),
            delay_sum: self.delays.get(usize::from(id.0)).copied().unwrap_or_default(),
            seen: self.manager.observe(now, id),
            blocked: self.stuck.iter().any(|(flow, _)| *flow == id),
            contexts: spec.reservation.contexts,
            context_time: self.slots.occupied(id),
            cost: self.slots.measured(id).unwrap_or_default(),
        });
        (link, flows.collect())
    }
}

/// Returns the rate promised to a flow, in bits per second: items count with their longest length.
fn promised(spec: &FlowSpec) -> u64 {
    let by_items = u64::from(spec.reservation.items_per_second) * u64::from(spec.item.bytes_max) * 8;
    by_items.max(spec.reservation.bits_per_second)
}
