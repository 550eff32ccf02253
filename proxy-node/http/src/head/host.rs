//! Hosts: a name or an address, and perhaps a port (RFC 9110 §7.2, RFC 3986 §3.2).

use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::limits::HOST_LEN_MAX;

/// A host and its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host<'a> {
    /// The name or address as the peer wrote it; an IPv6 address with its brackets. Not empty.
    pub name: &'a [u8],
    /// The port, if one is given.
    pub port: Option<u16>,
}

impl<'a> Host<'a> {
    /// Parses a `Host` field or the authority of a target. `None`: it is empty, longer than
    /// [`HOST_LEN_MAX`] and a port, names a user, or has characters that no name of a host has.
    pub fn parse(text: &'a [u8]) -> Option<Host<'a>> {
        let (name, port) = match memchr::memrchr2(b':', b']', text) {
            Some(colon) if text[colon] == b':' => (&text[..colon], Some(port(&text[colon + 1..])?)),
            _ => (text, None),
        };
        let is_right = match name {
            [b'[', address @ .., b']'] => {
                let address = std::str::from_utf8(address).ok()?;
                Ipv6Addr::from_str(address).is_ok()
            }
            _ => {
                !name.is_empty()
                    && name.len() <= HOST_LEN_MAX
                    && name.iter().all(|byte| NAME_BYTES[usize::from(*byte)])
            }
        };
        is_right.then_some(Host { name, port })
    }

    /// Returns whether both name the same host and port, where a missing port is `default`.
    pub fn is_same(&self, other: &Host<'_>, default: u16) -> bool {
        self.name.eq_ignore_ascii_case(other.name)
            && self.port.unwrap_or(default) == other.port.unwrap_or(default)
    }
}

/// Which bytes a name of a host may have.
const NAME_BYTES: [bool; 256] = {
    let mut bytes = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    bytes
};

fn port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 || digits.is_empty() {
        return None;
    }
    let digit = |port: u32, byte: &u8| byte.is_ascii_digit().then(|| port * 10 + u32::from(byte - b'0'));
    u16::try_from(digits.iter().try_fold(0, digit)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let parsed = |text: &'static str| Host::parse(text.as_bytes()).map(|host| (host.name, host.port));
        assert_eq!(parsed("example.com"), Some((&b"example.com"[..], None)));
        assert_eq!(parsed("example.com:8080"), Some((&b"example.com"[..], Some(8080))));
        assert_eq!(parsed("[2001:db8::1]:443"), Some((&b"[2001:db8::1]"[..], Some(443))));
        assert_eq!(parsed("[::1]"), Some((&b"[::1]"[..], None)));
        for wrong in [
            "", ":80", "a:", "a:65536", "a:+1", "a:80:80", "a b", "a,b", "u@a", "a/b", "[::1", "::1",
            "[::1]x", "[v1.x]", "a:000080", "a%41", "[]", "a\\b", "a?b",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
