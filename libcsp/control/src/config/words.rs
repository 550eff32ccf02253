//! Mistakes of form in words for people who write files, not programs.

use super::collect::{Failure, Kind, alike, join};
use super::load::Problem;
use crate::positions::Positions;

/// Longest quotation of what a file has, in characters.
const FOUND_LEN_MAX: usize = 60;

/// Describes `failure` in `text`: its place, what was found and what is allowed.
pub(super) fn problem(failure: &Failure, text: &str, positions: &Positions) -> Problem {
    let Failure { path, kind, error } = failure;
    let error = error.without_snippet();
    let at_error = error.location().filter(|at| at.line() > 0).map(|at| (at.line(), at.column()));
    let (position, field, message) = match kind {
        Kind::UnknownField(name, allowed) => {
            let field = join(path, name);
            (positions.find_key(&field).or(at_error), field, unknown_field(name, allowed))
        }
        Kind::MissingField(name) => {
            let message = format!("missing field `{name}`, which has no default");
            (positions.find(path).or(at_error), path.clone(), message)
        }
        Kind::UnknownVariant(word, allowed) => {
            let message = format!("`{word}` is not known; allowed are {}", allowed.join(", "));
            (at_error.or_else(|| positions.find(path)), path.clone(), message)
        }
        Kind::Other => {
            let position = at_error.or_else(|| positions.find(path));
            let found = position.map(|at| found(text, at)).filter(|found| !found.is_empty());
            (position, path.clone(), plain(error, found))
        }
    };
    Problem { position, field, message }
}

fn unknown_field(name: &str, allowed: &[&str]) -> String {
    let meant = match allowed.iter().find(|right| alike(name, right)) {
        Some(right) => format!(" (is `{right}` meant?)"),
        None => String::new(),
    };
    format!("unknown field `{name}`{meant}; allowed are {}", allowed.join(", "))
}

/// The error's text without the position, which stands in front of the line already.
fn plain(error: &serde_saphyr::Error, found: Option<&str>) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.split(" at line ").next().unwrap_or(text).trim();
    let text = text.split(", set DuplicateKeyPolicy").next().unwrap_or(text);
    let what = found.map_or_else(|| "this".to_owned(), |found| format!("`{found}`"));
    match text {
        "expected mapping start" => format!("{what} is no mapping; allowed are lines of `field: value`"),
        "expected sequence start" => {
            format!("{what} is no list; allowed are lines of `- entry`, or [entry, entry]")
        }
        "invalid boolean" => format!("{what} is neither true nor false; allowed are true, false"),
        _ => match text.strip_prefix("invalid ").and_then(range) {
            Some((lowest, highest)) => {
                format!("{what} is no whole number in range; allowed is {lowest} to {highest}")
            }
            None => text.to_owned(),
        },
    }
}

/// What is allowed for a Rust integer type, where `name` is one's.
fn range(name: &str) -> Option<(i128, i128)> {
    Some(match name {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i64" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

/// What stands in `text` at a position: a quoted text, or everything up to a comma, a bracket, a comment or the end of the line.
fn found(text: &str, (line, column): (u64, u64)) -> &str {
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
