//! The table: a line for each row, as text or JSON.

use std::fmt;

use serde_json::{Value, json};

use super::Row;
use super::cell::{self, Cell};
use super::watch::Seen;

/// Form of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// A Markdown table.
    Table,
    /// A JSON array of objects.
    Json,
}

/// The result of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It works, with these figures.
    Works(String),
    /// It served, but was not accelerated; with the reason.
    KernelFallback(String),
    /// It did not serve correctly; with the reason.
    Fails(String),
}

impl Verdict {
    /// Returns the verdict on a row that ran to its end with these figures.
    pub fn of(figures: String, seen: &Seen) -> Verdict {
        match &seen.kernel_tcp {
            Some(line) => Verdict::KernelFallback(format!("a kernel TCP socket of the service: {line}")),
            None if seen.accepted == 0 => {
                Verdict::KernelFallback("no connection came from a proxy".to_owned())
            }
            None => Verdict::Works(figures),
        }
    }

    /// Returns the verdict on a row of several runs, each with its name: the worst one, with the texts of the
    /// runs that had it.
    pub fn joined(runs: &[(&str, Verdict)]) -> Verdict {
        let rank = |verdict: &Verdict| match verdict {
            Verdict::Works(_) => 0,
            Verdict::KernelFallback(_) => 1,
            Verdict::Fails(_) => 2,
        };
        let Some(worst) = runs.iter().map(|(_, verdict)| rank(verdict)).max() else {
            return Verdict::Fails("it was not run".to_owned());
        };
        if let [(_, verdict)] = runs {
            return verdict.clone();
        }
        let reported: Vec<String> = runs
            .iter()
            .filter(|(_, verdict)| rank(verdict) == worst)
            .map(|(name, verdict)| format!("{name}: {}", verdict.detail()))
            .collect();
        let reported = reported.join("; ");
        match worst {
            0 => Verdict::Works(reported),
            1 => Verdict::KernelFallback(reported),
            _ => Verdict::Fails(reported),
        }
    }

    /// Returns whether the row works.
    pub const fn works(&self) -> bool {
        matches!(self, Verdict::Works(_))
    }

    const fn word(&self) -> &'static str {
        match self {
            Verdict::Works(_) => "works",
            Verdict::KernelFallback(_) => "kernel fallback",
            Verdict::Fails(_) => "fails",
        }
    }

    fn detail(&self) -> &str {
        match self {
            Verdict::Works(text) | Verdict::KernelFallback(text) | Verdict::Fails(text) => text,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word(), self.detail().trim().replace('\n', " "))
    }
}

/// A row's line.
#[derive(Debug)]
pub struct Line {
    name: &'static str,
    program: String,
    driven: &'static str,
    verdict: Verdict,
    seen: Seen,
    cells: Vec<Cell>,
}

impl Line {
    /// Creates the line of a row that has run.
    pub fn new(row: &Row, version: String, verdict: Verdict, seen: Seen) -> Self {
        let program = if version.is_empty() { row.program.to_owned() } else { placed(row.program, &version) };
        Line { name: row.name, program, driven: row.driven, verdict, seen, cells: Vec::new() }
    }

    /// Adds the results of its loads, if it has any.
    pub fn with(self, cells: Vec<Cell>) -> Self {
        Line { cells, ..self }
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Returns whether the row works.
    pub fn works(&self) -> bool {
        self.verdict.works()
    }

    fn accelerated(&self) -> String {
        let Seen { accepted, opened, shared, .. } = self.seen;
        let mut text = format!("{accepted} accepted");
        for (count, what) in [(opened, "opened"), (shared, "over the agent")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }

    fn kernel(&self) -> String {
        let parts: Vec<String> =
            self.seen.kernel.iter().map(|(what, count)| format!("{count} {what}")).collect();
        if parts.is_empty() { "–".to_owned() } else { parts.join("; ") }
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "program": self.program,
            "driven": self.driven,
            "accepted": self.seen.accepted,
            "opened": self.seen.opened,
            "shared": self.seen.shared,
            "listeners": self.seen.listeners,
            "kernel": self.seen.kernel,
            "kernel_tcp": self.seen.kernel_tcp,
            "result": self.verdict.word(),
            "detail": self.verdict.detail(),
        });
        if !self.cells.is_empty() {
            value["loads"] = self.cells.iter().map(Cell::json).collect();
        }
        value
    }
}

/// Returns the program's name with its version: before a comma, if there is one.
fn placed(program: &str, version: &str) -> String {
    match program.split_once(',') {
        Some((name, more)) => format!("{name} {version},{more}"),
        None => format!("{program} {version}"),
    }
}

/// Returns the printed table.
pub fn render(lines: &[Line], output: Output) -> String {
    if output == Output::Json {
        let all = Value::Array(lines.iter().map(Line::json).collect());
        return format!("{all:#}\n");
    }
    let mut text =
        "\n| program | driven | accelerated | left to the kernel | result |\n|---|---|---|---|---|\n"
            .to_owned();
    for line in lines {
        let verdict = line.verdict.to_string();
        let cells =
            [&line.program, line.driven, &line.accelerated(), &line.kernel(), &verdict.replace('|', "/")];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text += &cell::table(lines.iter().map(|line| (line.program.as_str(), line.cells.as_slice())));
    let good = lines.iter().filter(|line| line.works()).count();
    text + &format!("\n{good} of {} rows work\n", lines.len())
}
