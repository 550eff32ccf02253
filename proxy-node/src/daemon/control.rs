//! The control thread: registration, policy, the admin endpoint, signals.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use csp_control::{
    ActivePolicy, ConfigError, ControlError, ControlOptions, ControlPlane, ControlStatus, NodeRecord,
    exit_code,
};
use csp_control::{Congestion, EcnPolicy, TcpOptions};
use csp_tcp::{CongestionControl, EcnMode};
use csp_telemetry::{
    AdminError, AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, LogError, MailboxSender,
    MetricWriter, Readiness, SnapshotCell,
};
use csp_types::Role;
use csp_vi::WaitSet;
use tokio::signal::unix::{SignalKind, signal};

use crate::ProxyWorker;
use crate::core::{CoreConfig, EgressRule, PoolServer, Prefix, ServiceSpec, ServiceTcp};

use super::admin::{self, Workers};
use super::config::Config;
use super::data_thread::{self, Question};
use super::metrics::{Published, WorkerMetrics};
use super::providers;

/// Questions that may wait for one worker.
const MAILBOX_CAPACITY: usize = 64;
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
    /// The SAN cannot be listened on.
    #[error("san: worker {worker} cannot listen on {address}: {reason}")]
    San {
        /// Which worker.
        worker: u8,
        /// Where.
        address: String,
        /// In the provider's words.
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
            DaemonError::San { .. } | DaemonError::Admin(_) => exit_code::UNAVAILABLE,
            DaemonError::Control(error) => error.exit_code(),
            DaemonError::System(_) => exit_code::INTERNAL,
        }
    }
}

/// The data workers as the control thread sees them.
struct DataWorkers {
    mailboxes: Vec<MailboxSender<Question>>,
    published: Vec<Arc<SnapshotCell<Published>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), DaemonError> {
    csp_telemetry::init_logging(&config.log.level, log_format(&config))?;
    let record = NodeRecord::new(config.node.id, Role::ProxyNode, config.admin.listen);
    let (workers, record) = start_workers(&config, record)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(serve(&config, record, &workers));
    for mailbox in &workers.mailboxes {
        let _ = mailbox.send(Question::Stop); // one that is gone has stopped
    }
    for thread in workers.threads {
        let _ = thread.join();
    }
    result
}

fn log_format(config: &Config) -> csp_telemetry::LogFormat {
    match config.log.format {
        csp_control::LogFormat::Text => csp_telemetry::LogFormat::Text,
        csp_control::LogFormat::Json => csp_telemetry::LogFormat::Json,
    }
}

fn start_workers(config: &Config, mut record: NodeRecord) -> Result<(DataWorkers, NodeRecord), DaemonError> {
    let key = csp_control::ClusterKey::load(&config.node.cluster_key_file)?;
    std::fs::create_dir_all(&config.node.run_dir)?;
    let mut all = DataWorkers { mailboxes: Vec::new(), published: Vec::new(), threads: Vec::new() };
    record.workers = config.workers.into();
    record.capabilities = vec!["tcp".to_owned(), "channel".to_owned()];
    for number in 0..config.workers {
        let san = providers::listen(config, &record, &key, number)?;
        let worker = ProxyWorker::new(core_config(config, number), san.tunnels, san.channels);
        record.san.push(san.address);
        let (mailbox, receiver) = csp_telemetry::mailbox::mailbox(MAILBOX_CAPACITY)?;
        let published = Arc::new(SnapshotCell::new(Published::default()));
        let (cell, set) = (Arc::clone(&published), WaitSet::new()?);
        let thread = std::thread::Builder::new()
            .name(format!("data-{number}"))
            .spawn(move || data_thread::run(worker, receiver, &cell, set))?;
        all.mailboxes.push(mailbox);
        all.published.push(published);
        all.threads.push(thread);
    }
    Ok((all, record))
}

fn core_config(config: &Config, worker: u8) -> CoreConfig {
    let connections = config.capacity.connections;
    let block_len = 4 * 1024; // a full segment of copied payload is 17 slices: the batch copies it
    let mut isn_secret = [0; 16];
    isn_secret.copy_from_slice(&rand::random::<u128>().to_le_bytes());
    let tcp = csp_tcp::StackConfig {
        first_label_index: 1 + u32::from(worker) * connections as u32,
        connections,
        half_open: config.capacity.half_open,
        time_wait_entries: connections,
        blocks: (config.capacity.buffers_mib << 20) / block_len,
        block_len,
        receive_window_max: config.tcp.receive_window_kib << 10,
        receive_window_initial: config.tcp.receive_window_initial_kib << 10,
        send_buffer_max: config.tcp.send_window_kib << 10,
        listeners: csp_control::policy::SERVICES_MAX,
        isn_secret,
        rto_min: Duration::from_millis(config.tcp.rto_min_ms),
        time_wait: Duration::from_secs(config.tcp.time_wait_s),
        syn_cookies: config.tcp.syn_cookies.into(),
        ..csp_tcp::StackConfig::default()
    };
    CoreConfig { worker, workers: config.workers, tcp, trace_events: config.capacity.trace_events }
}

async fn serve(config: &Config, record: NodeRecord, workers: &DataWorkers) -> Result<(), DaemonError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (metrics, readiness) = (Exposition::new(), Readiness::new());
    metrics.register(BuildInfo::new(Role::ProxyNode.as_str(), config.node.id.as_str()));
    metrics.register(WorkerMetrics(workers.published.clone()));
    readiness.set("control", ConditionState::Failed, "starting");
    let asked = Workers { node: config.node.id.to_string(), mailboxes: workers.mailboxes.clone() };
    let options = AdminOptions {
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        node: serde_json::to_value(&record).unwrap_or_default(),
        routes: admin::routes(asked),
    };
    let admin = AdminServer::start(config.admin.listen, options).await?;
    let starting =
        ControlPlane::start(record, &config.etcd, &config.node.state_dir, ControlOptions::default());
    let control = tokio::select! {
        started = starting => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let status = control.status.clone();
    metrics.register(move |out: &mut MetricWriter| policy_metrics(out, &status.borrow()));
    tracing::info!(node = %config.node.id, admin = %admin.address(), "the proxy node serves");
    let mut policy = control.policy.clone();
    policy.mark_changed();
    let mut ticks = tokio::time::interval(STATUS_INTERVAL);
    let ended = loop {
        tokio::select! {
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

async fn apply(workers: &DataWorkers, active: &ActivePolicy) -> Result<(), String> {
    let (services, egress) = translate(active);
    for mailbox in &workers.mailboxes {
        let (services, egress) = (services.clone(), egress.clone());
        let done = mailbox.ask(POLICY_TIMEOUT, |reply| Question::Policy(services, egress, reply)).await;
        done.map_err(|error| format!("a data worker did not take the policy: {error}"))?;
    }
    tracing::info!(generation = active.generation, services = services.len(), "policy in force");
    Ok(())
}

fn translate(active: &ActivePolicy) -> (Vec<ServiceSpec>, Vec<EgressRule>) {
    let service = |s: &csp_control::Service| ServiceSpec {
        name: s.name.clone(),
        address: (s.vip, s.port).into(),
        pool: s.pool.iter().map(|m| PoolServer { node: m.node, port: m.port }).collect(),
        tcp: translate_tcp(&s.tcp),
    };
    let rule = |e: &csp_control::Egress| EgressRule {
        address: e.address,
        destinations: e.destinations.iter().map(translate_prefix).collect(),
        except: e.except.iter().map(translate_prefix).collect(),
        tcp: translate_tcp(&e.tcp),
    };
    (active.policy.services.iter().map(service).collect(), active.policy.egress.iter().map(rule).collect())
}

fn translate_prefix(prefix: &csp_control::Prefix) -> Prefix {
    Prefix { address: prefix.address(), bits: prefix.length() }
}

fn translate_tcp(tcp: &TcpOptions) -> ServiceTcp {
    let congestion = match tcp.congestion {
        Congestion::Newreno => CongestionControl::NewReno,
        Congestion::Cubic => CongestionControl::Cubic,
    };
    let ecn = match tcp.ecn {
        EcnPolicy::Off => EcnMode::Off,
        EcnPolicy::Passive => EcnMode::Passive,
        EcnPolicy::Active => EcnMode::Active,
    };
    ServiceTcp {
        congestion: Some(congestion),
        ecn: Some(ecn),
        pacing: Some(tcp.pacing),
        keepalive_s: Some(tcp.keepalive_s),
        user_timeout_s: Some(tcp.user_timeout_s),
    }
}

fn set_readiness(readiness: &Readiness, status: &ControlStatus, workers: &DataWorkers) {
    let control = match (status.registered, status.synced()) {
        (true, true) => (ConditionState::Ok, String::new()),
        (false, _) => (ConditionState::Degraded, status.registration_problem.clone()),
        (true, false) => (ConditionState::Degraded, status.sync_problem.clone()),
    };
    readiness.set("control", control.0, control.1);
    let tunnels = workers.published.iter().map(|cell| cell.read().network_nodes()).min().unwrap_or(0);
    match tunnels {
        0 => readiness.set("tunnels", ConditionState::Failed, "no network node is connected"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_policy_says_of_a_service_s_connections_reaches_them() {
        let tcp = TcpOptions {
            congestion: Congestion::Newreno,
            ecn: EcnPolicy::Active,
            pacing: false,
            keepalive_s: 30,
            user_timeout_s: 0,
        };
        let expected = ServiceTcp {
            congestion: Some(CongestionControl::NewReno),
            ecn: Some(EcnMode::Active),
            pacing: Some(false),
            keepalive_s: Some(30),
            user_timeout_s: Some(0),
        };
        assert_eq!(translate_tcp(&tcp), expected);
    }
}
