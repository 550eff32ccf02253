//! The control thread of a daemon: registration, membership, policy, the admin endpoint, signals.

use std::time::Duration;

use axum::Router;
use csp_api::events::What;
use csp_control::{
    ActivePolicy, AdminSection, ControlError, ControlOptions, ControlPlane, EtcdAccess, EtcdSection,
    LogSection, Membership, NodeRecord, NodeSection,
};
use csp_identity::{Credentials, UnixTime};
use csp_telemetry::{
    AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, MetricWriter, Readiness,
};
use csp_types::NodeId;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::control_status::{control_metrics, pause_metrics, policy_metrics, set_readiness};
use crate::events::{self, CertificateNotice, Events, Notices};
use crate::thread::Progress;
use crate::{DaemonError, KeyFile, ServiceManager, clock, identity};

/// Interval of [`Event::Tick`].
const TICK: Duration = Duration::from_millis(250);

/// Starts logging as configured.
pub fn init_logging(log: &LogSection) -> Result<(), DaemonError> {
    Ok(csp_telemetry::init_logging(&log.level, log.format)?)
}

/// SIGTERM and SIGINT, which are caught from the creation of this value on.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Installs the handlers. Requires a tokio runtime; errors are those of signal handling.
    pub fn new() -> Result<Self, DaemonError> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(StopSignals { terminate, interrupt })
    }

    /// Waits for either signal; returns its name. Cancel-safe.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! { _ = self.terminate.recv() => "SIGTERM", _ = self.interrupt.recv() => "SIGINT" }
    }
}

/// Options of a shell.
#[derive(Debug)]
pub struct ShellOptions<'a> {
    /// The record to register.
    pub record: NodeRecord,
    /// This node's identity and directories.
    pub node: &'a NodeSection,
    /// Where to register it.
    pub etcd: &'a EtcdSection,
    /// The admin endpoint.
    pub admin: &'a AdminSection,
    /// The daemon's own metrics.
    pub metrics: Exposition,
    /// The daemon's own routes on the admin endpoint.
    pub routes: Router,
    /// The keys of the SAN, to be followed on disk.
    pub keys: Option<KeyFile>,
    /// The data threads, for systemd's watchdog.
    pub threads: Vec<Progress>,
    /// Options of the control plane.
    pub control: ControlOptions,
    /// The node's events.
    pub events: Events,
}

/// An event that the daemon handles.
#[derive(Debug)]
pub enum Event {
    /// The membership changed; the first event is sent at once.
    Membership(Membership),
    /// A policy to apply and acknowledge with [`Shell::ack`]; the first event is sent as soon as there is a
    /// policy.
    Policy(ActivePolicy),
    /// Periodic: the daemon checks the state of its parts and sets [`Shell::readiness`].
    Tick,
    /// The daemon ends: a signal asked it to stop, or the control plane refused it.
    End(Result<(), ControlError>),
}

/// The part of the control thread that all daemons share.
#[derive(Debug)]
pub struct Shell {
    id: NodeId,
    /// Conditions for `/readyz`. The shell sets `control`, `policy` and `state`, the daemon the others.
    pub readiness: Readiness,
    credentials: Option<Credentials>,
    control: ControlPlane,
    admin: AdminServer,
    signals: StopSignals,
    policy: watch::Receiver<Option<ActivePolicy>>,
    membership: watch::Receiver<Membership>,
    ticks: tokio::time::Interval,
    manager: ServiceManager,
    events: Events,
    notices: Notices,
    certificate: CertificateNotice,
    metrics: Exposition,
    pushing: AbortHandle,
}

impl Shell {
    /// Opens the admin endpoint, then registers the node. Returns `None` if a signal requests to stop
    /// meanwhile. Requires a tokio runtime.
    pub fn start(options: ShellOptions<'_>) -> BoxFuture<'_, Result<Option<Shell>, DaemonError>> {
        Self::begin(options).boxed()
    }

    async fn begin(options: ShellOptions<'_>) -> Result<Option<Shell>, DaemonError> {
        let ShellOptions { record, node: own, etcd, admin, metrics, routes, keys, threads, control, events } =
            options;
        let credentials = own.credentials(record.role)?;
        let mut signals = StopSignals::new()?;
        let readiness = Readiness::new();
        readiness.set("control", ConditionState::Failed, "starting");
        metrics.register(BuildInfo::new(record.role.as_str(), record.id.as_str()));
        let node = serde_json::to_value(&record).unwrap_or_default();
        let listen = admin.listen;
        let admin = AdminOptions {
            metrics: metrics.clone(),
            readiness: readiness.clone(),
            node,
            routes: routes.merge(events.route()),
            credentials: credentials.clone(),
            ..AdminOptions::default()
        };
        let admin = AdminServer::start(listen, admin).await?;
        if let Some(credentials) = &credentials {
            identity::watch(credentials, &metrics);
        }
        if let Some(keys) = keys {
            tokio::spawn(keys.follow());
        }
        let etcd = EtcdAccess { section: etcd.clone(), credentials: credentials.clone() };
        let (id, role, state_dir) = (record.id, record.role, own.state_dir(record.role));
        let control = tokio::select! {
            started = ControlPlane::start(record, &etcd, &state_dir, control) => started?,
            _ = signals.recv() => return Ok(None),
        };
        let status = control.status.clone();
        metrics.register(move |out: &mut MetricWriter| {
            let status = status.borrow();
            control_metrics(out, &status);
            policy_metrics(out, &status);
        });
        tracing::info!(node = %id, admin = %admin.address(), "the {} serves", role.as_str());
        let (mut policy, mut membership) = (control.policy.clone(), control.membership.clone());
        let pushing = events::push(events.clone(), id, control.membership.clone(), credentials.clone());
        policy.mark_changed();
        membership.mark_changed();
        let ticks = tokio::time::interval(TICK);
        let all = threads.clone();
        metrics.register(move |out: &mut MetricWriter| pause_metrics(out, &all));
        let manager = ServiceManager::new(threads);
        manager.ready();
        Ok(Some(Shell {
            id,
            readiness,
            credentials,
            control,
            admin,
            signals,
            policy,
            membership,
            ticks,
            manager,
            notices: Notices::new(id.to_string().into()),
            certificate: CertificateNotice::new(id.to_string().into()),
            events,
            metrics,
            pushing: tokio::spawn(pushing).abort_handle(),
        }))
    }

    /// Waits for work that other threads do, and sends keep-alives to systemd meanwhile. The caller bounds
    /// the duration of the work.
    pub async fn while_alive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                _ = self.ticks.tick() => self.manager.alive(clock::now()),
            }
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                now = changed(&mut self.membership) => {
                    let own = now.nodes.get(&self.id);
                    self.readiness.set_draining(own.is_some_and(|own| own.record.draining));
                    return Event::Membership(now);
                }
                active = changed(&mut self.policy) => {
                    if let Some(active) = active {
                        return Event::Policy(active);
                    }
                }
                _ = self.ticks.tick() => {
                    set_readiness(&self.readiness, &self.control.status.borrow());
                    if let Some(credentials) = &self.credentials {
                        identity::set_readiness(&self.readiness, credentials);
                        self.certificate.look(&self.events, &credentials.state().holder, UnixTime::now());
                    }
                    self.manager.alive(clock::now());
                    let status = self.control.status.borrow().clone();
                    self.notices.look(&self.events, &self.readiness, &status, &self.metrics);
                    return Event::Tick;
                }
                error = self.control.failed() => return Event::End(Err(error)),
                _ = self.signals.recv() => return Event::End(Ok(())),
            }
        }
    }

    /// Acknowledges that the daemon's workers use `generation`, or reports why they cannot.
    pub async fn ack(&self, generation: u64, result: Result<(), String>) {
        if let Err(reason) = &result {
            self.events.record(&What::PolicyFailedHere { generation, reason: reason.into() });
        }
        self.control.ack_applied(generation, result).await;
    }

    /// Returns whether this node is registered under a live lease and follows the membership.
    pub fn follows_etcd(&self) -> bool {
        let status = self.control.status.borrow();
        status.registered && status.membership_synced
    }

    /// Repeats the check of policies that the daemon's own check has refused, since what they lacked may be
    /// available by now.
    pub fn recheck_policy(&self) {
        self.control.recheck_policy();
    }

    /// Removes the registration and closes the admin endpoint, within four seconds.
    pub async fn shutdown(self) {
        tracing::info!("stopping");
        self.manager.stopping();
        self.control.shutdown().await;
        self.pushing.abort();
        self.admin.shutdown().await;
    }
}

/// Waits for the next value. Never returns if all senders are dropped.
async fn changed<T: Clone>(receiver: &mut watch::Receiver<T>) -> T {
    match receiver.changed().await {
        Ok(()) => receiver.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}
