//! Reading a YAML file into a struct, and telling what is wrong with it.

use std::fmt;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::positions::Positions;

/// Largest configuration or policy file, in bytes: below what etcd takes in one request.
pub const FILE_LEN_MAX: usize = 1024 * 1024;

/// How many problems of one file are told at once.
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

/// Collects what a check finds wrong in a value that was read well.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    found: Vec<(String, String)>,
}

impl Problems {
    /// Notes that the value at `field` (a path such as `lan[0].interface`) is wrong; `message` says what is allowed.
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push((field.into(), message.into()));
        }
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
    let value: T = deserialize(text)
        .map_err(|problem| ConfigError { file: file.to_owned(), problems: vec![problem] })?;
    let mut problems = Problems::default();
    check(&value, &mut problems);
    if problems.is_empty() {
        return Ok(value);
    }
    let positions = Positions::of(text);
    let problems = problems.found.into_iter();
    let problems = problems
        .map(|(field, message)| Problem { position: positions.find(&field), field, message })
        .collect();
    Err(ConfigError { file: file.to_owned(), problems })
}

fn deserialize<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut field = String::new();
    let result = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            field = error.path().to_string();
            error.into_inner()
        })
    });
    result.map_err(|error| {
        let plain = error.without_snippet();
        let position = plain.location().filter(|at| at.line() > 0).map(|at| (at.line(), at.column()));
        // The path of a value that could not be told apart ends in `?`.
        let field = field.trim_end_matches(['?', '.']).to_owned();
        Problem { position, field, message: plain_message(plain) }
    })
}

/// The error's text without the position, which stands in front of the line already, and in words for people who write
/// files, not programs.
fn plain_message(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.split(" at line ").next().unwrap_or(text).trim();
    let text = text.split(", set DuplicateKeyPolicy").next().unwrap_or(text);
    match text {
        "expected mapping start" => "is no mapping; allowed are lines of `field: value`".to_owned(),
        "expected sequence start" => {
            "is no list; allowed are lines of `- entry`, or [entry, entry]".to_owned()
        }
        "invalid boolean" => "is neither true nor false".to_owned(),
        _ => text.strip_prefix("invalid ").and_then(whole_number).unwrap_or_else(|| text.to_owned()),
    }
}

/// What is allowed for a Rust integer type, where `name` is one's.
fn whole_number(name: &str) -> Option<String> {
    let (lowest, highest): (i128, i128) = match name {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i64" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    };
    Some(format!("is no whole number in range; allowed is {lowest} to {highest}"))
}
