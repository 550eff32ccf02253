//! Latencies in one guest: the verbs provider beside the reference programs, rsockets and the kernel's TCP.
//!
//! Everything takes turns, round after round, and of each the best round counts: the processor is emulated, and the
//! machine below does other things too. The times mean nothing outside the guest; the ratios do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use csp_cluster::demo::step;
use csp_cluster::wait_until;

use crate::kernel::Kernel;
use crate::{Fleet, Guest, Output, Program, Sizes};

const SIZES: Sizes = Sizes { memory_mib: 1024, cpus: 2, mtu: 1500 };
/// Bytes of the messages.
const LENGTHS: [u32; 4] = [64, 1 << 10, 16 << 10, 64 << 10];
const ROUNDS: u32 = 3;
/// What one measurement may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// The verbs provider may take this many times what ibv_rc_pingpong takes.
const BAR: f64 = 1.2;
/// Where csp-perf's server listens.
const PORTS: [(&str, u16); 2] = [("verbs", 7200), ("tcp", 7201)];
/// Waits until the reference program's server listens; `$server` and `$client` are its command lines.
const PAIR: &str = "$server > /tmp/server 2>&1 & tries=0
    until $client > /tmp/client 2>&1; do tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.1; done
    cat /tmp/client; wait";

/// A half round trip in µs, mean over a round.
type Measure = fn(&mut Guest, &str, u32) -> Result<f64>;

/// Measures, prints a table, and says whether the bar is met. `binaries` is the folder with csp-perf.
pub fn run(kernel: &Kernel, binaries: &Path) -> Result<()> {
    println!("Latency in a guest (Soft-RoCE on an emulated processor), polling, best of {ROUNDS} rounds\n");
    let mut fleet = step("a guest", || Fleet::boot(kernel, 1, SIZES))?;
    let guest = fleet.guests.first_mut().context("a guest was booted")?;
    let perf = binaries.join("csp-perf");
    let _server = step("csp-perf serves", || serve(guest, &perf))?;
    let perf = perf.display().to_string();
    let columns: [(&str, Measure); 4] = [
        ("ibv_rc_pingpong", |guest, _, len| pingpong(guest, len)),
        ("csp verbs", |guest, perf, len| csp(guest, perf, "verbs", len)),
        ("rsockets", |guest, _, len| rsockets(guest, len)),
        ("kernel TCP", |guest, perf, len| csp(guest, perf, "tcp", len)),
    ];
    println!("\n  half a round trip in µs\n  {:>7}", columns.map(|(name, _)| format!("{name:>16}")).concat());
    let mut worst = 0_f64;
    for len in LENGTHS {
        let mut best = [f64::INFINITY; 4];
        for _ in 0..ROUNDS {
            for ((name, measure), best) in columns.iter().zip(&mut best) {
                let took = measure(guest, &perf, len).with_context(|| format!("{name}, {len} bytes"))?;
                *best = best.min(took);
            }
        }
        let ratio = best[1] / best[0];
        worst = worst.max(ratio);
        let cells = best.map(|us| format!("{us:>16.1}")).concat();
        println!("  {len:>7}{cells}   csp verbs is {ratio:.2} times ibv_rc_pingpong");
    }
    if worst > BAR {
        bail!("the verbs provider takes {worst:.2} times what ibv_rc_pingpong takes")
    } else {
        Ok(())
    }
}

/// Starts csp-perf's server over verbs and TCP.
fn serve(guest: &mut Guest, perf: &Path) -> Result<Program> {
    let perf = perf.canonicalize().with_context(|| perf.display().to_string())?.display().to_string();
    let places = PORTS.map(|(name, port)| format!("{name}:{}:{port}", guest.address()));
    let server = guest.start(&[&perf, "serve", &places[0], &places[1]], Output::Memory)?;
    wait_until("csp-perf serve", DEADLINE, || server.captured().contains("ready").then_some(()))
        .with_context(|| server.captured())?;
    Ok(server)
}

fn csp(guest: &mut Guest, perf: &str, transport: &str, len: u32) -> Result<f64> {
    let (_, port) = PORTS.iter().find(|(name, _)| *name == transport).context("csp-perf serves it")?;
    let (place, size) = (format!("{transport}:{}:{port}", guest.address()), len.to_string());
    let command =
        [perf, "run", &place, "--sizes", &size, "--wait", "poll", "--seconds", "1", "--output", "json"];
    let text = guest.run(&command, DEADLINE)?;
    let json: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let trips = json[0]["messages_per_second"].as_f64().with_context(|| text.clone())?;
    Ok(1e6 / trips / 2.0)
}

fn pingpong(guest: &mut Guest, len: u32) -> Result<f64> {
    let program = format!("ibv_rc_pingpong -d rxe0 -g 1 -n 500 -s {len}");
    let text = pair(guest, &program, &format!("{program} 127.0.0.1"))?;
    let line = text.lines().find(|line| line.contains("usec/iter")).with_context(|| text.clone())?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let trip: f64 = words.iter().rev().nth(1).context("a number")?.parse().with_context(|| text.clone())?;
    Ok(trip / 2.0)
}

fn rsockets(guest: &mut Guest, len: u32) -> Result<f64> {
    let program = format!("rstream -S {len} -I 500 -C 1");
    let address = guest.address();
    let text = pair(guest, &format!("{program} -b {address}"), &format!("{program} -s {address}"))?;
    let last = text.split_whitespace().next_back().with_context(|| text.clone())?;
    last.parse().with_context(|| text.clone())
}

/// Runs a reference program's server and client; what the client says.
fn pair(guest: &mut Guest, server: &str, client: &str) -> Result<String> {
    guest.run(&["/bin/sh", "-ec", &format!("server='{server}' client='{client}'\n{PAIR}")], DEADLINE)
}
