//! The PROXY protocol's header, versions 1 and 2 (`proxy-protocol.txt` of HAProxy, sections 2.1 and 2.2):
//! given to servers, and read from balancers in front.

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
pub struct HeaderBytes {
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
    pub fn local(self) -> HeaderBytes {
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
    pub fn bytes(self, client: SocketAddr, service: SocketAddr) -> HeaderBytes {
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

/// Longest header that is accepted, in bytes: version 2 with what balancers add.
pub const ACCEPTED_MAX: usize = 1_024;
/// Length of version 2 before its addresses, in bytes.
const FIXED_LEN: usize = 16;

/// What the first bytes of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The start of a header: more bytes are needed.
    More,
    /// A header.
    Header {
        /// Its length in bytes.
        len: usize,
        /// The client's address; `None`: the balancer's own connection, or another protocol's.
        client: Option<SocketAddr>,
    },
    /// No header, or one that is longer than 1,024 bytes.
    Other,
}

/// Reads the header at the start of a connection's bytes, of either version.
pub fn parse(bytes: &[u8]) -> Parsed {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(byte, expected)| byte == expected);
    if begins(&SIGNATURE) {
        parse_v2(bytes)
    } else if begins(b"PROXY ") {
        parse_v1(bytes)
    } else {
        Parsed::Other
    }
}

fn parse_v1(bytes: &[u8]) -> Parsed {
    let start = &bytes[..bytes.len().min(LEN_MAX)];
    let Some(end) = start.windows(2).position(|pair| pair == b"\r\n") else {
        return if start.len() < LEN_MAX { Parsed::More } else { Parsed::Other };
    };
    let len = end + 2;
    let Ok(line) = std::str::from_utf8(&start[..end]) else { return Parsed::Other };
    let mut words = line.split(' ').skip(1);
    let family = words.next();
    if family == Some("UNKNOWN") {
        return Parsed::Header { len, client: None };
    }
    let (source, destination) = (words.next(), words.next());
    let (port, other, rest) = (words.next(), words.next(), words.next());
    let address = |text: Option<&str>| text?.parse::<IpAddr>().ok();
    let number = |text: Option<&str>| text?.parse::<u16>().ok();
    let v4 = family == Some("TCP4");
    let ends = (address(source), address(destination), number(port), number(other), rest);
    match ends {
        (Some(source), Some(destination), Some(port), Some(_), None)
            if (v4 || family == Some("TCP6")) && source.is_ipv4() == v4 && destination.is_ipv4() == v4 =>
        {
            Parsed::Header { len, client: Some((source, port).into()) }
        }
        _ => Parsed::Other,
    }
}

fn parse_v2(bytes: &[u8]) -> Parsed {
    let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else { return Parsed::More };
    let len = FIXED_LEN + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if len > ACCEPTED_MAX || !matches!(fixed[12], LOCAL | PROXY) {
        return Parsed::Other;
    }
    let Some(addresses) = bytes.get(FIXED_LEN..len) else { return Parsed::More };
    let client = match (fixed[12], fixed[13]) {
        (PROXY, TCP4) => addresses.first_chunk::<12>().map(|a| {
            let source = [a[0], a[1], a[2], a[3]];
            SocketAddr::from((source, u16::from_be_bytes([a[8], a[9]])))
        }),
        (PROXY, TCP6) => addresses.first_chunk::<36>().and_then(|a| {
            let source: [u8; 16] = *a.first_chunk()?;
            Some(SocketAddr::from((source, u16::from_be_bytes([a[32], a[33]]))))
        }),
        // LOCAL: a check by the balancer; or UDP, a socket's path, unspecified.
        _ => return Parsed::Header { len, client: None },
    };
    client.map_or(Parsed::Other, |client| Parsed::Header { len, client: Some(client) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (client, service) in
            [("192.0.2.7:56324", "10.76.0.100:443"), ("[2001:db8::1]:1", "[2001:db8::2]:65535")]
        {
            for version in [ProxyHeader::V1, ProxyHeader::V2] {
                let mut bytes = header(version, client, service);
                let len = bytes.len();
                let expected = Parsed::Header { len, client: Some(client.parse().unwrap()) };
                (0..len).for_each(|end| assert_eq!(parse(&bytes[..end]), Parsed::More, "{end}"));
                bytes.extend(b"GET /");
                assert_eq!(parse(&bytes), expected);
            }
        }
        for version in [ProxyHeader::V1, ProxyHeader::V2] {
            let bytes = version.local();
            assert_eq!(parse(&bytes), Parsed::Header { len: bytes.len(), client: None });
        }
    }

    #[test]
    fn what_follows_the_addresses_belongs_to_the_header() {
        let mut bytes = header(ProxyHeader::V2, "192.0.2.7:258", "10.76.0.100:443");
        bytes.extend(b"\x03\0\x04abcd");
        bytes[15] += 7;
        let client = Some("192.0.2.7:258".parse().unwrap());
        assert_eq!(parse(&bytes), Parsed::Header { len: 35, client });
        assert_eq!(parse(&bytes[..34]), Parsed::More);
        bytes[14] = 4;
        assert_eq!(parse(&bytes), Parsed::Other, "too long");
    }

    #[test]
    fn anything_else_is_no_header() {
        let version_3 = b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c............";
        let short = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04....";
        let endless = [&b"PROXY UNKNOWN "[..], &[b'x'; 100]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 192.0.2.7 10.76.0.100 56324\r\n",
            b"PROXY TCP4 192.0.2.7 10.76.0.100 56324 99999\r\n",
            b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
            b"PROXY TCP4 192.0.2.7 10.76.0.100 1 2 3\r\n",
            b"PROXY TCP5 192.0.2.7 10.76.0.100 1 2\r\n",
            b"PROXY TCP4 \xff.0.2.7 10.76.0.100 1 2\r\n",
            version_3,
            short,
            &endless,
        ] {
            assert_eq!(parse(bytes), Parsed::Other, "{}", String::from_utf8_lossy(bytes));
        }
    }

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
