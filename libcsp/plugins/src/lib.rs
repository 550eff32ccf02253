//! Packet plug-ins: what is installed and instantiated, how instances are connected, and the graph by which a
//! worker leads a packet through them.
//!
//! ```text
//!   control thread                                    worker
//!   Manager ── commands, in order ──────────────────▶ Graph ── process ──▶ Plugin
//!     modules, instances, connections, environments     │  verdict: pass, drop, transmit, hand over
//!     rules (csp_classify::multifield::Owner) ─ Table ─▶ classifier
//! ```
//!
//! A packet is handed over by a rule of the classifier. It carries the rule and the number of hops, so that
//! it does not match again when it leaves the graph (PromethOS NP, section 3.2). Instances stand in execution
//! environments on three levels; this crate runs those of level 2, the node's own workers, and hands packets
//! over to the others.
//!
//! Sans-I/O: `now` is an argument, packets are bytes of the caller, commands are values that the caller
//! carries.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

pub mod builtin;
mod command;
mod desired;
mod graph;
mod hashing;
mod manager;
mod object;
mod packet;
pub mod pcap;
mod places;
mod plugin;
pub mod remote;
mod settings;
mod supplied;
pub mod text;
mod topology;

pub use command::{Command, Environment, EnvironmentId, Level, Port};
pub use desired::{DRIVER, Desired, DesiredError, DesiredInstance, DesiredRule, HOST, Place, WORKERS};
pub use graph::{CALLS_MAX, Graph, GraphCounters, HOPS_MAX, InstanceCount, OUTPUTS_MAX, Output, Verdict};
pub use hashing::HashKey;
pub use manager::{Manager, ManagerConfig, ManagerError, ObjectKind};
pub use object::{InDriverOnly, OBJECT_NUMBERS_MAX, OBJECT_PARAMETERS_LEN_MAX, ObjectDeclaration};
pub use packet::{Binding, Fallback, Metadata, Packet};
pub use places::{Auto, LevelReason, Move, Node, Observation, Places};
pub use plugin::{
    Action, Answer, Call, CallError, Effects, Make, Module, Operation, Plugin, PluginError, ROWS_MAX, Row,
    combine,
};
pub use settings::{
    FOREVER, Kind, PARAMETERS_MAX, Parameter, SettingError, Settings, Value, parse_duration, parse_number,
};
pub use supplied::{OBJECT_LEVELS, SUPPLIED, Supply, WASM_LEVELS, is_supplied};
