//! `csp-mgmt-node`: starts the parts in order, waits for the end, stops them in reverse.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use csp_control::{
    ControlOptions, ControlPlane, EtcdAccess, EtcdClient, EtcdProcess, EtcdProcessOptions, EventsAddress,
    NodeRecord, PolicyManager, Signer,
};
use csp_daemon::events::CertificateNotice;
use csp_daemon::program::ConfigFile;
use csp_daemon::{DaemonError, Events, ServiceManager, StopSignals};
use csp_identity::{Credentials, UnixTime};
use csp_telemetry::{AdminOptions, AdminServer, BuildInfo, ConditionState, Exposition, Readiness};
use csp_types::{CurvePublicKey, NodeId, Role};
use csp_zmtp::CurveKeys;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::acme::{self, Acme, AcmeMetrics};
use crate::actions::Actions;
use crate::bus::{self, Bus};
use crate::config::MgmtConfig;
use crate::events::{self, Hub};
use crate::fanout::Fanout;
use crate::leader::Election;
use crate::login::{LoginMetrics, Logins};
use crate::metrics::ClusterMetrics;
use crate::modules;
use crate::outlets::{self, Outlets};
use crate::policy_view::PolicyReader;
use crate::poller::Poller;
use crate::publish::Publisher;
use crate::series;
use crate::server;
use crate::views::Cluster;
use csp_api::mgmt::LeaderView;
use futures_util::FutureExt as _;

const AFTER_HELP: &str = "\
Example of a configuration file (--config):
  node: {id: mgmt-1, state_dir: /var/lib/csp}
  admin: {listen: \"127.0.0.1:9104\"}       # API, operations page and metrics
  etcd: {endpoints: []}                    # empty: a private etcd is started ...
  private_etcd: {client: \"127.0.0.1:2379\"} # ... which others reach as well once node.identity is there
  events: {listen: \"10.77.0.4:9105\", key: /etc/csp/curve/events.key_secret} # events over ZeroMQ; left out: not
  log: {level: info, format: text}

Exit codes:
   0  stopped by SIGTERM or SIGINT
  64  the command line is wrong
  69  a service is missing: etcd cannot be started, or the admin address is in use
  70  internal fault
  73  another live node has this id, or another csp-mgmt-node uses this state_dir
  78  the configuration is wrong; the message names file, line, field and what is allowed";

/// The management node of a CSP cluster: membership, policy, the API of cspctl and the operations page.
///
/// Several management nodes may run on one etcd; one leads and alone changes policy, the others answer
/// questions and send changes to it. Nothing that clients' traffic needs depends on a management node.
#[derive(Debug, Parser)]
#[command(name = "csp-mgmt-node", version, after_help = AFTER_HELP, after_long_help = AFTER_HELP, max_term_width = 110)]
pub struct Arguments {
    /// Which configuration file, and whether only to check it
    #[command(flatten)]
    pub file: ConfigFile,
}

/// Runs until a signal asks to stop or something fails for good.
pub fn run(config: MgmtConfig) -> Result<(), DaemonError> {
    csp_daemon::init_logging(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Boxed: compiled once, and not once for each way in which a runtime polls.
    runtime.block_on(run_until_stopped(config).boxed_local())
}

async fn run_until_stopped(config: MgmtConfig) -> Result<(), DaemonError> {
    let mut signals = StopSignals::new()?;
    let _lock = lock(&config.node.state_dir(Role::MgmtNode))?;
    let credentials = config.node.credentials(Role::MgmtNode)?;
    let (etcd, supervisor) = PrivateEtcd::start(&config, credentials).await?;
    let ended = serve(&config, &etcd, supervisor.is_some(), signals.recv()).await;
    if let Some(supervisor) = supervisor {
        supervisor.shutdown().await;
    }
    ended
}

/// One process per state directory.
fn lock(state_dir: &Path) -> Result<File, DaemonError> {
    let path = state_dir.join("csp-mgmt-node.lock");
    let state = |error: std::io::Error| {
        let words = format!("node.state_dir: {}: {error}", path.display());
        DaemonError::System(std::io::Error::new(error.kind(), words))
    };
    std::fs::create_dir_all(state_dir).map_err(state)?;
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(state)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(DaemonError::Taken(format!(
            "{} is locked: another csp-mgmt-node uses this node.state_dir; stop it or give this one another",
            path.display()
        ))),
        Err(std::fs::TryLockError::Error(source)) => Err(state(source)),
    }
}

async fn serve(
    config: &MgmtConfig,
    etcd: &EtcdAccess,
    private_etcd: bool,
    stop: impl Future<Output = &'static str>,
) -> Result<(), DaemonError> {
    let outlets = Outlets::open(&config.events)?;
    let keys = config.events.key.as_deref().map(bus::keys).transpose()?;
    let record = registration(config, keys.as_deref());
    let node = serde_json::to_value(&record).unwrap_or_default();
    let own = LeaderView { id: config.node.id.to_string(), url: record.admin.clone() };
    let options = ControlOptions { follow_policy: false, ..ControlOptions::default() };
    let state_dir = config.node.state_dir(Role::MgmtNode);
    let signer =
        etcd.credentials.clone().map(|credentials| Signer::open(credentials, &state_dir, &config.node.id));
    let signer = signer.transpose()?;
    let events = Events::of(&record);
    let hub = Hub::new(events.clone());
    let control = ControlPlane::start(record, etcd, &state_dir, options).await?;
    let manager = manager(etcd, signer.as_ref()).await?;
    let election = Election::start(etcd.clone(), own.clone());
    let policy = Arc::new(PolicyReader::new(manager.clone()));
    let bus = bus(config.events.listen, keys, &hub, &policy).await?;
    let cluster = Arc::new(Cluster {
        id: own.id,
        private_etcd,
        membership: control.membership.clone(),
        status: control.status.clone(),
        leadership: election.leadership.clone(),
        policy: policy.clone(),
        publisher: Publisher::new(policy.clone(), events.clone()),
        manager,
        poller: Arc::new(Poller::default()),
        acme: Acme::new(&config.acme, &state_dir, events.clone()),
        fanout: Fanout::new(etcd.credentials.as_ref()),
        overview: tokio::sync::Mutex::new(None),
    });
    let readiness = Readiness::new();
    let own = (config.node.id, events.clone(), hub.clone());
    let background = background(&cluster, own, etcd, (&readiness, signer));
    let users =
        etcd.credentials.is_some().then(|| tokio::spawn(watch_users(control.client(), readiness.clone())));
    let logins = Logins::new(etcd.credentials.clone());
    let metrics = metrics(&cluster, (&logins, bus), etcd.credentials.as_ref());
    metrics.register(outlets.metrics());
    let sources = outlets::Sources {
        hub: hub.clone(),
        etcd: control.client(),
        leadership: election.leadership.clone(),
        readiness: readiness.clone(),
    };
    let outlets = tokio::spawn(outlets.run(sources));
    let actions = Actions::open(&state_dir).map_err(DaemonError::System)?;
    actions.audit.watch(hub.clone());
    let options = AdminOptions {
        metrics,
        readiness,
        node,
        routes: events.route().merge(acme::node_routes(&cluster.acme)),
        guarded: server::router(cluster, (logins, hub), config.names.as_slice().into(), actions),
        credentials: etcd.credentials.clone(),
    };
    let ended = answer(config, options, &control, stop).await;
    for task in background.iter().chain(&users).chain([&outlets]) {
        task.abort();
    }
    election.shutdown().await;
    control.shutdown().await;
    ended
}

/// Starts what goes on beside requests.
fn background(
    cluster: &Arc<Cluster>,
    (own, events, hub): (NodeId, Events, Arc<Hub>),
    etcd: &EtcdAccess,
    (readiness, signer): (&Readiness, Option<Arc<Signer>>),
) -> [JoinHandle<()>; 8] {
    let with = || cluster.clone();
    let (policy, modules_of, signed, polled) = (cluster.policy.clone(), with(), with(), with());
    let ordered = with();
    [
        tokio::spawn(async move { policy.follow().await }),
        tokio::spawn(async move { modules::run(&modules_of).await }),
        tokio::spawn(async move { acme::run(&ordered).await }),
        tokio::spawn(async move { keep_signed(&signed).await }),
        tokio::spawn(watch_readiness(
            with(),
            etcd.credentials.clone(),
            readiness.clone(),
            signer,
            events.clone(),
        )),
        tokio::spawn(async move {
            polled.poller.run(polled.fanout.clone(), polled.membership.clone()).await;
        }),
        tokio::spawn(follow_events((own, events), hub, with(), etcd.clone())),
        tokio::spawn(series::run(with())),
    ]
}

/// The publisher of events, if there is to be one.
async fn bus(
    listen: Option<SocketAddr>,
    keys: Option<Arc<CurveKeys>>,
    hub: &Arc<Hub>,
    policy: &Arc<PolicyReader>,
) -> Result<Option<Bus>, DaemonError> {
    let Some(listen) = listen else { return Ok(None) };
    Ok(Some(Bus::start(listen, keys, hub.clone(), policy.clone()).await?))
}

/// This node's registration, with where it publishes events and by which key.
fn registration(config: &MgmtConfig, keys: Option<&CurveKeys>) -> NodeRecord {
    let mut record = NodeRecord::new(config.node.id, Role::MgmtNode, config.admin.url(&config.node));
    let key = keys.map(|keys| CurvePublicKey(keys.public()).to_string());
    record.events = config.events.listen.map(|address| EventsAddress { address: address.to_string(), key });
    record
}

/// Takes over this node's own events, pushes them to the others, and announces nodes. Does not end.
async fn follow_events(
    (own, events): (NodeId, Events),
    hub: Arc<Hub>,
    cluster: Arc<Cluster>,
    etcd: EtcdAccess,
) {
    let membership = cluster.membership.clone();
    let announcing = events::announce(hub.clone(), membership.clone(), cluster.leadership.clone());
    let pushing = csp_daemon::events::push(events, own, membership, etcd.credentials);
    tokio::join!(hub.follow_own(), announcing, pushing);
}

/// What publishes the policy, signed if this node has an identity.
async fn manager(etcd: &EtcdAccess, signer: Option<&Arc<Signer>>) -> Result<PolicyManager, DaemonError> {
    let manager = PolicyManager::new(EtcdClient::connect(etcd).await?);
    let Some(signer) = signer else {
        tracing::warn!("this node has no identity (node.identity): it publishes policy without a signature");
        return Ok(manager);
    };
    Ok(manager.signed(signer.clone()))
}

fn metrics(
    cluster: &Arc<Cluster>,
    (logins, bus): (&Arc<Logins>, Option<Bus>),
    credentials: Option<&Credentials>,
) -> Exposition {
    let metrics = Exposition::new();
    metrics.register(BuildInfo::new(Role::MgmtNode.as_str(), &cluster.id));
    metrics.register(ClusterMetrics(cluster.clone()));
    metrics.register(AcmeMetrics(cluster.clone()));
    metrics.register(LoginMetrics(logins.clone()));
    bus.into_iter().for_each(|bus| metrics.register(bus));
    if let Some(credentials) = credentials {
        csp_daemon::identity::watch(credentials, &metrics);
    }
    metrics
}

/// Answers requests until the daemon is stopped or cannot go on.
async fn answer(
    config: &MgmtConfig,
    options: AdminOptions,
    control: &ControlPlane,
    stop: impl Future<Output = &'static str>,
) -> Result<(), DaemonError> {
    let admin = AdminServer::start(config.admin.listen, options).await?;
    tracing::info!(address = %admin.address(), "API and operations page are served");
    let mut manager = ServiceManager::new(Vec::new());
    manager.ready();
    let ended = tokio::select! {
        signal = stop => { tracing::info!(signal, "stopping"); Ok(()) }
        error = control.failed() => Err(DaemonError::from(error)),
        never = feed(&mut manager) => never,
    };
    manager.stopping();
    admin.shutdown().await;
    ended
}

/// Sends systemd's watchdog signs of life for ever.
async fn feed(manager: &mut ServiceManager) -> Result<(), DaemonError> {
    let mut beat = tokio::time::interval(Duration::from_millis(500));
    loop {
        beat.tick().await;
        manager.alive(csp_daemon::clock::now());
    }
}

/// How often the management node looks whether etcd asks for permissions.
const ENFORCED_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps the condition `etcd-users`: whether etcd, which others reach, refuses what nobody is granted.
async fn watch_users(client: EtcdClient, readiness: Readiness) {
    let mut beat = tokio::time::interval(ENFORCED_INTERVAL);
    loop {
        beat.tick().await;
        let (state, reason) = match csp_control::users::is_enforced(&client).await {
            Ok(true) => (ConditionState::Ok, ""),
            Ok(false) => (
                ConditionState::Degraded,
                "etcd asks for no permissions: every certificate of the cluster may write everything; run `cspctl etcd setup`",
            ),
            // The condition `etcd` says so.
            Err(_) => continue,
        };
        readiness.set("etcd-users", state, reason);
    }
}

/// A management node reads the policy in force and its signature this often.
const SIGNED_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps what is in force signed with this node's certificate while it leads.
async fn keep_signed(cluster: &Cluster) {
    let mut beat = tokio::time::interval(SIGNED_INTERVAL);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let fence = cluster.leadership.borrow().fence();
        let manager = cluster.manager.clone();
        let manager = match fence {
            Some(fence) => manager.fenced(csp_control::keys::LEADER, fence),
            None => manager,
        };
        if let Err(error) = manager.keep_signed(fence.is_some()).await {
            tracing::debug!(%error, "cannot look at what is signed");
        }
    }
}

/// Keeps the conditions behind `/readyz` up to date. Without etcd the node still answers questions: degraded.
async fn watch_readiness(
    cluster: Arc<Cluster>,
    credentials: Option<Credentials>,
    readiness: Readiness,
    signer: Option<Arc<Signer>>,
    events: Events,
) {
    let mut beat = tokio::time::interval(Duration::from_millis(500));
    let mut certificate = CertificateNotice::new((&cluster.id).into());
    loop {
        beat.tick().await;
        let status = cluster.status.borrow().clone();
        let policy = cluster.policy.known();
        let unsigned = signer.as_ref().map(|signer| signer.problem()).unwrap_or_default();
        let orphaned = if unsigned.is_empty() { policy.orphaned() } else { unsigned };
        let etcd = policy.problem;
        csp_daemon::set_state(&readiness, &status);
        let condition = |ok: bool, why: String| match ok {
            true => (ConditionState::Ok, String::new()),
            false => (ConditionState::Degraded, why),
        };
        if let Some(credentials) = &credentials {
            csp_daemon::identity::set_readiness(&readiness, credentials);
            certificate.look(&events, &credentials.state().holder, UnixTime::now());
        }
        let leader = cluster.leadership.borrow().leader().is_some();
        for (name, (state, reason)) in [
            ("etcd", condition(etcd.is_none(), etcd.unwrap_or_default())),
            ("policy", condition(orphaned.is_empty(), orphaned)),
            ("registration", condition(status.registered, status.registration_problem)),
            ("leader", condition(leader, "no management node leads at this time".to_owned())),
        ] {
            readiness.set(name, state, reason);
        }
    }
}

/// The private etcd with the task that starts it again when it ends.
struct PrivateEtcd {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// How long to wait before etcd is started again: at first, and at most.
const RESTART_WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

impl PrivateEtcd {
    /// The etcd to use; a private one is started when none is configured.
    async fn start(
        config: &MgmtConfig,
        credentials: Option<Credentials>,
    ) -> Result<(EtcdAccess, Option<Self>), DaemonError> {
        if !config.etcd.endpoints.is_empty() {
            return Ok((EtcdAccess { section: config.etcd.clone(), credentials }, None));
        }
        let state_dir = config.node.state_dir(Role::MgmtNode);
        let options = EtcdProcessOptions {
            binary: config.private_etcd.binary.clone(),
            data_dir: state_dir.join("etcd"),
            log_file: state_dir.join("etcd.log"),
            name: config.node.id.to_string(),
            client: config.private_etcd.client,
            peer: config.private_etcd.peer,
            identity: config.node.identity.clone().zip(credentials),
        };
        let process = EtcdProcess::start(options.clone())
            .await
            .map_err(|error| DaemonError::Unavailable(format!("private etcd: {error}")))?;
        let etcd = options.access();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(supervise(process, options, stopped));
        Ok((etcd, Some(PrivateEtcd { stop, task })))
    }

    async fn shutdown(self) {
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

async fn asked_to_stop(stopped: &mut watch::Receiver<bool>) {
    // A sender that is gone has nobody to stop for, either.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Returns when other authorities are trusted than now; never for an etcd without TLS.
async fn other_authorities(options: &EtcdProcessOptions) {
    let Some((folder, credentials)) = &options.identity else { return std::future::pending().await };
    let read = || std::fs::read(folder.join(csp_identity::CA)).ok();
    let (mut changes, now) = (credentials.changes(), read());
    while changes.changed().await.is_ok() {
        if read() != now {
            return;
        }
    }
    std::future::pending().await
}

async fn supervise(
    mut process: EtcdProcess,
    options: EtcdProcessOptions,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            how = process.ended() => tracing::error!(how, "private etcd ended; starting it again"),
            () = asked_to_stop(&mut stopped) => return process.shutdown().await,
            () = other_authorities(&options) => {
                tracing::info!("private etcd is started again: it reads the authorities when it starts");
                process.shutdown().await;
            }
        }
        let mut wait = RESTART_WAIT.0;
        process = loop {
            if tokio::time::timeout(wait, asked_to_stop(&mut stopped)).await.is_ok() {
                return;
            }
            match EtcdProcess::start(options.clone()).await {
                Ok(process) => break process,
                Err(error) => tracing::error!(%error, "private etcd does not start"),
            }
            wait = (wait * 2).min(RESTART_WAIT.1);
        };
    }
}
