//! Instances of supplied modules: what each has counted, for as long as it lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use csp_api::events::What;
use csp_sandbox::{Report, ReportStatus};

/// How often instances were stopped for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The reason's name.
    pub reason: &'static str,
    /// How often.
    pub total: u64,
}

/// What an instance has counted, at all workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The instance's name.
    pub instance: String,
    /// Its module.
    pub module: String,
    /// `running`, or `waiting` to be restarted at one of the workers.
    pub state: &'static str,
    /// Calls that the module ended itself.
    pub calls: u64,
    /// Their fuel.
    pub fuel: u64,
    /// The fuel of the most expensive one.
    pub fuel_max: u64,
    /// Packets that came while it waited: the rule's fallback applied.
    pub not_run: u64,
    /// Restarts.
    pub restarts: u64,
    /// Stops by reason; reasons that never were are left out.
    pub stops: Vec<Stop>,
}

/// Where an instance counts.
#[derive(Debug)]
enum Of {
    Wasm(Weak<Report>),
    /// The stand-in of an eBPF object: packets that it did not run for.
    Object(Weak<AtomicU64>),
}

/// An instance at one worker.
#[derive(Debug)]
pub(crate) struct Running {
    pub instance: String,
    pub module: String,
    of: Of,
    /// Stops that were logged.
    logged: u64,
}

impl Running {
    pub fn new(instance: &str, module: &str, report: &Arc<Report>) -> Self {
        let (instance, module) = (instance.to_owned(), module.to_owned());
        Running { instance, module, of: Of::Wasm(Arc::downgrade(report)), logged: 0 }
    }

    pub fn in_driver(instance: &str, module: &str, not_run: &Arc<AtomicU64>) -> Self {
        let (instance, module) = (instance.to_owned(), module.to_owned());
        Running { instance, module, of: Of::Object(Arc::downgrade(not_run)), logged: 0 }
    }

    pub fn is_alive(&self) -> bool {
        match &self.of {
            Of::Wasm(report) => report.strong_count() > 0,
            Of::Object(not_run) => not_run.strong_count() > 0,
        }
    }

    fn status(&self) -> Option<ReportStatus> {
        match &self.of {
            Of::Wasm(report) => report.upgrade().map(|report| report.status()),
            Of::Object(not_run) => not_run.upgrade().map(|not_run| {
                let waited = not_run.load(Ordering::Relaxed);
                ReportStatus { waited, state: "running", ..ReportStatus::default() }
            }),
        }
    }

    /// Returns that the instance was stopped since the last call, if it was.
    pub fn stop(&mut self) -> Option<What> {
        let status = self.status()?;
        let stops: u64 = status.stops.iter().map(|(_, total)| total).sum();
        if stops == std::mem::replace(&mut self.logged, stops) {
            return None;
        }
        let reasons: Vec<String> =
            status.stops.iter().map(|(reason, total)| format!("{total} {}", reason.name())).collect();
        Some(What::PluginStopped {
            instance: (&self.instance).into(),
            module: (&self.module).into(),
            state: status.state.into(),
            reasons: reasons.join(", ").into(),
        })
    }
}

/// Adds up what instances of the same name have counted.
pub(crate) fn status(running: &[Running]) -> Vec<Status> {
    let mut all: Vec<Status> = Vec::new();
    for (of, status) in running.iter().filter_map(|of| Some((of, of.status()?))) {
        let ReportStatus { calls, fuel, fuel_max, waited, restarts, state, .. } = status;
        let mut stops: Vec<Stop> = status
            .stops
            .iter()
            .map(|(reason, total)| Stop { reason: reason.name(), total: *total })
            .collect();
        match all.iter_mut().find(|known| known.instance == of.instance && known.module == of.module) {
            None => all.push(Status {
                instance: of.instance.clone(),
                module: of.module.clone(),
                state,
                calls,
                fuel,
                fuel_max,
                not_run: waited,
                restarts,
                stops,
            }),
            Some(sum) => {
                sum.calls += calls;
                sum.fuel += fuel;
                sum.fuel_max = sum.fuel_max.max(fuel_max);
                sum.not_run += waited;
                sum.restarts += restarts;
                if state != "running" {
                    sum.state = state;
                }
                for known in &mut sum.stops {
                    let same = stops.iter().position(|stop| stop.reason == known.reason);
                    known.total += same.map_or(0, |at| stops.remove(at).total);
                }
                sum.stops.append(&mut stops);
            }
        }
    }
    all
}
