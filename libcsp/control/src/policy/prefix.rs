//! Networks in CIDR notation.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An IPv4 or IPv6 network such as `10.76.0.0/24` (RFC 4632 §3.1, RFC 4291 §2.3). Its host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text or a pair is no network.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// Not `ADDRESS/LENGTH`.
    #[error("{0:?} is no network; allowed is ADDRESS/LENGTH, such as 10.76.0.0/24 or 2001:db8::/32")]
    Syntax(String),
    /// More bits than the address has.
    #[error("a prefix of {0} has 0 to {1} bits, not {2}")]
    Length(IpAddr, u8, u8),
    /// Bits set behind the prefix.
    #[error("{0}/{1} has host bits set; the network is {2}/{1}")]
    HostBits(IpAddr, u8, IpAddr),
}

impl Prefix {
    /// The network of `length` bits at `address`.
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

    /// The network's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of bits in front that addresses share.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether `address` lies in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.length) == self.address
    }
}

/// `address` with all but its first `length` bits zero.
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
        let syntax = || PrefixError::Syntax(text.to_owned());
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

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
