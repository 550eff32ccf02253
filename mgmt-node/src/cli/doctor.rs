//! `cspctl doctor`: checks this host, and the cluster if a management node answers, against what CSP needs.
//!
//! Each check is a function from what was [`Seen`] to [`Findings`]; it reads files through [`Host`] only. The
//! list of them, [`CHECKS`], is what `--list` prints and docs/operations/doctor.md describes.

mod addresses;
mod capabilities;
mod certificates;
mod cluster;
mod configuration;
mod finding;
mod firewall;
mod host;
mod interfaces;
mod kernel;
mod network;
mod processes;
mod programs;
pub(super) mod render;
mod storage;
#[cfg(test)]
pub(super) mod tests;

use std::path::{Path, PathBuf};

use clap::Args;
use csp_policy::Policy;
use csp_types::Role;
use serde::Serialize;

use super::args::{Cli, Output};
use super::client::Client;
use super::error::CliError;
use super::paint::Paint;
use super::{Context, identity, put, show_as};
pub(super) use capabilities::compare;
pub(super) use cluster::Cluster;
pub(super) use configuration::Daemon;
pub(super) use finding::{Finding, Findings, Level};
pub(super) use host::{Host, NotRun};
pub(super) use programs::Ran;

/// Arguments of `cspctl doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only these checks, separated by commas; `--list` names them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// List the checks, and end
    #[arg(long)]
    list: bool,
    /// Look at the files below this folder, such as a mounted image, instead of the running host's
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

/// One check.
struct Check {
    name: &'static str,
    about: &'static str,
    run: fn(&Seen, &mut Findings),
}

const fn check(name: &'static str, about: &'static str, run: fn(&Seen, &mut Findings)) -> Check {
    Check { name, about, run }
}

/// All checks in the order in which they run.
const CHECKS: [Check; 22] = [
    check("configuration", "files in /etc/csp, as their daemons read them", configuration::check),
    check("kernel", "release, BPF, AF_PACKET, AF_XDP", kernel::kernel),
    check("bpf-fs", "/sys/fs/bpf, where plug-ins in the driver are kept", kernel::bpf_fs),
    check("tun", "TAP devices, for AF_XDP ports", kernel::tun),
    check("memlock", "memory that daemons may lock", kernel::memlock),
    check("hugepages", "huge pages that lie idle", kernel::hugepages),
    check("processors", "processors against workers and cpus", kernel::processors),
    check("clock", "synchronisation, and the management node's clock", kernel::clock),
    check("rdma", "RDMA devices and the state of their ports", network::rdma),
    check("mtu", "MTU of the SAN's interface, and along the way to peers", network::mtu),
    check("offloads", "offloads of the LAN's interfaces", network::offloads),
    check("addresses", "VIPs on interfaces of this host", addresses::addresses),
    check("ports", "ports of the daemons that others use", addresses::ports),
    check("firewall", "rules of nftables that drop the daemons' ports", addresses::firewall),
    check("certificates", "validity, names and modes of identities", certificates::check),
    check("keys", "modes of the SAN's and the channels' keys", storage::keys),
    check("state", "folders of state and their files", storage::state),
    check("disk", "room for state", storage::disk),
    check("versions", "releases installed, running and in the cluster", storage::versions),
    check("server", "a management node answers, and one leads", cluster::server),
    check("nodes", "states of the cluster's nodes, and their policy", cluster::nodes),
    check("etcd", "etcd, as the management node and this host see it", cluster::etcd),
];

/// The last check, which needs all others' data: it is shared with `cspctl policy check`.
const NEEDS: Check =
    check("capabilities", "what the policy needs against what nodes have registered", cluster::policy_needs);

fn all() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().chain([&NEEDS])
}

/// What checks look at.
#[derive(Debug)]
pub(super) struct Seen {
    /// This host.
    pub(super) host: Host,
    /// Its daemons.
    pub(super) daemons: Vec<Daemon>,
    /// Configuration files that cannot be read.
    broken: Vec<configuration::Broken>,
    /// The caller's folder of certificates.
    identity: Option<PathBuf>,
    /// The management node that was asked, and whether the caller named it.
    server: String,
    server_given: bool,
    /// The cluster, if that answers; else why not.
    pub(super) cluster: Option<Cluster>,
    no_cluster: String,
}

impl Seen {
    /// The caller's folder of certificates.
    pub(super) fn identity(&self) -> Option<&Path> {
        self.identity.as_deref()
    }

    /// Why the cluster is not known.
    pub(super) fn no_cluster(&self) -> &str {
        &self.no_cluster
    }

    /// Whether this host is configured for a role.
    fn has(&self, role: Role) -> bool {
        self.daemons.iter().any(|daemon| daemon.role == role)
    }

    /// Whether a LAN port of this host is an AF_XDP port.
    fn has_xdp_ports(&self) -> bool {
        self.daemons.iter().flat_map(|daemon| &daemon.config.lan).any(|lan| lan.port == "af_xdp")
    }

    /// The policy in force.
    fn policy(&self) -> Option<&Policy> {
        self.cluster.as_ref()?.policy.as_ref().ok()
    }

    /// Why there is no policy to compare with.
    fn no_policy(&self) -> String {
        match self.cluster.as_ref().map(|cluster| &cluster.policy) {
            Some(Err(why)) => why.clone(),
            _ => "no management node answers, so that the policy is not known".to_owned(),
        }
    }
}

/// All findings, for `--output json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Release of cspctl.
    version: &'static str,
    /// The host's name.
    host: String,
    /// The management node that was asked.
    server: String,
    /// The worst level.
    worst: Level,
    /// In the order of the checks.
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Runs the checks that `wanted` names; without names all.
    pub(super) fn of(seen: &Seen, wanted: &[String]) -> Report {
        let chosen = all().filter(|check| wanted.is_empty() || wanted.iter().any(|name| name == check.name));
        let findings: Vec<Finding> = chosen
            .flat_map(|check| {
                let mut findings = Findings::of(check.name);
                (check.run)(seen, &mut findings);
                findings.into_list()
            })
            .collect();
        Report::with(seen.host.name(), seen.server.clone(), findings)
    }

    /// A report with these findings.
    pub(super) fn with(host: String, server: String, findings: Vec<Finding>) -> Report {
        let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
        Report { version: env!("CARGO_PKG_VERSION"), host, server, worst, findings }
    }

    /// How a command ends whose result is this report.
    pub(super) const fn outcome(&self) -> Result<(), CliError> {
        match self.exit_code() {
            0 => Ok(()),
            code => Err(CliError::Found(code)),
        }
    }

    const fn exit_code(&self) -> u8 {
        match self.worst {
            Level::Ok | Level::Info => 0,
            Level::Warning => 1,
            Level::Error => 2,
        }
    }
}

/// `cspctl doctor`.
pub(super) async fn doctor(cli: &Cli, args: &DoctorArgs) -> Result<(), CliError> {
    let paint = Paint::for_stdout();
    if args.list {
        return list(cli.output, paint);
    }
    if let Some(unknown) = args.only.iter().find(|name| all().all(|check| check.name != **name)) {
        let names: Vec<&str> = all().map(|check| check.name).collect();
        return Err(CliError::Usage(format!(
            "there is no check {unknown}; the checks are {}",
            names.join(", ")
        )));
    }
    let (seen, _) = look(cli, &args.root).await?;
    let report = Report::of(&seen, &args.only);
    show_as(cli.output, &report, |report| render::table(report, paint))?;
    report.outcome()
}

/// Reads the host's configuration and asks the management node. Returns the way to it if it answers.
pub(super) async fn look(cli: &Cli, root: &Path) -> Result<(Seen, Option<Context>), CliError> {
    if !root.is_dir() {
        return Err(CliError::Usage(format!("--root {} is no folder", root.display())));
    }
    let host = Host::new(root);
    if !host.opens() {
        let root = root.display();
        return Err(CliError::Usage(format!("--root {root} cannot be looked into (that needs Linux 5.6)")));
    }
    let (daemons, broken) = configuration::read(&host);
    let folder = identity::folder(cli.identity.as_deref());
    let credentials = identity::open(folder.as_deref());
    let no_identity = credentials.as_ref().err().map(ToString::to_string);
    let credentials = credentials.unwrap_or_default();
    let server = cli.server.clone();
    let server = server.unwrap_or_else(|| identity::default_server(credentials.as_ref()).to_owned());
    let context = Client::new(&server, credentials.as_ref());
    let context = context.map(|client| Context { client, output: cli.output, paint: Paint::for_stdout() });
    let asked = match &context {
        Ok(context) => Cluster::ask(context).await.map_err(|error| error.to_string()),
        // A URL that is none is the caller's mistake, whatever the host is like.
        Err(error) if cli.server.is_some() && no_identity.is_none() => {
            return Err(CliError::Usage(error.to_string()));
        }
        Err(error) => Err(error.to_string()),
    };
    let no_cluster = no_identity.or_else(|| asked.as_ref().err().cloned()).unwrap_or_default();
    let (cluster, server_given) = (asked.ok(), cli.server.is_some());
    let context = context.ok().filter(|_| cluster.is_some());
    let identity = folder.map(|folder| std::path::absolute(&folder).unwrap_or(folder));
    Ok((Seen { host, daemons, broken, identity, server, server_given, cluster, no_cluster }, context))
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    about: &'static str,
}

fn list(output: Output, paint: Paint) -> Result<(), CliError> {
    let list: Vec<Listed> = all().map(|check| Listed { name: check.name, about: check.about }).collect();
    if output == Output::Json {
        return show_as(output, &list, |_| String::new());
    }
    let mut table = super::table::Table::new(&["CHECK", "WHAT"]);
    list.iter().for_each(|check| table.row([check.name.into(), check.about.into()]));
    put(&table.render(paint))
}
