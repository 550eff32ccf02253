//! Handlers that need no format: what passes, drops and doubles messages.

use crate::call::{Call, Emit};
use crate::handler::{Handler, Needs, OUTPUTS_MAX, ParameterError, Stop};
use crate::state::State;

/// The names of the built-in handlers.
pub const NAMES: [&str; 4] = ["forward", "drop-every", "duplicate", "multicast"];

/// Makes a built-in handler.
pub fn make(name: &str) -> Option<Box<dyn Handler>> {
    Some(match name {
        "forward" => Box::new(Forward),
        "drop-every" => Box::new(DropEvery::default()),
        "duplicate" => Box::new(Duplicate::default()),
        "multicast" => Box::new(Multicast::default()),
        _ => return None,
    })
}

/// Emits each message as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forward;

impl Handler for Forward {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        none(parameters)
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        Ok(call.emit(0, Emit::Same)?)
    }
}

/// Drops one message of every `n`; its parameter is `n`. The count is in the state.
#[derive(Clone, Copy, Debug)]
pub struct DropEvery {
    every: u64,
}

impl Default for DropEvery {
    fn default() -> Self {
        DropEvery { every: 2 }
    }
}

impl Handler for DropEvery {
    fn needs(&self) -> Needs {
        Needs { state: 8, ..Needs::default() }
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let every = parameters.parse().ok().filter(|every| *every > 0);
        self.every = every.ok_or_else(|| {
            ParameterError(format!("`{parameters}` is not the number of messages of which one is dropped"))
        })?;
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let count = call.state().number(0) + 1;
        let drops = count >= self.every;
        if !drops {
            call.emit(0, Emit::Same)?;
        }
        call.state().set_number(0, if drops { 0 } else { count });
        Ok(())
    }
}

/// Emits each message several times, one after the other; its parameter is how often.
#[derive(Clone, Copy, Debug)]
pub struct Duplicate {
    times: u32,
}

impl Default for Duplicate {
    fn default() -> Self {
        Duplicate { times: 2 }
    }
}

/// Most copies that [`Duplicate`] emits.
pub const DUPLICATE_MAX: u32 = 64;

impl Handler for Duplicate {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let times = parameters.parse().ok().filter(|times| (1..=DUPLICATE_MAX).contains(times));
        self.times = times.ok_or_else(|| {
            ParameterError(format!("`{parameters}` is not a number of copies from 1 to {DUPLICATE_MAX}"))
        })?;
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        for _ in 0..self.times {
            call.emit(0, Emit::Same)?;
        }
        Ok(())
    }
}

/// Emits each message once to each of its first outputs; its parameter is how many.
#[derive(Clone, Copy, Debug)]
pub struct Multicast {
    outputs: u8,
}

impl Default for Multicast {
    fn default() -> Self {
        Multicast { outputs: 2 }
    }
}

impl Handler for Multicast {
    fn needs(&self) -> Needs {
        Needs { outputs: OUTPUTS_MAX, ..Needs::default() }
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let outputs = parameters.parse().ok().filter(|outputs| (1..=OUTPUTS_MAX).contains(outputs));
        self.outputs = outputs.ok_or_else(|| {
            ParameterError(format!("`{parameters}` is not a number of outputs from 1 to {OUTPUTS_MAX}"))
        })?;
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        for output in 0..self.outputs {
            call.emit(output, Emit::Same)?;
        }
        Ok(())
    }
}

fn none(parameters: &str) -> Result<(), ParameterError> {
    match parameters {
        "" => Ok(()),
        _ => Err(ParameterError(format!("the handler has no parameters, and got `{parameters}`"))),
    }
}
