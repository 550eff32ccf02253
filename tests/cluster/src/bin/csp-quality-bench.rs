//! `make bench-quality`: information flows through real daemons, beside what the paper measured.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csp_cluster::quality_bench::{self, Adaptation, FIGURES, Plan, Report, Row};
use csp_cluster::testing;

/// Measures three flows that share a link through network node and proxy node under the paper's schemes.
/// Needs root and python3-zmq.
#[derive(Parser)]
#[command(
    name = "csp-quality-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-quality-bench                          a tenth of the paper's rates, four minutes
  csp-quality-bench --only 5,12              contexts that flows share
  csp-quality-bench --only web               wrk beside bulk messages
  csp-quality-bench --only controller        how soon a change is in force at every worker
  csp-quality-bench --link-mbps 200 --seconds 10
  csp-quality-bench --write docs/quality     the table as real.md, which the evaluation contains

EXIT CODES:
  0  measured
  1  something could not be set up or measured"
)]
struct Arguments {
    /// Capacity of the link in Mb/s; the paper's is 500, and its rates are scaled with it.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    link_mbps: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(16..=60_000))]
    size: u32,
    /// Figures to measure, web traffic beside messages, and the kernel's HTB; all without it.
    #[arg(long, value_delimiter = ',', value_parser = FIGURES)]
    only: Vec<String>,
    /// Folder to which the table is written as real.md.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn run(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(obstacle) = testing::obstacle() {
        anyhow::bail!("{obstacle}");
    }
    let all = || FIGURES.map(str::to_owned).to_vec();
    let plan = Plan {
        figures: if arguments.only.is_empty() { all() } else { arguments.only.clone() },
        binaries: std::env::current_exe()?.parent().map(std::path::Path::to_owned).unwrap_or_default(),
        link_mbps: arguments.link_mbps,
        seconds: arguments.seconds,
        size: arguments.size,
    };
    let report = quality_bench::run(&plan, |step| eprintln!("  {step}"))?;
    let text = text(&plan, &report);
    if let Some(folder) = &arguments.write {
        std::fs::write(folder.join("real.md"), &text)?;
    }
    Ok(text)
}

fn three(values: [f64; 3], digits: usize) -> String {
    values.map(|value| format!("{value:.digits$}")).join(" / ")
}

fn line(row: &Row) -> String {
    let Row { figure, scheme, sent, expected, received, delay_ms, least, windows, disordered } = row;
    let least = least.map_or_else(|| "–".to_owned(), |least| format!("{least:.0} %"));
    let sum: f64 = received.iter().sum();
    format!(
        "| {figure} | {scheme} | {} | {} | {} | {sum:.1} | {} | {least} | {} ({} left out) | {disordered} |",
        three(*sent, 0),
        three(*expected, 1),
        three(*received, 1),
        three(*delay_ms, 2),
        windows.0,
        windows.1
    )
}

const HEAD: &str = "\
| Fig. | scheme | sent A / B / C Mb/s | on paper | received | sum | delay A / B / C ms | least of a promise in 100 ms | windows | disordered |
|---|---|---|---|---|---|---|---|---|---|
";

fn text(plan: &Plan, report: &Report) -> String {
    let mut out = format!(
        "Made by `make bench-quality`: real daemons in network namespaces of one machine with two processors, ZeroMQ publishers and receivers in Python, a \
         channel for each flow, messages of {} bytes. The link is {} Mb/s and all rates are the paper's by the same factor, since publishers, receivers, the \
         kernel and the daemons share the two processors. Bytes and delays are the receivers' (a delay begins when the message was to be sent); {} s each. \
         Tenths of a second in which the hypervisor took time from the machine are left out. Queues are of 256 messages, and what finds them full is dropped.\n\n\
         - Fig. 2: all flows share what is before their queues, one publisher's connection, which a message that finds its queue full holds (`full: hold`); \
         A's queue is twice as long. Each flow then has what the poorest has, whatever the scheme.\n\
         - Fig. 3: each flow has a connection and drops what finds its queue full. The flow `default`, which sends nothing, has its part under EAS. PAR \
         promises A / B / C 50 / 200 / 50 Mb/s in Fig. 3, A and C 50 in Fig. 4, SA 100 / 200 / 100, by the same factor.\n\
         - Fig. 5: a supplied handler behind the queues. A message occupies a context for the flow's `cost_us`, so that eight contexts, a quarter of the \
         worker, just fill the link. One context is A's, two are B's, one is C's, four are nobody's; PAR promises \
         A and C what they send at the link.\n\
         - Fig. 12: messages of 600 bytes, of which handlers leave 100 (A, costly), 300 (B) and 540 (C), at a quarter of the other figures' rates; what is \
         received is after handlers.\n\n",
        plan.size, plan.link_mbps, plan.seconds
    );
    if !report.rows.is_empty() {
        out += HEAD;
    }
    report.rows.iter().for_each(|row| out += &(line(row) + "\n"));
    if let Some(adaptation) = &report.adaptation {
        out += &course(adaptation);
    }
    if !report.web.is_empty() {
        out += &quality_bench::web_section(plan, &report.web);
    }
    if let Some(consistency) = &report.consistency {
        out += &quality_bench::controller_section(consistency);
    }
    if !report.htb.is_empty() {
        out += "\nThe kernel's HTB at a veth of the same capacity, three senders of datagrams in Python, queues of 256 datagrams (`pfifo`), classes of the shares \
                50 / 200 / 50 by the same factor that may have what others leave. HTB counts Ethernet frames, what is received are payloads. \"B first\" is what \
                PAR does in Fig. 3; \"fair\" divides what is left by the shares, on paper weighted fair sharing 1 : 4 : 1:\n\n";
        out += HEAD;
        report.htb.iter().for_each(|row| out += &(line(row) + "\n"));
    }
    out
}

/// Fig. 11.
fn course(adaptation: &Adaptation) -> String {
    let mut out = format!(
        "\nFig. 11, dynamic adaptation: {} changes of the trigger (one surge, one ebb: 2). At least {:.1} % of the link are in use in each half second; B has {:.1} % of \
         what it sends in its surge, from a tenth of a second after its beginning. Mb/s in half seconds:\n\n| | {} |\n|---|{}\n",
        adaptation.changes,
        adaptation.link_least,
        adaptation.surge,
        (0..11).map(|half| format!("{:.1} s", f64::from(half) / 2.0)).collect::<Vec<_>>().join(" | "),
        "---|".repeat(11)
    );
    for (name, course) in ["A", "B", "C"].iter().zip(&adaptation.received) {
        let halves = (0..11).map(|half| {
            let part = &course[half * 5..half * 5 + 5];
            format!("{:.1}", part.iter().sum::<f64>() / 5.0)
        });
        let _ = writeln!(out, "| {name} | {} |", halves.collect::<Vec<_>>().join(" | "));
    }
    out
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("csp-quality-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
