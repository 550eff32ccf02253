//! Descriptors of data items, and predicates over them.
//!
//! A descriptor is a fixed array of words, so that a predicate is a mask and a key over these words and two
//! descriptors are compared by words. Message fields have been located by their format before; their values
//! are words too.
//!
//! ```text
//!   word  0 1      2 3           4                                   5        6 … 13     14
//!         source   destination   source port, destination port, channel   format   fields     which are present
//! ```

use std::net::IpAddr;
use std::ops::RangeInclusive;

use csp_types::Prefix;

/// Most message fields that the flows of a resource manager read.
pub const FIELDS_MAX: usize = 8;
/// Most conditions of a predicate that are ranges.
pub const RANGES_MAX: usize = 4;
/// Words of a descriptor.
pub(crate) const WORDS: usize = 6 + FIELDS_MAX + 1;

const SOURCE: usize = 0;
const DESTINATION: usize = 2;
const PORTS: usize = 4;
const FORMAT: usize = 5;
const FIELDS: usize = 6;
/// The last word.
pub(crate) const PRESENT: usize = FIELDS + FIELDS_MAX;

const HAS_FORMAT: u64 = 1 << 32;
const HAS_CHANNEL: u64 = 1 << 33;
const HAS_ADDRESSES: u64 = 1 << 34;
const SOURCE_IS_IPV4: u64 = 1 << 35;
const DESTINATION_IS_IPV4: u64 = 1 << 36;

pub(crate) type Words = [u64; WORDS];

/// What is known of a data item when it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor(pub(crate) Words);

impl Default for Descriptor {
    fn default() -> Self {
        Descriptor([0; WORDS])
    }
}

impl Descriptor {
    /// Sets the addresses and ports of the connection that it arrived on.
    #[must_use]
    pub fn network(mut self, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Self {
        [self.0[SOURCE], self.0[SOURCE + 1]] = address_words(source.0);
        [self.0[DESTINATION], self.0[DESTINATION + 1]] = address_words(destination.0);
        self.0[PORTS] =
            self.0[PORTS] & 0xffff_ffff | u64::from(source.1) << 48 | u64::from(destination.1) << 32;
        let family = |address: IpAddr, bit| if address.to_canonical().is_ipv4() { bit } else { 0 };
        self.0[PRESENT] &= !(SOURCE_IS_IPV4 | DESTINATION_IS_IPV4);
        self.0[PRESENT] |= family(source.0, SOURCE_IS_IPV4) | family(destination.0, DESTINATION_IS_IPV4);
        self.0[PRESENT] |= HAS_ADDRESSES;
        self
    }

    /// Sets the channel, by its number in the worker or cluster, as the policy of flows numbers it.
    #[must_use]
    pub fn channel(mut self, channel: u32) -> Self {
        self.0[PORTS] = self.0[PORTS] & !0xffff_ffff | u64::from(channel);
        self.0[PRESENT] |= HAS_CHANNEL;
        self
    }

    /// Sets the format.
    #[must_use]
    pub fn format(mut self, format: u64) -> Self {
        self.0[FORMAT] = format;
        self.0[PRESENT] |= HAS_FORMAT;
        self
    }

    /// Sets the value of a message field. A field from [`FIELDS_MAX`] on is ignored.
    #[inline]
    pub fn set_field(&mut self, field: u8, value: FieldValue) {
        if usize::from(field) < FIELDS_MAX {
            self.0[FIELDS + usize::from(field)] = value.0;
            self.0[PRESENT] |= 1 << field;
        }
    }
}

/// Returns an address as two words, an IPv4 address as its IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2).
fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// The value of a message field as a word. Equal values are equal words, and unsigned numbers keep their
/// order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FieldValue(pub(crate) u64);

impl FieldValue {
    /// An unsigned number.
    pub const fn unsigned(value: u64) -> Self {
        FieldValue(value)
    }

    /// A signed number. Signed numbers keep their order among themselves.
    pub const fn signed(value: i64) -> Self {
        FieldValue(value as u64 ^ 1 << 63)
    }

    /// A text; trailing zero bytes, which pad fixed arrays, don't count. `None` if it has more than 8 bytes.
    pub fn text(text: &[u8]) -> Option<Self> {
        let len = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut bytes = [0; 8];
        bytes.get_mut(..len)?.copy_from_slice(&text[..len]);
        Some(FieldValue(u64::from_be_bytes(bytes)))
    }
}

/// Which data items belong to a flow: all conditions that are given hold. Without any, all items do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Predicate {
    /// The sender's network.
    pub source: Option<Prefix>,
    /// The network of the address that it was sent to.
    pub destination: Option<Prefix>,
    /// The sender's port.
    pub source_port: Option<RangeInclusive<u16>>,
    /// The port that it was sent to.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// The channel.
    pub channel: Option<u32>,
    /// The format.
    pub format: Option<u64>,
    /// Values of message fields, both ends included. A field occurs once.
    pub fields: Vec<(u8, RangeInclusive<FieldValue>)>,
}

/// A predicate that cannot be: the operator's mistake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PredicateError {
    /// A field that descriptors don't have.
    #[error("field {0} is read; descriptors have {FIELDS_MAX} fields")]
    Field(u8),
    /// Two conditions on one field.
    #[error("there are two conditions on field {0}")]
    FieldTwice(u8),
    /// A range that holds no value.
    #[error("a range of {0} is empty")]
    EmptyRange(&'static str),
    /// Too many ranges.
    #[error("{0} conditions are ranges; at most {RANGES_MAX} can be")]
    Ranges(usize),
}

impl Predicate {
    pub(crate) fn check(&self) -> Result<(), PredicateError> {
        for (at, (field, range)) in self.fields.iter().enumerate() {
            if usize::from(*field) >= FIELDS_MAX {
                return Err(PredicateError::Field(*field));
            }
            if self.fields[..at].iter().any(|(other, _)| other == field) {
                return Err(PredicateError::FieldTwice(*field));
            }
            if range.is_empty() {
                return Err(PredicateError::EmptyRange("a field"));
            }
        }
        if [&self.source_port, &self.destination_port].into_iter().flatten().any(RangeInclusive::is_empty) {
            return Err(PredicateError::EmptyRange("ports"));
        }
        let ranges = self.compile().ranges.len();
        if ranges > RANGES_MAX { Err(PredicateError::Ranges(ranges)) } else { Ok(()) }
    }

    /// Returns the predicate over words: what must be equal, and what must lie in a range.
    pub(crate) fn compile(&self) -> Compiled {
        let mut compiled = Compiled::default();
        let ends =
            [(self.source, SOURCE, SOURCE_IS_IPV4), (self.destination, DESTINATION, DESTINATION_IS_IPV4)];
        for (prefix, word, family) in ends {
            let Some(prefix) = prefix else { continue };
            compiled.equal(PRESENT, family, if prefix.address().is_ipv4() { family } else { 0 });
            let bits = u32::from(prefix.length()) + if prefix.address().is_ipv4() { 96 } else { 0 };
            let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
            let [high, low] = address_words(prefix.address());
            compiled.equal(word, (mask >> 64) as u64, high);
            compiled.equal(word + 1, mask as u64, low);
            compiled.equal(PRESENT, HAS_ADDRESSES, HAS_ADDRESSES);
        }
        for (range, shift) in [(&self.source_port, 48), (&self.destination_port, 32)] {
            let Some(range) = range else { continue };
            let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
            compiled.within(PORTS, 0xffff << shift, shift, first, last);
            compiled.equal(PRESENT, HAS_ADDRESSES, HAS_ADDRESSES);
        }
        if let Some(channel) = self.channel {
            compiled.equal(PORTS, 0xffff_ffff, u64::from(channel));
            compiled.equal(PRESENT, HAS_CHANNEL, HAS_CHANNEL);
        }
        if let Some(format) = self.format {
            compiled.equal(FORMAT, u64::MAX, format);
            compiled.equal(PRESENT, HAS_FORMAT, HAS_FORMAT);
        }
        for (field, range) in &self.fields {
            let word = FIELDS + usize::from(*field).min(FIELDS_MAX - 1);
            compiled.within(word, u64::MAX, 0, range.start().0, range.end().0);
            compiled.equal(PRESENT, 1 << field, 1 << field);
        }
        compiled
    }
}

/// A predicate over words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Compiled {
    pub mask: Words,
    pub key: Words,
    pub ranges: Vec<Range>,
}

/// The bits of a word under `mask`, shifted right, lie in a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub word: u8,
    pub mask: u64,
    pub shift: u8,
    pub first: u64,
    pub last: u64,
}

impl Range {
    #[inline]
    pub fn holds(&self, words: &Words) -> bool {
        let value = (words[usize::from(self.word)] & self.mask) >> self.shift;
        (self.first..=self.last).contains(&value)
    }
}

impl Compiled {
    fn equal(&mut self, word: usize, mask: u64, value: u64) {
        self.mask[word] |= mask;
        self.key[word] |= value & mask;
    }

    fn within(&mut self, word: usize, mask: u64, shift: u8, first: u64, last: u64) {
        match first == last {
            true => self.equal(word, mask, first << shift),
            false => self.ranges.push(Range { word: word as u8, mask, shift, first, last }),
        }
    }
}
