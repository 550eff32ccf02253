//! A whole query as a handler: filter, projection, join and windows.

mod groups;
mod hash;
mod join;
mod keep;
mod keys;
mod setup;
mod side;
mod times;
mod union;
mod windowed;
mod windows;

use std::sync::Arc;

use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, State, Stop, Tick};
use csp_queries::Plan;

use crate::choice::Rules;
use crate::counters::{Counter, HEADER, claim, fingerprint};
use crate::row::{FORMAT, ROW_LEN_MAX, Ready, Room, count, give_up, room, run};
use crate::special::Specialiser;
use join::Join;
pub use setup::{Limits, QuerySetupError, Time, Unit};
pub(crate) use times::SOURCES_MAX;
pub(crate) use union::SideBySide;
pub use windowed::ARRIVAL_GRACE;
pub(crate) use windowed::{PERIOD, Windowed};
pub use windows::AGGREGATES_MAX;

/// Runs a plan over the messages of its sources.
///
/// Rows of one message keep its topic and further frames; rows of pairs and windows are messages of one
/// frame.
#[derive(Debug)]
pub struct Query {
    plan: Arc<Plan>,
    inputs: Vec<FormatId>,
    output: FormatId,
    limits: Limits,
    fingerprint: u64,
    needs: Needs,
    run: Run,
}

#[derive(Debug)]
enum Run {
    /// Each message by itself.
    Rows(Box<Ready>, Room),
    Windows(Box<Windowed>),
    Join(Box<Join>),
}

impl Query {
    /// A query whose source `i` has messages of format `inputs[i].0`, and whose results have the format
    /// `output`.
    ///
    /// # Errors
    /// The inputs do not fit the plan, or the plan cannot be run within the limits.
    pub fn new(
        plan: Arc<Plan>,
        inputs: &[(FormatId, Time)],
        output: FormatId,
        limits: Limits,
    ) -> Result<Self, QuerySetupError> {
        if inputs.len() != plan.sources.len() {
            return Err(QuerySetupError::Inputs { sources: plan.sources.len(), inputs: inputs.len() });
        }
        limits.check()?;
        let times: Vec<Time> = inputs.iter().map(|(_, time)| time.clone()).collect();
        let run = if plan.join.is_some() {
            Run::Join(Box::new(Join::new(&plan, &times, output, &limits, HEADER)?))
        } else if plan.window.is_some() {
            Run::Windows(Box::new(Windowed::new(vec![plan.clone()], &times, output, &limits, HEADER)?))
        } else {
            Run::Rows(Box::new(Ready::new(plan.clone())), room(limits.result_len))
        };
        let (state, period) = match &run {
            Run::Rows(..) => (0, None),
            Run::Windows(windows) => (windows.state_len(), windows.has_time().then_some(PERIOD)),
            Run::Join(join) => (join.state_len(), join.has_windows().then_some(PERIOD)),
        };
        // Rows of one message have its topic and further frames.
        let new_len_max = if matches!(run, Run::Rows(..)) { ROW_LEN_MAX } else { limits.result_len };
        let needs = Needs { state: state_len(state)?, new_len_max, period, ..Needs::default() };
        let meaning = format!("{:?} {:?} {inputs:?} {limits:?}", plan.derived.xml, meaning(&plan));
        let inputs = inputs.iter().map(|(format, _)| *format).collect();
        Ok(Query { fingerprint: fingerprint(&meaning), plan, inputs, output, limits, needs, run })
    }

    /// Asks for code that is made for the query, if it treats each message by itself.
    #[must_use]
    pub fn specialised(mut self, specialiser: &Arc<dyn Specialiser>, rules: Rules) -> Self {
        self.run = match self.run {
            Run::Rows(ready, room) => {
                let by = (specialiser.clone(), rules);
                Run::Rows(Box::new(ready.specialised(Some(&by), false)), room)
            }
            other => other,
        };
        self
    }

    /// The plan that is run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The bounds of its state.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// All of a plan that its state depends on.
pub(crate) fn meaning(plan: &Plan) -> impl std::fmt::Debug {
    let sources: Vec<_> =
        plan.sources.iter().map(|source| (source.schema.id, source.message.clone())).collect();
    let columns: Vec<_> = plan.columns.iter().map(|column| (column.source, column.path.clone())).collect();
    let join = plan.join.clone();
    let windows = (plan.window, plan.group_by.clone(), plan.having.clone());
    let parts = (plan.filter.clone(), windows, plan.aggregates.clone());
    let outputs: Vec<_> = plan.outputs.iter().map(|output| output.expr.clone()).collect();
    (sources, columns, join, parts, outputs)
}

/// Checks that the messages of a plan of one source have a time.
pub(crate) fn check_time(plan: &Plan, time: &Time) -> Result<(), QuerySetupError> {
    setup::SourceTime::new(plan, 0, time).map(|_| ())
}

/// The length of a state block.
pub(crate) fn state_len(beside_header: u64) -> Result<u32, QuerySetupError> {
    let len = beside_header.saturating_add(HEADER as u64);
    u32::try_from(len).map_err(|_| QuerySetupError::Limit { what: "bytes of state", value: len })
}

impl Handler for Query {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.inputs.contains(&format)
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
        let Some(source) = self.inputs.iter().position(|input| *input == format) else {
            return give_up(call, (Counter::Invalid, FORMAT));
        };
        match &mut self.run {
            Run::Rows(ready, room) => {
                let sent = run(ready, call, (0, self.output), room);
                count(call, sent)
            }
            Run::Windows(windows) => windows.message(call, source),
            Run::Join(join) => join.message(call, source),
        }
    }

    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        claim(tick.state(), self.fingerprint);
        match &mut self.run {
            Run::Rows(..) => Ok(()),
            Run::Windows(windows) => windows.tick(tick),
            Run::Join(join) => join.tick(tick),
        }
    }
}
