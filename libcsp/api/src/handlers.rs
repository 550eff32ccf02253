//! Bodies about supplied handlers: `/v1/handlers` of the proxy node and `/api/v1/handlers`.

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::mgmt::Unreachable;

/// Longest module in bytes.
pub const MODULE_LEN_MAX: usize = 1 << 20;

/// `/v1/handlers`: the modules that a proxy has, and the stages that run them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Handlers {
    /// Modules in the proxy's folder.
    pub modules: Vec<Module>,
    /// Stages of paths that run one.
    pub stages: Vec<SuppliedStage>,
    /// Built-in operators that have asked for a specialised version.
    #[serde(default)]
    pub operators: Vec<SpecialisedOperator>,
}

/// A built-in operator for one format, at one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpecialisedOperator {
    /// Channel or query, message, and what is specialised: `bookings: Flight, row` or `…, condition`.
    pub name: Text,
    /// `specialised: …` or `generic: …`: which version runs, and why.
    pub version: Text,
    /// Messages that the specialised version has processed, those of trials not included.
    pub specialised_total: u64,
}

/// A module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Module {
    /// SHA-256 in hex digits.
    pub module: Text,
    /// Length in bytes.
    pub len: u64,
}

/// A supplied handler in a stage of a channel's path, at one worker. Totals count from when the stage began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuppliedStage {
    /// Channel.
    pub channel: Text,
    /// Handler, as the policy or the client that has brought it names it.
    pub handler: Text,
    /// SHA-256 of its module.
    pub module: Text,
    /// The client that has brought it: a public key, or an address. Empty: the policy names it.
    #[serde(default)]
    pub by: Text,
    /// The channel that the client has asked, whose messages it gets.
    #[serde(default)]
    pub of: Text,
    /// Seconds that it lives without subscribers; 0: the policy names it.
    #[serde(default)]
    pub lease_s: u64,
    /// `running`; `waiting` to be restarted; `passed-by`: stopped, messages go on as they are; `ended`:
    /// stopped, messages end here.
    pub state: Text,
    /// Calls that the module ended itself.
    pub calls_total: u64,
    /// Fuel of all calls, about an instruction each.
    pub fuel_total: u64,
    /// Fuel of the most expensive call.
    pub fuel_max: u64,
    /// Messages that the module gave up.
    pub given_up_total: u64,
    /// Messages given up because the module was stopped.
    pub waited_total: u64,
    /// Messages that passed by the stopped module.
    pub passed_total: u64,
    /// How often the module was restarted.
    pub restarts_total: u64,
    /// How often it was stopped, by reason.
    pub stops: Vec<Stops>,
}

/// How often a module was stopped for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stops {
    /// `fuel`, `epoch`, `stack`, `memory`, `trap`, `pointer`, `output`, `emits`, `copied` or `abi`.
    pub reason: Text,
    /// How often.
    pub total: u64,
}

/// `GET /api/v1/handlers`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HandlersView {
    /// Proxies.
    pub nodes: Vec<NodeHandlers>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// The supplied handlers of one proxy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeHandlers {
    /// Node id.
    pub node: String,
    /// What it has.
    #[serde(flatten)]
    pub handlers: Handlers,
}

/// `POST /api/v1/handlers`: a module was offered to all proxies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PutView {
    /// SHA-256 of the module in hex digits, by which the policy names it.
    pub module: String,
    /// Proxies that have checked, compiled and stored it.
    pub stored: Vec<String>,
    /// Proxies that did not, each with why.
    pub refused: Vec<Unreachable>,
}

/// `DELETE /api/v1/handlers/{module}`: a module was removed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RemovedView {
    /// SHA-256 of the module in hex digits.
    pub module: String,
    /// Proxies that had it and have removed it.
    pub removed: Vec<String>,
    /// Proxies that have not, each with why.
    pub refused: Vec<Unreachable>,
}
