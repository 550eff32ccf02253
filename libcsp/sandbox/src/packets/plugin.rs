//! A module as a plug-in: what is done when it is stopped, and what is known of it.

use std::sync::Arc;

use csp_plugins::{Action, Answer, CallError, Effects, Packet, Plugin, PluginError, Row, Settings};
use csp_types::{Duration, Instant};

use super::instance::Instance;
use super::{PacketModule, Wanted};
use crate::abi::PARAMETERS_MAX;
use crate::engine::Reservation;
use crate::report::Report;
use crate::stopped::{Reason, Stopped};
use crate::supervisor::{Backoff, Finally, Gate, StopPolicy, Supervisor};

/// A module is restarted for as long as it is in the graph, at most every 30 s; meanwhile the rule's fallback
/// applies.
const ON_STOP: StopPolicy = StopPolicy::Restart(BACKOFF, Finally::PassBy);
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    most: Duration::from_secs(30),
    forgiven_after: Duration::from_secs(60),
    restarts_max: u32::MAX,
};

/// Names of the numbers that `read` returns of stops, in the order of [`Reason::ALL`].
const STOPS: [&str; Reason::ALL.len()] = [
    "stops_fuel",
    "stops_epoch",
    "stops_stack",
    "stops_memory",
    "stops_trap",
    "stops_pointer",
    "stops_output",
    "stops_emits",
    "stops_copied",
    "stops_abi",
];

/// A module at one worker. Its memory is reserved for as long as it lives.
pub struct PacketPlugin {
    module: Arc<PacketModule>,
    /// `None` after it was stopped, until it is restarted.
    instance: Option<Instance>,
    parameters: Arc<str>,
    supervisor: Supervisor,
    report: Arc<Report>,
    _room: Reservation,
}

impl PacketPlugin {
    /// Reserves memory, starts an instance, and sets its parameters (setting `parameters`). This takes tens
    /// of microseconds of the calling thread, which is a control thread.
    ///
    /// # Errors
    /// When there is no room, the module is stopped, or it refuses its parameters.
    pub fn new(module: &Arc<PacketModule>, settings: &Settings) -> Result<Self, PluginError> {
        let error = |text: String| PluginError::Supplied(text);
        let room = module.engine.admit(module.memory_reserved()).map_err(|no| error(no.to_string()))?;
        let mut instance = Instance::start(module).map_err(|stopped| error(stopped.to_string()))?;
        let parameters = parameters(settings)?;
        let set = instance.configure(&parameters).map_err(|stopped| error(stopped.to_string()))?;
        set.map_err(|why| error(format!("parameters: {why}")))?;
        Ok(PacketPlugin {
            module: module.clone(),
            instance: Some(instance),
            parameters,
            supervisor: Supervisor::new(ON_STOP),
            report: Arc::default(),
            _room: room,
        })
    }

    /// Returns the counters, which outlive the plug-in.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        self.report.clone()
    }

    /// Starts a new instance if its time has come.
    #[cold]
    fn restart(&mut self, now: Instant) {
        if self.supervisor.gate(now) != Gate::Restart {
            return;
        }
        let started = Instance::start(&self.module).and_then(|mut instance| {
            match instance.configure(&self.parameters)? {
                Ok(()) => Ok(instance),
                Err(_) => Err(Stopped { reason: Reason::Abi, function: "configure" }),
            }
        });
        match started {
            Ok(instance) => {
                self.instance = Some(instance);
                self.supervisor.on_restart(now);
                self.report.restarted();
            }
            Err(stopped) => self.stop(now, stopped),
        }
    }

    /// Throws the instance away.
    #[cold]
    fn stop(&mut self, now: Instant, stopped: Stopped) {
        self.instance = None;
        self.report.stopped(stopped, self.supervisor.on_stop(now));
    }
}

fn parameters(settings: &Settings) -> Result<Arc<str>, PluginError> {
    let text = settings.text("parameters");
    if text.len() > PARAMETERS_MAX {
        let len = text.len();
        return Err(PluginError::Supplied(format!(
            "parameters: they have {len} bytes, and may have {PARAMETERS_MAX}"
        )));
    }
    Ok(text.into())
}

impl Plugin for PacketPlugin {
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        if self.instance.is_none() {
            self.restart(now);
        }
        let Some(instance) = &mut self.instance else {
            self.report.waited();
            return Action::FallBack;
        };
        match instance.process(now, packet) {
            Ok((wanted, fuel)) => {
                self.report.called(fuel);
                match wanted {
                    Wanted::Next(output) => Action::Next(output),
                    Wanted::Drop => Action::Drop,
                    Wanted::Transmit(interface) => Action::Transmit(interface),
                }
            }
            Err(stopped) => {
                self.stop(now, stopped);
                Action::FallBack
            }
        }
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        self.parameters = parameters(settings)?;
        let Some(instance) = &mut self.instance else { return Ok(()) };
        // The policy's check has found that a new instance accepts them: one that does not, for what it has
        // come to be, is replaced by a new one at the next packet.
        let result = match instance.configure(&self.parameters) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => Err(PluginError::Supplied(format!("parameters: {why}"))),
            Err(stopped) => {
                self.report.stopped(stopped, Gate::Restart);
                Err(PluginError::Supplied(stopped.to_string()))
            }
        };
        self.instance = None;
        self.supervisor.restart_at_once();
        result
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        if operation != "read" {
            return Err(CallError::NoOperation(operation.into()));
        }
        let reported = self.report.reported();
        let mut numbers = vec![
            ("calls", reported.calls),
            ("fuel", reported.fuel),
            ("not_run", reported.waited),
            ("restarts", reported.restarts),
        ];
        numbers.extend(STOPS.into_iter().zip(reported.stops));
        let state = self.report.status().state;
        Ok(Answer::Rows(vec![Row { key: String::new(), note: state.into(), numbers }]))
    }
}

impl std::fmt::Debug for PacketPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketPlugin").field("module", &self.module).finish_non_exhaustive()
    }
}
