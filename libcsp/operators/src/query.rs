//! A whole query as a handler: filter, projection, join and windows.

mod setup;

use std::sync::Arc;

use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, State, Stop};
use csp_queries::Plan;

use crate::counters::{Counter, HEADER, claim};
use crate::row::{FORMAT, ROW_LEN_MAX, Room, give_up, room, run};
use setup::SourceTime;
pub use setup::{Limits, QuerySetupError, Time, Unit};

/// Runs a plan over the messages of its sources.
#[derive(Debug)]
pub struct Query {
    plan: Arc<Plan>,
    inputs: Vec<Input>,
    output: FormatId,
    limits: Limits,
    fingerprint: u64,
    room: Room,
}

/// A source.
#[derive(Debug)]
struct Input {
    format: FormatId,
    #[allow(dead_code, reason = "joins and windows read it")]
    time: SourceTime,
}

impl Query {
    /// A query whose source `i` has messages of format `inputs[i].0`, and whose results have the format `output`.
    ///
    /// # Errors
    /// The inputs do not fit the plan, or the plan cannot be run.
    pub fn new(
        plan: Arc<Plan>,
        inputs: &[(FormatId, Time)],
        output: FormatId,
        limits: Limits,
    ) -> Result<Self, QuerySetupError> {
        if inputs.len() != plan.sources.len() {
            return Err(QuerySetupError::Inputs { sources: plan.sources.len(), inputs: inputs.len() });
        }
        if plan.join.is_some() || plan.window.is_some() {
            return Err(QuerySetupError::Unsupported("a query with a join or a window"));
        }
        if !(1..=ROW_LEN_MAX).contains(&limits.result_len) {
            return Err(QuerySetupError::Limit { what: "result_len", value: limits.result_len.into() });
        }
        let input = |(at, (format, time)): (usize, &(FormatId, Time))| {
            Ok(Input { format: *format, time: SourceTime::new(&plan, at, time)? })
        };
        let inputs = inputs.iter().enumerate().map(input).collect::<Result<_, _>>()?;
        Ok(Query { fingerprint: 1, room: room(limits.result_len), plan, inputs, output, limits })
    }

    /// The plan that is run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Handler for Query {
    fn needs(&self) -> Needs {
        Needs { state: HEADER as u32, new_len_max: self.limits.result_len, ..Needs::default() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.inputs.iter().any(|input| input.format == format)
    }

    fn yields(&self, _: u8, _: FormatId) -> FormatId {
        self.output
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        match parameters.trim() {
            "" => Ok(()),
            _ => Err(ParameterError("a query has no parameters beside its text".to_owned())),
        }
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), self.fingerprint);
        let format = call.message().format;
        if !self.inputs.iter().any(|input| input.format == format) {
            return give_up(call, (Counter::Invalid, FORMAT));
        }
        run(&self.plan, call, (0, self.output), &mut self.room)?;
        Counter::Read.add(call.state(), 1);
        Ok(())
    }
}
