//! What the papers measured of messages in transit, measured through TCP with real daemons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use csp_performance::evaluation::Figure;
use csp_performance::through_tcp::{self, Part, Placed, Plan, Report, Transit};
use serde_json::{Value, json};

/// Measure jobs in transit and continual queries through TCP: network node, proxy node and application node
/// in namespaces. Needs root, gcc, libzmq3-dev and an otherwise idle machine
#[derive(Debug, Parser)]
#[command(
    name = "csp-messages-through-tcp",
    version,
    after_help = "Examples:\n  csp-messages-through-tcp\n  csp-messages-through-tcp --rounds 1 --seconds 2 --only transit\n  csp-messages-through-tcp --only contexts --rounds 2 --seconds 2 --write docs/messages\n  csp-messages-through-tcp --write docs/messages\n\nExit codes: 0 measured, 1 something could not be set up or measured, 2 wrong arguments"
)]
struct Arguments {
    /// Rounds; medians of each figure are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Measure this only
    #[arg(long, value_parser = ["transit", "queries", "contexts"])]
    only: Option<String>,
    /// Folder into which through-tcp.md, contexts.md and their charts are written, as far as they were
    /// measured
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// Form of the result
    #[arg(long, value_parser = ["table", "json"], default_value = "table")]
    output: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csp-messages-through-tcp: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(obstacle) = csp_cluster::testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let has = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    let plan = Plan {
        binaries: std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        queries: has("queries"),
        transit: has("transit"),
        contexts: has("contexts"),
    };
    let report = through_tcp::run(&plan, &|step| eprintln!("  {step}"))?;
    let figures = through_tcp::figures(&report);
    let contexts: Vec<Figure> = match &report.contexts[..] {
        [] => Vec::new(),
        measured => vec![through_tcp::contexts_figure(measured)],
    };
    match arguments.output.as_str() {
        "json" => println!("{:#}", json_of(&report)),
        _ => figures.iter().chain(&contexts).for_each(|figure| println!("{}", figure.text())),
    }
    let Some(folder) = &arguments.write else { return Ok(()) };
    write(folder, ("through-tcp.md", "Messages in transit, through TCP", ""), &figures)?;
    write(folder, ("contexts.md", "Contexts of two kinds, measured", " --only contexts"), &contexts)
}

fn json_of(report: &Report) -> Value {
    let transit = |t: &Transit| {
        json!({
            "job": t.job.to_string(), "place": t.place.to_string(), "rate": t.rate, "app_ns": t.app_ns, "app_fixed_ns": t.app_fixed_ns,
            "fixed_rate": t.fixed_rate, "cluster_ns": t.cluster_ns, "bytes": t.bytes, "lost": t.lost,
        })
    };
    let part = |p: &Part| {
        json!({
            "part": p.part, "rate": p.rate, "lost": p.lost, "lost_rows": p.lost_rows, "dropped": p.dropped, "cluster_ns": p.cluster_ns,
            "p50_us": p.p50_us,
        })
    };
    let queries = report.queries.as_ref().map(|queries| {
        let parts: Vec<Value> = queries.parts.iter().map(part).collect();
        json!({"rate": queries.rate, "cluster_ns": queries.cluster_ns, "parts": parts})
    });
    let placed = |p: &Placed| {
        json!({
            "context": p.context, "len": p.len, "rate": p.rate, "proxy_ns": p.proxy_ns, "context_ns": p.context_ns, "lost": p.lost,
        })
    };
    json!({
        "transit": report.transit.iter().map(transit).collect::<Vec<_>>(), "queries": queries,
        "contexts": report.contexts.iter().map(placed).collect::<Vec<_>>(),
    })
}

fn write(folder: &Path, (name, title, option): (&str, &str, &str), figures: &[Figure]) -> Result<()> {
    if figures.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut text = format!(
        "# {title}\n\nMade by `csp-messages-through-tcp{option} --write docs/messages`: real daemons in network namespaces on one machine of two processors, the SAN in shared \
         memory. What runs in process is in [evaluation.md](evaluation.md). Absolute figures are those of the machine; what is compared was measured in one run.\n\n"
    );
    for figure in figures {
        text += &figure.markdown();
        text.push('\n');
        let chart = folder.join(figure.file).with_extension("svg");
        fs::write(&chart, figure.svg()).with_context(|| format!("cannot write {}", chart.display()))?;
    }
    let document = folder.join(name);
    fs::write(&document, text.trim_end().to_owned() + "\n")
        .with_context(|| format!("cannot write {}", document.display()))
}
