//! The proxy node's control thread: sends its workers the policy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csp_control::{ActivePolicy, ControlOptions, Member, MemberState, Membership, NodeRecord, PolicyCheck};
use csp_daemon::events::{Events, Reporter};
use csp_daemon::issued::Issued;
use csp_daemon::query::Workers;
use csp_daemon::trial::Trial;
use csp_daemon::{DaemonError, DataThread, Event, KeyFile, Shell, ShellOptions, Threads, clock};
use csp_messages::HashKey;
use csp_policy::Policy;
use csp_services::MessagesConfig;
use csp_telemetry::{ConditionState, Exposition, Readiness};
use csp_transport::{Adjacency, Holder, Keys};
use csp_types::{NodeId, Owner, Role};
use futures_util::FutureExt as _;

use crate::core::{CoreConfig, HANDSHAKES_AWAY_MAX, HairpinConfig};
use crate::{ProxyWorker, Registered};

use super::applied::ApplyTimes;
use super::certificates::Certificates;
use super::challenges::{self, Given};
use super::config::{Config, HAIRPINS, UPSTREAMS};
use super::curve_keys::KeyRing;
use super::data_thread::Question;
use super::events::WorkerEvents;
use super::metrics::{ModuleMetrics, Published, WorkerMetrics};
use super::modules::Modules;
use super::names::Names;
use super::plans::Plans;
use super::prepare::Prepared;
use super::recorders::Recorders;
use super::{admin, cache_routes, events, handlers, handshakes, planning, policy, providers};

/// Requests that may wait for one worker.
const QUESTIONS_MAX: usize = 64 + HANDSHAKES_AWAY_MAX;
/// How long a worker may take to put a policy into force.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);

type Worker = DataThread<Question, Published>;

/// Runs the daemon until SIGTERM or SIGINT, with its workers in `threads`, which the workers of a network
/// node share if there is an `adjacency`. Logging has to be started before.
pub fn run(config: Config, threads: &Threads, adjacency: Option<&Arc<Adjacency>>) -> Result<(), DaemonError> {
    let record = NodeRecord::new(config.node.id, Role::ProxyNode, config.admin.url(&config.node));
    let modules =
        Modules::with_trial(config.node.state_dir(Role::ProxyNode).join("handlers"), Some(Trial::default()));
    let keys = KeyFile::load(&config.node.cluster_key_file(Role::ProxyNode), Holder::Proxy)?;
    let events = Events::of(&record);
    let reported = WorkerEvents::new(Reporter::start(events.clone())?);
    let recorders = Recorders::start(&config)?;
    let (mut workers, record) =
        start_workers(&config, record, (threads, adjacency), (&modules, keys.keys(), &reported, &recorders))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Boxed: compiled once, and not once for each way in which a runtime polls.
    let result = runtime.block_on(
        serve(&config, record, &workers, (modules, keys), (events, reported, recorders.clone()))
            .boxed_local(),
    );
    DataThread::stop_all(&mut workers, || Question::Stop);
    recorders.finish();
    result
}

fn start_workers(
    config: &Config,
    mut record: NodeRecord,
    (threads, adjacency): (&Threads, Option<&Arc<Adjacency>>),
    (modules, keys, events, recorders): (&Arc<Modules>, &Keys, &WorkerEvents, &Recorders),
) -> Result<(Vec<Worker>, NodeRecord), DaemonError> {
    std::fs::create_dir_all(config.node.run_dir(Role::ProxyNode))?;
    let (mut workers, (makers, jobs)) = (Vec::<Worker>::new(), std::sync::mpsc::channel());
    let (planner, plans) = std::sync::mpsc::channel();
    let (signers, steps) = handshakes::queue();
    let signing = handshakes::threads(config.tls.handshake_threads, config.workers);
    record.workers = config.workers.into();
    record.capabilities = vec!["tcp".to_owned(), "channel".to_owned()];
    for number in 0..config.workers {
        let san = providers::listen(config, &record, keys, number)?;
        let core = core_config(config, number);
        let mut worker = ProxyWorker::new(core, messages_config(), san.tunnels, san.channels);
        worker.seed(rand::random());
        worker.set_clock(csp_daemon::clock::now);
        worker.set_election_clock(csp_daemon::clock::boot_now);
        worker.set_makers(makers.clone());
        worker.set_planner(planner.clone());
        if signing > 0 {
            worker.set_signers(signers.clone());
        }
        worker.set_events(events.of_worker(number));
        recorders.equip(&mut worker);
        adjacency.into_iter().for_each(|both| worker.set_adjacency(Arc::clone(both)));
        record.san.push(san.address);
        workers.push(threads.start(("data", number), worker, QUESTIONS_MAX, config.spin_us)?);
    }
    let mailboxes: Vec<_> = workers.iter().map(|worker| worker.mailbox().clone()).collect();
    planning::serve(plans, mailboxes.clone())?;
    handshakes::serve(signing, &steps, &mailboxes)?;
    modules.serve_clients(jobs, mailboxes)?;
    Ok((workers, record))
}

fn core_config(config: &Config, worker: u8) -> CoreConfig {
    let connections = config.capacity.connections;
    let block_len = 4 * 1024; // a full segment of copied payload has 17 slices, so the batch copies it
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
        listeners: csp_policy::SERVICES_MAX,
        isn_secret,
        rto_min: Duration::from_millis(config.tcp.rto_min_ms),
        time_wait: Duration::from_secs(config.tcp.time_wait_s),
        syn_cookies: config.tcp.syn_cookies,
        ..csp_tcp::StackConfig::default()
    };
    let workers = config.workers;
    let connection_labels = 1 + u32::from(workers) * connections as u32;
    let inner_labels = (2 * HAIRPINS + UPSTREAMS) as u32;
    let hairpin = HairpinConfig {
        first_label_index: connection_labels + u32::from(worker) * inner_labels,
        pairs: HAIRPINS,
    };
    let trace_events = config.capacity.trace_events;
    CoreConfig { worker, workers, tcp, trace_events, hairpin, upstreams: UPSTREAMS }
}

/// Bounds of a worker's message broker; its memory is allocated when the policy has channels.
fn messages_config() -> MessagesConfig {
    MessagesConfig::new(HashKey([rand::random(), rand::random()]))
}

async fn serve(
    config: &Config,
    record: NodeRecord,
    workers: &[Worker],
    (modules, keys): (Arc<Modules>, KeyFile),
    (events, reported, recorders): (Events, WorkerEvents, Recorders),
) -> Result<(), DaemonError> {
    let costs = policy::flows::Costs::new(usize::from(config.workers));
    let plans = Plans::default();
    let times = ApplyTimes::default();
    let given = Given::new(config.node.state_dir(Role::ProxyNode).join("certificates"));
    let parts = (&modules, &costs, &times, &plans);
    let options = shell_options(config, record, workers, (parts, &given), events.clone());
    let routes = options.routes.merge(cache_routes::routes(recorders.cache.clone()));
    let options = ShellOptions { keys: Some(keys), routes, ..options };
    recorders.serve(&options.metrics);
    let Some(mut shell) = Shell::start(options).await? else { return Ok(()) };
    let logs = recorders.connections.is_some();
    let mut numbers = policy::Numbers::new(rand::random()).of_proxy(config.node.id, costs);
    numbers.log_http(recorders.requests.is_some());
    let mut prepared = Prepared::default();
    let names = Names::default();
    let looking = tokio::spawn(names.clone().serve());
    let (folder, mut in_force) = (config.messages.curve_keys.as_path(), None::<ActivePolicy>);
    let mut certificates = Certificates::new(&config.tls.certificates, config.tls.ticket_secret.as_deref())
        .with_issued(Arc::clone(&given.issued));
    let ended = loop {
        match shell.next().await {
            Event::Membership(now) => send_registered(workers, config.node.id, &now),
            Event::Policy(active) => {
                names.set(active.policy.server_names());
                recorders.warn_of(&active.policy);
                let state = (&mut numbers, &mut prepared, &times, &plans);
                let here = (folder, &modules, &names, &mut certificates, &given);
                let applied = apply(workers, &active, state, here, (&reported, logs)).await;
                shell.ack(active.generation, applied).await;
                in_force = Some(active);
            }
            Event::Tick => {
                let now = clock::now();
                let changed = names.take_changed() | certificates.look_again(now) | given.take_changed(now);
                if let Some(active) = in_force.as_ref().filter(|_| changed) {
                    let state = (&mut numbers, &mut prepared, &times, &plans);
                    let here = (folder, &modules, &names, &mut certificates, &given);
                    let applied = apply(workers, active, state, here, (&reported, logs)).await;
                    if let Err(fault) = applied {
                        tracing::warn!(
                            fault,
                            "the policy was applied to new addresses of servers or certificates, not all of it"
                        );
                    }
                }
                set_readiness(&shell.readiness, workers);
                given.set_readiness(&shell.readiness);
                modules.stops().iter().for_each(|what| events.record(what));
                if modules.have_come() {
                    shell.recheck_policy();
                }
            }
            Event::End(ended) => break ended,
        }
    };
    looking.abort();
    shell.shutdown().await;
    Ok(ended?)
}

/// What the policy is checked with, and metrics are made of.
type Parts<'a> = (&'a Arc<Modules>, &'a policy::flows::Costs, &'a ApplyTimes, &'a Plans);

fn shell_options<'a>(
    config: &'a Config,
    record: NodeRecord,
    workers: &[Worker],
    ((modules, costs, times, plans), given): (Parts<'_>, &Given),
    events: Events,
) -> ShellOptions<'a> {
    let metrics = Exposition::new();
    metrics.register(WorkerMetrics(workers.iter().map(|worker| worker.published().clone()).collect()));
    metrics.register(ModuleMetrics(modules.clone()));
    metrics.register(times.clone());
    let mailboxes = workers.iter().map(|worker| worker.mailbox().clone()).collect();
    ShellOptions {
        record,
        node: &config.node,
        etcd: &config.etcd,
        admin: &config.admin,
        metrics,
        routes: admin::routes(Workers { node: config.node.id.to_string(), mailboxes })
            .merge(handlers::routes(modules.clone()))
            .merge(challenges::routes(given.issued.clone(), given.challenges.clone())),
        keys: None,
        threads: workers.iter().map(|worker| worker.progress().clone()).collect(),
        control: ControlOptions {
            check: policy_check(
                config,
                (modules.clone(), given.issued.clone()),
                costs.clone(),
                plans.clone(),
            ),
            ..ControlOptions::default()
        },
        events,
    }
}

/// Returns the check of a policy before it is acknowledged as staged: what it says can be planned; the secret
/// keys of its channels and the modules of its handlers are here.
fn policy_check(
    config: &Config,
    (modules, issued): (Arc<Modules>, Arc<Issued>),
    costs: policy::flows::Costs,
    plans: Plans,
) -> PolicyCheck {
    let (folder, node) = (config.messages.curve_keys.clone(), config.node.id);
    let (certificates, secret) = (config.tls.certificates.clone(), config.tls.ticket_secret.clone());
    Arc::new(move |policy: &Policy| {
        check_memory(policy)?;
        let planned = plans.of(policy)?;
        modules.check(&planned)?;
        policy::flows::check(&planned, &node, &costs)?;
        Certificates::new(&certificates, secret.as_deref()).with_issued(issued.clone()).load(policy)?;
        policy::HttpServices::default().of(policy, (|_: &str| 0, |_: &csp_policy::Service| None))?;
        if policy.all_channels().all(|channel| channel.curve.is_none()) {
            return Ok(());
        }
        KeyRing::load(&folder).check(policy, &folder)
    })
}

/// Checks that each worker has the memory that a policy guarantees to channels, and places for their paths:
/// any worker may be the owner of all.
fn check_memory(policy: &Policy) -> Result<(), String> {
    let config = messages_config();
    let pool = u64::from(config.pool.blocks) * u64::from(config.pool.block_len);
    let block = u64::from(config.pool.block_len);
    let requested = policy.requested_channels().map(|(_, place)| place);
    let messages: Vec<_> =
        policy.all_channels().chain(requested).filter(|channel| channel.pool.is_empty()).collect();
    let guaranteed: u64 =
        messages.iter().map(|c| (u64::from(c.memory.guaranteed_mib) << 20).next_multiple_of(block)).sum();
    if guaranteed > pool {
        return Err(format!(
            "the channels' guaranteed memory is {} MiB together, and a proxy worker has {}: lower some `memory.guaranteed_mib`",
            guaranteed >> 20,
            pool >> 20
        ));
    }
    let queries = policy.queries.len() + policy.requested_channels().count();
    let paths = messages.iter().filter(|c| !c.path.is_empty()).count() + queries;
    let most = config.contexts.paths_max;
    match paths <= usize::from(most) {
        true => Ok(()),
        false => Err(format!(
            "{paths} channels have paths, are queries or may be ones on request, and a proxy worker has places for {most}"
        )),
    }
}

/// Sends the workers what they need of the other nodes' registrations.
fn send_registered(workers: &[Worker], own: NodeId, membership: &Membership) {
    let records = |role| membership.of_role(role).map(|member| &member.record);
    let registered = Registered {
        owned: records(Role::NetworkNode).map(|record| (record.id, record.owned())).collect(),
        lan_workers: records(Role::NetworkNode).map(|record| (record.id, record.lan_workers())).collect(),
        draining: records(Role::AppNode).filter(|record| record.draining).map(|record| record.id).collect(),
        is_draining: records(Role::ProxyNode).any(|record| record.id == own && record.draining),
        proxies: membership.nodes.contains_key(&own).then(|| (own, open_workers(own, membership))),
    };
    for worker in workers {
        if let Err(error) = worker.mailbox().send(Question::Registered(registered.clone())) {
            tracing::error!(%error, "a data worker did not receive the other nodes' registrations");
        }
    }
}

/// Returns the workers of all proxies that new connections may go to. A proxy whose lease has lapsed may be
/// dead; this one is not.
fn open_workers(own: NodeId, membership: &Membership) -> Vec<Owner> {
    let stands = |member: &&Member| {
        let is_live = member.state == MemberState::Live && !member.record.leaving;
        (is_live || member.record.id == own) && !member.record.draining
    };
    let workers = |member: &Member| {
        let proxy = member.record.id;
        let numbers: Vec<u8> =
            member.record.san.iter().filter_map(|san| u8::try_from(san.worker).ok()).collect();
        numbers.into_iter().map(move |worker| Owner { proxy, worker })
    };
    membership.of_role(Role::ProxyNode).filter(stands).flat_map(workers).collect()
}

/// What of this node a policy is applied with.
type Here<'a> = (&'a Path, &'a Arc<Modules>, &'a Names, &'a mut Certificates, &'a Given);

async fn apply(
    workers: &[Worker],
    active: &ActivePolicy,
    (numbers, prepared, times, plans): (&mut policy::Numbers, &mut Prepared, &ApplyTimes, &Plans),
    (curve_keys, modules, names, certificates, given): Here<'_>,
    (reported, logs): (&WorkerEvents, bool),
) -> Result<(), String> {
    let received = clock::now();
    let ring = KeyRing::load(curve_keys);
    let (answered, version) = given.challenges.now();
    certificates.set_challenges(answered.tls);
    let lacking = certificates.load(&active.policy);
    given.lacks(certificates.lacking());
    let files = (names, &*certificates);
    let mut policy = policy::translate(&plans.of(&active.policy)?, numbers, (&ring, modules), files);
    policy.challenges = answered.http;
    if !logs {
        policy.log = None;
    }
    modules.set_active(&active.policy);
    let servers = events::servers(&policy.services);
    prepared.prepare(&policy, workers.len());
    // What one worker cannot serve of it must not keep the others from the rest.
    let (translated, mut spans, mut result) = (clock::now(), Vec::new(), Ok(()));
    for worker in workers {
        let policy = policy.clone();
        let done = worker.mailbox().ask(POLICY_TIMEOUT, |reply| Question::Policy(policy, reply)).await;
        let done = done.map_err(|error| format!("a data worker did not apply the policy: {error}"));
        result = result.and(done.and_then(|applied| {
            spans.push(applied.span);
            applied.done
        }));
    }
    times.record((received, translated), &spans);
    if spans.len() == workers.len() {
        given.challenges.applied(version);
    }
    prepared.done(&policy);
    reported.keep(&servers);
    result?;
    let (generation, services, channels) =
        (active.generation, policy.services.len(), policy.messages.channels.len());
    tracing::info!(generation, services, channels, "policy in force");
    lacking.and(ring.check(&active.policy, curve_keys))
}

fn set_readiness(readiness: &Readiness, workers: &[Worker]) {
    match workers.iter().map(|worker| worker.published().read().network_nodes()).min().unwrap_or(0) {
        0 => readiness.set("tunnels", ConditionState::Failed, "no network node is connected"),
        _ => readiness.set("tunnels", ConditionState::Ok, ""),
    }
}
