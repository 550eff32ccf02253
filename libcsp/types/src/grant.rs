//! The ports and destinations that a process may use. Its agent decides and signs them into its token;
//! proxies enforce them.
//!
//! ```text
//! flags (1: ports are shared) | count | {first port (2) | last port (2)} each
//!                             | count | {port (2) | user id (4)} each                             held sockets
//!                             | count | {family (1) | prefix length (1) | first port (2) | last port (2) | address (4 or 16)} each
//! ```
//! Integers are little-endian. Each list is bounded, so that the longest grant fits a token.

use core::fmt;
use core::net::IpAddr;

use crate::Prefix;

/// Most ranges of ports that a grant lists.
pub const LISTEN_MAX: usize = 16;
/// Largest number of kernel sockets in a grant that the process holds.
pub const HELD_MAX: usize = 16;
/// Most destinations that a grant lists.
pub const CONNECT_MAX: usize = 8;
/// Longest form of a grant, in bytes.
pub const GRANT_LEN_MAX: usize = 1 + 1 + 4 * LISTEN_MAX + 1 + 6 * HELD_MAX + 1 + 22 * CONNECT_MAX;

const FLAG_SHARED: u8 = 1;

/// A range of ports, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port, not below the first.
    pub last: u16,
}

impl Ports {
    /// All ports.
    pub const ALL: Ports = Ports { first: 0, last: u16::MAX };
    /// The ports that any user may bind (ip(7), `ip_unprivileged_port_start`).
    pub const UNPRIVILEGED: Ports = Ports { first: 1024, last: u16::MAX };

    /// Whether the range contains `port`.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// A destination to which a process may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The network.
    pub network: Prefix,
    /// The ports of addresses in the network.
    pub ports: Ports,
}

impl Target {
    /// Every address of IPv4 and IPv6, every port.
    pub fn everywhere() -> impl Iterator<Item = Target> {
        let all = [IpAddr::from([0u8; 4]), IpAddr::from([0u8; 16])];
        let network = all.into_iter().filter_map(|ip| Prefix::new(ip, 0).ok()); // 0 bits suit every address
        network.map(|network| Target { network, ports: Ports::ALL })
    }
}

/// A kernel socket that a process holds: it created, inherited or received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The port that it is bound to.
    pub port: u16,
    /// The user that created it.
    pub uid: u32,
}

/// A list of at most `N` entries, kept inline.
#[derive(Clone, Copy, PartialEq, Eq)]
struct List<T, const N: usize> {
    entries: [Option<T>; N],
}

impl<T: Copy, const N: usize> List<T, N> {
    const EMPTY: Self = List { entries: [None; N] };

    fn of(from: impl IntoIterator<Item = T>) -> Self {
        let mut list = Self::EMPTY;
        list.entries.iter_mut().zip(from).for_each(|(place, entry)| *place = Some(entry));
        list
    }

    fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.entries.iter().map_while(|entry| *entry)
    }
}

/// The permissions of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    listen: List<Ports, LISTEN_MAX>,
    held: List<Held, HELD_MAX>,
    connect: List<Target, CONNECT_MAX>,
    shared: bool,
}

impl Grant {
    /// Permits nothing.
    pub const NONE: Grant =
        Grant { listen: List::EMPTY, held: List::EMPTY, connect: List::EMPTY, shared: false };

    /// Permits listening on `listen` and connecting to `connect`. Entries beyond [`LISTEN_MAX`] and
    /// [`CONNECT_MAX`] are omitted.
    pub fn new(listen: impl IntoIterator<Item = Ports>, connect: impl IntoIterator<Item = Target>) -> Self {
        Grant { listen: List::of(listen), connect: List::of(connect), ..Grant::NONE }
    }

    /// Permits everything.
    pub fn all() -> Self {
        Grant::new([Ports::ALL], Target::everywhere())
    }

    /// Replaces the list of kernel sockets that the process holds; entries beyond [`HELD_MAX`] are omitted.
    /// The process may listen on their ports on behalf of the users that created them.
    #[must_use]
    pub fn holding(self, sockets: impl IntoIterator<Item = Held>) -> Self {
        Grant { held: List::of(sockets), ..self }
    }

    /// Sets whether the ports are shared. Processes of several users may listen on a port if all their grants
    /// share it.
    #[must_use]
    pub const fn shared(self, shared: bool) -> Self {
        Grant { shared, ..self }
    }

    /// Whether the process may listen on `port` on behalf of its own user.
    pub fn listens(&self, port: u16) -> bool {
        self.listen.iter().any(|ports| ports.contains(port))
    }

    /// The users on whose behalf the process may listen on `port`: it holds sockets that they created there.
    pub fn holders(&self, port: u16) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().filter(move |held| held.port == port).map(|held| held.uid)
    }

    /// Whether the ports are shared with other users.
    pub const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether the process may connect to `port` of `ip`.
    pub fn connects(&self, ip: IpAddr, port: u16) -> bool {
        self.connect.iter().any(|to| to.network.contains(ip) && to.ports.contains(port))
    }

    /// Writes the grant, at most [`GRANT_LEN_MAX`] bytes, part by part.
    pub fn write(&self, mut put: impl FnMut(&[u8])) {
        put(&[if self.shared { FLAG_SHARED } else { 0 }, self.listen.iter().count() as u8]);
        for Ports { first, last } in self.listen.iter() {
            put(&first.to_le_bytes());
            put(&last.to_le_bytes());
        }
        put(&[self.held.iter().count() as u8]);
        for Held { port, uid } in self.held.iter() {
            put(&port.to_le_bytes());
            put(&uid.to_le_bytes());
        }
        put(&[self.connect.iter().count() as u8]);
        for Target { network, ports } in self.connect.iter() {
            let family = if network.address().is_ipv4() { 4 } else { 6 };
            put(&[family, network.length()]);
            put(&ports.first.to_le_bytes());
            put(&ports.last.to_le_bytes());
            match network.address() {
                IpAddr::V4(ip) => put(&ip.octets()),
                IpAddr::V6(ip) => put(&ip.octets()),
            }
        }
    }

    /// Parses a grant at the start of `bytes`. Also returns the bytes after it.
    pub fn parse(bytes: &[u8]) -> Option<(Grant, &[u8])> {
        let (&[flags, count], mut rest) = bytes.split_first_chunk::<2>()?;
        if flags & !FLAG_SHARED != 0 {
            return None;
        }
        let listen = parse_list(count, &mut rest, ports)?;
        let count = byte(&mut rest)?;
        let held = parse_list(count, &mut rest, held)?;
        let count = byte(&mut rest)?;
        let connect = parse_list(count, &mut rest, target)?;
        Some((Grant { listen, held, connect, shared: flags & FLAG_SHARED != 0 }, rest))
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("listen", &self.listen.iter().collect::<alloc::vec::Vec<_>>())
            .field("held", &self.held.iter().collect::<alloc::vec::Vec<_>>())
            .field("connect", &self.connect.iter().collect::<alloc::vec::Vec<_>>())
            .field("shared", &self.shared)
            .finish()
    }
}

fn parse_list<T: Copy, const N: usize>(
    count: u8,
    rest: &mut &[u8],
    entry: impl Fn(&mut &[u8]) -> Option<T>,
) -> Option<List<T, N>> {
    let mut list = List::EMPTY;
    for place in list.entries.get_mut(..usize::from(count))? {
        *place = Some(entry(rest)?);
    }
    Some(list)
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    Some(first)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*first)
}

fn number(rest: &mut &[u8]) -> Option<u16> {
    array(rest).map(u16::from_le_bytes)
}

fn held(rest: &mut &[u8]) -> Option<Held> {
    Some(Held { port: number(rest)?, uid: u32::from_le_bytes(array(rest)?) })
}

fn ports(rest: &mut &[u8]) -> Option<Ports> {
    let (first, last) = (number(rest)?, number(rest)?);
    (first <= last).then_some(Ports { first, last })
}

fn target(rest: &mut &[u8]) -> Option<Target> {
    let (family, length, ports) = (byte(rest)?, byte(rest)?, ports(rest)?);
    let address = match family {
        4 => IpAddr::from(array::<4>(rest)?),
        6 => IpAddr::from(array::<16>(rest)?),
        _ => return None,
    };
    Some(Target { network: Prefix::new(address, length).ok()?, ports })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn written(grant: &Grant) -> Vec<u8> {
        let mut bytes = Vec::new();
        grant.write(|part| bytes.extend_from_slice(part));
        bytes
    }

    fn largest() -> Grant {
        let listen = (0..LISTEN_MAX as u16).map(|n| Ports { first: n, last: n + 1000 });
        let network: Prefix = "2001:db8::/32".parse().unwrap();
        let connect = (0..CONNECT_MAX).map(|_| Target { network, ports: Ports::ALL });
        Grant::new(listen, connect)
            .holding((1..=HELD_MAX as u16).map(|port| Held { port, uid: 7 }))
            .shared(true)
    }

    #[test]
    fn a_grant_is_read_as_written_and_none_exceeds_the_bound() {
        for grant in [Grant::NONE, Grant::all(), largest(), Grant::NONE.holding([Held { port: 80, uid: 0 }])]
        {
            let bytes = written(&grant);
            assert!(bytes.len() <= GRANT_LEN_MAX, "{} bytes", bytes.len());
            assert_eq!(Grant::parse(&bytes), Some((grant, &[][..])));
            for cut in 0..bytes.len() {
                assert_eq!(Grant::parse(&bytes[..cut]), None, "cut at {cut} of {grant:?}");
            }
        }
        assert_eq!(written(&largest()).len(), GRANT_LEN_MAX);
    }

    #[test]
    fn nonsense_is_no_grant() {
        let good = written(&largest());
        for (at, value) in [(0, 2), (1, LISTEN_MAX as u8 + 1), (1 + 1 + 4 * LISTEN_MAX, HELD_MAX as u8 + 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Grant::parse(&bad), None, "byte {at}");
        }
        assert_eq!(Grant::parse(&[0, 1, 2, 0, 1, 0, 0, 0]), None, "a range that ends before it begins");
        assert_eq!(Grant::parse(&[0, 0, 0, 1, 4, 33, 0, 0, 0, 0, 1, 2, 3, 4]), None, "33 bits of IPv4");
        assert_eq!(Grant::parse(&[0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 1, 2, 3, 4]), None, "an unknown family");
    }

    #[test]
    fn a_grant_allows_what_it_lists() {
        let to = Target { network: "10.0.0.0/8".parse().unwrap(), ports: Ports { first: 443, last: 443 } };
        let grant =
            Grant::new([Ports { first: 8000, last: 8080 }], [to]).holding([Held { port: 80, uid: 33 }]);
        assert!(grant.holders(80).eq([33]) && grant.holders(8000).next().is_none());
        for (port, allowed) in [(80, false), (7999, false), (8000, true), (8080, true)] {
            assert_eq!(grant.listens(port), allowed, "{port}");
        }
        for (ip, port, allowed) in
            [("10.1.2.3", 443, true), ("10.1.2.3", 80, false), ("11.0.0.1", 443, false), ("::1", 443, false)]
        {
            assert_eq!(grant.connects(ip.parse().unwrap(), port), allowed, "{ip} {port}");
        }
        assert!(Grant::all().connects("::1".parse().unwrap(), 1) && Grant::all().listens(1));
        assert!(!Grant::NONE.listens(1) && !Grant::NONE.connects("10.0.0.1".parse().unwrap(), 1));
    }
}
