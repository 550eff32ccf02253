//! `cspctl key`: makes, replaces and derives the keys of the SAN.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use csp_control::key_file;
use csp_transport::{ClusterKey, KeyFileError, KeySet};
use csp_types::{NodeId, Role};
use zeroize::Zeroizing;

use super::args::{DeriveArgs, KeyCommand};
use super::error::CliError;

/// Bytes of a cluster key.
const KEY_LEN: usize = 32;

/// Runs `cspctl key ...`.
pub fn run(command: &KeyCommand) -> Result<(), CliError> {
    match command {
        KeyCommand::Generate { file } => generate(file.as_deref()),
        KeyCommand::Add { file } => add(file),
        KeyCommand::Retire { file } => retire(file),
        KeyCommand::Derive(args) => derive(args),
    }
}

/// Makes a key and writes it to `file` (created, mode 0600, never overwritten) or to standard output.
fn generate(file: Option<&Path>) -> Result<(), CliError> {
    let key = fresh()?;
    let mut text = Zeroizing::new(key.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    text.push('\n');
    match file {
        None => super::put(&text),
        Some(path) => create(path, &text),
    }
}

/// Adds a cluster key of a new generation to a file.
fn add(file: &Path) -> Result<(), CliError> {
    let mut set = cluster_keys(file)?;
    let generation = set.add(ClusterKey::from_bytes(*fresh()?)).map_err(|error| wrong(file, &error))?;
    replace(file, &set.to_text())?;
    super::put(&format!(
        "generation {generation} is added to {}. Install it on all proxy nodes first, then the keys derived from it on \
         the other nodes, then run `cspctl key retire` and install again.\n",
        file.display()
    ))
}

/// Removes all generations but the newest from a file.
fn retire(file: &Path) -> Result<(), CliError> {
    let mut set = cluster_keys(file)?;
    let removed = set.retire();
    if removed > 0 {
        replace(file, &set.to_text())?;
    }
    super::put(&format!("{removed} old generations are removed from {}\n", file.display()))
}

/// Derives the key file of a node.
fn derive(args: &DeriveArgs) -> Result<(), CliError> {
    let set = cluster_keys(&args.cluster_key_file)?;
    let role = Role::from(args.role);
    if !args.network_nodes.is_empty() && role != Role::AppNode {
        let text = "--network-node is for the plug-in host of an app-node".to_owned();
        return Err(CliError::Usage(text));
    }
    let derived = set.derive(role, args.id, &args.network_nodes);
    let text = Zeroizing::new(derived.to_text());
    match &args.out {
        Some(path) => replace(path, &text),
        None => super::put(&text),
    }
}

fn cluster_keys(file: &Path) -> Result<KeySet, CliError> {
    let text = Zeroizing::new(key_file::read(file).map_err(|error| CliError::Usage(error.to_string()))?);
    let set = KeySet::parse(&text).and_then(|set| set.check(csp_transport::Holder::Proxy).map(|()| set));
    set.map_err(|error| wrong(file, &error))
}

fn wrong(file: &Path, error: &KeyFileError) -> CliError {
    CliError::Usage(key_file::error(file, error).to_string())
}

fn create(path: &Path, text: &str) -> Result<(), CliError> {
    let cannot = |source| CliError::CannotCreate { path: path.to_owned(), source };
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(cannot)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(cannot)
}

/// Replaces a file at once, so that a daemon that follows it never reads half of it. A file that was there keeps its
/// owner.
fn replace(path: &Path, text: &str) -> Result<(), CliError> {
    let cannot = |source| CliError::CannotCreate { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let result = create(&new, text).and_then(|()| {
        if let Ok(old) = fs::metadata(path) {
            let file = File::open(&new).map_err(cannot)?;
            fchown(&file, Some(old.uid()), Some(old.gid())).map_err(cannot)?;
        }
        fs::rename(&new, path).map_err(cannot)
    });
    if result.is_err() {
        // Nothing of it remains; the first error is the one to report.
        let _ = fs::remove_file(&new);
    }
    result
}

fn fresh() -> Result<Zeroizing<[u8; KEY_LEN]>, CliError> {
    const SOURCE: &str = "/dev/urandom";
    let mut key = Zeroizing::new([0u8; KEY_LEN]);
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(key.as_mut()))
        .map_err(|source| CliError::NoInput { path: SOURCE.into(), source })?;
    Ok(key)
}

/// The role of a node that holds derived keys.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum KeyRole {
    /// A network node.
    NetworkNode,
    /// An application node, or its plug-in host.
    AppNode,
}

impl From<KeyRole> for Role {
    fn from(role: KeyRole) -> Role {
        match role {
            KeyRole::NetworkNode => Role::NetworkNode,
            KeyRole::AppNode => Role::AppNode,
        }
    }
}

/// Parses a node id of the command line.
pub fn node_id(text: &str) -> Result<NodeId, String> {
    text.parse::<NodeId>().map_err(|error| error.to_string())
}
