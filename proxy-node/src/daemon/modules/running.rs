//! Stages that run modules: what each has counted, for as long as its path lives, and where its memory is
//! released.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use csp_api::events::What;
use csp_api::handlers::{Stops, SuppliedStage};
use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, State, Stop, Tick, Usage};
use csp_sandbox::{Described, Report, Supplied};

/// A stage that runs a module, and its counters.
#[derive(Debug)]
pub(super) struct Running {
    pub channel: String,
    pub handler: String,
    pub module: String,
    /// The client that brought the module, the channel that it asked, and the lease in seconds; `None`: the
    /// policy names the module.
    brought: Option<(String, String, u64)>,
    report: Arc<Report>,
    /// Nobody holds it once the stage is over. `None`: the report has another holder as long as there is a
    /// stage.
    alive: Option<Weak<()>>,
    /// Stops that were logged.
    logged: u64,
}

impl Running {
    /// A stage that a context elsewhere runs.
    pub fn elsewhere(handler: &Described, [channel, name, module]: &[String; 3]) -> Self {
        let (channel, handler_name, module) = (channel.clone(), name.clone(), module.clone());
        let (report, brought) = (handler.report(), None);
        Running { channel, handler: handler_name, module, brought, report, alive: None, logged: 0 }
    }

    pub fn is_alive(&self) -> bool {
        match &self.alive {
            Some(alive) => alive.strong_count() > 0,
            None => Arc::strong_count(&self.report) > 1,
        }
    }

    /// The same of a handler that a client has brought.
    pub fn brought(self, by: &str, of: &str, lease_s: u64) -> Self {
        Running { brought: Some((by.to_owned(), of.to_owned(), lease_s)), ..self }
    }

    /// Returns that the module was stopped since the last call, if it was.
    pub fn stop(&mut self) -> Option<What> {
        let status = self.report.status();
        let stops: u64 = status.stops.iter().map(|(_, total)| total).sum();
        if stops == std::mem::replace(&mut self.logged, stops) {
            return None;
        }
        let reasons: Vec<String> =
            status.stops.iter().map(|(reason, total)| format!("{total} {}", reason.name())).collect();
        Some(What::HandlerStopped {
            channel: (&self.channel).into(),
            handler: (&self.handler).into(),
            module: (&self.module).into(),
            by: self.brought.as_ref().map(|(by, ..)| by.into()).unwrap_or_default(),
            state: status.state.into(),
            reasons: reasons.join(", ").into(),
        })
    }

    /// Returns what is shown of it; `None` once it is over.
    pub fn describe(&self) -> Option<SuppliedStage> {
        let status = self.is_alive().then(|| self.report.status())?;
        let stops =
            status.stops.iter().map(|(reason, total)| Stops { reason: reason.name().into(), total: *total });
        let (by, of, lease_s) = self.brought.clone().unwrap_or_default();
        Some(SuppliedStage {
            by: by.into(),
            of: of.into(),
            lease_s,
            channel: (&self.channel).into(),
            handler: (&self.handler).into(),
            module: (&self.module).into(),
            state: status.state.into(),
            calls_total: status.calls,
            fuel_total: status.fuel,
            fuel_max: status.fuel_max,
            given_up_total: status.given_up,
            waited_total: status.waited,
            passed_total: status.passed,
            restarts_total: status.restarts,
            stops: stops.collect(),
        })
    }
}

/// A supplied handler in a worker. Its memory is released by the thread that receives what is sent to `over`:
/// that takes tens of microseconds, which the worker does not wait for.
#[derive(Debug)]
pub(super) struct Placed {
    /// `None` only while it is dropped.
    handler: Option<Supplied>,
    over: Sender<Supplied>,
    _alive: Arc<()>,
}

impl Placed {
    /// Returns the handler, and what is known of it where it does not run.
    pub fn new(
        handler: Supplied,
        over: Sender<Supplied>,
        [channel, name, module]: [&str; 3],
    ) -> (Self, Running) {
        let alive = Arc::default();
        let running = Running {
            channel: channel.to_owned(),
            handler: name.to_owned(),
            module: module.to_owned(),
            brought: None,
            report: handler.report(),
            alive: Some(Arc::downgrade(&alive)),
            logged: 0,
        };
        (Placed { handler: Some(handler), over, _alive: alive }, running)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // Without a receiver it is released here.
        self.handler.take().into_iter().for_each(|handler| drop(self.over.send(handler)));
    }
}

/// What a handler is that is being dropped.
const OVER: Stop = Stop::Fault("the handler is over");

impl Handler for Placed {
    fn needs(&self) -> Needs {
        self.handler.as_ref().map(Handler::needs).unwrap_or_default()
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.handler.as_ref().is_some_and(|handler| handler.accepts(format))
    }

    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        self.handler.as_ref().map_or(input, |handler| handler.yields(output, input))
    }

    fn configure(&mut self, parameters: &str, state: &mut State) -> Result<(), ParameterError> {
        match &mut self.handler {
            Some(handler) => handler.configure(parameters, state),
            None => Err(ParameterError(OVER.to_string())),
        }
    }

    fn hand_over(&mut self, state: &mut State) -> Option<(u32, &[u8])> {
        self.handler.as_mut()?.hand_over(state)
    }

    fn take_over(&mut self, layout: u32, bytes: &[u8]) -> bool {
        self.handler.as_mut().is_some_and(|handler| handler.take_over(layout, bytes))
    }

    fn usage(&self) -> Usage {
        self.handler.as_ref().map(Handler::usage).unwrap_or_default()
    }

    fn is_ended(&self) -> bool {
        self.handler.as_ref().is_some_and(Handler::is_ended)
    }

    fn keeps_state(&self) -> bool {
        self.handler.as_ref().is_some_and(Handler::keeps_state)
    }

    #[inline]
    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        self.handler.as_mut().ok_or(OVER)?.on_message(call)
    }

    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        self.handler.as_mut().ok_or(OVER)?.on_timer(tick)
    }
}
