//! Bodies about information flows and the link that they share: `/v1/quality` of the proxy node and
//! `/api/v1/quality`.

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::mgmt::Unreachable;

/// `/v1/quality`: information flows at a proxy. Totals count from when a worker got its first flow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Quality {
    /// The link, as each worker has it.
    pub links: Vec<Link>,
    /// Flows of each worker.
    pub flows: Vec<InformationFlow>,
}

/// A worker's part of its node's output link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Number of the worker.
    pub worker: u64,
    /// The scheme in force: `RR`, `EAS`, `SA`, `PA`, `PAR`.
    pub scheme: Text,
    /// Capacity of the node's link in bits a second.
    pub capacity_bits_per_s: u64,
    /// What this worker may send of it, in bits a second.
    pub part_bits_per_s: u64,
    /// A generation of flows waits until messages of former flows have left.
    pub waits: bool,
    /// Contexts that flows share; 0: paths come before flows.
    #[serde(default)]
    pub contexts: u64,
    /// Part of the worker's time that all contexts have together, in percent.
    #[serde(default)]
    pub contexts_percent: u64,
    /// Triggers.
    pub triggers: Vec<Trigger>,
}

/// A trigger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trigger {
    /// Its name.
    pub name: Text,
    /// How often it has fired or was released; odd: it has fired.
    pub changes_total: u64,
}

/// An information flow at a worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InformationFlow {
    /// Number of the worker.
    pub worker: u64,
    /// Its name.
    pub name: Text,
    /// Its priority in the policy.
    pub priority: u64,
    /// What it is promised, in bits a second: the higher of its rate and of its messages with their longest
    /// length.
    pub promised_bits_per_s: u64,
    /// Messages a second that it is promised.
    #[serde(default)]
    pub promised_messages_per_s: u64,
    /// Contexts that it is promised.
    #[serde(default)]
    pub contexts: u64,
    /// Messages that contexts have taken.
    #[serde(default)]
    pub processed_total: u64,
    /// Messages that its handlers let not pass.
    #[serde(default)]
    pub absorbed_total: u64,
    /// Messages that handlers have made beside those that they took.
    #[serde(default)]
    pub made_total: u64,
    /// Time of contexts that its messages have had, in ns.
    #[serde(default)]
    pub context_ns_total: u64,
    /// What handlers take for a message, as measured, in ns; 0: nothing was.
    #[serde(default)]
    pub cost_ns: u64,
    /// Messages that wait.
    pub queued_messages: u64,
    /// Their bytes in all copies.
    pub queued_bytes: u64,
    /// Its messages wait for receivers that hold back.
    pub blocked: bool,
    /// Messages that arrived.
    pub offered_total: u64,
    /// Their bytes in all copies.
    pub offered_bytes_total: u64,
    /// Messages released to receivers.
    pub released_total: u64,
    /// Their bytes in all copies.
    pub released_bytes_total: u64,
    /// Messages that a filter before the queue let not pass.
    pub filtered_total: u64,
    /// Messages dropped because the queue was full.
    pub dropped_total: u64,
    /// Times that a publisher was held back.
    pub held_total: u64,
    /// Messages longer than the flow's `message_bytes`.
    pub oversized_total: u64,
    /// Time from arrival to release of all that were released, in ns.
    pub delay_ns_total: u64,
    /// Bits a second that arrived in the meter's last window; 0 unless flows are metered.
    pub arriving_bits_per_s: u64,
    /// Bits a second that left in it.
    pub leaving_bits_per_s: u64,
    /// Mean delay in it, in ns.
    pub delay_mean_ns: u64,
    /// Longest delay in it, in ns.
    pub delay_max_ns: u64,
}

/// `/api/v1/quality`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QualityView {
    /// Proxies.
    pub nodes: Vec<NodeQuality>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// Information flows of a proxy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeQuality {
    /// Node id.
    pub node: String,
    /// What it shows.
    #[serde(flatten)]
    pub quality: Quality,
}
