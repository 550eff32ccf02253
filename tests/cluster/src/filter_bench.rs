//! Costs and savings of the socket filter: processor time of a program under it, compared with the program on
//! kernel TCP.
//!
//! The variants alternate in rounds. A ratio is taken within each round, and medians are reported, because
//! the machine is shared. Processor time is that of the program's own process (`/proc/PID/schedstat`), user
//! and system.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::{Process, cpu_ns, wait_until};
use crate::steady::children;
use crate::{Cluster, Host, Tier, VIP, configs, testing};

/// For kernel TCP, client and application host are joined by a veth of their own.
const DIRECT: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
/// The address of the nginx on kernel TCP. Port 80 of every address belongs to the other one, as without the
/// filter.
const PLAIN: &str = "10.78.0.2:81";
const START: Duration = Duration::from_secs(15);
const REDIS_PORT: &str = "6390";

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds.
    pub rounds: u32,
    /// Seconds of load in each round.
    pub seconds: u32,
}

/// One result, in nanoseconds of processor time per request.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// On kernel TCP, without the filter: median.
    pub plain: f64,
    /// With the filter: median.
    pub filtered: f64,
    /// Median of the rounds' ratios, filtered to plain.
    pub ratio: f64,
    /// The lowest and the highest of these ratios.
    pub spread: (f64, f64),
    /// Upper limit of the ratio.
    pub bar: f64,
}

impl Figure {
    fn of(name: &str, bar: f64, mut rounds: Vec<(f64, f64)>) -> Self {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let ratio = |r: Option<&(f64, f64)>| r.map_or(f64::NAN, |r| r.1 / r.0);
        Figure {
            name: name.to_owned(),
            plain: median(rounds.iter().map(|r| r.0).collect()),
            filtered: median(rounds.iter().map(|r| r.1).collect()),
            ratio: ratio(rounds.get(rounds.len() / 2)),
            spread: (ratio(rounds.first()), ratio(rounds.last())),
            bar,
        }
    }
}

/// All results.
#[derive(Clone, Debug)]
pub struct Report {
    /// Processor time per request.
    pub figures: Vec<Figure>,
    /// Processor time of an idle accelerated nginx worker, in microseconds per second.
    pub idle_us: f64,
}

/// Returns the only child of nginx's master.
fn worker_of(master: u32) -> Result<u32> {
    wait_until("nginx's worker", START, || children(master, "nginx").first().copied())
}

/// Writes the configuration of an nginx with one worker on `address`.
fn nginx_conf(cluster: &Cluster, name: &str, listen: &str) -> Result<PathBuf> {
    let conf = cluster.scratch().join(format!("{name}.conf"));
    let text = configs::nginx(cluster.scratch())
        .replace("worker_processes 2;", "worker_processes 1;")
        .replace("listen 80;", &format!("listen {listen};"))
        .replace("nginx.pid", &format!("{name}.pid"));
    fs::write(&conf, text)?;
    Ok(conf)
}

/// Returns the processor time of `pid` per request in one run of wrk.
fn per_request(client: &Host, pid: u32, url: &str, seconds: u32) -> Result<f64> {
    let duration = format!("-d{seconds}s");
    let before = cpu_ns(pid)?;
    let report = client.run("wrk", &["-t1", "-c32", &duration, url])?;
    let used = cpu_ns(pid)? - before;
    let requests = report.lines().find_map(|l| l.trim().split_once(" requests in")?.0.parse::<f64>().ok());
    match requests {
        Some(n) if n > 0.0 && !report.contains("Socket errors") && !report.contains("Non-2xx") => {
            Ok(used as f64 / n)
        }
        _ => bail!("wrk reports errors for {url}:\n{report}"),
    }
}

/// Runs all measurements; `progress` receives the name of each.
///
/// # Errors
/// If something cannot be set up or measured, with the reason.
pub fn run(cluster: &mut Cluster, plan: Plan, progress: impl Fn(&str)) -> Result<Report> {
    progress("laying out: four daemons, nginx with and without the filter");
    for (name, len) in [("100B", 100), ("16KiB", 16 << 10)] {
        fs::write(cluster.scratch().join("www").join(name), testing::pattern(len))?;
    }
    cluster.start_daemons()?;
    cluster.apply_policy()?;
    let conf = nginx_conf(cluster, "filtered", "80")?.to_string_lossy().into_owned();
    cluster.run_accelerated("nginx", "nginx", &["-c", &conf])?;
    cluster.client.join("direct0", cluster.host(Tier::AppNode), "direct0")?;
    cluster.client.address("direct0", &format!("{}/24", DIRECT[0]))?;
    cluster.host(Tier::AppNode).address("direct0", &format!("{}/24", DIRECT[1]))?;
    let conf = nginx_conf(cluster, "plain", PLAIN)?;
    let mut command = cluster.host(Tier::AppNode).command("nginx");
    command.arg("-c").arg(conf);
    let plain = Process::spawn("plain nginx", command, &cluster.scratch().join("log/plain.log"))?;
    let base = [format!("http://{PLAIN}"), format!("http://{VIP}:80")];
    for url in &base {
        let probe = format!("{url}/100B");
        wait_until(&probe, START, || cluster.answers(&probe).then_some(()))
            .with_context(|| cluster.all_logs())?;
    }
    let filtered = cluster.program("nginx").map(|p| p.pid()).context("nginx is not there")?;
    let workers = [worker_of(plain.pid())?, worker_of(filtered)?];
    let mut figures = Vec::new();
    for file in ["100B", "16KiB"] {
        let mut rounds = Vec::new();
        for round in 1..=plan.rounds {
            progress(&format!("nginx, {file}: round {round} of {}", plan.rounds));
            let measure = |at: usize| {
                per_request(&cluster.client, workers[at], &format!("{}/{file}", base[at]), plan.seconds)
            };
            rounds.push((measure(0)?, measure(1)?));
        }
        figures.push(Figure::of(&format!("nginx worker, {file}"), 0.5, rounds));
    }
    progress("nginx idle");
    // A link is idle a second after its last use.
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_ns(workers[1])?;
    let idle = Duration::from_secs(5);
    std::thread::sleep(idle);
    let idle_us = (cpu_ns(workers[1])? - before) as f64 / 1000.0 / idle.as_secs_f64();
    figures.push(redis(cluster, plan, &progress)?);
    Ok(Report { figures, idle_us })
}

/// Measures redis on a kernel socket of the loopback interface, with the filter preloaded and without.
fn redis(cluster: &Cluster, plan: Plan, progress: &impl Fn(&str)) -> Result<Figure> {
    let host = cluster.host(Tier::AppNode);
    let run = cluster.binary("csp-run").to_string_lossy().into_owned();
    let agent = cluster.scratch().join("run/agent.sock").to_string_lossy().into_owned();
    let server =
        ["redis-server", "--port", REDIS_PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let requests = (plan.seconds * 40_000).to_string();
    let once = |filtered: bool| -> Result<f64> {
        let mut command = host.command(if filtered { &run } else { server[0] });
        if filtered {
            command.args(["--agent", &agent, server[0]]);
        }
        command.args(&server[1..]).current_dir(cluster.scratch());
        let mut redis = Process::spawn("redis", command, &cluster.scratch().join("log/redis.log"))?;
        let ping = ["-p", REDIS_PORT, "ping"];
        wait_until("redis", START, || {
            host.output("redis-cli", &ping).is_ok_and(|o| o.stdout == b"PONG\n").then_some(())
        })?;
        let before = cpu_ns(redis.pid())?;
        let load = ["-p", REDIS_PORT, "-n", &requests, "-c", "50", "-t", "get,set", "-q"];
        host.run("redis-benchmark", &load)?;
        let used = cpu_ns(redis.pid())? - before;
        redis.stop()?;
        Ok(used as f64 / f64::from(plan.seconds * 80_000))
    };
    let mut rounds = Vec::new();
    for round in 1..=plan.rounds {
        progress(&format!("redis on a kernel socket: round {round} of {}", plan.rounds));
        // The order alternates, so that warming up does not favour one side.
        let (plain, filtered) = match round % 2 {
            0 => (once(false)?, once(true)?),
            _ => {
                let filtered = once(true)?;
                (once(false)?, filtered)
            }
        };
        rounds.push((plain, filtered));
    }
    Ok(Figure::of("redis-server, not accelerated, GET and SET", 1.01, rounds))
}
