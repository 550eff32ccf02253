//! Prometheus' text format 0.0.4, in which the name of a counter's family has its `_total`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Family, Value};

/// Returns the text of these families.
pub(super) fn render(families: &BTreeMap<String, Family>) -> String {
    let mut text = String::new();
    for (name, family) in families {
        let Some(first) = family.samples.values().next() else { continue };
        let (name, kind) = match first {
            Value::Counter(_) | Value::Seconds(_) => (format!("{name}_total"), "counter"),
            Value::Gauge(_) => (name.clone(), "gauge"),
            Value::Histogram(_) => (name.clone(), "histogram"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
        for (labels, value) in &family.samples {
            sample(&mut text, &name, labels, value);
        }
    }
    text
}

fn sample(text: &mut String, name: &str, labels: &[(String, String)], value: &Value) {
    let plain = labelled(labels, None);
    let _ = match value {
        Value::Counter(count) => writeln!(text, "{name}{plain} {count}"),
        Value::Seconds(level) | Value::Gauge(level) => writeln!(text, "{name}{plain} {}", number(*level)),
        Value::Histogram(histogram) => {
            let mut below = 0;
            for (bound, count) in &histogram.counts {
                below += count;
                let bucket = labelled(labels, Some(&number(*bound)));
                let _ = writeln!(text, "{name}_bucket{bucket} {below}");
            }
            let (sum, count) = (number(histogram.sum_s), histogram.count());
            writeln!(text, "{name}_sum{plain} {sum}\n{name}_count{plain} {count}")
        }
    };
}

/// Returns labels in braces, with the upper bound of a bucket if there is one.
fn labelled(labels: &[(String, String)], bound: Option<&str>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let own = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
    let all: Vec<String> = own.chain(bound.map(|bound| format!("le=\"{bound}\""))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// Returns a number as the format has it: Rust writes infinity in small letters.
fn number(value: f64) -> String {
    if value.is_infinite() { if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned() } else { value.to_string() }
}
