//! The findings as text: a table, and below it what to do.

use super::super::paint::{Colour, Paint};
use super::super::table::{Cell, Table};
use super::{Finding, Level, Report};

/// The report for people.
pub(in crate::cli) fn table(report: &Report, paint: Paint) -> String {
    let mut table = Table::new(&["LEVEL", "CHECK", "FOUND"]);
    for finding in &report.findings {
        table.row([
            Cell::from(finding.level.as_str()).coloured(colour(finding.level)),
            finding.check.into(),
            one_line(&finding.found).into(),
        ]);
    }
    let mut out = table.render(paint);
    let mut serious: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.level > Level::Info || !finding.remedy.is_empty())
        .collect();
    // The worst first, and in the order of the checks.
    serious.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    for finding in serious {
        let level = paint.paint(colour(finding.level), finding.level.as_str());
        out.push_str(&format!("\n{level} {}: {}\n", paint.bold(finding.check), one_line(&finding.found)));
        out.push_str(&format!("  why: {}\n", one_line(&finding.why)));
        if !finding.remedy.is_empty() {
            out.push_str(&format!("  do:  {}\n", paint.paint(Colour::Cyan, &finding.remedy)));
        }
    }
    let count = |level| report.findings.iter().filter(|finding| finding.level == level).count();
    let several = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    out.push_str(&format!(
        "\n{}: {}, {}, {} to know, {} ok\n",
        if report.host.is_empty() { "this host" } else { &report.host },
        several(count(Level::Error), "error"),
        several(count(Level::Warning), "warning"),
        count(Level::Info),
        count(Level::Ok)
    ));
    out
}

const fn colour(level: Level) -> Colour {
    match level {
        Level::Ok => Colour::Green,
        Level::Info => Colour::Dim,
        Level::Warning => Colour::Yellow,
        Level::Error => Colour::Red,
    }
}

/// Texts come from files and peers: control characters do not reach the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
