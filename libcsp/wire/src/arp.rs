//! Address resolution for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use csp_types::MacAddr;

use crate::WireError;
use crate::bytes::{array_at, room};

/// Bytes of a packet.
pub const PACKET_LEN: usize = 28;

/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// The operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Operation {
    /// Asks for the hardware address of the target.
    Request = 1,
    /// States that the sender has the sender address.
    Reply = 2,
}

/// A checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    raw: &'a [u8; PACKET_LEN],
    operation: Operation,
}

impl<'a> Packet<'a> {
    /// Checks types, address lengths, the operation, and that the sender is not a group address. Bytes after
    /// the packet are ignored, because short Ethernet frames are padded.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let raw = array_at::<PACKET_LEN>(bytes, 0, "arp packet")?;
        if let Some(offset) = ETHERNET_IPV4.iter().zip(raw).position(|(expected, found)| expected != found) {
            return Err(WireError::Unsupported { what: "arp hardware or protocol", offset });
        }
        let operation = match u16::from_be_bytes([raw[6], raw[7]]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            found => return Err(WireError::Kind { what: "arp operation", offset: 6, found: found.into() }),
        };
        let packet = Packet { raw, operation };
        if packet.sender_mac().is_multicast() {
            return Err(WireError::Value { what: "arp sender hardware address", offset: 8 });
        }
        Ok(packet)
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Sender's hardware address.
    pub fn sender_mac(&self) -> MacAddr {
        self.mac_at(8)
    }

    /// Sender's protocol address; unspecified in a probe (RFC 5227 §1.1).
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.ip_at(14)
    }

    /// Target's hardware address; meaningless in a request.
    pub fn target_mac(&self) -> MacAddr {
        self.mac_at(18)
    }

    /// Target's protocol address.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.ip_at(24)
    }

    fn mac_at(&self, at: usize) -> MacAddr {
        let raw = self.raw;
        MacAddr([raw[at], raw[at + 1], raw[at + 2], raw[at + 3], raw[at + 4], raw[at + 5]])
    }

    fn ip_at(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::new(self.raw[at], self.raw[at + 1], self.raw[at + 2], self.raw[at + 3])
    }
}

/// A packet's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The operation.
    pub operation: Operation,
    /// Sender's hardware address.
    pub sender_mac: MacAddr,
    /// Sender's protocol address.
    pub sender_ip: Ipv4Addr,
    /// Target's hardware address; zero in requests.
    pub target_mac: MacAddr,
    /// Target's protocol address.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// The packet's contents.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Repr {
            operation: packet.operation(),
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        }
    }

    /// A request for the hardware address of `target_ip`.
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        let target_mac = MacAddr([0; 6]);
        Repr { operation: Operation::Request, sender_mac, sender_ip, target_mac, target_ip }
    }

    /// The reply that `mac` has the address that this packet requests.
    pub const fn answer(&self, mac: MacAddr) -> Self {
        Repr {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// The announcement that `mac` has `ip` (RFC 5227 §3).
    pub const fn announcement(mac: MacAddr, ip: Ipv4Addr) -> Self {
        Repr::request(mac, ip, ip)
    }

    /// Bytes of the packet.
    pub const fn len(&self) -> usize {
        PACKET_LEN
    }

    /// Always false: the encoding is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the packet; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = room(out, PACKET_LEN, "arp packet")?;
        out[0..6].copy_from_slice(&ETHERNET_IPV4);
        out[6..8].copy_from_slice(&(self.operation as u16).to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
        Ok(PACKET_LEN)
    }
}
