//! Numbers, durations, words.

use core::time::Duration;

use crate::script::{Number, Value};

/// Parses `1.5s`, `40ms`, `200us`, `3min`, `2h`, `25d`, or seconds without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 0.04, 40ms, 1.5s, 2h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    Ok(Duration::from_nanos((number * seconds * 1e9).round() as u64))
}

/// Parses a sequence number.
pub(crate) fn sequence(text: &str) -> Result<Number, String> {
    let wrong = |_| format!("`{text}` is not a sequence number such as 1461, -1, =0 (as on the wire) or *");
    if text == "*" {
        return Ok(Number::Any);
    }
    match text.strip_prefix('=') {
        Some(absolute) => absolute.parse().map(Number::Absolute).map_err(wrong),
        None => text.parse().map(Number::Relative).map_err(wrong),
    }
}

/// Parses the value of a comparison: a count, a duration with its unit, or a word.
pub(crate) fn value(text: &str) -> Value {
    if let Ok(number) = text.replace('_', "").parse() {
        return Value::Number(number);
    }
    let has_unit = text.starts_with(|c: char| c.is_ascii_digit());
    match duration(text) {
        Ok(duration) if has_unit => Value::Number(duration.as_nanos() as i64),
        _ => Value::Word(word(text)),
    }
}

/// Normalises a name to lower case without underscores and hyphens: `FIN-WAIT-1`, `fin_wait_1` and `FinWait1`
/// are equal.
pub(crate) fn word(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}
