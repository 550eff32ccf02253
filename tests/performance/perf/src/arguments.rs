//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::address::Address;
use crate::end::Waiting;

/// Measures the latency, bandwidth and processor time of messages between two processes: over the SAN's
/// providers, and over the kernel's sockets for comparison.
#[derive(Parser)]
#[command(
    name = "csp-perf",
    version,
    after_help = "\
EXAMPLES:
  csp-perf local shm --vs                  shared memory beside the kernel's TCP, on this host
  csp-perf local shm --vs unix,tcp,ucx --test bandwidth --sizes 16Ki,64Ki
  csp-perf local shm --vs --test transaction --request 256 --sizes 1,1Ki,16Ki,64Ki --wait poll
  csp-perf serve verbs:10.0.0.2:7200 tcp:10.0.0.2:7201        on one host, and on another:
  csp-perf run verbs:10.0.0.2:7200 --vs tcp:10.0.0.2:7201 --output json

COLUMNS:
  half us   half of the median round trip       CPU us   processor time of both ends for one
  x time    median beside the first transport   x CPU    the same of processor time

EXIT CODES:
  0   done
  1   a peer, provider or measurement failed; the message names it
  2   the command line is wrong"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Answer at these addresses, one peer at a time each, until terminated.
    Serve {
        /// shm:PATH, vi-tcp:IP:PORT, ucx:IP:PORT, verbs:IP:PORT, tcp:IP:PORT or unix:PATH.
        #[arg(required = true)]
        addresses: Vec<Address>,
        /// End after this number of peers at each address.
        #[arg(long)]
        count: Option<u32>,
        /// Run on this processor only.
        #[arg(long)]
        cpu: Option<usize>,
    },
    /// Measure against a server.
    Run {
        /// The server's address.
        address: Address,
        /// Other addresses to compare with.
        #[arg(long, value_delimiter = ',')]
        vs: Vec<Address>,
        #[command(flatten)]
        plan: Plan,
    },
    /// Measure against a server process started on this host.
    Local {
        /// shm, vi-tcp, ucx, tcp or unix.
        provider: String,
        /// What to compare with (tcp, if nothing is named).
        #[arg(long, value_delimiter = ',', num_args = 0.., default_missing_value = "tcp")]
        vs: Vec<String>,
        #[command(flatten)]
        plan: Plan,
    },
}

/// The measurements.
#[derive(Args)]
pub struct Plan {
    /// The tests to run.
    #[arg(long = "test", value_enum, value_delimiter = ',', default_value = "latency")]
    pub tests: Vec<Test>,
    /// Bytes of messages (of replies, in transactions); Ki stands for 1024.
    #[arg(long, value_delimiter = ',', default_value = "64,1Ki,16Ki,64Ki", value_parser = bytes)]
    pub sizes: Vec<u32>,
    /// Bytes of each request of a transaction.
    #[arg(long, default_value = "256", value_parser = bytes)]
    pub request: u32,
    /// How both ends wait for messages.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "poll,block")]
    pub wait: Vec<Waiting>,
    /// Length of the measurement of each point.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Run on this processor only; a second one is for the server that `local` starts.
    #[arg(long, value_delimiter = ',', num_args = 1..=2)]
    pub cpus: Vec<usize>,
    /// Draw the distribution of each point.
    #[arg(long)]
    pub histogram: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// A message, and a reply of the same length.
    Latency,
    /// A request, and a reply of another length.
    Transaction,
    /// Messages in one direction, as fast as they are received.
    Bandwidth,
}

impl Test {
    pub fn title(self, plan: &Plan) -> String {
        match self {
            Test::Latency => "latency: a message and one back".to_owned(),
            Test::Transaction => format!("transactions: a request of {} bytes, and a reply", plan.request),
            Test::Bandwidth => "bandwidth: messages one way; the time is that between two".to_owned(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

fn bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix("Ki") {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let number: Option<u32> = digits.parse().ok().and_then(|n: u32| n.checked_mul(unit));
    number.ok_or_else(|| format!("{text:?} is no number of bytes, such as 64 or 16Ki"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let parse = |words: &str| Arguments::try_parse_from(words.split(' ')).map(|a| a.command);
        assert!(matches!(parse("csp-perf local shm --vs"),
            Ok(Command::Local { vs, plan, .. }) if vs == ["tcp"] && plan.sizes == [64, 1024, 16_384, 65_536]));
        assert!(matches!(parse("csp-perf local shm"), Ok(Command::Local { vs, .. }) if vs.is_empty()));
        assert!(parse("csp-perf run tcp:1.2.3.4:5 --sizes 1x").is_err());
    }
}
