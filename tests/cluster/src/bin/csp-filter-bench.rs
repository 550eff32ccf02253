//! `make bench-filter`: processor time of programs under the socket filter, compared with kernel TCP.

use std::process::ExitCode;

use clap::Parser;
use csp_cluster::filter_bench::{self, Plan, Report};
use csp_cluster::{Cluster, Options, San, testing};

/// Measures the processor time per request of the server's own process: nginx with the socket filter through
/// the four daemons and the same nginx on kernel TCP; redis left to the kernel by the filter and redis
/// without the filter. Needs root, nginx, wrk and redis.
#[derive(Parser)]
#[command(
    name = "csp-filter-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-filter-bench                         five rounds of four seconds: three minutes
  csp-filter-bench --rounds 3 --seconds 1  a quick look
  csp-filter-bench --output json

EXIT CODES:
  0  measured; ratios above their bar are marked, and do not fail
  1  something could not be set up or measured"
)]
struct Arguments {
    /// Rounds; each round measures every variant once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of load in each round.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Form of the result.
    #[arg(long, value_parser = ["table", "json"], default_value = "table")]
    output: String,
}

fn table(report: &Report) -> String {
    let mut text =
        String::from("processor time of the server's process, ns a request (user and system, medians)\n");
    text += "                                              kernel TCP   with filter   ratio (lowest to highest)   bar\n";
    for f in &report.figures {
        let mark = if f.ratio > f.bar { " !" } else { "" };
        let (low, high) = f.spread;
        text += &format!(
            "{:<44} {:>11.0} {:>13.0}   {:>5.3} ({low:.3} to {high:.3})   {:>9.2}{mark}\n",
            f.name, f.plain, f.filtered, f.ratio, f.bar
        );
    }
    text + &format!(
        "an idle accelerated nginx worker uses {:.0} us of processor time a second\n",
        report.idle_us
    )
}

fn json(report: &Report) -> String {
    let figure = |f: &filter_bench::Figure| {
        format!(
            "{{\"name\":\"{}\",\"plain_ns\":{:.1},\"filtered_ns\":{:.1},\"ratio\":{:.4},\"lowest\":{:.4},\"highest\":{:.4},\"bar\":{}}}",
            f.name, f.plain, f.filtered, f.ratio, f.spread.0, f.spread.1, f.bar
        )
    };
    let figures: Vec<_> = report.figures.iter().map(figure).collect();
    format!("{{\"figures\":[{}],\"idle_us_per_s\":{:.1}}}\n", figures.join(","), report.idle_us)
}

fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    if let Some(obstacle) = testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let binaries = std::env::current_exe()?.parent().map(std::path::Path::to_owned).unwrap_or_default();
    let options = Options { binaries, san: San::Shm, edge: false, tag: format!("fb{}", std::process::id()) };
    let mut cluster = Cluster::lay_out(options)?;
    let plan = Plan { rounds: arguments.rounds, seconds: arguments.seconds };
    let report = filter_bench::run(&mut cluster, plan, |step| eprintln!("  {step}"))?;
    cluster.stop()?;
    Ok(report)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(report) => {
            print!("{}", if arguments.output == "json" { json(&report) } else { table(&report) });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("csp-filter-bench: {error:#}");
            ExitCode::from(1)
        }
    }
}
