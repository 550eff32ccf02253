//! The LANs of a cluster with several network nodes, and who owns which address there.

use std::path::Path;

use anyhow::Result;

use super::{NETWORK_NODES, Several};
use crate::configs::{Place, VIP};
use crate::host::Host;

/// Which LAN each network node serves, and which addresses it owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lans {
    /// Each network node is alone on its LAN with one of the clients, and owns all addresses.
    Apart,
    /// Both are on one LAN with both clients. Each owns four addresses: the first those of the first client,
    /// and so on.
    Shared,
    /// As `Shared`, but each network node owns all addresses, and the proxies elect who answers for those of
    /// each client: the first node for the first client's, if it can.
    Elected,
    /// Each network node has a link of its own to the clients' router, and owns all addresses.
    ///
    /// ```text
    ///  [client .1]──┐                 .254┌── 10.78.1.0/24 ──.1[nn-1]
    ///               ├─ 10.76.0.0/24 ─[router]
    ///  [client .2]──┘                 .254└── 10.78.2.0/24 ──.1[nn-2]
    /// ```
    Routed,
}

/// The addresses of the cluster behind the router.
const ROUTED: &str = "10.76.0.100/30";
/// The router's address on the clients' LAN.
const ROUTER: &str = "10.76.0.254";

/// The networks whose addresses the network nodes of a shared LAN own, or should hold.
pub const OWNED: [&str; 2] = ["10.76.0.100/30", "10.76.0.104/30"];

impl Lans {
    /// Returns the VIP that a client connects to.
    pub fn vip(self, client: usize) -> &'static str {
        if self.distinct().len() == 1 { VIP } else { [VIP, "10.76.0.104"][client] }
    }

    /// Returns an address of a client, and the egress address for connections to it.
    pub(super) fn outside(self, client: usize) -> (&'static str, &'static str) {
        // Both clients have it, so that either network node reaches it.
        let one = ("10.76.0.9", "10.76.0.101");
        if self == Lans::Apart { one } else { [one, ("10.76.0.10", "10.76.0.105")][client] }
    }

    /// Returns the VIP groups of the policy, in YAML. A node gets its group back after 2 s.
    pub(super) fn groups(self) -> String {
        if self != Lans::Elected {
            return String::new();
        }
        let group = |(at, network): (usize, &str)| {
            let (first, second) = (at + 1, 2 - at);
            format!(
                "  - {{name: vips-{first}, addresses: [{network}], prefer: [nn-{first}, nn-{second}], preempt_delay_s: 2}}\n"
            )
        };
        format!("vip_groups:\n{}", OWNED.into_iter().enumerate().map(group).collect::<String>())
    }

    /// Returns the numbers of the clients that differ by their VIP and egress address.
    pub(super) fn distinct(self) -> std::ops::Range<usize> {
        0..if matches!(self, Lans::Apart | Lans::Routed) { 1 } else { 2 }
    }

    /// Connects the client and the network node of number `at` with each other, or with `switch`, which has
    /// the bridge `lan`.
    pub(super) fn connect(self, at: usize, client: &Host, network_node: &Host, switch: &Host) -> Result<()> {
        let to_bridge = |host: &Host, port: &str| {
            host.join("lan0", switch, port)?;
            switch.ip(&["link", "set", port, "master", "lan"])
        };
        let port = format!("nn-{at}");
        match self {
            Lans::Apart => client.join("lan0", network_node, "lan0")?,
            Lans::Shared | Lans::Elected => to_bridge(network_node, &port)?,
            Lans::Routed => {
                network_node.join("lan0", switch, &port)?;
                network_node.address("lan0", &format!("{}/24", of_link(at, 1)))?;
                switch.address(&port, &format!("{}/24", of_link(at, 254)))?;
                // As in docs/operations.md. The network node reads the frames before the kernel.
                network_node.ip(&["route", "add", "blackhole", ROUTED])?;
            }
        }
        if self != Lans::Apart {
            to_bridge(client, &format!("client-{at}"))?;
        }
        client.address("lan0", &format!("10.76.0.{}/24", at + 1))?;
        client.address("lan0", &format!("{}/24", self.outside(at).0))?;
        if self == Lans::Routed {
            client.ip(&["route", "add", ROUTED, "via", ROUTER])?;
            if at == 0 {
                switch.address("lan", &format!("{ROUTER}/24"))?;
                // The router hashes addresses and ports, so that connections of one client are spread.
                let settings =
                    ["ip_forward", "fib_multipath_hash_policy"].map(|name| format!("net.ipv4.{name}=1"));
                switch.run("sysctl", &["-qw", &settings[0], &settings[1]])?;
            }
        }
        Ok(())
    }

    /// Returns a network node's configuration.
    pub(super) fn network_node(self, place: &Place, scratch: &Path, provider: &str) -> String {
        let text = place.network_node(scratch, provider);
        let Some(at) = NETWORK_NODES.iter().position(|id| *id == place.id && self == Lans::Routed) else {
            return text;
        };
        let port = "  - interface: lan0\n";
        let (network, gateway) = (of_link(at, 0), of_link(at, 254));
        text.replace(port, &format!("{port}    on_link: [{network}/24]\n    gateways: [{gateway}]\n"))
    }
}

/// Returns an address of the link between the router and network node `at`.
fn of_link(at: usize, host: u8) -> String {
    format!("10.78.{}.{host}", at + 1)
}

impl Several {
    /// Joins a further host to the LAN of [`Lans::Shared`] and [`Lans::Elected`], by its interface `lan0`.
    pub fn join_lan(&self, host: &Host, port: &str) -> Result<()> {
        host.join("lan0", &self.switches[1], port)?;
        self.switches[1].ip(&["link", "set", port, "master", "lan"])
    }

    /// Has the router of [`Lans::Routed`] send the cluster's packets to the network nodes with these weights,
    /// 0 for none.
    pub fn route(&self, weights: [u32; 2]) -> Result<()> {
        let mut words = ["route", "replace", ROUTED].map(str::to_owned).to_vec();
        for (at, weight) in weights.into_iter().enumerate().filter(|(_, weight)| *weight > 0) {
            words.extend(
                ["nexthop", "via", &of_link(at, 1), "weight", &weight.to_string()].map(str::to_owned),
            );
        }
        self.switches[1].ip(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
