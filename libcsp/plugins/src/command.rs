//! Commands from the manager to the graph of a worker, and the identifiers that they use.

use core::fmt;

use csp_classify::multifield::InstanceId;

use crate::plugin::Plugin;
use crate::settings::Settings;

/// Where instances run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Level {
    /// In the driver (XDP).
    Driver = 1,
    /// In the node's own workers.
    #[default]
    Worker = 2,
    /// On an attached host, across the SAN.
    Host = 3,
}

impl Level {
    /// Returns the level with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Level::Driver),
            2 => Some(Level::Worker),
            3 => Some(Level::Host),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {}", *self as u8)
    }
}

/// Identifies an execution environment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EnvironmentId(pub u16);

/// An execution environment and its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// Its name.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// Whether its instances process packets. Otherwise the rules' fallback applies.
    pub running: bool,
}

/// An output of an instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port {
    /// The instance.
    pub instance: InstanceId,
    /// Its output.
    pub output: u8,
}

/// A change of a worker's graph. Commands are applied in the order in which the manager issues them.
pub enum Command {
    /// Adds an instance. Without a plug-in the instance runs elsewhere: packets for it are handed over, and
    /// are counted there. An instance of level 1 has a plug-in for packets that the driver passes on
    /// unprocessed.
    Create {
        /// Its number.
        id: InstanceId,
        /// Its environment.
        environment: EnvironmentId,
        /// The environment's level.
        level: Level,
        /// The plug-in of this worker.
        plugin: Option<Box<dyn Plugin>>,
    },
    /// Moves an instance to another environment, with its plug-in.
    Place(InstanceId, EnvironmentId, Level),
    /// Replaces the settings of an instance. They have been checked.
    Configure(InstanceId, Box<Settings>),
    /// Removes an instance that nothing leads to.
    Remove(InstanceId),
    /// Connects an output to an instance, or disconnects it.
    Connect(Port, Option<InstanceId>),
    /// Starts or stops an environment.
    Run(EnvironmentId, bool),
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Create { id, environment, level, plugin } => {
                write!(f, "Create({id:?}, {environment:?}, {level}, here: {})", plugin.is_some())
            }
            Command::Place(id, environment, level) => write!(f, "Place({id:?}, {environment:?}, {level})"),
            Command::Configure(id, settings) => write!(f, "Configure({id:?}, {settings:?})"),
            Command::Remove(id) => write!(f, "Remove({id:?})"),
            Command::Connect(port, to) => write!(f, "Connect({port:?}, {to:?})"),
            Command::Run(environment, running) => write!(f, "Run({environment:?}, {running})"),
        }
    }
}
