//! A seeded generator of pseudo-random numbers (SplitMix64) for tests. It has no cryptographic strength.

/// A generator whose numbers are determined by its seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator. Equal seeds give equal numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform over `u64`.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number().checked_rem(limit).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_numbers() {
        // The reference values of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.number(), random.number()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| random.below(7) < 7));
    }
}
