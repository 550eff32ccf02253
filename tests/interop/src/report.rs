//! Computes ratios from measurements and formats them as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cell::{Cell, Workload};
use crate::lane::Measurement;

/// Smallest acceptable ratio of the engine's goodput to Linux'.
pub const BAR: f64 = 0.9;

/// One measurement of both servers, one after the other.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The engine's measurement.
    pub engine: Measurement,
    /// The kernel's measurement.
    pub linux: Measurement,
}

/// The results of one workload in one cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// All measurements.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    /// Returns the means per second of the engine and of the kernel.
    pub fn means(&self) -> (f64, f64) {
        let n = self.pairs.len().max(1) as f64;
        let sum = |of: fn(&Pair) -> f64| self.pairs.iter().map(of).sum::<f64>() / n;
        (sum(|p| p.engine.per_second), sum(|p| p.linux.per_second))
    }

    /// Returns the ratio of the engine to Linux; 0 before the first measurement.
    pub fn ratio(&self) -> f64 {
        let (engine, linux) = self.means();
        if linux > 0.0 { engine / linux } else { 0.0 }
    }

    /// Returns the standard error of the ratio, from the differences between the pairs (ratio of means,
    /// linearised). `None` for a single pair.
    pub fn error(&self) -> Option<f64> {
        let (n, ratio) = (self.pairs.len() as f64, self.ratio());
        let linux = self.means().1;
        if self.pairs.len() < 2 || linux <= 0.0 {
            return None;
        }
        let squares = self.pairs.iter().map(|p| (p.engine.per_second - ratio * p.linux.per_second).powi(2));
        Some((squares.sum::<f64>() / (n * (n - 1.0))).sqrt() / linux)
    }

    /// Returns whether the ratio is at least [`BAR`].
    pub fn is_ok(&self) -> bool {
        self.ratio() >= BAR
    }

    /// Returns whether more measurements could change the verdict. Always `false` for a single pair.
    pub fn is_open(&self) -> bool {
        self.error().is_some_and(|error| (self.ratio() - BAR).abs() < 2.0 * error)
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// By cell and workload.
    pub outcomes: BTreeMap<(Cell, Workload), Outcome>,
}

impl Results {
    /// Returns the outcomes below the bar.
    pub fn below(&self) -> impl Iterator<Item = (&(Cell, Workload), &Outcome)> {
        self.outcomes.iter().filter(|(_, outcome)| !outcome.is_ok())
    }

    /// Formats a table with a line per cell and a column per workload.
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

    /// Returns all results as JSON.
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
