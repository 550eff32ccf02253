//! The PROXY protocol's header, versions 1 and 2 (`proxy-protocol.txt` of HAProxy, sections 2.1 and 2.2).

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

/// A version of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Longest header, in bytes: a line of version 1 with IPv6 addresses.
const LEN_MAX: usize = 107;
/// First bytes of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY, and command LOCAL.
const PROXY: u8 = 0x21;
const LOCAL: u8 = 0x20;
/// TCP over IPv4, and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// The bytes of a header.
#[derive(Debug)]
pub(super) struct HeaderBytes {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl std::ops::Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl HeaderBytes {
    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }
}

impl ProxyHeader {
    /// Returns the header of a connection that no client has asked for.
    pub(super) fn local(self) -> HeaderBytes {
        let mut header = HeaderBytes { bytes: [0; LEN_MAX], len: 0 };
        match self {
            ProxyHeader::V1 => header.push(b"PROXY UNKNOWN\r\n"),
            ProxyHeader::V2 => {
                header.push(&SIGNATURE);
                header.push(&[LOCAL, 0, 0, 0]);
            }
        }
        header
    }

    /// Returns the header of a connection that `client` opened to `service`. Both are of one family.
    pub(super) fn bytes(self, client: SocketAddr, service: SocketAddr) -> HeaderBytes {
        let mut header = HeaderBytes { bytes: [0; LEN_MAX], len: 0 };
        match self {
            ProxyHeader::V1 => {
                let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
                let mut room = &mut header.bytes[..];
                let (from, to) = (client.ip(), service.ip());
                // The longest line fits.
                let _ = write!(room, "PROXY {family} {from} {to} {} {}\r\n", client.port(), service.port());
                header.len = LEN_MAX - room.len();
            }
            ProxyHeader::V2 => {
                let (family, len) = if client.is_ipv4() { (TCP4, 12u16) } else { (TCP6, 36) };
                header.push(&SIGNATURE);
                header.push(&[PROXY, family]);
                header.push(&len.to_be_bytes());
                for ip in [client.ip(), service.ip()] {
                    match ip {
                        IpAddr::V4(v4) => header.push(&v4.octets()),
                        IpAddr::V6(v6) => header.push(&v6.octets()),
                    }
                }
                header.push(&client.port().to_be_bytes());
                header.push(&service.port().to_be_bytes());
            }
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: ProxyHeader, client: &str, service: &str) -> Vec<u8> {
        version.bytes(client.parse().unwrap(), service.parse().unwrap()).to_vec()
    }

    #[test]
    fn the_line_of_version_1() {
        let line = header(ProxyHeader::V1, "192.0.2.7:56324", "10.76.0.100:443");
        assert_eq!(line, b"PROXY TCP4 192.0.2.7 10.76.0.100 56324 443\r\n");
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        let line = header(ProxyHeader::V1, longest, longest);
        assert_eq!((line.len(), line.ends_with(b" 65535 65535\r\n")), (104, true));
    }

    #[test]
    fn the_bytes_of_version_2() {
        let bytes = header(ProxyHeader::V2, "192.0.2.7:258", "10.76.0.100:443");
        let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\x4c\0\x64\x01\x02\x01\xbb";
        assert_eq!(bytes, expected);
        assert_eq!(*ProxyHeader::V1.local(), *b"PROXY UNKNOWN\r\n");
        assert_eq!(*ProxyHeader::V2.local(), *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
        let bytes = header(ProxyHeader::V2, "[2001:db8::1]:1", "[2001:db8::2]:2");
        assert_eq!((bytes.len(), &bytes[12..16]), (52, &b"\x21\x21\0\x24"[..]));
        assert_eq!(bytes[48..], [0, 1, 0, 2]);
    }
}
