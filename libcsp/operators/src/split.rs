//! Split and multicast: one message to several outputs, each with a condition and a projection of its own.

use std::sync::Arc;

use csp_handlers::{Call, Emit, FormatId, Handler, Needs, OUTPUTS_MAX, ParameterError, State, Stop};

use crate::bind::{self, Bindings, Bound};
use crate::counters::{Counter, claim};
use crate::formats::{Format, FormatSet};
use crate::parameters::{after_word, parts, wrong};
use crate::row::{FORMAT, INVALID, ROW_LEN_MAX, Ready, Room, SLICES, Sent, give_up, room, run};
use crate::select::stateless;

const FINGERPRINT: u64 = 1;

/// Emits each message to up to [`OUTPUTS_MAX`] outputs. The parameters have one part for each output, from 0
/// on, between semicolons: `whole; number, delay WHERE delay > 10; origin, destination`.
///
/// `whole` is the message itself, which all outputs share; the pool counts the references to it and has it
/// back when the last output has sent it. A part without a condition gets a row of each message: parts
/// without any condition are a multicast.
#[derive(Debug)]
pub struct Split {
    bound: Bindings<Vec<Part>>,
    parameters: String,
    room: Room,
}

/// What an output gets.
#[derive(Debug)]
enum Part {
    Whole(Option<Ready>),
    Row(Bound),
}

impl Split {
    /// A split without outputs, before it is configured.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        Split { bound: Bindings::new(formats), parameters: String::new(), room: room(ROW_LEN_MAX) }
    }
}

impl Split {
    /// Returns the number of outputs that parameters describe.
    #[must_use]
    pub fn parts(parameters: &str) -> usize {
        parts(parameters, ';').len()
    }
}

/// The parts of the parameters for one format.
fn bound(set: &FormatSet, format: &Format, parameters: &str) -> Result<Vec<Part>, String> {
    let part = |(output, text): (usize, &&str)| {
        part(set, format, text).map_err(|error| format!("output {output}: {error}"))
    };
    parts(parameters, ';').iter().enumerate().map(part).collect()
}

fn part(set: &FormatSet, format: &Format, text: &str) -> Result<Part, String> {
    let Some(rest) = after_word(text, "whole") else {
        return Ok(Part::Row(bind::row(set, format, text)?));
    };
    match after_word(rest, "where") {
        Some(condition) => Ok(Part::Whole(Some(bind::ready_condition(set, format, condition)?))),
        None if rest.is_empty() => Ok(Part::Whole(None)),
        None => Err(format!("\"{rest}\" stands where only WHERE can")),
    }
}

impl Handler for Split {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { outputs: OUTPUTS_MAX, new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.bound.get(format).is_some()
    }

    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        match self.bound.get(input).and_then(|parts| parts.get(usize::from(output))) {
            Some(Part::Row(bound)) => bound.output,
            // An output without a part gets no messages.
            _ => input,
        }
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let count = parts(parameters, ';').len();
        if count > usize::from(OUTPUTS_MAX) {
            return wrong(format!("{count} parts are more than the {OUTPUTS_MAX} outputs"));
        }
        let set = self.bound.formats().clone();
        self.bound.bind(|_, format| bound(&set, format, parameters))?;
        parameters.clone_into(&mut self.parameters);
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let format = call.message().format;
        if self.bound.get(format).is_none() {
            let (set, parameters) = (self.bound.formats().clone(), &self.parameters);
            self.bound.late(format, |_, format| bound(&set, format, parameters));
        }
        let Some(parts) = self.bound.get_mut(format) else {
            return give_up(call, (Counter::Invalid, FORMAT));
        };
        // What is counted is known when the last output had room.
        let (mut emitted, mut refused, mut failed) = (0, 0, None);
        for (output, part) in parts.iter_mut().enumerate() {
            let output = output as u8;
            let sent = match part {
                Part::Whole(condition) => whole(call, output, condition.as_mut()),
                Part::Row(bound) => run(&mut bound.plan, call, (output, bound.output), &mut self.room),
            };
            match sent {
                Ok(Ok(true)) => emitted += 1,
                Ok(Ok(false)) => refused += 1,
                Ok(Err(problem)) => failed = Some(problem),
                Err(stop) => return Err(stop),
            }
        }
        let state = call.state();
        Counter::Emitted.add(state, emitted);
        Counter::Refused.add(state, refused);
        match failed {
            // Some outputs have it: the message is not given up.
            Some((counter, _)) if emitted > 0 => counter.add(state, 1),
            Some(problem) => return give_up(call, problem),
            None => (),
        }
        Counter::Read.add(call.state(), 1);
        Ok(())
    }
}

fn whole(call: &mut Call<'_>, output: u8, condition: Option<&mut Ready>) -> Sent {
    let accepted = match condition {
        None => true,
        Some(plan) => match plan.accepts_message(call) {
            None => return Ok(Err((Counter::Invalid, SLICES))),
            Some(Err(_)) => return Ok(Err((Counter::Invalid, INVALID))),
            Some(Ok(accepted)) => accepted,
        },
    };
    if accepted {
        call.emit(output, Emit::Same)?;
    }
    Ok(Ok(accepted))
}
