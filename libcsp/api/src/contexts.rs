//! Bodies about contexts, paths and handlers: `/v1/contexts` of the proxy node and `/api/v1/contexts`.

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::mgmt::Unreachable;
use crate::proxy::LostRows;

/// `/v1/contexts`: what runs handlers at a proxy. Totals count from when a worker, or a path, began.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Contexts {
    /// Contexts that have run handlers or are to.
    pub contexts: Vec<Context>,
    /// The stages of all paths, in the order of messages.
    pub stages: Vec<PathStage>,
    /// Handlers in use.
    pub handlers: Vec<Handler>,
}

/// A context of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Context {
    /// Number of the worker.
    pub worker: u64,
    /// Name: `c0`, `c1`, …; `g0`, … for one that is another program.
    pub name: Text,
    /// `own`: the worker's. Of another program: `connected`; `absent`, and messages wait for it; `unused`: no
    /// channel of the worker needs it.
    #[serde(default)]
    pub place: Text,
    /// Messages sent to another program.
    #[serde(default)]
    pub calls_total: u64,
    /// Connections to it that were lost.
    #[serde(default)]
    pub losses_total: u64,
    /// Connections that were ended for what it sent.
    #[serde(default)]
    pub violations_total: u64,
    /// Stages that it runs.
    pub stages: u64,
    /// Messages that wait for them.
    pub waiting: u64,
    /// The most that waited in a queue at any resource-management point.
    pub waiting_max: u64,
    /// Messages processed.
    pub messages_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// Resource-management points.
    pub points_total: u64,
    /// Time in handlers, estimated from the calls that are measured, in ns.
    pub busy_ns_total: u64,
    /// Memory of its handlers' state, in bytes.
    pub state_bytes: u64,
}

/// A stage of a channel's path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathStage {
    /// Number of the worker.
    pub worker: u64,
    /// Channel.
    pub channel: Text,
    /// Number of the format of whose messages the path is; `None`: all.
    pub format: Option<u32>,
    /// The name of that format; empty: all.
    #[serde(default)]
    pub format_name: Text,
    /// `active`; `waiting` until the path that it replaces is empty; `retired`: replaced or removed, and not
    /// empty yet; `ended` by a supplied handler that was stopped: messages are dropped until the path is
    /// replaced.
    pub state: Text,
    /// The stage, from 0 on.
    pub stage: u64,
    /// Handler.
    pub handler: Text,
    /// Context.
    pub context: Text,
    /// Of a stage that the proxy places by itself: why it runs there, and since when. Of one that a context
    /// elsewhere does not run: why.
    #[serde(default)]
    pub why: Text,
    /// How often the proxy has moved it.
    #[serde(default)]
    pub moves_total: u64,
    /// Messages that wait for it.
    pub waiting: u64,
    /// It waits for a later stage, for receivers or for memory.
    pub held: bool,
    /// Messages that entered the path; of the first stage only.
    pub entered_total: u64,
    /// Messages dropped by the path, for any reason; of the first stage only.
    pub dropped_total: u64,
    /// Rows that its operator was given and has not used.
    #[serde(default)]
    pub lost_rows: LostRows,
    /// Messages processed.
    pub messages_total: u64,
    /// Messages emitted.
    pub emitted_total: u64,
    /// Mean time of a call that weighs new ones more, in ns; 0: none was measured.
    pub mean_ns: u64,
    /// Longest time of a call that was measured, in ns.
    pub max_ns: u64,
    /// Times within which half, and 99 of 100, of the recent calls ended, in ns; 0: none was measured.
    #[serde(default)]
    pub p50_ns: u64,
    /// See `p50_ns`.
    #[serde(default)]
    pub p99_ns: u64,
    /// Bytes of the messages processed.
    #[serde(default)]
    pub bytes_total: u64,
    /// Fuel of a supplied handler, about an instruction each.
    #[serde(default)]
    pub fuel_total: u64,
    /// How often a supplied handler was stopped.
    #[serde(default)]
    pub stops_total: u64,
    /// Memory of the handler: its state, and what is reserved for a supplied one.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The same by the formats of messages.
    #[serde(default)]
    pub formats: Vec<FormatProfile>,
}

/// Calls of a handler at one stage with messages of one format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FormatProfile {
    /// Name of the format; `unknown`; `others`: timers, and formats beyond the first 8 of the stage.
    pub format: Text,
    /// Messages processed.
    pub messages_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// Time within which half of the recent calls ended, in ns; 0: none was measured.
    pub p50_ns: u64,
    /// The same of 99 of 100.
    pub p99_ns: u64,
}

/// A handler, over all stages of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Handler {
    /// Number of the worker.
    pub worker: u64,
    /// Name.
    pub name: Text,
    /// Stages that it serves.
    pub stages: u64,
    /// Messages processed.
    pub messages_total: u64,
    /// Messages emitted.
    pub emitted_total: u64,
    /// Calls that waited for room of an output.
    pub full_total: u64,
    /// Calls that the handler has given up.
    pub faults_total: u64,
    /// Stages that began with no state, since the handler refused that of the stage that they replaced.
    #[serde(default)]
    pub state_refused_total: u64,
    /// Mean time of a call, in ns; 0: none was measured.
    pub mean_ns: u64,
    /// Longest time of a call that was measured, in ns.
    pub max_ns: u64,
    /// Times within which half, and 99 of 100, of the recent calls ended, in ns; 0: none was measured.
    #[serde(default)]
    pub p50_ns: u64,
    /// See `p50_ns`.
    #[serde(default)]
    pub p99_ns: u64,
    /// Bytes of the messages processed.
    #[serde(default)]
    pub bytes_total: u64,
    /// Fuel of a supplied handler, about an instruction each.
    #[serde(default)]
    pub fuel_total: u64,
    /// How often a supplied handler was stopped.
    #[serde(default)]
    pub stops_total: u64,
    /// Memory of the handler: its state, and what is reserved for a supplied one.
    #[serde(default)]
    pub memory_bytes: u64,
}

/// `/api/v1/contexts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ContextsView {
    /// Proxies with contexts.
    pub nodes: Vec<NodeContexts>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// Contexts of a proxy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeContexts {
    /// Node id.
    pub node: String,
    /// What it runs.
    #[serde(flatten)]
    pub contexts: Contexts,
}
