//! A module in a path, behind the interface of built-in handlers.

use std::sync::Arc;

use csp_handlers::{
    Call, Emit, FormatId, Handler, Needs, OUTPUTS_MAX, ParameterError, State, Stop, Tick, Usage,
};
use csp_types::{Duration, Instant};
use thiserror::Error;

use crate::abi::{self, PARAMETERS_MAX, StateKind};
use crate::bridge::{Bridge, Quiet};
use crate::engine::{AdmissionError, Reservation};
use crate::fields::Fields;
use crate::guest::Facts;
use crate::instance::{Instance, Returned};
use crate::module::{Module, Sha256};
use crate::report::Report;
use crate::stopped::{Reason, Stopped};
use crate::supervisor::{Gate, StopPolicy, Supervisor};

/// Why a module does not become a handler.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StartError {
    /// There is no room for one more instance.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// It was stopped while it started.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// It refuses its parameters.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
}

/// Formats that a module processes and yields, asked for once.
pub(crate) type Formats = Vec<(FormatId, bool, [FormatId; OUTPUTS_MAX as usize])>;

/// A module as a handler. Its memory is reserved for as long as it lives.
pub struct Supplied {
    pub(crate) module: Arc<Module>,
    /// `None` after it was stopped, until it is restarted.
    pub(crate) instance: Option<Instance>,
    pub(crate) parameters: Arc<str>,
    fields: Arc<dyn Fields>,
    pub(crate) formats: Formats,
    supervisor: Supervisor,
    pub(crate) report: Arc<Report>,
    /// Fuel of a call; `None`: the engine's.
    fuel: Option<u64>,
    _room: Reservation,
}

impl Supplied {
    /// Reserves memory for a module, starts an instance, and sets its parameters. The calling thread is a
    /// background thread: this takes tens of microseconds, and longer if the module's start does.
    ///
    /// # Errors
    /// When there is no room, the module is stopped, or it refuses its parameters.
    pub fn new(
        module: &Arc<Module>,
        fields: Arc<dyn Fields>,
        on_stop: impl Into<StopPolicy>,
        parameters: &str,
    ) -> Result<Self, StartError> {
        let room = module.engine.admit(module.memory_reserved())?;
        let mut state = State::new(&needs_of(module));
        let bridge = &mut Quiet(&mut state);
        let mut instance = Instance::start(module, fields.clone(), bridge)?;
        let parameters = set(&mut instance, bridge, parameters)??;
        if module.optional.hands_over {
            instance.touch();
        }
        let formats = ask_formats(&mut instance, bridge, &*fields)?;
        Ok(Supplied {
            module: module.clone(),
            instance: Some(instance),
            parameters,
            fields,
            formats,
            supervisor: Supervisor::new(on_stop.into()),
            report: Arc::default(),
            fuel: None,
            _room: room,
        })
    }

    /// The same with so much fuel for a call with a message, for the timer, and for each half of handing
    /// state over, instead of the engine's [`Limits::fuel`](crate::Limits::fuel).
    #[must_use]
    pub fn with_fuel(mut self, fuel: u64) -> Self {
        self.fuel = Some(fuel);
        self.instance.iter_mut().for_each(|instance| instance.set_fuel(fuel));
        self
    }

    /// Returns the counters, which outlive the handler.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        self.report.clone()
    }

    /// Returns the module.
    #[must_use]
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Returns the name by which the module is stored.
    #[must_use]
    pub fn sha256(&self) -> Sha256 {
        self.module.sha256()
    }

    /// Lets a message or a period through to the instance; `Some`: what became of it instead.
    #[cold]
    fn gated(&mut self, now: Instant, state: &mut State) -> Result<(), Stop> {
        match self.supervisor.gate(now) {
            Gate::Restart => self.restart(now, state),
            Gate::Wait(_) => {
                self.report.waited();
                Err(Stop::Fault("the module waits to be restarted"))
            }
            Gate::End => {
                self.report.waited();
                Err(Stop::Fault("the module was stopped, and its path is to end"))
            }
            Gate::Run | Gate::PassBy => Ok(()),
        }
    }

    /// Starts a new instance, with the parameters that were in force and the state block as it is.
    fn restart(&mut self, now: Instant, state: &mut State) -> Result<(), Stop> {
        let bridge = &mut Quiet(state);
        let started = Instance::start(&self.module, self.fields.clone(), bridge).and_then(|mut instance| {
            match set(&mut instance, bridge, &self.parameters.clone())? {
                Ok(_) => Ok(instance),
                Err(_) => Err(Stopped { reason: Reason::Abi, function: "configure" }),
            }
        });
        match started {
            Ok(mut instance) => {
                self.fuel.into_iter().for_each(|fuel| instance.set_fuel(fuel));
                self.instance = Some(instance);
                self.supervisor.on_restart(now);
                self.report.restarted();
                Ok(())
            }
            Err(stopped) => Err(self.stop(now, stopped)),
        }
    }

    /// Throws the instance away.
    #[cold]
    fn stop(&mut self, now: Instant, stopped: Stopped) -> Stop {
        self.instance = None;
        self.report.stopped(stopped, self.supervisor.on_stop(now));
        Stop::Fault(stopped.reason.fault())
    }

    /// Throws the instance away after it was stopped by what was no message. The next message starts a new
    /// one, with the parameters that were in force.
    #[cold]
    pub(crate) fn lose(&mut self, stopped: Stopped) {
        self.instance = None;
        self.supervisor.restart_at_once();
        self.report.stopped(stopped, Gate::Restart);
    }

    /// Returns what became of a call.
    #[inline]
    fn returned(
        &mut self,
        now: Instant,
        bridge: &mut dyn Bridge,
        returned: Result<Returned, Stopped>,
    ) -> Result<(), Stop> {
        let returned = match returned {
            Ok(returned) => returned,
            Err(stopped) => return Err(self.stop(now, stopped)),
        };
        self.report.called(returned.fuel);
        if returned.code == abi::OK {
            return Ok(());
        }
        let Some(instance) = &mut self.instance else { return Ok(()) };
        instance.undo(bridge);
        if returned.code == abi::FULL {
            // A module that waits for room that it has would be called for ever.
            return match instance.was_full() {
                true => Err(Stop::Full),
                false => {
                    Err(self.stop(now, Stopped { reason: Reason::Abi, function: "on_message or on_timer" }))
                }
            };
        }
        self.report.given_up();
        Err(Stop::Fault("the module gives the message up"))
    }
}

impl Handler for Supplied {
    fn needs(&self) -> Needs {
        needs_of(&self.module)
    }

    fn accepts(&self, format: FormatId) -> bool {
        accepts(&self.module, &self.formats, format)
    }

    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        yields(&self.formats, output, input)
    }

    fn configure(&mut self, parameters: &str, state: &mut State) -> Result<(), ParameterError> {
        let Some(instance) = &mut self.instance else {
            return Err(ParameterError("the module was stopped, and has no instance".to_owned()));
        };
        // `Supplied::new` has set them.
        if parameters == &*self.parameters {
            return Ok(());
        }
        match set(instance, &mut Quiet(state), parameters) {
            Ok(Ok(set)) => {
                self.parameters = set;
                Ok(())
            }
            Ok(Err(refused)) => Err(refused),
            Err(stopped) => {
                self.lose(stopped);
                Err(ParameterError(stopped.to_string()))
            }
        }
    }

    fn usage(&self) -> Usage {
        Usage { memory: self.module.memory_reserved(), ..self.report.usage() }
    }

    fn is_ended(&self) -> bool {
        self.report.is_ended()
    }

    fn keeps_state(&self) -> bool {
        keeps_state(&self.module)
    }

    fn hand_over(&mut self, state: &mut State) -> Option<(u32, &[u8])> {
        if !self.module.optional.hands_over {
            return None;
        }
        match self.instance.as_mut()?.export(&mut Quiet(state)) {
            Ok(range) => {
                let bytes = self.instance.as_ref()?.memory().get(range)?;
                Some((self.module.declaration().layout, bytes))
            }
            Err(stopped) => {
                self.lose(stopped);
                None
            }
        }
    }

    fn take_over(&mut self, layout: u32, bytes: &[u8]) -> bool {
        let Some(instance) = self.instance.as_mut().filter(|_| self.module.optional.hands_over) else {
            return false;
        };
        // The state block is not its own yet.
        match instance.import(&mut Quiet(&mut State::default()), layout, bytes) {
            Ok(taken) => taken,
            Err(stopped) => {
                self.lose(stopped);
                false
            }
        }
    }

    #[inline]
    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let now = call.now();
        if self.instance.is_none() {
            self.gated(now, call.state())?;
        }
        let Some(instance) = &mut self.instance else {
            call.emit(0, Emit::Same)?;
            self.report.passed();
            return Ok(());
        };
        let message = call.message();
        let facts = Facts {
            now: now.as_nanos(),
            arrived: message.arrived.as_nanos(),
            sequence: message.sequence,
            len: message.len,
        };
        let args = (message.format.0, message.len, u32::from(message.frames));
        let returned = instance.on_message(call, facts, args);
        self.returned(now, call, returned)
    }

    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        let now = tick.now();
        if self.instance.is_none() {
            self.gated(now, tick.state())?;
        }
        let Some(instance) = &mut self.instance else { return Ok(()) };
        let returned = instance.on_timer(tick, Facts { now: now.as_nanos(), ..Facts::default() });
        self.returned(now, tick, returned)
    }
}

impl std::fmt::Debug for Supplied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supplied")
            .field("module", &self.module.sha256())
            .field("supervisor", &self.supervisor)
            .finish_non_exhaustive()
    }
}

/// Returns what a handler of the module needs.
pub(crate) fn needs_of(module: &Module) -> Needs {
    let declared = module.declaration();
    Needs {
        state: declared.state_len,
        more_max: 0,
        outputs: declared.outputs,
        new_len_max: declared.new_len_max,
        period: (declared.period_ms > 0).then(|| Duration::from_millis(u64::from(declared.period_ms))),
        layout: (declared.state != StateKind::Dropped).then_some(declared.layout),
    }
}

/// Returns whether a module has state that it declares to keep.
pub(crate) fn keeps_state(module: &Module) -> bool {
    let declared = module.declaration();
    match declared.state {
        StateKind::Dropped => false,
        StateKind::Kept => declared.state_len > 0,
        StateKind::HandedOver => true,
    }
}

pub(crate) fn accepts(module: &Module, formats: &Formats, format: FormatId) -> bool {
    let known = formats.iter().find(|(known, ..)| *known == format);
    known.map_or(!module.optional.accepts, |(_, accepts, _)| *accepts)
}

pub(crate) fn yields(formats: &Formats, output: u8, input: FormatId) -> FormatId {
    let known = formats.iter().find(|(known, ..)| *known == input);
    known.and_then(|(_, _, yields)| yields.get(usize::from(output)).copied()).unwrap_or(input)
}

type Set = Result<Arc<str>, ParameterError>;

/// Sets parameters. Empty ones are set too: a module may need some.
fn set(instance: &mut Instance, bridge: &mut dyn Bridge, parameters: &str) -> Result<Set, Stopped> {
    if parameters.len() > PARAMETERS_MAX {
        let len = parameters.len();
        return Ok(Err(ParameterError(format!("they have {len} bytes, and may have {PARAMETERS_MAX}"))));
    }
    let parameters: Arc<str> = parameters.into();
    let answer = instance.configure(bridge, parameters.clone())?;
    Ok(answer.map(|()| parameters).map_err(ParameterError))
}

fn ask_formats(
    instance: &mut Instance,
    bridge: &mut dyn Bridge,
    fields: &dyn Fields,
) -> Result<Formats, Stopped> {
    let mut formats = Vec::new();
    for format in fields.formats() {
        let accepts = instance.accepts(bridge, format)?;
        let mut yields = [format; OUTPUTS_MAX as usize];
        for (output, yields) in yields.iter_mut().enumerate().filter(|_| accepts) {
            *yields = instance.yields(bridge, output as u8, format)?;
        }
        formats.push((format, accepts, yields));
    }
    Ok(formats)
}
