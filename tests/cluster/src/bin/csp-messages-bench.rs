//! `make bench-messages`: the proxy's message broker beside libzmq's forwarder.

use std::process::ExitCode;

use clap::Parser;
use csp_cluster::messages_bench::{self, Neighbours, Plan, Report, Row, Sample, Swaps};
use csp_cluster::testing;

/// Measures ZeroMQ messages from publishers to subscribers through network node and proxy node, and through
/// zmq_proxy on the proxy's host, with the same clients. Needs root, gcc, libzmq3-dev and an otherwise idle
/// machine.
#[derive(Parser)]
#[command(
    name = "csp-messages-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-messages-bench                               five rounds: a quarter of an hour
  csp-messages-bench --rounds 1 --seconds 2        a quick look
  csp-messages-bench --two-processes               network node and proxy node as processes of their own
  csp-messages-bench --size 100 --subscribers 1,20
  csp-messages-bench --only soak --soak-s 600      PUSH to PULL for ten minutes
  csp-messages-bench --only swaps --swaps 100      messages while their handler is replaced 100 times
  csp-messages-bench --output json

EXIT CODES:
  0  measured
  1  something could not be set up or measured"
)]
struct Arguments {
    /// Network node and proxy node as two processes.
    #[arg(long)]
    two_processes: bool,
    /// Rounds; each round measures every load on both.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each load.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(24..=1_000_000))]
    size: u32,
    /// Numbers of subscribers.
    #[arg(long, default_value = "1,5", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    subscribers: Vec<u32>,
    /// Seconds of the soak: PUSH to PULL at 80 % of the largest rate, each message counted.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    soak_s: u32,
    /// Replacements of a supplied handler while messages pass through it.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    swaps: u32,
    /// Measure this only.
    #[arg(long, value_parser = ["brokers", "neighbours", "swaps", "soak"])]
    only: Option<String>,
    /// Form of the result.
    #[arg(long, value_parser = ["table", "json"], default_value = "table")]
    output: String,
}

fn run(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(obstacle) = testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let has = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    let plan = Plan {
        binaries: std::env::current_exe()?.parent().map(std::path::Path::to_owned).unwrap_or_default(),
        edge: !arguments.two_processes,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        size: arguments.size,
        subscribers: if has("brokers") { arguments.subscribers.clone() } else { Vec::new() },
        neighbours: has("neighbours"),
        swaps: if has("swaps") { arguments.swaps } else { 0 },
        soak_s: if has("soak") { arguments.soak_s } else { 0 },
    };
    let report = messages_bench::run(&plan, |step| eprintln!("  {step}"))?;
    Ok(if arguments.output == "json" { json(&report) } else { table(&report) })
}

/// Figures of a row: name, zmq_proxy's, the proxy's.
fn figures(row: &Row) -> [(&'static str, f64, f64); 7] {
    let (zmq, csp) = (row.zmq, row.csp);
    [
        ("messages/s", zmq.rate, csp.rate),
        ("broker ns", zmq.broker_ns, csp.broker_ns),
        ("machine ns", zmq.machine_ns, csp.machine_ns),
        ("p50 us", zmq.p50_us, csp.p50_us),
        ("p99 us", zmq.p99_us, csp.p99_us),
        ("lost", zmq.lost, csp.lost),
        ("disordered", zmq.disordered, csp.disordered),
    ]
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.rows {
        text += &format!("{}, {} receivers\n", row.name, row.receivers);
        text += &format!("  {:<12} {:>12} {:>12} {:>8}\n", "", "zmq_proxy", "csp", "ratio");
        for (name, zmq, csp) in figures(row) {
            let ratio = if zmq > 0.0 { format!("{:.2}", csp / zmq) } else { "-".to_owned() };
            text += &format!("  {name:<12} {zmq:>12.0} {csp:>12.0} {ratio:>8}\n");
        }
    }
    if let Some(neighbours) = &report.neighbours {
        let Neighbours { alone_us, beside_zmq_us, beside_channel_us, channel_rate, tunnel_full } = neighbours;
        text += "wrk, 8 connections, 100 bytes from nginx: 99th percentile in us\n";
        text += &format!("  alone                                        {alone_us:>10.0}\n");
        text += &format!(
            "  beside zmq_proxy under the same clients      {beside_zmq_us:>10.0} {:>8.2}\n",
            beside_zmq_us / alone_us
        );
        text += &format!(
            "  beside {channel_rate:>7.0} messages/s on its worker     {beside_channel_us:>10.0} {:>8.2}\n",
            beside_channel_us / alone_us
        );
        text += &format!("  frames for which the tunnel had no room meanwhile {tunnel_full:>5.0}\n");
    }
    text += &report.swaps.as_ref().map_or_else(String::new, swaps);
    if let Some(Sample { rate, lost, disordered, p50_us, p99_us, .. }) = &report.soak {
        text += "PUSH to PULL at 80 % of the largest rate\n";
        text += &format!("  {rate:.0} messages/s, {lost:.0} lost, {disordered:.0} doubled or out of order, ");
        text += &format!("p50 {p50_us:.0} us, p99 {p99_us:.0} us\n");
    }
    text
}

fn swaps(swaps: &Swaps) -> String {
    let Swaps { count, gap_us, longest_us, p50_us, p99_us, lost, disordered } = swaps;
    format!(
        "a supplied handler is replaced by the policy {count} times, a message each 200 us: median and most in us\n  \
         from the last message of one version to the first of the next {:>8.0} {:>8.0}\n  \
         longest from send to receive near a replacement               {:>8.0} {:>8.0}\n  \
         of all messages: p50 {p50_us:.0} us, p99 {p99_us:.0} us, {lost:.0} lost, {disordered:.0} doubled or out of order\n",
        gap_us[0], gap_us[1], longest_us[0], longest_us[1]
    )
}

fn json(report: &Report) -> String {
    let row = |row: &Row| {
        let values = figures(row).map(|(name, zmq, csp)| (name.to_owned(), serde_json::json!([zmq, csp])));
        let mut value = serde_json::json!({"load": row.name, "receivers": row.receivers});
        value.as_object_mut().into_iter().for_each(|object| object.extend(values.clone()));
        value
    };
    let neighbours = report.neighbours.map(|n| {
        serde_json::json!({
            "alone_us": n.alone_us, "beside_zmq_us": n.beside_zmq_us,
            "beside_channel_us": n.beside_channel_us, "channel_rate": n.channel_rate,
            "tunnel_full": n.tunnel_full,
        })
    });
    let swaps = report.swaps.map(|s| {
        serde_json::json!({
            "count": s.count, "gap_us": s.gap_us, "longest_us": s.longest_us, "p50_us": s.p50_us, "p99_us": s.p99_us,
            "lost": s.lost, "disordered": s.disordered,
        })
    });
    let soak = report.soak.map(|s| {
        serde_json::json!({
            "rate": s.rate, "lost": s.lost, "disordered": s.disordered, "p50_us": s.p50_us, "p99_us": s.p99_us,
        })
    });
    let rows: Vec<_> = report.rows.iter().map(row).collect();
    format!(
        "{:#}\n",
        serde_json::json!({"loads": rows, "neighbours": neighbours, "swaps": swaps, "soak": soak})
    )
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("csp-messages-bench: {error:#}");
            ExitCode::from(1)
        }
    }
}
