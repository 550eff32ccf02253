//! A load generator: commands on standard input, a line of JSON for each on standard output.

use std::io::{BufRead as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use csp_performance::load::Load;

/// Opens connections to an echo service and reports the results.
#[derive(Parser)]
#[command(
    name = "csp-load",
    version,
    after_help = "\
COMMANDS on standard input, each answered by one line of JSON:
  open COUNT RATE      opens connections that stay, RATE a second, one request and answer on each
  exchange             one request and answer on every connection that stays
  churn RATE SECONDS   RATE connections a second on top: open, one request and answer, close
  close                closes all that stay"
)]
struct Arguments {
    /// Address of the service.
    target: SocketAddr,
    /// Source addresses, used in turn; no other process may use them.
    #[arg(required = true)]
    sources: Vec<IpAddr>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut load = Load::new(arguments.target, arguments.sources)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> anyhow::Result<usize> {
            words.get(at).context(line.clone())?.parse().context(line.clone())
        };
        let outcome = match words.first() {
            Some(&"open") => load.open(number(1)?, number(2)?)?,
            Some(&"exchange") => load.exchange()?,
            Some(&"churn") => load.churn(number(1)?, Duration::from_secs(number(2)? as u64))?,
            Some(&"close") => load.close(),
            _ => bail!("{line:?} is no command; see --help"),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
        out.flush()?;
    }
    Ok(())
}
