//! `csp-plan`: how many nodes of each tier a load needs.

use std::process::ExitCode;

use clap::Parser;
use csp_evaluation::command::{self, CommandError, EXIT_CODES, Output};
use csp_evaluation::link::Fabric;
use csp_evaluation::plan::Setting;
use csp_evaluation::report;
use csp_evaluation::workload::Sizes;

/// Says how many network, proxy and application nodes a load needs, how busy they are, and what latency
/// to expect.
///
/// A request is a connection of its own, as in HTTP/1.0. The number of nodes follows from the costs;
/// the latency is simulated with these nodes. Costs of your machines and your server: fill in
/// tests/evaluation/costs/form.yaml.
#[derive(Parser)]
#[command(name = "csp-plan", version, max_term_width = 110, after_help = format!("\
Examples:
  csp-plan --requests-per-second 200000
  csp-plan --requests-per-second 50000 --size 16384 --link-gbps 100
  csp-plan --requests-per-second 1e6 --size mix --costs mine.yaml --processors 16,32,64 -o json

{EXIT_CODES}"))]
struct Arguments {
    /// Requests a second
    #[arg(long, value_name = "RATE")]
    requests_per_second: f64,
    /// Bytes of a response, or `mix` for SPECweb99's static files (mean 14,382)
    #[arg(long, default_value = "mix", value_parser = sizes)]
    size: Sizes,
    /// Costs of nodes: `bench`, `paper`, or a file of YAML or JSON
    #[arg(long, default_value = "bench", value_name = "FILE")]
    costs: String,
    /// Links to clients and SAN, gigabits a second
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1000))]
    link_gbps: u32,
    /// InfiniBand as the SAN, with this rate instead
    #[arg(long, value_name = "GBPS", value_parser = clap::value_parser!(u32).range(1..=1000))]
    infiniband_gbps: Option<u32>,
    /// Processors of a node, or of a network, a proxy and an application node
    #[arg(long, default_value = "8", value_name = "N[,N,N]", value_parser = processors)]
    processors: [u32; 3],
    /// SAN ports of a proxy node
    #[arg(long, default_value_t = 1)]
    proxy_ports: u32,
    /// Share of a processor or link that may be used
    #[arg(long, default_value_t = 0.7, value_parser = share)]
    utilisation: f64,
    /// Transactions that are simulated
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    transactions: u32,
    /// Everything random follows from it
    #[arg(long, default_value_t = 2002)]
    seed: u64,
    /// Form of what is printed
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn sizes(text: &str) -> Result<Sizes, String> {
    match text {
        "mix" => Ok(Sizes::specweb99()),
        bytes => match bytes.parse() {
            Ok(bytes @ 1..=1_073_741_824) => Ok(Sizes::fixed(bytes)),
            _ => Err("right is `mix`, or 1 to 1073741824 bytes".to_owned()),
        },
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.01..=0.99).contains(&share) => Ok(share),
        _ => Err("right is 0.01 to 0.99".to_owned()),
    }
}

fn processors(text: &str) -> Result<[u32; 3], String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some([all]) => Ok([*all; 3]),
        Some([network, proxy, application]) => Ok([*network, *proxy, *application]),
        _ => Err("right is a number, or three with commas between".to_owned()),
    }
}

fn main() -> ExitCode {
    command::main(plan)
}

fn plan(arguments: Arguments) -> Result<(), CommandError> {
    let costs = command::costs(&arguments.costs)?;
    let mut setting = Setting::new(costs, arguments.size, arguments.link_gbps);
    if let Some(gigabits) = arguments.infiniband_gbps {
        setting.san = Fabric::infiniband(u64::from(gigabits) * 1_000_000_000);
    }
    setting.processors = arguments.processors;
    setting.proxy_ports = arguments.proxy_ports;
    setting.utilisation = arguments.utilisation;
    setting.transactions = arguments.transactions;
    setting.seed = arguments.seed;
    let plan = setting.plan(arguments.requests_per_second)?;
    let report = report::plan(&plan);
    match arguments.output {
        Output::Json => println!("{:#}", report.json),
        Output::Table => println!(
            "{}\n{:.0} requests/s completed of {:.0}; latency p50 {:.0} us, p99 {:.0} us; costs ± {:.0} %",
            report.text(),
            plan.completed_per_second,
            plan.requests_per_second,
            plan.latency.p50_us,
            plan.latency.p99_us,
            plan.error * 100.0
        ),
    }
    Ok(())
}
