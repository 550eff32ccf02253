//! Hashes of keys. Values that are equal have equal hashes, whole and floating-point numbers included.

use csp_queries::Datum;

/// A hash that is being computed: a multiply-and-fold mix of 64-bit words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash(u64);

impl Hash {
    pub fn new(seed: u64) -> Self {
        Hash(seed)
    }

    #[inline]
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        // Folding alone would forget the word where the product is 0.
        self.0 = (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(32);
    }

    #[inline]
    pub fn add(&mut self, datum: Datum<'_>) {
        match datum {
            Datum::Null => self.word(1),
            Datum::Boolean(value) => self.word(2 + u64::from(value)),
            Datum::Integer(number) => self.number(number as f64),
            Datum::Float(number) => self.number(number),
            Datum::Enum(number) => self.word(number.unsigned().unwrap_or(u64::MAX)),
            Datum::Set(bits) => self.word(bits),
            Datum::Text(text) => match text.contiguous() {
                Some(slice) => self.text(slice.iter().copied()),
                None => self.text(text.bytes()),
            },
        }
    }

    #[inline]
    fn text(&mut self, bytes: impl Iterator<Item = u8>) {
        let (mut word, mut count) = (0u64, 0u64);
        for byte in bytes {
            word = word << 8 | u64::from(byte);
            count += 1;
            if count % 8 == 0 {
                self.word(word);
                word = 0;
            }
        }
        self.word(word ^ count << 56);
    }

    fn number(&mut self, number: f64) {
        // 0 and -0 are equal.
        self.word(if number == 0.0 { 0 } else { number.to_bits() });
    }

    pub fn finish(self) -> u64 {
        let mixed = self.0 ^ self.0 >> 32;
        mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ mixed >> 29
    }
}
