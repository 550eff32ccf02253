//! Tables of results, as text, CSV, Markdown and JSON, and what the paper says beside them.

use std::fmt::Write as _;

use serde::Serialize;

use crate::figures::{
    Budget, Equivalent, FabricRow, PAPER_EQUIVALENTS, SERVICE_GIGABITS, Scale, Throughput, knee,
};
use crate::plan::Plan;
use crate::plot::{Plot, Series};
use crate::workload::Sizes;

/// How far a figure may be from the paper's.
pub const TOLERANCE: f64 = 0.10;

/// A result of one figure.
#[derive(Clone, Debug)]
pub struct Report {
    /// Short name, also of files.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// Names of the columns, with units.
    pub columns: Vec<&'static str>,
    /// Rows of text.
    pub rows: Vec<Vec<String>>,
    /// The same for programs.
    pub json: serde_json::Value,
    /// Plots, each with the end of its file's name.
    pub plots: Vec<(&'static str, Plot)>,
}

impl Report {
    fn new<T: Serialize>(name: &'static str, title: &'static str, values: &[T]) -> Self {
        let json = serde_json::to_value(values).unwrap_or_default();
        Report { name, title, columns: Vec::new(), rows: Vec::new(), json, plots: Vec::new() }
    }

    /// As text with aligned columns.
    pub fn text(&self) -> String {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = format!("{}\n", self.title);
        let header: Vec<String> = self.columns.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        }
        text
    }

    /// As CSV (RFC 4180).
    pub fn csv(&self) -> String {
        let quoted = |cell: &str| match cell.contains([',', '"', '\n']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let line = |cells: Vec<String>| format!("{}\r\n", cells.join(","));
        let mut csv = line(self.columns.iter().map(|column| quoted(column)).collect());
        for row in &self.rows {
            csv.push_str(&line(row.iter().map(|cell| quoted(cell)).collect()));
        }
        csv
    }

    /// As a table of Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("| {} |\n|{}\n", self.columns.join(" | "), "---|".repeat(self.columns.len()));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }
}

/// One number beside the paper's.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is compared.
    pub what: String,
    /// What the paper says.
    pub paper: String,
    /// What the simulator says.
    pub ours: f64,
    /// Where ours comes from.
    pub how: How,
    /// Difference from the nearest value that the paper allows, as a share.
    pub difference: f64,
    /// How far it may be: a range allows nothing beyond it.
    pub tolerance: f64,
}

/// Where a number of ours comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// The costs were chosen so that it is right.
    Calibrated,
    /// It follows from the model.
    Predicted,
}

impl Comparison {
    fn new(what: &str, paper: &str, (least, most): (f64, f64), ours: f64, how: How) -> Self {
        let nearest = ours.clamp(least, most);
        let difference = (ours - nearest) / nearest;
        let tolerance = if least < most { 0.0 } else { TOLERANCE };
        Comparison { what: what.to_owned(), paper: paper.to_owned(), ours, how, difference, tolerance }
    }

    /// Whether ours is near enough.
    pub fn holds(&self) -> bool {
        self.difference.abs() <= self.tolerance
    }
}

/// Compares what was simulated with the numbers in the paper's text.
pub fn compare(equivalents: &[Equivalent], throughput: &[Throughput]) -> Vec<Comparison> {
    let mut all = vec![Comparison::new(
        "mean size of the mix, bytes",
        "14,384",
        (14_384.0, 14_384.0),
        Sizes::specweb99().mean(),
        How::Calibrated,
    )];
    for (bytes, paper) in PAPER_EQUIVALENTS {
        let point = equivalents.iter().find(|point| point.bytes == bytes);
        let ours = point.map_or(f64::NAN, |point| point.processors);
        let what = format!("processors for 2 Gb/s at {bytes} B");
        all.push(Comparison::new(&what, &format!("{paper} P"), (paper, paper), ours, How::Calibrated));
    }
    let figure_9 = throughput.iter().filter(|point| point.in_figure_9);
    let peak = knee(figure_9.clone());
    all.push(Comparison::new(
        "processors at the peak, of the points of Figure 9",
        "about 10 P",
        (10.0, 10.0),
        peak,
        How::Predicted,
    ));
    let finest = knee(throughput.iter()) / SERVICE_GIGABITS;
    let what = "processors a gigabit that fill the links, of all points";
    all.push(Comparison::new(what, "3 P to 5 P", (3.0, 5.0), finest, How::Predicted));
    let best = throughput.iter().map(|point| point.per_second).fold(0.0, f64::max);
    let mut first = figure_9;
    if let (Some(least), Some(next)) = (first.next(), first.next()) {
        let share = least.per_second / best;
        let what = "throughput at the least point of Figure 9, of the highest";
        all.push(Comparison::new(
            what,
            "significantly less (read as at most 0.7)",
            (0.0, 0.7),
            share,
            How::Predicted,
        ));
        let ratio = least.per_processor / next.per_processor;
        let what = "TPS a processor there, of that at the next point";
        all.push(Comparison::new(what, "still rising (more than 1)", (1.0, 10.0), ratio, How::Predicted));
    }
    all
}

/// The numbers of the paper's text beside ours.
pub fn comparisons(all: &[Comparison]) -> Report {
    let mut report = Report::new("paper", "The paper's numbers and the simulator's", all);
    report.columns = vec!["what", "paper", "simulator", "difference", "ours is", ""];
    report.rows = all
        .iter()
        .map(|row| {
            vec![
                row.what.clone(),
                row.paper.clone(),
                short(row.ours),
                format!("{:+.1} %", row.difference * 100.0),
                if row.how == How::Calibrated { "calibrated" } else { "predicted" }.to_owned(),
                if row.holds() { "✓" } else { "✗" }.to_owned(),
            ]
        })
        .collect();
    report
}

/// Figure 8.
pub fn budgets(all: &[Budget]) -> Report {
    let mut report = Report::new("budgets", "Figure 8: processing budgets for 2 Gb/s", all);
    report.columns = vec![
        "bytes",
        "wire, computed (us)",
        "proxy tier (us)",
        "application tier (us)",
        "of 4 nodes, each (us)",
    ];
    report.rows = all
        .iter()
        .map(|row| {
            let times = [row.wire_us, row.proxy_us, row.application_us, 4.0 * row.application_us];
            std::iter::once(row.bytes.to_string()).chain(times.map(|time| format!("{time:.1}"))).collect()
        })
        .collect();
    let points = |of: fn(&Budget) -> f64| all.iter().map(move |row| (f64::from(row.bytes), of(row)));
    report.plots = vec![(
        "",
        Plot {
            title: report.title.to_owned(),
            across: "bytes of a transaction",
            up: "microseconds a transaction",
            log_across: true,
            log_up: true,
            series: vec![
                Series::line("application tier", points(|row| row.application_us)),
                Series::line("proxy tier", points(|row| row.proxy_us)),
                Series::marks("time on the wire", points(|row| row.wire_us)),
            ],
        },
    )];
    report
}

/// Figure 9.
pub fn equivalents(all: &[Equivalent]) -> Report {
    let mut report =
        Report::new("equivalents", "Figure 9: processors of the application tier for 2 Gb/s", all);
    report.columns = vec!["bytes", "application node (us)", "budget (us)", "processors (P)", "paper (P)"];
    report.rows = all
        .iter()
        .map(|row| {
            vec![
                row.bytes.to_string(),
                format!("{:.1}", row.application_us),
                format!("{:.1}", row.budget_us),
                format!("{:.2}", row.processors),
                row.paper.map_or_else(|| "–".to_owned(), |paper| paper.to_string()),
            ]
        })
        .collect();
    let paper = all.iter().filter_map(|row| Some((f64::from(row.bytes), row.paper?)));
    report.plots = vec![(
        "",
        Plot {
            title: report.title.to_owned(),
            across: "bytes of a transaction",
            up: "processors (P)",
            log_across: true,
            log_up: false,
            series: vec![
                Series::line("simulator", all.iter().map(|row| (f64::from(row.bytes), row.processors))),
                Series::marks("paper's text", paper),
            ],
        },
    )];
    report
}

/// Figure 10.
pub fn throughput(all: &[Throughput]) -> Report {
    let title = "Figure 10: SPECweb99's static mix, 20,000 requests/s offered";
    let mut report = Report::new("throughput", title, all);
    report.columns = vec![
        "processors (P)",
        "point of Figure 9",
        "transactions/s",
        "of one P",
        "links used",
        "processors used",
        "p50 (ms)",
    ];
    report.rows = all
        .iter()
        .map(|row| {
            vec![
                format!("{:.2}", row.processors),
                if row.in_figure_9 { "yes" } else { "" }.to_owned(),
                format!("{:.0}", row.per_second),
                format!("{:.0}", row.per_processor),
                format!("{:.3}", row.lan_use),
                format!("{:.3}", row.application_use),
                format!("{:.2}", row.p50_ms),
            ]
        })
        .collect();
    let plot = |up, of: fn(&Throughput) -> f64| {
        let of_9 = all.iter().filter(|row| row.in_figure_9);
        Plot {
            title: title.to_owned(),
            across: "processors of the application tier (P)",
            up,
            log_across: true,
            log_up: false,
            series: vec![
                Series::line("simulator", all.iter().map(move |row| (row.processors, of(row)))),
                Series::marks("points of Figure 9", of_9.map(move |row| (row.processors, of(row)))),
            ],
        }
    };
    report.plots = vec![
        ("", plot("transactions a second", |row| row.per_second)),
        ("-per-processor", plot("transactions a second and P", |row| row.per_processor)),
    ];
    report
}

/// The SAN by fabric.
pub fn fabrics(all: &[FabricRow]) -> Report {
    let mut report =
        Report::new("fabrics", "The SAN as Ethernet and as InfiniBand, nodes without costs", all);
    report.columns = vec![
        "SAN",
        "bytes",
        "transactions/s",
        "fast LAN: transactions/s",
        "Mb/s of files",
        "SAN packets each",
        "p50 at half load (us)",
        "p99 (us)",
    ];
    report.rows = all
        .iter()
        .map(|row| {
            let numbers = [row.per_second, row.san_per_second, row.san_megabits, row.packets];
            let names = [row.fabric.to_owned(), row.bytes.to_string()];
            let numbers = numbers.map(|number| format!("{number:.0}"));
            let latency = [row.p50_us, row.p99_us].map(|time| format!("{time:.1}"));
            names.into_iter().chain(numbers).chain(latency).collect()
        })
        .collect();
    let of = |fabric: &'static str| all.iter().filter(move |row| row.fabric == fabric);
    let line = |fabric| Series::line(fabric, of(fabric).map(|row| (f64::from(row.bytes), row.p50_us)));
    report.plots = vec![(
        "",
        Plot {
            title: "Latency at half of the highest rate, by the SAN's fabric".to_owned(),
            across: "bytes of a transaction",
            up: "median, microseconds",
            log_across: true,
            log_up: false,
            series: vec![line("ethernet"), line("infiniband")],
        },
    )];
    report
}

/// Larger clusters.
pub fn scale(all: &[Scale]) -> Report {
    let title = "Clusters of 8, 64 and 512 nodes of 8 processors, the mix at 70 % of what they can do";
    let mut report = Report::new("scale", title, all);
    report.columns = vec![
        "nodes",
        "Gb/s",
        "network + proxy + application",
        "able to (1/s)",
        "offered",
        "completed",
        "processors used",
        "links used",
        "p50 (us)",
        "p99 (us)",
    ];
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    report.rows = all
        .iter()
        .map(|row| {
            let rates = [row.able_per_second, row.offered_per_second, row.per_second];
            let [able, offered, completed] = rates.map(|rate| format!("{rate:.0}"));
            vec![
                row.nodes.to_string(),
                row.gigabits.to_string(),
                row.split.map(|nodes| nodes.to_string()).join(" + "),
                able,
                offered,
                completed,
                format!("{} %", row.used.map(percent).join(", ")),
                format!("{} %", percent(row.lan_use)),
                format!("{:.0}", row.p50_us),
                format!("{:.0}", row.p99_us),
            ]
        })
        .collect();
    report
}

/// A plan.
pub fn plan(plan: &Plan) -> Report {
    let mut report = Report::new("plan", "Nodes for the load", &plan.tiers);
    report.json = serde_json::to_value(plan).unwrap_or_default();
    report.columns = vec![
        "tier",
        "nodes",
        "with the costs' error",
        "processors",
        "processors used",
        "links used",
        "limit",
    ];
    report.rows = plan
        .tiers
        .iter()
        .map(|tier| {
            vec![
                tier.tier.to_owned(),
                tier.nodes.to_string(),
                format!("{} to {}", tier.nodes_least, tier.nodes_most),
                tier.processors.to_string(),
                format!("{:.0} %", tier.processor_use * 100.0),
                format!("{:.0} %", tier.link_use * 100.0),
                format!("{:?}", tier.limit).to_lowercase(),
            ]
        })
        .collect();
    report
}

/// A number with as many digits as it needs.
fn short(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.1}"),
        value if value >= 2.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}
