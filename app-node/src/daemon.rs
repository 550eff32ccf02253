//! The daemon around the agent: one thread with control plane, admin endpoint, agent and signals.

mod admin;
mod relay_thread;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use csp_control::{
    ClusterKey, ConfigError, ControlError, ControlOptions, ControlPlane, ControlStatus, Membership,
    NodeRecord, exit_code,
};
use csp_telemetry::{
    AdminError, AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, LogError, MetricWriter,
    Readiness,
};
use csp_types::Role;
use csp_wire::agent::{LIST_MAX, PATH_LEN_MAX};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::agent::{self, AgentError, AgentOptions, Choice, Directory, Processes, ProxyEntry};
use crate::config::{Config, Connect, Listen};
use crate::custody::{self, Custodian, CustodyOptions};
use crate::relay::{Target, path_of};
use relay_thread::RelayThread;

const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Why the daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong beyond its syntax.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log level is wrong.
    #[error("log.level: {0}")]
    Log(#[from] LogError),
    /// The agent's socket cannot be had.
    #[error(transparent)]
    Agent(#[from] AgentError),
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
            DaemonError::Agent(_) | DaemonError::San { .. } | DaemonError::Admin(_) => exit_code::UNAVAILABLE,
            DaemonError::Control(error) => error.exit_code(),
            DaemonError::System(_) => exit_code::INTERNAL,
        }
    }
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    let format = match config.log.format {
        csp_control::LogFormat::Text => csp_telemetry::LogFormat::Text,
        csp_control::LogFormat::Json => csp_telemetry::LogFormat::Json,
    };
    csp_telemetry::init_logging(&config.log.level, format)?;
    raise_descriptor_limit();
    let key = ClusterKey::load(&config.node.cluster_key_file)?;
    let mut record = NodeRecord::new(config.node.id, Role::AppNode, config.admin.listen);
    record.capabilities = vec!["agent".to_owned()];
    let relay = RelayThread::start(config, &record, &key)?;
    record.capabilities.extend(relay.is_some().then(|| "relay".to_owned()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, serve(config, &key, record, relay.as_ref()));
    let _ = std::fs::remove_file(&config.socket);
    relay.into_iter().for_each(RelayThread::stop);
    result
}

/// Each connection in custody takes a descriptor; what the operator allows at most is allowed.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

async fn serve(
    config: &Config,
    key: &ClusterKey,
    record: NodeRecord,
    relay: Option<&RelayThread>,
) -> Result<(), DaemonError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let host = record.host.clone();
    let processes = Rc::new(RefCell::new(Processes::new(config.capacity.processes, config.capacity.exited)));
    let (metrics, readiness) = (Exposition::new(), Readiness::new());
    metrics.register(BuildInfo::new(Role::AppNode.as_str(), config.node.id.as_str()));
    relay.into_iter().for_each(|relay| metrics.register(relay.metrics()));
    readiness.set("control", ConditionState::Failed, "starting");
    let (tell, directory) = watch::channel(Directory::default());
    let (routes, questions) = admin::routes(config.node.id.to_string(), &metrics, directory.clone());
    let node = serde_json::to_value(&record).unwrap_or_default();
    let custodian = Arc::new(custody::start(custody_options(config, key))?);
    metrics.register(custodian.metrics());
    let options = AdminOptions { metrics: metrics.clone(), readiness: readiness.clone(), node, routes };
    let admin = AdminServer::start(config.admin.listen, options).await?;
    tokio::task::spawn_local(admin::answer(questions, processes.clone()));

    let serving = agent::serve(agent_options(config, key, custodian), directory, processes.clone());
    tokio::pin!(serving);
    let starting =
        ControlPlane::start(record, &config.etcd, &config.node.state_dir, ControlOptions::default());
    let control = tokio::select! {
        started = starting => started?,
        ended = &mut serving => return Ok(ended?),
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let status = control.status.clone();
    metrics.register(move |out: &mut MetricWriter| policy_metrics(out, &status.borrow()));
    tracing::info!(node = %config.node.id, socket = %config.socket.display(), admin = %admin.address(), "the agent serves");
    let (mut policy, mut membership) = (control.policy.clone(), control.membership.clone());
    policy.mark_changed();
    membership.mark_changed();
    let mut ticks = tokio::time::interval(STATUS_INTERVAL);
    let ended = loop {
        tokio::select! {
            changed = membership.changed() => {
                let known = membership.borrow_and_update().clone();
                if changed.is_ok() {
                    let proxies = proxies(config, &known, &host, relay).await;
                    tell.send_if_modified(|d| {
                        let before = std::mem::replace(&mut d.proxies, proxies);
                        before != d.proxies
                    });
                }
            }
            changed = policy.changed() => {
                let active = policy.borrow_and_update().clone();
                if let (Ok(()), Some(active)) = (changed, active) {
                    let connect = match config.accelerate.connect {
                        Connect::Policy => Directory::destinations_of(&active.policy),
                        Connect::Off => Vec::new(),
                    };
                    let programs = active.policy.programs.clone();
                    tell.send_if_modified(|d| {
                        let before = std::mem::replace(&mut d.connect, connect);
                        let rules = std::mem::replace(&mut d.programs, programs);
                        before != d.connect || rules != d.programs
                    });
                    control.ack_applied(active.generation, Ok(())).await;
                }
            }
            _ = ticks.tick() => set_readiness(&readiness, &control.status.borrow(), tell.borrow().proxies.len()),
            ended = &mut serving => break ended.map_err(DaemonError::from),
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

/// The proxy workers that processes are told of: those that they reach themselves, and those that the relay listens for.
async fn proxies(
    config: &Config,
    membership: &Membership,
    host: &str,
    relay: Option<&RelayThread>,
) -> Vec<ProxyEntry> {
    let carried = relay.map_or(&[][..], |relay| &relay.providers);
    let mut choice = Choice::of(membership, host, config.san.provider, carried);
    let Some(relay) = relay else { return choice.near };
    match relay.set_targets(choice.far).await {
        Ok(targets) => {
            let path = |t: &Target| path_of(&config.node.run_dir, config.node.id, t.node, t.worker);
            let entry = |t: &Target| ProxyEntry {
                node: t.node,
                worker: t.worker,
                path: path(t).to_string_lossy().into_owned(),
                provider: t.provider,
                address: t.address.to_string(),
                direct: t.address_of_verbs().filter(|_| config.san.direct),
            };
            choice.near.extend(targets.iter().map(entry).filter(|entry| entry.path.len() <= PATH_LEN_MAX));
            choice.near.truncate(LIST_MAX);
        }
        Err(error) => tracing::error!(%error, "the relay did not take the list of proxies"),
    }
    choice.near
}

fn custody_options(config: &Config, key: &ClusterKey) -> CustodyOptions {
    let key = csp_transport::ClusterKey::from_bytes(*key.as_bytes());
    CustodyOptions { node: config.node.id, key, seed: rand::random() }
}

fn agent_options(config: &Config, key: &ClusterKey, custodian: Arc<Custodian>) -> AgentOptions {
    AgentOptions {
        node: config.node.id,
        socket: config.socket.clone(),
        key: csp_transport::ClusterKey::from_bytes(*key.as_bytes()),
        listen: match &config.accelerate.listen {
            Listen::All => None,
            Listen::Ports(ports) => Some(ports.clone()),
        },
        loopback: config.accelerate.loopback,
        users: config.users.clone(),
        custodian: Some(custodian),
    }
}

fn set_readiness(readiness: &Readiness, status: &ControlStatus, proxies: usize) {
    let control = match (status.registered, status.synced()) {
        (true, true) => (ConditionState::Ok, String::new()),
        (false, _) => (ConditionState::Degraded, status.registration_problem.clone()),
        (true, false) => (ConditionState::Degraded, status.sync_problem.clone()),
    };
    readiness.set("control", control.0, control.1);
    match proxies {
        0 => readiness.set("proxies", ConditionState::Degraded, "no proxy can be reached"),
        _ => readiness.set("proxies", ConditionState::Ok, ""),
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
