//! From measurements to ratios, a table and JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cell::{Cell, Workload};
use crate::lane::Measurement;

/// The engine has to reach this part of Linux' goodput.
pub const BAR: f64 = 0.9;

/// The same measurement of both servers, one right after the other.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// With the engine.
    pub engine: Measurement,
    /// With the kernel.
    pub linux: Measurement,
}

/// What came out for one workload in one cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Every measurement.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    /// Mean per second with the engine and with the kernel.
    pub fn means(&self) -> (f64, f64) {
        let n = self.pairs.len().max(1) as f64;
        let sum = |of: fn(&Pair) -> f64| self.pairs.iter().map(of).sum::<f64>() / n;
        (sum(|p| p.engine.per_second), sum(|p| p.linux.per_second))
    }

    /// Engine to Linux; 0 before the first measurement.
    pub fn ratio(&self) -> f64 {
        let (engine, linux) = self.means();
        if linux > 0.0 { engine / linux } else { 0.0 }
    }

    /// Standard error of the ratio from how the pairs differ (a ratio of means, linearised); none of a single pair.
    pub fn error(&self) -> Option<f64> {
        let (n, ratio) = (self.pairs.len() as f64, self.ratio());
        let linux = self.means().1;
        if self.pairs.len() < 2 || linux <= 0.0 {
            return None;
        }
        let squares = self.pairs.iter().map(|p| (p.engine.per_second - ratio * p.linux.per_second).powi(2));
        Some((squares.sum::<f64>() / (n * (n - 1.0))).sqrt() / linux)
    }

    /// Whether the engine is where it has to be.
    pub fn is_ok(&self) -> bool {
        self.ratio() >= BAR
    }

    /// Whether more measurements could turn the verdict. That of a single pair is not asked again.
    pub fn is_open(&self) -> bool {
        self.error().is_some_and(|error| (self.ratio() - BAR).abs() < 2.0 * error)
    }
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Results {
    /// By cell and workload.
    pub outcomes: BTreeMap<(Cell, Workload), Outcome>,
}

impl Results {
    /// The outcomes below the bar.
    pub fn below(&self) -> impl Iterator<Item = (&(Cell, Workload), &Outcome)> {
        self.outcomes.iter().filter(|(_, outcome)| !outcome.is_ok())
    }

    /// A table with a line per cell and a column per workload.
    pub fn table(&self) -> String {
        let mut text = String::from("rtt   loss  reord ");
        for workload in Workload::ALL {
            text += &format!("| {:^26} ", format!("{workload:?}").to_lowercase());
        }
        text += "\nms    %     %     ";
        for workload in Workload::ALL {
            let unit = if workload.is_bulk() { "Mbit/s" } else { "1/s" };
            text += &format!(
                "| {:>6} {:>7} {:>11} ",
                "Linux",
                "engine",
                format!("ratio ({unit})").split(' ').next().unwrap_or("")
            );
        }
        let worst = self.outcomes.values().map(Outcome::ratio).fold(f64::INFINITY, f64::min);
        let cells: std::collections::BTreeSet<Cell> = self.outcomes.keys().map(|(cell, _)| *cell).collect();
        for cell in cells {
            let percent = |ppm: u32| f64::from(ppm) / 1e4;
            text += &format!(
                "\n{:<5} {:<5} {:<6}",
                cell.rtt_ms,
                percent(cell.loss_ppm),
                percent(cell.reorder_ppm)
            );
            for workload in Workload::ALL {
                text += &self.column(cell, workload, worst);
            }
        }
        text + "\nLinux, engine: Mbit/s of goodput for bulk, transactions per second otherwise; ± standard error; \
                ! below 0.90; * the worst\n"
    }

    fn column(&self, cell: Cell, workload: Workload, worst: f64) -> String {
        let Some(outcome) = self.outcomes.get(&(cell, workload)) else { return format!("| {:26} ", "") };
        let scale = if workload.is_bulk() { 8e-6 } else { 1.0 };
        let (engine, linux) = outcome.means();
        let error = outcome.error().map_or("     ".into(), |error| format!("±{error:.2}"));
        let ratio = outcome.ratio();
        let mark = match ratio {
            _ if ratio <= worst => '*',
            _ if outcome.is_ok() => ' ',
            _ => '!',
        };
        format!("| {:>6.1} {:>7.1} {ratio:>5.2}{error}{mark} ", linux * scale, engine * scale)
    }

    /// All of it.
    pub fn json(&self) -> serde_json::Value {
        let outcomes = self.outcomes.iter().map(|((cell, workload), outcome)| {
            let (engine, linux) = outcome.means();
            serde_json::json!({
                "cell": cell, "workload": workload, "flows": cell.flows(*workload), "engine": engine,
                "linux": linux, "ratio": outcome.ratio(), "error": outcome.error(), "ok": outcome.is_ok(),
                "pairs": outcome.pairs,
            })
        });
        serde_json::json!({ "bar": BAR, "outcomes": outcomes.collect::<Vec<_>>() })
    }
}
