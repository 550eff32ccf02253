//! Prometheus exposition of plain counters.
//!
//! A [`MetricSource`] provides samples; [`MetricWriter`] groups them into families, so that several workers
//! can contribute to one family; `text.rs` writes both formats.
//!
//! A proxy with 1,000 services has 19,000 lines. A sample is therefore kept by its labels as they are
//! written, so that it takes one allocation, and no line is written twice.

mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::histogram::LatencyHistogram;

/// A provider of metrics.
pub trait MetricSource: Send + Sync {
    /// Writes all samples at their present values. Called on the control thread at every scrape.
    fn collect(&self, out: &mut MetricWriter);
}

impl<F: Fn(&mut MetricWriter) + Send + Sync> MetricSource for F {
    fn collect(&self, out: &mut MetricWriter) {
        self(out);
    }
}

/// All metric sources of one daemon. Clones share the set and are cheap.
#[derive(Clone, Default)]
pub struct Exposition {
    sources: Arc<Mutex<Vec<Arc<dyn MetricSource>>>>,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.sources.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Exposition").field("sources", &count).finish()
    }
}

impl Exposition {
    /// The content type of [`Exposition::render`].
    pub const CONTENT_TYPE: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    /// The content type of [`Exposition::render_text`].
    pub const TEXT_CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Returns an exposition without sources.
    pub fn new() -> Self {
        Exposition::default()
    }

    /// Adds a source. It stays for the life of the daemon.
    pub fn register(&self, source: impl MetricSource + 'static) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(source));
    }

    /// Returns the sums of a counter at their present values, by the value of one label, whose special
    /// characters stay escaped. `family` is its name without `_total`.
    pub fn sums(&self, family: &str, label: &str) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        let Some(family) = self.collect().families.remove(family) else { return sums };
        for (labels, value) in family.samples {
            if let (Some(named), Value::Counter(count)) = (text::value_of(&labels, label), value) {
                let sum: &mut u64 = sums.entry(named.to_owned()).or_default();
                *sum = sum.wrapping_add(count);
            }
        }
        sums
    }

    /// Returns the text of `/metrics` as OpenMetrics 1.0.
    pub fn render(&self) -> String {
        self.collect().render()
    }

    /// Returns the text of `/metrics` in Prometheus' text format 0.0.4.
    pub fn render_text(&self) -> String {
        self.collect().render_text()
    }

    fn collect(&self) -> MetricWriter {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut writer = MetricWriter::default();
        for source in sources {
            source.collect(&mut writer);
        }
        writer
    }
}

#[derive(Clone, PartialEq, Debug)]
enum Value {
    Counter(u64),
    /// A counter of seconds.
    Seconds(f64),
    Gauge(f64),
    Histogram(Buckets),
}

/// A histogram of seconds.
#[derive(Clone, PartialEq, Debug)]
struct Buckets {
    /// Upper bounds with their counts, which are not cumulative; the last bound is infinite.
    counts: Vec<(f64, u64)>,
    sum_s: f64,
}

impl Buckets {
    /// Adds one with the same bounds.
    fn add(&mut self, other: &Buckets) {
        debug_assert_eq!(self.counts.len(), other.counts.len());
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| mine.1 += theirs.1);
        self.sum_s += other.sum_s;
    }
}

/// The type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Value {
    fn kind(&self) -> Kind {
        match self {
            Value::Counter(_) | Value::Seconds(_) => Kind::Counter,
            Value::Gauge(_) => Kind::Gauge,
            Value::Histogram(_) => Kind::Histogram,
        }
    }

    /// Adds a second sample of the same name and labels. Samples of workers without a label of their own are
    /// thereby summed.
    fn add(&mut self, other: Value) {
        match (self, other) {
            (Value::Counter(mine), Value::Counter(theirs)) => *mine = mine.wrapping_add(theirs),
            (Value::Seconds(mine), Value::Seconds(theirs)) | (Value::Gauge(mine), Value::Gauge(theirs)) => {
                *mine += theirs;
            }
            (Value::Histogram(mine), Value::Histogram(theirs)) => mine.add(&theirs),
            (mine, theirs) => debug_assert_eq!(mine.kind(), theirs.kind()),
        }
    }
}

#[derive(Debug)]
struct Family {
    help: String,
    kind: Kind,
    /// By their labels, as they are written between braces.
    samples: BTreeMap<String, Value>,
}

/// The sink for the samples of a [`MetricSource`].
///
/// Names are complete (`csp_drops_total`), in base units, and start with `csp_`, but for those that every
/// Prometheus client has of its process (`process_`); the name of a counter ends in `_total`. Samples with
/// the same name and labels are summed. A sample whose name was used before for another kind of metric is
/// left out.
#[derive(Debug, Default)]
pub struct MetricWriter {
    families: BTreeMap<String, Family>,
}

impl MetricWriter {
    /// Adds a counter, which only increases.
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        debug_assert!(name.ends_with("_total"), "the name of counter {name} must end in _total");
        let family = name.strip_suffix("_total").unwrap_or(name);
        self.add(family, help, labels, Value::Counter(value));
    }

    /// Adds a counter of seconds. Its `name` ends in `_seconds_total`.
    pub fn seconds(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        debug_assert!(name.ends_with("_seconds_total"), "the name of {name} must end in _seconds_total");
        let family = name.strip_suffix("_total").unwrap_or(name);
        self.add(family, help, labels, Value::Seconds(value));
    }

    /// Adds a gauge, which increases and decreases.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.add(name, help, labels, Value::Gauge(value));
    }

    /// Adds a histogram of durations. Its `name` ends in `_seconds`.
    pub fn latency(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: &LatencyHistogram) {
        debug_assert!(name.ends_with("_seconds"), "the name of latency {name} must end in _seconds");
        let counts = value.buckets().collect();
        self.add(name, help, labels, Value::Histogram(Buckets { counts, sum_s: value.sum_s() }));
    }

    /// Adds a histogram of durations with bounds of its own, which all samples of the name share: `counts`
    /// has one more than there are `bounds_ns`, and they are not cumulative. Its `name` ends in `_seconds`.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        (bounds_ns, counts, sum_ns): (&[u64], &[u64], u64),
    ) {
        debug_assert!(name.ends_with("_seconds"), "the name of histogram {name} must end in _seconds");
        debug_assert_eq!(bounds_ns.len() + 1, counts.len());
        let bounds = bounds_ns.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
        let counts = bounds.zip(counts.iter().copied()).collect();
        self.add(name, help, labels, Value::Histogram(Buckets { counts, sum_s: sum_ns as f64 / 1e9 }));
    }

    /// Adds `csp_drops_total{reason}`: the number of drops for each reason.
    pub fn drops(&mut self, reasons: &[(&str, u64)]) {
        for (reason, count) in reasons {
            let help = "Packets, messages and requests that were dropped, by reason";
            self.counter("csp_drops_total", help, &[("reason", reason)], *count);
        }
    }

    /// Adds `csp_<table>_entries` and `csp_<table>_capacity` for a table.
    pub fn table(&mut self, table: &str, entries: usize, capacity: usize) {
        let described = table.replace('_', " ");
        let entries_help = format!("Entries in use of the table of {described}");
        let capacity_help = format!("Entries that the table of {described} can hold");
        self.gauge(&format!("csp_{table}_entries"), &entries_help, &[], entries as f64);
        self.gauge(&format!("csp_{table}_capacity"), &capacity_help, &[], capacity as f64);
    }

    /// Returns everything written in Prometheus' text format 0.0.4.
    pub fn render_text(self) -> String {
        text::render(&self.families, text::Format::Text)
    }

    /// Returns everything written as OpenMetrics 1.0.
    pub fn render(self) -> String {
        text::render(&self.families, text::Format::OpenMetrics)
    }

    fn add(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: Value) {
        let kind = value.kind();
        let family = match self.families.get_mut(name) {
            Some(family) => family,
            None => {
                let known_prefix = name.starts_with("csp_") || name.starts_with("process_");
                debug_assert!(known_prefix, "the name of metric {name} must start with csp_ or process_");
                self.families.entry(name.to_owned()).or_insert(Family {
                    // A line end would start a line of its own.
                    help: help.replace(['\n', '\\'], " "),
                    kind,
                    samples: BTreeMap::new(),
                })
            }
        };
        debug_assert_eq!(family.kind, kind, "metric {name} is used with two kinds");
        if family.kind != kind {
            return;
        }
        let labels = text::labels(labels);
        match family.samples.get_mut(&labels) {
            Some(known) => known.add(value),
            None => drop(family.samples.insert(labels, value)),
        }
    }
}
