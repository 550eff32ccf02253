//! The LANs of a cluster with several network nodes, and who owns which address there.

use crate::configs::VIP;

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
}

/// The networks whose addresses the network nodes of a shared LAN own, or should hold.
pub const OWNED: [&str; 2] = ["10.76.0.100/30", "10.76.0.104/30"];

impl Lans {
    /// Returns the VIP that a client connects to.
    pub fn vip(self, client: usize) -> &'static str {
        if self == Lans::Apart { VIP } else { [VIP, "10.76.0.104"][client] }
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
        0..if self == Lans::Apart { 1 } else { 2 }
    }
}
