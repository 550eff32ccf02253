//! The rules of a table in the layout of its hash tables, for look-ups outside of this crate: by the program
//! in the driver.

use super::fields::{InstanceId, PortRange};
use super::space::Space;
use super::table::{RuleHandle, Table};
use super::words::{V6, Words};

/// A rule as words of bits: for IPv4 `[source and destination, rest]` and three zeros, for IPv6 `[source,
/// source, destination, destination, rest]`. The rest is, from its highest bit on: source port 16,
/// destination port 16, interface 16, protocol 8, direction 2 (0: received, 1: transmitted), DSCP 6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedRule {
    /// Required values of the bits under the mask.
    pub value: [u64; V6],
    /// Bits that are compared. For a range of ports, the prefix that all its ports share.
    pub mask: [u64; V6],
    /// The rule's order among all rules. The matching rule with the lowest order decides.
    pub order: u64,
    /// Source ports, which are compared separately.
    pub source_ports: PortRange,
    /// Destination ports, which are compared separately.
    pub destination_ports: PortRange,
    /// TCP flags: required values, and bits that are compared. If none are compared, no flags are required.
    pub tcp_flags: (u8, u8),
    /// The rule.
    pub rule: RuleHandle,
    /// The instance that it is bound to.
    pub instance: InstanceId,
}

impl EncodedRule {
    /// Returns whether received packets can match.
    pub const fn is_ingress(&self, words: usize) -> bool {
        (self.value[words - 1] & self.mask[words - 1]) >> 6 & 3 == 0
    }
}

/// A hash table: the mask that all its rules contain, and the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedTuple {
    /// Bits by which rules are hashed.
    pub mask: [u64; V6],
    /// The rules, in arbitrary order.
    pub rules: Vec<EncodedRule>,
}

fn wide<const N: usize>(words: &Words<N>) -> [u64; V6] {
    core::array::from_fn(|at| words.get(at).copied().unwrap_or(0))
}

fn laid<const N: usize>(space: &Space<N>) -> Vec<EncodedTuple> {
    let tuples = space.tuples().iter().map(|tuple| {
        let rules = tuple.entries().map(|entry| EncodedRule {
            value: wide(&entry.value),
            mask: wide(&entry.mask),
            order: entry.order,
            source_ports: entry.source_ports,
            destination_ports: entry.destination_ports,
            tcp_flags: (entry.flags_value, entry.flags_mask),
            rule: RuleHandle { slot: entry.slot, generation: entry.generation },
            instance: InstanceId(entry.instance),
        });
        EncodedTuple { mask: wide(tuple.mask()), rules: rules.collect() }
    });
    tuples.collect()
}

impl Table {
    /// Returns the hash tables of IPv4, in the order in which they are probed. Masks have two words.
    pub fn layout_v4(&self) -> Vec<EncodedTuple> {
        laid(self.v4())
    }

    /// Returns the hash tables of IPv6, in the order in which they are probed. Masks have five words.
    pub fn layout_v6(&self) -> Vec<EncodedTuple> {
        laid(self.v6())
    }
}
