//! The daemon's configuration file.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use csp_control::config::{ConfigError, Problems, load_checked, spin};
use csp_control::{AdminSection, EtcdSection, LogSection, NodeSection, SanProvider};
use csp_types::spin::SpinSetting;
use csp_wire::agent::{LIST_MAX, PATH_LEN_MAX};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Largest number of entries in `users`.
pub const USERS_MAX: usize = 256;

/// The whole file. Defaults are defined here and nowhere else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This node's name, and its directories.
    pub node: NodeSection,
    /// The addresses of etcd.
    pub etcd: EtcdSection,
    /// The admin endpoint.
    pub admin: AdminSection,
    /// Logging.
    #[serde(default)]
    pub log: LogSection,
    /// The Unix socket where processes attach.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The sockets that are accelerated.
    #[serde(default)]
    pub accelerate: AccelerateSection,
    /// User ids whose processes may attach; if absent, those of any local user.
    #[serde(default)]
    pub users: Option<Vec<u32>>,
    /// How long a data thread without work polls before it sleeps: `auto` (adaptive), or a fixed number of
    /// microseconds, 0 to 1,000.
    #[serde(default, deserialize_with = "spin")]
    pub spin_us: SpinSetting,
    /// How proxies are reached.
    #[serde(default)]
    pub san: SanSection,
    /// Capacities of the tables.
    #[serde(default)]
    pub capacity: CapacitySection,
}

/// `accelerate:` the sockets of attached processes that leave the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccelerateSection {
    /// Listening ports.
    pub listen: Listen,
    /// Outgoing connections.
    pub connect: Connect,
    /// Whether listeners on loopback addresses and connections to 127.0.0.0/8 and ::1 are accelerated too,
    /// between applications through a proxy. For tests: processes outside CSP are then not reached by
    /// loopback.
    pub loopback: bool,
}

/// Which listening ports are accelerated: `all`, or a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Listen {
    /// Every port.
    #[default]
    All,
    /// These ports.
    Ports(Vec<u16>),
}

/// Which connections are accelerated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connect {
    /// Those to the policy's egress destinations.
    #[default]
    Policy,
    /// None.
    Off,
}

/// `san:` how processes reach proxies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SanSection {
    /// `auto`: proxies of this host by shared memory, others through the agent, by verbs if available, else
    /// by tcp, else by ucx. `shm`: proxies of this host only. `verbs`, `tcp`, `ucx`: all through the agent.
    pub provider: SanProvider,
    /// This host's address on the SAN. UCX then listens on this address' network interface only, otherwise on
    /// all.
    pub address: Option<IpAddr>,
    /// Whether programs that use libcsp may reach proxies of other hosts by queue pairs of their own instead
    /// of through the agent, if both hosts have verbs. Such programs open the RDMA device.
    pub direct: bool,
}

/// Capacities of the tables.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapacitySection {
    /// Processes attached at once. 1 to 65,536.
    pub processes: usize,
    /// Exited processes whose counters and traces are kept. 0 to 1,024 (115 KiB each).
    pub exited: usize,
    /// VIs of processes that the agent forwards to proxies of other hosts. 1 to 4,096. A user whose processes
    /// hold as many as are free gets no more; a single user thus gets at most half.
    pub relay_vis: usize,
}

impl Default for CapacitySection {
    fn default() -> Self {
        CapacitySection { processes: 4_096, exited: 64, relay_vis: 1_024 }
    }
}

fn default_socket() -> PathBuf {
    PathBuf::from("/run/csp/agent.sock")
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllOrPorts;
        impl<'de> Visitor<'de> for AllOrPorts {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all` or a list of ports such as [80, 8080]")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listen, E> {
                match text {
                    "all" => Ok(Listen::All),
                    other => Err(E::custom(format!(
                        "{other:?}: allowed is `all` or a list of ports such as [80, 8080]"
                    ))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Listen, A::Error> {
                let mut ports = Vec::new();
                while let Some(port) = list.next_element::<u16>()? {
                    ports.push(port);
                }
                Ok(Listen::Ports(ports))
            }
        }
        deserializer.deserialize_any(AllOrPorts)
    }
}

impl Config {
    /// Reads and validates the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        load_checked(path, Config::check)
    }

    fn check(&self, problems: &mut Problems) {
        self.etcd.check("etcd", problems);
        self.node.check_exposure(&self.admin, &self.etcd, problems);
        let mut range = |field: &str, value: usize, low: usize, high: usize| {
            if !(low..=high).contains(&value) {
                problems.add(field, format!("{value} is out of range; allowed is {low} to {high}"));
            }
        };
        range("capacity.processes", self.capacity.processes, 1, 65_536);
        range("capacity.exited", self.capacity.exited, 0, 1_024);
        range("capacity.relay_vis", self.capacity.relay_vis, 1, 4_096);
        if let Listen::Ports(ports) = &self.accelerate.listen
            && (ports.len() > LIST_MAX || ports.contains(&0))
        {
            let message = format!("allowed are up to {LIST_MAX} ports from 1 to 65535, or `all`");
            problems.add("accelerate.listen", message);
        }
        let socket = self.socket.as_os_str().len();
        if !self.socket.is_absolute() || socket > PATH_LEN_MAX {
            let message = format!("allowed is an absolute path of at most {PATH_LEN_MAX} bytes");
            problems.add("socket", message);
        }
        if self.users.as_ref().is_some_and(|users| users.len() > USERS_MAX) {
            problems.add("users", format!("allowed are up to {USERS_MAX} user ids"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_control::config::parse_checked;

    const GOOD: &str = "\
node: {id: an-1, identity: /etc/csp/identity}
etcd: {endpoints: [\"https://10.77.0.4:2379\"]}
admin: {listen: \"10.77.0.3:9103\"}
";

    fn check(extra: &str) -> Result<Config, String> {
        parse_checked(&format!("{GOOD}{extra}"), "an.yaml", Config::check).map_err(|e| e.to_string())
    }

    #[test]
    fn a_right_file_gets_the_defaults() {
        let config = check("").unwrap();
        let accelerate = AccelerateSection { listen: Listen::All, connect: Connect::Policy, loopback: false };
        assert_eq!(config.accelerate, accelerate);
        assert_eq!(config.socket, Path::new("/run/csp/agent.sock"));
        let config =
            check("accelerate: {listen: [80, 8080], connect: off, loopback: true}\nusers: [33]\n").unwrap();
        assert_eq!(config.accelerate.listen, Listen::Ports(vec![80, 8080]));
        assert!(config.accelerate.loopback);
        assert_eq!((config.accelerate.connect, config.users), (Connect::Off, Some(vec![33])));
    }

    #[test]
    fn wrong_fields_are_named_with_their_place() {
        for (extra, expected) in [
            ("accelerate: {listen: some}\n", "an.yaml:4:22: accelerate.listen"),
            ("accelerate: {listen: [0]}\n", "an.yaml:4:22: accelerate.listen"),
            ("accelerate: {loopback: 1}\n", "an.yaml:4:24: accelerate.loopback"),
            ("socket: run/agent.sock\n", "an.yaml:4:9: socket"),
            ("capacity: {processes: 0}\n", "an.yaml:4:23: capacity.processes"),
            ("san: {provider: rdma}\n", "an.yaml:4:17: san.provider"),
            ("capacity: {relay_vis: 5000}\n", "an.yaml:4:23: capacity.relay_vis"),
            ("colour: red\n", "an.yaml:4:1: "),
        ] {
            let error = check(extra).unwrap_err();
            assert!(error.starts_with(expected), "{extra}: {error}");
        }
    }
}
