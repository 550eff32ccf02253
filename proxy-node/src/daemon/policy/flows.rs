//! Information flows of a policy: their numbers, what of them can be promised here, and what workers get.

use std::sync::Arc;

use csp_control::{
    Adapt, FLOWS_MAX, Flow, FlowFull, Link, LinkScheme, MonitorMode as Mode, Policy, TriggerAction,
    TriggerWhen,
};
use csp_quality::{
    Action, Board, Capacity, Condition, FlowId, FlowSpec, FlowTable, ItemRule, LinkConfig, MonitorConfig,
    MonitorFrequency, MonitorMode, Overflow, Plan, Predicate, QualityConfig, QueueBounds, Reservation,
    Resource, Scheme, Threshold, Trigger, dynamic_adaptation,
};
use csp_services::FlowsConfig;
use csp_types::{Duration, NodeId};

use super::Numbers;

/// Items between two resource-management points.
const POINT_EVERY: u32 = 16;
/// Messages of all flows that wait at a worker.
const ITEMS_MAX: u32 = 65_536;

/// What the control thread keeps of flows from generation to generation: a flow that keeps its name keeps its number.
#[derive(Debug)]
pub struct Known {
    node: Option<NodeId>,
    table: FlowTable,
    board: Arc<Board>,
    last: Option<(Vec<FlowSpec>, Link, FlowsConfig)>,
}

impl Default for Known {
    fn default() -> Self {
        Known { node: None, table: FlowTable::new(FLOWS_MAX), board: Arc::new(Board::new(1)), last: None }
    }
}

impl Known {
    /// No flows yet, of a proxy with so many workers.
    pub fn new(node: NodeId, workers: usize) -> Self {
        Known { node: Some(node), board: Arc::new(Board::new(workers)), ..Known::default() }
    }
}

/// Returns whether this proxy can keep what a policy promises to flows.
pub fn check(policy: &Policy, node: &NodeId) -> Result<(), String> {
    let Some(link) = &policy.link else { return Ok(()) };
    let specs = specs(policy, &mut Numbers::default());
    let table = FlowTable::new(FLOWS_MAX).replace(specs).map_err(|error| error.to_string())?;
    plan(Arc::new(table), link, Some(node)).map(drop)
}

/// Returns what workers need of a policy's flows; `None` if it has no link. A policy whose promises cannot be kept was not acknowledged; if it is
/// in force nevertheless, the former flows are.
pub fn translate(policy: &Policy, numbers: &mut Numbers) -> Option<FlowsConfig> {
    let Some(link) = &policy.link else {
        numbers.flows.last = None;
        return None;
    };
    let specs = specs(policy, numbers);
    let known = &mut numbers.flows;
    if let Some((before, of_link, config)) = &known.last
        && *before == specs
        && of_link == link
    {
        return Some(config.clone());
    }
    let made = known.table.replace(specs.clone()).map_err(|error| error.to_string());
    let made = made.and_then(|table| {
        let plan = plan(Arc::new(table.clone()), link, known.node.as_ref())?;
        Ok((table, plan))
    });
    match made {
        Ok((table, plan)) => {
            let config = FlowsConfig {
                quality: quality(link),
                triggers: triggers(link, &table),
                plan: Arc::new(plan),
                board: (Arc::clone(&known.board), 0),
            };
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

fn plan(table: Arc<FlowTable>, link: &Link, node: Option<&NodeId>) -> Result<Plan, String> {
    let mbps = node.map_or(link.mbps, |node| link.mbps_of(node));
    let link = LinkConfig { bits_per_second: mbps * 1_000_000, quantum: link.quantum_kib << 10 };
    let capacity = Capacity { contexts: 0, link, point_every: POINT_EVERY };
    Plan::new(table, capacity, |_| None).map_err(|error| error.to_string())
}

fn specs(policy: &Policy, numbers: &mut Numbers) -> Vec<FlowSpec> {
    policy.flows.iter().map(|flow| spec(policy, flow, numbers)).collect()
}

fn spec(policy: &Policy, flow: &Flow, numbers: &mut Numbers) -> FlowSpec {
    let Flow { name, predicate, priority, reserve, message_bytes, queue, before } = flow;
    let ports = |range: &csp_control::policy::PortRange| range.0.first..=range.0.last;
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
            contexts: 0,
            items_per_second: reserve.messages_per_s,
            bits_per_second: reserve.mbps * 1_000_000,
        },
        item: ItemRule { bytes_max: *message_bytes, ..ItemRule::default() },
        bounds: QueueBounds { items: queue.messages, bytes: queue.kib << 10 },
        overflow: match queue.full {
            FlowFull::DropNewest => Overflow::DropNewest,
            FlowFull::DropOldest => Overflow::DropOldest,
            FlowFull::Hold => Overflow::Hold,
        },
        pre: before.clone(),
        post: None,
    }
}

fn scheme(scheme: LinkScheme) -> Scheme {
    match scheme {
        LinkScheme::Rr => Scheme::RoundRobin,
        LinkScheme::Eas => Scheme::EqualStatic,
        LinkScheme::Sa => Scheme::Static,
        LinkScheme::Pa => Scheme::PriorityAware,
        LinkScheme::Par => Scheme::PriorityAwareReserved,
    }
}

fn quality(link: &Link) -> QualityConfig {
    let mode = match link.monitor.mode {
        Mode::Off => MonitorMode::Off,
        Mode::Queues => MonitorMode::QueueLength,
        Mode::Priorities => MonitorMode::Simple,
        Mode::Flows => MonitorMode::Fancy,
    };
    let frequency = match link.monitor.every_us {
        0 => MonitorFrequency::Frequent,
        every => MonitorFrequency::Infrequent(Duration::from_micros(every.into())),
    };
    let window = Duration::from_millis(link.monitor.window_ms.into());
    QualityConfig {
        items_max: ITEMS_MAX,
        link: scheme(link.scheme),
        monitor: MonitorConfig { mode, frequency, window },
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
    let actions = |actions: &[TriggerAction]| actions.iter().filter_map(|a| action(a, id(&a.flow))).collect();
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
    let scaled = |limit: &csp_control::Limit, by: u64| Threshold {
        fire: limit.at.saturating_mul(by),
        release: limit.back.saturating_mul(by),
    };
    if *missed {
        return Some(Condition::PromiseMissed(flow));
    }
    let rate = |limit: &csp_control::Limit| match limit.at > limit.back {
        true => Condition::RateAbove(flow, scaled(limit, 1_000_000)),
        false => Condition::RateBelow(flow, scaled(limit, 1_000_000)),
    };
    let queue = queue.as_ref().map(|limit| Condition::QueueAbove(flow, scaled(limit, 1)));
    let delay = delay_us.as_ref().map(|limit| Condition::DelayAbove(flow, scaled(limit, 1_000)));
    let full = link_percent.as_ref().map(|limit| Condition::LinkFull(scaled(limit, 10)));
    queue.or(mbps.as_ref().map(rate)).or(delay).or(full)
}

fn action(action: &TriggerAction, flow: FlowId) -> Option<Action> {
    let TriggerAction { install, remove, priority, scheme: to, event, .. } = action;
    let install = install.as_ref().map(|filter| Action::Install(flow, filter.clone()));
    let remove = remove.as_ref().map(|filter| Action::Remove(flow, filter.clone()));
    let priority = priority.map(|priority| Action::SetPriority(flow, priority));
    let switch = to.map(|to| Action::Switch(Resource::Link, scheme(to)));
    let event = event.as_ref().map(|event| Action::Raise(event.clone()));
    install.or(remove).or(priority).or(switch).or(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(promise: u64) -> Result<(), String> {
        let text = format!(
            "apiVersion: csp/v1\nchannels:\n  - {{name: gates, vip: 10.76.0.100, port: 5556}}\nflows:\n  - {{name: gates, match: {{channel: \
             gates}}, reserve: {{mbps: {promise}}}, message_bytes: 1500}}\n  - {{name: default, message_bytes: 1500}}\nlink:\n  mbps: \
             200\n  proxies: [{{node: proxy-2, mbps: 40}}]\n"
        );
        let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
        check(&policy, &NodeId::parse(b"proxy-1").unwrap())?;
        check(&policy, &NodeId::parse(b"proxy-2").unwrap())
    }

    #[test]
    fn a_promise_that_a_proxy_cannot_keep_is_refused_with_what_is_left() {
        check_text(30).unwrap();
        let error = check_text(50).unwrap_err();
        assert!(error.contains("flow \"gates\" asks for 50000000 b/s") && error.contains("left"), "{error}");
    }

    #[test]
    fn the_examples_of_the_operators_page_are_right() {
        let page = include_str!("../../../../docs/quality.md");
        let blocks: Vec<&str> =
            page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        let [example, triggers] = blocks[..] else { panic!("{} examples", blocks.len()) };
        let check = |text: &str| {
            let policy = Policy::parse_yaml(text, "docs/quality.md").unwrap();
            check(&policy, &NodeId::parse(b"proxy-1").unwrap()).unwrap();
            translate(&policy, &mut Numbers::default()).unwrap()
        };
        let flows = check(example);
        let gates = flows.plan.table().id("gates").unwrap();
        assert!(flows.plan.held(gates).0 > 50e6 && flows.plan.left().bits_per_second < 150_000_000);
        let (before, _) = example.split_once("link:").unwrap();
        assert_eq!(check(&(before.to_owned() + triggers)).triggers.len(), 1);
    }

    #[test]
    fn flows_keep_their_plan_while_nothing_of_them_changes() {
        let text = "apiVersion: csp/v1\nchannels:\n  - {name: gates, vip: 10.76.0.100, port: 5556}\nflows:\n  - {name: gates, match: {channel: \
                    gates}}\nlink: {mbps: 200, scheme: RR, adapt: {flow: gates, surge_mbps: 20, ebb_mbps: 10}}\n";
        let mut policy = Policy::parse_yaml(text, "p.yaml").unwrap();
        let mut numbers = Numbers::default();
        let first = translate(&policy, &mut numbers).unwrap();
        let again = translate(&policy, &mut numbers).unwrap();
        assert!(Arc::ptr_eq(&first.plan, &again.plan));
        assert_eq!((first.triggers.len(), first.quality.link), (1, Scheme::RoundRobin));
        policy.flows[0].priority = 3;
        let other = translate(&policy, &mut numbers).unwrap();
        assert!(!Arc::ptr_eq(&first.plan, &other.plan));
        assert_eq!(other.plan.table().id("gates"), first.plan.table().id("gates"));
        policy.link = None;
        policy.flows.clear();
        assert!(translate(&policy, &mut numbers).is_none());
    }
}
