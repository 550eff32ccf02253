//! Network interfaces and their addresses, as `ip -json address show` lists them.

use std::net::IpAddr;

use serde::Deserialize;

/// One interface.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    #[serde(rename = "ifname")]
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u64,
    /// UP, LOWER_UP, LOOPBACK and others.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Its addresses.
    #[serde(default)]
    pub addr_info: Vec<Address>,
}

/// One address of an interface.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Address {
    /// The address; absent for families other than IP.
    #[serde(default)]
    pub local: Option<IpAddr>,
    /// Length of its prefix.
    #[serde(default)]
    pub prefixlen: u8,
}

impl Interface {
    /// Returns whether it has this address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.prefix_of(address).is_some()
    }

    /// Returns the length of the prefix with which it has this address.
    pub fn prefix_of(&self, address: IpAddr) -> Option<u8> {
        self.addr_info.iter().find(|of| of.local == Some(address)).map(|of| of.prefixlen)
    }

    /// Returns whether it is the host's own loopback.
    pub fn is_loopback(&self) -> bool {
        self.flags.iter().any(|flag| flag == "LOOPBACK")
    }

    /// Returns whether it is switched on and has a link.
    pub fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "LOWER_UP")
    }
}

/// Reads the output of `ip -json address show`.
pub(super) fn parse(json: &str) -> Result<Vec<Interface>, String> {
    // Older releases of ip write an empty object for what they were not asked for.
    let all: Vec<serde_json::Value> = serde_json::from_str(json)
        .map_err(|error| format!("the output of `ip` is not understood: {error}"))?;
    Ok(all.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect())
}
