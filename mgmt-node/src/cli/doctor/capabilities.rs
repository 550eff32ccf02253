//! What a policy needs of the cluster's nodes, against what they have registered.
//!
//! A registration names features of a node's software: `tunnel` and `steers-egress` (network nodes), `tcp`
//! and `channel` (proxy nodes), `agent` and `relay` (application nodes). What depends on a host or a driver
//! is not among them, such as level 1 of packet plug-ins.

use std::net::IpAddr;

use csp_api::mgmt::{NodeState, NodeView};
use csp_policy::{PluginLevel, Policy};
use csp_types::{Prefix, limits};

use super::finding::Findings;

/// Nodes that a finding names before it counts the rest.
const NAMED_MAX: usize = 8;

/// Adds what is missing.
pub fn compare(policy: &Policy, nodes: &[NodeView], findings: &mut Findings) {
    let members = nodes.iter().filter(|node| node.role != "mgmt-node");
    if members.clone().count() > 0 && members.clone().all(|node| node.capabilities.is_empty()) {
        return findings.not_checked(
            "what the policy needs of nodes",
            "the management node does not show their capabilities: it is of an earlier release",
        );
    }
    let missing = Missing { nodes };
    let addresses = missing.addresses(policy, findings);
    missing.proxies(policy, addresses, findings);
    missing.pools(policy, findings);
    missing.egress(policy, findings);
    missing.relays(findings);
    if findings.is_well() {
        findings.ok(format!(
            "{} services, {} channels, {} egress rules: nodes have what they need",
            policy.services.len(),
            policy.channels.len(),
            policy.egress.len()
        ));
    }
    let driver = |level: PluginLevel| level != PluginLevel::Fixed(csp_plugins::Level::Worker);
    if policy.plugins.iter().any(|plugin| driver(plugin.level)) {
        findings.not_checked(
            "whether each network node can run plug-ins at level 1 or 3",
            "nodes do not register it: `cspctl plugin list` shows where each runs, and why",
        );
    }
}

struct Missing<'a> {
    nodes: &'a [NodeView],
}

impl<'a> Missing<'a> {
    /// The nodes of a role that serve, with a capability.
    fn able(&self, role: &'static str, capability: &'static str) -> impl Iterator<Item = &'a NodeView> {
        let serves = |node: &&NodeView| node.state != NodeState::Lapsed && !node.draining;
        let of_role = self.nodes.iter().filter(move |node| node.role == role).filter(serves);
        of_role.filter(move |node| node.capabilities.iter().any(|of| of == capability))
    }

    /// Each VIP and egress address has a network node. Returns how many there are.
    fn addresses(&self, policy: &Policy, findings: &mut Findings) -> usize {
        let services = policy.services.iter().filter(|service| service.has_end());
        let services = services.map(|service| (service.vip, format!("service {}", service.name)));
        let channels =
            policy.channels.iter().map(|channel| (channel.vip, format!("channel {}", channel.name)));
        let egress = policy.egress.iter().map(|egress| (egress.address, "an egress rule".to_owned()));
        let all: Vec<(IpAddr, String)> = services.chain(channels).chain(egress).collect();
        let mut nobody: Vec<String> = Vec::new();
        for (address, whose) in &all {
            if !self.able("network-node", "tunnel").any(|node| owns(node, *address)) {
                nobody.push(format!("{address} ({whose})"));
            }
        }
        if !nobody.is_empty() {
            findings.error(
                format!("no network node in service owns {}", named(&nobody)),
                "nobody answers for the address: clients do not reach it",
                "cspctl nodes    # start a network node, or widen owns: of one",
            );
        }
        all.len()
    }

    fn proxies(&self, policy: &Policy, addresses: usize, findings: &mut Findings) {
        let terminated = policy.services.iter().any(|service| service.via != csp_policy::Via::Network);
        let needed = terminated || !policy.channels.is_empty() || !policy.egress.is_empty();
        if addresses > 0 && needed && self.able("proxy-node", "tcp").next().is_none() {
            findings.error(
                "no proxy node in service ends TCP",
                "connections to services and channels are accepted by proxy nodes",
                "systemctl start csp-proxy-node    # or: cspctl resume NODE",
            );
        }
    }

    /// Each node of a pool is an application node with an agent.
    fn pools(&self, policy: &Policy, findings: &mut Findings) {
        let members = policy.services.iter().flat_map(|service| {
            service.pool.iter().filter_map(move |server| Some((server.node.as_ref()?, &service.name)))
        });
        let (mut absent, mut others) = (Vec::new(), Vec::new());
        for (node, service) in members {
            let id = node.as_str();
            match self.nodes.iter().find(|node| node.id == id) {
                None => absent.push(format!("{id} (service {service})")),
                Some(node) if !node.capabilities.iter().any(|of| of == "agent") => {
                    others.push(format!("{id}, a {} (service {service})", node.role));
                }
                Some(_) => {}
            }
        }
        if !absent.is_empty() {
            findings.warning(
                format!("pools name nodes that are not registered: {}", named(&absent)),
                "their servers get no connections",
                "systemctl status csp-app-node    # there",
            );
        }
        if !others.is_empty() {
            findings.error(
                format!("pools name nodes that run no agent: {}", named(&others)),
                "programs attach to the agent of an application node, and to no other",
                "cspctl nodes; cspctl policy show",
            );
        }
        let served =
            policy.services.iter().any(|service| service.pool.iter().any(|server| server.node.is_some()));
        if served
            && self.able("proxy-node", "channel").next().is_none()
            && self.able("proxy-node", "tcp").next().is_some()
        {
            findings.error(
                "no proxy node in service has channels to applications",
                "servers under the socket filter get no connections",
                "cspctl nodes",
            );
        }
    }

    fn egress(&self, policy: &Policy, findings: &mut Findings) {
        if policy.egress.is_empty() {
            return;
        }
        let alone = self.able("network-node", "tunnel").filter(|node| node.workers > 1);
        let alone = alone.filter(|node| !node.capabilities.iter().any(|of| of == limits::STEERS_EGRESS));
        let alone: Vec<String> = alone.map(|node| node.id.clone()).collect();
        if !alone.is_empty() {
            findings.warning(
                format!("{} have several workers and no {}", named(&alone), limits::STEERS_EGRESS),
                "their first worker gets the answers to all connections that applications open",
                "upgrade them",
            );
        }
    }

    /// Application nodes without a relay reach proxies of their own host only.
    fn relays(&self, findings: &mut Findings) {
        let alone = self.able("app-node", "agent");
        let alone = alone.filter(|node| !node.capabilities.iter().any(|of| of == "relay"));
        let alone: Vec<String> = alone.map(|node| node.id.clone()).collect();
        if !alone.is_empty() {
            findings.info(
                format!("{} have no relay (san.provider: shm)", named(&alone)),
                "their programs reach proxy nodes of the same host only",
                "set san.provider to auto in /etc/csp/app-node.yaml where proxies are on other hosts",
            );
        }
    }
}

/// Whether a network node answers for an address. One that names no networks answers for all.
fn owns(node: &NodeView, address: IpAddr) -> bool {
    let mut networks = node.owns.iter().filter_map(|text| text.parse::<Prefix>().ok());
    node.owns.is_empty() || networks.any(|network| network.contains(address))
}

fn named(all: &[String]) -> String {
    let first = all.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
