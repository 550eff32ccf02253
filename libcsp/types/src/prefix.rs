//! Networks in CIDR notation, and longest-prefix matching.

use alloc::string::{String, ToString};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// An IPv4 or IPv6 network such as `10.76.0.0/24` (RFC 4632 §3.1, RFC 4291 §2.3). Its host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text, or an address and a length, are not a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrefixError {
    /// The text is not of the form `ADDRESS/LENGTH`.
    Syntax(String),
    /// The length exceeds the bits of the address; contains the address, its bits and the length.
    Length(IpAddr, u8, u8),
    /// The address has bits set after the prefix; contains the address, the length, and the network's
    /// address.
    HostBits(IpAddr, u8, IpAddr),
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixError::Syntax(text) => write!(
                f,
                "{text:?} is not a network; expected ADDRESS/LENGTH, such as 10.76.0.0/24 or 2001:db8::/32"
            ),
            PrefixError::Length(address, bits, length) => {
                write!(f, "a prefix of {address} has 0 to {bits} bits, not {length}")
            }
            PrefixError::HostBits(address, length, network) => {
                write!(f, "{address}/{length} has host bits set; the network is {network}/{length}")
            }
        }
    }
}

impl core::error::Error for PrefixError {}

impl Prefix {
    /// Creates the network of `length` bits at `address`.
    pub fn new(address: IpAddr, length: u8) -> Result<Prefix, PrefixError> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if length > bits {
            return Err(PrefixError::Length(address, bits, length));
        }
        let network = masked(address, length);
        if network != address {
            return Err(PrefixError::HostBits(address, length, network));
        }
        Ok(Prefix { address, length })
    }

    /// Returns the network's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns whether the network contains `address`. An IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2) is
    /// treated as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.length) == self.address
    }

    /// Returns whether the network contains all addresses of `other`.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

/// Returns `address` with all bits after the first `length` cleared.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let syntax = || PrefixError::Syntax(text.to_string());
        let (address, length) = text.split_once('/').ok_or_else(syntax)?;
        let address = address.parse().map_err(|_| syntax())?;
        let length = length.parse().map_err(|_| syntax())?;
        Prefix::new(address, length)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Returns the value of the longest network in `entries` that contains `address`. Each entry is a network,
/// whether it is an exception, and a value. Of two networks of equal length the exception prevails. Returns
/// `None` if no network contains the address, or if the one that prevails is an exception.
pub fn longest_match<T>(entries: impl IntoIterator<Item = (Prefix, bool, T)>, address: IpAddr) -> Option<T> {
    let containing = entries.into_iter().filter(|(prefix, ..)| prefix.contains(address));
    let decides = containing.max_by_key(|(prefix, except, _)| (prefix.length, *except));
    decides.filter(|(_, except, _)| !except).map(|(.., what)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_contains_its_own_addresses_only() {
        for (network, address, expected) in [
            ("10.76.0.0/24", "10.76.0.255", true),
            ("10.76.0.0/24", "10.76.1.0", false),
            ("10.76.0.0/24", "::1", false),
            ("10.76.0.0/24", "::ffff:10.76.0.9", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("10.76.0.7/32", "10.76.0.7", true),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "192.0.2.1", false),
        ] {
            assert_eq!(
                prefix(network).contains(address.parse().unwrap()),
                expected,
                "{address} in {network}"
            );
        }
    }

    #[test]
    fn an_invalid_network_is_reported_with_the_valid_form() {
        for (text, words) in [
            ("10.76.0.0", "ADDRESS/LENGTH"),
            ("10.76.0.0/x", "ADDRESS/LENGTH"),
            ("10.76.0.0/33", "0 to 32 bits, not 33"),
            ("::/129", "0 to 128 bits, not 129"),
            ("10.76.0.1/24", "the network is 10.76.0.0/24"),
        ] {
            let error = text.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(prefix("2001:db8::/32").to_string(), "2001:db8::/32");
    }

    #[test]
    fn the_longest_network_decides_and_of_two_the_exception() {
        let entries = [
            (prefix("0.0.0.0/0"), false, "all"),
            (prefix("10.0.0.0/8"), true, "not ten"),
            (prefix("10.76.0.0/24"), false, "clients"),
            (prefix("10.76.0.7/32"), false, "seven"),
            (prefix("10.76.0.7/32"), true, "not seven"),
        ];
        for (address, expected) in [
            ("192.0.2.1", Some("all")),
            ("10.1.2.3", None),
            ("10.76.0.1", Some("clients")),
            ("10.76.0.7", None),
            ("::1", None),
        ] {
            assert_eq!(longest_match(entries, address.parse().unwrap()), expected, "{address}");
        }
    }
}
