//! Supplied modules that are eBPF objects: their declaration, and the placeholder of their instances in a
//! worker.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_types::Instant;

use crate::packet::Packet;
use crate::plugin::{Action, Answer, CallError, Effects, Plugin, PluginError, Row};
use crate::settings::Settings;

/// Longest parameters of an object, in bytes.
pub const OBJECT_PARAMETERS_LEN_MAX: usize = 256;
/// Numbers in its parameters that an object can read.
pub const OBJECT_NUMBERS_MAX: usize = 8;

/// What an eBPF object declares (`CSP_XDP` of `csp_xdp.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectDeclaration {
    /// Outputs, 1 to 8.
    pub outputs: u8,
    /// Whether it has parameters.
    pub has_parameters: bool,
    /// The range of its numeric parameters; `None`: the parameters are text.
    pub numbers: Option<(u64, u64)>,
}

impl ObjectDeclaration {
    /// Checks parameters against the declaration.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn check(&self, parameters: &str) -> Result<(), String> {
        let words = parameters.split_ascii_whitespace();
        if parameters.is_empty() {
            return Ok(());
        }
        let mut error = String::from("parameters: ");
        let len = parameters.len();
        if !self.has_parameters {
            let _ = write!(error, "the module has no parameters, and got `{parameters}`");
        } else if len > OBJECT_PARAMETERS_LEN_MAX {
            let _ = write!(error, "have {len} bytes; {OBJECT_PARAMETERS_LEN_MAX} are the most");
        } else if let Some((least, most)) = self.numbers {
            let is_right =
                |word: &str| word.parse::<u64>().is_ok_and(|number| (least..=most).contains(&number));
            if let Some(word) = words.clone().find(|word| !is_right(word)) {
                let _ = write!(error, "`{word}` is no number from {least} to {most}");
            } else if words.count() > OBJECT_NUMBERS_MAX {
                let _ = write!(error, "more than {OBJECT_NUMBERS_MAX} numbers");
            } else {
                return Ok(());
            }
        } else {
            return Ok(());
        }
        Err(error)
    }
}

/// The placeholder of an eBPF instance in a worker, which cannot run it. The rule's fallback applies to
/// packets that arrive there.
#[derive(Debug)]
pub struct InDriverOnly {
    declaration: ObjectDeclaration,
    not_run: Arc<AtomicU64>,
}

impl InDriverOnly {
    /// Creates the placeholder.
    ///
    /// # Errors
    /// [`PluginError::Supplied`] if the parameters are invalid.
    pub fn new(declaration: ObjectDeclaration, settings: &Settings) -> Result<Self, PluginError> {
        declaration.check(settings.text("parameters")).map_err(PluginError::Supplied)?;
        Ok(InDriverOnly { declaration, not_run: Arc::default() })
    }

    /// Returns the counter of packets to which the fallback applied.
    #[must_use]
    pub fn not_run(&self) -> &Arc<AtomicU64> {
        &self.not_run
    }

    /// Returns the row of the operation `read`: packets given to the program, packets that it returned, of
    /// these the dropped ones, packets that the program consumed, and packets that it did not process.
    #[must_use]
    pub fn row(given: u64, returned: u64, dropped: u64, not_run: u64) -> Row {
        let ended = given.saturating_sub(returned);
        let numbers = vec![
            ("given_packets", given),
            ("returned_packets", returned),
            ("dropped_packets", dropped),
            ("ended_packets", ended),
            ("not_run_packets", not_run),
        ];
        Row { numbers, ..Row::default() }
    }
}

impl Plugin for InDriverOnly {
    fn process(&mut self, _now: Instant, _packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        // Only one thread writes.
        self.not_run.store(self.not_run.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Action::FallBack
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        self.declaration.check(settings.text("parameters")).map_err(PluginError::Supplied)
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        match operation {
            "read" => Ok(Answer::Rows(vec![Self::row(0, 0, 0, self.not_run.load(Ordering::Relaxed))])),
            _ => Err(CallError::NoOperation(operation.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_what_the_object_declares() {
        let none = ObjectDeclaration { outputs: 1, has_parameters: false, numbers: None };
        let text = ObjectDeclaration { has_parameters: true, ..none };
        let numbers = ObjectDeclaration { numbers: Some((1, 255)), ..text };
        let cases = [
            (none, "", ""),
            (none, "x", "parameters: the module has no parameters, and got `x`"),
            (text, "any text 9", ""),
            (numbers, "", ""),
            (numbers, "1 255", ""),
            (numbers, "256", "parameters: `256` is no number from 1 to 255"),
            (numbers, "9 -1", "parameters: `-1` is no number from 1 to 255"),
            (numbers, "1 1 1 1 1 1 1 1 1", "parameters: more than 8 numbers"),
        ];
        for (declaration, parameters, error) in cases {
            assert_eq!(declaration.check(parameters).err().unwrap_or_default(), error, "{parameters}");
        }
        let long = "x".repeat(257);
        assert_eq!(text.check(&long), Err("parameters: have 257 bytes; 256 are the most".to_owned()));
    }
}
