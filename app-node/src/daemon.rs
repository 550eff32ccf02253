//! The daemon: one thread with the agent and the base of `csp_daemon`, beside the threads of relay and
//! custody.

mod admin;
mod relay_thread;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use csp_control::{ControlOptions, Membership, NodeRecord};
use csp_daemon::{DaemonError, Event, Events, KeyFile, Shell, ShellOptions};
use csp_policy::Policy;
use csp_telemetry::{ConditionState, Exposition, Readiness};
use csp_transport::{Holder, Keys};
use csp_types::Role;
use csp_wire::agent::{LIST_MAX, PATH_LEN_MAX};
use futures_util::FutureExt as _;
use tokio::sync::watch;

use crate::agent::helper::Helpers;
use crate::agent::{self, AgentError, AgentOptions, Choice, Directory, Processes, ProxyEntry};
use crate::config::{Config, Connect, Listen};
use crate::custody::{self, Custodian, CustodyOptions};
use crate::relay::{Target, path_of};
use relay_thread::RelayThread;

/// How long shutdown waits for helpers at work.
const SHUTDOWN_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    csp_daemon::init_logging(&config.log)?;
    let holder = Holder::Node(Role::AppNode, config.node.id);
    let keys = KeyFile::load(&config.node.cluster_key_file(Role::AppNode), holder)?;
    let mut record = NodeRecord::new(config.node.id, Role::AppNode, config.admin.url(&config.node));
    record.capabilities = vec!["agent".to_owned()];
    let relay = RelayThread::start(config, &record, keys.keys())?;
    record.capabilities.extend(relay.is_some().then(|| "relay".to_owned()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    // Boxed, so that it is compiled once and not for each way in which a runtime polls it.
    let serve = serve(config, keys, record, relay.as_ref()).boxed_local();
    let result = local.block_on(&runtime, serve);
    relay.into_iter().for_each(RelayThread::stop);
    drop(local);
    // A helper that a process blocks does not delay the shutdown.
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    result
}

async fn serve(
    config: &Config,
    keys: KeyFile,
    record: NodeRecord,
    relay: Option<&RelayThread>,
) -> Result<(), DaemonError> {
    let host = record.host.clone();
    let processes = Rc::new(RefCell::new(Processes::new(config.capacity.processes, config.capacity.exited)));
    let metrics = Exposition::new();
    relay.into_iter().for_each(|relay| metrics.register(relay.metrics()));
    let (publisher, directory) = watch::channel(Directory::default());
    let (routes, questions) = admin::routes(config.node.id.to_string(), &metrics, directory.clone());
    let custodian = Arc::new(custody::start(custody_options(config, keys.keys()), config.spin_us)?);
    metrics.register(custodian.metrics());
    let of_relay = relay.map(RelayThread::progress);
    let threads = of_relay.into_iter().chain([custodian.progress()]).cloned().collect();
    tokio::task::spawn_local(admin::answer(questions, processes.clone()));
    let serving = agent::serve(agent_options(config, keys.keys(), custodian), directory, processes);
    tokio::pin!(serving);
    let events = Events::of(&record);
    let starting = Shell::start(ShellOptions {
        record,
        node: &config.node,
        etcd: &config.etcd,
        admin: &config.admin,
        metrics,
        routes,
        keys: Some(keys),
        threads,
        control: ControlOptions::default(),
        events,
    });
    // Processes that were started earlier are served while etcd is contacted; signals and the admin endpoint
    // come first.
    let started = tokio::select! {
        biased;
        started = starting => started?,
        ended = &mut serving => return ended.map_err(unavailable),
    };
    let Some(mut shell) = started else { return Ok(()) };
    tracing::info!(socket = %config.socket.display(), "processes are served");
    let ended = loop {
        let event = tokio::select! {
            event = shell.next() => event,
            ended = &mut serving => break ended.map_err(unavailable),
        };
        match event {
            Event::Membership(known) => {
                publish_proxies(&publisher, proxies(config, &known, &host, relay).await)
            }
            Event::Policy(active) => {
                publish_policy(&publisher, config.accelerate.connect, &active.policy);
                shell.ack(active.generation, Ok(())).await;
            }
            Event::Tick => set_readiness(&shell.readiness, publisher.borrow().proxies.len()),
            Event::End(ended) => break Ok(ended?),
        }
    };
    shell.shutdown().await;
    ended
}

/// Converts the error of an agent's socket that is not available.
fn unavailable(error: AgentError) -> DaemonError {
    DaemonError::Unavailable(error.to_string())
}

fn publish_proxies(publisher: &watch::Sender<Directory>, proxies: Vec<ProxyEntry>) {
    publisher.send_if_modified(|directory| {
        let before = std::mem::replace(&mut directory.proxies, proxies);
        before != directory.proxies
    });
}

fn publish_policy(publisher: &watch::Sender<Directory>, connect: Connect, policy: &Policy) {
    let connect = match connect {
        Connect::Policy => Directory::destinations_of(policy),
        Connect::Off => Vec::new(),
    };
    publisher.send_if_modified(|directory| {
        let before = std::mem::replace(&mut directory.connect, connect);
        let rules = std::mem::replace(&mut directory.programs, policy.programs.clone());
        let access = std::mem::replace(&mut directory.access, policy.access.clone());
        before != directory.connect || rules != directory.programs || access != directory.access
    });
}

/// Returns the proxy workers that processes can reach: directly, and through the relay.
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
            let run_dir = config.node.run_dir(Role::AppNode);
            let path = |t: &Target| path_of(&run_dir, config.node.id, t.node, t.worker);
            let entry = |t: &Target| ProxyEntry {
                node: t.node,
                worker: t.worker,
                path: path(t).to_string_lossy().into_owned(),
                provider: t.provider,
                address: t.address.to_string(),
                direct: t.address_of_verbs().filter(|_| config.san.direct),
                draining: membership.nodes.get(&t.node).is_some_and(|member| member.record.draining),
            };
            choice.near.extend(targets.iter().map(entry).filter(|entry| entry.path.len() <= PATH_LEN_MAX));
            choice.near.truncate(LIST_MAX);
        }
        Err(error) => tracing::error!(%error, "the relay did not apply the list of proxies"),
    }
    choice.near
}

fn custody_options(config: &Config, keys: &Keys) -> CustodyOptions {
    CustodyOptions { node: config.node.id, keys: keys.clone(), seed: rand::random() }
}

fn agent_options(config: &Config, keys: &Keys, custodian: Arc<Custodian>) -> AgentOptions {
    AgentOptions {
        node: config.node.id,
        socket: config.socket.clone(),
        keys: keys.clone(),
        listen: match &config.accelerate.listen {
            Listen::All => None,
            Listen::Ports(ports) => Some(ports.clone()),
        },
        loopback: config.accelerate.loopback,
        users: config.users.clone(),
        helpers: Helpers::default(),
        custodian: Some(custodian),
    }
}

fn set_readiness(readiness: &Readiness, proxies: usize) {
    match proxies {
        0 => readiness.set("proxies", ConditionState::Degraded, "no proxy can be reached"),
        _ => readiness.set("proxies", ConditionState::Ok, ""),
    }
}
