//! Who uses `cspctl`: the folder of a certificate.

use std::path::{Path, PathBuf};

use csp_identity::{Credentials, KEY};

use super::error::CliError;

/// Returns `folder`, or the first identity in the usual places. `None` where there is none.
pub(super) fn folder(folder: Option<&Path>) -> Option<PathBuf> {
    folder.map(Path::to_owned).or_else(usual)
}

/// Opens the identity in `folder`, or the first one in the usual places. `None` where there is none.
pub(super) fn open(folder: Option<&Path>) -> Result<Option<Credentials>, CliError> {
    let Some(folder) = self::folder(folder) else { return Ok(None) };
    let opened = Credentials::open(&folder);
    opened.map(Some).map_err(|error| CliError::Usage(format!("--identity (or CSP_IDENTITY): {error}")))
}

/// The user's own, then the host's if this user may read it.
fn usual() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    let own = config.map(|config| config.join("csp/identity"));
    let readable = |folder: &PathBuf| std::fs::File::open(folder.join(KEY)).is_ok();
    own.into_iter().chain([PathBuf::from("/etc/csp/identity")]).find(readable)
}

/// The management node of this host.
pub(super) fn default_server(credentials: Option<&Credentials>) -> &'static str {
    match credentials {
        Some(_) => "https://127.0.0.1:9104",
        None => "http://127.0.0.1:9104",
    }
}
