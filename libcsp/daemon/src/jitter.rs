//! Chance for times that must not fall together.

use std::hash::{BuildHasher as _, RandomState};

/// Returns a number from 0 to 1.
pub fn fraction() -> f64 {
    (RandomState::new().hash_one(0) >> 40) as f64 / (1u64 << 24) as f64
}
