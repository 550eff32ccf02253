//! `cspctl channel-key`: key pairs of CURVE, in files as ZeroMQ's tools write them.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use csp_types::CurvePublicKey;
use csp_types::curve::to_z85;
use curve25519_dalek::MontgomeryPoint;
use serde::Serialize;

use super::args::Output;
use super::error::CliError;
use super::{put, show_as};

/// `cspctl channel-key -o json`.
#[derive(Serialize)]
struct Made {
    public_key: String,
    /// Both keys; mode 0600.
    secret_file: PathBuf,
    /// The public key.
    public_file: PathBuf,
}

/// Makes a pair. With `base` it goes to two files, created and never overwritten, and the public key to
/// standard output; else both keys go there.
pub fn make(base: Option<&Path>, output: Output) -> Result<(), CliError> {
    let secret: [u8; 32] = rand::random();
    let public = CurvePublicKey(MontgomeryPoint::mul_base_clamped(secret).to_bytes());
    let secret = String::from_utf8_lossy(&to_z85(&secret)).into_owned();
    let both = file(&public, Some(&secret));
    let Some(base) = base else { return put(&both) };
    let (secret_file, public_file) = (with_ending(base, ".key_secret"), with_ending(base, ".key"));
    create(&secret_file, 0o600, &both)?;
    create(&public_file, 0o644, &file(&public, None)).inspect_err(|_| {
        let _ = std::fs::remove_file(&secret_file); // half a pair is of no use
    })?;
    let made = Made { public_key: public.to_string(), secret_file, public_file };
    show_as(output, &made, |made| format!("{}\n", made.public_key))
}

/// The text of a file, in ZPL (4/ZPL) as CZMQ and pyzmq write certificates.
fn file(public: &CurvePublicKey, secret: Option<&str>) -> String {
    let secret = secret.map(|secret| format!("    secret-key = \"{secret}\"\n")).unwrap_or_default();
    format!("#   Made by cspctl channel-key\nmetadata\ncurve\n    public-key = \"{public}\"\n{secret}")
}

fn with_ending(base: &Path, ending: &str) -> PathBuf {
    let mut path = OsString::from(base);
    path.push(ending);
    path.into()
}

fn create(path: &Path, mode: u32, text: &str) -> Result<(), CliError> {
    let cannot = |source| CliError::CannotCreate { path: path.to_owned(), source };
    let mut out = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(cannot)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(cannot)
}
