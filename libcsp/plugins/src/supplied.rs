//! Modules supplied by administrators. They are named by the SHA-256 of their bytes, and instantiated by a
//! runtime outside of this crate.

use core::fmt;

use csp_types::Instant;

use crate::command::Level;
use crate::graph::OUTPUTS_MAX;
use crate::packet::Packet;
use crate::plugin::{Action, Answer, CallError, Effects, Module, Operation, Plugin, PluginError};
use crate::settings::{Kind, Parameter, Settings};

/// The runtime of supplied modules.
pub trait Supply: fmt::Debug + Send + Sync {
    /// Returns the number of outputs of a module; `None` if the module is not available.
    fn outputs(&self, module: &str) -> Option<u8>;

    /// Returns the levels on which a module can run; `None` if the module is not available.
    fn levels(&self, _module: &str) -> Option<&'static [Level]> {
        Some(WASM_LEVELS)
    }

    /// Creates an instance for one worker, on the control thread.
    ///
    /// # Errors
    /// [`PluginError::Supplied`] if the module is not available, cannot start, or refuses its parameters.
    fn make(&self, instance: &str, module: &str, settings: &Settings)
    -> Result<Box<dyn Plugin>, PluginError>;

    /// Receives a module that a network node sends to a plug-in host. The module is checked and compiled in
    /// the background; until that is done [`is_ready`](Self::is_ready) returns false.
    fn offer(&self, _module: &str, _bytes: Vec<u8>) {}

    /// Returns whether an offered module is compiled or refused.
    fn is_ready(&self, _module: &str) -> bool {
        true
    }
}

/// The levels of WebAssembly modules.
pub const WASM_LEVELS: &[Level] = &[Level::Worker, Level::Host];
/// The levels of eBPF objects.
pub const OBJECT_LEVELS: &[Level] = &[Level::Driver];

/// Returns whether a module's name is that of a supplied one: the 64 digits of a SHA-256.
#[must_use]
pub fn is_supplied(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The declaration that all supplied modules share. The runtime knows the outputs and levels of each one.
pub const SUPPLIED: Module = Module {
    name: "supplied",
    levels: &[Level::Driver, Level::Worker, Level::Host],
    outputs: OUTPUTS_MAX as u8,
    parameters: &[Parameter { name: "parameters", kind: Kind::Text, default: Some("") }],
    operations: &[Operation { name: "read", arguments: &[] }],
    make: |_, _| Ok(Box::new(Unsupplied)),
};

/// The runtime used where a policy is only checked and no packet is processed.
struct Unsupplied;

impl Plugin for Unsupplied {
    fn process(&mut self, _now: Instant, _packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        Action::FallBack
    }

    fn configure(&mut self, _settings: &Settings) -> Result<(), PluginError> {
        Ok(())
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        Err(CallError::NoOperation(operation.into()))
    }
}
