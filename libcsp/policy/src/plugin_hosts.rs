//! Plug-in hosts: the programs `csp-context packets`, which run packet plug-ins of level 3.

use std::collections::HashMap;
use std::net::SocketAddr;

use csp_config::{Problems, serde_node_id};
use csp_plugins::Level;
use csp_types::NodeId;
use serde::{Deserialize, Serialize};

use super::Policy;
use super::check::check_count;
use super::plugin_places::PluginLevel;

/// Most plug-in hosts of a policy.
pub const PLUGIN_HOSTS_MAX: usize = 8;
/// Longest path of a Unix socket (sockaddr_un without its terminating zero).
const PATH_LEN_MAX: usize = 107;

/// A plug-in host, and where the workers of network nodes reach it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginHost {
    /// 1 to 64 letters, digits, `-`, `_` and `.`, unique among plug-in hosts; not `workers`, `driver` or
    /// `host`.
    pub name: String,
    /// The application node on whose host it runs.
    #[serde(with = "serde_node_id")]
    pub node: NodeId,
    /// Its Unix socket, for network nodes of the same host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<String>,
    /// ADDRESS:PORT where it listens by tcp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    /// ADDRESS:PORT where it listens by ucx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ucx: Option<String>,
    /// ADDRESS:PORT where it listens by verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<String>,
}

impl PluginHost {
    pub(super) fn summary(&self) -> String {
        let addresses = [("shm", &self.shm), ("tcp", &self.tcp), ("ucx", &self.ucx), ("verbs", &self.verbs)];
        let addresses = addresses.iter().filter_map(|(by, at)| Some(format!(" {by} {}", at.as_ref()?)));
        format!("{} node {}{}", self.name, self.node, addresses.collect::<String>())
    }
}

/// Checks the plug-in hosts of a policy, and which of its plug-ins run there.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("plugin_hosts", policy.plugin_hosts.len(), 0, PLUGIN_HOSTS_MAX, problems);
    let mut names = HashMap::new();
    for (at, host) in policy.plugin_hosts.iter().enumerate() {
        let field = format!("plugin_hosts[{at}]");
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = host.name.as_str();
        if !(1..=64).contains(&name.len())
            || !name.chars().all(allowed)
            || ["workers", "driver", "host"].contains(&name)
        {
            let message = "is no name of a plug-in host: 1 to 64 letters, digits, '-', '_' and '.', not workers, driver or host";
            problems.add(format!("{field}.name"), format!("{name:?} {message}"));
        } else if let Some(first) = names.insert(name, at) {
            problems.add(
                format!("{field}.name"),
                format!("{name:?} is the name of plugin_hosts[{first}] already"),
            );
        }
        if [&host.shm, &host.tcp, &host.ucx, &host.verbs].iter().all(|address| address.is_none()) {
            problems.add(&field, "has no address: one of shm, tcp, ucx and verbs at least");
        }
        if host.shm.as_ref().is_some_and(|path| !path.starts_with('/') || path.len() > PATH_LEN_MAX) {
            let message = format!("expected an absolute path of at most {PATH_LEN_MAX} bytes");
            problems.add(format!("{field}.shm"), message);
        }
        for (by, address) in [("tcp", &host.tcp), ("ucx", &host.ucx), ("verbs", &host.verbs)] {
            if let Some(text) = address.as_ref().filter(|text| text.parse::<SocketAddr>().is_err()) {
                let message =
                    format!("{text:?} is no address; expected ADDRESS:PORT, such as 10.77.0.3:7200");
                problems.add(format!("{field}.{by}"), message);
            }
        }
    }
    for (at, plugin) in policy.plugins.iter().enumerate() {
        let field = format!("plugins[{at}].context");
        match (plugin.level, &plugin.context) {
            (PluginLevel::Fixed(Level::Host), None) => {
                problems.add(
                    format!("plugins[{at}].level"),
                    "3 needs `context`: the name of one of plugin_hosts",
                );
            }
            (PluginLevel::Fixed(Level::Host), Some(name)) if !names.contains_key(name.as_str()) => {
                problems.add(field, format!("{name:?} is not among the policy's plugin_hosts"));
            }
            (PluginLevel::Fixed(Level::Host), _) | (_, None) => {}
            (level, Some(_)) => {
                problems.add(field, format!("is for level 3 alone; this plug-in is at level {level}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const HOSTS: &str = "\
apiVersion: csp/v1
plugin_hosts:
  - {name: h0, node: an-1, shm: /run/csp/h0.sock, ucx: \"10.77.0.3:7200\"}
plugins:
  - {name: limit, module: policer, settings: {rate: 8k, block: blocked}, level: 3, context: h0}
  - {name: blocked, module: block-list, level: 3, context: h0, outputs: [mark]}
  - {name: mark, module: dscp, settings: {dscp: '46'}}
rules:
  - {name: all, plugin: blocked, fallback: drop}
";

    #[test]
    fn plug_ins_run_at_hosts() {
        let policy = Policy::parse_yaml(HOSTS, "p.yaml").unwrap();
        let desired = policy.packet_plugins();
        assert_eq!(
            (desired.instances[0].environment(), desired.instances[2].environment()),
            ("h0", "workers")
        );
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        assert!(
            !Policy::empty().to_json().contains("plugin_hosts"),
            "the hash of a policy without them stays"
        );
        let diff = Policy::empty().diff(&policy).join("\n");
        assert!(
            diff.contains("+ plugin host h0 node an-1 shm /run/csp/h0.sock ucx 10.77.0.3:7200"),
            "{diff}"
        );
        assert!(diff.contains("+ plugin blocked block-list -> mark level 3 at h0"), "{diff}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (from, to, expected) in [
            ("name: h0", "name: workers", "plugin_hosts[0].name: \"workers\" is no name of a plug-in host"),
            ("shm: /run/csp/h0.sock, ucx: \"10.77.0.3:7200\"", "", "plugin_hosts[0]: has no address"),
            ("shm: /run", "shm: run", "plugin_hosts[0].shm: expected an absolute path"),
            ("10.77.0.3:7200", "10.77.0.3", "plugin_hosts[0].ucx: \"10.77.0.3\" is no address"),
            ("level: 3, context: h0, outputs", "level: 3, outputs", "plugins[1].level: 3 needs `context`"),
            ("context: h0, outputs", "context: h1, outputs", "plugins[1].context: \"h1\" is not among"),
            (
                "level: 3, context: h0, outputs",
                "context: h0, outputs",
                "plugins[1].context: is for level 3 alone",
            ),
            (
                "level: 3, context: h0, outputs",
                "outputs",
                "plugins[0].settings: limit cannot name blocked in a setting: one of them runs on another host",
            ),
        ] {
            let error = Policy::parse_yaml(&HOSTS.replacen(from, to, 1), "p.yaml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}
