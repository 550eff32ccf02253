//! Rules and the exact-match classifier.
//!
//! The interface is that of a classifier over several fields (CSP §4.1): a key with all fields that a rule
//! may match, and a verdict. This implementation matches destination address and port only.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use csp_types::Transport;

/// Identifies a service within one policy generation: its position in the rules' list of services.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceIndex(pub u16);

/// Identifies an address of message channels within one policy generation: its position in the rules' list of
/// these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelIndex(pub u16);

/// Identifies a pool of servers to which packets are forwarded, within one policy generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolIndex(pub u16);

/// The fields of a packet that rules can match.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PacketKey {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The destination's address and port.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// The port it arrived on.
    pub lan_port: u16,
}

/// The purpose of a rule's address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// A service at this TCP port of the rule's address.
    Service {
        /// The port.
        port: u16,
        /// The service.
        service: ServiceIndex,
    },
    /// Message channels at this TCP port of the rule's address. Connections go to the owner of the channels.
    Channel {
        /// The port.
        port: u16,
        /// The channels' address.
        channel: ChannelIndex,
    },
    /// A service at this port of the rule's address, whose packets are forwarded to servers.
    Forward {
        /// TCP or UDP.
        protocol: Transport,
        /// The port.
        port: u16,
        /// The servers.
        pool: PoolIndex,
    },
    /// The address is the source of connections that applications open.
    Egress,
}

impl Target {
    /// The port of a service, as a key of the table.
    fn key(self) -> Option<u32> {
        match self {
            Target::Service { port, .. } | Target::Channel { port, .. } => Some(port.into()),
            Target::Forward { protocol, port, .. } => Some(key_of(protocol, port)),
            Target::Egress => None,
        }
    }
}

/// One rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// The address that the cluster owns by this rule.
    pub address: IpAddr,
    /// The purpose of the address.
    pub target: Target,
}

/// The result of classifying a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The packet is addressed to this service.
    Service(ServiceIndex),
    /// The packet is addressed to these message channels.
    Channel(ChannelIndex),
    /// The packet is forwarded to one of these servers.
    Forward(PoolIndex),
    /// The packet is addressed to an egress address. It may belong to a connection that an application
    /// opened.
    Egress,
    /// The cluster owns the address, but no service uses the port.
    NoService,
    /// The cluster does not own the address.
    NotOurs,
}

/// Why rules were refused. The previous rules stay in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// There are more rules, or more addresses, than the classifier has room for.
    #[error("{count} rules do not fit a classifier for {capacity}")]
    TooMany {
        /// Number of rules given.
        count: usize,
        /// Number of rules that fit.
        capacity: usize,
    },
    /// Two rules have the same address, protocol and port.
    #[error("two services share {address} port {port}")]
    Duplicate {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
}

/// An open-addressing table of fixed size, at most half full. The keys come from policy, not from packets, so
/// that no peer can lengthen its chains; a fixed hash function is sufficient.
#[derive(Clone, Debug)]
struct Table<V> {
    slots: Box<[Option<(u128, u32, V)>]>,
    len: usize,
}

impl<V: Copy> Table<V> {
    fn new(capacity: usize) -> Self {
        let len = (capacity.max(1) * 2).next_power_of_two();
        Table { slots: (0..len).map(|_| None).collect(), len: 0 }
    }

    fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.len = 0;
    }

    /// Returns the slot of the key, or the empty slot where it would be inserted.
    fn slot_of(&self, key: (u128, u32)) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = mix(key) & mask;
        // At most half of the slots are in use, so the search ends at an empty one.
        while let Some((address, port, _)) = &self.slots[at]
            && (*address, *port) != key
        {
            at = (at + 1) & mask;
        }
        at
    }

    fn insert(&mut self, key: (u128, u32), value: V) -> bool {
        let at = self.slot_of(key);
        let fresh = self.slots[at].is_none();
        if fresh {
            self.slots[at] = Some((key.0, key.1, value));
            self.len += 1;
        }
        fresh
    }

    fn find(&self, key: (u128, u32)) -> Option<V> {
        self.slots[self.slot_of(key)].as_ref().map(|(_, _, value)| *value)
    }
}

fn mix((address, port): (u128, u32)) -> usize {
    let folded = (address as u64) ^ ((address >> 64) as u64).rotate_left(23) ^ (u64::from(port) << 40);
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)) as usize
}

/// Returns the address as a number that is unique across both families: IPv4 addresses in the IPv4-mapped
/// form (RFC 4291 §2.5.5.2).
fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// The exact-match classifier. Lookups and replacements do not allocate.
#[derive(Clone, Debug)]
pub struct Classifier {
    capacity: usize,
    /// Verdicts by address and port. The verdict of an egress address is stored under [`EGRESS_PORT`].
    services: Table<Verdict>,
    addresses: Table<()>,
    list: Vec<IpAddr>,
    /// Memory for sorting the services of new rules.
    sorted: Vec<(u128, u32)>,
}

impl Classifier {
    /// Creates an empty classifier with room for `capacity` rules.
    pub fn new(capacity: usize) -> Self {
        Classifier {
            capacity,
            services: Table::new(capacity),
            addresses: Table::new(capacity),
            list: Vec::with_capacity(capacity),
            sorted: Vec::with_capacity(capacity),
        }
    }

    /// Replaces all rules. On an error the previous rules stay in force.
    pub fn replace(&mut self, rules: &[Rule]) -> Result<(), RuleError> {
        if rules.len() > self.capacity {
            return Err(RuleError::TooMany { count: rules.len(), capacity: self.capacity });
        }
        self.check_distinct(rules)?;
        self.services.clear();
        self.addresses.clear();
        self.list.clear();
        for rule in rules {
            let bits = address_bits(rule.address);
            if self.addresses.insert((bits, 0), ()) {
                self.list.push(rule.address);
            }
            match rule.target {
                Target::Service { port, service } => {
                    self.services.insert((bits, port.into()), Verdict::Service(service))
                }
                Target::Channel { port, channel } => {
                    self.services.insert((bits, port.into()), Verdict::Channel(channel))
                }
                Target::Forward { protocol, port, pool } => {
                    self.services.insert((bits, key_of(protocol, port)), Verdict::Forward(pool))
                }
                Target::Egress => self.services.insert((bits, EGRESS_PORT), Verdict::Egress),
            };
        }
        Ok(())
    }

    /// Checks that no two services share an address and port, by sorting the rules.
    fn check_distinct(&mut self, rules: &[Rule]) -> Result<(), RuleError> {
        let key = |rule: &Rule| rule.target.key().map(|port| (address_bits(rule.address), port));
        self.sorted.clear();
        self.sorted.extend(rules.iter().filter_map(key));
        self.sorted.sort_unstable();
        let Some(pair) = self.sorted.windows(2).find(|pair| pair[0] == pair[1]) else { return Ok(()) };
        let same = rules.iter().find(|rule| key(rule) == Some(pair[0]));
        let address = same.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |rule| rule.address);
        Err(RuleError::Duplicate { address, port: pair[0].1 as u16 })
    }

    /// Returns the verdict for a TCP or UDP packet. Only [`Target::Forward`] is for UDP.
    pub fn classify(&self, key: &PacketKey) -> Verdict {
        let bits = address_bits(key.destination.ip());
        let protocol = if key.protocol == Transport::Udp.number() { Transport::Udp } else { Transport::Tcp };
        match self.services.find((bits, key_of(protocol, key.destination.port()))) {
            Some(verdict) => verdict,
            None if self.addresses.find((bits, 0)).is_none() => Verdict::NotOurs,
            None => self.verdict_without_service(bits),
        }
    }

    /// Returns the verdict for a port without a service: an address with services can also be an egress
    /// address.
    fn verdict_without_service(&self, bits: u128) -> Verdict {
        self.services.find((bits, EGRESS_PORT)).unwrap_or(Verdict::NoService)
    }

    /// Returns whether the cluster owns `address`. Used for ARP, ND and ICMP.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.addresses.find((address_bits(address), 0)).is_some()
    }

    /// Returns the addresses that the cluster owns, each once, in the order of the rules.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.list
    }

    /// Returns the number of rules that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// A value beyond all ports, which marks an egress address in the table of services.
const EGRESS_PORT: u32 = 1 << 16;
/// The table adds this bit to ports of UDP, so that they are other keys than those of TCP.
const UDP_PORTS: u32 = 1 << 17;

fn key_of(protocol: Transport, port: u16) -> u32 {
    match protocol {
        Transport::Tcp => port.into(),
        Transport::Udp => u32::from(port) | UDP_PORTS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(address: &str, port: u16, index: u16) -> Rule {
        let target = Target::Service { port, service: ServiceIndex(index) };
        Rule { address: address.parse().unwrap(), target }
    }

    fn verdict(classifier: &Classifier, destination: &str) -> Verdict {
        classifier.classify(&PacketKey {
            source: "192.0.2.1:9".parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 6,
            lan_port: 0,
        })
    }

    #[test]
    fn packets_get_the_verdict_of_their_destination() {
        let mut classifier = Classifier::new(8);
        let egress = Rule { address: "10.0.0.3".parse().unwrap(), target: Target::Egress };
        let target = Target::Channel { port: 5556, channel: ChannelIndex(0) };
        let channel = Rule { address: "10.0.0.1".parse().unwrap(), target };
        let rules = [
            service("10.0.0.1", 80, 0),
            service("10.0.0.1", 443, 1),
            service("2001:db8::1", 80, 2),
            service("10.0.0.3", 80, 3),
            channel,
            egress,
        ];
        classifier.replace(&rules).unwrap();
        for (destination, expected) in [
            ("10.0.0.1:80", Verdict::Service(ServiceIndex(0))),
            ("10.0.0.1:443", Verdict::Service(ServiceIndex(1))),
            ("[2001:db8::1]:80", Verdict::Service(ServiceIndex(2))),
            ("10.0.0.1:5556", Verdict::Channel(ChannelIndex(0))),
            ("10.0.0.1:81", Verdict::NoService),
            ("10.0.0.2:80", Verdict::NotOurs),
            ("10.0.0.3:80", Verdict::Service(ServiceIndex(3))),
            ("10.0.0.3:40000", Verdict::Egress),
        ] {
            assert_eq!(verdict(&classifier, destination), expected, "{destination}");
        }
        let addresses: Vec<String> = classifier.addresses().iter().map(IpAddr::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "2001:db8::1", "10.0.0.3"]);
    }

    #[test]
    fn tcp_and_udp_of_a_port_are_two_services() {
        let mut classifier = Classifier::new(8);
        let forward = |protocol, pool| {
            let target = Target::Forward { protocol, port: 53, pool: PoolIndex(pool) };
            Rule { address: "10.0.0.1".parse().unwrap(), target }
        };
        let rules = [service("10.0.0.1", 80, 0), forward(Transport::Udp, 0), forward(Transport::Tcp, 1)];
        classifier.replace(&rules).unwrap();
        let verdict = |protocol: Transport, destination: &str| {
            let (source, destination) = ("192.0.2.1:9".parse().unwrap(), destination.parse().unwrap());
            classifier.classify(&PacketKey { source, destination, protocol: protocol.number(), lan_port: 0 })
        };
        assert_eq!(verdict(Transport::Udp, "10.0.0.1:53"), Verdict::Forward(PoolIndex(0)));
        assert_eq!(verdict(Transport::Tcp, "10.0.0.1:53"), Verdict::Forward(PoolIndex(1)));
        assert_eq!(verdict(Transport::Udp, "10.0.0.1:80"), Verdict::NoService);
        let twice = [forward(Transport::Udp, 0), forward(Transport::Udp, 1)];
        assert!(matches!(classifier.replace(&twice), Err(RuleError::Duplicate { port: 53, .. })));
    }

    #[test]
    fn rules_that_cannot_be_leave_the_old_ones() {
        let mut classifier = Classifier::new(2);
        classifier.replace(&[service("10.0.0.1", 80, 0)]).unwrap();
        let channel = Target::Channel { port: 80, channel: ChannelIndex(0) };
        let channel = Rule { address: "10.0.0.2".parse().unwrap(), target: channel };
        let both = [service("10.0.0.2", 80, 0), channel];
        assert!(matches!(classifier.replace(&both), Err(RuleError::Duplicate { port: 80, .. })));
        let twice = [service("10.0.0.2", 80, 0), service("10.0.0.2", 80, 1)];
        assert!(matches!(classifier.replace(&twice), Err(RuleError::Duplicate { port: 80, .. })));
        let many = [service("10.0.0.2", 1, 0), service("10.0.0.2", 2, 0), service("10.0.0.2", 3, 0)];
        assert_eq!(classifier.replace(&many), Err(RuleError::TooMany { count: 3, capacity: 2 }));
        assert_eq!(verdict(&classifier, "10.0.0.1:80"), Verdict::Service(ServiceIndex(0)));
        classifier.replace(&[]).unwrap();
        assert_eq!(verdict(&classifier, "10.0.0.1:80"), Verdict::NotOurs);
    }

    #[test]
    fn a_full_classifier_finds_every_rule() {
        let mut classifier = Classifier::new(512);
        let rules: Vec<Rule> =
            (0..512).map(|i| service(&format!("10.1.{}.{}", i / 256, i % 256), 80, i)).collect();
        classifier.replace(&rules).unwrap();
        for i in 0..512u16 {
            let found = verdict(&classifier, &format!("10.1.{}.{}:80", i / 256, i % 256));
            assert_eq!(found, Verdict::Service(ServiceIndex(i)));
        }
        assert_eq!(verdict(&classifier, "10.1.2.0:80"), Verdict::NotOurs);
    }
}
