//! Reads YAML into a struct, and reports everything that is wrong with it.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::DeserializeOwned;

use crate::collect::{Failure, collect, path_of};
use crate::positions::Positions;
use crate::read::Kind;
use crate::{words, yaml};

/// Largest configuration or policy file, in bytes: below what etcd takes in one request.
pub const FILE_LEN_MAX: usize = 1024 * 1024;

/// Most problems of one file that are reported at once.
pub const PROBLEMS_MAX: usize = 20;

/// One thing that is wrong in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Line and column, both from 1, where they are known.
    pub position: Option<(u64, u64)>,
    /// The field's path, such as `services[0].port`; empty for the document as a whole.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

/// A file that cannot be used (exit code 78). Displays one line per problem: `file:line:column: field:
/// message`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file's name as the operator gave it.
    pub file: String,
    /// What is wrong; at least one.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// An error about field `field` of `file`, position unknown.
    pub fn new(file: &str, field: &str, message: impl Into<String>) -> Self {
        let problem = Problem { position: None, field: field.to_owned(), message: message.into() };
        ConfigError { file: file.to_owned(), problems: vec![problem] }
    }

    /// `Ok` when nothing was found; otherwise the findings without positions, for values that no file holds.
    pub fn from_problems(file: &str, problems: &Problems) -> Result<(), ConfigError> {
        if problems.is_empty() {
            return Ok(());
        }
        let problem = |(field, message): (&str, &str)| Problem {
            position: None,
            field: field.to_owned(),
            message: message.to_owned(),
        };
        Err(ConfigError { file: file.to_owned(), problems: problems.iter().map(problem).collect() })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&self.file)?;
            if let Some((line, column)) = problem.position {
                write!(f, ":{line}:{column}")?;
            }
            if !problem.field.is_empty() {
                write!(f, ": {}", problem.field)?;
            }
            write!(f, ": {}", problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Collects what a check finds wrong in a value.
///
/// Where the file has mistakes of form the value holds neutral values in their places, so that the rest can
/// be checked nevertheless. Findings about such places are ignored.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    found: Vec<Found>,
    /// Paths of neutral values.
    unreadable: BTreeSet<String>,
}

/// A finding of a check.
#[derive(Clone, Debug)]
struct Found {
    field: String,
    message: String,
    /// Line and column within the text that the value is.
    inside: Option<(u64, u64)>,
}

impl Problems {
    /// Notes that the value at `field` (a path such as `lan[0].interface`) is wrong; `message` says what is
    /// allowed.
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add_unless(&[], field, message);
    }

    /// [`add`](Self::add), unless one of the fields `depends_on` cannot be read: the finding may follow from
    /// its neutral value.
    pub fn add_unless(&mut self, depends_on: &[&str], field: impl Into<String>, message: impl Into<String>) {
        let field = field.into();
        let readable = depends_on.iter().chain([&field.as_str()]).all(|field| self.is_readable(field));
        if readable && self.found.len() < PROBLEMS_MAX {
            self.found.push(Found { field, message: message.into(), inside: None });
        }
    }

    /// Notes that the text at `field` is wrong at a line and column of its own, both from 1.
    pub fn add_inside(&mut self, field: &str, place: (u64, u64), message: impl Into<String>) {
        if self.is_readable(field) && self.found.len() < PROBLEMS_MAX {
            let message = message.into();
            self.found.push(Found { field: field.to_owned(), message, inside: Some(place) });
        }
    }

    /// Whether anything was found at `field` or in it.
    pub fn concerns(&self, field: &str) -> bool {
        self.found.iter().any(|found| found.field.starts_with(field))
    }

    /// Whether neither `field` nor anything in it or around it is neutral.
    fn is_readable(&self, field: &str) -> bool {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !self.unreadable.iter().any(|path| within(path, field) || within(field, path))
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The first that was found: its message, and the line and column within the text that it concerns.
    pub fn first(&self) -> Option<(&str, Option<(u64, u64)>)> {
        self.found.first().map(|found| (found.message.as_str(), found.inside))
    }

    /// What was found: field and message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.found.iter().map(|found| (found.field.as_str(), found.message.as_str()))
    }
}

/// Reads YAML `text`; `file` is the name for errors.
pub fn parse<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, ConfigError> {
    parse_checked(text, file, |_, _| {})
}

/// [`parse`], and then `check`, whose findings become errors with their position in the text.
pub fn parse_checked<T: DeserializeOwned>(
    text: &str,
    file: &str,
    check: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    if text.len() > FILE_LEN_MAX {
        let message = format!("has {} bytes; at most {FILE_LEN_MAX} are allowed", text.len());
        return Err(ConfigError::new(file, "", message));
    }
    let yaml::Document { root, duplicates } = yaml::parse(text).map_err(|error| {
        let yaml::SyntaxError { steps, at, message } = error;
        let problem = Problem { position: Some(words::position(at)), field: path_of(&steps), message };
        ConfigError { file: file.to_owned(), problems: vec![problem] }
    })?;
    let mut reading = collect::<T>(&root, text.len(), PROBLEMS_MAX);
    let mut found = Problems { found: Vec::new(), unreadable: reading.unreadable };
    if let Some(value) = &reading.value {
        check(value, &mut found);
    }
    reading.failures.extend(duplicates.into_iter().map(|yaml::SyntaxError { steps, at, message }| Failure {
        path: path_of(&steps),
        kind: Kind::Other(message),
        at: Some(at),
    }));
    match reading.value {
        Some(value) if reading.failures.is_empty() && found.is_empty() => return Ok(value),
        _ => {}
    }
    let positions = Positions::of(&root);
    let mut problems: Vec<Problem> =
        reading.failures.iter().map(|failure| words::problem(failure, text, &positions)).collect();
    problems.extend(found.found.into_iter().map(|Found { field, message, inside }| {
        let position = positions.find(&field).map(words::position);
        let position = position.map(|at| inside.map_or(at, |place| inside_of(text, at, place)));
        Problem { position, field, message }
    }));
    // Stable: mistakes whose place is not known stay in front, in the order of their discovery.
    problems.sort_by_key(|problem| problem.position);
    problems.truncate(PROBLEMS_MAX);
    Err(ConfigError { file: file.to_owned(), problems })
}

/// Returns where a place within a text stands in the file, if the text begins at `at`; `at` where that cannot
/// be said.
fn inside_of(file: &str, at: (u64, u64), (line, column): (u64, u64)) -> (u64, u64) {
    let mut lines = file.lines().skip((at.0 as usize).saturating_sub(2));
    let above = if at.0 > 1 { lines.next().unwrap_or_default() } else { "" };
    let own = lines.next().unwrap_or_default();
    let before: String = own.chars().take(at.1 as usize - 1).collect();
    let opens_with = own.chars().nth(at.1 as usize - 1);
    // A literal block begins on a line of its own, below its sign, and has its lines as they are.
    let sign = above.rsplit(' ').next().unwrap_or_default();
    if sign.starts_with('|') && before.trim().is_empty() {
        return (at.0 + line - 1, at.1 + column - 1);
    }
    match opens_with {
        // Folded blocks and other texts of several lines are put together.
        _ if line > 1 || sign.starts_with('>') => at,
        Some('"' | '\'') => (at.0, at.1 + column),
        _ => (at.0, at.1 + column - 1),
    }
}
