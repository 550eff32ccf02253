//! The conditions that every run must meet.

use std::collections::BTreeMap;

use csp_network_node::NetworkWorker;
use csp_proxy_node::ProxyWorker;
use csp_proxy_node::core::ServiceCounters;
use csp_types::Duration;

use crate::application::{self, Application};
use crate::client::Client;
use crate::conversation::Ended;
use crate::http::is_post;
use crate::proxy;
use crate::scenario::Transaction;
use crate::world::World;

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Hairpins opened.
    pub hairpins: u64,
    /// Records that a proxy handed over to a network node's worker of its thread.
    pub handed_over: u64,
    /// Buffers in which a network node left records for the proxy that shares its thread.
    pub left: u64,
    /// Datagrams that network nodes reassembled.
    pub reassembled: u64,
    /// Transactions that completed.
    pub complete: usize,
    /// Those that were aborted as planned.
    pub aborted: usize,
    /// Transactions that ended early or failed, which only an incident permits.
    pub broken: usize,
    /// Refused transactions that ended early since a reset waits for the data before it for a bounded time.
    pub overdue: usize,
    /// Uploads stopped by a closed window at the end of a stall.
    pub windows_closed: usize,
    /// Requests of HTTP that processes have read twice.
    pub repeated: usize,
    /// Connections of HTTP that ended before all of their requests were served, which others then were.
    pub resent: u64,
    /// Requests of HTTP that proxies sent on a kept connection to a process.
    pub reused: u64,
    /// Kept connections to processes that turned out closed.
    pub stale: u64,
    /// Violated conditions; empty in a correct run.
    pub violations: Vec<String>,
    /// When the last transaction ended whose client always read, relative to the earliest start.
    pub prompt_end: Duration,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Least and greatest smoothed round-trip time of a client at a proxy, in microseconds; zeros before any
    /// sample.
    pub srtt_us: (u64, u64),
    /// What the proxies have counted for the service.
    pub by_service: ServiceCounters,
    /// Counters of all nodes: equal if and only if the same events happened.
    pub counters: String,
}

/// Longest head of a request of HTTP here in bytes.
const HEAD_LEN_MAX: u64 = 200;

/// Returns whether all tables are empty.
pub(crate) fn is_clean(world: &World) -> bool {
    leftovers(world).is_empty()
}

/// Fills the world's report.
pub(crate) fn judge(world: &mut World) {
    let mut ended: BTreeMap<u32, Vec<Ended>> = BTreeMap::new();
    let applications = world.applications.iter().flatten().flat_map(|a| a.ended.iter());
    for (key, how) in world.client.ended.iter().chain(applications) {
        ended.entry(*key).or_default().push(how.clone());
    }
    let mut report = std::mem::take(&mut world.report);
    let mut overdue = resets_overdue(world);
    for (at, transaction) in world.scenario.work.iter().enumerate() {
        let hows = ended.remove(&world.key_of(at)).unwrap_or_default();
        match &hows[..] {
            [how] => judge_one(world, &mut report, &mut overdue, (at, transaction), how),
            // It died with the process that requested it.
            [] if transaction.by_process == Some(0) && world.applications[0].is_none() => report.broken += 1,
            _ => {
                report.violations.push(format!("transaction {at} {transaction:?} ended {} times", hows.len()))
            }
        }
    }
    judge_served(world, &mut report);
    report.violations.extend(ended.keys().map(|key| format!("{key:08x} ended, but was never requested")));
    report.violations.extend_from_slice(&world.client.corrupt);
    for application in world.applications.iter().flatten() {
        report.violations.extend_from_slice(&application.corrupt);
    }
    report.violations.append(&mut leftovers(world));
    report.violations.append(&mut protocol_errors(world));
    let of_proxy = |proxy: &ProxyWorker| proxy.core().counters().connections_hairpin;
    report.hairpins = world.proxies.iter().flatten().map(of_proxy).sum();
    let workers = world.networks.iter().flatten().flat_map(|network| &network.workers);
    report.left = world.proxies.iter().flatten().map(|proxy| proxy.buffers_left()).sum();
    report.handed_over = world.proxies.iter().flatten().map(|proxy| proxy.records_handed_over()).sum();
    report.reassembled =
        workers.map(|(worker, _)| worker.get().core().counters().datagrams_reassembled).sum();
    judge_counters(world, &mut report);
    report.counters = counters(world);
    report.prompt_end = world.client.prompt_end.saturating_since(world.began);
    world.report = report;
}

/// Judges how often processes have read each request of HTTP.
fn judge_served(world: &World, report: &mut Report) {
    let Some(_) = &world.scenario.http else { return };
    let mut served = world.http.served.clone();
    for (key, count) in world.applications.iter().flatten().flat_map(|it| &it.served) {
        *served.entry(*key).or_default() += count;
    }
    let may_repeat = world.scenario.incident.may_break_clients();
    for (at, transaction) in world.scenario.work.iter().enumerate() {
        let key = world.key_of(at);
        let count = served.remove(&key).unwrap_or(0);
        // A response may be lost with the process or the channel, and the request is idempotent.
        let most = if may_repeat && !is_post(key, transaction.upload) { 2 } else { 1 };
        if count > most {
            report.violations.push(format!("transaction {at} {transaction:?} was served {count} times"));
        }
        report.repeated += usize::from(count > 1);
    }
    report.violations.extend(served.keys().map(|key| format!("{key:08x} served, but was never requested")));
    report.resent = world.client.resent;
    for proxy in world.proxies.iter().flatten() {
        let counted = proxy.gateway().snapshot().upstreams;
        report.reused += counted.reused;
        report.stale += counted.stale;
    }
}

/// Judges what the proxies have counted for the service, after all connections have ended.
fn judge_counters(world: &World, report: &mut Report) {
    for proxy in world.proxies.iter().flatten() {
        for (_, _, counters) in proxy.core().service_counters(0, usize::MAX).flatten() {
            report.by_service.add(counters);
        }
    }
    let (opened, ended) = (report.by_service.opened, report.by_service.ended.iter().sum::<u64>());
    if opened != ended {
        report.violations.push(format!("{opened} connections were counted, and {ended} ends of them"));
    }
}

/// Judges one transaction. `overdue`: resets that were sent before all data ahead of them was delivered, each
/// of which may have cut one refused transaction short.
fn judge_one(
    world: &World,
    report: &mut Report,
    overdue: &mut u64,
    (at, transaction): (usize, &Transaction),
    how: &Ended,
) {
    let incident = world.scenario.incident;
    let may_break = !transaction.late
        && if transaction.by_process.is_some() {
            incident.may_break_applications()
        } else {
            incident.may_break_clients()
        };
    match how {
        Ended::Complete if transaction.abort_after.is_none() => report.complete += 1,
        Ended::Aborted if transaction.abort_after.is_some() => report.aborted += 1,
        Ended::Failed(why) if !transaction.late && incident.may_cut_off() && why.ends_with("error 101") => {
            report.broken += 1;
        }
        Ended::Short(_) | Ended::Failed(_) if may_break => report.broken += 1,
        // The time for which a reset waits is bounded.
        Ended::Short(_) | Ended::Failed(_) if transaction.refusal.is_some() && *overdue > 0 => {
            *overdue -= 1;
            report.overdue += 1;
        }
        _ => report.violations.push(format!("transaction {at} {transaction:?} ended as {how:?}")),
    }
}

/// Returns how many resets were sent before all data ahead of them was delivered.
fn resets_overdue(world: &World) -> u64 {
    let at_client = world.client.tcp().counters().resets_overdue;
    let cores = world.proxies.iter().flatten().map(|proxy| proxy.core());
    cores.fold(at_client, |sum, core| {
        sum + core.counters().hairpin_resets_overdue + core.tcp().counters().resets_overdue
    })
}

/// Records the extremes of the proxies' round-trip times of clients.
pub(crate) fn look_at_round_trips(world: &mut World) {
    let flows = world.proxies.iter().flatten().flat_map(|p| p.core().flows(world.now, 64));
    for srtt in flows.map(|flow| flow.srtt_us).filter(|srtt| *srtt > 0) {
        let (least, greatest) = &mut world.report.srtt_us;
        *least = if *least == 0 { srtt } else { srtt.min(*least) };
        *greatest = srtt.max(*greatest);
    }
}

/// At the end of a stall: checks that no upload got further than the windows of proxy and process permit.
pub(crate) fn check_backpressure(world: &mut World) {
    if world.applications.iter().any(Option::is_none) {
        return; // what a dead process had read is unknown
    }
    for upload in world.client.uploads() {
        let read: u64 = world.applications.iter().flatten().map(|a| a.read_of(upload.key)).sum();
        // A head may lose fields.
        let head = if world.scenario.http.is_some() { HEAD_LEN_MAX } else { 0 };
        let most = read + u64::from(application::RECEIVE_WINDOW) + u64::from(proxy::RECEIVE_WINDOW) + head;
        if upload.acknowledged > most {
            let text = format!("{:08x}: {} bytes acknowledged, {read} read", upload.key, upload.acknowledged);
            world.report.violations.push(text);
        }
        world.report.windows_closed += usize::from(upload.window == 0);
    }
}

/// Returns every table that is not empty, with the number of its entries.
fn leftovers(world: &World) -> Vec<String> {
    let mut found = Findings::default();
    found.left_at_client(&world.client);
    for (at, proxy) in world.proxies.iter().enumerate() {
        proxy.iter().for_each(|proxy| found.left_at_proxy(at, proxy));
    }
    for (at, network) in world.networks.iter().enumerate() {
        let workers = network.iter().flat_map(|n| &n.workers);
        workers.for_each(|(worker, _)| found.left_at_network_node(at, &worker.get()));
    }
    for (at, application) in world.applications.iter().enumerate() {
        application.iter().for_each(|application| found.left_at_process(at, application));
    }
    found.0
}

/// Conditions that nodes do not meet, in words.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) Vec<String>);

impl Findings {
    fn left(&mut self, node: &str, table: &str, left: usize) {
        if left > 0 {
            self.0.push(format!("{node} leaks {left} {table}"));
        }
    }

    fn seen(&mut self, node: &str, what: &str, count: u64) {
        if count > 0 {
            self.0.push(format!("{node} saw {count} {what}"));
        }
    }

    pub(crate) fn left_at_client(&mut self, client: &Client) {
        self.left("client", "conversations", client.open());
        for (table, left) in of_tcp(client.tcp()) {
            self.left("client", table, left);
        }
    }

    pub(crate) fn left_at_proxy(&mut self, at: usize, proxy: &ProxyWorker) {
        let (core, node) = (proxy.core(), format!("pn-{}", at + 1));
        let lent = proxy.bytes_lent() / core.tcp().config().block_len;
        for (table, left) in of_tcp(core.tcp()) {
            self.left(&node, table, if table == BLOCKS { left.abs_diff(lent) } else { left });
        }
        self.left(&node, "flows", core.flow_count());
        self.left(&node, "connections of local services to members", core.upstream_count());
        let (clients, members) = proxy.gateway().connections();
        self.left(&node, "clients of HTTP", clients);
        self.left(&node, "connections of HTTP to members", members);
        self.left(&node, "exchanges of HTTP", proxy.gateway().snapshot().exchanges as usize);
        self.left(&node, "ends of hairpins", core.hairpin_count());
        self.left(&node, "bytes of send budget", core.budget_reserved() as usize);
        for service in core.services() {
            self.left(&node, "pending connections", service.pending);
            let open: u32 = service.members.iter().map(|m| m.open).sum();
            self.left(&node, "connections counted at pool members", open as usize);
        }
    }

    pub(crate) fn left_at_network_node(&mut self, at: usize, worker: &NetworkWorker) {
        let (core, node) = (worker.core(), format!("nn-{}", at + 1));
        self.left(&node, "flows", core.flow_count());
        self.left(&node, "labels", core.label_count());
        self.left(&node, "datagrams", core.datagram_count());
    }

    pub(crate) fn left_at_process(&mut self, at: usize, application: &Application) {
        self.left(&format!("process {}", at + 1), "flows", application.open());
    }

    /// `counts` returns the links that count, of an endpoint.
    pub(crate) fn errors_at_proxy(&mut self, at: usize, proxy: &ProxyWorker, counts: LinkCount) {
        let (counters, node) = (proxy.core().counters(), format!("pn-{}", at + 1));
        self.seen(&node, "malformed messages", proxy.malformed());
        self.seen(&node, "violations by processes", counters.violations);
        self.seen(&node, "ill-formed segments", counters.drop_malformed);
        self.seen(&node, "writes without room", counters.drop_no_budget);
        for endpoint in proxy.endpoints() {
            self.seen(&node, "links that broke the protocol", counts(endpoint.counters()));
        }
    }

    pub(crate) fn errors_at_network_node(&mut self, at: usize, worker: &NetworkWorker, counts: LinkCount) {
        let node = format!("nn-{}", at + 1);
        self.seen(&node, "malformed messages", worker.malformed());
        self.seen(&node, "ill-formed records", worker.core().counters().drop_bad_record);
        for endpoint in worker.endpoints() {
            self.seen(&node, "links that broke the protocol", counts(endpoint.counters()));
        }
    }

    pub(crate) fn errors_at_process(&mut self, at: usize, application: &Application, counts: LinkCount) {
        let node = format!("process {}", at + 1);
        self.seen(&node, "violations by proxies", application.violations());
        self.seen(&node, "links that broke the protocol", counts(application.link_counters()));
    }
}

/// Returns the number of links that ended although they should not have.
pub(crate) type LinkCount = fn(&csp_transport::Counters) -> u64;

/// The table of payload memory.
const BLOCKS: &str = "payload blocks";

/// Returns the tables of a TCP engine, with the number of their entries.
pub(crate) fn of_tcp(tcp: &csp_tcp::Stack) -> [(&'static str, usize); 5] {
    let o = tcp.occupancy();
    [
        ("connections", o.connections.0),
        ("half-open connections", o.half_open.0),
        ("TIME-WAIT entries", o.time_wait.0),
        (BLOCKS, o.blocks.0),
        ("range sets", o.range_sets.0),
    ]
}

/// All nodes are correct here, so none may count a protocol violation of another.
fn protocol_errors(world: &World) -> Vec<String> {
    let mut found = Findings::default();
    for (at, proxy) in world.proxies.iter().enumerate() {
        proxy.iter().for_each(|proxy| found.errors_at_proxy(at, proxy, broken_links));
    }
    for (at, network) in world.networks.iter().enumerate() {
        let workers = network.iter().flat_map(|n| &n.workers);
        workers.for_each(|(worker, _)| found.errors_at_network_node(at, &worker.get(), broken_links));
    }
    for (at, application) in world.applications.iter().enumerate() {
        application.iter().for_each(|application| found.errors_at_process(at, application, broken_links));
    }
    found.0
}

/// Returns the number of links that died from their peer's actions, or from its silence.
pub(crate) fn broken_links(counters: &csp_transport::Counters) -> u64 {
    links_in_breach(counters) + counters.died_silent
}

/// Returns the number of links that died from their peer's actions.
pub(crate) fn links_in_breach(counters: &csp_transport::Counters) -> u64 {
    counters.died_protocol + counters.died_credit + counters.died_owner
}

fn counters(world: &World) -> String {
    let mut text = format!("client {:?}", world.client.tcp().counters());
    for (at, proxy) in world.proxies.iter().enumerate() {
        let Some(core) = proxy.as_ref().map(|p| p.core()) else { continue };
        text += &format!("\npn-{} {:?} {:?}", at + 1, core.counters(), core.tcp().counters());
        let gateway = proxy.as_ref().map(|proxy| proxy.gateway().snapshot());
        for (service, counted) in gateway.iter().flat_map(|snapshot| &snapshot.services) {
            text += &format!("\npn-{} {}: {counted:?}", at + 1, service.name);
        }
    }
    for (at, network) in world.networks.iter().enumerate() {
        for (number, (worker, faults)) in network.iter().flat_map(|n| &n.workers).enumerate() {
            let worker = worker.get();
            let (counters, lan) = (worker.core().counters(), faults.counters());
            text += &format!("\nnn-{} worker {number} {counters:?} LAN {lan:?}", at + 1);
        }
    }
    for (at, application) in world.applications.iter().enumerate() {
        let Some(application) = application else { continue };
        text += &format!("\nprocess {} {}", at + 1, application.describe());
    }
    text
}
