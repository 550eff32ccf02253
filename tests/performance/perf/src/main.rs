//! csp-perf: the cost of messages over the SAN's providers, compared with the kernel's sockets.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "sockets are what is measured")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod arguments;
mod end;
mod measure;
mod report;
mod run;
mod server;
mod socket_end;
mod usage;
mod vi_end;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve { addresses, count, cpu } => {
            usage::stay_on(cpu).and_then(|()| server::serve(&addresses, count))
        }
        Command::Run { address, vs, plan } => run::run(&[vec![address], vs].concat(), &plan),
        Command::Local { provider, vs, plan } => run::run_local(&[vec![provider], vs].concat(), &plan),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csp-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}
