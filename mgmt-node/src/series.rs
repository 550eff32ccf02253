//! Figures of the last hour, of each node and service: a value every ten seconds, in rings of fixed length.
//!
//! All rings share one line of times. What was not read at a time is not a number there. A counter's value is
//! its growth per second since the time before.

mod figures;
mod sample;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use csp_api::mgmt::{FigureSeries, ObjectSeries, SeriesView};

use crate::limits::{SERIES_FIGURES_MAX, SERIES_INTERVAL, SERIES_OBJECTS_MAX, SERIES_POINTS};

pub use sample::run;

/// A figure as it was read.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Reading {
    /// A value of this moment.
    Now(f64),
    /// A counter.
    Total(f64),
    /// A counter, and another one: the growth of the first is divided by that of the second.
    Quotient(f64, f64),
}

/// What was read of one object: the figures by name.
type Readings = Vec<(&'static str, Reading)>;

/// The rings.
#[derive(Debug, Default)]
pub struct Series {
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    /// Of the latest values, Unix time in ms.
    end_unix_ms: u64,
    objects: BTreeMap<String, Vec<Ring>>,
}

#[derive(Debug)]
struct Ring {
    name: &'static str,
    /// The counter as last read, and that by which it is divided; none for a value, and after a time without
    /// one.
    total: Option<(f64, f64)>,
    values: VecDeque<f32>,
}

impl Ring {
    fn push(&mut self, reading: Option<Reading>, seconds: f64) {
        let before = self.total.take();
        let value = match reading {
            None => f64::NAN,
            Some(Reading::Now(value)) => value,
            Some(Reading::Total(total)) => {
                self.total = Some((total, 0.0));
                // A counter that fell was started anew.
                let grown = before.filter(|(before, _)| total >= *before && seconds > 0.0);
                grown.map_or(f64::NAN, |(before, _)| (total - before) / seconds)
            }
            Some(Reading::Quotient(part, whole)) => {
                self.total = Some((part, whole));
                let grown = before.filter(|before| part >= before.0 && whole > before.1);
                grown.map_or(f64::NAN, |before| (part - before.0) / (whole - before.1))
            }
        };
        while self.values.len() >= SERIES_POINTS {
            self.values.pop_front();
        }
        self.values.push_back(value as f32);
    }

    fn is_empty(&self) -> bool {
        self.total.is_none() && self.values.iter().all(|value| value.is_nan())
    }
}

impl Series {
    /// Adds what was read at a time.
    fn add(&self, unix_ms: u64, read: BTreeMap<String, Readings>) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = unix_ms.saturating_sub(rings.end_unix_ms) as f64 / 1e3;
        rings.end_unix_ms = unix_ms;
        for (object, readings) in &read {
            if !rings.objects.contains_key(object) && rings.objects.len() >= SERIES_OBJECTS_MAX {
                continue;
            }
            let of_object = rings.objects.entry(object.clone()).or_default();
            for (name, _) in readings.iter().take(SERIES_FIGURES_MAX) {
                if of_object.len() < SERIES_FIGURES_MAX && !of_object.iter().any(|ring| ring.name == *name) {
                    of_object.push(Ring { name, total: None, values: VecDeque::new() });
                }
            }
        }
        for (object, of_object) in &mut rings.objects {
            let readings = read.get(object).map_or(&[][..], Vec::as_slice);
            for ring in of_object {
                let found = readings.iter().find(|(name, _)| *name == ring.name);
                ring.push(found.map(|(_, reading)| *reading), seconds);
            }
        }
        rings.objects.retain(|_, of_object| of_object.iter().any(|ring| !ring.is_empty()));
    }

    /// Returns the newest `points` values of each of these objects.
    pub fn view(&self, objects: &[&str], points: usize) -> SeriesView {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let figure = |ring: &Ring| {
            let skipped = ring.values.len().saturating_sub(points);
            let values = ring.values.iter().skip(skipped).map(|value| rounded(*value)).collect();
            FigureSeries { name: ring.name.to_owned(), values }
        };
        let object = |name: &&str| {
            let figures = rings.objects.get(*name)?.iter().map(figure).collect();
            Some(ObjectSeries { object: (*name).to_owned(), figures })
        };
        SeriesView {
            interval_ms: SERIES_INTERVAL.as_millis() as u64,
            end_unix_ms: rings.end_unix_ms,
            objects: objects.iter().filter_map(object).collect(),
        }
    }
}

/// A value with four digits, which keeps answers short; none for what is no number.
fn rounded(value: f32) -> Option<f32> {
    if !value.is_finite() {
        return None;
    }
    if value == 0.0 {
        return Some(0.0);
    }
    let scale = 10f64.powi(3 - f64::from(value.abs()).log10().floor() as i32);
    Some(((f64::from(value) * scale).round() / scale) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(object: &str, readings: Readings) -> BTreeMap<String, Readings> {
        BTreeMap::from([(object.to_owned(), readings)])
    }

    fn values(series: &Series, object: &str, points: usize) -> Vec<Vec<Option<f32>>> {
        let view = series.view(&[object], points);
        view.objects.into_iter().flat_map(|object| object.figures).map(|figure| figure.values).collect()
    }

    #[test]
    fn counters_become_rates_and_gaps_are_no_values() {
        let series = Series::default();
        let read = |ms: u64, total: f64, now: f64| {
            let readings = vec![("per_s", Reading::Total(total)), ("now", Reading::Now(now))];
            series.add(ms, one("node/pn-1", readings));
        };
        read(10_000, 100.0, 1.0);
        read(20_000, 150.0, 2.0);
        series.add(30_000, BTreeMap::new());
        read(40_000, 500.0, 3.0);
        read(50_000, 20.0, 4.0);
        read(60_000, 40.0, 12_345.6);
        assert_eq!(
            values(&series, "node/pn-1", 10),
            [
                vec![None, Some(5.0), None, None, None, Some(2.0)],
                vec![Some(1.0), Some(2.0), None, Some(3.0), Some(4.0), Some(12_350.0)]
            ]
        );
        assert_eq!(values(&series, "node/pn-1", 1), [[Some(2.0)], [Some(12_350.0)]]);
        assert_eq!(series.view(&["node/pn-2"], 10).objects, []);
    }

    #[test]
    fn a_quotient_is_of_what_came_between_two_times() {
        let series = Series::default();
        let read = [(500.0, 100.0), (600.0, 120.0), (600.0, 120.0), (600.0, 121.0), (4.0, 2.0), (9.0, 4.0)];
        for (ms, (part, whole)) in (0..).zip(read) {
            series.add(ms, one("service/web", vec![("percent", Reading::Quotient(part, whole))]));
        }
        // Nothing ended, or the counters were started anew.
        let expected = [None, Some(5.0), None, Some(0.0), None, Some(2.5)];
        assert_eq!(values(&series, "service/web", 10), [expected]);
    }

    #[test]
    fn rings_objects_and_figures_are_bounded_and_what_is_gone_for_an_hour_is_forgotten() {
        let series = Series::default();
        let all = (0..SERIES_OBJECTS_MAX + 50)
            .map(|n| (format!("service/{n:05}"), vec![("now", Reading::Now(1.0)); SERIES_FIGURES_MAX + 5]));
        series.add(0, all.collect());
        let count = |series: &Series| series.rings.lock().unwrap().objects.len();
        assert_eq!(count(&series), SERIES_OBJECTS_MAX);
        for n in 0..SERIES_POINTS as u64 {
            series.add(10_000 * (n + 1), one("service/00000", vec![("now", Reading::Now(1.0))]));
        }
        assert_eq!((count(&series), values(&series, "service/00000", 1000)[0].len()), (1, SERIES_POINTS));
    }
}
