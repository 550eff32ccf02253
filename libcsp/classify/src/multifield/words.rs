//! Rules and packets as words of bits: the form in which they are hashed and compared.
//!
//! ```text
//!   IPv4, 2 words:  │ source 32 │ destination 32 │  │ rest 64 │
//!   IPv6, 5 words:  │ source 128 │ destination 128 │  │ rest 64 │
//!   rest:           │ source port 16 │ destination port 16 │ interface 16 │ protocol 8 │ direction 2 │ dscp 6 │
//! ```
//!
//! A rule has a mask (the bits that it compares) and values. Of a range of ports the mask has the prefix that
//! all its ports share; the range itself is compared besides. TCP flags are not in the words.

use core::net::IpAddr;

use csp_types::Prefix;

use super::fields::{Direction, Fields, Match, PortRange, mask_v4, mask_v6};

/// Bits of a packet, a rule or a mask: `N` is 2 for IPv4 and 5 for IPv6.
pub(super) type Words<const N: usize> = [u64; N];

/// Number of words for IPv4.
pub(super) const V4: usize = 2;
/// Number of words for IPv6.
pub(super) const V6: usize = 5;

/// The masks of the fields in the last word.
pub(super) const REST_FIELDS: [u64; 6] =
    [0xffff << 48, 0xffff << 32, 0xffff << 16, 0xff << 8, 0x3 << 6, 0x3f];

/// A bit beyond the flags octet. It is set in a packet without flags, and compared by rules that require
/// flags.
const NO_FLAGS: u16 = 0x100;
/// A value beyond all ports, for a packet without ports.
const NO_PORT: u32 = 0x1_0000;

/// A packet in the form that tables compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key<const N: usize> {
    pub words: Words<N>,
    pub source_port: u32,
    pub destination_port: u32,
    pub tcp_flags: u16,
}

/// Order of a rule that does not exist: after all others.
pub(super) const ORDER_MAX: u64 = u64::MAX;
/// End of a chain.
pub(super) const NONE: u32 = u32::MAX;

/// A rule as tables hold it: one cache line for IPv4, two for IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub(super) struct Entry<const N: usize> {
    pub value: Words<N>,
    pub mask: Words<N>,
    /// Priority, then order of insertion. The matching entry with the lowest value decides.
    pub order: u64,
    pub source_ports: PortRange,
    pub destination_ports: PortRange,
    /// The rule's slot in the owner's table, and how often the slot was reused.
    pub slot: u32,
    pub generation: u16,
    pub flags_value: u8,
    pub flags_mask: u8,
    pub instance: u32,
    /// Index of the chain's next entry in the tuple's arena.
    pub next: u32,
}

const _: () = assert!(size_of::<Entry<V4>>() == 64 && size_of::<Entry<V6>>() == 128);

impl<const N: usize> Entry<N> {
    #[inline(always)]
    pub fn matches(&self, key: &Key<N>) -> bool {
        let mut differs = 0;
        for at in 0..N {
            differs |= (key.words[at] ^ self.value[at]) & self.mask[at];
        }
        let flags_mask = u16::from(self.flags_mask) | if self.flags_mask == 0 { 0 } else { NO_FLAGS };
        let flags_differ = (key.tcp_flags & flags_mask) ^ u16::from(self.flags_value);
        differs == 0
            && flags_differ == 0
            && in_range(self.source_ports, key.source_port)
            && in_range(self.destination_ports, key.destination_port)
    }
}

#[inline(always)]
fn in_range(range: PortRange, port: u32) -> bool {
    (u32::from(range.low()) <= port && port <= u32::from(range.high())) || range.is_any()
}

pub(super) fn and<const N: usize>(a: &Words<N>, b: &Words<N>) -> Words<N> {
    core::array::from_fn(|at| a[at] & b[at])
}

/// Returns whether all bits of `inner` are in `outer`.
pub(super) fn within<const N: usize>(inner: &Words<N>, outer: &Words<N>) -> bool {
    (0..N).all(|at| inner[at] & !outer[at] == 0)
}

pub(super) fn bits<const N: usize>(words: &Words<N>) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// Hashes masked words. Senders choose a packet's bits, but not those of rules. A peer can at most choose
/// which existing bucket it hits, so that the function needs no key.
#[inline(always)]
pub(super) fn hash<const N: usize>(words: &Words<N>, mask: &Words<N>) -> u64 {
    const ODD: [u64; 4] =
        [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];
    let mut sum = fold(words[0] & mask[0] ^ ODD[0], words[N - 1] & mask[N - 1] ^ ODD[1]);
    // IPv6: the middle words, two at a time.
    if N == V6 {
        sum = fold(
            sum ^ words[1] & mask[1],
            fold(words[2] & mask[2] ^ ODD[2], words[3] & mask[3] ^ ODD[3]) | 1,
        );
    }
    sum
}

/// Combines the two halves of the product.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn rest_of(packet: &Fields) -> u64 {
    let (source, destination) = packet.ports.unwrap_or_default();
    u64::from(source) << 48
        | u64::from(destination) << 32
        | u64::from(packet.interface) << 16
        | u64::from(packet.protocol) << 8
        | direction_bits(packet.direction) << 6
        | u64::from(packet.dscp & 0x3f)
}

fn direction_bits(direction: Direction) -> u64 {
    match direction {
        Direction::Ingress => 0,
        Direction::Egress => 1,
    }
}

/// Returns the prefix that all ports of the range share, as a mask of 16 bits.
fn ports_mask(range: PortRange) -> u16 {
    let differing = range.low() ^ range.high();
    u16::MAX.checked_shl(16 - differing.leading_zeros()).unwrap_or(0)
}

/// Returns value and mask of the last word.
fn rest_of_match(fields: &Match) -> (u64, u64) {
    let (source, destination) = (fields.source_ports, fields.destination_ports);
    let (source_mask, destination_mask) = (ports_mask(source), ports_mask(destination));
    let mut value = u64::from(source.low() & source_mask) << 48;
    let mut mask = u64::from(source_mask) << 48;
    let mut require = |bits: u64, field: u64, shift: u32| {
        value |= bits << shift;
        mask |= field << shift;
    };
    require(u64::from(destination.low() & destination_mask), destination_mask.into(), 32);
    if let Some(interface) = fields.interface {
        require(interface.into(), 0xffff, 16);
    }
    if let Some(protocol) = fields.protocol.or(fields.tcp_flags.map(|_| 6)) {
        require(protocol.into(), 0xff, 8);
    }
    if let Some(direction) = fields.direction {
        require(direction_bits(direction), 0x3, 6);
    }
    if let Some(dscp) = fields.dscp {
        require((dscp & 0x3f).into(), 0x3f, 0);
    }
    (value, mask)
}

fn key<const N: usize>(packet: &Fields, words: Words<N>) -> Key<N> {
    Key {
        words,
        source_port: packet.ports.map_or(NO_PORT, |(source, _)| source.into()),
        destination_port: packet.ports.map_or(NO_PORT, |(_, destination)| destination.into()),
        tcp_flags: packet.tcp_flags.map_or(NO_FLAGS, u16::from),
    }
}

/// The packet in the form of its address family.
pub(super) enum AnyKey {
    V4(Key<V4>),
    V6(Key<V6>),
    /// The addresses are of different families, which occurs in no packet, and no rule matches.
    Neither,
}

#[inline]
pub(super) fn key_of(packet: &Fields) -> AnyKey {
    let rest = rest_of(packet);
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let addresses = u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
            AnyKey::V4(key(packet, [addresses, rest]))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (source, destination) = (source.to_bits(), destination.to_bits());
            let words =
                [(source >> 64) as u64, source as u64, (destination >> 64) as u64, destination as u64, rest];
            AnyKey::V6(key(packet, words))
        }
        _ => AnyKey::Neither,
    }
}

/// Returns an entry with these conditions, without order and slot.
fn entry<const N: usize>(fields: &Match, value: Words<N>, mask: Words<N>) -> Entry<N> {
    Entry {
        value,
        mask,
        order: ORDER_MAX,
        source_ports: fields.source_ports,
        destination_ports: fields.destination_ports,
        slot: NONE,
        generation: 0,
        flags_value: fields.tcp_flags.map_or(0, |flags| flags.value),
        flags_mask: fields.tcp_flags.map_or(0, |flags| flags.mask),
        instance: 0,
        next: NONE,
    }
}

/// Returns the rule's conditions on IPv4 packets; `None` if it requires IPv6.
pub(super) fn entry_v4(fields: &Match) -> Option<Entry<V4>> {
    let network = |prefix: Option<Prefix>| match prefix.map(|prefix| (prefix.address(), prefix.length())) {
        None => (0, 0),
        Some((IpAddr::V4(address), length)) => (address.to_bits() & mask_v4(length), mask_v4(length)),
        Some((IpAddr::V6(_), _)) => (0, 0),
    };
    let (source, source_mask) = network(fields.source);
    let (destination, destination_mask) = network(fields.destination);
    let (rest, rest_mask) = rest_of_match(fields);
    let join = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let value = [join(source, destination), rest];
    let mask = [join(source_mask, destination_mask), rest_mask];
    (fields.family() != Some(false)).then(|| entry(fields, value, mask))
}

/// Returns the rule's conditions on IPv6 packets; `None` if it requires IPv4.
pub(super) fn entry_v6(fields: &Match) -> Option<Entry<V6>> {
    let network = |prefix: Option<Prefix>| match prefix.map(|prefix| (prefix.address(), prefix.length())) {
        None => (0, 0),
        Some((IpAddr::V6(address), length)) => (address.to_bits() & mask_v6(length), mask_v6(length)),
        Some((IpAddr::V4(_), _)) => (0, 0),
    };
    let (source, source_mask) = network(fields.source);
    let (destination, destination_mask) = network(fields.destination);
    let (rest, rest_mask) = rest_of_match(fields);
    let join = |source: u128, destination: u128, rest: u64| {
        [(source >> 64) as u64, source as u64, (destination >> 64) as u64, destination as u64, rest]
    };
    let value = join(source, destination, rest);
    let mask = join(source_mask, destination_mask, rest_mask);
    (fields.family() != Some(true)).then(|| entry(fields, value, mask))
}

/// Returns the masks of the source and destination address.
pub(super) fn address_fields<const N: usize>() -> [Words<N>; 2] {
    let mut fields = [[0; N]; 2];
    if N == V4 {
        fields[0][0] = 0xffff_ffff << 32;
        fields[1][0] = 0xffff_ffff;
    } else {
        (fields[0][0], fields[0][1]) = (u64::MAX, u64::MAX);
        (fields[1][2], fields[1][3]) = (u64::MAX, u64::MAX);
    }
    fields
}

/// Returns the mask of the first `length` bits of an address field.
pub(super) fn address_prefix<const N: usize>(field: usize, length: u32) -> Words<N> {
    let mut words = [0; N];
    if N == V4 {
        let mask = u64::from(mask_v4(length.min(32) as u8));
        words[0] = if field == 0 { mask << 32 } else { mask };
    } else {
        let mask = mask_v6(length.min(128) as u8);
        words[2 * field] = (mask >> 64) as u64;
        words[2 * field + 1] = mask as u64;
    }
    words
}
