//! Hashes of keys. Values that are equal have equal hashes, whole and floating-point numbers included,
//! however they were read.

use csp_formats::Cell;
use csp_queries::{Datum, Text};

/// A hash that is being computed: a multiply-and-fold mix of 64-bit words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash(u64);

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const NULL: u64 = 1;
const FALSE: u64 = 2;
const TRUE: u64 = 3;

impl Hash {
    pub fn new(seed: u64) -> Self {
        Hash(seed)
    }

    #[inline]
    pub fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        // Folding alone would forget the word where the product is 0.
        self.0 = (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(32);
    }

    pub fn add(&mut self, datum: Datum<'_>) {
        match datum {
            Datum::Null => self.word(NULL),
            Datum::Boolean(value) => self.word(if value { TRUE } else { FALSE }),
            Datum::Integer(number) => self.number(number as f64),
            Datum::Float(number) => self.number(number),
            Datum::Enum(number) => self.word(number.unsigned().unwrap_or(u64::MAX)),
            Datum::Set(bits) => self.word(bits),
            Datum::Text(text) => match (text, text.contiguous()) {
                (Text::Character(byte), _) => self.text(&[byte]),
                (_, Some(slice)) => self.text(slice),
                (text, None) => self.scattered(text.bytes()),
            },
        }
    }

    #[inline]
    pub fn cell(&mut self, cell: Cell) {
        match cell {
            Cell::Null => self.word(NULL),
            Cell::False => self.word(FALSE),
            Cell::True => self.word(TRUE),
            Cell::Int(number) => self.number(number as f64),
            Cell::Float(bits) => self.number(f64::from_bits(bits)),
            Cell::Enum(number) => self.word(u64::try_from(number).unwrap_or(u64::MAX)),
            Cell::Set(bits) => self.word(bits),
            Cell::Text(word) => self.last(word, 8 - u64::from(word.trailing_zeros() / 8)),
        }
    }

    /// Text in words whose first character is in the highest byte.
    #[inline]
    pub fn text(&mut self, mut text: &[u8]) {
        while text.len() > 8
            && let Some((word, rest)) = text.split_first_chunk()
        {
            self.word(u64::from_be_bytes(*word));
            text = rest;
        }
        let word = text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // A shift by 64 is none.
        let word = word.checked_shl(64 - 8 * text.len() as u32).unwrap_or(0);
        self.last(word, text.len() as u64);
    }

    #[cold]
    fn scattered(&mut self, bytes: impl Iterator<Item = u8>) {
        let (mut word, mut count) = (0u64, 0);
        for byte in bytes {
            if count == 8 {
                self.word(word);
                (word, count) = (0, 0);
            }
            word |= u64::from(byte) << (56 - 8 * count);
            count += 1;
        }
        self.last(word, count);
    }

    /// The last up to 8 characters of a text.
    #[inline]
    fn last(&mut self, word: u64, len: u64) {
        self.word(word.wrapping_add(len.wrapping_mul(FACTOR)));
    }

    #[inline]
    fn number(&mut self, number: f64) {
        // 0 and -0 are equal.
        self.word(if number == 0.0 { 0 } else { number.to_bits() });
    }

    #[inline]
    pub fn finish(self) -> u64 {
        let mixed = self.0 ^ self.0 >> 32;
        mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ mixed >> 29
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_hash_however_it_is_read() {
        let text = b"abcdefghijklmnopqrstuvwxyz";
        let of = |add: &dyn Fn(&mut Hash)| {
            let mut hash = Hash::new(7);
            add(&mut hash);
            hash.finish()
        };
        let mut seen = std::collections::HashSet::new();
        for len in 0..=text.len() {
            let text = &text[..len];
            let plain = of(&|hash| hash.text(text));
            assert!(seen.insert(plain));
            assert_eq!(plain, of(&|hash| hash.scattered(text.iter().copied())));
            assert_eq!(plain, of(&|hash| hash.add(Datum::Text(Text::Plain(text)))));
            if let Some(cell) = Cell::text(text) {
                assert_eq!(plain, of(&|hash| hash.cell(cell)), "{len}");
            }
        }
        assert_eq!(of(&|hash| hash.cell(Cell::Int(-3))), of(&|hash| hash.add(Datum::Float(-3.0))));
        assert_eq!(of(&|hash| hash.cell(Cell::float(-0.0))), of(&|hash| hash.add(Datum::Integer(0))));
    }
}
