//! Addresses of flows.

use core::fmt;
use core::net::SocketAddr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns whether the group bit is set (broadcast and multicast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transport protocol of services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Returns its number in IP headers.
    pub const fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }

    /// Returns the transport protocol with this number.
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Transport::Tcp),
            17 => Some(Transport::Udp),
            _ => None,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        })
    }
}

/// How a packet is packed into another one on its way to a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encapsulation {
    /// IP in IP (RFC 2003, RFC 2473, RFC 4213 §3).
    IpIp,
    /// Generic UDP Encapsulation, to UDP port 6080 (draft-ietf-intarea-gue-09, variant 0).
    Gue,
}

/// The two ends of a TCP connection, seen from the cluster: `local` is the service's end (the VIP), `remote`
/// the client's. Both have the same address family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FourTuple {
    /// The cluster's end.
    pub local: SocketAddr,
    /// The client's end.
    pub remote: SocketAddr,
}

impl fmt::Display for FourTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.remote, self.local)
    }
}
