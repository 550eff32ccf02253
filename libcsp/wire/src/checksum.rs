//! The Internet checksum (RFC 1071), its pseudo-headers and its incremental update.
//!
//! Values are host integers of the big-endian field: `value.to_be_bytes()` is transmitted. If hardware or the
//! kernel completes a transport checksum (`NEEDS_CSUM`), the field holds [`Checksum::partial`] of the
//! pseudo-header.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An incremental one's complement sum. Parts may have any length; after an odd one the following bytes are
/// shifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Sum of 16-bit words in the machine's byte order (RFC 1071 §2 (B)), folded to 16 bits after every part.
    sum: u16,
    /// Whether an odd number of bytes was added.
    odd: bool,
}

impl Checksum {
    /// An empty sum.
    pub const fn new() -> Self {
        Checksum { sum: 0, odd: false }
    }

    /// The sum of the IPv4 pseudo-header (RFC 9293 §3.1); `len` is the length of transport header and data in
    /// bytes.
    pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Self {
        let [len_high, len_low] = len.to_be_bytes();
        let mut sum = Checksum::new();
        sum.add(&source.octets());
        sum.add(&destination.octets());
        sum.add(&[0, protocol, len_high, len_low]);
        sum
    }

    /// The sum of the IPv6 pseudo-header (RFC 8200 §8.1); `len` is the upper layer's length in bytes.
    pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u32) -> Self {
        let mut sum = Checksum::new();
        sum.add(&source.octets());
        sum.add(&destination.octets());
        sum.add(&len.to_be_bytes());
        sum.add(&[0, 0, 0, protocol]);
        sum
    }

    /// The sum of the pseudo-header for the family of the addresses; `None` if the families differ, or if
    /// `len` does not fit an IPv4 packet.
    pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: u32) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let len = u16::try_from(len).ok()?;
                Some(Checksum::pseudo_v4(source, destination, protocol, len))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Some(Checksum::pseudo_v6(source, destination, protocol, len))
            }
            _ => None,
        }
    }

    /// Adds the next part of the covered bytes.
    pub fn add(&mut self, part: &[u8]) {
        let sum = fold(native_sum(part));
        // A part that starts at an odd byte has its words byte-swapped, and so its sum (RFC 1071 §2 (B)).
        let aligned = if self.odd { sum.swap_bytes() } else { sum };
        self.sum = add_with_carry(self.sum, aligned);
        self.odd ^= part.len() % 2 == 1;
    }

    /// Adds one 16-bit field, given as a host integer. Permitted only at an even offset.
    pub fn add_u16(&mut self, value: u16) {
        self.add(&value.to_be_bytes());
    }

    /// The sum, not complemented: the value of a partial checksum field.
    pub const fn partial(self) -> u16 {
        u16::from_be(self.sum)
    }

    /// The checksum, if everything else was added with a checksum field of zero.
    pub const fn finish(self) -> u16 {
        !self.partial()
    }

    /// Whether the sum of everything, checksum field included, is what a receiver expects.
    pub const fn is_valid(self) -> bool {
        self.sum == 0xffff
    }
}

/// The checksum of `bytes` (RFC 1071); a checksum field in them is included as it is.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Checksum::new();
    sum.add(bytes);
    sum.finish()
}

/// The checksum field after one covered 16-bit word changed from `old` to `new` (RFC 1624 eqn. 3).
pub const fn update(field: u16, old: u16, new: u16) -> u16 {
    !add_with_carry(add_with_carry(!field, !old), new)
}

const fn add_with_carry(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// One's complement sum of the words of `part` in machine order, with a last odd byte padded by zero; not yet
/// folded.
fn native_sum(part: &[u8]) -> u64 {
    // Two 32-bit halves per word into independent 64-bit lanes: no carry can be lost below 2³² words, and the
    // compiler turns the loop into vector additions.
    let (blocks, rest) = part.as_chunks::<32>();
    let mut lanes = [0u64; 4];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            let word = u64::from_ne_bytes(*word);
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    let mut sum = u64::from(fold(lanes[0])) + u64::from(fold(lanes[1]));
    sum += u64::from(fold(lanes[2])) + u64::from(fold(lanes[3]));
    let (pairs, last) = rest.as_chunks::<2>();
    for pair in pairs {
        sum += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [byte] = last {
        sum += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    sum
}

const fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
