//! Groups of addresses that several network nodes of one LAN can answer for: one of them does, and another
//! takes the whole group over when it fails.

use std::collections::HashMap;
use std::net::IpAddr;

use csp_config::{Problems, number};
use csp_types::{NodeId, Prefix};
use serde::{Deserialize, Deserializer, Serialize};

use super::Policy;
use super::check::{check_count, check_name};

/// Most groups of a policy.
pub const VIP_GROUPS_MAX: usize = 64;
/// Most networks of a group, and most nodes that it prefers.
pub const GROUP_NETWORKS_MAX: usize = 256;
/// Most nodes that a group prefers: as many as take part in an election.
pub const GROUP_PREFERRED_MAX: usize = 16;
/// Longest `preempt_delay_s`: a day.
const PREEMPT_DELAY_S_MAX: u64 = 86_400;

/// A group of VIPs and egress addresses with one owner among the network nodes, which the proxies elect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VipGroup {
    /// 1 to 63 of `a-z 0-9 -`, unique among the groups.
    pub name: String,
    /// Its addresses, and networks of them (`10.76.0.96/29`). They move together.
    #[serde(with = "networks")]
    pub addresses: Vec<Prefix>,
    /// The network nodes that it is to be at, the best first; all others come after them. Absent: every group
    /// is somewhere else, by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "nodes")]
    pub prefer: Vec<NodeId>,
    /// Whether a better node takes the group from a worse one that has it.
    #[serde(default = "super::yes", skip_serializing_if = "super::is_yes")]
    pub preempt: bool,
    /// Seconds for which a better node must have been well before it does.
    #[serde(default = "preempt_delay_s", deserialize_with = "delay")]
    pub preempt_delay_s: u32,
}

const fn preempt_delay_s() -> u32 {
    60
}

fn delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, PREEMPT_DELAY_S_MAX, "a number of seconds")? as u32)
}

impl VipGroup {
    /// Returns whether an address is one of the group's.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|network| network.contains(address))
    }

    /// Returns its addresses and networks as the policy writes them.
    pub fn network_texts(&self) -> Vec<String> {
        self.addresses.iter().map(networks::text).collect()
    }

    pub(super) fn summary(&self) -> String {
        let addresses = self.network_texts();
        let prefer: Vec<&str> = self.prefer.iter().map(NodeId::as_str).collect();
        let prefer = if prefer.is_empty() { String::new() } else { format!(" prefer {}", prefer.join(", ")) };
        let preempt = match self.preempt {
            true => format!(" preempt after {} s", self.preempt_delay_s),
            false => " no preempt".to_owned(),
        };
        format!("{} of {}{prefer}{preempt}", self.name, addresses.join(", "))
    }
}

impl Policy {
    /// Returns the group of an address; `None` if it is in none.
    pub fn vip_group(&self, address: IpAddr) -> Option<&VipGroup> {
        self.vip_groups.iter().find(|group| group.contains(address))
    }
}

/// Checks the groups of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("vip_groups", policy.vip_groups.len(), 0, VIP_GROUPS_MAX, problems);
    let (mut names, mut before) = (HashMap::new(), Vec::<(Prefix, String)>::new());
    let used = policy.addresses();
    for (index, group) in policy.vip_groups.iter().enumerate() {
        let at = format!("vip_groups[{index}]");
        check_name(&group.name, "group", &at, problems);
        if let Some(first) = names.insert(group.name.as_str(), index) {
            let message = format!("{:?} is the name of vip_groups[{first}] already", group.name);
            problems.add(format!("{at}.name"), message);
        }
        check_count(&format!("{at}.addresses"), group.addresses.len(), 1, GROUP_NETWORKS_MAX, problems);
        check_count(&format!("{at}.prefer"), group.prefer.len(), 0, GROUP_PREFERRED_MAX, problems);
        for (place, node) in group.prefer.iter().enumerate() {
            if group.prefer[..place].contains(node) {
                problems.add(format!("{at}.prefer[{place}]"), format!("{node} is in this list already"));
            }
        }
        for (place, network) in group.addresses.iter().enumerate() {
            let field = format!("{at}.addresses[{place}]");
            let text = networks::text(network);
            if let Some((other, of)) =
                before.iter().find(|(other, _)| other.covers(network) || network.covers(other))
            {
                let message = format!(
                    "{text} and {} of {of} have common addresses; an address is in one group",
                    networks::text(other)
                );
                problems.add(&field, message);
            } else if !used.iter().any(|address| network.contains(*address)) {
                let message = format!(
                    "{text} has no address of this policy: no VIP of a service, channel or query, and no egress address"
                );
                problems.add(&field, message);
            }
            before.push((*network, at.clone()));
        }
    }
}

/// Serde for addresses and networks as text.
mod networks {
    use std::net::IpAddr;

    use csp_types::{Prefix, PrefixError};
    use serde::{Deserialize, Deserializer, Serializer, de};

    struct Text(Prefix);

    impl<'de> Deserialize<'de> for Text {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            let whole = |address: IpAddr| Prefix::new(address, if address.is_ipv4() { 32 } else { 128 });
            let network = match text.parse::<IpAddr>() {
                Ok(address) => whole(address),
                Err(_) => text.parse(),
            };
            network.map(Text).map_err(|error: PrefixError| de::Error::custom(error))
        }
    }

    /// An address alone is written without its length.
    pub(super) fn text(network: &Prefix) -> String {
        let whole = if network.address().is_ipv4() { 32 } else { 128 };
        match network.length() == whole {
            true => network.address().to_string(),
            false => network.to_string(),
        }
    }

    pub(super) fn serialize<S: Serializer>(networks: &[Prefix], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(networks.iter().map(text))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Prefix>, D::Error> {
        Ok(Vec::<Text>::deserialize(deserializer)?.into_iter().map(|text| text.0).collect())
    }
}

/// Serde for node ids.
mod nodes {
    use csp_types::NodeId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "csp_config::serde_node_id")] NodeId);

    pub(super) fn serialize<S: Serializer>(nodes: &[NodeId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(nodes.iter().copied().map(Text))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeId>, D::Error> {
        Ok(Vec::<Text>::deserialize(deserializer)?.into_iter().map(|text| text.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}
- {name: web6, vip: '2001:db8::100', port: 80, pool: [{node: an-1, port: 80}]}
- {name: shop, vip: 10.76.0.104, port: 80, pool: [{node: an-1, port: 80}]}
egress:
- {destinations: [10.76.0.0/24], address: 10.76.0.101}
vip_groups:
- {name: web, addresses: [10.76.0.100/31, '2001:db8::100'], prefer: [nn-1, nn-2]}
- {name: shop, addresses: [10.76.0.104], preempt: false}
";

    #[test]
    fn groups_are_read_and_written() {
        let policy = Policy::parse_yaml(POLICY, "policy").unwrap();
        let group =
            |address: &str| policy.vip_group(address.parse().unwrap()).map(|group| group.name.as_str());
        assert_eq!(group("10.76.0.101"), Some("web"));
        assert_eq!(group("2001:db8::100"), Some("web"));
        assert_eq!(group("10.76.0.104"), Some("shop"));
        assert_eq!(group("10.76.0.105"), None);
        let json = policy.to_json();
        let written = r#"{"name":"web","addresses":["10.76.0.100/31","2001:db8::100"],"prefer":["nn-1","nn-2"],"preempt_delay_s":60}"#;
        assert!(json.contains(written), "{json}");
        assert_eq!(Policy::from_json(&json, "json").unwrap(), policy);
        assert!(!Policy::empty().to_json().contains("vip_groups"), "policies of before have their hashes");
        let mut without = policy.clone();
        without.vip_groups.remove(1);
        assert_eq!(without.diff(&policy), ["+ VIP group shop of 10.76.0.104 no preempt"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (from, to, message) in [
            (
                "name: shop, addresses",
                "name: web, addresses",
                "vip_groups[1].name: \"web\" is the name of vip_groups[0] already",
            ),
            ("name: shop, addresses", "name: Shop, addresses", "\"Shop\" is no group name"),
            (
                "[10.76.0.104]",
                "[10.76.0.100]",
                "10.76.0.100 and 10.76.0.100/31 of vip_groups[0] have common addresses",
            ),
            ("[10.76.0.104]", "[10.76.0.104/29]", "10.76.0.104/29"),
            ("[10.76.0.104]", "[10.76.0.112]", "10.76.0.112 has no address of this policy"),
            ("[10.76.0.104]", "[shop]", "\"shop\" is not a network"),
            ("[10.76.0.104]", "[]", "vip_groups[1].addresses: has 0 entries"),
            ("[nn-1, nn-2]", "[nn-1, nn-1]", "vip_groups[0].prefer[1]: nn-1 is in this list already"),
            ("preempt: false", "preempt_delay_s: 86401", "vip_groups[1].preempt_delay_s"),
        ] {
            let text = POLICY.replace(from, to);
            let result = Policy::parse_yaml(&text, "policy");
            let wrong = to != "[10.76.0.104/29]";
            assert_eq!(result.is_err(), wrong, "{to}");
            if let Err(error) = result {
                assert!(error.to_string().contains(message), "{to}: {error}");
            }
        }
    }
}
