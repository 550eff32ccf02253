//! The demo: its steps in order, each printed with a tick or the reason of its failure.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::{Fetch, Latencies};
use crate::cluster::{Cluster, Options, San, Tier};
use crate::configs::{UPLOAD_PORT, VIP};
use crate::demo_http;
use crate::host::Host;
use crate::identities;
use crate::process::wait_until;
use crate::trace;

/// The files of the web service: name and length in bytes.
pub const FILES: [(&str, u64); 6] = [
    ("0B", 0),
    ("1B", 1),
    ("1KiB", 1 << 10),
    ("64KiB", 64 << 10),
    ("16MiB", 16 << 20),
    ("256MiB", 256 << 20),
];
const SERVING_DEADLINE: Duration = Duration::from_secs(10);
const SEQUENTIAL: u32 = 1000;
const WRK_CONNECTIONS: u32 = 64;
const WRK_SECONDS: u32 = 5;

/// Figures for the summary.
#[derive(Default)]
struct Figures {
    sequential: Option<Latencies>,
    wrk: String,
    trace: String,
}

/// Runs every step, with network node and proxy node as one process if `edge`; with `keep` waits for Ctrl-C
/// before everything is removed.
pub fn run(san: San, edge: bool, keep: bool) -> Result<()> {
    let binaries = std::env::current_exe()?.parent().context("the demo's own folder")?.to_owned();
    // With this handler an interrupt makes the present step fail, and everything created is still removed.
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let tag = std::process::id().to_string();
    println!("CSP demo: client → network-node → proxy-node → app-node (SAN: {san:?})\n");
    let mut cluster = step("hosts: client, network-node, proxy-node, app-node, mgmt", || {
        Cluster::lay_out(Options { binaries, san, edge, tag })
    })?;
    let mut figures = Figures::default();
    let outcome = prove(&mut cluster, &mut figures);
    if let Err(error) = &outcome {
        eprintln!("\n{error:#}\n{}{}", cluster.casualties(), relevant_logs(&cluster));
    } else {
        summary(&cluster, &figures);
    }
    if keep {
        wait_for_interrupt(&cluster, &stop);
    }
    if outcome.is_ok() {
        step("every daemon stops cleanly on SIGTERM", || cluster.stop())?;
    }
    drop(cluster);
    outcome?;
    println!("\n✓ all steps passed");
    Ok(())
}

/// Lays out a cluster, has `prove` do its steps in it, and stops the daemons. What `seen` returns is said
/// with the error of a step that failed.
///
/// # Errors
/// The first step that failed, with the reason.
pub fn in_cluster(
    san: San,
    prove: impl FnOnce(&mut Cluster) -> Result<()>,
    seen: impl FnOnce(&Cluster) -> String,
) -> Result<()> {
    let binaries = std::env::current_exe()?.parent().context("the demo's own folder")?.to_owned();
    let tag = std::process::id().to_string();
    let mut cluster = step("hosts: client, network-node, proxy-node, app-node, mgmt", || {
        Cluster::lay_out(Options { binaries, san, edge: false, tag })
    })?;
    if let Err(error) = prove(&mut cluster) {
        bail!(
            "{error:#}\n{}{}{}{}",
            seen(&cluster),
            cluster.casualties(),
            cluster.log_tail(Tier::ProxyNode),
            cluster.program_logs(5)
        );
    }
    step("every daemon stops cleanly on SIGTERM", || cluster.stop())?;
    println!("\n✓ all steps passed");
    Ok(())
}

/// Runs one step and prints it with a tick and its time, or names it in the error.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    match work() {
        Ok(value) => {
            println!("  ✓ {name}  ({:.2} s)", began.elapsed().as_secs_f64());
            let _ = std::io::stdout().flush();
            Ok(value)
        }
        Err(error) => {
            println!("  ✗ {name}");
            Err(error.context(format!("step failed: {name}")))
        }
    }
}

fn prove(cluster: &mut Cluster, figures: &mut Figures) -> Result<()> {
    step("files of 0 B to 256 MiB on the app host", || write_files(&cluster.scratch().join("www")))?;
    step("etcd and the four daemons", || cluster.start_daemons())?;
    step("unmodified nginx (master and 2 workers) under csp-run", || cluster.start_nginx())?;
    step("unmodified Python http.server under csp-run", || cluster.start_upload())?;
    step("cspctl policy apply demo.yaml", || cluster.apply_policy().map(drop))?;
    step("all daemons ready", || Tier::ALL.iter().try_for_each(|tier| cluster.wait_ready(*tier)))?;
    step("both services answer", || wait_serving(cluster))?;
    let client = Fetch(cluster);
    for (name, _) in FILES {
        step(&format!("GET {name}: SHA-256 equal to the file on disk"), || client.file(name))?;
    }
    let upload = cluster.scratch().join("www/16MiB");
    step("PUT 16 MiB to the Python application: SHA-256 equal", || client.upload("PUT", &upload))?;
    step("POST 16 MiB to the Python application: SHA-256 equal", || client.upload("POST", &upload))?;
    figures.sequential = Some(step(&format!("{SEQUENTIAL} sequential HTTP/1.0 requests: no error"), || {
        client.sequential("1KiB", SEQUENTIAL)
    })?);
    let name = format!("wrk, {WRK_CONNECTIONS} kept-alive connections, {WRK_SECONDS} s: no error");
    figures.wrk = step(&name, || {
        std::thread::scope(|scope| {
            let watch =
                scope.spawn(|| no_kernel_tcp(cluster, Duration::from_secs(u64::from(WRK_SECONDS) - 2)));
            let report = client.wrk("1KiB", WRK_CONNECTIONS, WRK_SECONDS)?;
            watch.join().map_err(|_| anyhow::anyhow!("the watcher of kernel sockets ended early"))??;
            Ok(report)
        })
    })?;
    println!("  ✓ no kernel TCP socket of the services on app and proxy host while wrk ran");
    let name =
        "one HTTP/1.0 transaction traced: the application saw OPEN, DATA, DATA, CLOSE and nothing else";
    figures.trace = step(name, || trace::transaction(cluster))?;
    demo_http::prove(cluster)
}

fn write_files(www: &Path) -> Result<()> {
    let mut random = File::open("/dev/urandom")?;
    let mut part = vec![0; 1 << 20];
    for (name, len) in FILES {
        let mut file = File::create(www.join(name))?;
        let mut left = len;
        while left > 0 {
            let n = left.min(part.len() as u64) as usize;
            random.read_exact(&mut part[..n])?;
            file.write_all(&part[..n])?;
            left -= n as u64;
        }
    }
    Ok(())
}

fn wait_serving(cluster: &mut Cluster) -> Result<()> {
    for url in [format!("http://{VIP}/1B"), format!("http://{VIP}:{}/", UPLOAD_PORT)] {
        wait_until(&url, SERVING_DEADLINE, || {
            let output = cluster.client.output("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]).ok()?;
            output.status.success().then_some(())
        })?;
    }
    Ok(())
}

/// Checks repeatedly for `how_long` that no kernel TCP socket on app or proxy host belongs to the services.
pub fn no_kernel_tcp(cluster: &Cluster, how_long: Duration) -> Result<()> {
    let end = Instant::now() + how_long;
    let mut looked = 0;
    while Instant::now() < end || looked == 0 {
        for tier in [Tier::AppNode, Tier::ProxyNode] {
            if let Some(line) = kernel_tcp(cluster.host(tier), &[80, UPLOAD_PORT])? {
                bail!("a kernel TCP socket on the host of {}: {line}", tier.daemon());
            }
        }
        looked += 1;
    }
    Ok(())
}

/// Returns a kernel TCP socket of `host` that belongs to services on `ports`, as printed by `ss`.
pub fn kernel_tcp(host: &Host, ports: &[u16]) -> Result<Option<String>> {
    let sockets = host.run("ss", &["-Htan"])?;
    // Any other socket must belong to the control network: etcd and admin endpoints.
    Ok(sockets.lines().find(|line| !is_placeholder(line) && !control_only(line, ports)).map(str::to_owned))
}

/// Returns whether a line of `ss -Htan` is a socket that is bound and neither listens nor is connected, such
/// as the placeholder of an accelerated listener. iproute2 lists these from 6.9 on (Debian 13), earlier
/// releases do not.
pub fn is_placeholder(line: &str) -> bool {
    line.split_whitespace().next() == Some("UNCONN")
}

/// Returns whether a line of `ss -Htan` does not concern the services: both ends are in the SAN and control
/// network or on loopback (etcd, admin endpoints, UCX's own connections), and neither port is a service's.
fn control_only(line: &str, ports: &[u16]) -> bool {
    let mut fields = line.split_whitespace();
    let (state, local, peer) = (fields.next(), fields.nth(2).unwrap_or(""), fields.next().unwrap_or(""));
    let inside = |end: &str| ["10.77.0.", "127.0.0.1:", "[::1]:"].iter().any(|own| end.starts_with(own));
    let service =
        |end: &str| end.rsplit(':').next().and_then(|p| p.parse().ok()).is_some_and(|p| ports.contains(&p));
    inside(local) && (inside(peer) || state == Some("LISTEN")) && !service(local) && !service(peer)
}

fn summary(cluster: &Cluster, figures: &Figures) {
    println!("\n── one HTTP/1.0 transaction ──────────────────────────────────────────\n{}", figures.trace);
    println!("── figures (one run, shared machine: compare ratios, not absolutes) ──");
    if let Some(l) = &figures.sequential {
        let p = |percent| l.percentile_us(percent);
        println!(
            "  sequential HTTP/1.0, 1 KiB: p50 {:.0} µs  p90 {:.0} µs  p99 {:.0} µs  max {:.0} µs",
            p(50.0),
            p(90.0),
            p(99.0),
            p(100.0)
        );
    }
    let wanted = ["50%", "90%", "99%", "requests in", "Requests/sec", "Transfer/sec"];
    println!("  wrk -c{WRK_CONNECTIONS}, 1 KiB:");
    for line in figures.wrk.lines().filter(|l| wanted.iter().any(|w| l.contains(w))) {
        println!("    {}", line.trim());
    }
    println!("── counters ──────────────────────────────────────────────────────────");
    for tier in Tier::ALL {
        counters(cluster, tier);
    }
    println!("── addresses (inside the hosts' namespaces) ──────────────────────────");
    for tier in Tier::ALL {
        println!("  {:<17} https://{}/metrics", tier.daemon(), tier.admin());
    }
    println!("  operations page   https://{}/", Tier::MgmtNode.admin());
    if let Ok(events) = cluster.cspctl(&["events", "--limit", "1"]) {
        println!("  latest event      {}", events.trim());
    }
    println!();
}

/// Prints a tier's largest counters.
fn counters(cluster: &Cluster, tier: Tier) {
    let Ok(text) = cluster.ask(tier, "/metrics") else { return };
    let interesting =
        ["_bytes_total", "records_", "connections_", "segments_", "frames_", "flows", "processes"];
    let mut lines: Vec<(f64, &str)> = text
        .lines()
        .filter(|l| {
            !l.starts_with('#') && !l.contains("_bucket") && interesting.iter().any(|w| l.contains(w))
        })
        .filter_map(|l| l.rsplit_once(' ').and_then(|(name, v)| Some((v.parse::<f64>().ok()?, name))))
        .filter(|(value, _)| *value > 0.0)
        .collect();
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("  {}", tier.daemon());
    for (value, name) in lines.iter().take(6) {
        println!("    {name:<58} {value:>14}");
    }
}

fn relevant_logs(cluster: &Cluster) -> String {
    Tier::ALL.iter().map(|tier| cluster.log_tail(*tier) + "\n").collect()
}

fn wait_for_interrupt(cluster: &Cluster, stop: &AtomicBool) {
    let namespace = cluster.client.namespace();
    println!("everything is left running; scratch folder {}", cluster.scratch().display());
    println!("  a client:  ip netns exec {namespace} curl http://{VIP}/1KiB");
    println!(
        "  cspctl:    ip netns exec {} {} {} nodes",
        cluster.host(Tier::MgmtNode).namespace(),
        cluster.binary("cspctl").display(),
        identities::cspctl(cluster.scratch(), &Tier::MgmtNode.admin()).join(" ")
    );
    println!("Ctrl-C ends it.");
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_told_from_a_kernel_socket_of_a_service() {
        for (line, placeholder, control) in [
            ("UNCONN 0 0 0.0.0.0:80 0.0.0.0:*", true, false),
            ("UNCONN 0 0 [::]:80 [::]:*", true, false),
            ("LISTEN 0 511 0.0.0.0:80 0.0.0.0:*", false, false),
            ("ESTAB 0 0 10.77.0.3:80 10.77.0.2:40000", false, false),
            ("TIME-WAIT 0 0 10.76.0.100:80 10.76.0.1:40000", false, false),
            ("ESTAB 0 0 10.77.0.3:40002 10.77.0.4:2379", false, true),
            ("LISTEN 0 10 [::1]:43083 [::]:*", false, true),
            ("LISTEN 0 10 [::1]:80 [::]:*", false, false),
        ] {
            assert_eq!((is_placeholder(line), control_only(line, &[80])), (placeholder, control), "{line}");
        }
    }
}
