//! Keyed hashes of a connection's addresses: initial sequence numbers (RFC 6528), timestamp offsets, hash
//! table indices, and SYN cookies.

use core::hash::{Hash, Hasher};

use csp_types::{FourTuple, Instant};
use siphasher::sip::{SipHasher13, SipHasher24};

use crate::seq::Seq;

/// The keys of one run of the engine.
#[derive(Clone)]
pub(crate) struct Keys {
    table: SipHasher13,
    /// For values that a peer returns as proof: the stronger variant.
    proof: SipHasher24,
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Keys {
    pub fn new(secret: &[u8; 16]) -> Self {
        Keys { table: SipHasher13::new_with_key(secret), proof: SipHasher24::new_with_key(secret) }
    }

    fn hash(&self, purpose: u8, tuple: &FourTuple) -> u32 {
        let mut hasher = self.table;
        hasher.write_u8(purpose);
        tuple.hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Hash of the addresses for the tuple map.
    pub fn table_hash(&self, tuple: &FourTuple) -> u32 {
        self.hash(0, tuple)
    }

    /// ISN = M + F(addresses, secret), where M counts in steps of about 4 µs (RFC 6528 §3): later connections
    /// with the same addresses start at higher numbers.
    pub fn isn(&self, now: Instant, tuple: &FourTuple) -> Seq {
        Seq(self.hash(1, tuple).wrapping_add((now.as_nanos() >> 12) as u32))
    }

    /// Offset added to the timestamp clock, so that timestamps reveal nothing about other connections (RFC
    /// 7323 §7.1).
    pub fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        self.hash(2, tuple)
    }

    /// A hasher initialised with the addresses, for SYN cookies.
    pub fn cookie_hasher(&self, tuple: &FourTuple) -> SipHasher24 {
        let mut hasher = self.proof;
        hasher.write_u8(3);
        tuple.hash(&mut hasher);
        hasher
    }
}
