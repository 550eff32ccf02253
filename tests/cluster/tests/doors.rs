//! Attacks by an unprivileged user: other users' ports, ports below 1024, egress that the policy denies.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use csp_cluster::configs::{CLIENT_ADDRESS, UPLOAD_PORT};
use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Process, Tier, VIP, configs, testing, wait_until};

/// The user nobody.
const NOBODY: &str = "65534";
const NOBODY_S_PAGE: &str = "nobody was here\n";
/// Requests to a service, each on a connection of its own.
const REQUESTS: u32 = 24;
const OUTSIDE_PORT: &str = "8000";

/// Copies what user nobody runs to a place where it can read it. The filter lies there already: programs have
/// it mapped, so that the file must not be written again.
fn prepare(cluster: &Cluster) {
    fs::copy(cluster.binary("csp-run"), cluster.scratch().join("run/csp-run")).unwrap();
    let theirs = cluster.scratch().join("theirs");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("index.html"), NOBODY_S_PAGE).unwrap();
}

/// Returns `csp-run` of this program by user nobody on the application host. If `apart`, it runs in a network
/// namespace of its own, where no kernel socket prevents binding.
fn by_nobody(cluster: &Cluster, apart: bool, program: &str, arguments: &[&str]) -> Command {
    let run = cluster.scratch().join("run");
    let mut words: Vec<String> = Vec::new();
    if apart {
        // In a user namespace of its own nobody could do the same.
        const ANY_PORT: &str = "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start; exec \"$@\"";
        words.extend(["unshare", "-n", "sh", "-c", ANY_PORT, "sh"].map(str::to_owned));
    }
    words.extend(["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"].map(str::to_owned));
    words.push(run.join("csp-run").display().to_string());
    words.extend(["--agent".to_owned(), run.join("agent.sock").display().to_string(), program.to_owned()]);
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    let mut command = cluster.host(Tier::AppNode).command(&words[0]);
    command.env("CSP_SOCKFILTER", run.join("libcsp_sockfilter.so")).args(&words[1..]);
    command
}

/// Starts Python's http.server as user nobody on this port.
fn server_of_nobody(cluster: &Cluster, apart: bool, port: u16) -> Process {
    let theirs = cluster.scratch().join("theirs").display().to_string();
    let arguments = ["-m", "http.server", &port.to_string(), "--directory", &theirs];
    let command = by_nobody(cluster, apart, "/usr/bin/python3", &arguments);
    let log = cluster.scratch().join(format!("log/nobody-{port}.log"));
    Process::spawn("nobody's server", command, &log).unwrap()
}

fn denied(cluster: &Cluster, metric: &str) -> f64 {
    cluster.metric(Tier::ProxyNode, metric, "").unwrap()
}

fn await_denied(cluster: &Cluster, metric: &str, before: f64) {
    let more = || (denied(cluster, metric) > before).then_some(());
    wait_until(&format!("{metric} to grow"), SERVING_DEADLINE, more)
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
}

/// Returns the page at this port of the VIP.
fn page(cluster: &Cluster, port: u16) -> String {
    cluster.client.run("curl", &["-sS", "-m", "10", &format!("http://{VIP}:{port}/")]).unwrap()
}

fn no_request_is_given_to_nobody(cluster: &Cluster, port: u16) {
    for _ in 0..REQUESTS {
        assert_ne!(page(cluster, port), NOBODY_S_PAGE, "port {port}");
    }
}

/// The attack: while another user's process listens on a port, and on ports below 1024 at any time, user
/// nobody gets no client by listening there in a network namespace of its own.
fn another_user_s_port(cluster: &mut Cluster) {
    for port in [UPLOAD_PORT, 80] {
        let before = denied(cluster, "csp_listens_denied_total");
        let mut thief = server_of_nobody(cluster, true, port);
        await_denied(cluster, "csp_listens_denied_total", before);
        no_request_is_given_to_nobody(cluster, port);
        thief.stop().unwrap();
    }
    // Even where no process listens, a process outside of this host's network namespace may not.
    cluster.program("upload").unwrap().stop().unwrap();
    cluster.remove_program("upload");
    let before = denied(cluster, "csp_listens_denied_total");
    let mut thief = server_of_nobody(cluster, true, UPLOAD_PORT);
    await_denied(cluster, "csp_listens_denied_total", before);
    thief.stop().unwrap();
}

/// A free port belongs to the process to which the kernel grants it.
fn a_free_port(cluster: &Cluster) {
    let mut server = server_of_nobody(cluster, false, UPLOAD_PORT);
    let served = || {
        let url = format!("http://{VIP}:{UPLOAD_PORT}/");
        let output = cluster.client.output("curl", &["-sf", "-m", "2", &url]).ok()?;
        (output.stdout == NOBODY_S_PAGE.as_bytes()).then_some(())
    };
    wait_until("nobody's page", SERVING_DEADLINE, served)
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
    server.stop().unwrap();
}

/// Requests a page of the server on the client host as user nobody; returns its success and its output.
fn fetch_outside(cluster: &Cluster) -> (bool, String) {
    let url = format!("http://{CLIENT_ADDRESS}:{OUTSIDE_PORT}/");
    let program = format!("import urllib.request; urllib.request.urlopen('{url}', timeout=10).read()");
    let output = by_nobody(cluster, false, "/usr/bin/python3", &["-c", &program]).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Egress that the policy denies the user.
fn denied_egress(cluster: &Cluster) {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.args(["-m", "http.server", OUTSIDE_PORT, "--bind", CLIENT_ADDRESS]);
    let mut outside =
        Process::spawn("the server outside", command, &cluster.scratch().join("log/outside.log")).unwrap();
    let url = format!("http://{CLIENT_ADDRESS}:{OUTSIDE_PORT}/");
    let answers = || cluster.answers(&url).then_some(());
    wait_until("the server outside", Duration::from_secs(10), answers).unwrap();
    let (fetched, reported) = fetch_outside(cluster);
    assert!(fetched, "without a rule: {reported}");
    let policy = configs::policy() + &format!("access:\n  - {{users: [{NOBODY}], connect: []}}\n");
    let file = cluster.scratch().join("denied.yaml");
    fs::write(&file, policy).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    let before = denied(cluster, "csp_connects_denied_total");
    let (fetched, reported) = fetch_outside(cluster);
    assert!(!fetched && reported.to_lowercase().contains("permission denied"), "{reported}");
    await_denied(cluster, "csp_connects_denied_total", before);
    outside.stop().unwrap();
}

#[test]
fn an_unprivileged_user_gets_what_the_kernel_and_the_policy_give_it() {
    let Some(mut cluster) = testing::lay_out("doors") else { return };
    cluster.serve().unwrap();
    prepare(&cluster);
    another_user_s_port(&mut cluster);
    a_free_port(&cluster);
    denied_egress(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
