//! `csp-evaluate`: the figures of section 5.2 of the CSP paper, simulated.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use csp_evaluation::command::{self, CommandError, EXIT_CODES, Output};
use csp_evaluation::figures::Run;
use csp_evaluation::report::{self, Report};

/// Lines of a page between which tables are written.
const BEGIN: &str = "<!-- csp-evaluate: begin -->";
const END: &str = "<!-- csp-evaluate: end -->";

/// Simulates network, proxy and application nodes as section 5.2 of the CSP paper does, and prints its
/// figures beside the paper's numbers.
#[derive(Parser)]
#[command(name = "csp-evaluate", version, max_term_width = 110, after_help = format!("\
Examples:
  csp-evaluate
  csp-evaluate throughput --transactions 10000 --seed 7
  csp-evaluate --costs mine.yaml --output json fabrics
  csp-evaluate --write docs/evaluation --page docs/evaluation.md

{EXIT_CODES}"))]
struct Arguments {
    /// Figures to make; default: all of them
    #[arg(value_enum)]
    figures: Vec<Figure>,
    /// Costs of nodes: `paper`, `bench`, or a file of YAML or JSON (tests/evaluation/costs/form.yaml is
    /// a form). Figure `scale` takes `bench` when nothing is given
    #[arg(long, value_name = "FILE")]
    costs: Option<String>,
    /// Everything random follows from it
    #[arg(long, default_value_t = 2002)]
    seed: u64,
    /// Transactions of each run of Figure 10
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    transactions: u32,
    /// Form of what is printed
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Write CSV, JSON and SVG of each figure into this folder
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// Write the tables into this page, between its lines `csp-evaluate: begin` and `csp-evaluate: end`
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Processing budgets by tier (Figure 8)
    Budgets,
    /// Processors of the application tier for 2 Gb/s (Figure 9)
    Equivalents,
    /// Throughput by processors (Figure 10), and the paper's numbers beside all of these
    Throughput,
    /// Ethernet and InfiniBand as the SAN
    Fabrics,
    /// 8, 64 and 512 nodes on links of 1, 25 and 100 Gb/s
    Scale,
}

fn main() -> ExitCode {
    command::main(evaluate)
}

fn evaluate(arguments: Arguments) -> Result<(), CommandError> {
    let (reports, differ) = reports(&arguments)?;
    match arguments.output {
        Output::Table => {
            let texts: Vec<String> = reports.iter().map(Report::text).collect();
            print!("{}", texts.join("\n"));
        }
        Output::Json => {
            let all: serde_json::Map<_, _> =
                reports.iter().map(|report| (report.name.to_owned(), report.json.clone())).collect();
            println!("{:#}", serde_json::Value::Object(all));
        }
    }
    if let Some(folder) = &arguments.write {
        for report in &reports {
            files(folder, report)?;
        }
    }
    if let Some(path) = &arguments.page {
        page(path, &reports)?;
    }
    if differ == 0 { Ok(()) } else { Err(CommandError::Differs(differ)) }
}

/// Makes what was asked for; returns it with the number of comparisons that fail.
fn reports(arguments: &Arguments) -> Result<(Vec<Report>, usize), CommandError> {
    let asked = |figure| arguments.figures.is_empty() || arguments.figures.contains(&figure);
    let of = |name: &str| -> Result<Run, CommandError> {
        let costs = command::costs(arguments.costs.as_deref().unwrap_or(name))?;
        Ok(Run { costs, seed: arguments.seed, transactions: arguments.transactions })
    };
    let run = of("paper")?;
    let (mut reports, mut differ) = (Vec::new(), 0);
    if [Figure::Budgets, Figure::Equivalents, Figure::Throughput].into_iter().any(asked) {
        let budgets = run.budgets()?;
        let equivalents = run.equivalents(&budgets)?;
        reports.push(report::budgets(&budgets));
        if asked(Figure::Equivalents) || asked(Figure::Throughput) {
            reports.push(report::equivalents(&equivalents));
        }
        if asked(Figure::Throughput) {
            let throughput = run.throughput(&equivalents)?;
            reports.push(report::throughput(&throughput));
            // With other costs there is nothing to compare.
            if run.costs.name == "paper" {
                let all = report::compare(&equivalents, &throughput);
                differ = all.iter().filter(|row| !row.holds()).count();
                reports.push(report::comparisons(&all));
            }
        }
    }
    if asked(Figure::Fabrics) {
        reports.push(report::fabrics(&run.fabrics()?));
    }
    if asked(Figure::Scale) {
        reports.push(report::scale(&of("bench")?.scale()?));
    }
    Ok((reports, differ))
}

fn write(path: PathBuf, text: &str) -> Result<(), CommandError> {
    std::fs::write(&path, text).map_err(|error| CommandError::Write { path, error })
}

fn files(folder: &Path, report: &Report) -> Result<(), CommandError> {
    std::fs::create_dir_all(folder)
        .map_err(|error| CommandError::Write { path: folder.to_owned(), error })?;
    write(folder.join(format!("{}.csv", report.name)), &report.csv())?;
    write(folder.join(format!("{}.json", report.name)), &format!("{:#}\n", report.json))?;
    for (end, plot) in &report.plots {
        write(folder.join(format!("{}{end}.svg", report.name)), &plot.svg())?;
    }
    Ok(())
}

/// Replaces the tables of a page.
fn page(path: &Path, reports: &[Report]) -> Result<(), CommandError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| CommandError::Read { path: path.to_owned(), error })?;
    let missing = |mark| CommandError::NoPlace { path: path.to_owned(), mark };
    let (before, rest) = text.split_once(BEGIN).ok_or_else(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    let tables: Vec<String> = reports
        .iter()
        .map(|report| {
            let plots: Vec<String> = report
                .plots
                .iter()
                .map(|(end, plot)| {
                    format!("![{}: {}](evaluation/{}{end}.svg)\n", report.title, plot.up, report.name)
                })
                .collect();
            format!("### {}\n\n{}\n{}", report.title, report.markdown(), plots.join("\n"))
        })
        .collect();
    write(path.to_owned(), &format!("{before}{BEGIN}\n\n{}\n{END}{after}", tables.join("\n")))
}
