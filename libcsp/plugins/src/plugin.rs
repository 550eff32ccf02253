//! The interface of a plug-in: packets, settings, and the operations that other components call.

use std::collections::HashMap;
use std::sync::Arc;

use csp_classify::multifield::InstanceId;
use csp_types::Instant;

use crate::command::Level;
use crate::hashing::HashKey;
use crate::packet::Packet;
use crate::settings::{Parameter, SettingError, Settings};

/// Fate of a packet after a plug-in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Passes it to the instance connected to this output. An unconnected output leads out of the graph, and
    /// the packet is routed.
    Next(u8),
    /// Drops it.
    Drop,
    /// Transmits it unchanged on this interface, without routing it.
    Transmit(u16),
    /// The plug-in was stopped: the rule's fallback applies.
    FallBack,
}

/// A call of another instance's operation. It is executed after the plug-in has returned, so that no plug-in
/// is entered while another one of the same worker runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The instance.
    pub instance: InstanceId,
    /// The operation.
    pub operation: &'static str,
    /// Its arguments.
    pub arguments: Settings,
}

/// Side effects of a plug-in beside its [`Action`].
pub trait Effects {
    /// Transmits a copy of the frame on an interface.
    fn copy(&mut self, interface: u16, frame: &[u8]);
    /// Calls another instance. Returns false, and counts the failure, if the packet has made as many calls as
    /// allowed.
    fn call(&mut self, call: Call) -> bool;
}

/// Why an instance cannot have certain settings.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PluginError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The setting cannot change without creating the instance again.
    #[error("{0} cannot be changed; create another instance")]
    Fixed(&'static str),
    /// A supplied module is missing, cannot run, or refuses its parameters; with the reason.
    #[error("{0}")]
    Supplied(String),
}

/// Why an operation was not executed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The worker has no such instance.
    #[error("the instance does not exist")]
    NoInstance,
    /// The instance declares no such operation.
    #[error("there is no operation {0}")]
    NoOperation(String),
    /// An argument is wrong.
    #[error(transparent)]
    Argument(#[from] SettingError),
    /// A table is full.
    #[error("no room: {capacity} entries are the most")]
    Full {
        /// Capacity of the table in entries.
        capacity: usize,
    },
    /// The entry to be removed does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
}

/// A row of an answer: a subject, and named numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The subject; empty for the instance itself.
    pub key: String,
    /// Further text.
    pub note: Arc<str>,
    /// Named numbers. Their names are the same in all rows of an operation.
    pub numbers: Vec<(&'static str, u64)>,
}

/// Largest number of rows in a worker's answer; one more row shows that there are more. Longer answers would
/// delay packets.
pub const ROWS_MAX: usize = 4096;

/// An operation's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The operation was executed.
    Done,
    /// Rows. Rows of several workers are merged by key, and their numbers added.
    Rows(Vec<Row>),
    /// Bytes, such as a capture. Those of several workers are concatenated.
    Bytes(Vec<u8>),
}

impl Answer {
    /// Combines the answers of two workers.
    #[must_use]
    pub fn merge(self, other: Answer) -> Answer {
        self.merge_where(other, |_| true)
    }

    /// Combines two answers about the same tables: numbers whose names `adds` accepts are added, others are
    /// taken from `self`.
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

/// Combines a number of two workers' answers according to its name. Numbers are added, except `seconds_left`,
/// of which the longer time is taken; 0 stands for unlimited.
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

/// Creates an instance with these settings. Its tables use the hash key.
pub type Make = fn(&Settings, HashKey) -> Result<Box<dyn Plugin>, PluginError>;

/// A module, of which instances can be created.
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
    /// Creates an instance for level 2, and allocates all memory of its data path.
    pub make: Make,
}

/// An instance in one worker.
pub trait Plugin: Send {
    /// Processes a packet. Does not allocate or wait.
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, effects: &mut dyn Effects) -> Action;

    /// Replaces the settings, between two packets. State is kept where its meaning does not change.
    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError>;

    /// Executes a declared operation, between two packets.
    fn call(&mut self, now: Instant, operation: &str, arguments: &Settings) -> Result<Answer, CallError>;
}
