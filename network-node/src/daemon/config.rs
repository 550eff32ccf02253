//! The daemon's configuration file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use csp_control::config::{ConfigError, Problems, load_checked, spin};
use csp_control::{AdminSection, EtcdSection, LogSection, NodeSection, SanSection};
use csp_types::Prefix;
use csp_types::spin::SpinSetting;
use serde::Deserialize;

/// Largest number of LAN ports.
pub const PORTS_MAX: usize = 16;
/// Longest interface name (IFNAMSIZ without its terminating zero).
const INTERFACE_LEN_MAX: usize = 15;

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
    /// Number of data workers, 1 to 16. A data worker is a thread that owns flows. With more than one, the
    /// frames of each LAN port are distributed by flow; worker 0 receives ARP and ICMP.
    #[serde(default = "one")]
    pub workers: u8,
    /// How long a data thread without work polls before it sleeps: `auto` (adaptive), or a fixed number of
    /// microseconds, 0 to 1,000.
    #[serde(default, deserialize_with = "spin")]
    pub spin_us: SpinSetting,
    /// The processors of the data workers: worker n runs on the n-th, beginning again after the last. Empty:
    /// wherever the scheduler puts it.
    #[serde(default)]
    pub cpus: Vec<u16>,
    /// The LAN ports.
    pub lan: Vec<LanSection>,
    /// Networks whose VIPs and egress addresses this node answers for. If empty, it answers for all. Network
    /// nodes of one LAN own the same address only if it is in a VIP group of the policy.
    #[serde(default, with = "csp_control::config::serde_prefixes")]
    pub owns: Vec<Prefix>,
    /// The provider of the SAN.
    pub san: SanSection,
    /// Capacities of the tables, per worker.
    #[serde(default)]
    pub capacity: CapacitySection,
    /// The program of packet plug-ins in the driver (level 1).
    #[serde(default)]
    pub driver: DriverSection,
}

/// Packet plug-ins of level 1. The program is attached to the LAN ports while a rule needs it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverSection {
    /// A folder in a BPF file system. Objects pinned in this node's subfolder outlive the daemon.
    pub folder: PathBuf,
    /// What happens to the program when the daemon is stopped by SIGTERM or SIGINT.
    pub on_stop: OnStop,
}

impl Default for DriverSection {
    fn default() -> Self {
        DriverSection { folder: "/sys/fs/bpf/csp".into(), on_stop: OnStop::Detach }
    }
}

/// What happens to the program in the driver at a clean stop. A daemon that is killed leaves it attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The program is removed from the ports.
    Detach,
    /// The program stays, and the next daemon takes it over, so that a restart leaves no gap.
    Keep,
}

/// One LAN port.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanSection {
    /// The interface. It needs no address; all virtual addresses use its Ethernet address.
    pub interface: String,
    /// The way in which frames are received and transmitted.
    #[serde(default)]
    pub port: PortKind,
    /// Networks whose hosts are reached directly, for connections that applications open. If empty, every
    /// host is reached directly.
    #[serde(default, with = "csp_control::config::serde_prefixes")]
    pub on_link: Vec<Prefix>,
    /// Routers for all other hosts, at most one of each address family.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
}

/// The way in which frames of a LAN port are received and transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A raw socket, with the kernel's offloads. The host's kernel also receives each frame.
    #[default]
    AfPacket,
    /// AF_XDP sockets. Frames for addresses of this node bypass the kernel.
    AfXdp,
}

/// Capacities of the tables of one worker; all memory is allocated at start-up.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapacitySection {
    /// Flows, pending and lingering ones included. 16 to 4,194,304.
    pub flows: usize,
    /// Proxy nodes. 1 to 64.
    pub proxies: usize,
    /// Neighbours that applications connect to. 1 to 65,536.
    pub neighbours: usize,
    /// Capacity of the flight recorder, in events of 40 bytes.
    pub trace_events: usize,
}

impl Default for CapacitySection {
    fn default() -> Self {
        CapacitySection { flows: 65_536, proxies: 64, neighbours: 1_024, trace_events: 65_536 }
    }
}

fn one() -> u8 {
    1
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
        range("workers", self.workers.into(), 1, 16);
        range("capacity.flows", self.capacity.flows, 16, 1 << csp_types::INDEX_BITS);
        range("capacity.proxies", self.capacity.proxies, 1, 64);
        range("capacity.neighbours", self.capacity.neighbours, 1, 65_536);
        range("capacity.trace_events", self.capacity.trace_events, 1, 16 << 20);
        if self.lan.is_empty() || self.lan.len() > PORTS_MAX {
            problems.add("lan", format!("has {} ports; allowed are 1 to {PORTS_MAX}", self.lan.len()));
        }
        for (at, port) in self.lan.iter().enumerate() {
            self.check_port(at, port, problems);
        }
    }

    fn check_port(&self, at: usize, port: &LanSection, problems: &mut Problems) {
        let name = &port.interface;
        let field = format!("lan[{at}].interface");
        if name.is_empty() || name.len() > INTERFACE_LEN_MAX || name.contains(['/', ' ', '\0']) {
            let allowed = "allowed is an interface name of 1 to 15 characters, such as lan0";
            problems.add(field, format!("{name:?} is no interface name; {allowed}"));
        } else if self.lan[..at].iter().any(|other| other.interface == *name) {
            problems.add(field, format!("{name:?} is used by another port already"));
        }
        let count = |v4: bool| port.gateways.iter().filter(|g| g.is_ipv4() == v4).count();
        if count(true) > 1 || count(false) > 1 {
            let message = "names more than one router of one address family; allowed is one of each";
            problems.add(format!("lan[{at}].gateways"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_control::config::parse_checked;

    const GOOD: &str = "\
node: {id: nn-1, identity: /etc/csp/identity}
etcd: {endpoints: [\"https://10.77.0.4:2379\"]}
admin: {listen: \"10.77.0.1:9101\"}
lan:
  - interface: lan0
    on_link: [10.76.0.0/24]
    gateways: [10.76.0.254]
san: {address: 10.77.0.1}
";

    /// Checks the error for `GOOD` with `from` replaced by `to`.
    fn check_refused(from: &str, to: &str, expected: &str) {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD);
        let error = parse_checked(&text, "nn.yaml", Config::check).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_right_file_gets_the_defaults() {
        let config = parse_checked(GOOD, "nn.yaml", Config::check).unwrap();
        assert_eq!((config.workers, config.capacity.flows), (1, 65_536));
        assert_eq!(config.spin_us, SpinSetting::Auto);
        assert_eq!(config.owns, []);
        assert_eq!(config.driver.on_stop, OnStop::Detach);
        assert_eq!(config.lan[0].port, PortKind::AfPacket);
        let text = GOOD.replace("lan0\n", "lan0\n    port: af_xdp\n");
        assert_eq!(parse_checked(&text, "nn.yaml", Config::check).unwrap().lan[0].port, PortKind::AfXdp);
        let text = format!("{GOOD}driver: {{folder: /run/bpf, on_stop: keep}}\n");
        let driver = parse_checked(&text, "nn.yaml", Config::check).unwrap().driver;
        assert_eq!((driver.folder, driver.on_stop), (PathBuf::from("/run/bpf"), OnStop::Keep));
        for (text, spin) in
            [("auto", SpinSetting::Auto), ("0", SpinSetting::Fixed(0)), ("1000", SpinSetting::Fixed(1000))]
        {
            let text = format!("{GOOD}spin_us: {text}\n");
            assert_eq!(parse_checked(&text, "nn.yaml", Config::check).unwrap().spin_us, spin);
        }
        assert_eq!(config.lan[0].gateways, ["10.76.0.254".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn owned_addresses_are_networks() {
        let text = format!("{GOOD}owns: [10.76.0.96/29, \"2001:db8::100/128\"]\n");
        let config = parse_checked(&text, "nn.yaml", Config::check).unwrap();
        assert_eq!(config.owns, ["10.76.0.96/29".parse().unwrap(), "2001:db8::100/128".parse().unwrap()]);
        check_refused(
            "san:",
            "owns: [10.76.0.100]\nsan:",
            "nn.yaml:8:8: owns[0]: \"10.76.0.100\" is not a network",
        );
    }

    #[test]
    fn wrong_fields_are_named_with_their_place() {
        check_refused(
            "- interface: lan0",
            "- interface: lan0123456789abcd",
            "nn.yaml:5:16: lan[0].interface:",
        );
        check_refused("[10.76.0.254]", "[10.76.0.254, 10.76.0.253]", "nn.yaml:7:15: lan[0].gateways:");
        check_refused("interface: lan0", "interfaces: lan0", "nn.yaml:5:");
        check_refused("lan0\n", "lan0\n    port: xdp\n", "nn.yaml:6:");
        check_refused("san:", "spin_us: 1001\nsan:", "nn.yaml:");
        check_refused("san:", "workers: 0\nsan:", "nn.yaml:8:10: workers: 0 is out of range");
    }
}
