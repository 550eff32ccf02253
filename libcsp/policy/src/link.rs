//! The output link that information flows share: its capacity, how it is divided, how flows are watched and
//! what follows from that.

use std::collections::{HashMap, HashSet};

use csp_config::{Problems, number, serde_node_id};
use csp_types::NodeId;
use csp_types::options::{MonitorMode, Scheme};
use serde::{Deserialize, Deserializer, Serialize};

use super::Policy;
use super::check::{check_count, check_name};
use super::flows::{DEFAULT_FLOW, FlowContexts, MBPS_MAX, is_filter};
use super::framing::is_default;

/// Most triggers of a policy: each is looked at at every resource-management point.
pub const TRIGGERS_MAX: usize = 63;
/// Most actions of a trigger, each way.
const ACTIONS_MAX: usize = 16;
/// Most proxies with a capacity of their own.
const PROXIES_MAX: usize = 256;

/// The link by which messages leave each proxy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Megabits a second that each proxy sends to receivers outside the cluster, counted in bytes of
    /// messages.
    #[serde(deserialize_with = "read_mbps")]
    pub mbps: u64,
    /// Proxies that may send another amount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxies: Vec<LinkShare>,
    /// KiB that may be unsent when the next message is released.
    #[serde(default = "quantum_kib", deserialize_with = "read_quantum")]
    pub quantum_kib: u32,
    /// How flows share it.
    #[serde(default = "par")]
    pub scheme: Scheme,
    /// Contexts in which messages of flows pass the paths of their channels, by the same scheme. Without,
    /// paths come before flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contexts: Option<FlowContexts>,
    /// How flows are watched.
    #[serde(default, skip_serializing_if = "is_default")]
    pub monitor: FlowMonitor,
    /// What is done when something watched reaches a value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<FlowTrigger>,
    /// Round robin as long as the flow is below its surge; PAR while it surges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapt: Option<Adapt>,
}

/// What one proxy may send.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkShare {
    /// The proxy.
    #[serde(with = "serde_node_id")]
    pub node: NodeId,
    /// Megabits a second.
    #[serde(deserialize_with = "read_mbps")]
    pub mbps: u64,
}

/// How flows are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowMonitor {
    /// What is metered.
    pub mode: MonitorMode,
    /// Microseconds between two looks at triggers; 0: at every resource-management point.
    #[serde(deserialize_with = "read_every")]
    pub every_us: u32,
    /// Milliseconds over which rates and delays are taken.
    #[serde(deserialize_with = "read_window")]
    pub window_ms: u32,
}

impl Default for FlowMonitor {
    fn default() -> Self {
        FlowMonitor { mode: MonitorMode::Flows, every_us: 0, window_ms: 10 }
    }
}

/// A condition and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTrigger {
    /// 1 to 63 of `a-z 0-9 -`, unique among triggers.
    pub name: String,
    /// What is watched.
    pub when: TriggerWhen,
    /// Milliseconds for which the condition must hold before it fires.
    #[serde(default, deserialize_with = "read_hold")]
    pub hold_ms: u32,
    /// Milliseconds for which its opposite must hold before it is released.
    #[serde(default = "back_ms", deserialize_with = "read_back")]
    pub back_ms: u32,
    /// What is done when it fires.
    pub then: Vec<TriggerAction>,
    /// What is done when it is released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<TriggerAction>,
}

/// What a trigger watches: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerWhen {
    /// The flow, of all but `link_percent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Messages in its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Limit>,
    /// Megabits a second that arrive. If `at` is less than `back`, it fires below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbps: Option<Limit>,
    /// Mean delay in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<Limit>,
    /// It always had messages, and less left than it is promised.
    #[serde(skip_serializing_if = "is_default")]
    pub missed: bool,
    /// Part of the link in use, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_percent: Option<Limit>,
}

/// Where a trigger fires, and where it is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// It fires at this value.
    pub at: u64,
    /// It is released at this value.
    pub back: u64,
}

/// What a trigger does: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerAction {
    /// The flow of `install`, `remove`, `priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Puts a filter before the flow's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// Removes a filter that a trigger has put there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<String>,
    /// Gives the flow another priority until the next policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Switches the link's scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Logs an event of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// Dynamic adaptation: the scheme follows one flow's rate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapt {
    /// The flow.
    pub flow: String,
    /// Megabits a second at which it surges.
    #[serde(deserialize_with = "read_mbps")]
    pub surge_mbps: u64,
    /// Megabits a second at which it has ebbed.
    #[serde(deserialize_with = "read_mbps")]
    pub ebb_mbps: u64,
    /// Milliseconds for which it must have ebbed.
    #[serde(default = "back_ms", deserialize_with = "read_back")]
    pub back_ms: u32,
}

impl Link {
    /// Returns what a proxy may send, in Mb/s.
    pub fn mbps_of(&self, node: &NodeId) -> u64 {
        self.proxies.iter().find(|share| share.node == *node).map_or(self.mbps, |share| share.mbps)
    }

    pub(super) fn summary(&self) -> String {
        let Link { mbps, proxies, quantum_kib, scheme, contexts, monitor, triggers, adapt } = self;
        let contexts = contexts.map_or_else(String::new, FlowContexts::summary);
        let shares: Vec<String> =
            proxies.iter().map(|share| format!(", {} {} Mb/s", share.node, share.mbps)).collect();
        let triggers: Vec<String> = triggers.iter().map(FlowTrigger::summary).collect();
        let adapt = adapt.as_ref().map_or_else(String::new, |adapt| {
            format!(", adapts to {} at {} and {} Mb/s", adapt.flow, adapt.surge_mbps, adapt.ebb_mbps)
        });
        format!(
            "{mbps} Mb/s{}, {} {quantum_kib} KiB{contexts}, watches {:?} every {} us in {} ms{}{adapt}",
            shares.concat(),
            scheme.abbreviation(),
            monitor.mode,
            monitor.every_us,
            monitor.window_ms,
            triggers.concat()
        )
    }

    pub(super) fn check(&self, policy: &Policy, problems: &mut Problems) {
        let known: HashSet<&str> =
            policy.information_flows.iter().map(|flow| flow.name.as_str()).chain([DEFAULT_FLOW]).collect();
        check_count("link.proxies", self.proxies.len(), 0, PROXIES_MAX, problems);
        let mut nodes = HashMap::new();
        for (index, share) in self.proxies.iter().enumerate() {
            if let Some(first) = nodes.insert(&share.node, index) {
                let message = format!("{} has link.proxies[{first}] already", share.node);
                problems.add(format!("link.proxies[{index}].node"), message);
            }
        }
        check_count("link.triggers", self.triggers.len(), 0, TRIGGERS_MAX, problems);
        let mut names = HashMap::new();
        for (index, trigger) in self.triggers.iter().enumerate() {
            let at = format!("link.triggers[{index}]");
            trigger.check(&known, self.monitor, &at, problems);
            if let Some(first) = names.insert(trigger.name.as_str(), index) {
                let message = format!("{:?} is the name of link.triggers[{first}] already", trigger.name);
                problems.add(format!("{at}.name"), message);
            }
        }
        if let Some(adapt) = &self.adapt {
            adapt.check(&known, self, problems);
        }
    }
}

impl Adapt {
    fn check(&self, known: &HashSet<&str>, link: &Link, problems: &mut Problems) {
        check_flow(Some(&self.flow), known, "link.adapt.flow", problems);
        if self.ebb_mbps >= self.surge_mbps {
            let message = format!("{} is not below surge_mbps, {}", self.ebb_mbps, self.surge_mbps);
            problems.add("link.adapt.ebb_mbps", message);
        }
        if link.scheme != Scheme::RoundRobin {
            let message =
                format!("{} is not what adaptation begins with; write RR", link.scheme.abbreviation());
            problems.add("link.scheme", message);
        }
        if link.monitor.mode != MonitorMode::Flows {
            problems.add("link.monitor.mode", "adaptation needs rates of flows; write flows".to_owned());
        }
    }
}

impl FlowTrigger {
    fn summary(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!(", trigger {json}")
    }

    fn check(&self, known: &HashSet<&str>, monitor: FlowMonitor, at: &str, problems: &mut Problems) {
        check_name(&self.name, "trigger", at, problems);
        let TriggerWhen { flow, queue, mbps, delay_us, missed, link_percent } = &self.when;
        let conditions =
            [queue.is_some(), mbps.is_some(), delay_us.is_some(), *missed, link_percent.is_some()];
        if conditions.iter().filter(|given| **given).count() != 1 {
            let message = "a trigger watches one of queue, mbps, delay_us, missed, link_percent".to_owned();
            problems.add(format!("{at}.when"), message);
        }
        match link_percent {
            None => check_flow(flow.as_ref(), known, &format!("{at}.when.flow"), problems),
            Some(_) if flow.is_some() => {
                problems.add(format!("{at}.when.flow"), "the link is no flow's; leave it out".to_owned());
            }
            Some(_) => {}
        }
        let upper = [("queue", queue), ("delay_us", delay_us), ("link_percent", link_percent)];
        for (name, limit) in upper.into_iter().filter_map(|(name, limit)| Some((name, (*limit)?))) {
            if limit.at <= limit.back {
                let message = format!("{} is not above `back`, {}: it would flap", limit.at, limit.back);
                problems.add(format!("{at}.when.{name}.at"), message);
            }
        }
        if let Some(limit) = mbps.filter(|limit| limit.at == limit.back) {
            let message = format!("{} is `back` too: it would flap", limit.at);
            problems.add(format!("{at}.when.mbps.at"), message);
        }
        if (mbps.is_some() || delay_us.is_some() || *missed) && monitor.mode != MonitorMode::Flows {
            let message = "the trigger needs `link.monitor.mode: flows`".to_owned();
            problems.add(format!("{at}.when"), message);
        }
        if *missed && monitor.window_ms < 100 {
            let message = "promises hold in windows of 100 ms; write link.monitor.window_ms: 100".to_owned();
            problems.add(format!("{at}.when.missed"), message);
        }
        for (which, actions) in [("then", &self.then), ("back", &self.back)] {
            let least = usize::from(which == "then");
            check_count(&format!("{at}.{which}"), actions.len(), least, ACTIONS_MAX, problems);
            for (index, action) in actions.iter().enumerate() {
                action.check(known, &format!("{at}.{which}[{index}]"), problems);
            }
        }
    }
}

impl TriggerAction {
    fn check(&self, known: &HashSet<&str>, at: &str, problems: &mut Problems) {
        let TriggerAction { flow, install, remove, priority, scheme, event } = self;
        let given =
            [install.is_some(), remove.is_some(), priority.is_some(), scheme.is_some(), event.is_some()];
        if given.iter().filter(|given| **given).count() != 1 {
            let message = "an action is one of install, remove, priority, scheme, event".to_owned();
            problems.add(at, message);
        }
        if install.is_some() || remove.is_some() || priority.is_some() {
            check_flow(flow.as_ref(), known, &format!("{at}.flow"), problems);
        }
        for (name, filter) in [("install", install), ("remove", remove)] {
            if let Some(filter) = filter.as_ref().filter(|filter| !is_filter(filter)) {
                let message = format!("{filter:?} is no filter; allowed are drop, drop-when-full, sample-N");
                problems.add(format!("{at}.{name}"), message);
            }
        }
    }
}

fn check_flow(flow: Option<&String>, known: &HashSet<&str>, at: &str, problems: &mut Problems) {
    match flow {
        None => problems.add(at, "a flow is missing: name one of `information_flows`, or default".to_owned()),
        Some(flow) if !known.contains(flow.as_str()) => {
            problems.add(at, format!("{flow:?} is no flow of the policy"));
        }
        Some(_) => {}
    }
}

const fn par() -> Scheme {
    Scheme::PriorityAwareReserved
}

const fn quantum_kib() -> u32 {
    16
}

const fn back_ms() -> u32 {
    100
}

fn read_mbps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, 1, MBPS_MAX, "a number of Mb/s")
}

fn read_quantum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 4_096, "a size in KiB")? as u32)
}

fn read_every<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 1_000_000, "a number of microseconds (0: at every point)")? as u32)
}

fn read_window<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 10_000, "a number of milliseconds")? as u32)
}

fn read_hold<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 3_600_000, "a number of milliseconds")? as u32)
}

fn read_back<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 3_600_000, "a number of milliseconds")? as u32)
}
