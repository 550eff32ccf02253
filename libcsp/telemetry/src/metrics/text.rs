//! The two formats: OpenMetrics 1.0, and Prometheus' text format 0.0.4.
//!
//! They differ in the name of a counter's family, which has no `_total` in OpenMetrics, in floating-point
//! numbers, which there have a decimal point always, and in the line at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Buckets, Family, Kind, Value};

/// A format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    OpenMetrics,
    Text,
}

/// Returns labels as they stand between braces: sorted, with escaped values.
pub(super) fn labels(labels: &[(&str, &str)]) -> String {
    let mut sorted: Vec<&(&str, &str)> = labels.iter().collect();
    sorted.sort_unstable();
    let mut text =
        String::with_capacity(labels.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
    for (name, value) in sorted {
        let comma = if text.is_empty() { "" } else { "," };
        text.extend([comma, name, "=\""]);
        for part in value.split_inclusive(['\\', '"', '\n']) {
            let (plain, escaped) = match part.as_bytes().last() {
                Some(b'\\') => (&part[..part.len() - 1], "\\\\"),
                Some(b'"') => (&part[..part.len() - 1], "\\\""),
                Some(b'\n') => (&part[..part.len() - 1], "\\n"),
                _ => (part, ""),
            };
            text.extend([plain, escaped]);
        }
        text.push('"');
    }
    text
}

/// Returns the value of a label of [`labels`], still escaped.
pub(super) fn value_of<'a>(labels: &'a str, label: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        let (value, further) = after.split_at(end);
        if name == label {
            return Some(value);
        }
        rest = further.strip_prefix("\",")?;
    }
}

/// Returns the text of these families.
pub(super) fn render(families: &BTreeMap<String, Family>, format: Format) -> String {
    let mut text = String::new();
    for (name, family) in families {
        let (kind, end) = match family.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
        };
        let declared = if format == Format::Text { end } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name}{declared} {}\n# TYPE {name}{declared} {kind}", family.help);
        let mut bounds = Bounds::default();
        for (labels, value) in &family.samples {
            match value {
                Value::Counter(count) => line(&mut text, (name, end), labels, count),
                Value::Seconds(level) | Value::Gauge(level) => {
                    line(&mut text, (name, end), labels, &number(*level, format));
                }
                Value::Histogram(histogram) => {
                    buckets(&mut text, name, labels, histogram, &mut bounds, format)
                }
            }
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// The bounds of a histogram as they are written; the next one usually has the same.
#[derive(Default)]
struct Bounds(Vec<(f64, String)>);

impl Bounds {
    fn of(&mut self, counts: &[(f64, u64)], format: Format) -> &[(f64, String)] {
        let same = self.0.len() == counts.len()
            && self.0.iter().zip(counts).all(|((known, _), (bound, _))| known.to_bits() == bound.to_bits());
        if !same {
            self.0 = counts.iter().map(|(bound, _)| (*bound, number(*bound, format))).collect();
        }
        &self.0
    }
}

fn buckets(
    text: &mut String,
    name: &str,
    labels: &str,
    histogram: &Buckets,
    bounds: &mut Bounds,
    format: Format,
) {
    let (mut below, comma) = (0, if labels.is_empty() { "" } else { "," });
    for ((_, bound), (_, count)) in bounds.of(&histogram.counts, format).iter().zip(&histogram.counts) {
        below += count;
        text.extend([name, "_bucket{", labels, comma, "le=\"", bound, "\"} "]);
        let _ = writeln!(text, "{below}");
    }
    line(text, (name, "_sum"), labels, &number(histogram.sum_s, format));
    line(text, (name, "_count"), labels, &below);
}

fn line(text: &mut String, (name, end): (&str, &str), labels: &str, value: &dyn std::fmt::Display) {
    let (open, close) = if labels.is_empty() { ("", " ") } else { ("{", "} ") };
    text.extend([name, end, open, labels, close]);
    let _ = writeln!(text, "{value}");
}

/// Returns a floating-point number as the format has it: Rust writes infinity in small letters.
fn number(value: f64, format: Format) -> String {
    match format {
        _ if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        Format::OpenMetrics if value.fract() == 0.0 => format!("{value}.0"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_escaped_and_found_again() {
        let text = labels(&[("worker", "0"), ("a", "x\\\"y\n"), ("b", "\\")]);
        assert_eq!(text, r#"a="x\\\"y\n",b="\\",worker="0""#);
        for (label, value) in
            [("a", Some(r#"x\\\"y\n"#)), ("b", Some(r"\\")), ("worker", Some("0")), ("c", None)]
        {
            assert_eq!(value_of(&text, label), value, "{label}");
        }
        assert_eq!((labels(&[]), value_of("", "a")), (String::new(), None));
    }

    #[test]
    fn numbers_are_as_each_format_wants_them() {
        for (value, om, plain) in [
            (1.0, "1.0", "1"),
            (0.5, "0.5", "0.5"),
            (1e-5, "0.00001", "0.00001"),
            (f64::INFINITY, "+Inf", "+Inf"),
            (f64::NAN, "NaN", "NaN"),
        ] {
            assert_eq!(
                (number(value, Format::OpenMetrics), number(value, Format::Text)),
                (om.into(), plain.into())
            );
        }
    }
}
