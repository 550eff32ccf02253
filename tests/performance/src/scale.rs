//! The scale test: opens many connections at once through real daemons, then additional ones, then closes
//! all.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use csp_cluster::{Cluster, Options, San, Tier, VIP, wait_until};

use crate::load::Outcome;
use crate::memory::{Resident, processor_seconds};
use crate::report::{Memory, Report};

/// Connections of one process, well below 20,000 descriptors.
const PER_PROCESS: usize = 12_500;
/// Source addresses of one client process.
const SOURCES: usize = 2;
const SERVICE_PORT: u16 = 7000;
/// First port of the server processes, one port each.
const SERVER_PORT: u16 = 7001;
/// Time limit for the tables to become empty, connections in TIME-WAIT and lingering flows included.
const EMPTY_DEADLINE: Duration = Duration::from_secs(90);

/// Settings of the test.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder with the built binaries and libcsp_sockfilter.so.
    pub binaries: PathBuf,
    /// What carries the SAN between network node and proxy node.
    pub san: San,
    /// Connections at once.
    pub connections: usize,
    /// Connections per second while they are opened.
    pub open_rate: usize,
    /// Additional new connections per second.
    pub churn_rate: usize,
    /// Duration of the additional connections.
    pub churn_time: Duration,
}

/// Runs the test; `progress` receives messages about its course.
///
/// # Errors
/// If the cluster cannot be created or a process dies. Promises that are not kept are part of the report.
pub fn run(settings: &Settings, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let tag = format!("scale{}", std::process::id());
    let options = Options { binaries: settings.binaries.clone(), san: settings.san, edge: false, tag };
    let mut cluster = Cluster::lay_out(options)?;
    let result = measure(&mut cluster, settings, progress);
    result.map_err(|error| error.context(cluster.casualties()))
}

fn measure(cluster: &mut Cluster, settings: &Settings, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let processes = settings.connections.div_ceil(PER_PROCESS);
    progress("etcd and the daemons, with small tables");
    configure(cluster, 16)?;
    cluster.start_daemons()?;
    serve(cluster, processes)?;
    let small = residents(cluster)?;
    progress("the daemons again, with tables for all connections");
    restart(cluster, settings.connections)?;
    let mut clients = Clients::start(cluster, processes)?;
    wait_answered(cluster)?;
    let empty = residents(cluster)?;
    let each = settings.connections / processes;
    let (rate, churn) = (settings.open_rate / processes, settings.churn_rate / processes);
    progress(&format!("{} connections from {processes} processes", each * processes));
    let mut used = vec![processor_times(cluster)?];
    let opened = clients.all(cluster, &format!("open {each} {rate}"), progress)?;
    used.push(processor_times(cluster)?);
    std::thread::sleep(Duration::from_secs(1));
    let full = residents(cluster)?;
    let held = cluster.metric(Tier::ProxyNode, "csp_flows_entries", "")?;
    progress("a request on each");
    let exchanged = clients.all(cluster, "exchange", progress)?;
    used.push(processor_times(cluster)?);
    progress(&format!("{} new connections a second on top", settings.churn_rate));
    let seconds = settings.churn_time.as_secs();
    let churned = clients.all(cluster, &format!("churn {churn} {seconds}"), progress)?;
    progress("a request on each again");
    used.push(processor_times(cluster)?);
    let exchanged_after = clients.all(cluster, "exchange", progress)?;
    used.push(processor_times(cluster)?);
    let dropped = drops(cluster)?;
    progress("closing all");
    clients.all(cluster, "close", progress)?;
    let begin = Instant::now();
    let left = empty_tables(cluster, progress)?;
    let memory = small.iter().zip(&empty).zip(&full).enumerate().map(|(at, ((small, empty), full))| Memory {
        process: NAMES[at].to_owned(),
        connections: if at == 2 { each } else { each * processes },
        small: small.total(),
        empty: empty.total(),
        full: full.total(),
    });
    let done = [&opened, &exchanged, &churned, &exchanged_after].map(|o| o.done.max(1) as f64);
    let cost =
        |phase: usize, daemon: usize| (used[phase + 1][daemon] - used[phase][daemon]) / done[phase] * 1e6;
    let processor_us = [0, 1, 2, 3].map(|phase| [cost(phase, 0), cost(phase, 1)]);
    let mut report = Report {
        connections: each * processes,
        opened,
        exchanged,
        churn_rate: settings.churn_rate,
        churned,
        exchanged_after,
        processor_us,
        memory: memory.collect(),
        emptied_seconds: begin.elapsed().as_secs_f64(),
        failures: left,
    };
    judge(&mut report, held, &dropped);
    progress("stopping");
    drop(clients);
    if let Err(error) = cluster.stop() {
        report.failures.push(format!("{error:#}"));
    }
    Ok(report)
}

/// The processes whose memory is measured, in the order of [`residents`].
const NAMES: [&str; 3] = ["csp-network-node", "csp-proxy-node", "one server process"];

fn judge(report: &mut Report, held: f64, dropped: &str) {
    let phases = [
        ("opening", &report.opened),
        ("exchange", &report.exchanged),
        ("new connections on top", &report.churned),
        ("exchange after that", &report.exchanged_after),
    ];
    let mut failures = Vec::new();
    let kept = report.exchanged_after.wanted;
    if kept < report.opened.done {
        failures.push(format!("{} idle connections were lost beside new ones", report.opened.done - kept));
    }
    for (name, outcome) in phases {
        if outcome.done != outcome.wanted {
            failures.push(format!("{name}: {} of {} done", outcome.done, outcome.wanted));
        }
    }
    if (held as usize) < report.connections {
        failures.push(format!("the proxy held {held} connections, not {}", report.connections));
    }
    if !failures.is_empty() && !dropped.is_empty() {
        failures.push(format!("the daemons dropped: {dropped}"));
    }
    report.failures.append(&mut failures);
}

/// Starts network node and proxy anew, with tables for `connections`.
fn restart(cluster: &mut Cluster, connections: usize) -> Result<()> {
    cluster.daemon(Tier::NetworkNode).context("it was started")?.stop()?;
    cluster.daemon(Tier::ProxyNode).context("it was started")?.stop()?;
    configure(cluster, connections)?;
    cluster.start(Tier::ProxyNode)?;
    cluster.start(Tier::NetworkNode)
}

/// Writes configuration files with tables for `connections`, and room for additional ones.
fn configure(cluster: &Cluster, connections: usize) -> Result<()> {
    // New ones that a loaded machine serves slowly must leave a sixteenth free, else idle ones give way to
    // them.
    let connections = connections + connections / 2 + 16;
    // Every connection gets a window of at least 16 KiB, from half of the buffers; memory is touched only
    // when used.
    let buffers_mib = (connections * 88 / 1024).max(64);
    let capacities = [
        (Tier::NetworkNode, format!("capacity:\n  flows: {}\n", connections * 2)),
        (
            Tier::ProxyNode,
            format!(
                "capacity:\n  connections: {connections}\n  half_open: {}\n  buffers_mib: {buffers_mib}\n",
                connections.min(16_384)
            ),
        ),
    ];
    for (tier, capacity) in capacities {
        let path = cluster.config(tier);
        let text = std::fs::read_to_string(&path)?;
        let base = text.split("capacity:").next().unwrap_or_default();
        std::fs::write(&path, format!("{base}{capacity}"))?;
    }
    Ok(())
}

fn serve(cluster: &mut Cluster, processes: usize) -> Result<()> {
    let echo = cluster.binary("csp-echo").to_string_lossy().into_owned();
    let mut policy = format!(
        "apiVersion: csp/v1\nservices:\n  - name: echo\n    vip: {VIP}\n    port: {SERVICE_PORT}\n    pool:\n"
    );
    for at in 0..processes {
        let port = SERVER_PORT + at as u16;
        cluster.run_accelerated(&format!("echo-{at}"), &echo, &[&format!("0.0.0.0:{port}")])?;
        writeln!(policy, "      - {{node: an-1, port: {port}}}")?;
    }
    let file = cluster.scratch().join("scale.yaml");
    std::fs::write(&file, policy)?;
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])?;
    wait_answered(cluster)
}

/// Waits until the service answers one connection.
fn wait_answered(cluster: &Cluster) -> Result<()> {
    let load = cluster.binary("csp-load").to_string_lossy().into_owned();
    let target = format!("{VIP}:{SERVICE_PORT}");
    wait_until("an answer of the echo service", Duration::from_secs(30), || {
        let mut command = cluster.client.command(&load);
        command.args([&target, csp_cluster::CLIENT_ADDRESS]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        child.stdin.take()?.write_all(b"open 1 1000\n").ok()?;
        let output = child.wait_with_output().ok()?;
        let outcome: Outcome = serde_json::from_slice(&output.stdout).ok()?;
        (outcome.done == 1).then_some(())
    })
}

fn residents(cluster: &mut Cluster) -> Result<[Resident; 3]> {
    let mut pid = |tier| cluster.daemon(tier).map(|p| p.pid()).context("the daemon was started");
    let daemons = [pid(Tier::NetworkNode)?, pid(Tier::ProxyNode)?];
    let server = cluster.program("echo-0").map(|p| p.pid()).context("the server was started")?;
    Ok([Resident::of(daemons[0])?, Resident::of(daemons[1])?, Resident::of(server)?])
}

/// Returns the processor time of network node and proxy node, in seconds.
fn processor_times(cluster: &mut Cluster) -> Result<[f64; 2]> {
    let mut of = |tier| processor_seconds(cluster.daemon(tier).context("the daemon was started")?.pid());
    Ok([of(Tier::NetworkNode)?, of(Tier::ProxyNode)?])
}

/// Returns the drops of both daemons, by reason.
fn drops(cluster: &Cluster) -> Result<String> {
    let mut text = String::new();
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        let metrics = cluster.ask(tier, "/metrics")?;
        for line in metrics.lines().filter(|l| l.starts_with("csp_drops_total") && !l.ends_with(" 0")) {
            write!(text, "{}: {}; ", tier.daemon(), line.trim_start_matches("csp_drops_total"))?;
        }
    }
    Ok(text)
}

/// Waits until every table is empty; returns the entries that are left.
fn empty_tables(cluster: &Cluster, progress: &mut dyn FnMut(&str)) -> Result<Vec<String>> {
    let tables = [
        (Tier::ProxyNode, "csp_flows_entries"),
        (Tier::ProxyNode, "csp_tcb_entries"),
        (Tier::ProxyNode, "csp_half_open_entries"),
        (Tier::ProxyNode, "csp_time_wait_entries"),
        (Tier::ProxyNode, "csp_blocks_entries"),
        (Tier::ProxyNode, "csp_send_budget_reserved_bytes"),
        (Tier::NetworkNode, "csp_flows_entries"),
    ];
    let end = Instant::now() + EMPTY_DEADLINE;
    loop {
        let mut left = Vec::new();
        for (tier, name) in tables {
            let entries = cluster.metric(tier, name, "")?;
            if entries != 0.0 {
                left.push(format!("{} {name} {entries}", tier.daemon()));
            }
        }
        if left.is_empty() || Instant::now() > end {
            return Ok(left);
        }
        progress(&format!("left: {}", left.join(", ")));
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// The client processes.
struct Clients(Vec<Client>);

struct Client {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Clients {
    /// Adds the addresses to the client host, and starts the processes.
    fn start(cluster: &Cluster, processes: usize) -> Result<Self> {
        let load = cluster.binary("csp-load").to_string_lossy().into_owned();
        let target = format!("{VIP}:{SERVICE_PORT}");
        let mut all = Vec::new();
        for process in 0..processes {
            let mut command = cluster.client.command(&load);
            command.arg(&target);
            for source in 0..SOURCES {
                let address = format!("10.76.0.{}", 110 + process * SOURCES + source);
                cluster.client.address("lan0", &format!("{address}/24"))?;
                command.arg(address);
            }
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let commands = child.stdin.take().context("it is piped")?;
            let answers = BufReader::new(child.stdout.take().context("it is piped")?);
            all.push(Client { child, commands, answers });
        }
        Ok(Clients(all))
    }

    /// Sends a command to all of them and sums their results. Meanwhile reports the occupancy of the proxy.
    fn all(&mut self, cluster: &Cluster, command: &str, progress: &mut dyn FnMut(&str)) -> Result<Outcome> {
        for client in &mut self.0 {
            writeln!(client.commands, "{command}")?;
        }
        let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let readers: Vec<_> = self.0.iter_mut().map(|c| scope.spawn(|| c.answer())).collect();
            let mut reported = Instant::now();
            while readers.iter().any(|r| !r.is_finished()) {
                std::thread::sleep(Duration::from_millis(50));
                if reported.elapsed() > Duration::from_secs(2) {
                    reported = Instant::now();
                    if let Ok(flows) = cluster.metric(Tier::ProxyNode, "csp_flows_entries", "") {
                        progress(&format!("{flows} connections"));
                    }
                }
            }
            let gone = |_| Err(anyhow::anyhow!("a reader of answers panicked"));
            readers.into_iter().map(|r| r.join().unwrap_or_else(gone)).collect()
        });
        outcomes.into_iter().try_fold(Outcome::default(), |sum, one| Ok(add(sum, one?)))
    }
}

impl Client {
    fn answer(&mut self) -> Result<Outcome> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("a load generator ended");
        }
        serde_json::from_str(&line).context(line)
    }
}

/// Combines two outcomes: counts are added, the longest time and the highest latencies are kept.
fn add(mut sum: Outcome, one: Outcome) -> Outcome {
    sum.wanted += one.wanted;
    sum.done += one.done;
    for (error, count) in one.errors {
        *sum.errors.entry(error).or_default() += count;
    }
    sum.seconds = sum.seconds.max(one.seconds);
    for (most, value) in sum.latency_us.iter_mut().zip(one.latency_us) {
        *most = (*most).max(value);
    }
    sum
}
