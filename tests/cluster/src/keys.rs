//! The keys of the SAN: proxies hold the cluster's, each other node its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use csp_identity::IdentityRole;

/// Returns the path of a node's key file.
pub fn path(scratch: &Path, role: IdentityRole, id: &str) -> PathBuf {
    match role {
        IdentityRole::NetworkNode | IdentityRole::AppNode => scratch.join(format!("{id}.key")),
        _ => scratch.join("cluster.key"),
    }
}

/// Generates the cluster's key with the `cspctl` in the folder `binaries`.
pub fn generate(binaries: &Path, scratch: &Path) -> Result<()> {
    let file = scratch.join("cluster.key").to_string_lossy().into_owned();
    cspctl(binaries, &["generate", &file])
}

/// Derives the key files of `nodes` that hold their own keys only. Application nodes may be plug-in hosts of
/// the network nodes among `nodes`.
pub fn derive<'a>(
    binaries: &Path,
    scratch: &Path,
    nodes: impl IntoIterator<Item = (IdentityRole, &'a str)> + Clone,
) -> Result<()> {
    let cluster = scratch.join("cluster.key").to_string_lossy().into_owned();
    for (role, id) in nodes.clone() {
        let out = path(scratch, role, id).to_string_lossy().into_owned();
        let mut line = vec!["derive", &cluster];
        match role {
            IdentityRole::NetworkNode => line.extend(["network-node", id]),
            IdentityRole::AppNode => {
                line.extend(["app-node", id]);
                let network =
                    nodes.clone().into_iter().filter(|(role, _)| *role == IdentityRole::NetworkNode);
                line.extend(network.flat_map(|(_, id)| ["--network-node", id]));
            }
            _ => continue,
        }
        line.extend(["--out", &out]);
        cspctl(binaries, &line)?;
    }
    Ok(())
}

fn cspctl(binaries: &Path, line: &[&str]) -> Result<()> {
    let mut command = Command::new(binaries.join("cspctl"));
    let output = command.arg("key").args(line).output().context("cspctl key")?;
    if !output.status.success() {
        bail!("cspctl key {}: {}", line.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
