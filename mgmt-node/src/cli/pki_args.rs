//! The command line of `cspctl pki`: structure and help texts.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use csp_identity::IdentityRole;
use csp_types::NodeId;

const ISSUE_HELP: &str = "\
Examples:
  cspctl pki issue proxy-node pn-1 --address 10.77.0.3 --name pn-1.example
  cspctl pki issue etcd mn-1 --address 10.77.0.4 --name localhost --address 127.0.0.1
  cspctl pki issue etcd-root root
  cspctl pki issue operator alice --lifetime 30d
  cspctl pki issue viewer prometheus -o json | jq -r .folder

Roles:
  network-node, proxy-node, app-node, mgmt-node   daemons; ID is node.id of their configuration
  etcd, etcd-root                                 members of etcd; its root user, with the id `root`
  viewer, operator, admin                         people and programs; each may do what those before it may";

const ROTATE_HELP: &str = "\
Examples:
  cspctl pki rotate start      then copy ca.pem and revoked.pem to all hosts
  cspctl pki rotate switch     then `cspctl pki issue` for every owner, and copy their folders
  cspctl pki rotate finish     then copy ca.pem and revoked.pem to all hosts";

/// Arguments of `cspctl pki`.
#[derive(Debug, Args)]
pub struct PkiArgs {
    /// The operator's CA folder
    #[arg(long, global = true, env = "CSP_PKI", default_value = "csp-pki", value_name = "DIR")]
    pub dir: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: PkiCommand,
}

/// `cspctl pki ...`
#[derive(Debug, Subcommand)]
pub enum PkiCommand {
    /// Make the CA folder of a cluster
    ///
    /// A folder of the same cluster that exists already is left alone.
    #[command(after_help = "Examples:\n  cspctl pki init --cluster east\n  \
                            cspctl pki --dir /root/east-pki init --cluster east --lifetime 1825d")]
    Init {
        /// Name of the cluster, in every certificate: a-z 0-9 - . _, at most 63
        #[arg(long, value_name = "NAME", value_parser = id)]
        cluster: NodeId,
        /// How long the authority is valid, for example 3650d
        #[arg(long, default_value = "3650d", value_name = "TIME", value_parser = span)]
        lifetime: Duration,
    },
    /// Make a key and a certificate, if the owner has none that will do
    ///
    /// The identity folder issued/ROLE/ID then has certificate.pem, key.pem, ca.pem and revoked.pem: copy it
    /// to the owner's host as /etc/csp/identity. The certificate is left alone if it is not revoked, is
    /// signed by the authority that issues, has exactly these addresses and names, and is valid for longer
    /// than --renew-before.
    #[command(after_help = ISSUE_HELP)]
    Issue(IssueArgs),
    /// List the authorities and every owner's newest certificate
    ///
    /// States: valid; expired; revoked; untrusted (its authority was replaced).
    #[command(after_help = "Examples:\n  cspctl pki list\n  \
                            cspctl pki list -o json | jq '.certificates[] | select(.left_s < 864000) | .id'")]
    List,
    /// Show all certificates of an owner, and what is in the identity folder
    #[command(after_help = "Examples:\n  cspctl pki show proxy-node pn-1")]
    Show(Owner),
    /// Revoke all certificates of an owner
    ///
    /// New revocation lists are written to revoked.pem, also in every identity folder: copy them to all
    /// hosts. Nodes close the owner's connections when they have read them. `cspctl pki issue` gives the
    /// owner a new certificate.
    #[command(
        after_help = "Examples:\n  cspctl pki revoke app-node an-2\n  cspctl pki revoke operator alice -o json"
    )]
    Revoke(Owner),
    /// Replace the authority, in three steps between which all hosts get new files
    ///
    /// A step that is done already changes nothing, so that an interrupted rotation can be run again from its
    /// first step.
    #[command(subcommand, after_help = ROTATE_HELP)]
    Rotate(RotateCommand),
}

/// Arguments of `cspctl pki issue`.
#[derive(Debug, Args)]
pub struct IssueArgs {
    /// Owner
    #[command(flatten)]
    pub owner: Owner,
    /// Address under which others connect to the owner; may be repeated
    #[arg(long = "address", value_name = "IP")]
    pub addresses: Vec<IpAddr>,
    /// DNS name under which others connect to the owner; may be repeated
    #[arg(long = "name", value_name = "DNS")]
    pub names: Vec<String>,
    /// How long a new certificate is valid: a number with s, m, h or d
    #[arg(long, default_value = "90d", value_name = "TIME", value_parser = span)]
    pub lifetime: Duration,
    /// Replace a certificate that has this much left or less [default: a third of the lifetime, at most 30d]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub renew_before: Option<Duration>,
    /// Make a new certificate in any case
    #[arg(long)]
    pub force: bool,
}

/// The owner of certificates.
#[derive(Debug, Args)]
pub struct Owner {
    /// Role, for example proxy-node or operator
    #[arg(value_parser = role)]
    pub role: IdentityRole,
    /// Id: a node's, or the name of a person or program
    #[arg(value_parser = id)]
    pub id: NodeId,
}

/// `cspctl pki rotate ...`
#[derive(Debug, Subcommand)]
pub enum RotateCommand {
    /// Make a new authority that is trusted beside the one that issues
    #[command(
        after_help = "Examples:\n  cspctl pki rotate start\n  cspctl pki rotate start --lifetime 1825d"
    )]
    Start {
        /// How long the new authority is valid
        #[arg(long, default_value = "3650d", value_name = "TIME", value_parser = span)]
        lifetime: Duration,
    },
    /// Let the new authority issue
    #[command(after_help = "Examples:\n  cspctl pki rotate switch")]
    Switch,
    /// End the trust in the old authority and remove its key
    ///
    /// Refused while owners still have certificates of the old authority.
    #[command(after_help = "Examples:\n  cspctl pki rotate finish")]
    Finish,
}

fn id(text: &str) -> Result<NodeId, String> {
    text.parse().map_err(|error: csp_types::IdError| error.to_string())
}

fn role(text: &str) -> Result<IdentityRole, String> {
    text.parse().map_err(|error: csp_identity::IdentityError| format!("the owner {error}"))
}

/// Parses a span of time: a number and its unit.
fn span(text: &str) -> Result<Duration, String> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let found = UNITS.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(*unit)?;
        // Rust's numbers may begin with a plus sign.
        let number = number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse::<u64>().ok())??;
        number.checked_mul(*seconds).map(Duration::from_secs)
    });
    found.ok_or_else(|| "a time is a number with s, m, h or d, for example 60s, 12h or 90d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("12h", 43_200), ("90d", 7_776_000), ("0s", 0)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "d",
            "60",
            "+1d",
            "-1d",
            "1.5d",
            "1w",
            "1dd",
            "é",
            "99999999999999999999d",
            "999999999999999999d",
        ] {
            span(text).unwrap_err();
        }
    }
}
