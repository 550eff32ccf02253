//! Two network nodes at once for one VIP: a router spreads the clients' packets over both, by a hash of
//! addresses and ports, and changes its mind. No client's connection ends.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use csp_api::network::Flow;
use csp_cluster::prober::{Prober, now_s};
use csp_cluster::several::{self, APP_NODES, Lans, NETWORK_NODES, PROXIES, SINGLE_PORT, Several};
use csp_cluster::steady::{SETTLED, Steady, end, going_on};
use csp_cluster::{Far, San, wait_until};

/// Clients of each service of nginx on each of the two hosts.
const CLIENTS: usize = 4;
/// What the router does: one next hop removed, added again, other weights, the other one removed.
const WEIGHTS: [[u32; 2]; 8] = [[1, 0], [1, 1], [3, 1], [1, 1], [1, 3], [0, 1], [1, 0], [1, 1]];
/// How long a router may take to notice that a network node is gone: BFD with its usual times.
const NOTICED: Duration = Duration::from_millis(900);

fn routed(name: &str, san: San) -> Option<Several> {
    let mut cluster = several::lay_out(name, san, Lans::Routed)?;
    cluster.serve().unwrap();
    Some(cluster)
}

/// Starts clients of each service on both hosts, half of them while a proxy drains: a network node that does
/// not know these connections later asks that proxy first.
fn clients(cluster: &Several) -> Vec<Steady> {
    let (first, mut all) = (PROXIES[0], Vec::new());
    for begin in ["resume", "drain"] {
        cluster.cspctl(&[begin, first]).unwrap();
        for host in &cluster.clients {
            for port in (SINGLE_PORT..).take(APP_NODES.len()) {
                let one = |_| Steady::connect(host, cluster.scratch(), cluster.lans.vip(0), port);
                all.extend((0..CLIENTS / 2).map(one));
            }
        }
        all_go_on(cluster, &mut all, "before the router's changes");
    }
    cluster.cspctl(&["resume", first]).unwrap();
    all
}

/// Returns how many connections of clients a network node forwards.
fn flows(cluster: &Several, id: &str) -> usize {
    let flows: Vec<Flow> = serde_json::from_str(&cluster.ask(id, "/v1/flows?limit=1000").unwrap()).unwrap();
    flows.iter().filter(|flow| flow.state == "bound" && flow.server.port() >= SINGLE_PORT).count()
}

fn metric(cluster: &Several, id: &str, name: &str) -> f64 {
    let text = cluster.ask(id, "/metrics").unwrap();
    let of = |line: &str| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok();
    text.lines().filter_map(of).sum()
}

/// Waits until a network node says that it is in service, or that it is not.
fn wait_in_service(cluster: &Several, id: &str, wanted: bool) {
    wait_until("/in-service", SETTLED, || (cluster.ask(id, "/in-service").is_ok() == wanted).then_some(()))
        .unwrap_or_else(|error| panic!("{id}, wanted {wanted}: {error:#}\n{}", cluster.logs()));
}

fn all_go_on(cluster: &Several, all: &mut [Steady], when: &str) {
    let count = all.len();
    let last = |all: &[Steady]| all.iter().map(|steady| steady.last() + "\n").collect::<String>();
    assert_eq!(going_on(all), count, "clients {when}\n{}{}", last(all), cluster.logs());
}

/// Transfers in both directions that run while the routes change, until `stop`.
fn transfers(cluster: &Several, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        for client in 0..cluster.clients.len() {
            cluster.download(client, 80, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
            cluster.upload(client, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
            count.fetch_add(2, Ordering::Relaxed);
        }
    }
}

/// Changes the routes, slowly and then fast, beside transfers.
fn changes(cluster: &Several, all: &mut [Steady]) {
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let of_all = |name| NETWORK_NODES.iter().map(|id| metric(cluster, id, name)).sum::<f64>();
    let [bound, returned] = ["csp_label_bindings_total", "csp_segments_returned_total"];
    let before = [of_all(bound), of_all(returned)];
    let mut changed = 0;
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| transfers(cluster, &stop, &count));
        for _ in 0..rounds {
            for weights in WEIGHTS {
                cluster.route(weights).unwrap();
                all_go_on(cluster, all, &format!("with the weights {weights:?}"));
            }
            for weights in WEIGHTS.iter().cycle().take(5 * WEIGHTS.len()) {
                cluster.route(*weights).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
            all_go_on(cluster, all, "after changes every 100 ms");
            changed += 6 * WEIGHTS.len();
        }
    });
    let count = count.into_inner();
    // Each transfer has a connection of its own, whose first label is no move.
    let moves = of_all(bound) - before[0] - count as f64;
    let returned = of_all(returned) - before[1];
    println!(
        "  {changed} changes of the routes: {} connections go on, {count} transfers of 4 MiB are whole; {moves} times a \
         connection came to the other network node, {returned} answers of proxies that did not have it",
        all.len(),
    );
    assert!(moves > all.len() as f64, "hardly any connection has moved");
    assert!(returned > 0.0, "no connection was searched for");
}

/// Ends the transfers, after a failure, too: the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A network node is taken out as docs/operations.md says: drained, its route withdrawn, stopped.
fn taken_out(cluster: &mut Several, all: &mut [Steady]) {
    let first = NETWORK_NODES[0];
    let prober = Prober::start(&cluster.clients[0], cluster.scratch(), cluster.lans.vip(0), 80);
    wait_until("the VIP to answer", SETTLED, || prober.is_up_since(0.0).then_some(())).unwrap();
    let began = now_s();
    cluster.cspctl(&["drain", first]).unwrap();
    wait_in_service(cluster, first, false);
    all_go_on(cluster, all, "through a node that drains");
    cluster.route([0, 1]).unwrap();
    thread::sleep(Duration::from_millis(200));
    cluster.stop_daemon(first).unwrap();
    all_go_on(cluster, all, "after a node was stopped");
    cluster.start(first).unwrap();
    cluster.wait_recovered(first).unwrap();
    wait_in_service(cluster, first, false);
    cluster.cspctl(&["resume", first]).unwrap();
    wait_in_service(cluster, first, true);
    cluster.route([1, 1]).unwrap();
    all_go_on(cluster, all, "after it was started again");
    let gap = prober.longest_gap(began);
    println!("  drained, stopped, started: no new connection for {:.0} ms at most", gap * 1e3);
    assert!(gap <= 0.5, "no answer for {gap:.3} s");
}

/// A network node dies, and the router notices late.
fn killed(cluster: &mut Several, all: &mut [Steady]) {
    let first = NETWORK_NODES[0];
    cluster.daemon(first).unwrap().kill();
    thread::sleep(NOTICED);
    cluster.route([0, 1]).unwrap();
    all_go_on(cluster, all, "after a node was killed");
    cluster.start(first).unwrap();
    cluster.wait_recovered(first).unwrap();
    wait_in_service(cluster, first, true);
    cluster.route([1, 1]).unwrap();
    all_go_on(cluster, all, "after it was started again");
    println!("  killed, route withdrawn {} ms later: connections go on", NOTICED.as_millis());
}

/// A network node that reaches no proxy says so.
fn cut_off(cluster: &Several, all: &mut [Steady]) {
    let first = NETWORK_NODES[0];
    cluster.host(first).ip(&["link", "set", "san0", "down"]).unwrap();
    // Asked at its host, where the address is: the SAN is down for others.
    wait_in_service(cluster, first, false);
    cluster.route([0, 1]).unwrap();
    all_go_on(cluster, all, "after a node was cut off from the proxies");
    cluster.host(first).ip(&["link", "set", "san0", "up"]).unwrap();
    wait_in_service(cluster, first, true);
    cluster.route([1, 1]).unwrap();
    all_go_on(cluster, all, "after it was connected again");
    println!("  cut off from all proxies, route withdrawn: connections go on");
}

fn spread(name: &str, san: San) {
    let Some(mut cluster) = routed(name, san) else { return };
    let mut all = clients(&cluster);
    let spread = NETWORK_NODES.map(|id| flows(&cluster, id));
    println!("  {} connections, by network node: {spread:?}", all.len());
    assert!(spread.iter().all(|count| *count > 0), "one network node has no connections");
    changes(&cluster, &mut all);
    for id in ["an-1", "an-2"] {
        cluster.egress(id, 0, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
    }
    taken_out(&mut cluster, &mut all);
    killed(&mut cluster, &mut all);
    if san != San::Shm {
        cut_off(&cluster, &mut all);
    }
    for id in NETWORK_NODES {
        assert_eq!(metric(&cluster, id, "csp_address_conflicts_total"), 0.0, "{id}");
    }
    end(all);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
#[ignore = "depends on load: make test-front"]
fn a_router_spreads_connections_over_shm() {
    spread("ecmpshm", San::Shm);
}

#[test]
#[ignore = "depends on load: make test-front"]
fn a_router_spreads_connections_over_tcp() {
    spread("ecmptcp", San::Apart(Far::Tcp));
}
