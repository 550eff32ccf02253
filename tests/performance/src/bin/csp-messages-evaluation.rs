//! What the papers measured of messages in transit, measured here in process.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use csp_performance::evaluation::{self, Figure, Peer};

/// Measure chains, merges and continual queries of messages in process, beside what the papers found
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  csp-messages-evaluation\n  csp-messages-evaluation --seconds 5 --write docs/messages\n\nExit codes: 0 measured, 1 something failed, 2 wrong arguments"
)]
struct Arguments {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
    /// Folder into which evaluation.md and its charts are written
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// A stream processor: a program that prints `join NANOS` and `windows NANOS`
    /// (tests/performance/peers/streams/run.sh)
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    peers: Vec<Peer>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.01 to 3600 is expected".to_owned()),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csp-messages-evaluation: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let time = Duration::from_secs_f64(arguments.seconds);
    let progress = |what: &str| eprintln!("  {what}");
    let mut figures = evaluation::run(time, &progress);
    if !arguments.peers.is_empty() {
        figures.push(evaluation::beside_peers(time, &arguments.peers, &progress)?);
    }
    for figure in &figures {
        println!("{}", figure.text());
    }
    arguments.write.as_ref().map_or(Ok(()), |folder| write(folder, &figures))
}

fn write(folder: &std::path::Path, figures: &[Figure]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut text = "# Messages in transit, measured\n\nMade by `csp-messages-evaluation --write docs/messages`: one thread, in process, nothing but the proxy's message \
         plane and the operators. A time holds everything from publishing to delivery. Absolute figures are those of the machine; what is compared was \
         measured in one run. What was measured through TCP, with sockets at both ends: [through-tcp.md](through-tcp.md).\n\n"
        .to_owned();
    for figure in figures {
        text += &figure.markdown();
        text.push('\n');
        let chart = folder.join(figure.file).with_extension("svg");
        fs::write(&chart, figure.svg()).with_context(|| format!("cannot write {}", chart.display()))?;
    }
    let document = folder.join("evaluation.md");
    fs::write(&document, text.trim_end().to_owned() + "\n")
        .with_context(|| format!("cannot write {}", document.display()))
}
