//! `make bench-wait`: latency, throughput and processor time by how long threads poll before they sleep.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use csp_cluster::testing;
use csp_cluster::wait_bench::{self, COLUMNS, Plan, Row};

/// Measures nginx through the daemons under several settings of `spin_us` (the daemons') and `CSP_SPIN_US`
/// (nginx's), and nginx on kernel TCP. Processor time is that of network node, proxy node and agent together.
/// Needs root, nginx and wrk, and an otherwise idle machine.
#[derive(Parser)]
#[command(
    name = "csp-wait-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-wait-bench                                   three rounds of all settings: twenty minutes
  csp-wait-bench --rounds 1 --seconds 2            a quick look
  csp-wait-bench --settings 20:0,auto:auto         two settings only (daemons:filter)
  csp-wait-bench --output json

EXIT CODES:
  0  measured
  1  something could not be set up or measured"
)]
struct Arguments {
    /// Settings, each as DAEMONS:FILTER; both `auto` or microseconds.
    #[arg(long, default_value = "0:0,20:0,100:0,400:0,auto:0,auto:auto", value_delimiter = ',')]
    settings: Vec<String>,
    /// Rounds; each round measures every setting once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each load.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Threads of wrk and workers of nginx.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Form of the result.
    #[arg(long, value_parser = ["table", "json"], default_value = "table")]
    output: String,
    #[command(subcommand)]
    inner: Option<Inner>,
}

/// Commands that the tool runs on the client's host.
#[derive(Subcommand)]
enum Inner {
    /// Send requests at a fixed rate; prints the median latency in microseconds.
    #[command(hide = true)]
    Pace { address: String, rate: u32, seconds: u32 },
}

fn run(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(Inner::Pace { address, rate, seconds }) = &arguments.inner {
        return Ok(format!("{}\n", wait_bench::pace(address, *rate, *seconds)?));
    }
    if let Some(obstacle) = testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let split = |setting: &String| {
        let (spin, filter) = setting.split_once(':').ok_or_else(|| {
            anyhow::anyhow!("{setting:?} is no setting; allowed is DAEMONS:FILTER, such as auto:0")
        })?;
        Ok((spin.to_owned(), filter.to_owned()))
    };
    let plan = Plan {
        binaries: std::env::current_exe()?.parent().map(std::path::Path::to_owned).unwrap_or_default(),
        settings: arguments.settings.iter().map(split).collect::<anyhow::Result<_>>()?,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        threads: arguments.threads,
    };
    let rows = wait_bench::run(&plan, |step| eprintln!("  {step}"))?;
    Ok(if arguments.output == "json" { json(&rows) } else { table(&rows) })
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<28}", "");
    COLUMNS.iter().for_each(|column| text += &format!(" {column:>15}"));
    for row in rows {
        text += &format!("\n{:<28}", row.name);
        for value in &row.values {
            text += &if value.is_nan() { format!(" {:>15}", "-") } else { format!(" {value:>15.1}") };
        }
    }
    text + "\n"
}

fn json(rows: &[Row]) -> String {
    let row = |row: &Row| {
        let values = COLUMNS.iter().zip(&row.values).filter(|(_, value)| value.is_finite());
        let values: Vec<_> = values.map(|(column, value)| format!("\"{column}\":{value:.2}")).collect();
        format!("{{\"setting\":\"{}\",{}}}", row.name, values.join(","))
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
            eprintln!("csp-wait-bench: {error:#}");
            ExitCode::from(1)
        }
    }
}
