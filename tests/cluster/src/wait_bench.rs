//! Costs and savings of polling: latency, throughput and processor time under settings of `spin_us` and
//! `CSP_SPIN_US`.
//!
//! Each setting has a cluster of its own in each round, so that the settings alternate and a change of the
//! machine's speed affects all of them. Medians over the rounds are reported.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::micros;
use crate::process::{Process, cpu_ns_of_all, wait_until};
use crate::{Cluster, Host, Options, San, Tier, VIP, configs, testing};

/// For kernel TCP, client and application host are joined by a veth of their own.
const DIRECT: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
const PLAIN: &str = "10.78.0.2:81";
const START: Duration = Duration::from_secs(20);
/// Links are idle a second after their last use.
const SETTLE: Duration = Duration::from_secs(2);
/// Rates of the paced loads, in requests per second.
const RATES: [u32; 2] = [100, 1_000];
const TIERS: [Tier; 3] = [Tier::NetworkNode, Tier::ProxyNode, Tier::AppNode];

/// The plan of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder of the programs.
    pub binaries: PathBuf,
    /// `spin_us` of the daemons and `CSP_SPIN_US` of nginx.
    pub settings: Vec<(String, String)>,
    /// Rounds; each round measures every setting once.
    pub rounds: u32,
    /// Seconds of each load.
    pub seconds: u32,
    /// Threads of wrk, and workers of nginx.
    pub threads: u32,
}

/// The columns, in order.
pub const COLUMNS: [&str; 10] = [
    "1 conn p50 us",
    "1 conn req/s",
    "64 conn req/s",
    "64x16KiB req/s",
    "100/s p50 us",
    "100/s cpu ms/s",
    "1000/s p50 us",
    "1000/s cpu ms/s",
    "1 conn cpu ms/s",
    "idle cpu ms/s",
];

/// One row: a setting and the median of each column over the rounds; NaN where a column does not apply.
#[derive(Clone, Debug)]
pub struct Row {
    /// The setting, as text.
    pub name: String,
    /// Its values, in the order of [`COLUMNS`].
    pub values: Vec<f64>,
}

/// Measures nginx on kernel TCP, then every setting.
///
/// # Errors
/// If something cannot be set up or measured, with the reason.
pub fn run(plan: &Plan, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let mut all: Vec<Vec<Vec<f64>>> = vec![Vec::new(); plan.settings.len() + 1];
    for round in 1..=plan.rounds {
        for (at, (spin, filter)) in plan.settings.iter().enumerate() {
            progress(&format!("round {round} of {}: spin_us {spin}, CSP_SPIN_US {filter}", plan.rounds));
            let (direct, values) = one(plan, (spin, filter), at == 0)?;
            all[0].extend(direct);
            all[at + 1].push(values);
        }
    }
    let names = plan.settings.iter().map(|(spin, filter)| format!("spin_us {spin}, filter {filter}"));
    let names = std::iter::once("nginx on kernel TCP".to_owned()).chain(names);
    Ok(names.zip(all).map(|(name, rounds)| Row { name, values: medians(&rounds) }).collect())
}

fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let median = |column: usize| {
        let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.get(column).copied()).collect();
        values.sort_by(f64::total_cmp);
        let middle = [values.len().saturating_sub(1) / 2, values.len() / 2].map(|at| values.get(at).copied());
        middle.iter().map(|value| value.unwrap_or(f64::NAN)).sum::<f64>() / 2.0
    };
    (0..COLUMNS.len()).map(median).collect()
}

/// Measures one setting in a cluster of its own, and kernel TCP if `direct` is set.
fn one(plan: &Plan, (spin, filter): (&str, &str), direct: bool) -> Result<(Option<Vec<f64>>, Vec<f64>)> {
    let tag = format!("wb{}", std::process::id());
    let mut cluster =
        Cluster::lay_out(Options { binaries: plan.binaries.clone(), san: San::Shm, edge: false, tag })?;
    for tier in TIERS {
        let path = cluster.config(tier);
        let text = fs::read_to_string(&path)? + &format!("spin_us: {spin}\n");
        fs::write(path, text)?;
    }
    for (name, len) in [("100B", 100), ("16KiB", 16 << 10)] {
        fs::write(cluster.scratch().join("www").join(name), testing::pattern(len))?;
    }
    cluster.start_daemons()?;
    cluster.apply_policy()?;
    let conf = nginx_conf(&cluster, plan, "filtered", "80")?.to_string_lossy().into_owned();
    let variable = format!("CSP_SPIN_US={filter}");
    cluster.run_accelerated("nginx", "/usr/bin/env", &[&variable, "nginx", "-c", &conf])?;
    wait_answer(&cluster, VIP)?;
    let mut daemons = Vec::new();
    for tier in TIERS {
        let what = tier.daemon();
        daemons.push((cluster.daemon(tier).with_context(|| format!("{what} does not run"))?.pid(), what));
    }
    let client = cluster.client.borrow();
    let load = Load { client: &client, plan };
    let values = load.measure(VIP, &daemons)?;
    let direct = if direct { Some(kernel(&cluster, plan, &load)?) } else { None };
    cluster.stop()?;
    Ok((direct, values))
}

/// Measures the same nginx without the filter, on a veth of its own.
fn kernel(cluster: &Cluster, plan: &Plan, load: &Load<'_>) -> Result<Vec<f64>> {
    cluster.client.join("direct0", cluster.host(Tier::AppNode), "direct0")?;
    cluster.client.address("direct0", &format!("{}/24", DIRECT[0]))?;
    cluster.host(Tier::AppNode).address("direct0", &format!("{}/24", DIRECT[1]))?;
    let conf = nginx_conf(cluster, plan, "plain", PLAIN)?;
    let mut command = cluster.host(Tier::AppNode).command("nginx");
    command.arg("-c").arg(conf);
    let mut nginx = Process::spawn("plain nginx", command, &cluster.scratch().join("log/plain.log"))?;
    wait_answer(cluster, PLAIN)?;
    let values = load.measure(PLAIN, &[])?;
    nginx.stop()?;
    Ok(values)
}

fn wait_answer(cluster: &Cluster, address: &str) -> Result<()> {
    let url = format!("http://{address}/100B");
    wait_until(&url, START, || cluster.answers(&url).then_some(())).with_context(|| cluster.all_logs())
}

fn nginx_conf(cluster: &Cluster, plan: &Plan, name: &str, listen: &str) -> Result<PathBuf> {
    let conf = cluster.scratch().join(format!("{name}.conf"));
    let text = configs::nginx(cluster.scratch())
        .replace("worker_processes 2;", &format!("worker_processes {};", plan.threads))
        .replace("keepalive_requests 100000;", "keepalive_requests 100000000;")
        .replace("listen 80;", &format!("listen {listen};"))
        .replace("nginx.pid", &format!("{name}.pid"));
    fs::write(&conf, text)?;
    Ok(conf)
}

/// Loads from the client's host.
struct Load<'a> {
    client: &'a Host,
    plan: &'a Plan,
}

impl Load<'_> {
    fn measure(&self, address: &str, daemons: &[(u32, &str)]) -> Result<Vec<f64>> {
        let url = |file: &str| format!("http://{address}/{file}");
        let _ = self.wrk(1, &url("100B"))?; // warm-up
        let before = cpu(daemons)?;
        let (p50, one) = self.wrk(1, &url("100B"))?;
        let one_cpu = (cpu(daemons)? - before) / f64::from(self.plan.seconds);
        let (_, many) = self.wrk(64, &url("100B"))?;
        let (_, large) = self.wrk(64, &url("16KiB"))?;
        let mut values = vec![p50, one, many, large];
        for rate in RATES {
            let before = cpu(daemons)?;
            let p50 = self.paced(address, rate)?;
            values.extend([p50, (cpu(daemons)? - before) / f64::from(self.plan.seconds)]);
        }
        values.push(one_cpu);
        thread::sleep(SETTLE);
        let before = cpu(daemons)?;
        thread::sleep(Duration::from_secs(self.plan.seconds.into()));
        values.push((cpu(daemons)? - before) / f64::from(self.plan.seconds));
        Ok(values)
    }

    /// Returns the median latency in microseconds, and the requests per second.
    fn wrk(&self, connections: u32, url: &str) -> Result<(f64, f64)> {
        let threads = format!("-t{}", self.plan.threads.min(connections));
        let (connections, duration) = (format!("-c{connections}"), format!("-d{}s", self.plan.seconds));
        let report = self.client.run("wrk", &[&threads, &connections, &duration, "--latency", url])?;
        let field = |name: &str| report.lines().find_map(|line| line.trim().strip_prefix(name));
        let p50 = field("50%").and_then(|text| micros(text.trim()));
        let rate = field("Requests/sec:").and_then(|text| text.trim().parse().ok());
        match (p50, rate) {
            (Some(p50), Some(rate)) if !report.contains("Socket errors") && !report.contains("Non-2xx") => {
                Ok((p50, rate))
            }
            _ => bail!("wrk reports errors for {url}:\n{report}"),
        }
    }

    fn paced(&self, address: &str, rate: u32) -> Result<f64> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        let (rate, seconds) = (rate.to_string(), self.plan.seconds.to_string());
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
        let report = self.client.run(&program, &["pace", &address, &rate, &seconds])?;
        report.trim().parse().with_context(|| format!("pace printed {report:?}"))
    }
}

/// Returns the processor time of these processes with all their threads, in milliseconds.
fn cpu(daemons: &[(u32, &str)]) -> Result<f64> {
    if daemons.is_empty() {
        return Ok(f64::NAN);
    }
    let mut sum = 0;
    for (pid, what) in daemons {
        sum += cpu_ns_of_all(*pid).with_context(|| format!("{what} has ended"))?;
    }
    Ok(sum as f64 / 1e6)
}

/// Requests 100 bytes `rate` times per second over one connection; returns the median latency in
/// microseconds.
///
/// # Errors
/// The server cannot be reached or closes the connection.
pub fn pace(address: &str, rate: u32, seconds: u32) -> Result<f64> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(START))?;
    let request = format!("GET /100B HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (start, mut buffer) = (Instant::now(), [0; 4096]);
    let mut latencies = Vec::new();
    for number in 0..rate * seconds {
        let due = start + Duration::from_secs(1) * number / rate.max(1);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        stream.write_all(request.as_bytes())?;
        let mut len = 0;
        while !is_whole(&buffer[..len]) {
            match stream.read(&mut buffer[len..])? {
                0 => bail!("the server closed the connection"),
                more => len += more,
            }
        }
        latencies.push(sent.elapsed());
    }
    latencies.sort();
    let median = latencies.get(latencies.len() / 2).context("no request was made")?;
    Ok(median.as_secs_f64() * 1e6)
}

/// Returns whether these are a response's head and 100 bytes of body.
fn is_whole(bytes: &[u8]) -> bool {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").is_some_and(|at| bytes.len() >= at + 4 + 100)
}
