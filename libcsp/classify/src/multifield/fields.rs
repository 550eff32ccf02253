//! The conditions of a rule, the fields of a packet, and when they match.

use core::net::IpAddr;
use std::sync::Arc;

use csp_types::Prefix;

/// Largest priority number.
pub const PRIORITY_MAX: u32 = (1 << 24) - 1;

const PROTOCOL_TCP: u8 = 6;
/// Protocols whose headers start with source and destination port: TCP, UDP, DCCP, SCTP, UDP-Lite.
const PROTOCOLS_WITH_PORTS: [u8; 5] = [PROTOCOL_TCP, 17, 33, 132, 136];

/// IPv6 extension headers, which the parser skips to find the protocol: hop-by-hop options, routing,
/// fragment, authentication, destination options, mobility, host identity, shim6.
const EXTENSION_HEADERS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

/// Returns whether headers of this IP protocol start with two ports.
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

/// Identifies a plug-in instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceId(pub u32);

/// Direction of a packet on the interface at which it is classified.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Received from the interface.
    Ingress,
    /// To be transmitted on the interface.
    Egress,
}

/// Ports from `low` to `high`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    low: u16,
    high: u16,
}

/// All ports. It also matches packets without ports.
pub const PORTS_ANY: PortRange = PortRange { low: 0, high: u16::MAX };

impl PortRange {
    /// Creates a range; `None` if `low` exceeds `high`.
    pub const fn new(low: u16, high: u16) -> Option<Self> {
        if low <= high { Some(PortRange { low, high }) } else { None }
    }

    /// Creates the range of one port.
    pub const fn one(port: u16) -> Self {
        PortRange { low: port, high: port }
    }

    /// Returns the lowest port.
    pub const fn low(self) -> u16 {
        self.low
    }

    /// Returns the highest port.
    pub const fn high(self) -> u16 {
        self.high
    }

    /// Returns whether the range excludes no port.
    pub const fn is_any(self) -> bool {
        self.low == 0 && self.high == u16::MAX
    }

    /// Returns whether a packet with this port matches; a packet without ports matches only the range of all.
    pub fn matches(self, port: Option<u16>) -> bool {
        port.map_or(self.is_any(), |port| self.low <= port && port <= self.high)
    }

    /// Returns whether all ports of `other` are in this range.
    pub const fn covers(self, other: PortRange) -> bool {
        self.low <= other.low && other.high <= self.high
    }
}

/// Required TCP flags: the bits in `mask` must have their value in `value`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpFlags {
    /// Required values; 0 outside of the mask.
    pub value: u8,
    /// Bits that are compared; at least one.
    pub mask: u8,
}

/// Conditions on a packet. `None` and [`PORTS_ANY`] match everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Match {
    /// Source network. A network of length 0 still requires its address family.
    pub source: Option<Prefix>,
    /// Destination network.
    pub destination: Option<Prefix>,
    /// Source ports.
    pub source_ports: PortRange,
    /// Destination ports.
    pub destination_ports: PortRange,
    /// IP protocol number; in IPv6 that of the header after all extension headers.
    pub protocol: Option<u8>,
    /// Interface number, as assigned by the caller.
    pub interface: Option<u16>,
    /// Direction at that interface.
    pub direction: Option<Direction>,
    /// TCP flags; only TCP packets that contain the flags match.
    pub tcp_flags: Option<TcpFlags>,
    /// Differentiated services codepoint, below 64.
    pub dscp: Option<u8>,
}

impl Match {
    /// No conditions: every IP packet matches.
    pub const ANY: Match = Match {
        source: None,
        destination: None,
        source_ports: PORTS_ANY,
        destination_ports: PORTS_ANY,
        protocol: None,
        interface: None,
        direction: None,
        tcp_flags: None,
        dscp: None,
    };

    /// Returns whether the packet matches. This is the reference against which all other look-ups are tested.
    pub fn matches(&self, packet: &Fields) -> bool {
        self.source.is_none_or(|prefix| in_network(&prefix, packet.source))
            && self.destination.is_none_or(|prefix| in_network(&prefix, packet.destination))
            && self.source_ports.matches(packet.ports.map(|(source, _)| source))
            && self.destination_ports.matches(packet.ports.map(|(_, destination)| destination))
            && self.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && self.interface.is_none_or(|interface| interface == packet.interface)
            && self.direction.is_none_or(|direction| direction == packet.direction)
            && self.tcp_flags.is_none_or(|required| {
                let has = packet.tcp_flags.is_some_and(|flags| flags & required.mask == required.value);
                packet.protocol == PROTOCOL_TCP && has
            })
            && self.dscp.is_none_or(|dscp| dscp == packet.dscp)
    }

    /// Returns whether every packet that matches `other` also matches `self`. Sound, but incomplete where the
    /// implication follows from a relation between fields, except that required TCP flags imply protocol 6.
    pub fn covers(&self, other: &Match) -> bool {
        fn network(own: Option<Prefix>, other: Option<Prefix>) -> bool {
            own.is_none_or(|own| {
                other.is_some_and(|other| own.length() <= other.length() && in_network(&own, other.address()))
            })
        }
        fn exact<T: PartialEq>(own: Option<T>, other: Option<T>) -> bool {
            own.is_none() || own == other
        }
        let flags = self.tcp_flags.is_none_or(|own| {
            other.tcp_flags.is_some_and(|o| o.mask & own.mask == own.mask && o.value & own.mask == own.value)
        });
        let other_protocol = other.protocol.or(other.tcp_flags.map(|_| PROTOCOL_TCP));
        network(self.source, other.source)
            && network(self.destination, other.destination)
            && self.source_ports.covers(other.source_ports)
            && self.destination_ports.covers(other.destination_ports)
            && exact(self.protocol, other_protocol)
            && exact(self.interface, other.interface)
            && exact(self.direction, other.direction)
            && flags
            && exact(self.dscp, other.dscp)
    }

    /// Returns the required address family: `Some(true)` is IPv4. If both are required, no packet matches,
    /// and [`check`](Self::check) returns an error.
    pub(super) fn family(&self) -> Option<bool> {
        self.source.or(self.destination).map(|prefix| prefix.address().is_ipv4())
    }

    /// Checks that the values are in range and that some packet can match.
    pub fn check(&self) -> Result<(), RuleError> {
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.address().is_ipv4() != destination.address().is_ipv4()
        {
            return Err(RuleError::Families { source_network: source, destination });
        }
        if let Some(dscp) = self.dscp.filter(|dscp| *dscp > 63) {
            return Err(RuleError::Dscp(dscp));
        }
        if let Some(TcpFlags { value, mask }) = self.tcp_flags
            && (mask == 0 || value & !mask != 0)
        {
            return Err(RuleError::Flags { value, mask });
        }
        if let Some(protocol) = self.protocol.filter(|protocol| EXTENSION_HEADERS.contains(protocol))
            && self.family() == Some(false)
        {
            return Err(RuleError::ExtensionHeader(protocol));
        }
        let restricts_ports = !(self.source_ports.is_any() && self.destination_ports.is_any());
        match self.protocol {
            Some(protocol) if self.tcp_flags.is_some() && protocol != PROTOCOL_TCP => {
                Err(RuleError::FlagsWithoutTcp(protocol))
            }
            Some(protocol) if restricts_ports && !PROTOCOLS_WITH_PORTS.contains(&protocol) => {
                Err(RuleError::PortsWithoutProtocol(protocol))
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether the address is in the network, comparing bits. Unlike with [`Prefix::contains`], an
/// IPv4-mapped IPv6 address is an IPv6 address here, as it is in the packet.
pub(super) fn in_network(prefix: &Prefix, address: IpAddr) -> bool {
    match (prefix.address(), address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = mask_v4(prefix.length());
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = mask_v6(prefix.length());
            network.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

/// The mask of an IPv4 prefix of this length.
pub(super) fn mask_v4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0)
}

/// The mask of an IPv6 prefix of this length.
pub(super) fn mask_v6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0)
}

/// The fields of a packet that rules compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fields {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family.
    pub destination: IpAddr,
    /// Source and destination port. `None` if the protocol has no ports, or the packet is a fragment without
    /// them.
    pub ports: Option<(u16, u16)>,
    /// IP protocol number; in IPv6 that of the last header.
    pub protocol: u8,
    /// The interface on which it is classified.
    pub interface: u16,
    /// Its direction there.
    pub direction: Direction,
    /// The TCP flags octet. `None` if the packet is not TCP, or is a fragment without them.
    pub tcp_flags: Option<u8>,
    /// Differentiated services codepoint.
    pub dscp: u8,
}

/// A rule: its conditions, and the instance that receives matching packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Name, unique in a set of rules.
    pub name: Arc<str>,
    /// Rules with lower numbers are tried first; at most [`PRIORITY_MAX`].
    pub priority: u32,
    /// Conditions that a packet must meet.
    pub fields: Match,
    /// The instance that the packets are handed to.
    pub instance: InstanceId,
}

impl Rule {
    /// Checks the priority and the conditions.
    pub fn check(&self) -> Result<(), RuleError> {
        if self.priority > PRIORITY_MAX {
            return Err(RuleError::Priority(self.priority));
        }
        self.fields.check()
    }
}

/// Why a rule is invalid: a value is out of range, or no packet meets the conditions.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// The priority is too large.
    #[error("priority {0} exceeds {PRIORITY_MAX}")]
    Priority(u32),
    /// The networks are of different address families.
    #[error(
        "source {source_network} and destination {destination} are of different address families; no packet has both"
    )]
    Families {
        /// The source network.
        source_network: Prefix,
        /// The destination network.
        destination: Prefix,
    },
    /// The codepoint has more than 6 bits.
    #[error("DSCP {0} exceeds 63")]
    Dscp(u8),
    /// No bit is compared, or a required bit is not compared.
    #[error("TCP flags {value:#04x}/{mask:#04x}: the mask has at least one bit, and all bits of the value")]
    Flags {
        /// The required values.
        value: u8,
        /// The bits to compare.
        mask: u8,
    },
    /// TCP flags are required of another protocol.
    #[error("TCP flags are required, but protocol {0} has none; the protocol is 6 (TCP) or none")]
    FlagsWithoutTcp(u8),
    /// Ports are required of a protocol without ports.
    #[error(
        "ports are required, but protocol {0} has none; protocols with ports are 6, 17, 33, 132 and 136 (TCP, UDP, DCCP, SCTP, UDP-Lite)"
    )]
    PortsWithoutProtocol(u8),
    /// An IPv6 rule names an extension header, which is not the protocol of any packet.
    #[error(
        "protocol {0} is an extension header in IPv6, and no packet matches: an IPv6 rule compares the protocol behind all extension headers, such as 6 (TCP)"
    )]
    ExtensionHeader(u8),
}
