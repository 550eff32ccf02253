//! Unmodified programs behind the cluster and in front of it: nginx under load, Python's http.server, curl as
//! a client.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::configs::{CLIENT_ADDRESS, UPLOAD_PORT};
use csp_cluster::{Cluster, Digest, Fetch, Process, Tier, VIP, WRK_PATIENCE, demo, testing, wait_until};

const WRK_CONNECTIONS: u32 = 64;
const WRK_SECONDS: u32 = 4;
const SEQUENTIAL: u32 = 1000;
/// The port of the plain server on the client host.
const OUTSIDE_PORT: &str = "8000";

/// Runs `work` while the hosts of app and proxy node are watched for kernel TCP sockets of the services.
fn without_kernel_tcp<T>(cluster: &Cluster, seconds: u64, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| demo::no_kernel_tcp(cluster, Duration::from_secs(seconds)));
        let result = work();
        watch.join().unwrap().unwrap();
        result
    })
}

fn many_connections(cluster: &Cluster) {
    let seconds = u64::from(WRK_SECONDS) - 1;
    let report =
        without_kernel_tcp(cluster, seconds, || Fetch(cluster).wrk("1KiB", WRK_CONNECTIONS, WRK_SECONDS));
    println!("{}", report.unwrap());
}

fn one_after_another(cluster: &Cluster) {
    let latencies = without_kernel_tcp(cluster, 1, || Fetch(cluster).sequential("1KiB", SEQUENTIAL)).unwrap();
    println!("{SEQUENTIAL} sequential requests, median {:.0} us", latencies.percentile_us(50.0));
}

/// Returns the sum of the numbers of all kinds of socket errors in wrk's report.
fn socket_errors(report: &str) -> u32 {
    let Some(line) = report.lines().find(|line| line.contains("Socket errors:")) else { return 0 };
    line.split([' ', ',']).filter_map(|word| word.parse::<u32>().ok()).sum()
}

/// nginx's reload: a new generation of workers starts, the old one finishes its connections.
fn reload_under_load(cluster: &mut Cluster) {
    let conf = cluster.scratch().join("nginx.conf").to_string_lossy().into_owned();
    let master = cluster.program("nginx").unwrap().pid();
    let workers = || fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    let before = workers();
    let cluster = &*cluster;
    let report = std::thread::scope(|scope| {
        let url = format!("http://{VIP}:80/1KiB"); // wrk cannot resolve a port's name without /etc/services
        let wrk =
            scope.spawn(move || cluster.client.run("wrk", &["-t1", "-c16", "-d4s", WRK_PATIENCE, &url]));
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            cluster.host(Tier::AppNode).run("nginx", &["-c", &conf, "-s", "reload"]).unwrap();
        }
        wrk.join().unwrap().unwrap()
    });
    println!("{report}");
    // A kept-alive connection that nginx closes while a request is in transit fails, once for each reload.
    assert!(socket_errors(&report) <= 2 * 16 && !report.contains("Non-2xx"), "{report}");
    assert!(report.contains("Requests/sec"), "{report}");
    let fresh = || {
        let now = workers();
        let gone = before.split_whitespace().all(|old| !now.split_whitespace().any(|new| new == old));
        (gone && now.split_whitespace().count() == 2).then_some(())
    };
    wait_until("two new workers and no old one", Duration::from_secs(15), fresh).unwrap();
    cluster.wait_served().unwrap();
}

fn uploads(cluster: &Cluster) {
    let file = cluster.scratch().join("www/4MiB");
    for method in ["PUT", "POST"] {
        Fetch(cluster).upload(method, &file).unwrap();
    }
}

/// `python3 -m http.server` in place of the upload application.
fn http_server(cluster: &mut Cluster) {
    cluster.program("upload").unwrap().stop().unwrap();
    cluster.remove_program("upload");
    let www = cluster.scratch().join("www").to_string_lossy().into_owned();
    let port = UPLOAD_PORT.to_string();
    let arguments = ["-m", "http.server", &port, "--bind", "0.0.0.0", "--directory", &www];
    cluster.run_accelerated("http.server", "/usr/bin/python3", &arguments).unwrap();
    cluster.wait_served().unwrap();
    let got = cluster.scratch().join("got");
    let url = format!("http://{VIP}:{UPLOAD_PORT}/4MiB");
    cluster.client.run("curl", &["-sSf", "-m", "30", "-o", &got.to_string_lossy(), &url]).unwrap();
    let wanted = Digest::of_file(&cluster.scratch().join("www/4MiB")).unwrap();
    assert_eq!(Digest::of_file(&got).unwrap(), wanted);
}

/// `csp-run curl` on the app host fetches from a plain server on the client host: the policy's egress rule.
fn active_open(cluster: &Cluster) {
    let www = cluster.scratch().join("www").to_string_lossy().into_owned();
    let mut command = cluster.client.command("/usr/bin/python3");
    command.args(["-m", "http.server", OUTSIDE_PORT, "--bind", CLIENT_ADDRESS, "--directory", &www]);
    let log = cluster.scratch().join("log/outside.log");
    let mut outside = Process::spawn("the server on the client host", command, &log).unwrap();
    let own = format!("http://{CLIENT_ADDRESS}:{OUTSIDE_PORT}/4MiB");
    wait_until("the server on the client host", Duration::from_secs(10), || {
        cluster.answers(&own).then_some(())
    })
    .unwrap();
    let (run, agent) = (cluster.binary("csp-run"), cluster.scratch().join("run/agent.sock"));
    let got = cluster.scratch().join("got-outside");
    let got_text = got.to_string_lossy().into_owned();
    for _ in 0..5 {
        let arguments =
            ["--agent", &agent.to_string_lossy(), "curl", "-sSf", "-m", "30", "-o", &got_text, own.as_str()];
        without_kernel_tcp(cluster, 0, || {
            cluster.host(Tier::AppNode).run(&run.to_string_lossy(), &arguments)
        })
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
        let wanted = Digest::of_file(&cluster.scratch().join("www/4MiB")).unwrap();
        assert_eq!(Digest::of_file(&got).unwrap(), wanted);
        fs::remove_file(&got).unwrap();
    }
    let text = fs::read_to_string(&log).unwrap();
    let egress = text.lines().filter(|line| line.starts_with("10.76.0.101 ")).count();
    assert_eq!(egress, 5, "requests from the policy's egress address:\n{text}");
    outside.stop().unwrap();
}

#[test]
fn unmodified_programs_serve_and_ask_through_the_cluster() {
    let Some(mut cluster) = testing::lay_out("programs") else { return };
    cluster.set_workers(Tier::NetworkNode, 2).unwrap();
    cluster.serve().unwrap();
    fs::write(cluster.scratch().join("www/4MiB"), testing::pattern(4 << 20)).unwrap();
    one_after_another(&cluster);
    many_connections(&cluster);
    uploads(&cluster);
    reload_under_load(&mut cluster);
    active_open(&cluster);
    http_server(&mut cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
