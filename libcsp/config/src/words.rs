//! Mistakes of form in words for people who write files, not programs.

use crate::collect::{Failure, alike, join};
use crate::positions::Positions;
use crate::problems::Problem;
use crate::read::Kind;
use crate::tree::Place;

/// Longest quotation of what a file has, in characters.
const FOUND_LEN_MAX: usize = 60;

/// Describes `failure` in `text`: its place, what was found and what is allowed.
pub(crate) fn problem(failure: &Failure, text: &str, positions: &Positions) -> Problem {
    let Failure { path, kind, at } = failure;
    let (place, field) = match kind {
        Kind::UnknownField(name, _) => {
            let field = join(path, name);
            (positions.find_key(&field), field)
        }
        _ => (at.or_else(|| positions.find(path)), path.clone()),
    };
    let found = place.map(|at| found(text, at)).filter(|found| !found.is_empty());
    Problem { position: place.map(position), field, message: message(kind, found) }
}

/// Line and column as a problem has them.
pub(crate) fn position(at: Place) -> (u64, u64) {
    (at.line.into(), at.column.into())
}

/// Says what is wrong; `found`: what stands there in the text.
pub(crate) fn message(kind: &Kind, found: Option<&str>) -> String {
    let what = found.map_or_else(|| "this".to_owned(), |found| format!("`{found}`"));
    match kind {
        Kind::UnknownField(name, allowed) => unknown_field(name, allowed),
        Kind::MissingField(name) => format!("missing field `{name}`, which has no default"),
        Kind::UnknownVariant(word, allowed) => {
            format!("`{word}` is not known; allowed are {}", allowed.join(", "))
        }
        Kind::NoMapping => format!("{what} is no mapping; allowed are lines of `field: value`"),
        Kind::NoList => {
            format!("{what} is no list; allowed are lines of `- entry`, or [entry, entry]")
        }
        Kind::NoScalar => format!("{what} is a list or mapping; allowed is one value"),
        Kind::NoText => "is empty; allowed is a text, an empty one in quotes".to_owned(),
        Kind::NoBoolean => format!("{what} is neither true nor false; allowed are true, false"),
        Kind::NoInteger(lowest, highest) => {
            format!("{what} is no whole number in range; allowed is {lowest} to {highest}")
        }
        Kind::Other(message) => message.clone(),
    }
}

fn unknown_field(name: &str, allowed: &[&str]) -> String {
    let meant = match allowed.iter().find(|right| alike(name, right)) {
        Some(right) => format!(" (is `{right}` meant?)"),
        None => String::new(),
    };
    format!("unknown field `{name}`{meant}; allowed are {}", allowed.join(", "))
}

/// What stands in `text` at a position: a quoted text, or everything up to a comma, a bracket, a comment or
/// the end of the line.
fn found(text: &str, Place { line, column }: Place) -> &str {
    let line = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    let start = line.char_indices().nth(column.saturating_sub(1) as usize).map_or(line.len(), |(at, _)| at);
    let rest = &line[start..];
    let end = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => rest[1..].find(quote).map(|end| end + 2),
        Some(open @ ('[' | '{')) => rest.rfind(if open == '[' { ']' } else { '}' }).map(|end| end + 1),
        _ => [", ", "]", "}", " #"].iter().filter_map(|end| rest.find(end)).min(),
    };
    let found = rest[..end.unwrap_or(rest.len())].trim();
    let cut = found.char_indices().nth(FOUND_LEN_MAX).map_or(found.len(), |(at, _)| at);
    &found[..cut]
}
