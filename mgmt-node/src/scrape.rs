//! Reads the text of a `/metrics` page: only what the operations page shows is kept.
//!
//! The text comes from another process, so every bound is checked and a line that makes no sense is skipped.

use std::collections::BTreeMap;

use crate::limits::DROP_REASONS_MAX;

/// Metric families kept of one node.
const FAMILIES_MAX: usize = 1024;

/// What one page said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Sum over all label sets of each family, histograms left out.
    pub sums: BTreeMap<String, f64>,
    /// `csp_drops_total` by reason.
    pub drops: BTreeMap<String, u64>,
}

/// Name of the drop counter.
const DROPS: &str = "csp_drops_total";

/// Reads a page in Prometheus text format or OpenMetrics.
pub fn read(page: &str) -> Sample {
    let mut sample = Sample::default();
    for line in page.lines() {
        let Some((name, labels, value)) = split(line) else { continue };
        if name.ends_with("_bucket") || !name.starts_with("csp_") {
            continue;
        }
        if sample.sums.contains_key(name) || sample.sums.len() < FAMILIES_MAX {
            *sample.sums.entry(name.to_owned()).or_default() += value;
        }
        let reason = if name == DROPS { label(labels, "reason") } else { None };
        if let Some(reason) = reason
            && (sample.drops.contains_key(reason) || sample.drops.len() < DROP_REASONS_MAX)
        {
            *sample.drops.entry(reason.to_owned()).or_default() += value.max(0.0) as u64;
        }
    }
    sample
}

/// `name{labels} value [timestamp]`.
fn split(line: &str) -> Option<(&str, &str, f64)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (name, labels, rest) = match line.find('{') {
        Some(open) => {
            let close = line.rfind('}').filter(|close| *close > open)?;
            (&line[..open], &line[open + 1..close], &line[close + 1..])
        }
        None => {
            let end = line.find(' ')?;
            (&line[..end], "", &line[end..])
        }
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((name, labels, value))
}

/// The value of one label. Reasons are plain words: escapes are not undone.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, next) = after.split_once('"')?;
        if key.trim_start_matches(',').trim() == name {
            return Some(value);
        }
        rest = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_workers_and_drops_kept_by_reason() {
        let page = "# TYPE csp_drops counter\n\
                    csp_drops_total{reason=\"bad_checksum\",worker=\"0\"} 3\n\
                    csp_drops_total{worker=\"1\",reason=\"bad_checksum\"} 4\n\
                    csp_drops_total{reason=\"unknown_label\"} 1\n\
                    csp_flows_entries 12\n\
                    csp_x_seconds_bucket{le=\"1\"} 9\n\
                    go_threads 7\n\
                    csp_broken{ 1\ncsp_broken x\ncsp_nan NaN\n# EOF\n";
        let sample = read(page);
        assert_eq!(sample.drops, BTreeMap::from([("bad_checksum".into(), 7), ("unknown_label".into(), 1)]));
        assert_eq!(
            sample.sums,
            BTreeMap::from([("csp_drops_total".into(), 8.0), ("csp_flows_entries".into(), 12.0)])
        );
    }

    #[test]
    fn a_hostile_page_is_bounded() {
        let page: String =
            (0..5000).map(|i| format!("csp_m{i} 1\ncsp_drops_total{{reason=\"r{i}\"}} 1e300\n")).collect();
        let sample = read(&page);
        assert!(sample.sums.len() <= FAMILIES_MAX && sample.drops.len() <= DROP_REASONS_MAX);
    }
}
