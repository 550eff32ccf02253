//! The interface of a plug-in: packets, settings, and the operations that others may call.

use std::collections::HashMap;
use std::sync::Arc;

use csp_classify::multifield::InstanceId;
use csp_types::Instant;

use crate::command::Level;
use crate::hashing::HashKey;
use crate::packet::Packet;
use crate::settings::{Parameter, SettingError, Settings};

/// What happens to a packet after a plug-in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// It goes to the instance that is connected to this output. An output without connection leads out of the graph: the
    /// packet is routed.
    Next(u8),
    /// It is dropped.
    Drop,
    /// It is transmitted on this interface as it is, and not routed.
    Transmit(u16),
    /// The plug-in was stopped and does not run: the rule's fallback applies.
    FallBack,
}

/// A call of another instance's operation. It is executed after the plug-in has returned; so no plug-in is entered while
/// another one of the same worker runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The instance.
    pub instance: InstanceId,
    /// The operation.
    pub operation: &'static str,
    /// Its arguments.
    pub arguments: Settings,
}

/// What a plug-in may cause beside its [`Action`].
pub trait Effects {
    /// Transmits a copy of the frame on an interface.
    fn copy(&mut self, interface: u16, frame: &[u8]);
    /// Calls another instance. Returns false if there is no room for a further call of this packet; it is then counted.
    fn call(&mut self, call: Call) -> bool;
}

/// Why an instance cannot have its settings.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PluginError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A setting would need the instance to be created again.
    #[error("{0} cannot be changed; create another instance")]
    Fixed(&'static str),
    /// A supplied module is not here, cannot run, or refuses its parameters; contains why.
    #[error("{0}")]
    Supplied(String),
}

/// Why an operation was not executed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The instance does not exist in this worker.
    #[error("the instance does not exist")]
    NoInstance,
    /// The instance does not declare it.
    #[error("there is no operation {0}")]
    NoOperation(String),
    /// An argument is wrong.
    #[error(transparent)]
    Argument(#[from] SettingError),
    /// A table has no room.
    #[error("no room: {capacity} entries are the most")]
    Full {
        /// Entries that fit.
        capacity: usize,
    },
    /// What was to be removed does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
}

/// A line of an answer: what it is about, and numbers with their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// What the numbers are about; empty if they are about the instance.
    pub key: String,
    /// Further text.
    pub note: Arc<str>,
    /// Numbers with their names, always the same for one operation.
    pub numbers: Vec<(&'static str, u64)>,
}

/// Rows that an answer of a worker has at most, and one more if there are more: longer ones would keep packets waiting.
pub const ROWS_MAX: usize = 4096;

/// An operation's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was done.
    Done,
    /// Numbers. Those of several workers are added by key.
    Rows(Vec<Row>),
    /// Bytes, such as a capture. Those of several workers follow one another.
    Bytes(Vec<u8>),
}

impl Answer {
    /// Combines the answers of two workers.
    #[must_use]
    pub fn merge(self, other: Answer) -> Answer {
        self.merge_where(other, |_| true)
    }

    /// Combines two answers about the same tables: only numbers whose names `adds` accepts are added; others stay as they are here.
    #[must_use]
    pub fn merge_where(self, other: Answer, adds: impl Fn(&str) -> bool) -> Answer {
        match (self, other) {
            (Answer::Rows(mut rows), Answer::Rows(others)) => {
                let places: HashMap<String, usize> =
                    rows.iter().enumerate().map(|(place, row)| (row.key.clone(), place)).collect();
                for other in others {
                    match places.get(&other.key).and_then(|&place| rows.get_mut(place)) {
                        Some(row) => {
                            let pairs = row.numbers.iter_mut().zip(&other.numbers);
                            let pairs = pairs.filter(|(own, _)| adds(own.0));
                            pairs.for_each(|(own, more)| own.1 = combine(own.0, own.1, more.1));
                        }
                        None => rows.push(other),
                    }
                }
                Answer::Rows(rows)
            }
            (Answer::Bytes(mut bytes), Answer::Bytes(other)) => {
                bytes.extend(other);
                Answer::Bytes(bytes)
            }
            (one, Answer::Done) => one,
            (_, other) => other,
        }
    }
}

/// Combines a number of two workers' answers, by its name. Numbers are added, but `seconds_left` is that of the entry that stays longest; 0 is for
/// ever.
#[must_use]
pub fn combine(name: &str, one: u64, other: u64) -> u64 {
    match name {
        "seconds_left" if one == 0 || other == 0 => 0,
        "seconds_left" => one.max(other),
        _ => one.saturating_add(other),
    }
}

/// A declared operation of the control interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: &'static [Parameter],
}

/// Creates an instance with these settings; its tables hash with the key.
pub type Make = fn(&Settings, HashKey) -> Result<Box<dyn Plugin>, PluginError>;

/// What can be instantiated.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Its name.
    pub name: &'static str,
    /// The levels for which there is an implementation.
    pub levels: &'static [Level],
    /// Number of outputs.
    pub outputs: u8,
    /// Settings of an instance.
    pub parameters: &'static [Parameter],
    /// Operations that others may call.
    pub operations: &'static [Operation],
    /// Creates an instance for level 2. All memory of its data path is allocated here.
    pub make: Make,
}

/// An instance at one worker.
pub trait Plugin: Send {
    /// Processes a packet. Does not allocate or wait.
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, effects: &mut dyn Effects) -> Action;

    /// Takes other settings, between two packets. State is kept where its meaning does not change.
    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError>;

    /// Executes an operation that the module declares, between two packets.
    fn call(&mut self, now: Instant, operation: &str, arguments: &Settings) -> Result<Answer, CallError>;
}
