//! Information flows: which messages belong together, how important they are, what they are promised and how
//! much of them may wait.

use std::collections::HashMap;

use csp_config::{Problems, number};
use csp_types::Prefix;
use csp_types::options::Overflow;
use serde::{Deserialize, Deserializer, Serialize};

use super::check::{check_count, check_name};
use super::contexts::number_of;
use super::framing::is_default;
use super::{Channel, Link, Pattern, Policy, PortRange};

/// Most flows of a policy, the default flow not counted.
pub const FLOWS_MAX: usize = 1_024;
/// Most filters before a flow's queue.
pub const FILTERS_MAX: usize = 4;
/// Name of the flow of what no other takes.
pub const DEFAULT_FLOW: &str = "default";
/// Most Mb/s of a promise or link.
pub const MBPS_MAX: u64 = 1_000_000;
/// Most contexts that flows of a worker share.
const CONTEXTS_MAX: u64 = 64;
/// Most messages in a flow's queue.
const QUEUE_MESSAGES_MAX: u64 = 65_536;
/// Most memory of a flow's queue in KiB: what channels may have together.
const QUEUE_KIB_MAX: u64 = 64 << 20;

/// An information flow. The first whose `match` holds takes a message; the flow `default` takes the rest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// 1 to 63 of `a-z 0-9 -`, unique among flows. A flow that keeps its name keeps its queue.
    pub name: String,
    /// Which messages belong to it: all conditions hold. Without any, all do.
    #[serde(default, rename = "match", skip_serializing_if = "is_default")]
    pub predicate: FlowMatch,
    /// A higher number is served first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: u8,
    /// What it is promised while it has messages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reserve: FlowReserve,
    /// Longest message in bytes, all its copies together, for which promises are calculated: short ones let
    /// more be promised.
    #[serde(default = "message_bytes", deserialize_with = "read_message_bytes")]
    pub message_bytes: u32,
    /// What handlers of its channels take for a message, in microseconds of a worker. 0: what is measured.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "read_cost")]
    pub cost_us: u32,
    /// How much of it may wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: FlowQueue,
    /// Filters that a message passes before it is queued: `drop`, `drop-when-full`, `sample-N`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
}

/// Conditions of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowMatch {
    /// The publisher's network.
    #[serde(with = "one_prefix", skip_serializing_if = "Option::is_none")]
    pub source: Option<Prefix>,
    /// The publisher's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port: Option<PortRange>,
    /// The network of the address that it publishes to.
    #[serde(with = "one_prefix", skip_serializing_if = "Option::is_none")]
    pub destination: Option<Prefix>,
    /// The port that it publishes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<PortRange>,
    /// The channel or query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The format, one of the channel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Comparisons of fields with constants, joined by AND, as in queries.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// What a flow is promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowReserve {
    /// Megabits a second of the link, counted in bytes of messages.
    #[serde(deserialize_with = "read_mbps")]
    pub mbps: u64,
    /// Messages a second.
    #[serde(deserialize_with = "read_per_second")]
    pub messages_per_s: u32,
    /// Contexts of `link.contexts` that serve it whenever it has messages, and others while it has none.
    #[serde(deserialize_with = "read_contexts")]
    pub contexts: u16,
}

/// Contexts that process messages of flows: slots of each worker's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowContexts {
    /// How many.
    #[serde(deserialize_with = "read_count")]
    pub count: u16,
    /// Part of a worker's time that all of them have together, in percent.
    #[serde(deserialize_with = "read_percent")]
    pub worker_percent: u8,
}

impl Default for FlowContexts {
    fn default() -> Self {
        FlowContexts { count: 8, worker_percent: 50 }
    }
}

impl FlowContexts {
    pub(super) fn summary(self) -> String {
        format!(", {} contexts in {} % of a worker", self.count, self.worker_percent)
    }
}

/// What may wait of a flow, at each proxy worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowQueue {
    /// Messages.
    #[serde(deserialize_with = "read_messages")]
    pub messages: u32,
    /// Their bytes in all copies, in KiB.
    #[serde(deserialize_with = "read_kib")]
    pub kib: u64,
    /// What becomes of a message that finds it full. Pushers are always held back.
    pub full: Overflow,
}

impl Default for FlowQueue {
    fn default() -> Self {
        FlowQueue { messages: 256, kib: 4_096, full: Overflow::default() }
    }
}

impl Flow {
    pub(super) fn summary(&self) -> String {
        let Flow { name, predicate, priority, reserve, message_bytes, cost_us, queue, before } = self;
        let promise = reserve.summary();
        let cost = if *cost_us > 0 { format!(" of {cost_us} us") } else { String::new() };
        let before = if before.is_empty() { String::new() } else { format!(", before {}", before.join(" ")) };
        format!(
            "{name}{} priority {priority}{promise}, messages of {message_bytes} bytes{cost}, queue of {} and {} KiB {:?}{before}",
            predicate.summary(),
            queue.messages,
            queue.kib,
            queue.full
        )
    }

    /// What it is promised of the link, in bits a second: messages count with their longest length.
    pub fn promised_bits_per_s(&self) -> u64 {
        let FlowReserve { mbps, messages_per_s, .. } = self.reserve;
        let by_messages = u64::from(messages_per_s) * u64::from(self.message_bytes) * 8;
        by_messages.max(mbps.saturating_mul(1_000_000))
    }

    fn check(&self, policy: &Policy, at: &str, problems: &mut Problems) {
        check_name(&self.name, "flow", at, problems);
        if self.name == DEFAULT_FLOW && self.predicate != FlowMatch::default() {
            let message = "the flow `default` takes what no other does; it has no `match`".to_owned();
            problems.add(format!("{at}.match"), message);
        }
        check_count(&format!("{at}.before"), self.before.len(), 0, FILTERS_MAX, problems);
        for (index, filter) in self.before.iter().enumerate() {
            if !is_filter(filter) {
                let message = format!("{filter:?} is no filter; allowed are {FILTERS}");
                problems.add(format!("{at}.before[{index}]"), message);
            }
        }
        if (self.reserve.contexts > 0 || self.cost_us > 0) && !policy.is_processed(self) {
            let field = if self.reserve.contexts > 0 { "reserve.contexts" } else { "cost_us" };
            let message = "contexts process messages of channels with a `path` in the proxy, if there are `link.contexts`".to_owned();
            problems.add(format!("{at}.{field}"), message);
        }
        let FlowMatch { source, destination, channel, format, .. } = &self.predicate;
        if let (Some(source), Some(destination)) = (source, destination)
            && source.address().is_ipv4() != destination.address().is_ipv4()
        {
            let message = format!("{destination} is not of the family of {source}; no message has both");
            problems.add(format!("{at}.match.destination"), message);
        }
        let Some(name) = channel else {
            if format.is_some() {
                let message = "formats are a channel's; name it with `channel`".to_owned();
                problems.add(format!("{at}.match.format"), message);
            }
            return;
        };
        let known = policy.channels.iter().find(|known| known.name == *name);
        let is_query = policy.queries.iter().any(|query| query.name == *name);
        match known {
            None if !is_query => {
                let message = format!("{name:?} is no channel or query of the policy");
                problems.add(format!("{at}.match.channel"), message);
            }
            Some(known) if !known.pool.is_empty() => {
                let message =
                    format!("{name:?} passes messages to servers; flows are of channels without `pool`");
                problems.add(format!("{at}.match.channel"), message);
            }
            Some(known) if known.pattern == Pattern::Push && self.queue.full == Overflow::DropOldest => {
                let message =
                    format!("nothing of {name:?}, a channel with `pattern: push`, is dropped; write hold");
                problems.add(format!("{at}.queue.full"), message);
            }
            _ => {}
        }
        if let Some(format) = format
            && !known.is_some_and(|known| known.formats.contains(format))
        {
            let message = format!("{format:?} is not among the `formats` of {name:?}");
            problems.add(format!("{at}.match.format"), message);
        }
    }
}

impl FlowReserve {
    fn summary(&self) -> String {
        let promised = [
            (self.mbps, "Mb/s"),
            (self.messages_per_s.into(), "messages/s"),
            (self.contexts.into(), "contexts"),
        ];
        let promised: Vec<String> = promised
            .into_iter()
            .filter(|(value, _)| *value > 0)
            .map(|(value, unit)| format!("{value} {unit}"))
            .collect();
        if promised.is_empty() { String::new() } else { format!(", promised {}", promised.join(" and ")) }
    }
}

impl Policy {
    /// Returns whether contexts of flows process messages of a flow: it may have messages of a channel whose
    /// path runs in the proxies.
    pub fn is_processed(&self, flow: &Flow) -> bool {
        let mut served = self.served_by_contexts();
        match &flow.predicate.channel {
            Some(name) => served.any(|channel| channel.name == *name),
            None => served.next().is_some(),
        }
    }

    /// Returns whether messages that contexts of flows are to process may be of none of the policy's flows.
    pub fn leaves_to_default(&self) -> bool {
        let takes_all = |flow: &Flow, name: &str| {
            let all = FlowMatch { channel: flow.predicate.channel.clone(), ..FlowMatch::default() };
            flow.predicate == all && all.channel.is_none_or(|known| known == name)
        };
        let mut served = self.served_by_contexts();
        served.any(|channel| {
            !self
                .information_flows
                .iter()
                .any(|flow| flow.name != DEFAULT_FLOW && takes_all(flow, &channel.name))
        })
    }

    /// Returns the channels whose handlers run in contexts of flows, if there are any.
    fn served_by_contexts(&self) -> impl Iterator<Item = &Channel> {
        let has_contexts = self.link.as_ref().is_some_and(|link| link.contexts.is_some());
        let is_local = |channel: &&Channel| {
            let stages = channel.stages();
            !stages.is_empty() && stages.iter().all(|stage| number_of(&stage.context).is_none())
        };
        self.channels.iter().filter(move |_| has_contexts).filter(is_local)
    }
}

impl FlowMatch {
    fn summary(&self) -> String {
        let FlowMatch { source, source_port, destination, port, channel, format, condition } = self;
        let mut text = String::new();
        let mut add = |what: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!(" {what} {value}");
            }
        };
        add("source", source.map(|prefix| prefix.to_string()));
        add("source_port", source_port.map(|ports| ports.to_string()));
        add("destination", destination.map(|prefix| prefix.to_string()));
        add("port", port.map(|ports| ports.to_string()));
        add("channel", channel.clone());
        add("format", format.clone());
        add("where", condition.clone());
        text
    }
}

const FILTERS: &str = "drop, drop-when-full, sample-N (one message in N passes)";

/// Returns whether a filter of this name stands before queues.
pub(super) fn is_filter(name: &str) -> bool {
    let sample = |text: &str| text.parse::<u16>().is_ok_and(|n| n > 0);
    matches!(name, "drop" | "drop-when-full") || name.strip_prefix("sample-").is_some_and(sample)
}

/// Checks flows and link of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("information_flows", policy.information_flows.len(), 0, FLOWS_MAX, problems);
    let mut names = HashMap::new();
    for (index, flow) in policy.information_flows.iter().enumerate() {
        let at = format!("information_flows[{index}]");
        flow.check(policy, &at, problems);
        if let Some(first) = names.insert(flow.name.as_str(), index) {
            problems.add(
                format!("{at}.name"),
                format!("{:?} is the name of information_flows[{first}] already", flow.name),
            );
        }
    }
    match &policy.link {
        Some(link) => {
            link.check(policy, problems);
            check_promises(policy, link, problems);
        }
        None if policy.information_flows.is_empty() => {}
        None => {
            let message = "flows share an output link; say what it carries, such as `link: {mbps: 1000}`";
            problems.add("information_flows", message.to_owned());
        }
    }
}

/// Checks that the link carries what flows are promised. A proxy holds more than a promise and refuses what
/// it cannot keep; what no proxy could is refused without asking one.
fn check_promises(policy: &Policy, link: &Link, problems: &mut Problems) {
    let most_mbps = link.proxies.iter().map(|proxy| proxy.mbps).fold(link.mbps, u64::max);
    let mut promised = 0u64;
    for (index, flow) in policy.information_flows.iter().enumerate() {
        promised = promised.saturating_add(flow.promised_bits_per_s());
        if promised > most_mbps.saturating_mul(1_000_000) {
            let message = format!(
                "{} Mb/s are promised to this flow and those before it; the link carries {most_mbps}",
                promised as f64 / 1e6
            );
            let field = format!("information_flows[{index}].reserve");
            return problems.add_unless(&["link.mbps", "link.proxies"], field, message);
        }
    }
}

const fn message_bytes() -> u32 {
    64 * 1024
}

fn read_message_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 1 << 30, "a length in bytes")? as u32)
}

fn read_mbps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, 0, MBPS_MAX, "a number of Mb/s (0: none)")
}

fn read_per_second<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 100_000_000, "a number of messages a second (0: none)")? as u32)
}

fn read_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 1_000_000, "a number of microseconds (0: what is measured)")? as u32)
}

fn read_contexts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 0, CONTEXTS_MAX, "a number of contexts (0: none)")? as u16)
}

fn read_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 1, CONTEXTS_MAX, "a number of contexts")? as u16)
}

fn read_percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 1, 100, "a number of percent")? as u8)
}

fn read_messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, QUEUE_MESSAGES_MAX, "a number of messages")? as u32)
}

fn read_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, 1, QUEUE_KIB_MAX, "a size in KiB")
}

mod one_prefix {
    //! A network as text, such as `10.0.0.0/8`.

    use csp_types::Prefix;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::ref_option, reason = "serde gives a reference")]
    pub fn serialize<S: Serializer>(prefix: &Option<Prefix>, serializer: S) -> Result<S::Ok, S::Error> {
        match prefix {
            Some(prefix) => serializer.collect_str(prefix),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Prefix>, D::Error> {
        String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
