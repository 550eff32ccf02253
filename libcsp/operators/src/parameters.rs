//! The words of parameters that are no SQL: times, units, lists of names.

use csp_handlers::ParameterError;
use csp_queries::DURATION_DAYS_MAX;
use csp_types::Duration;

use crate::query::{Time, Unit};

/// Longest time of parameters, in microseconds: that of queries.
const DURATION_US_MAX: u64 = DURATION_DAYS_MAX * 86_400_000_000;

const UNITS: [(&str, Unit, u64); 7] = [
    ("nanosecond", Unit::Nanoseconds, 0),
    ("microsecond", Unit::Microseconds, 1),
    ("millisecond", Unit::Milliseconds, 1_000),
    ("second", Unit::Seconds, 1_000_000),
    ("minute", Unit::Minutes, 60_000_000),
    ("hour", Unit::Hours, 3_600_000_000),
    ("day", Unit::Days, 86_400_000_000),
];

pub(crate) fn wrong<T>(message: impl Into<String>) -> Result<T, ParameterError> {
    Err(ParameterError(message.into()))
}

/// Splits a text behind its first word, which is compared in any case. `None`: it begins with another.
pub(crate) fn after_word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let text = text.trim_start();
    let (first, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    first.eq_ignore_ascii_case(word).then(|| rest.trim_start())
}

fn unit(word: &str) -> Result<(Unit, u64), ParameterError> {
    let word = word.to_ascii_lowercase();
    let singular = word.strip_suffix('s').unwrap_or(&word);
    match UNITS.iter().find(|(name, ..)| *name == singular) {
        Some((_, unit, scale)) => Ok((*unit, *scale)),
        None => {
            let nearest = csp_formats::nearest(singular, UNITS.iter().map(|(name, ..)| *name));
            let near = nearest.map(|nearest| format!("; the nearest is {nearest}s")).unwrap_or_default();
            wrong(format!("\"{word}\" is no unit of time{near}"))
        }
    }
}

/// `5 seconds`, above 0.
pub(crate) fn duration(text: &str) -> Result<Duration, ParameterError> {
    let mut words = text.split_whitespace();
    let (Some(number), Some(name), None) = (words.next(), words.next(), words.next()) else {
        return wrong(format!("\"{}\" is no time such as 5 seconds", text.trim()));
    };
    let (_, scale) = unit(name)?;
    let micros = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    match micros.filter(|micros| (1..=DURATION_US_MAX).contains(micros)) {
        Some(micros) => Ok(Duration::from_micros(micros)),
        None => wrong(format!(
            "\"{number} {name}\" is no time of a microsecond or more, and at most {DURATION_DAYS_MAX} days"
        )),
    }
}

/// `at seconds late 5 seconds`: a field, what it counts, and how far behind rows may be.
pub(crate) fn time(text: &str) -> Result<Time, ParameterError> {
    let mut words = text.split_whitespace();
    let (Some(path), Some(name)) = (words.next(), words.next()) else {
        return wrong(format!("\"{}\" is no field and unit, such as: at seconds", text.trim()));
    };
    let lateness = match words.next() {
        None => Duration::ZERO,
        Some(word) if word.eq_ignore_ascii_case("late") => duration(&words.collect::<Vec<_>>().join(" "))?,
        Some(word) => return wrong(format!("\"{word}\" stands where only late and a time can")),
    };
    Ok(Time::Field { path: path.to_owned(), unit: unit(name)?.0, lateness })
}

/// Names between commas.
pub(crate) fn names(text: &str) -> Result<Vec<&str>, ParameterError> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    match names.iter().find(|name| name.is_empty() || name.contains(char::is_whitespace)) {
        Some(name) => wrong(format!("\"{name}\" is no name")),
        None => Ok(names),
    }
}

/// The characters of a text that stand outside quotes and brackets, with their positions and the character
/// before each.
fn outside(text: &str) -> impl Iterator<Item = (usize, char, char)> + '_ {
    let (mut depth, mut quote, mut before) = (0u32, None, ' ');
    text.char_indices().filter_map(move |(at, character)| {
        let previous = std::mem::replace(&mut before, character);
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => (),
            (None, '\'' | '"') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, _) if depth == 0 => return Some((at, character, previous)),
            (None, _) => (),
        }
        None
    })
}

/// Parts of a text between signs that stand outside quotes and brackets.
pub(crate) fn parts(text: &str, sign: char) -> Vec<&str> {
    let (mut parts, mut begin) = (Vec::new(), 0);
    for (at, ..) in outside(text).filter(|(_, character, _)| *character == sign) {
        parts.push(text[begin..at].trim());
        begin = at + sign.len_utf8();
    }
    parts.push(text[begin..].trim());
    parts
}

/// Where a word stands in a text, outside quotes and brackets.
pub(crate) fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_' || character == '.';
    let is_word = |(at, _, before): &(usize, char, char)| {
        let end = at + word.len();
        let found = text.get(*at..end).is_some_and(|found| found.eq_ignore_ascii_case(word));
        !is_name(*before) && found && !text[end..].starts_with(is_name)
    };
    outside(text).find(is_word).map(|(at, ..)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_a_number_and_a_unit() {
        assert_eq!(duration("5 Seconds"), Ok(Duration::from_secs(5)));
        let late = Duration::from_millis(10);
        let expected = Time::Field { path: "a.b".to_owned(), unit: Unit::Hours, lateness: late };
        assert_eq!(time("a.b hours LATE 10 millisecond"), Ok(expected));
        for (text, expected) in [
            ("5", "is no time such as"),
            ("0 seconds", "of a microsecond or more"),
            ("5 secnds", "the nearest is seconds"),
            ("99999999999999 days", "of a microsecond or more"),
        ] {
            let error = duration(text).expect_err("wrong").0;
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn signs_in_quotes_and_brackets_cut_nothing() {
        let text = "wheres, 'where', (a where b) AS where1 WHERE x";
        assert_eq!(find_word(text, "where"), text.find("WHERE"));
        let expected = ["a IN (1, 2)", "'x,y'", "\"p,q\" AS b", ""];
        assert_eq!(parts("a IN (1, 2), 'x,y' , \"p,q\" AS b,", ','), expected);
    }
}
