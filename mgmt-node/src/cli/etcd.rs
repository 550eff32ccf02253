//! `cspctl etcd`: etcd's users, directly at etcd, for it is what the management nodes themselves depend on.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use csp_control::{EtcdAccess, EtcdClient, EtcdSection, users};
use csp_identity::{Credentials, IdentityRole};
use csp_types::{NodeId, Role};
use serde::Serialize;

use super::error::CliError;
use super::{Output, put};

/// `cspctl etcd ...`
#[derive(Debug, Subcommand)]
pub enum EtcdCommand {
    /// Give etcd the users of these nodes, and have it refuse everybody else
    ///
    /// Run it after nodes were issued certificates, and again whenever a node comes or goes: what is there
    /// already stays as it is, and users of nodes that are not named are removed. Nodes read everything of
    /// CSP and write their own registration and acknowledgement; management nodes write everything of CSP. It
    /// asks etcd as its root: --identity is a folder that `cspctl pki issue etcd-root root` has made.
    #[command(after_help = "Examples:\n  \
        cspctl etcd setup --identity csp-pki/issued/etcd-root/root --endpoint https://10.77.0.4:2379 \\\n    \
        --node mgmt-node/mn-1 --node network-node/nn-1 --node proxy-node/pn-1 --node app-node/an-1\n\n\
        Exit codes: 0 done, changed or not; 64 the command line is wrong; 69 etcd does not answer or refuses")]
    Setup(SetupArgs),
}

/// Arguments of `cspctl etcd setup`.
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// URL of a member of etcd; may be given several times
    #[arg(long, value_name = "URL", default_value = "https://127.0.0.1:2379")]
    pub endpoint: Vec<String>,
    /// A node of the cluster, as ROLE/ID; all of them are to be named
    #[arg(long, value_name = "ROLE/ID", required = true, value_parser = node)]
    pub node: Vec<(Role, NodeId)>,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done {
    changed: bool,
    changes: Vec<String>,
}

/// Runs the command.
pub(super) async fn run(
    command: EtcdCommand,
    credentials: Option<Credentials>,
    output: Output,
) -> Result<(), CliError> {
    let EtcdCommand::Setup(SetupArgs { endpoint, node }) = command;
    let nodes: BTreeSet<(Role, NodeId)> = node.into_iter().collect();
    if !nodes.iter().any(|(role, _)| *role == Role::MgmtNode) {
        return Err(CliError::Usage("no --node is a mgmt-node: nobody could write a policy".to_owned()));
    }
    let ids: BTreeSet<NodeId> = nodes.iter().map(|(_, id)| *id).collect();
    if ids.len() < nodes.len() {
        return Err(CliError::Usage("two nodes have the same id; ids are unique in the cluster".to_owned()));
    }
    let access = EtcdAccess { section: EtcdSection { endpoints: endpoint }, credentials };
    let refused = |error: csp_control::ControlError| CliError::Unavailable(error.to_string());
    let client = EtcdClient::connect(&access).await.map_err(refused)?;
    let changes = users::set_up(&client, &nodes).await.map_err(refused)?;
    if let Some(release) = users::unchecked_release(&client).await.map_err(refused)? {
        let (major, minor, patch) = users::CHECKED_SINCE;
        eprintln!(
            "cspctl: etcd {release} lets users get around their permissions; {major}.{minor}.{patch} and later do not. Until then whoever \
             reaches etcd with a certificate of the cluster may write everything: let only nodes reach it"
        );
    }
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    match output {
        Output::Table if changes.is_empty() => put("etcd's users are as they are to be\n"),
        Output::Table => put(&changes.iter().map(|change| format!("{change}\n")).collect::<String>()),
        Output::Json => {
            let done = Done { changed: !changes.is_empty(), changes };
            let text = serde_json::to_string_pretty(&done);
            put(&(text.map_err(|error| CliError::Protocol(error.to_string()))? + "\n"))
        }
    }
}

/// Reads `ROLE/ID`.
fn node(text: &str) -> Result<(Role, NodeId), String> {
    let (role, id) = text.split_once('/').ok_or("a node is written as ROLE/ID, such as proxy-node/pn-1")?;
    let role: IdentityRole = role.parse().map_err(|error| format!("{error}"))?;
    let role = role.node().ok_or_else(|| format!("{role} is no role of a node"))?;
    Ok((role, id.parse().map_err(|error| format!("{error}"))?))
}
