//! The report as text for a terminal, and as a page with a chart for each work.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::contender::Contender;
use super::report::{Measure, Ratio, Report, Row, Sample};
use crate::evaluation::{Bar, chart};

/// Returns the report for a terminal.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = format!("{}\ncommit {}\n", report.machine, report.commit);
    for section in sections(report) {
        let _ = write!(out, "\n{}: {}\n", section.rows[0].layout, section.rows[0].work);
        for row in &section.rows {
            let Sample { requests_per_second: rate, latency_us: [p50, p90, p99], .. } = row.median;
            let name = row.contender;
            if let Some(bytes) = row.median.memory {
                let _ = writeln!(
                    out,
                    "  {name:<28} {bytes:>9.0} bytes a connection, sockets of the kernel included"
                );
                continue;
            }
            let _ =
                write!(out, "  {name:<28} {rate:>9.0}/s  p50 {p50:>7.0} p90 {p90:>7.0} p99 {p99:>7.0} µs  ");
            let _ = writeln!(out, "{}", processor(&row.median));
        }
        section.ratios.iter().for_each(|ratio| _ = writeln!(out, "    {ratio}"));
    }
    out
}

/// Writes `README.md`, `bench.json` and the charts into a folder.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let mut page = format!(
        "# Performance\n\nWritten by `make bench`. {} rounds of {} s each; contenders take turns, and a ratio is the median of the rounds' \
         with the lowest and the highest. Processor time is a request's, user and system, by tier.\n\n\
         {}; commit {}.\n",
        report.rounds, report.seconds, report.machine, report.commit
    );
    let sections = sections(report);
    page += &at_a_glance(&sections);
    let mut layout = "";
    for (at, section) in sections.into_iter().enumerate() {
        let first = section.rows[0];
        if std::mem::replace(&mut layout, first.layout) != first.layout {
            let _ = write!(page, "\n## {}\n", capital(first.layout));
        }
        let file = format!("work-{at}.svg");
        let _ = write!(page, "\n### {}\n\n![{}]({file})\n\n", first.work, section.charted().name());
        page += "| | requests/s | p50 | p90 | p99 | processor time |\n|---|---|---|---|---|---|\n";
        for row in &section.rows {
            let Sample { requests_per_second: rate, latency_us: [p50, p90, p99], .. } = row.median;
            let processor = processor(&row.median);
            let _ = writeln!(
                page,
                "| {} | {rate:.0} | {p50:.0} µs | {p90:.0} µs | {p99:.0} µs | {processor} |",
                row.contender
            );
        }
        page.push('\n');
        section.ratios.iter().for_each(|ratio| _ = writeln!(page, "- {ratio}"));
        let charted = section.charted();
        let bar = |row: &&Row| {
            let (name, value) = (row.contender.to_owned(), charted.of(&row.median));
            Bar { name, value, cells: Vec::new() }
        };
        let bars: Vec<Bar> = section.rows.iter().map(bar).collect();
        put(&file, chart(&format!("{}: {}", first.work, charted.name()), &bars))?;
    }
    put("README.md", page)?;
    put("bench.json", serde_json::to_string(report)? + "\n")
}

/// The contenders of the first table.
const FIRST: [Contender; 3] = [Contender::Direct, Contender::HaproxyTcp, Contender::HaproxyHttp];

/// Returns a table of each layout: our figures divided by those of the contenders that most readers ask for.
fn at_a_glance(sections: &[Section<'_>]) -> String {
    let heads = FIRST.map(|contender| format!("of {} | ", contender.name())).concat();
    let mut out = "\n## At a glance\n\nRequests a second (of the open loop: latency) divided by those of others, with the bar of each.\n\
         What a bar asks for, and why one is missed: [SPECIFICATION.md](../../SPECIFICATION.md#performance).\n"
        .to_owned();
    let mut layout = "";
    for section in sections {
        let first = section.rows[0];
        if std::mem::replace(&mut layout, first.layout) != first.layout {
            let rule = "---|".repeat(FIRST.len());
            let _ = write!(out, "\n| {} | {heads}\n|---|{rule}\n", first.layout);
        }
        let cells = FIRST.map(|contender| {
            let of_ours = |ratio: &&&Ratio| ratio.of == Contender::Csp.name();
            let of = section.ratios.iter().filter(of_ours).filter(|ratio| ratio.to == contender.name());
            let shown = of.filter(|ratio| ratio.measure != Measure::ApplicationTime);
            shown.map(|ratio| ratio.short()).collect::<Vec<_>>().join(", ") + " | "
        });
        let _ = writeln!(out, "| {} | {}", first.work, cells.concat().trim_end());
    }
    out
}

/// The rows and ratios of one work in one layout.
struct Section<'a> {
    rows: Vec<&'a Row>,
    ratios: Vec<&'a Ratio>,
}

impl Section<'_> {
    /// Returns what its chart shows: requests a second; for an open loop, which offers every contender the
    /// same rate, the latency of 99 %.
    fn charted(&self) -> Measure {
        let rates = self.ratios.iter().any(|ratio| ratio.measure == Measure::Rate);
        if rates || self.ratios.is_empty() { Measure::Rate } else { Measure::P99 }
    }
}

fn sections(report: &Report) -> Vec<Section<'_>> {
    let mut all: Vec<Section<'_>> = Vec::new();
    for row in &report.rows {
        match all.last_mut() {
            Some(last) if (last.rows[0].layout, &last.rows[0].work) == (row.layout, &row.work) => {
                last.rows.push(row);
            }
            _ => {
                let of = |ratio: &&Ratio| (ratio.layout, &ratio.work) == (row.layout, &row.work);
                all.push(Section { rows: vec![row], ratios: report.ratios.iter().filter(of).collect() });
            }
        }
    }
    all
}

fn processor(sample: &Sample) -> String {
    let tiers = sample.processor_us.iter().filter(|(_, us)| *us >= 0.05);
    let mut parts: Vec<String> = tiers.map(|(tier, us)| format!("{tier} {us:.1} µs")).collect();
    let all: f64 = sample.processor_us.iter().map(|(_, us)| us).sum();
    if parts.len() > 1 {
        parts.push(format!("together {all:.1} µs"));
    }
    parts.join(", ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
