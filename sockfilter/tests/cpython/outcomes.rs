//! The outcome of each test, parsed from the output of `python3.11 -m test -v`.

use std::collections::BTreeMap;
use std::process::ExitStatus;

/// One module, run once.
#[derive(Debug)]
pub struct Run {
    /// By the test's name without the module (`Class.test`).
    pub outcomes: BTreeMap<String, Outcome>,
    /// How the process ended, if not as a test run does (0, or 2 with failures).
    pub broken: Option<String>,
    /// The number of tests that unittest reports.
    pub ran: usize,
    pub seconds: f64,
    /// Connections that were asked of the proxy.
    pub accelerated: u64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Outcome {
    Passed,
    Skipped,
    ExpectedFailure,
    Failed,
    Error,
    /// It began and its end was not reported.
    Unfinished,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "ok",
            Outcome::Skipped => "skipped",
            Outcome::ExpectedFailure => "expected failure",
            Outcome::Failed => "FAIL",
            Outcome::Error => "ERROR",
            Outcome::Unfinished => "no end",
        }
    }
}

impl Run {
    /// From the process' end (none: it was killed for its slowness) and what it printed.
    pub fn parse(status: Option<ExitStatus>, output: &str, accelerated: u64) -> Run {
        let mut run = Run { outcomes: BTreeMap::new(), broken: None, ran: 0, seconds: 0.0, accelerated };
        let mut current: Option<String> = None;
        for line in output.lines() {
            if let Some(rest) = line.strip_prefix("Ran ") {
                let mut words = rest.split(' ');
                run.ran += words.next().and_then(|w| w.parse::<usize>().ok()).unwrap_or(0);
                let seconds = words.nth(2).and_then(|w| w.strip_suffix('s')?.parse::<f64>().ok());
                run.seconds += seconds.unwrap_or(0.0);
                continue;
            }
            let verdict = [("ERROR: ", Outcome::Error), ("FAIL: ", Outcome::Failed)];
            if let Some((rest, outcome)) = verdict.iter().find_map(|(p, o)| Some((line.strip_prefix(p)?, *o)))
            {
                current = None;
                if let Some(name) = name_in(rest) {
                    run.outcomes.insert(name, outcome);
                }
                continue;
            }
            if let Some(name) = name_in(line) {
                run.outcomes.entry(name.clone()).or_insert(Outcome::Unfinished);
                current = Some(name);
            }
            if let (Some(name), Some(outcome)) = (&current, outcome_at_end(line)) {
                run.outcomes.insert(name.clone(), outcome);
                current = None;
            }
        }
        run.broken = match status {
            None => Some("took too long and was killed".to_owned()),
            Some(s) if s.code() == Some(0) || (s.code() == Some(2) && run.ran > 0) => None,
            Some(s) => Some(format!("{s}")),
        };
        run
    }

    pub fn count(&self, which: impl Fn(Outcome) -> bool) -> usize {
        self.outcomes.values().filter(|o| which(**o)).count()
    }

    pub fn failures(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Failed | Outcome::Error | Outcome::Unfinished))
    }

    pub fn summary(&self) -> String {
        let skipped = self.count(|o| o == Outcome::Skipped);
        let broken = self.broken.as_ref().map_or(String::new(), |b| format!(", {b}"));
        format!(
            "{} ran, {} failed, {skipped} skipped in {:.1} s{broken}",
            self.ran,
            self.failures(),
            self.seconds
        )
    }
}

/// `test_x (test.test_y.Class.test_x) …` or `setUpClass (test.test_y.Class)`: the name without package and
/// module.
fn name_in(line: &str) -> Option<String> {
    let (method, rest) = line.split_once(" (")?;
    let (path, _) = rest.split_once(')')?;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if !method.chars().all(word) || !path.chars().all(|c| word(c) || c == '.') {
        return None;
    }
    let known = ["test.", "unittest.", "__main__."];
    let path = known.iter().find_map(|p| path.strip_prefix(p)).unwrap_or(path);
    let mut parts: Vec<&str> = path.split('.').collect();
    // The module and its packages are in lower case, classes are not.
    while parts.len() > 1 && parts[0].chars().next().is_some_and(|c| c.is_lowercase() || c == '_') {
        parts.remove(0);
    }
    if parts.last() != Some(&method) {
        parts.push(method);
    }
    (method.starts_with("test") || method.ends_with("Class") || method.ends_with("Module"))
        .then(|| parts.join("."))
}

fn outcome_at_end(line: &str) -> Option<Outcome> {
    let end = line.rsplit_once("... ").map_or(line, |(_, end)| end);
    match end {
        "ok" => Some(Outcome::Passed),
        "FAIL" => Some(Outcome::Failed),
        "ERROR" => Some(Outcome::Error),
        "expected failure" => Some(Outcome::ExpectedFailure),
        _ if end.starts_with("skipped ") => Some(Outcome::Skipped),
        _ => None,
    }
}
