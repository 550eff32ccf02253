//! Whose records are written and how: what all of them have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_daemon::clock;
use csp_policy::LogAddresses;
use csp_types::{Instant, NodeId};

use super::Format;

/// Lengths of the networks that are recorded in place of addresses: about a site of a provider's customer.
const PREFIX_LEN_V4: u32 = 24;
const PREFIX_LEN_V6: u32 = 56;

/// Converts the workers' clock to that of the day.
pub struct Times {
    pub(super) now: Instant,
    pub(super) unix_ms: u64,
}

impl Times {
    /// Returns the conversion for records up to `now`.
    pub fn new(now: Instant) -> Times {
        let age = clock::now().saturating_since(now).as_millis();
        Times { now, unix_ms: clock::unix_now_ms().saturating_sub(age as u64) }
    }

    /// Returns the time of the day in milliseconds since 1970.
    pub fn unix_ms(&self, at: Instant) -> u64 {
        self.unix_ms.saturating_sub(self.now.saturating_since(at).as_millis() as u64)
    }
}

/// Whose records are written, and how.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// The proxy node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// The format.
    pub format: Format,
    /// How much of clients' addresses is written.
    pub addresses: LogAddresses,
}

/// Returns as much of a client's address and port as is recorded.
pub(super) fn client(address: SocketAddr, addresses: LogAddresses) -> String {
    match addresses {
        LogAddresses::Full => address.to_string(),
        _ => client_address(address.ip(), addresses),
    }
}

/// Returns as much of a client's address as is recorded.
pub(super) fn client_address(address: IpAddr, addresses: LogAddresses) -> String {
    match (addresses, address) {
        (LogAddresses::Full, _) => address.to_string(),
        (LogAddresses::None, _) => String::new(),
        (LogAddresses::Prefix, IpAddr::V4(ip)) => {
            let network = Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (32 - PREFIX_LEN_V4)));
            format!("{network}/{PREFIX_LEN_V4}")
        }
        (LogAddresses::Prefix, IpAddr::V6(ip)) => {
            let network = Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - PREFIX_LEN_V6)));
            format!("{network}/{PREFIX_LEN_V6}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_recorded_in_place_of_an_address() {
        let short = |text: &str| client(text.parse().unwrap(), LogAddresses::Prefix);
        assert_eq!(short("192.0.2.255:1"), "192.0.2.0/24");
        assert_eq!(short("[2001:db8:1:2ff:ffff::1]:443"), "2001:db8:1:200::/56");
    }
}
