//! The addresses of the cluster that a network node serves.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::Prefix;

/// The addresses that a network node owns: those in some networks, or all. It answers ARP and neighbour
/// discovery for the VIPs and egress addresses among them, and for no others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnedAddresses(Vec<Prefix>);

impl OwnedAddresses {
    /// All addresses.
    pub const ALL: OwnedAddresses = OwnedAddresses(Vec::new());

    /// Returns the addresses in `networks`; all addresses if there are none.
    pub fn new(networks: Vec<Prefix>) -> Self {
        OwnedAddresses(networks)
    }

    /// Returns whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|network| network.contains(address))
    }

    /// Returns whether `self` contains all addresses of `other`. Each network of `other` must lie in a single
    /// network of `self`: two halves do not cover the whole.
    pub fn covers(&self, other: &OwnedAddresses) -> bool {
        let covered = |inner: &Prefix| self.0.iter().any(|outer| outer.covers(inner));
        self.0.is_empty() || (!other.0.is_empty() && other.0.iter().all(covered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(networks: &[&str]) -> OwnedAddresses {
        OwnedAddresses::new(networks.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn no_network_means_every_address() {
        for address in ["10.76.0.100", "2001:db8::1"] {
            assert!(owned(&[]).contains(address.parse().unwrap()));
        }
        let halves = owned(&["10.76.0.96/29", "2001:db8::/64"]);
        for (address, expected) in
            [("10.76.0.100", true), ("10.76.0.104", false), ("2001:db8::1", true), ("2001:db8:1::1", false)]
        {
            assert_eq!(halves.contains(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn an_owner_covers_another_if_it_has_all_its_addresses() {
        let table: [(&[&str], &[&str], bool); 6] = [
            (&[], &[], true),
            (&[], &["10.0.0.0/8"], true),
            (&["10.0.0.0/8"], &[], false),
            (&["10.0.0.0/8"], &["10.1.0.0/16", "10.2.0.0/16"], true),
            (&["10.1.0.0/16"], &["10.0.0.0/8"], false),
            (&["10.0.0.0/8"], &["10.1.0.0/16", "192.0.2.0/24"], false),
        ];
        for (one, other, expected) in table {
            assert_eq!(owned(one).covers(&owned(other)), expected, "{one:?} of {other:?}");
        }
    }
}
