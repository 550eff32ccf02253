//! `cspctl key`: makes, replaces and derives the keys of the SAN.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use csp_control::key_file;
use csp_transport::{ClusterKey, KeyFileError, KeySet};
use csp_types::{NodeId, Role};
use zeroize::Zeroizing;

use super::error::CliError;

/// Bytes of a cluster key.
const KEY_LEN: usize = 32;

/// `cspctl key ...`
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a cluster key: 32 random bytes as 64 hex digits
    ///
    /// Proxy nodes hold it; `cspctl key derive` makes the keys of the other nodes. An existing file is never
    /// overwritten.
    #[command(
        after_help = "Examples:\n  cspctl key generate /etc/csp/cluster.key\n  cspctl key generate | ssh host \
                            'umask 077; cat > /etc/csp/cluster.key'"
    )]
    Generate {
        /// File to make, mode 0600; without it the key goes to standard output
        file: Option<PathBuf>,
    },
    /// Add a new generation to a file of cluster keys, to replace the one that is there
    ///
    /// Proxy nodes take tokens of all generations in their file; signers use the newest in theirs. Install
    /// the file on all proxy nodes, then the derived keys on the other nodes, then retire the old generation.
    #[command(after_help = "Examples:\n  cspctl key add /etc/csp/cluster.key")]
    Add {
        /// File of cluster keys
        file: PathBuf,
    },
    /// Remove all generations but the newest from a file of cluster keys
    #[command(after_help = "Examples:\n  cspctl key retire /etc/csp/cluster.key")]
    Retire {
        /// File of cluster keys
        file: PathBuf,
    },
    /// Derive the key file of a network node or application node
    ///
    /// A node holds its own keys only: from these no other node's key can be computed. A plug-in host needs
    /// the ids of the network nodes that connect to it.
    #[command(
        after_help = "Examples:\n  cspctl key derive cluster.key network-node nn-1 --out network-node.key\n  cspctl key derive \
                            cluster.key app-node an-1 --network-node nn-1 --network-node nn-2 | ssh an-1 'umask 077; cat > \
                            /etc/csp/app-node.key'"
    )]
    Derive(DeriveArgs),
}

/// Arguments of `cspctl key derive`.
#[derive(Debug, Args)]
pub struct DeriveArgs {
    /// File of cluster keys
    pub cluster_key_file: PathBuf,
    /// The node's role
    pub role: KeyRole,
    /// The node's id
    #[arg(value_parser = node_id)]
    pub id: NodeId,
    /// A network node that connects to the plug-in host of this app-node; may be repeated
    #[arg(long = "network-node", value_name = "ID", value_parser = node_id)]
    pub network_nodes: Vec<NodeId>,
    /// File to make or replace, mode 0600; without it the keys go to standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

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

/// Replaces a file at once, so that a daemon that follows it never reads half of it. A file that was there
/// keeps its owner.
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
