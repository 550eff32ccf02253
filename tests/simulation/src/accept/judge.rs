//! The conditions that every run must meet.

use std::collections::BTreeMap;

use csp_proxy_node::core::{MemberSnapshot, ServerHost};
use csp_types::{Duration, FlowLabel, Instant, TraceKind};

use super::crowd::{Crowd, Fate};
use super::world::{AcceptWorld, TRACE_EVENTS};
use crate::judge::broken_links;

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AcceptReport {
    /// Conditions that were not met; empty if all were.
    pub violations: Vec<String>,
    /// Connections that were served.
    pub served: usize,
    /// Connections that their clients aborted.
    pub left: usize,
    /// Connections that ended with a process that had accepted them.
    pub lost: usize,
    /// Offers that processes handed back.
    pub refused: u64,
    /// Offers that the proxy withdrew.
    pub withdrawn: u64,
    /// SYNs dropped because the backlog was full.
    pub syns_dropped: u64,
    /// Number of listeners' pauses that lasted.
    pub pauses_ended: u64,
    /// Connections that a client aborted before a process accepted them.
    pub gone_before_accept: u64,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Counters of all nodes: equal if and only if the same events happened.
    pub counters: String,
}

/// Fills the world's report.
pub(super) fn judge(world: &mut AcceptWorld) {
    let mut report = std::mem::take(&mut world.report);
    judge_clients(world, &mut report);
    let sent = opens_sent(world);
    judge_order(world, &sent, &mut report.violations);
    report.violations.extend(protocol_errors(world));
    report.violations.extend(leftovers(world));
    let core = world.proxy.core();
    let counters = core.counters();
    report.refused = counters.opens_refused;
    report.withdrawn = counters.offers_withdrawn;
    report.syns_dropped = core.tcp().counters().dropped_backlog_full;
    for server in world.all_servers() {
        let counters = server.side().counters();
        report.pauses_ended += counters.pauses_ended;
        report.gone_before_accept += counters.gone_before_accept;
        report.counters += &format!("{} {:?} {counters:?}\n", server.name, server.plan);
    }
    report.counters += &format!("{counters:?}\n{:?}", core.tcp().counters());
    if world.scenario.only_toggling() && report.refused + report.pauses_ended > 0 {
        let text = format!("{} offers refused, though every pause was short", report.refused);
        report.violations.push(text);
    }
    world.report = report;
}

/// Checks that every client that stays is served; only a killed process may end connections.
fn judge_clients(world: &AcceptWorld, report: &mut AcceptReport) {
    for (number, (fate, visit)) in world.crowd.fates.iter().zip(&world.scenario.visits).enumerate() {
        match fate {
            Some((_, Fate::Served)) => report.served += 1,
            Some((_, Fate::Left)) if visit.leaves.is_some() => report.left += 1,
            Some((_, Fate::Short(_) | Fate::Failed(_))) if world.excused.contains(&number) => {
                report.lost += 1;
            }
            fate => report.violations.push(format!("connection {number} {visit:?} ended as {fate:?}")),
        }
    }
}

/// How often each connection was offered, and when first, in the order of the first offers.
struct Opens {
    counts: BTreeMap<FlowLabel, u32>,
    firsts: Vec<(FlowLabel, Instant)>,
}

/// `None` if the flight recorder has overwritten some of the events.
fn opens_sent(world: &AcceptWorld) -> Option<Opens> {
    let trace = world.proxy.core().trace();
    let mut opens = Opens { counts: BTreeMap::new(), firsts: Vec::new() };
    for event in trace.iter().filter(|event| event.kind == TraceKind::OpenSent) {
        let count = opens.counts.entry(event.label).or_insert(0);
        *count += 1;
        if *count == 1 {
            opens.firsts.push((event.label, event.at));
        }
    }
    (trace.iter().count() < TRACE_EVENTS).then_some(opens)
}

/// Checks that connections are first offered in the order of their arrival, and accepted in this order by
/// each process among those that were offered only once. Two links to one process do not keep the order
/// between each other.
fn judge_order(world: &AcceptWorld, opens: &Option<Opens>, violations: &mut Vec<String>) {
    let Some(opens) = opens else {
        return violations.push("the flight recorder is too short for this run".to_owned());
    };
    let arrival = |label: &FlowLabel| world.arrivals.get(label).copied();
    let mut last = (Instant::ZERO, None);
    for (label, at) in &opens.firsts {
        let Some((arrived, client)) = arrival(label) else { continue };
        if arrived < last.0 {
            violations.push(format!("{client} arrived at {arrived:?}, was offered at {at:?} after {last:?}"));
        }
        last = last.max((arrived, Some(client)));
    }
    let offered_once = opens.counts.iter().filter(|(_, count)| **count == 1).filter_map(|(l, _)| arrival(l));
    let arrivals: BTreeMap<usize, Instant> =
        offered_once.map(|(arrived, client)| (Crowd::number_of(client), arrived)).collect();
    for server in world.all_servers().filter(|server| server.plan.links == 1) {
        let mut last = (Instant::ZERO, 0);
        for number in server.accepted.iter().map(|client| Crowd::number_of(*client)) {
            let Some(&arrived) = arrivals.get(&number) else { continue };
            if arrived < last.0 {
                let text = format!("{} accepted {number}, which came before {last:?}", server.name);
                violations.push(format!("{text}: {arrived:?}"));
            }
            last = last.max((arrived, number));
        }
    }
}

/// Returns what is left after all clients were served: connections, and accept credit other than that of idle
/// processes.
pub(super) fn leftovers(world: &AcceptWorld) -> Vec<String> {
    let mut found = Vec::new();
    let core = world.proxy.core();
    let mut look = |table: &str, left: usize| {
        if left > 0 {
            found.push(format!("{left} {table} are left"));
        }
    };
    look("connections at the proxy", core.flow_count());
    look("bytes of send budget", core.budget_reserved() as usize);
    for server in world.servers.iter().flatten() {
        look("connections at a process", server.side().flow_count());
    }
    let services = core.services();
    for service in &services {
        look("connections in the backlog", service.pending);
        service.members.iter().for_each(|m| look("connections at a pool member", m.open as usize));
    }
    for service in services {
        for MemberSnapshot { host, port, listeners, accept_credit: credit, .. } in service.members {
            let here = |at: usize| {
                let (name, its_port) = world.scenario.members[at];
                host == ServerHost::Node(name.parse().expect("a node id")) && port == its_port
            };
            let servers = world.servers.iter().flatten().filter(|server| here(server.plan.member));
            let ranges: Vec<(u64, u64)> = servers.map(|server| server.credit_range()).collect();
            let (least, most) = ranges.iter().fold((0, 0), |sum, range| (sum.0 + range.0, sum.1 + range.1));
            if listeners != ranges.len() || credit < least || credit > most {
                found.push(format!(
                    "{listeners} listeners at {host:?}:{port} with credit {credit}: {ranges:?}"
                ));
            }
        }
    }
    found
}

/// Checks that no protocol violation was counted, and nothing dropped for lack of a process or of time.
fn protocol_errors(world: &AcceptWorld) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |actor: &str, what: &str, count: u64| {
        if count > 0 {
            found.push(format!("{actor}: {count} {what}"));
        }
    };
    let counters = world.proxy.core().counters();
    look("proxy", "malformed messages", world.proxy.malformed());
    look("proxy", "violations by processes", counters.violations);
    look("proxy", "connections dropped for want of a process", counters.drop_no_server);
    look("proxy", "connections that waited too long", counters.drop_backlog_time);
    look("proxy", "connections dropped for want of memory", counters.drop_no_budget);
    for endpoint in world.proxy.endpoints() {
        look("proxy", "links that broke the protocol", broken_links(endpoint.counters()));
    }
    for server in world.all_servers() {
        let counters = server.side().counters();
        look(&server.name, "violations by the proxy", counters.protocol_violations);
        look(&server.name, "offers to a listener that it does not poll", server.late_offers);
        look(&server.name, "listeners with connections though a pause had lasted", server.kept.into());
        look(&server.name, "listeners refused", counters.listen_refused);
        look(
            &server.name,
            "links that broke the protocol",
            broken_links(server.side().endpoint().counters()),
        );
    }
    found
}
