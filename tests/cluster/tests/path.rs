//! A router on the client's path whose next link carries less than the LAN's 1500 bytes: its ICMP errors
//! reach the proxy's engine, through the worker of the network node that has the flow, and downloads are
//! complete (RFC 1191).
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_cluster::{Cluster, Digest, Host, Tier, VIP, testing};

const LOWERED: &str = "csp_tcp_path_mtu_lowered_total";
const ERRORS: &str = "csp_icmp_errors_received_total";
/// A connection from this port of [`FAR`] is worker 1's of two (`csp_lan::steering::worker_of`).
const PORT_OF_WORKER_1: &str = "40001";
const FAR: &str = "10.78.0.2";

/// Creates a host behind the client's, which becomes its router; the link between them has an MTU of 1300
/// bytes.
fn behind_a_narrow_link(cluster: &Cluster, name: &str) -> Host {
    let (far, router) = (Host::new(name, &format!("far{}", std::process::id())).unwrap(), &cluster.client);
    router.join("far0", &far, "eth0").unwrap();
    router.address("far0", "10.78.0.1/24").unwrap();
    router.ip(&["link", "set", "far0", "mtu", "1300"]).unwrap();
    router.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).unwrap();
    far.address("eth0", &format!("{FAR}/24")).unwrap();
    far.ip(&["route", "add", "default", "via", "10.78.0.1"]).unwrap();
    far
}

fn download(cluster: &Cluster, host: &Host, ports: &str, name: &str) {
    let to = cluster.scratch().join("fetched");
    let url = format!("http://{VIP}/{name}");
    host.run("curl", &["-sSf", "-m", "30", "--local-port", ports, "-o", &to.to_string_lossy(), &url])
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
    let file = cluster.scratch().join("www").join(name);
    assert_eq!(Digest::of_file(&to).unwrap(), Digest::of_file(&file).unwrap());
}

#[test]
fn downloads_pass_a_narrow_link_that_the_client_does_not_know_of() {
    let Some(mut cluster) = testing::lay_out("path") else { return };
    serve_and_download(&mut cluster, "path");
    cluster.stop().unwrap();
}

/// One queue, two workers: what the second one gets, the first one has received. A rule of level 1 has its
/// say before.
#[test]
fn the_same_through_ports_of_af_xdp_and_what_a_rule_of_level_1_blocks() {
    let Some(mut cluster) = testing::lay_out("xpath") else { return };
    use_af_xdp(&cluster);
    let far = serve_and_download(&mut cluster, "xpath");
    let link = cluster.host(Tier::NetworkNode).run("ip", &["link", "show", "lan0"]).unwrap();
    assert!(link.contains("prog/xdp"), "{link}");
    let control = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        cluster.cspctl(&words).unwrap_or_else(|error| panic!("cspctl {line}: {error}"))
    };
    control("plugin create blocked block-list --level 1");
    control("rule add web proto tcp dport 80 ingress plugin blocked");
    download(&cluster, &far, "43000-44000", "1MiB");
    control(&format!("blocks add {FAR} --time 1h --from test"));
    let url = format!("http://{VIP}/1MiB");
    let blocked = far.output("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]).unwrap();
    assert!(!blocked.status.success(), "{}", cluster.log_tail(Tier::NetworkNode));
    download(&cluster, &cluster.client, "43000-44000", "1MiB");
    let stats: serde_json::Value = serde_json::from_str(&control("rule stats web -o json")).unwrap();
    assert_eq!(stats["nodes"][0]["rules"][0]["level"], 1, "{stats}");
    control("rule del web");
    download(&cluster, &far, "45000-46000", "1MiB");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

fn use_af_xdp(cluster: &Cluster) {
    let config = cluster.config(Tier::NetworkNode);
    let text = fs::read_to_string(&config).unwrap();
    let other = text.replace("interface: lan0\n", "interface: lan0\n    port: af_xdp\n");
    assert_ne!(text, other);
    fs::write(&config, other).unwrap();
}

/// Returns the host behind the narrow link.
fn serve_and_download(cluster: &mut Cluster, name: &str) -> Host {
    cluster.set_workers(Tier::NetworkNode, 2).unwrap();
    cluster.serve().unwrap();
    fs::write(cluster.scratch().join("www/1MiB"), testing::pattern(1 << 20)).unwrap();
    let far = behind_a_narrow_link(cluster, name);
    let metric = |tier, name| cluster.metric(tier, name, "").unwrap();
    assert_eq!((metric(Tier::ProxyNode, LOWERED), metric(Tier::NetworkNode, ERRORS)), (0.0, 0.0));
    download(cluster, &far, PORT_OF_WORKER_1, "1MiB");
    let settled = || metric(Tier::ProxyNode, LOWERED) >= 1.0 && metric(Tier::NetworkNode, ERRORS) >= 1.0;
    csp_cluster::wait_until("a lowered path MTU", testing::SERVING_DEADLINE, || settled().then_some(()))
        .unwrap();
    // The next connections to the same host start with the path MTU found.
    (0..3).for_each(|_| download(cluster, &far, "41000-42000", "1MiB"));
    // Others are not affected.
    download(cluster, &cluster.client, "41000-42000", "1MiB");
    assert_eq!(metric(Tier::ProxyNode, LOWERED), 1.0);
    assert_eq!(cluster.casualties(), "");
    far
}

/// Loads of the measurement: connections, file and its bytes.
const LOADS: [(u32, &str, usize); 3] = [(1, "100B", 100), (64, "100B", 100), (64, "16KiB", 16 << 10)];
const SECONDS: u32 = 4;
const ROUNDS: usize = 3;

/// What a request costs the network node by raw sockets and by AF_XDP: medians of rounds that alternate, a
/// cluster for each.
#[test]
#[ignore = "a measurement (make bench-ports)"]
fn what_a_request_costs_the_network_node_by_kind_of_port() {
    let mut all = vec![Vec::new(); 2 * LOADS.len()];
    for round in 0..ROUNDS {
        for (kind, name) in ["rawcost", "xdpcost"].into_iter().enumerate() {
            let Some(mut cluster) = testing::lay_out(&format!("{name}{round}")) else { return };
            if kind == 1 {
                use_af_xdp(&cluster);
            }
            cluster.serve().unwrap();
            let pid = cluster.daemon(Tier::NetworkNode).unwrap().pid();
            for (at, (connections, file, len)) in LOADS.into_iter().enumerate() {
                fs::write(cluster.scratch().join("www").join(file), testing::pattern(len)).unwrap();
                let (url, duration) = (format!("http://{VIP}/{file}"), format!("-d{SECONDS}s"));
                let before = csp_cluster::cpu_ns_of_all(pid).unwrap();
                let report =
                    cluster.client.run("wrk", &["-t1", &format!("-c{connections}"), &duration, &url]);
                let busy = csp_cluster::cpu_ns_of_all(pid).unwrap() - before;
                let report = report.unwrap();
                assert!(!report.contains("Socket errors"), "{report}");
                let rate = report.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
                let rate: f64 = rate.and_then(|rate| rate.trim().parse().ok()).expect(&report);
                all[kind * LOADS.len() + at].push((busy as f64 / 1e3 / (rate * f64::from(SECONDS)), rate));
            }
            cluster.stop().unwrap();
        }
    }
    println!(
        "| port | connections | file | requests/s | µs of the network node a request |\n|---|---|---|---|---|"
    );
    for (at, mut rounds) in all.into_iter().enumerate() {
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (cost, rate) = rounds[rounds.len() / 2];
        let (connections, file, _) = LOADS[at % LOADS.len()];
        let kind = if at < LOADS.len() { "AF_PACKET" } else { "AF_XDP" };
        println!("| {kind} | {connections} | {file} | {rate:.0} | {cost:.1} |");
    }
}
