//! Configuration files: strict YAML, the sections that all daemons share, and errors with position and
//! allowed values.

mod sections;

use std::path::Path;

use serde::de::DeserializeOwned;

pub use csp_config::{
    ConfigError, FILE_LEN_MAX, PROBLEMS_MAX, Problem, Problems, parse, parse_checked, serde_node_id,
    serde_prefixes,
};
pub use sections::{AdminSection, EtcdSection, LogSection, NodeSection, SanProvider, SanSection, spin};

/// Reads the YAML file `path` into a `T`. `T` and its parts should refuse unknown fields
/// (`#[serde(deny_unknown_fields)]`).
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    load_checked(path, |_, _| {})
}

/// Like [`load`], then calls `check`, whose findings become errors with their position in the file.
pub fn load_checked<T: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(&file, "", format!("cannot be read: {error}")))?;
    parse_checked(&text, &file, check)
}

#[cfg(test)]
mod tests;
