//! An echo server for measurements: `csp-run csp-echo 0.0.0.0:7001`.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Parser;

/// Sends back what it receives, until it is terminated. Uses plain sockets: run it under csp-run.
#[derive(Parser)]
#[command(name = "csp-echo", version)]
struct Arguments {
    /// Address to listen on, such as 0.0.0.0:7001.
    address: SocketAddr,
}

fn main() -> anyhow::Result<()> {
    let address = Arguments::parse().address;
    csp_performance::echo::serve(address).with_context(|| address.to_string())
}
