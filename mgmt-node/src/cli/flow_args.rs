//! Arguments of `cspctl flows`, `cspctl flow` and `cspctl sockets`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

/// Arguments of `cspctl flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Only flows of this service
    #[arg(long, short, value_name = "NAME")]
    pub service: Option<String>,
    /// At most so many (1 to 10000)
    #[arg(long, short, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// Arguments of `cspctl sockets`.
#[derive(Debug, Args)]
pub struct SocketsArgs {
    /// Only sockets of this program, process or process number
    #[arg(long, short, value_name = "NAME")]
    pub process: Option<String>,
    /// At most so many (1 to 10000)
    #[arg(long, short, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// `cspctl flow ...`
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// Draw what happened to one flow on every tier
    ///
    /// Each tier keeps its latest events in a ring of fixed size, so a flow can be traced after it ended, for
    /// as long as the rings still hold it. Times are microseconds since the first event.
    #[command(after_help = "Examples:\n  cspctl flow trace --last\n  cspctl flow trace 0040001f\n  \
                            cspctl flow trace 0040001f --proxy pn-2\n  cspctl flow trace --client 10.76.0.1:41822\n  cspctl flow trace --last -o json")]
    Trace(TraceArgs),
}

/// Arguments of `cspctl flow trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Label of the flow, up to 8 hex digits; without it and without --client the latest flow
    pub label: Option<String>,
    /// The proxy that assigned the label: two proxies may use the same one
    #[arg(long, value_name = "NODE", requires = "label")]
    pub proxy: Option<String>,
    /// The flow that was seen latest (the default)
    #[arg(long, conflicts_with_all = ["label", "client"])]
    pub last: bool,
    /// The latest flow of this client
    #[arg(long, value_name = "IP:PORT", conflicts_with = "label")]
    pub client: Option<SocketAddr>,
    /// Draw with ASCII characters only
    #[arg(long)]
    pub ascii: bool,
}
