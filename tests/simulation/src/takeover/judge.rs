//! The conditions that every run must meet.

use std::collections::{BTreeMap, BTreeSet};

use csp_types::{Duration, Instant};

use super::host::HELD_MAX;
use super::scenario::{PROXIES_MAX, TakeoverScenario};
use super::world::TakeoverWorld;
use crate::conversation::Ended;
use crate::judge::{Findings, links_in_breach};

/// Time within which a visit after the faults must be complete, on a LAN that may lose its first segments.
pub(super) const LATE_MAX: Duration = Duration::from_secs(12);

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakeoverReport {
    /// Visits that completed.
    pub complete: usize,
    /// How often each fault struck a network node.
    pub struck: BTreeMap<&'static str, u64>,
    /// How often a network node took the group.
    pub gains: u64,
    /// The longest time in which nobody held the group.
    pub vacant_max: Duration,
    /// The longest time in which nobody held it although the nodes were undisturbed.
    pub vacant_calm_max: Duration,
    /// Instants at which no running network node reached a majority of the proxies.
    pub minorities: u64,
    /// Segments that nobody knew, and that were dropped since a proxy could not be asked.
    pub doubtful: u64,
    /// Violated conditions; empty in a correct run.
    pub violations: Vec<String>,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Counters of all nodes: equal if and only if the same events happened.
    pub counters: String,
}

/// What is known of the present, for the conditions that hold at every instant.
#[derive(Default)]
pub(super) struct Watch {
    /// Since when each network node is cut from each proxy.
    cut: [[Option<Instant>; PROXIES_MAX]; 2],
    disturbed: Instant,
    vacant_since: Option<Instant>,
    /// Conditions that were violated already: one report of each is enough.
    violated: BTreeSet<&'static str>,
}

impl Watch {
    /// Records that a fault begins or ends.
    pub(super) fn disturbed(&mut self, now: Instant) {
        self.disturbed = now;
    }

    /// Records that the way between a network node and a proxy is cut, or mended.
    pub(super) fn cut(&mut self, now: Instant, (node, proxy): (usize, usize), is_cut: bool) {
        let since = &mut self.cut[node][proxy];
        *since = if is_cut { since.or(Some(now)) } else { None };
    }

    /// Returns how many proxies a network node reached in the last `lately`.
    fn reached(&self, now: Instant, node: usize, proxies: usize, lately: Duration) -> usize {
        let ways = self.cut[node].iter().take(proxies);
        ways.filter(|since| since.is_none_or(|since| since + lately >= now)).count()
    }
}

fn violate(world: &mut TakeoverWorld, what: &'static str, detail: &str) {
    if world.watch.violated.insert(what) {
        let since = world.now.saturating_since(world.began);
        let text = format!("{since:?} after the start {what}{detail}: {}", world.describe());
        world.report.violations.push(text);
    }
}

/// Checks what a network node has transmitted in its turn. `held`: whether it held the group before.
pub(super) fn after_turn(world: &mut TakeoverWorld, node: usize, held: bool) {
    let (now, proxies) = (world.now, world.proxies.len());
    let claims = world.hosts[node].tap.take_claims();
    let holds = world.hosts[node].holds(now);
    if claims > 0 && !held && !holds {
        violate(world, "a network node claims the VIP without holding it", "");
    }
    if claims > 0 && world.hosts[1 - node].holds(now) {
        violate(world, "a network node claims the VIP while the other one holds it", "");
    }
    if world.hosts[node].take_gain() {
        world.report.gains += 1;
        let reached = world.watch.reached(now, node, proxies, HELD_MAX);
        if reached < proxies / 2 + 1 {
            let detail = format!(" ({reached} of {proxies} proxies)");
            violate(world, "a network node takes the group without a majority", &detail);
        }
    }
}

/// Checks the conditions of an instant at which all nodes have come to rest.
pub(super) fn look(world: &mut TakeoverWorld) {
    let (now, proxies) = (world.now, world.proxies.len());
    let holders: Vec<usize> = (0..2).filter(|node| world.hosts[*node].holds(now)).collect();
    if holders.len() > 1 {
        violate(world, "both network nodes hold the group", "");
    }
    for holder in &holders {
        let reached = world.watch.reached(now, *holder, proxies, HELD_MAX);
        if reached < proxies.div_ceil(2) {
            let detail = format!(" ({reached} of {proxies} proxies)");
            violate(world, "a network node keeps the group with votes that others may have", &detail);
        }
    }
    let mut ended = world.clients.iter().flat_map(|client| &client.ended);
    if let Some((key, how)) = ended.find(|(_, how)| *how != Ended::Complete) {
        let detail = format!(" ({key:08x}, {how:?})");
        violate(world, "a client's connection ended early", &detail);
    }
    let reaches = |node: usize| world.watch.reached(now, node, proxies, Duration::ZERO) > proxies / 2;
    let somebody = (0..2).any(|node| world.hosts[node].runs() && reaches(node));
    world.report.minorities += u64::from(!somebody);
    if world.began == Instant::ZERO || !holders.is_empty() {
        world.watch.vacant_since = None;
        return;
    }
    let since = *world.watch.vacant_since.get_or_insert(now);
    world.report.vacant_max = world.report.vacant_max.max(now - since);
    if !somebody {
        return;
    }
    let calm = now - since.max(world.watch.disturbed);
    world.report.vacant_calm_max = world.report.vacant_calm_max.max(calm);
    if calm > TakeoverScenario::RECOVERY {
        violate(world, "nobody holds the group although a network node could", "");
    }
}

/// Checks that the visits after the faults are over.
pub(super) fn look_for_late(world: &mut TakeoverWorld) {
    let (visits, late) = world.visits();
    let ended: BTreeSet<u32> =
        world.clients.iter().flat_map(|client| &client.ended).map(|(key, _)| *key).collect();
    if (visits..visits + late).any(|at| !ended.contains(&world.key_of(at))) {
        violate(world, "a visit after the faults takes too long", "");
    }
}

/// Returns every table that is not empty.
pub(super) fn leftovers(world: &TakeoverWorld) -> Vec<String> {
    let mut found = Findings::default();
    world.clients.iter().for_each(|client| found.left_at_client(client));
    for (at, proxy) in world.proxies.iter().enumerate() {
        found.left_at_proxy(at, &proxy.worker);
    }
    for (at, host) in world.hosts.iter().enumerate() {
        host.workers.iter().for_each(|(worker, _)| found.left_at_network_node(at, worker));
    }
    found.left_at_process(0, &world.application);
    found.0
}

/// Fills the world's report.
pub(super) fn judge(world: &mut TakeoverWorld) {
    let mut ended: BTreeMap<u32, Vec<Ended>> = BTreeMap::new();
    for (key, how) in world.clients.iter().flat_map(|client| &client.ended) {
        ended.entry(*key).or_default().push(how.clone());
    }
    let mut report = std::mem::take(&mut world.report);
    let (visits, late) = world.visits();
    for at in 0..visits + late {
        match ended.remove(&world.key_of(at)).unwrap_or_default()[..] {
            [Ended::Complete] => report.complete += 1,
            ref hows => report.violations.push(format!("visit {at} ended as {hows:?}")),
        }
    }
    report.violations.extend(ended.keys().map(|key| format!("{key:08x} ended, but was never requested")));
    report.violations.extend(world.clients.iter().flat_map(|client| client.corrupt.iter().cloned()));
    report.violations.extend_from_slice(&world.application.corrupt);
    let mut found = Findings::default();
    for (at, proxy) in world.proxies.iter().enumerate() {
        found.errors_at_proxy(at, &proxy.worker, links_in_breach);
    }
    for (at, host) in world.hosts.iter().enumerate() {
        let workers = host.workers.iter().map(|(worker, _)| worker);
        workers.for_each(|worker| found.errors_at_network_node(at, worker, links_in_breach));
    }
    found.errors_at_process(0, &world.application, links_in_breach);
    report.violations.append(&mut found.0);
    let workers = world.hosts.iter().flat_map(|host| &host.workers);
    report.doubtful = workers.map(|(worker, _)| worker.core().counters().drop_no_proxy).sum();
    report.counters = counters(world);
    world.report = report;
}

fn counters(world: &TakeoverWorld) -> String {
    let mut text = String::new();
    for client in &world.clients {
        text += &format!("client {:?}\n", client.tcp().counters());
    }
    for (at, proxy) in world.proxies.iter().enumerate() {
        let core = proxy.worker.core();
        text += &format!("pn-{} {:?} {:?}\n", at + 1, core.counters(), core.tcp().counters());
    }
    for host in &world.hosts {
        for (number, (worker, faults)) in host.workers.iter().enumerate() {
            let (counters, lan) = (worker.core().counters(), faults.counters());
            let gains = worker.election_counts();
            text += &format!("{} worker {number} {counters:?} LAN {lan:?} {gains:?}\n", host.name);
        }
    }
    text + &world.application.describe()
}
