//! The control thread: registration, membership, policy, the admin endpoint, signals.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use csp_control::{
    ActivePolicy, ConfigError, ControlError, ControlOptions, ControlPlane, ControlStatus, Membership,
    NodeRecord, exit_code,
};
use csp_lan::af_packet::OpenError;
use csp_telemetry::{
    AdminError, AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, LogError, MetricWriter,
    Readiness,
};
use csp_types::Role;
use tokio::signal::unix::{SignalKind, signal};

use super::admin::{self, Workers};
use super::config::Config;
use super::data_thread::Question;
use super::metrics::WorkerMetrics;
use super::proxies::proxy_specs;
use super::workers::DataWorkers;

/// How long a worker may take to put a policy in force.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);
const STATUS_INTERVAL: Duration = Duration::from_millis(250);

/// Why the daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong beyond its syntax.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log level is wrong.
    #[error("log.level: {0}")]
    Log(#[from] LogError),
    /// A LAN port cannot be opened.
    #[error("lan: {0}")]
    Lan(#[from] OpenError),
    /// A SAN provider cannot be had.
    #[error("san.provider: {provider} does not work here: {reason}")]
    San {
        /// Which provider.
        provider: &'static str,
        /// In its words.
        reason: String,
    },
    /// The admin endpoint cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The control plane refused us.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused something basic.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl DaemonError {
    /// The exit code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::Config(_) | DaemonError::Log(_) => exit_code::CONFIG,
            DaemonError::Lan(_) | DaemonError::San { .. } | DaemonError::Admin(_) => exit_code::UNAVAILABLE,
            DaemonError::Control(error) => error.exit_code(),
            DaemonError::System(_) => exit_code::INTERNAL,
        }
    }
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), DaemonError> {
    let format = match config.log.format {
        csp_control::LogFormat::Text => csp_telemetry::LogFormat::Text,
        csp_control::LogFormat::Json => csp_telemetry::LogFormat::Json,
    };
    csp_telemetry::init_logging(&config.log.level, format)?;
    let mut record = NodeRecord::new(config.node.id, Role::NetworkNode, config.admin.listen);
    record.workers = config.workers.into();
    record.capabilities = vec!["tunnel".to_owned()];
    let workers = DataWorkers::start(&config, &record)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(serve(&config, record, &workers));
    workers.stop();
    result
}

async fn serve(config: &Config, record: NodeRecord, workers: &DataWorkers) -> Result<(), DaemonError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (metrics, readiness) = (Exposition::new(), Readiness::new());
    let admin = start_admin(config, &record, workers, &metrics, &readiness).await?;
    let host = record.host.clone();
    let starting =
        ControlPlane::start(record, &config.etcd, &config.node.state_dir, ControlOptions::default());
    let control = tokio::select! {
        started = starting => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let status = control.status.clone();
    metrics.register(move |out: &mut MetricWriter| policy_metrics(out, &status.borrow()));
    tracing::info!(node = %config.node.id, admin = %admin.address(), "the network node serves");
    let (mut policy, mut membership) = (control.policy.clone(), control.membership.clone());
    policy.mark_changed();
    membership.mark_changed();
    let mut ticks = tokio::time::interval(STATUS_INTERVAL);
    let ended = loop {
        tokio::select! {
            changed = membership.changed() => {
                let now = membership.borrow_and_update().clone();
                if changed.is_ok() {
                    tell_proxies(config, &host, workers, &now);
                }
            }
            changed = policy.changed() => {
                let active = policy.borrow_and_update().clone();
                if let (Ok(()), Some(active)) = (changed, active) {
                    let applied = apply(workers, &active).await;
                    control.ack_applied(active.generation, applied).await;
                }
            }
            _ = ticks.tick() => set_readiness(&readiness, &control.status.borrow(), workers),
            error = control.failed() => break Err(error.into()),
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
        }
    };
    tracing::info!("stopping");
    control.shutdown().await;
    admin.shutdown().await;
    ended
}

async fn start_admin(
    config: &Config,
    record: &NodeRecord,
    workers: &DataWorkers,
    metrics: &Exposition,
    readiness: &Readiness,
) -> Result<AdminServer, DaemonError> {
    metrics.register(BuildInfo::new(Role::NetworkNode.as_str(), config.node.id.as_str()));
    metrics.register(WorkerMetrics(workers.published.clone()));
    readiness.set("control", ConditionState::Failed, "starting");
    let asked = Workers {
        node: config.node.id.to_string(),
        interfaces: config.lan.iter().map(|lan| lan.interface.clone()).collect(),
        mailboxes: workers.mailboxes.clone(),
    };
    let options = AdminOptions {
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        node: serde_json::to_value(record).unwrap_or_default(),
        routes: admin::routes(asked),
    };
    Ok(AdminServer::start(config.admin.listen, options).await?)
}

fn tell_proxies(config: &Config, host: &str, workers: &DataWorkers, membership: &Membership) {
    let proxies = proxy_specs(membership, config.san.provider, host, workers.endpoints);
    for proxy in proxies.iter().filter(|p| p.workers.is_empty()) {
        tracing::warn!(proxy = %proxy.node, "no address of this proxy can be reached by san.provider");
    }
    for mailbox in &workers.mailboxes {
        if let Err(error) = mailbox.send(Question::Proxies(proxies.clone())) {
            tracing::error!(%error, "a data worker did not take the proxies");
        }
    }
}

async fn apply(workers: &DataWorkers, active: &ActivePolicy) -> Result<(), String> {
    let services: Vec<SocketAddr> = active.policy.services.iter().map(|s| (s.vip, s.port).into()).collect();
    let egress: Vec<IpAddr> = active.policy.egress.iter().map(|e| e.address).collect();
    for mailbox in &workers.mailboxes {
        let (services, egress) = (services.clone(), egress.clone());
        let done = mailbox.ask(POLICY_TIMEOUT, |reply| Question::Policy(services, egress, reply)).await;
        done.map_err(|error| format!("a data worker did not take the policy: {error}"))??;
    }
    tracing::info!(generation = active.generation, services = services.len(), "policy in force");
    Ok(())
}

fn set_readiness(readiness: &Readiness, status: &ControlStatus, workers: &DataWorkers) {
    let control = match (status.registered, status.synced()) {
        (true, true) => (ConditionState::Ok, String::new()),
        (false, _) => (ConditionState::Degraded, status.registration_problem.clone()),
        (true, false) => (ConditionState::Degraded, status.sync_problem.clone()),
    };
    readiness.set("control", control.0, control.1);
    let tunnels = workers.published.iter().map(|cell| cell.read().tunnels()).min().unwrap_or_default();
    match tunnels {
        (0, _) => readiness.set("tunnels", ConditionState::Failed, "no proxy is connected"),
        (up, wanted) if up < wanted => {
            let reason = format!("{up} of {wanted} proxy workers are connected");
            readiness.set("tunnels", ConditionState::Degraded, reason);
        }
        _ => readiness.set("tunnels", ConditionState::Ok, ""),
    }
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
