//! nginx over a long time, and with failures: a million connections; SIGKILL for workers, agent and proxy
//! under load.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::http;
use super::nginx::{VERSION, configure};
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::cluster::Tier;
use crate::process::{cpu_ns, wait_until};
use crate::steady::children;

/// Connections before the measurement starts, after which pools, caches and tables have their final size.
const WARM_UP: u64 = 50_000;
/// Permitted growth of a process, in KiB: allocators do not release memory at once.
const GROWTH_MAX_KIB: u64 = 2 * 1024;
const SETTLE_DEADLINE: Duration = Duration::from_secs(20);
/// Length of one run of wrk; several runs in sequence allow progress to be reported.
const SECTION: Duration = Duration::from_secs(5);
const CONNECTIONS: u32 = 32;

pub const ROWS: [Row; 2] = [
    Row {
        name: "nginx-million",
        program: "nginx, 1,000,000 connections",
        version: VERSION,
        driven: "wrk, a connection for each request; memory and descriptors of workers and daemons before and after",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(1200),
        run: million,
    },
    Row {
        name: "nginx-kills",
        program: "nginx, killed and cut off",
        version: VERSION,
        driven: "SIGKILL for a worker, the agent and the proxy in turn, under wrk; files in between",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(300),
        run: kills,
    },
];

/// The resources of a process.
#[derive(Clone, Debug)]
struct Holding {
    name: &'static str,
    id: u32,
    resident_kib: u64,
    descriptors: usize,
}

impl Holding {
    fn of(name: &'static str, id: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).context(name)?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
        let resident_kib = line.trim().trim_end_matches(" kB").parse()?;
        let descriptors = fs::read_dir(format!("/proc/{id}/fd"))?.count();
        Ok(Holding { name, id, resident_kib, descriptors })
    }
}

fn holdings(stage: &mut Stage) -> Result<Vec<Holding>> {
    let mut all = Vec::new();
    for id in children(stage.pid("nginx")?, "nginx") {
        all.push(Holding::of("worker", id)?);
    }
    for tier in [Tier::AppNode, Tier::ProxyNode, Tier::NetworkNode] {
        all.push(Holding::of(tier.daemon(), stage.daemon_pid(tier)?)?);
    }
    Ok(all)
}

/// Runs wrk once with a connection for each request; returns the number of requests.
fn section(stage: &Stage) -> Result<u64> {
    let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{}s", SECTION.as_secs()));
    http::wrk_with(&stage.hosts, &[&connections, &seconds, "-H", "Connection: close"], "0B", 0)
}

fn connect(stage: &mut Stage, count: u64) -> Result<u64> {
    let mut made = 0;
    while made < count {
        made += section(stage)?;
        stage.alive()?;
        eprint!("{made}… ");
    }
    Ok(made)
}

fn million(stage: &mut Stage) -> Result<String> {
    let conf = configure(stage, 2, "off")?;
    stage.start("nginx", "/usr/sbin/nginx", &["-c", &conf])?;
    http::files(stage)?;
    let quick = stage.load() < Duration::from_secs(60);
    connect(stage, if quick { 1 } else { WARM_UP })?;
    let before = holdings(stage)?;
    let made = connect(stage, if quick { 1 } else { 1_000_000 })?;
    // Connections that wrk leaves behind are closed a moment later.
    let after = wait_until("descriptors as before", SETTLE_DEADLINE, || {
        let now = holdings(stage).ok()?;
        let same = before.iter().zip(&now).all(|(b, n)| b.id == n.id && n.descriptors <= b.descriptors);
        same.then_some(now)
    })?;
    let mut growth = Vec::new();
    for (before, after) in before.iter().zip(&after) {
        let grown = after.resident_kib.saturating_sub(before.resident_kib);
        ensure!(
            quick || grown <= GROWTH_MAX_KIB,
            "{} {} has grown from {} to {} KiB over {made} connections",
            before.name,
            before.id,
            before.resident_kib,
            after.resident_kib
        );
        growth.push(format!("{} +{grown} KiB of {}", before.name, after.resident_kib));
    }
    http::files(stage)?;
    Ok(format!("{made} connections, descriptors as before, {}", growth.join(", ")))
}

fn kills(stage: &mut Stage) -> Result<String> {
    const WORKERS: usize = 4;
    let conf = configure(stage, WORKERS, "off")?;
    stage.start("nginx", "/usr/sbin/nginx", &["-c", &conf])?;
    http::files(stage)?;
    let (master, clients) = (stage.pid("nginx")?, stage.hosts.clone());
    let how_long = stage.load();
    let mut rounds = 0;
    // While no server answers, requests fail: all of them may, and in addition each kept connection.
    let requests = std::thread::scope(|scope| {
        let wrk = scope.spawn(|| http::wrk(&clients, how_long, u32::MAX));
        let mut worked = Ok(());
        while worked.is_ok() && !wrk.is_finished() {
            worked = kill_each(stage, master, WORKERS);
            rounds += 1;
        }
        let requests = wrk.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))?;
        worked.and(requests)
    })?;
    http::files(stage)?;
    let idle =
        wait_until("workers to be idle", SETTLE_DEADLINE, || idle_share(master).filter(|s| *s < 0.05))?;
    let workers = children(master, "nginx");
    ensure!(workers.len() == WORKERS, "{} workers are left of {WORKERS}", workers.len());
    Ok(format!(
        "{rounds} rounds of kills, {requests} requests answered meanwhile, {:.1} % of a processor idle",
        idle * 100.0
    ))
}

/// Kills a worker, the agent and the proxy in turn; after each, the remaining processes must serve every
/// file.
fn kill_each(stage: &mut Stage, master: u32, workers: usize) -> Result<()> {
    let victim = *children(master, "nginx").first().context("a worker")?;
    stage.hosts.app("kill", &["-s", "KILL", &victim.to_string()])?;
    wait_until("a new worker", SETTLE_DEADLINE, || {
        let now = children(master, "nginx");
        (now.len() == workers && !now.contains(&victim)).then_some(())
    })?;
    http::files(stage)?;
    for tier in [Tier::AppNode, Tier::ProxyNode] {
        stage.kill_daemon(tier)?;
        stage.alive()?;
        http::files(stage)?;
    }
    if stage.pid("nginx")? != master || children(master, "nginx").len() != workers {
        bail!("nginx did not survive: {} workers of master {master}", children(master, "nginx").len());
    }
    Ok(())
}

/// Returns the share of a processor that all workers together use while idle.
fn idle_share(master: u32) -> Option<f64> {
    let so_far = || -> Option<u64> { children(master, "nginx").into_iter().map(|id| cpu_ns(id).ok()).sum() };
    const WATCHED: Duration = Duration::from_secs(2);
    let before = so_far()?;
    std::thread::sleep(WATCHED);
    Some(so_far()?.saturating_sub(before) as f64 / WATCHED.as_nanos() as f64)
}
