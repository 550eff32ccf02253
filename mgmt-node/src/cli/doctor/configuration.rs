//! The configuration files of this host's daemons: the few fields that checks compare with the host.
//!
//! The daemons read their files themselves, strictly; a file that a daemon refuses is found by asking its
//! program (`--check-config`). Here unknown fields are passed over.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use csp_types::Role;
use serde::Deserialize;

use super::finding::Findings;
use super::host::{Host, NotRun};
use super::programs::Ran;
use super::{Seen, processes};

/// The daemons that a host may have, with the default of `san.port`.
const ROLES: [Role; 4] = [Role::NetworkNode, Role::ProxyNode, Role::AppNode, Role::MgmtNode];
/// The program that runs a network node and a proxy node.
const EDGE: &str = "csp-edge-node";
/// Default of `san.port`.
const SAN_PORT: u16 = 7100;
/// Distance of the ports of channels from those of tunnels.
const CHANNELS: u16 = 256;

/// One daemon of this host.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Its role.
    pub role: Role,
    /// Its configuration file.
    pub file: String,
    /// What the file says.
    pub config: Config,
}

/// A configuration file that cannot be read.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The file.
    pub file: String,
    /// What is wrong.
    pub problem: String,
}

/// The fields that are compared with the host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `node:`
    pub node: Node,
    /// `etcd:`
    pub etcd: Etcd,
    /// `admin:`
    pub admin: Admin,
    /// `workers:`
    pub workers: Option<u64>,
    /// `cpus:`
    pub cpus: Vec<u64>,
    /// `lan:`
    pub lan: Vec<Lan>,
    /// `san:`
    pub san: San,
    /// `messages:`
    pub messages: Messages,
    /// `private_etcd:`
    pub private_etcd: PrivateEtcd,
}

/// `node:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The node's id.
    pub id: String,
    /// Where its certificate is.
    pub identity: Option<PathBuf>,
    /// Where its state is.
    pub state_dir: Option<PathBuf>,
    /// Where its keys of the SAN are.
    pub cluster_key_file: Option<PathBuf>,
}

/// `etcd:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Etcd {
    /// URLs.
    pub endpoints: Vec<String>,
}

/// `admin:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Admin {
    /// Address and port.
    pub listen: Option<SocketAddr>,
}

/// One entry of `lan:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lan {
    /// The interface.
    pub interface: String,
    /// `af_packet` or `af_xdp`.
    pub port: String,
}

/// `san:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct San {
    /// `auto`, `shm`, `verbs`, `tcp` or `ucx`.
    pub provider: Option<String>,
    /// This host's address.
    pub address: Option<IpAddr>,
    /// Port of the first worker.
    pub port: Option<u16>,
}

/// `messages:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Messages {
    /// Folder of the secret keys of channels.
    pub curve_keys: Option<PathBuf>,
}

/// `private_etcd:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PrivateEtcd {
    /// Where clients connect.
    pub client: Option<SocketAddr>,
    /// Where members connect.
    pub peer: Option<SocketAddr>,
}

impl Daemon {
    /// The daemon's program.
    pub fn program(&self) -> String {
        format!("csp-{}", self.role)
    }

    /// The programs of which one runs this node.
    pub fn programs(&self) -> Vec<String> {
        let edge = matches!(self.role, Role::NetworkNode | Role::ProxyNode).then(|| EDGE.to_owned());
        std::iter::once(self.program()).chain(edge).collect()
    }

    /// The unit that runs this node: the edge's where that is what runs.
    pub fn unit(&self, host: &Host) -> String {
        let running = processes::all(host);
        let runs = running.iter().any(|process| process.program == EDGE);
        // Packages of the edge and of its tiers exclude each other.
        let has = |program: &str| host.exists(format!("/usr/lib/systemd/system/{program}.service"));
        let edge = runs || (has(EDGE) && !has(&self.program()));
        if edge && self.programs().len() > 1 { EDGE.to_owned() } else { self.program() }
    }

    /// Asks a program of those that are installed whether it takes the file. Returns its command line with
    /// the answer.
    fn checked(&self, host: &Host) -> (String, Result<Ran, NotRun>) {
        let own = ("--config".to_owned(), self.program());
        let edge = (format!("--{}", self.role), EDGE.to_owned());
        let ways = [own, edge].into_iter().take(self.programs().len());
        let mut asked = ways.map(|(option, program)| {
            let arguments = [option.as_str(), &self.file, "--check-config"];
            let ran = host.run(&program, &arguments);
            (format!("{program} {}", arguments.join(" ")), ran)
        });
        let missing = (self.program(), Err(NotRun::Missing(self.programs().join(" or "))));
        asked.find(|(_, ran)| !matches!(ran, Err(NotRun::Missing(_)))).unwrap_or(missing)
    }

    /// How many data workers it has.
    pub fn workers(&self) -> u64 {
        match self.role {
            Role::NetworkNode | Role::ProxyNode => self.config.workers.unwrap_or(1),
            _ => 0,
        }
    }

    /// The provider of its SAN links.
    pub fn provider(&self) -> &str {
        self.config.san.provider.as_deref().unwrap_or("auto")
    }

    /// Its folder of state: the configured one, that of its unit, or the common one.
    pub fn state_dir(&self, host: &Host) -> PathBuf {
        let of_unit =
            || Some(PathBuf::from(format!("/var/lib/csp/{}", self.role))).filter(|p| host.exists(p));
        self.config.node.state_dir.clone().or_else(of_unit).unwrap_or_else(|| "/var/lib/csp".into())
    }

    /// Its folder of certificates.
    pub fn identity(&self, host: &Host) -> Option<PathBuf> {
        let usual = || Some(PathBuf::from("/etc/csp/identity")).filter(|path| host.exists(path));
        self.config.node.identity.clone().or_else(usual)
    }

    /// The files that may hold its keys of the SAN; those that exist count.
    pub fn key_files(&self, host: &Host) -> Vec<PathBuf> {
        let usual = [format!("/etc/csp/{}.key", self.role), "/etc/csp/cluster.key".to_owned()];
        let usual = usual.into_iter().map(PathBuf::from);
        let all = self.config.node.cluster_key_file.iter().cloned().chain(usual);
        all.filter(|path| host.exists(path)).collect()
    }

    /// The folder of the channels' secret keys, of a proxy node.
    pub fn curve_keys(&self) -> Option<PathBuf> {
        let folder = self.config.messages.curve_keys.clone().unwrap_or_else(|| "/etc/csp/curve".into());
        (self.role == Role::ProxyNode).then_some(folder)
    }

    /// The TCP addresses that it listens on when it runs, each with what it is for.
    pub fn listens(&self) -> Vec<(SocketAddr, &'static str)> {
        let mut all: Vec<(SocketAddr, &'static str)> =
            self.config.admin.listen.map(|at| (at, "admin endpoint")).into_iter().collect();
        if self.role == Role::MgmtNode && self.config.etcd.endpoints.is_empty() {
            let client = self.config.private_etcd.client.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 2379)));
            let peer = self.config.private_etcd.peer.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 2380)));
            all.extend([(client, "private etcd"), (peer, "private etcd, members")]);
        }
        if let (true, Some(address)) = (matches!(self.provider(), "auto" | "tcp"), self.config.san.address) {
            let first = self.config.san.port.unwrap_or(SAN_PORT);
            for worker in 0..self.workers().min(64) as u16 {
                let of = |port: u16| SocketAddr::from((address, port));
                if self.role == Role::ProxyNode {
                    all.push((of(first.saturating_add(worker)), "SAN, tunnels"));
                    all.push((of(first.saturating_add(CHANNELS).saturating_add(worker)), "SAN, channels"));
                }
            }
        }
        all
    }
}

/// Reads the configuration files below `/etc/csp`.
pub fn read(host: &Host) -> (Vec<Daemon>, Vec<Broken>) {
    let (mut daemons, mut broken) = (Vec::new(), Vec::new());
    for role in ROLES {
        let file = format!("/etc/csp/{role}.yaml");
        if !host.exists(&file) {
            continue;
        }
        let parsed = match host.text(&file) {
            Some(text) => csp_control::config::parse::<Config>(&text, &file).map_err(|e| e.to_string()),
            None => Err(format!("{file}: cannot be read by this user")),
        };
        match parsed {
            Ok(config) => daemons.push(Daemon { role, file, config }),
            Err(problem) => broken.push(Broken { file, problem }),
        }
    }
    (daemons, broken)
}

/// `configuration`: the files are there, and their daemons accept them.
pub fn check(seen: &Seen, findings: &mut Findings) {
    if seen.daemons.is_empty() && seen.broken.is_empty() {
        findings.info(
            "no file NODE.yaml in /etc/csp: no node is configured on this host",
            "checks of a node's configuration have nothing to look at",
            "",
        );
    }
    for broken in &seen.broken {
        let why = "its daemon does not start";
        findings.error(broken.problem.clone(), why, format!("${{EDITOR:-vi}} {}", broken.file));
    }
    let mut of_edge = Vec::new();
    for daemon in &seen.daemons {
        let (command, ran) = daemon.checked(&seen.host);
        match ran {
            Ok(ran) if ran.code == 0 => {
                findings.ok(format!("{} is right, node {}", daemon.file, daemon.config.node.id));
                if command.starts_with(EDGE) {
                    of_edge.push((format!("--{}", daemon.role), daemon.file.as_str()));
                }
            }
            Ok(ran) => findings.error(refusal(&ran), "its daemon does not start", command),
            Err(why @ NotRun::Missing(_)) => findings.warning(
                format!("{} is there and its daemon is not: {why}", daemon.file),
                "the node cannot run",
                format!("apt install {}", daemon.programs().join("    # or ")),
            ),
            Err(why @ NotRun::Failed(..)) => findings.warning(
                format!("{} is there and its daemon does not check it: {why}", daemon.file),
                "the node may not run",
                command,
            ),
            Err(why) => findings.not_checked(&format!("whether {} is right", daemon.file), why),
        }
    }
    // Files that are right each may not go together.
    if let [(one, file), (other, of_other)] = &of_edge[..] {
        let arguments = [one.as_str(), file, other, of_other, "--check-config"];
        if let Ok(ran) = seen.host.run(EDGE, &arguments)
            && ran.code != 0
        {
            let remedy = format!("{EDGE} {}", arguments.join(" "));
            findings.error(refusal(&ran), "the edge does not start", remedy);
        }
    }
}

fn refusal(ran: &Ran) -> String {
    ran.err.lines().next().unwrap_or("its daemon refuses it").to_owned()
}
