//! Network nodes of one LAN that the proxies elect for the addresses: one that dies, is silent, has no LAN or
//! drains is followed by the other, and no client's connection ends.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::time::Duration;

use csp_api::network::Groups;
use csp_cluster::prober::{Prober, now_s};
use csp_cluster::several::{self, Lans, NETWORK_NODES, SINGLE_PORT, Several};
use csp_cluster::steady::{SETTLED, Steady, end, going_on};
use csp_cluster::{Far, Host, Process, San, wait_until};

/// Clients of each VIP.
const CLIENTS: usize = 6;

/// A service of the first group whose packets are forwarded, and its server on the LAN.
const SHARED: &str = "10.76.0.102";
const SHARED_PORT: u16 = 8110;
const SERVER: &str = "10.76.0.30";

/// Joins a host to the LAN that has the address of the forwarded service, with a web server on kernel TCP;
/// and puts the service into the policy.
fn forwarded(cluster: &Several, tag: &str) -> (Host, Process) {
    let host = Host::new(&format!("{tag}{}", std::process::id()), "server").unwrap();
    cluster.join_lan(&host, "server").unwrap();
    for setting in ["all.arp_ignore=1", "all.arp_announce=2"] {
        host.run("sysctl", &["-qw", &format!("net.ipv4.conf.{setting}")]).unwrap();
    }
    host.address("lan0", &format!("{SERVER}/24")).unwrap();
    host.address("lo", &format!("{SHARED}/32")).unwrap();
    let conf = cluster.scratch().join("server.conf");
    let shown = cluster.scratch().display();
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {shown}/server.pid;\nerror_log {shown}/server.log;\nuser root;\n\
         events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nkeepalive_requests 10000000;\n\
         server {{\nlisten {SHARED_PORT};\nroot {shown}/www;\n}}\n}}\n"
    );
    std::fs::write(&conf, text).unwrap();
    let mut nginx = host.command("nginx");
    nginx.args(["-c", &conf.display().to_string()]);
    let nginx = Process::spawn("a plain nginx", nginx, &cluster.scratch().join("log/server.log")).unwrap();
    let path = cluster.scratch().join("policy.yaml");
    let service = format!(
        "services:\n  - {{name: shared, vip: {SHARED}, port: {SHARED_PORT}, via: network, pool: [{{address: {SERVER}, port: {SHARED_PORT}}}]}}\n"
    );
    let policy = std::fs::read_to_string(&path).unwrap().replacen("services:\n", &service, 1);
    std::fs::write(&path, policy).unwrap();
    cluster.cspctl(&["policy", "apply", &path.to_string_lossy()]).unwrap();
    let url = format!("http://{SHARED}:{SHARED_PORT}/1KiB");
    wait_until("the forwarded service", SETTLED, || {
        let asked = cluster.clients[0].output("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]);
        asked.is_ok_and(|output| output.status.success()).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.logs()));
    (host, nginx)
}

/// Returns the groups that a node holds.
fn held(cluster: &Several, id: &str) -> Option<Vec<String>> {
    let answer: Groups = serde_json::from_str(&cluster.ask(id, "/v1/groups").ok()?).ok()?;
    let held = answer.groups.iter().filter(|group| group.held_ms.is_some());
    Some(held.map(|group| group.name.to_string()).collect())
}

/// Waits until each node holds what it should.
fn wait_held(cluster: &Several, wanted: [&[&str]; 2]) {
    wait_until("the groups to be held where they should", SETTLED, || {
        let all = NETWORK_NODES.iter().zip(wanted);
        let as_wanted = |(id, names): (&&str, &[&str])| {
            // A stopped daemon answers nothing, and holds nothing.
            names.is_empty() || held(cluster, id).is_some_and(|held| held == names)
        };
        all.into_iter().all(as_wanted).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.logs()));
}

const APART: [&[&str]; 2] = [&["vips-1"], &["vips-2"]];
const AT_SECOND: [&[&str]; 2] = [&[], &["vips-1", "vips-2"]];

/// What a fault does to the first node, and how it is mended.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// The process is killed, and started again.
    Kill,
    /// It is stopped by SIGTERM, and started again.
    Terminate,
    /// It gets SIGSTOP, and SIGCONT later.
    Stop,
    /// The cable of its LAN is pulled.
    LanCut,
    /// The cable of its SAN is pulled: neither proxies nor etcd are reached.
    SanCut,
    /// `cspctl drain`, and `resume`.
    Drain,
}

fn begin(cluster: &mut Several, fault: Fault) {
    let first = NETWORK_NODES[0];
    match fault {
        Fault::Kill => cluster.daemon(first).unwrap().kill(),
        Fault::Terminate => cluster.stop_daemon(first).unwrap(),
        Fault::Stop => cluster.daemon(first).unwrap().signal("STOP").unwrap(),
        Fault::LanCut => cluster.host(first).ip(&["link", "set", "lan0", "down"]).unwrap(),
        Fault::SanCut => cluster.host(first).ip(&["link", "set", "san0", "down"]).unwrap(),
        Fault::Drain => _ = cluster.cspctl(&["drain", first]).unwrap(),
    }
}

fn mend(cluster: &mut Several, fault: Fault) {
    let first = NETWORK_NODES[0];
    match fault {
        Fault::Kill | Fault::Terminate => cluster.start(first).unwrap(),
        Fault::Stop => cluster.daemon(first).unwrap().signal("CONT").unwrap(),
        Fault::LanCut => cluster.host(first).ip(&["link", "set", "lan0", "up"]).unwrap(),
        Fault::SanCut => cluster.host(first).ip(&["link", "set", "san0", "up"]).unwrap(),
        Fault::Drain => _ = cluster.cspctl(&["resume", first]).unwrap(),
    }
}

/// Runs one fault and its end. Returns for how long the first VIP did not answer new connections, during the
/// takeover and on the way back, in seconds.
fn round(cluster: &mut Several, fault: Fault) -> [f64; 2] {
    let vips = [cluster.lans.vip(0), cluster.lans.vip(1)];
    let mut all = Vec::new();
    for (at, vip) in vips.iter().enumerate() {
        let one = |client: usize| {
            Steady::connect(&cluster.clients[client % 2], cluster.scratch(), vip, SINGLE_PORT + at as u16)
        };
        all.extend((0..CLIENTS).map(one));
    }
    let shared = |at: usize| Steady::connect(&cluster.clients[at], cluster.scratch(), SHARED, SHARED_PORT);
    all.extend((0..2).map(shared));
    let prober = Prober::start(&cluster.clients[0], cluster.scratch(), vips[0], 80);
    let count = all.len();
    assert_eq!(going_on(&mut all), count, "clients before {fault:?}");
    let gap = |cluster: &Several, prober: &Prober, since: f64, wanted| {
        wait_held(cluster, wanted);
        let settled = now_s();
        wait_until("the VIP to answer", SETTLED, || prober.is_up_since(settled).then_some(())).unwrap();
        prober.longest_gap(since - 0.2)
    };
    let began = now_s();
    begin(cluster, fault);
    let taken = gap(cluster, &prober, began, AT_SECOND);
    assert_eq!(going_on(&mut all), count, "clients after {fault:?}\n{}", cluster.logs());
    let mended = now_s();
    mend(cluster, fault);
    let back = gap(cluster, &prober, mended, APART);
    assert_eq!(going_on(&mut all), count, "clients after the end of {fault:?}\n{}", cluster.logs());
    println!(
        "  {fault:?}: no answer for {:.0} ms, on the way back {:.0} ms; {count} connections go on",
        taken * 1e3,
        back * 1e3
    );
    end(all);
    [taken, back]
}

fn elected(name: &str, san: San) -> Option<(Several, (Host, Process))> {
    let mut cluster = several::lay_out(name, san, Lans::Elected)?;
    cluster.serve().unwrap();
    wait_held(&cluster, APART);
    let shown = cluster.cspctl(&["vips"]).unwrap();
    println!("{shown}");
    for (group, node) in [("vips-1", "nn-1"), ("vips-2", "nn-2")] {
        let held = |line: &str| line.starts_with(group) && line.split_whitespace().nth(1) == Some(node);
        assert!(shown.lines().any(held), "{group} at {node}:\n{shown}");
    }
    let server = forwarded(&cluster, name);
    Some((cluster, server))
}

fn faults(name: &str, san: San) {
    let Some((mut cluster, _server)) = elected(name, san) else { return };
    for fault in [Fault::Kill, Fault::Terminate, Fault::Stop, Fault::LanCut, Fault::SanCut, Fault::Drain] {
        if (fault, san) == (Fault::SanCut, San::Shm) {
            continue; // shared memory needs no cable
        }
        let [taken, back] = round(&mut cluster, fault);
        let most = match fault {
            Fault::Terminate | Fault::Drain => 0.5,
            Fault::Kill | Fault::LanCut => 1.0,
            Fault::Stop | Fault::SanCut => 2.5,
        };
        assert!(taken <= most, "{fault:?}: no answer for {taken:.3} s, {most} s at most");
        assert!(back <= 0.5, "the end of {fault:?}: no answer for {back:.3} s");
    }
    for (at, id) in ["an-1", "an-2"].into_iter().enumerate() {
        cluster.egress(id, at, "4MiB").map_err(|error| error.context(cluster.logs())).unwrap();
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
#[ignore = "depends on load: make test-front"]
fn addresses_move_over_shm() {
    faults("takeshm", San::Shm);
}

#[test]
#[ignore = "depends on load: make test-front"]
fn addresses_move_over_tcp() {
    faults("taketcp", San::Apart(Far::Tcp));
}

/// The bars: of 20 kills, and of 20 silences, the median and the worst.
#[test]
#[ignore = "depends on load: make test-front"]
fn takeovers_are_fast() {
    let Some((mut cluster, _server)) = elected("takefast", San::Apart(Far::Tcp)) else { return };
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    for (fault, median, worst) in [(Fault::Kill, 0.5, 1.0), (Fault::Stop, 1.2, 2.5)] {
        let mut taken: Vec<f64> = (0..rounds).map(|_| round(&mut cluster, fault)[0]).collect();
        taken.sort_by(f64::total_cmp);
        let (middle, longest) = (taken[rounds / 2], taken[rounds - 1]);
        println!("{fault:?}, {rounds} times: median {:.0} ms, worst {:.0} ms", middle * 1e3, longest * 1e3);
        assert!(middle <= median && longest <= worst, "{fault:?}: {middle:.3} and {longest:.3} s");
    }
    cluster.stop().unwrap();
}

/// Nobody takes over from a node that works, although its processors are busy.
#[test]
#[ignore = "depends on load: make test-front"]
fn nobody_takes_over_from_a_busy_node() {
    let Some((mut cluster, _server)) = elected("takebusy", San::Shm) else { return };
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let lost = |line: &str| line.strip_prefix("csp_vip_groups_lost_total ")?.parse::<f64>().ok();
    let changes = |cluster: &Several| -> f64 {
        let of_node = |id: &&str| cluster.ask(id, "/metrics").unwrap().lines().filter_map(lost).sum::<f64>();
        NETWORK_NODES.iter().map(of_node).sum()
    };
    let before = changes(&cluster);
    let mut busy: Vec<_> = (0..4)
        .map(|_| std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
        .collect();
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    while std::time::Instant::now() < until {
        for at in 0..2 {
            cluster.download(at, 80, "4MiB").unwrap();
        }
    }
    for process in &mut busy {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(changes(&cluster) - before, 0.0, "{}", cluster.logs());
    cluster.stop().unwrap();
}
