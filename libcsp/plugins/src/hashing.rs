//! The hash of tables whose keys packets choose.

use core::hash::BuildHasher;

use siphasher::sip::SipHasher13;

/// The secret key of a table's hash: a peer that knows it can lengthen the table's chains. The caller draws
/// it at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashKey(pub u64, pub u64);

impl BuildHasher for HashKey {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
