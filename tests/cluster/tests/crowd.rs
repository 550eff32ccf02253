//! Many connections at once to servers of several workers, which share a listener and remove it from their
//! epoll set at times: no connection fails, every response is complete, and the proxy offers hardly any
//! connection twice.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::{Duration, Instant};

use csp_cluster::configs;
use csp_cluster::{Cluster, Crowd, Tier, VIP, testing, wait_until};

const APACHE: &str = "/usr/sbin/apache2";
const NGINX: u16 = 80;
/// Apache with fewer threads than connections: some have to wait.
const NARROW: u16 = 8080;
/// Apache with a thread for each connection; with fewer it would close kept connections.
const WIDE: u16 = 8081;
const CONNECTIONS: usize = 256;
const REQUESTS: usize = 5_000;
/// Share of nginx's connections that processes may hand back. nginx removes its listener and adds it again
/// within a turn; how long Apache removes its own depends on the machine, so there is no limit for it here.
const BOUNCED_MAX: f64 = 0.02;
const SETTLED: Duration = Duration::from_secs(30);

/// Starts an Apache with its event module; its files are called `name`.
fn start_apache(cluster: &mut Cluster, name: &str, port: u16, sizes: &str) {
    // Connections are kept for longer than a client's thread may wait for a processor.
    let text = configs::apache(cluster.scratch(), "event", sizes)
        .replace("Listen 80\n", &format!("Listen {port}\nKeepAliveTimeout 60\n"))
        .replace("apache.pid", &format!("{name}.pid"))
        .replace("/run\n", &format!("/run/{name}\n"));
    let conf = cluster.scratch().join(format!("{name}.conf"));
    fs::write(&conf, text).unwrap();
    fs::create_dir(cluster.scratch().join("run").join(name)).unwrap();
    cluster.run_accelerated(name, APACHE, &["-f", &conf.to_string_lossy(), "-DFOREGROUND"]).unwrap();
}

/// Starts nginx with two workers and two Apaches, with the same files.
fn serve(cluster: &mut Cluster) {
    let ports = [NGINX, NARROW, WIDE];
    fs::write(cluster.scratch().join("www/1KiB"), testing::pattern(1 << 10)).unwrap();
    fs::write(cluster.scratch().join("demo.yaml"), configs::policy_for(&ports)).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    start_apache(cluster, "narrow", NARROW, "StartServers 4\nMaxRequestWorkers 100\n");
    start_apache(cluster, "wide", WIDE, &configs::apache_wide(CONNECTIONS));
    cluster.apply_policy().unwrap();
    for port in ports {
        let url = format!("http://{VIP}:{port}/1KiB");
        wait_until(&url, SETTLED, || cluster.answers(&url).then_some(()))
            .map_err(|error| error.context(cluster.all_logs()))
            .unwrap();
    }
}

/// Returns one of the proxy's counters, by the metric's name.
fn count(cluster: &Cluster, name: &str) -> f64 {
    cluster.metric(Tier::ProxyNode, name, "").unwrap()
}

/// Runs one crowd: all must be answered, and the proxy's offers accepted. Returns what was wrong.
fn crowd(cluster: &Cluster, port: u16, kept: bool) -> Option<String> {
    let accepted = || count(cluster, "csp_connections_passive_total");
    let refused = || count(cluster, "csp_opens_refused_total");
    let before = (accepted(), refused());
    let wanted = testing::pattern(1 << 10);
    let server = format!("{VIP}:{port}").parse().unwrap();
    let requests = REQUESTS - REQUESTS % CONNECTIONS;
    let all = Crowd { server, path: "/1KiB", wanted: &wanted, connections: CONNECTIONS, requests, kept };
    let outcome = all.ask(&cluster.client).unwrap();
    let connections = outcome.connections as f64;
    wait_until("the proxy's numbers", SETTLED, || (accepted() - before.0 >= connections).then_some(()))
        .unwrap();
    let bounced = (refused() - before.1) / connections;
    println!("  {} connections, {bounced:.4} offers handed back for each", outcome.connections);
    let whole = outcome.failures.is_empty() && outcome.answers == requests;
    (!whole || port == NGINX && bounced > BOUNCED_MAX)
        .then(|| format!("{bounced:.4} offers handed back, {outcome:?}"))
}

#[test]
#[ignore = "depends on load: make test-faults"]
fn no_connection_of_a_crowd_fails() {
    if !csp_support::installed(APACHE, "apache2-bin") {
        return;
    }
    let Some(mut cluster) = testing::lay_out("crowd") else { return };
    serve(&mut cluster);
    let crowds = [
        ("nginx, kept", NGINX, true),
        ("nginx, a connection for each request", NGINX, false),
        ("Apache, kept", WIDE, true),
        ("Apache, a connection for each request", NARROW, false),
    ];
    let mut wrong = Vec::new();
    for (name, port, kept) in crowds {
        let began = Instant::now();
        println!("{name}");
        wrong.extend(crowd(&cluster, port, kept).map(|what| format!("{name}: {what}")));
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", cluster.all_logs());
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
