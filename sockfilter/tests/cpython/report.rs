//! The table and the differences.

use std::collections::BTreeSet;
use std::process::ExitCode;

use crate::Mode;
use crate::differences::Known;
use crate::outcomes::{Outcome, Run};

/// One module's three runs.
pub struct Comparison {
    module: String,
    runs: [Run; 3],
    explained: Vec<String>,
    unexplained: Vec<String>,
}

impl Comparison {
    pub fn new(module: &str, runs: [Run; 3], known: &Known, in_part: bool) -> Comparison {
        let mut compared =
            Comparison { module: module.to_owned(), runs, explained: Vec::new(), unexplained: Vec::new() };
        for (at, mode) in Mode::ALL.into_iter().enumerate() {
            if let Some(broken) = &compared.runs[at].broken {
                compared.unexplained.push(format!("{module}, {}: {broken}", mode.name()));
            }
        }
        for (at, mode) in Mode::ALL.into_iter().enumerate().skip(1) {
            compared.against_plain(at, mode, known, in_part);
        }
        compared
    }

    fn against_plain(&mut self, at: usize, mode: Mode, known: &Known, in_part: bool) {
        let (plain, other) = (&self.runs[0].outcomes, &self.runs[at].outcomes);
        let tests: BTreeSet<&String> = plain.keys().chain(other.keys()).collect();
        let name = |o: Option<&Outcome>| o.map_or("not run", |o| o.name());
        let known_here =
            known.differences.iter().filter(|d| d.module == self.module && d.mode == mode.name());
        let mut awaited: BTreeSet<&str> = known_here.clone().map(|d| d.test.as_str()).collect();
        for test in tests {
            let (was, is) = (name(plain.get(test)), name(other.get(test)));
            let expected = known_here.clone().find(|d| d.test == *test);
            let line = format!("{} {test}, {}: {was} -> {is}", self.module, mode.name());
            if was == is || known.varies(&self.module, test) {
                continue;
            }
            match expected.filter(|d| d.outcome == is) {
                Some(difference) => {
                    awaited.remove(test.as_str());
                    self.explained.push(format!("{line}: {}", difference.reason));
                }
                None => self.unexplained.push(line),
            }
        }
        // A module that is run in part is not blamed for the rest.
        for test in awaited.into_iter().filter(|_| !in_part) {
            self.unexplained.push(format!(
                "{} {test}, {}: is listed to differ and does not",
                self.module,
                mode.name()
            ));
        }
    }
}

/// Everything, and whether anything was not explained.
pub fn print(compared: &[Comparison], known: &Known) -> ExitCode {
    println!(
        "| module | tests | plain: failed, skipped | nothing accelerated | loopback accelerated | connections accelerated | differences |"
    );
    println!("|---|---|---|---|---|---|---|");
    for c in compared {
        let cell = |run: &Run| {
            let skipped = run.count(|o| o == Outcome::Skipped);
            let broken = run.broken.as_ref().map_or(String::new(), |b| format!(" ({b})"));
            format!("{}, {skipped} in {:.0} s{broken}", run.failures(), run.seconds)
        };
        let [plain, kernel, loopback] = &c.runs;
        let (module, ran) = (&c.module, plain.ran);
        let differences = match (c.explained.len(), c.unexplained.len()) {
            (0, 0) => "none".to_owned(),
            (n, 0) => format!("{n}, explained"),
            (n, u) => format!("{n} explained, {u} NOT"),
        };
        let (plain, kernel, accelerated) = (cell(plain), cell(kernel), loopback.accelerated);
        let loopback = cell(loopback);
        println!("| {module} | {ran} | {plain} | {kernel} | {loopback} | {accelerated} | {differences} |");
    }
    let all = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            println!("\n{title}:");
            lines.iter().for_each(|l| println!("- {l}"));
        }
    };
    all("Left out in all three ways", known.left_out().collect());
    all("Differences with a known reason", compared.iter().flat_map(|c| c.explained.clone()).collect());
    let unexplained: Vec<_> = compared.iter().flat_map(|c| c.unexplained.clone()).collect();
    let code = if unexplained.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    all("NOT EXPLAINED", unexplained);
    code
}
