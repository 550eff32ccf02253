//! `make bench-messages`: the proxy's message broker beside libzmq's forwarder.

use std::process::ExitCode;

use clap::Parser;
use csp_cluster::messages_bench::{self, Plan, Row};
use csp_cluster::testing;

/// Measures ZeroMQ messages from publishers to subscribers through network node and proxy node, and through zmq_proxy on the proxy's
/// host, with the same clients. Needs root, gcc, libzmq3-dev and an otherwise idle machine.
#[derive(Parser)]
#[command(
    name = "csp-messages-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-messages-bench                               five rounds: ten minutes
  csp-messages-bench --rounds 1 --seconds 2        a quick look
  csp-messages-bench --size 100 --subscribers 1,20
  csp-messages-bench --output json

EXIT CODES:
  0  measured
  1  something could not be set up or measured"
)]
struct Arguments {
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
    /// Form of the result.
    #[arg(long, value_parser = ["table", "json"], default_value = "table")]
    output: String,
}

fn run(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(obstacle) = testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let plan = Plan {
        binaries: std::env::current_exe()?.parent().map(std::path::Path::to_owned).unwrap_or_default(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        size: arguments.size,
        subscribers: arguments.subscribers.clone(),
    };
    let rows = messages_bench::run(&plan, |step| eprintln!("  {step}"))?;
    Ok(if arguments.output == "json" { json(&rows) } else { table(&rows) })
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

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        text += &format!("{}, {} receivers\n", row.name, row.receivers);
        text += &format!("  {:<12} {:>12} {:>12} {:>8}\n", "", "zmq_proxy", "csp", "ratio");
        for (name, zmq, csp) in figures(row) {
            let ratio = if zmq > 0.0 { format!("{:.2}", csp / zmq) } else { "-".to_owned() };
            text += &format!("  {name:<12} {zmq:>12.0} {csp:>12.0} {ratio:>8}\n");
        }
    }
    text
}

fn json(rows: &[Row]) -> String {
    let row = |row: &Row| {
        let values = figures(row).map(|(name, zmq, csp)| format!("\"{name}\":[{zmq:.2},{csp:.2}]"));
        format!("{{\"load\":\"{}\",\"receivers\":{},{}}}", row.name, row.receivers, values.join(","))
    };
    format!("[{}]\n", rows.iter().map(row).collect::<Vec<_>>().join(",\n"))
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
