//! The control thread of the network node: sends proxies and policy to the workers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use csp_control::{ActivePolicy, ControlOptions, Membership, NodeRecord, PolicyCheck};
use csp_daemon::query::Workers;
use csp_daemon::trial::Trial;
use csp_daemon::{DaemonError, Event, Events, Shell, ShellOptions, Threads};
use csp_plugin_modules::PluginModules;
use csp_plugins::EnvironmentId;
use csp_policy::{Channel, PluginHost};
use csp_telemetry::{ConditionState, Exposition, Readiness};
use csp_transport::Adjacency;
use csp_types::{OwnedAddresses, Role, limits};
use futures_util::FutureExt as _;

use crate::core::RuleSet;

use super::admin::{self, AdminState};
use super::config::Config;
use super::data_thread::Question;
use super::driver::DriverControl;
use super::driver_objects::KernelObjects;
use super::forwarding::{self, Servers};
use super::groups::{GroupRules, Groups, Watched, port_without_link};
use super::lan::Lan;
use super::metrics::WorkerMetrics;
use super::module_routes;
use super::plugin_metrics::{self, PluginMetrics, Shared};
use super::plugin_places::Placing;
use super::plugin_routes;
use super::plugins::{self, PluginControl, Plugins};
use super::proxies::{Neighbours, host_specs, note_neighbours, proxy_specs};
use super::workers::{DataWorkers, RULES_MAX};

/// Timeout for a worker to put a policy into force.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the daemon on its open ports until SIGTERM or SIGINT, with its workers in `threads`, which the
/// workers of a proxy share if there is an `adjacency`. Logging has to be started before.
pub fn run(
    config: Config,
    lan: Lan,
    threads: &Threads,
    adjacency: Option<&Arc<Adjacency>>,
) -> Result<(), DaemonError> {
    let mut record = NodeRecord::new(config.node.id, Role::NetworkNode, config.admin.url(&config.node));
    record.workers = config.workers.into();
    record.capabilities = vec!["tunnel".to_owned(), limits::STEERS_EGRESS.to_owned()];
    record.owns.clone_from(&config.owns);
    let no_programs = lan.no_programs;
    let workers = DataWorkers::start(&config, &record, lan, (threads, adjacency))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Boxed, so that it is compiled once and not for each way in which a runtime polls it.
    let result = runtime.block_on(serve(&config, record, &workers, no_programs).boxed_local());
    workers.stop();
    result
}

async fn serve(
    config: &Config,
    record: NodeRecord,
    workers: &DataWorkers,
    no_programs: Option<&'static str>,
) -> Result<(), DaemonError> {
    let (host, owned) = (record.host.clone(), record.owned());
    let all = Workers { node: config.node.id.to_string(), mailboxes: workers.mailboxes() };
    let numbers = plugin_metrics::no_numbers();
    let objects = Arc::new(KernelObjects { verifies: no_programs.is_none() });
    let modules = PluginModules::in_folder(
        config.node.state_dir(Role::NetworkNode).join("plugins"),
        Some(objects),
        Some(Trial::default()),
    );
    let mut driver = DriverControl::new(config, &workers.macs, no_programs);
    driver.set_modules(modules.clone());
    driver.begin(&workers.sockets, &workers.reinjection)?;
    let placing = Placing::new(workers.published());
    let plugins = PluginControl::new(all, numbers.clone(), driver, modules.clone(), placing);
    let (groups, servers, mut condition) = (Groups::default(), Servers::default(), Watched::default());
    let of_plugins = (numbers, plugins.clone(), modules.clone());
    let events = Events::of(&record);
    servers.report_to(&events);
    let options = shell_options(config, record, workers, of_plugins, (&groups, &servers), &events);
    let Some(mut shell) = Shell::start(options).await? else { return Ok(()) };
    let refreshing = tokio::spawn(plugins::refresh(plugins.clone()));
    let _forwarding = forwarding::start(&servers, workers);
    let (mut neighbours, mut addresses) = (Neighbours::new(), Vec::new());
    let ended = loop {
        match shell.next().await {
            Event::Membership(now) => {
                send_proxies(config, &host, workers, &now);
                condition.set_draining(is_draining(config, &now), workers);
                note_neighbours(&mut neighbours, &now, &host);
                let plugins = shell.while_alive(plugins.lock()).await;
                send_hosts(config, workers, &neighbours, &plugins.hosts());
            }
            Event::Policy(active) => {
                let mut plugins = shell.while_alive(plugins.lock()).await;
                let packets = plugins.apply(active.policy.packet_plugins(), &active.policy.plugin_hosts);
                let packets = shell.while_alive(packets).await;
                send_hosts(config, workers, &neighbours, &plugins.hosts());
                let applied = match packets {
                    Ok(()) => apply((&owned, &groups, &servers), workers, &active, &addresses).await,
                    Err(error) => Err(error),
                };
                // After a failure workers may have other rules than each other: the next ones announce all.
                let applied = applied.map(|now| addresses = now).inspect_err(|_| addresses.clear());
                if applied.is_ok() {
                    plugins.driver.set_addresses(addresses.iter().copied());
                }
                drop(plugins);
                shell.ack(active.generation, applied).await;
            }
            Event::Tick => {
                condition.set_dark(port_without_link(&config.lan), workers);
                condition.set_cut_off(!shell.follows_etcd(), workers);
                groups.changes().iter().for_each(|what| events.record(what));
                tick(&mut shell, workers, (&modules, &events), &servers);
            }
            Event::End(ended) => break ended,
        }
    };
    refreshing.abort();
    plugins.lock().await.stop();
    shell.shutdown().await;
    Ok(ended?)
}

fn tick(
    shell: &mut Shell,
    workers: &DataWorkers,
    (modules, events): (&PluginModules, &Events),
    servers: &Servers,
) {
    set_readiness(&shell.readiness, workers, servers.need_no_proxy());
    modules.stops().iter().for_each(|what| events.record(what));
    if modules.have_come() {
        shell.recheck_policy();
    }
}

fn shell_options<'a>(
    config: &'a Config,
    record: NodeRecord,
    workers: &DataWorkers,
    (numbers, plugins, modules): (Shared, Plugins, Arc<PluginModules>),
    (groups, servers): (&Groups, &Servers),
    events: &Events,
) -> ShellOptions<'a> {
    let metrics = Exposition::new();
    metrics.register(WorkerMetrics(workers.published()));
    metrics.register(PluginMetrics(numbers));
    metrics.register(groups.clone());
    let state = AdminState {
        interfaces: config.lan.iter().map(|lan| lan.interface.clone()).collect(),
        workers: Workers { node: config.node.id.to_string(), mailboxes: workers.mailboxes() },
        servers: servers.clone(),
    };
    ShellOptions {
        record,
        node: &config.node,
        etcd: &config.etcd,
        admin: &config.admin,
        metrics,
        routes: admin::routes(state)
            .merge(plugin_routes::routes(plugins))
            .merge(module_routes::routes(modules.clone())),
        keys: Some(workers.keys.clone()),
        threads: workers.threads.iter().map(|thread| thread.progress().clone()).collect(),
        control: ControlOptions { check: policy_check(workers, modules), ..ControlOptions::default() },
        events: events.clone(),
    }
}

/// Returns the check of a policy that precedes its acknowledgement as staged. It runs the modules of supplied
/// plug-ins.
fn policy_check(workers: &DataWorkers, modules: Arc<PluginModules>) -> PolicyCheck {
    let count = workers.threads.len();
    Arc::new(move |policy| modules.check(&policy.packet_plugins(), count))
}

fn send_proxies(config: &Config, host: &str, workers: &DataWorkers, membership: &Membership) {
    let proxies = proxy_specs(membership, config.san.provider, host, workers.endpoints);
    for proxy in proxies.iter().filter(|p| p.workers.is_empty()) {
        tracing::warn!(proxy = %proxy.node, "no address of this proxy can be reached by san.provider");
    }
    for mailbox in workers.mailboxes() {
        if let Err(error) = mailbox.send(Question::Proxies(proxies.clone())) {
            tracing::error!(%error, "a data worker did not receive the list of proxies");
        }
    }
}

/// Sends the workers the plug-in hosts that are to run instances.
fn send_hosts(
    config: &Config,
    workers: &DataWorkers,
    neighbours: &Neighbours,
    hosts: &[(EnvironmentId, PluginHost)],
) {
    let specs = host_specs(neighbours, config.san.provider, workers.endpoints, hosts);
    for (at, named) in hosts.iter().filter(|(at, _)| specs.iter().all(|spec| spec.environment != *at)) {
        tracing::warn!(
            name = named.name,
            environment = at.0,
            "no address of this plug-in host can be reached by san.provider"
        );
    }
    for mailbox in workers.mailboxes() {
        if let Err(error) = mailbox.send(Question::Hosts(specs.clone())) {
            tracing::error!(%error, "a data worker did not receive the list of plug-in hosts");
        }
    }
}

/// Puts the part of the policy into force that concerns addresses of this node. Returns these addresses;
/// `before` are those of the policy in force.
async fn apply(
    (owned, groups, servers): (&OwnedAddresses, &Groups, &Servers),
    workers: &DataWorkers,
    active: &ActivePolicy,
    before: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let policy = &active.policy;
    let services = policy.proxied().filter(|service| service.has_end());
    let services = services.map(|service| (service.vip, service.port));
    // A channel between clients and servers has no owner, since nothing of it outlives a connection.
    let requested = policy.requested_channels().map(|(_, place)| place);
    let (passing, kept): (Vec<Channel>, Vec<Channel>) =
        policy.all_channels().chain(requested).partition(|channel| !channel.pool.is_empty());
    let placements = policy.placements();
    let ends = |channel: &'_ Channel| -> Vec<(IpAddr, u16)> {
        channel.ports().map(|port| (channel.vip, port.port)).collect()
    };
    let services = services.chain(passing.iter().flat_map(ends)).filter(|(vip, _)| owned.contains(*vip));
    let placed = |channel: &Channel| {
        let key = placements.get(&channel.name).copied().unwrap_or_else(|| channel.placement());
        ends(channel).into_iter().map(move |end| (end.into(), key))
    };
    let channels = kept.iter().filter(|channel| owned.contains(channel.vip)).flat_map(placed);
    let egress = policy.egress.iter().map(|e| e.address).filter(|address| owned.contains(*address));
    let services: Vec<SocketAddr> = services.map(SocketAddr::from).collect();
    let (channels, egress): (Vec<_>, Vec<IpAddr>) = (channels.collect(), egress.collect());
    let pools = servers.of_policy(policy, active.generation, owned);
    let forwarded = pools.all().len();
    let rules = RuleSet::new(RULES_MAX, &services, &channels, pools, &egress, before);
    let GroupRules { all, own, moved } = groups.of_policy(policy, owned);
    let rules = rules.map_err(|error| error.to_string())?.with_groups(all, &moved);
    for mailbox in workers.mailboxes() {
        let own = Box::new(rules.clone());
        let done = mailbox.ask(POLICY_TIMEOUT, |reply| Question::Rules(own, reply)).await;
        done.map_err(|error| format!("a data worker did not apply the policy: {error}"))?;
    }
    servers.rules_are_in_force(services.len() + channels.len() > 0);
    if let Some(first) = workers.mailboxes().first() {
        first
            .send(Question::Groups(own))
            .map_err(|error| format!("worker 0 does not take part in elections: {error}"))?;
    }
    let owned = services.len() + channels.len() + forwarded;
    let (generation, all) = (active.generation, policy.ends().count());
    tracing::info!(generation, services = owned, of = all, "policy in force");
    if owned == 0 && egress.is_empty() && !policy.addresses().is_empty() {
        tracing::warn!(
            "this node owns no VIP or egress address of the policy; see owns in its configuration"
        );
    }
    Ok(rules.addresses().to_vec())
}

/// Returns whether this node's own registration says that it drains.
fn is_draining(config: &Config, membership: &Membership) -> bool {
    membership.nodes.get(&config.node.id).is_some_and(|own| own.record.draining)
}

fn set_readiness(readiness: &Readiness, workers: &DataWorkers, need_no_proxy: bool) {
    let tunnels = workers.threads.iter().map(|thread| thread.published().read().tunnels()).min();
    match tunnels.unwrap_or_default() {
        _ if need_no_proxy => readiness.set("tunnels", ConditionState::Ok, ""),
        (0, _) => readiness.set("tunnels", ConditionState::Failed, "no proxy is connected"),
        (up, wanted) if up < wanted => {
            let reason = format!("{up} of {wanted} proxy workers are connected");
            readiness.set("tunnels", ConditionState::Degraded, reason);
        }
        _ => readiness.set("tunnels", ConditionState::Ok, ""),
    }
}
