//! Hashes of keys that a client cannot foresee.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

/// Makes SipHash with a secret in front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret(pub(crate) u64);

impl BuildHasher for Secret {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
