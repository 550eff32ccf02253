//! Information flows of a policy: their numbers, what of them can be promised here, and what workers get.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use csp_messages::FormatId;
use csp_planner::{Catalogue, Planned};
use csp_policy::{Adapt, DEFAULT_FLOW, FLOWS_MAX, Flow, Link, Policy, TriggerAction, TriggerWhen};
use csp_quality::{
    Action, Board, Capacity, Condition, Cost, FieldValue, FlowId, FlowSpec, FlowTable, ItemRule, LinkConfig,
    MonitorConfig, MonitorFrequency, Plan, Predicate, QualityConfig, QueueBounds, Refusal, Reservation,
    Resource, SharedLinkConfig, Threshold, Trigger, dynamic_adaptation,
};
use csp_services::{FieldReader, FlowFields};
use csp_types::{Duration, NodeId};

use super::Numbers;
use crate::FlowsConfig;

/// Items between two resource-management points.
const POINT_EVERY: u32 = 16;
/// Messages of all flows that wait at a worker.
const ITEMS_MAX: u32 = 65_536;

/// What the control thread keeps of flows from generation to generation: a flow that keeps its name keeps its
/// number.
#[derive(Debug)]
pub struct Known {
    node: Option<NodeId>,
    table: FlowTable,
    costs: Costs,
    last: Option<(Vec<FlowSpec>, Link, FlowsConfig)>,
    /// Text of how fields of the last flows are read.
    fields: String,
}

impl Default for Known {
    fn default() -> Self {
        Known {
            node: None,
            table: FlowTable::new(FLOWS_MAX),
            costs: Costs::new(1),
            last: None,
            fields: String::new(),
        }
    }
}

impl Known {
    /// No flows yet, of a proxy whose workers measure costs.
    pub fn new(node: NodeId, costs: Costs) -> Self {
        Known { node: Some(node), costs, ..Known::default() }
    }
}

/// What flows' handlers take, as workers have measured it: the profiles by which promises are admitted.
#[derive(Clone, Debug)]
pub struct Costs {
    board: Arc<Board>,
    /// The numbers by which workers know flows.
    names: Arc<Mutex<HashMap<String, FlowId>>>,
}

impl Costs {
    /// None yet, of so many workers.
    pub fn new(workers: usize) -> Self {
        Costs { board: Arc::new(Board::of_flows(workers, FLOWS_MAX + 1)), names: Arc::default() }
    }

    fn of(&self, flow: &str) -> Option<Duration> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(flow).and_then(|id| self.board.cost(*id))
    }

    fn rename(&self, table: &FlowTable) {
        let names = table.flows().map(|(id, spec)| (spec.name.clone(), id)).collect();
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }
}

/// Returns whether this proxy can keep what a policy promises to flows.
pub fn check(planned: &Planned, node: &NodeId, costs: &Costs) -> Result<(), String> {
    let policy = planned.policy();
    let Some(link) = &policy.link else { return Ok(()) };
    let specs = specs(policy, planned.catalogue(), &mut Numbers::default());
    let table = FlowTable::new(FLOWS_MAX).replace(specs).map_err(|error| error.to_string())?;
    plan(Arc::new(table), policy, link, (Some(node), costs)).map(drop)
}

/// Returns what workers need of a policy's flows; `None` if it has no link. A policy whose promises cannot be
/// kept was not acknowledged; if it is in force nevertheless, the former flows are.
pub fn translate(policy: &Policy, catalogue: &Catalogue, numbers: &mut Numbers) -> Option<FlowsConfig> {
    let Some(link) = &policy.link else {
        numbers.flows.last = None;
        return None;
    };
    let specs = specs(policy, catalogue, numbers);
    let fields = Arc::new(fields(policy, catalogue, numbers));
    let known = &mut numbers.flows;
    // A format may have changed of which flows read the same fields.
    let read = format!("{fields:?}");
    if let Some((before, of_link, config)) = &known.last
        && *before == specs
        && known.fields == read
        && of_link == link
    {
        return Some(config.clone());
    }
    let made = known.table.replace(specs.clone()).map_err(|error| error.to_string());
    let made = made.and_then(|table| {
        let plan = plan(Arc::new(table.clone()), policy, link, (known.node.as_ref(), &known.costs))?;
        Ok((table, plan))
    });
    match made {
        Ok((table, plan)) => {
            let shared = SharedLinkConfig {
                quality: quality(link),
                triggers: triggers(link, &table),
                plan: Arc::new(plan),
                board: (Arc::clone(&known.costs.board), 0),
                worker_percent: link.contexts.unwrap_or_default().worker_percent,
            };
            let config = FlowsConfig { link: shared, fields };
            known.fields = read;
            known.costs.rename(&table);
            known.table = table;
            known.last = Some((specs, link.clone(), config.clone()));
            Some(config)
        }
        Err(error) => {
            tracing::error!(error, "the policy's flows cannot be; the former ones stay in force");
            known.last.as_ref().map(|(_, _, config)| config.clone())
        }
    }
}

/// Checks promises. Handlers of a flow go by its name.
fn plan(
    table: Arc<FlowTable>,
    policy: &Policy,
    link: &Link,
    (node, costs): (Option<&NodeId>, &Costs),
) -> Result<Plan, String> {
    let mbps = node.map_or(link.mbps, |node| link.mbps_of(node));
    let contexts = link.contexts.map_or(0, |contexts| contexts.count);
    let percent = link.contexts.unwrap_or_default().worker_percent;
    let link = LinkConfig { bits_per_second: mbps * 1_000_000, quantum: link.quantum_kib << 10 };
    let capacity = Capacity { contexts, link, point_every: POINT_EVERY };
    let profile = |name: &str| {
        let flow =
            policy.information_flows.iter().find(|flow| flow.name == name).filter(|flow| flow.cost_us > 0);
        let stated = flow.map(|flow| Duration::from_micros(flow.cost_us.into()));
        // A context has its part of the worker: what takes the worker this long takes a context so much
        // longer.
        let item =
            stated.or_else(|| costs.of(name))? * (u32::from(contexts) * 100) / u32::from(percent.max(1));
        Some(Cost { item, ..Cost::default() })
    };
    Plan::new(table, capacity, profile).map_err(|refusal| match refusal {
        Refusal::Profile { flow, .. } => format!(
            "flow {flow:?} is promised something, and what its handlers take was not measured yet: write cost_us, or promise it when it has run"
        ),
        Refusal::Link { flow, asked, held, left, total } => {
            let (up, down) = (|bits: u64| in_mbps(bits.div_ceil(100_000)), |bits: u64| in_mbps(bits / 100_000));
            let (asked, held, left, total) = (up(asked), up(held), down(left), down(total));
            format!("flow {flow:?} asks for {asked} Mb/s, for which {held} have to be held; {left} of {total} Mb/s are left")
        }
        refusal => refusal.to_string(),
    })
}

/// How fields of messages are read, by channel and format.
fn fields(policy: &Policy, catalogue: &Catalogue, numbers: &mut Numbers) -> FlowFields {
    let mut fields = FlowFields::default();
    for channel in &policy.channels {
        for (format, read) in catalogue.flow_readers(policy, &channel.name) {
            let reader = FieldReader::new(read.all, read.fields);
            fields.add(numbers.of(&channel.name), FormatId(format), reader);
        }
    }
    fields
}

/// Bits a second as the policy has them: tenths of Mb/s as Mb/s, without a digit that says nothing.
fn in_mbps(tenths: u64) -> String {
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        digit => format!("{}.{digit}", tenths / 10),
    }
}

fn specs(policy: &Policy, catalogue: &Catalogue, numbers: &mut Numbers) -> Vec<FlowSpec> {
    let mut paths = HashMap::new();
    let mut specs = Vec::new();
    for flow in &policy.information_flows {
        let mut spec = spec(policy, flow, numbers);
        if let Some(condition) = catalogue.flow_condition(policy, flow) {
            let channel = flow.predicate.channel.as_deref().unwrap_or_default();
            let paths = paths.entry(channel).or_insert_with(|| catalogue.flow_fields(policy, channel));
            if let Some(format) = condition.format {
                spec.predicate.format = Some(format as u64 + 1);
            }
            for range in condition.fields {
                let number = paths.iter().position(|path| *path == range.path).unwrap_or(usize::MAX);
                let words =
                    FieldValue::unsigned(*range.words.start())..=FieldValue::unsigned(*range.words.end());
                spec.predicate.fields.push((u8::try_from(number).unwrap_or(u8::MAX), words));
            }
        }
        specs.push(spec);
    }
    if policy.leaves_to_default() {
        // Contexts process what no flow takes, too.
        match specs.iter_mut().find(|spec| spec.name == DEFAULT_FLOW) {
            Some(default) => default.post = Some(DEFAULT_FLOW.to_owned()),
            None => specs.push(FlowSpec {
                post: Some(DEFAULT_FLOW.to_owned()),
                ..FlowSpec::new(DEFAULT_FLOW, Predicate::default())
            }),
        }
    }
    specs
}

fn spec(policy: &Policy, flow: &Flow, numbers: &mut Numbers) -> FlowSpec {
    let Flow { name, predicate, priority, reserve, message_bytes, queue, before, .. } = flow;
    let ports = |range: &csp_policy::PortRange| range.0.first..=range.0.last;
    let channel = predicate.channel.as_deref();
    // Ids of formats are their places in the channel's list, from 1.
    let format = predicate.format.as_ref().and_then(|format| {
        let channel = policy.channels.iter().find(|known| Some(known.name.as_str()) == channel)?;
        channel.formats.iter().position(|known| known == format).map(|at| at as u64 + 1)
    });
    FlowSpec {
        name: name.clone(),
        predicate: Predicate {
            source: predicate.source,
            destination: predicate.destination,
            source_port: predicate.source_port.as_ref().map(ports),
            destination_port: predicate.port.as_ref().map(ports),
            channel: channel.map(|name| numbers.of(name)),
            format,
            fields: Vec::new(),
        },
        priority: *priority,
        reservation: Reservation {
            contexts: reserve.contexts,
            items_per_second: reserve.messages_per_s,
            bits_per_second: reserve.mbps * 1_000_000,
        },
        item: ItemRule { bytes_max: *message_bytes, ..ItemRule::default() },
        bounds: QueueBounds { items: queue.messages, bytes: queue.kib << 10 },
        overflow: queue.full,
        pre: before.clone(),
        post: (name != DEFAULT_FLOW && policy.is_processed(flow)).then(|| name.clone()),
    }
}

fn quality(link: &Link) -> QualityConfig {
    let frequency = match link.monitor.every_us {
        0 => MonitorFrequency::Frequent,
        every => MonitorFrequency::Infrequent(Duration::from_micros(every.into())),
    };
    let window = Duration::from_millis(link.monitor.window_ms.into());
    QualityConfig {
        items_max: ITEMS_MAX,
        link: link.scheme,
        monitor: MonitorConfig { mode: link.monitor.mode, frequency, window },
        ..QualityConfig::default()
    }
}

fn triggers(link: &Link, table: &FlowTable) -> Vec<Trigger> {
    let id = |name: &Option<String>| name.as_ref().and_then(|name| table.id(name)).unwrap_or_default();
    let adapt = link.adapt.iter().map(|adapt| {
        let Adapt { flow, surge_mbps, ebb_mbps, back_ms } = adapt;
        let flow = table.id(flow).unwrap_or_default();
        let hold = Duration::from_millis((*back_ms).into());
        dynamic_adaptation(flow, surge_mbps * 1_000_000, ebb_mbps * 1_000_000, hold)
    });
    let actions = |actions: &[TriggerAction]| actions.iter().flat_map(|a| action(a, id(&a.flow))).collect();
    let triggers = link.triggers.iter().filter_map(|trigger| {
        Some(Trigger {
            name: trigger.name.clone(),
            condition: condition(&trigger.when, id(&trigger.when.flow))?,
            hold: Duration::from_millis(trigger.hold_ms.into()),
            release_hold: Duration::from_millis(trigger.back_ms.into()),
            fire: actions(&trigger.then),
            release: actions(&trigger.back),
        })
    });
    triggers.chain(adapt).collect()
}

fn condition(when: &TriggerWhen, flow: FlowId) -> Option<Condition> {
    let TriggerWhen { queue, mbps, delay_us, missed, link_percent, .. } = when;
    let scaled = |limit: &csp_policy::Limit, by: u64| Threshold {
        fire: limit.at.saturating_mul(by),
        release: limit.back.saturating_mul(by),
    };
    if *missed {
        return Some(Condition::PromiseMissed(flow));
    }
    let rate = |limit: &csp_policy::Limit| match limit.at > limit.back {
        true => Condition::RateAbove(flow, scaled(limit, 1_000_000)),
        false => Condition::RateBelow(flow, scaled(limit, 1_000_000)),
    };
    let queue = queue.as_ref().map(|limit| Condition::QueueAbove(flow, scaled(limit, 1)));
    let delay = delay_us.as_ref().map(|limit| Condition::DelayAbove(flow, scaled(limit, 1_000)));
    let full = link_percent.as_ref().map(|limit| Condition::LinkFull(scaled(limit, 10)));
    queue.or(mbps.as_ref().map(rate)).or(delay).or(full)
}

/// One scheme is that of contexts and link.
fn action(action: &TriggerAction, flow: FlowId) -> Vec<Action> {
    let TriggerAction { install, remove, priority, scheme: to, event, .. } = action;
    let install = install.as_ref().map(|filter| Action::Install(flow, filter.clone()));
    let remove = remove.as_ref().map(|filter| Action::Remove(flow, filter.clone()));
    let priority = priority.map(|priority| Action::SetPriority(flow, priority));
    if let Some(to) = to {
        return [Resource::Contexts, Resource::Link].map(|which| Action::Switch(which, *to)).to_vec();
    }
    let event = event.as_ref().map(|event| Action::Raise(event.clone()));
    install.or(remove).or(priority).or(event).into_iter().collect()
}

#[cfg(test)]
mod tests;
