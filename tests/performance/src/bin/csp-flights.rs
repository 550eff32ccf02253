//! Flights by plain TCP: a program that sends them, and one that receives them and may do something with
//! them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use csp_performance::through_tcp::{self, Job};

/// Ends of a stream of flights, each message behind its length in 4 bytes
#[derive(Debug, Parser)]
#[command(
    name = "csp-flights",
    version,
    after_help = "Examples:\n  csp-flights receive 10.76.0.100:5701 select\n  csp-flights send 10.76.0.100:5700 --seconds 3\n\nExit codes: 0 done, 1 the connection failed, 2 wrong arguments"
)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Sends flights, and prints how many
    Send {
        /// Address and port
        address: String,
        /// Seconds
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Messages a second; 0: as many as the receiver takes
        #[arg(long, default_value_t = 0.0)]
        rate: f64,
        /// Sends messages of so many zeros instead, at least 12
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..))]
        len: Option<u32>,
    },
    /// Receives flights until their end, and prints what it has got and needed
    Receive {
        /// Address and port
        address: String,
        /// What it does with them: all or select; nothing if the proxy does it
        job: Option<Job>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().what {
        What::Send { address, seconds, rate, len } => {
            through_tcp::send(&address, seconds, rate, len.map(|len| len as usize))
        }
        What::Receive { address, job } => through_tcp::receive(&address, job),
    };
    match result {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("csp-flights: {error:#}");
            ExitCode::FAILURE
        }
    }
}
