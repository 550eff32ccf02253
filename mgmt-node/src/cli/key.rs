//! `cspctl key generate`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::CliError;

/// Bytes of a cluster key.
const KEY_LEN: usize = 32;

/// Makes a key and writes it to `file` (created, mode 0600, never overwritten) or to standard output.
pub fn generate(file: Option<&Path>) -> Result<(), CliError> {
    let text = fresh()?;
    let Some(path) = file else { return super::put(&text) };
    let cannot = |source| CliError::CannotCreate { path: path.to_owned(), source };
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(cannot)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(cannot)
}

fn fresh() -> Result<String, CliError> {
    const SOURCE: &str = "/dev/urandom";
    let mut key = [0u8; KEY_LEN];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut key))
        .map_err(|source| CliError::NoInput { path: SOURCE.into(), source })?;
    let mut text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    Ok(text)
}
