//! The control thread of a daemon: registration, membership, policy, the admin endpoint, signals.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use csp_control::{
    ActivePolicy, ControlError, ControlOptions, ControlPlane, ControlStatus, EtcdSection, LogFormat,
    LogSection, Membership, NodeRecord,
};
use csp_telemetry::{
    AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, MetricWriter, Readiness,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::DaemonError;

/// How often [`Event::Tick`] comes.
const TICK: Duration = Duration::from_millis(250);

/// Starts logging as the configuration says.
pub fn init_logging(log: &LogSection) -> Result<(), DaemonError> {
    let format = match log.format {
        LogFormat::Text => csp_telemetry::LogFormat::Text,
        LogFormat::Json => csp_telemetry::LogFormat::Json,
    };
    Ok(csp_telemetry::init_logging(&log.level, format)?)
}

/// SIGTERM and SIGINT, from when this is made on.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens. Must run inside tokio; errors are those of signal handling.
    pub fn new() -> Result<Self, DaemonError> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(StopSignals { terminate, interrupt })
    }

    /// Waits for either; gives its name. Cancel-safe.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! { _ = self.terminate.recv() => "SIGTERM", _ = self.interrupt.recv() => "SIGINT" }
    }
}

/// What a shell is made of.
#[derive(Debug)]
pub struct ShellOptions<'a> {
    /// What is registered.
    pub record: NodeRecord,
    /// Where.
    pub etcd: &'a EtcdSection,
    /// Keeps the last-known-good policy.
    pub state_dir: PathBuf,
    /// Of the admin endpoint.
    pub listen: SocketAddr,
    /// The daemon's own metrics.
    pub metrics: Exposition,
    /// The daemon's own routes on the admin endpoint.
    pub routes: Router,
}

/// What the daemon is to act on.
#[derive(Debug)]
pub enum Event {
    /// Who is there has changed; the first one comes at once.
    Membership(Membership),
    /// To be applied, and acknowledged with [`Shell::ack`]; the first one comes as soon as there is one.
    Policy(ActivePolicy),
    /// Time to look at how the daemon's own parts stand and set [`Shell::readiness`].
    Tick,
    /// It is over: a signal asked to stop, or the control plane refuses us.
    End(Result<(), ControlError>),
}

/// The control thread's part that all daemons share.
#[derive(Debug)]
pub struct Shell {
    /// For `/readyz`. `control` and `policy` are set here, the rest by the daemon.
    pub readiness: Readiness,
    control: ControlPlane,
    admin: AdminServer,
    signals: StopSignals,
    policy: watch::Receiver<Option<ActivePolicy>>,
    membership: watch::Receiver<Membership>,
    ticks: tokio::time::Interval,
}

impl Shell {
    /// Opens the admin endpoint, then registers. `None`: a signal asked to stop meanwhile. Must run inside tokio.
    pub async fn start(options: ShellOptions<'_>) -> Result<Option<Shell>, DaemonError> {
        let ShellOptions { record, etcd, state_dir, listen, metrics, routes } = options;
        let mut signals = StopSignals::new()?;
        let readiness = Readiness::new();
        readiness.set("control", ConditionState::Failed, "starting");
        metrics.register(BuildInfo::new(record.role.as_str(), record.id.as_str()));
        let node = serde_json::to_value(&record).unwrap_or_default();
        let admin = AdminOptions { metrics: metrics.clone(), readiness: readiness.clone(), node, routes };
        let admin = AdminServer::start(listen, admin).await?;
        let (id, role) = (record.id, record.role);
        let control = tokio::select! {
            started = ControlPlane::start(record, etcd, &state_dir, ControlOptions::default()) => started?,
            _ = signals.recv() => return Ok(None),
        };
        let status = control.status.clone();
        metrics.register(move |out: &mut MetricWriter| policy_metrics(out, &status.borrow()));
        tracing::info!(node = %id, admin = %admin.address(), "the {} serves", role.as_str());
        let (mut policy, mut membership) = (control.policy.clone(), control.membership.clone());
        policy.mark_changed();
        membership.mark_changed();
        let ticks = tokio::time::interval(TICK);
        Ok(Some(Shell { readiness, control, admin, signals, policy, membership, ticks }))
    }

    /// What comes next. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                now = changed(&mut self.membership) => return Event::Membership(now),
                active = changed(&mut self.policy) => {
                    if let Some(active) = active {
                        return Event::Policy(active);
                    }
                }
                _ = self.ticks.tick() => {
                    set_readiness(&self.readiness, &self.control.status.borrow());
                    return Event::Tick;
                }
                error = self.control.failed() => return Event::End(Err(error)),
                _ = self.signals.recv() => return Event::End(Ok(())),
            }
        }
    }

    /// Says that the daemon's workers run `generation` now, or why they cannot.
    pub async fn ack(&self, generation: u64, result: Result<(), String>) {
        self.control.ack_applied(generation, result).await;
    }

    /// Takes the registration back and closes the admin endpoint, within four seconds.
    pub async fn shutdown(self) {
        tracing::info!("stopping");
        self.control.shutdown().await;
        self.admin.shutdown().await;
    }
}

/// The next value; never, where nobody can send one any more.
async fn changed<T: Clone>(receiver: &mut watch::Receiver<T>) -> T {
    match receiver.changed().await {
        Ok(()) => receiver.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}

fn set_readiness(readiness: &Readiness, status: &ControlStatus) {
    let (state, reason) = match (status.registered, status.synced()) {
        (true, true) => (ConditionState::Ok, ""),
        (false, _) => (ConditionState::Degraded, status.registration_problem.as_str()),
        (true, false) => (ConditionState::Degraded, status.sync_problem.as_str()),
    };
    readiness.set("control", state, reason);
    match status.active_generation {
        0 => readiness.set("policy", ConditionState::Degraded, "no policy yet"),
        _ => readiness.set("policy", ConditionState::Ok, ""),
    }
}

fn policy_metrics(out: &mut MetricWriter, status: &ControlStatus) {
    let help = "Policy generation by state";
    out.gauge("csp_policy_generation", help, &[("state", "staged")], status.staged_generation as f64);
    out.gauge("csp_policy_generation", help, &[("state", "active")], status.active_generation as f64);
}
