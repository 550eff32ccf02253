//! Select, project and sample: at most one result for each message, and no memory of earlier ones.

use std::sync::Arc;

use csp_handlers::{Call, Emit, FormatId, Handler, Needs, ParameterError, State, Stop};

use crate::bind::{self, Bindings, Bound};
use crate::counters::{Counter, HEADER, OWN, claim};
use crate::formats::FormatSet;
use crate::row::{FORMAT, INVALID, ROW_LEN_MAX, Ready, Room, SLICES, count, give_up, room, run};

const FINGERPRINT: u64 = 1;

pub(crate) fn stateless() -> Needs {
    Needs { state: HEADER as u32, ..Needs::default() }
}

/// Emits messages that a condition accepts, as they are. The parameter is the condition; without one all
/// messages pass.
#[derive(Debug)]
pub struct Select {
    bound: Bindings<Ready>,
    condition: String,
}

impl Select {
    /// A selection of all messages.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        Select { bound: Bindings::new(formats), condition: String::new() }
    }
}

impl Handler for Select {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        stateless()
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.condition.is_empty() || self.bound.get(format).is_some()
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let condition = parameters.trim();
        if !condition.is_empty() {
            let set = self.bound.formats().clone();
            self.bound.bind(|_, format| bind::ready_condition(&set, format, condition))?;
        }
        self.condition = condition.to_owned();
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let accepted = if self.condition.is_empty() {
            true
        } else {
            let (format, condition) = (call.message().format, &self.condition);
            if self.bound.get(format).is_none() {
                let set = self.bound.formats().clone();
                self.bound.late(format, |_, format| bind::ready_condition(&set, format, condition));
            }
            let Some(plan) = self.bound.get_mut(format) else {
                return give_up(call, (Counter::Invalid, FORMAT));
            };
            match plan.accepts_message(call) {
                None => return give_up(call, (Counter::Invalid, SLICES)),
                Some(Err(_)) => return give_up(call, (Counter::Invalid, INVALID)),
                Some(Ok(accepted)) => accepted,
            }
        };
        if accepted {
            call.emit(0, Emit::Same)?;
        }
        count(call, Ok(Ok(accepted)))
    }
}

/// Emits a row of columns and expressions for each message. The parameter is a SELECT list.
#[derive(Debug)]
pub struct Project {
    bound: Bindings<Bound>,
    list: String,
    room: Room,
}

impl Project {
    /// A projection without columns, which processes no message before it is configured.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        Project { bound: Bindings::new(formats), list: String::new(), room: room(ROW_LEN_MAX) }
    }
}

impl Handler for Project {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.bound.get(format).is_some()
    }

    fn yields(&self, _: u8, input: FormatId) -> FormatId {
        self.bound.get(input).map_or(FormatId::UNKNOWN, |bound| bound.output)
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let set = self.bound.formats().clone();
        self.bound.bind(|_, format| bind::projection(&set, format, parameters))?;
        parameters.clone_into(&mut self.list);
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let format = call.message().format;
        if self.bound.get(format).is_none() {
            let (set, list) = (self.bound.formats().clone(), &self.list);
            self.bound.late(format, |_, format| bind::projection(&set, format, list));
        }
        let Some(bound) = self.bound.get_mut(format) else {
            return give_up(call, (Counter::Invalid, FORMAT));
        };
        let sent = run(&mut bound.plan, call, (0, bound.output), &mut self.room);
        count(call, sent)
    }
}

/// Emits one message of every `n`, the first included. The parameter is `n`; without one all messages pass.
#[derive(Debug)]
pub struct Sample {
    every: u64,
}

impl Sample {
    /// A sample of all messages.
    #[must_use]
    pub fn new() -> Self {
        Sample { every: 1 }
    }
}

impl Default for Sample {
    fn default() -> Self {
        Self::new()
    }
}

impl Handler for Sample {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        stateless()
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let every = parameters.trim().parse().ok().filter(|every| *every > 0);
        self.every = every.ok_or_else(|| {
            ParameterError(format!("`{parameters}` is not the number of messages of which one is emitted"))
        })?;
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let before = call.state().number(OWN);
        let passes = before == 0;
        if passes {
            call.emit(0, Emit::Same)?;
        }
        let next = if before + 1 >= self.every { 0 } else { before + 1 };
        call.state().set_number(OWN, next);
        count(call, Ok(Ok(passes)))
    }
}
