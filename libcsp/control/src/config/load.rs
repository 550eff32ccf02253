//! Reads a YAML file into a struct, and reports everything that is wrong with it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::collect;
use super::words;
use crate::positions::Positions;

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

/// A file that cannot be used (exit code 78). Displays one line per problem: `file:line:column: field: message`.
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
/// Where the file has mistakes of form the value holds neutral values in their places, so that the rest can be checked
/// nevertheless. Findings about such places are ignored.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    found: Vec<(String, String)>,
    /// Paths of neutral values.
    unreadable: BTreeSet<String>,
}

impl Problems {
    /// Notes that the value at `field` (a path such as `lan[0].interface`) is wrong; `message` says what is allowed.
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add_unless(&[], field, message);
    }

    /// [`add`](Self::add), unless one of the fields `depends_on` cannot be read: the finding may follow from its neutral value.
    pub fn add_unless(&mut self, depends_on: &[&str], field: impl Into<String>, message: impl Into<String>) {
        let field = field.into();
        let readable = depends_on.iter().chain([&field.as_str()]).all(|field| self.is_readable(field));
        if readable && self.found.len() < PROBLEMS_MAX {
            self.found.push((field, message.into()));
        }
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

    /// What was found: field and message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.found.iter().map(|(field, message)| (field.as_str(), message.as_str()))
    }
}

/// Reads the YAML file `path` into a `T`. `T` and its parts should refuse unknown fields
/// (`#[serde(deny_unknown_fields)]`).
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    load_checked(path, |_, _| {})
}

/// [`load`], and then `check`, whose findings become errors with their position in the file.
pub fn load_checked<T: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(&file, "", format!("cannot be read: {error}")))?;
    parse_checked(&text, &file, check)
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
    let reading = collect::read::<T>(text, PROBLEMS_MAX);
    let mut found = Problems { found: Vec::new(), unreadable: reading.unreadable };
    if let Some(value) = &reading.value {
        check(value, &mut found);
    }
    match reading.value {
        Some(value) if reading.failures.is_empty() && found.is_empty() => return Ok(value),
        _ => {}
    }
    let positions = Positions::of(text);
    let mut problems: Vec<Problem> =
        reading.failures.iter().map(|failure| words::problem(failure, text, &positions)).collect();
    problems.extend(found.found.into_iter().map(|(field, message)| Problem {
        position: positions.find(&field),
        field,
        message,
    }));
    // Stable: mistakes whose place is not known stay in front, in the order of their discovery.
    problems.sort_by_key(|problem| problem.position);
    problems.truncate(PROBLEMS_MAX);
    Err(ConfigError { file: file.to_owned(), problems })
}
