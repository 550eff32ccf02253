//! Bodies about packet plug-ins: `/v1/plugins` of the network node and `/api/v1/plugins`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::handlers::{Module, Stops};
use crate::mgmt::Unreachable;

/// Most rows of an operation's answer.
pub const ROWS_MAX: usize = 4096;

/// `/v1/plugins`: what a network node has in front of its flow table and behind it. Totals are those of all
/// workers; they count from when the rule or instance was made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Plugins {
    /// Execution environments.
    pub environments: Vec<Environment>,
    /// Instances.
    pub instances: Vec<Instance>,
    /// Rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// Of all packets.
    pub totals: Totals,
}

/// An execution environment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Name.
    pub name: Text,
    /// 1: driver, 2: the node's workers, 3: attached host.
    pub level: u8,
    /// Whether its instances process packets; otherwise the rules' fallback applies.
    pub running: bool,
}

/// An instance of a plug-in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// Name.
    pub name: Text,
    /// Module.
    pub module: Text,
    /// Environment.
    pub environment: Text,
    /// Settings, defaults included.
    pub settings: Vec<Setting>,
    /// Connections.
    pub outputs: Vec<Connection>,
    /// Packets that it processed; coalesced ones count once.
    pub packets_total: u64,
    /// Bytes of their frames.
    pub bytes_total: u64,
    /// Packets that it dropped.
    pub dropped_total: u64,
    /// Why it does not run, or not for all packets, at the level that it has; absent: it does.
    #[serde(default)]
    pub held: Option<Text>,
    /// Of an instance of a supplied module that the node runs, in its workers or in the driver: what became
    /// of it.
    #[serde(default)]
    pub supplied: Option<Supplied>,
    /// Of an instance whose level the node chooses: why it has it.
    #[serde(default)]
    pub auto: Option<Auto>,
}

/// How a node has placed an instance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Auto {
    /// Why it is at its level, as text.
    pub reason: Text,
    /// Packets per second, the mean of the last few seconds; absent before they were measured.
    pub packets_per_s: Option<u64>,
    /// How often it was moved since the daemon began, or since it was made.
    pub moves_total: u64,
}

/// What became of an instance of a supplied module, at all workers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Supplied {
    /// `running`; `waiting`: a worker has stopped it, and restarts it later; `fallback`: an eBPF object that
    /// does not run at this node.
    pub state: Text,
    /// Why it has that state, where it does not run.
    #[serde(default)]
    pub reason: Text,
    /// Calls that the module ended itself.
    pub calls_total: u64,
    /// Fuel of all calls, about an instruction each.
    pub fuel_total: u64,
    /// Fuel of the most expensive call.
    pub fuel_max: u64,
    /// Packets that came while it waited: the rule's fallback applied.
    pub not_run_total: u64,
    /// How often it was restarted.
    pub restarts_total: u64,
    /// How often it was stopped, by reason.
    pub stops: Vec<Stops>,
}

/// `/v1/plugin-modules`: the supplied modules of a network node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoredModules {
    /// Modules in the node's folder.
    pub modules: Vec<Module>,
}

/// `GET /api/v1/plugin-modules`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModulesView {
    /// Network nodes.
    pub nodes: Vec<NodeModules>,
    /// Network nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// The supplied modules of one network node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeModules {
    /// Node id.
    pub node: String,
    /// What it has.
    #[serde(flatten)]
    pub stored: StoredModules,
}

/// A setting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// Name.
    pub name: Text,
    /// Value, as text.
    pub value: Text,
}

/// A connection of an output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Output.
    pub output: u8,
    /// The instance that gets its packets.
    pub to: Text,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Name.
    pub name: Text,
    /// Priority; the lowest that matches decides.
    pub priority: u32,
    /// Conditions.
    #[serde(rename = "match")]
    pub conditions: Text,
    /// Instance.
    pub plugin: Text,
    /// `pass` or `drop`.
    pub fallback: Text,
    /// Where packets that are received meet it first: 1 in the driver, 2 in the node's workers.
    #[serde(default)]
    pub level: u8,
    /// A rule that matches all that this one matches, before it.
    pub covered_by: Option<Text>,
    /// Packets that it decided on; coalesced ones count once.
    pub packets_total: u64,
    /// Bytes of their frames.
    pub bytes_total: u64,
}

/// Totals of all packets that rules led to plug-ins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Packets that were classified.
    pub classified: u64,
    /// Of these, those that the flow cache answered.
    pub cached: u64,
    /// Packets that a rule led to a plug-in.
    pub entered: u64,
    /// Packets that were routed afterwards.
    pub passed: u64,
    /// Packets that a plug-in dropped.
    pub dropped: u64,
    /// Packets transmitted on an interface by a plug-in's word.
    pub transmitted: u64,
    /// Packets routed because their plug-in's environment does not run.
    pub fallback_passed: u64,
    /// Packets dropped because their plug-in's environment does not run.
    pub fallback_dropped: u64,
    /// Packets dropped because they went through too many plug-ins.
    pub dropped_hops: u64,
    /// Frames for an interface that the node does not have, or that cannot be transmitted as they came.
    pub untransmitted: u64,
    /// Packets that plug-in hosts got (level 3).
    #[serde(default)]
    pub hosted: u64,
    /// Of these, packets that were lost: their host died, or passed them over.
    #[serde(default)]
    pub host_lost: u64,
    /// Packets dropped because a plug-in host or the link to it had no room, or because too many waited for a
    /// change of plug-ins.
    #[serde(default)]
    pub host_full: u64,
    /// Records of plug-in hosts that were refused: about packets that they did not have, or wrong in
    /// themselves.
    #[serde(default)]
    pub host_refused: u64,
    /// Calls of plug-ins by plug-ins.
    pub calls: u64,
    /// Of these, those that failed.
    pub calls_failed: u64,
}

/// The body that calls an operation which changes something.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CallBody {
    /// Arguments by name, as text.
    #[serde(default)]
    pub arguments: BTreeMap<String, String>,
}

/// An operation's answer: the rows of all workers, added by key.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CallAnswer {
    /// Rows, at most [`ROWS_MAX`].
    pub rows: Vec<Row>,
    /// There were more.
    pub truncated: bool,
}

/// A row of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// What it is about; empty: the instance.
    pub key: Text,
    /// Further text.
    pub note: Text,
    /// Numbers.
    pub numbers: Vec<Number>,
}

/// A number with its name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Number {
    /// Name.
    pub name: Text,
    /// Value.
    pub value: u64,
}

/// `GET /api/v1/plugins`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PluginsView {
    /// Network nodes.
    pub nodes: Vec<NodePlugins>,
    /// Network nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// What one network node has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePlugins {
    /// Node id.
    pub node: String,
    /// What it has.
    #[serde(flatten)]
    pub plugins: Plugins,
}

/// `GET` and `POST /api/v1/plugins/{instance}/{operation}`: an operation was executed at all network nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CallView {
    /// Network nodes that executed it.
    pub nodes: Vec<NodeAnswer>,
    /// Network nodes that did not, each with why.
    pub refused: Vec<Unreachable>,
}

/// What one network node answered.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Node id.
    pub node: String,
    /// Its answer.
    #[serde(flatten)]
    pub answer: CallAnswer,
}
