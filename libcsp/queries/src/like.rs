//! Patterns of LIKE: `%` stands for any bytes, `_` for one.
//!
//! A pattern is cut at its `%`. The first part stands at the text's begin, the last one at its end, and each
//! of the others is searched for where the one before it was found first. A part without `_` is searched for
//! by Knuth, Morris and Pratt, one with `_` by a set of the places in it that may be reached (Baeza-Yates and
//! Gonnet 1992): both read each byte of the text once.

use crate::error::QueryProblem;

/// Longest part with `_` between two `%`, in bytes: as many as a word has bits.
pub const WILD_LEN_MAX: usize = 64;
/// Most parts with `_` between two `%`: each has a table of 2 KiB.
pub const PATTERN_PARTS_MAX: usize = 16;

/// A pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    bytes: Box<[u8]>,
    /// What stands at the begin; all of the pattern if it has no `%`.
    first: Box<[u8]>,
    /// What stands between two `%`, in order; none of them is empty.
    middle: Box<[Part]>,
    /// What stands at the end, if the pattern has a `%`.
    last: Option<Box<[u8]>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// Of each prefix, the length of its longest proper suffix that is a prefix too.
    Plain { bytes: Box<[u8]>, borders: Box<[u16]> },
    /// Of each byte, the places in the part where it may stand, as bits; and how many places there are.
    Wild { places: Box<[u64; 256]>, len: u32 },
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// More or longer parts with `_` than are allowed.
    pub fn new(pattern: &[u8]) -> Result<Self, QueryProblem> {
        let mut parts = pattern.split(|byte| *byte == b'%');
        let first = parts.next().unwrap_or_default().into();
        let mut rest: Vec<&[u8]> = parts.collect();
        let last = rest.pop().map(Box::from);
        let is_wild = |part: &&&[u8]| part.contains(&b'_');
        if rest.iter().filter(is_wild).count() > PATTERN_PARTS_MAX {
            return Err(QueryProblem::TooMany {
                what: "parts of a pattern with _ between two %",
                max: PATTERN_PARTS_MAX,
            });
        }
        let parts = rest.into_iter().filter(|part| !part.is_empty()).map(Part::new);
        Ok(Pattern { bytes: pattern.into(), first, middle: parts.collect::<Result<_, _>>()?, last })
    }

    /// The pattern as it is written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether a text in several slices matches. The steps are at most twice the bytes of text and pattern.
    #[must_use]
    pub fn matches<'t>(&self, text: impl Iterator<Item = &'t [u8]> + Clone) -> bool {
        let len = text.clone().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let Some(last) = &self.last else {
            return len == self.first.len() && begins(text.flatten(), &self.first);
        };
        let Some(between) = len.checked_sub(self.first.len() + last.len()) else { return false };
        if !begins(text.clone().flatten(), &self.first) {
            return false;
        }
        let mut rest = Rest::new(text, self.first.len());
        let mut middle = rest.clone().take(between);
        if !self.middle.iter().all(|part| part.find(&mut middle)) {
            return false;
        }
        rest.pass(between);
        begins(rest, last)
    }
}

/// Whether a text begins with a part of a pattern.
fn begins<'t>(mut text: impl Iterator<Item = &'t u8>, part: &[u8]) -> bool {
    part.iter().all(|expected| {
        count();
        text.next().is_some_and(|byte| *expected == b'_' || byte == expected)
    })
}

/// The bytes of a text from some place on. Slices are skipped as a whole.
#[derive(Clone)]
struct Rest<'t, I> {
    slices: I,
    slice: core::slice::Iter<'t, u8>,
}

impl<'t, I: Iterator<Item = &'t [u8]>> Rest<'t, I> {
    fn new(slices: I, place: usize) -> Self {
        let mut from = Rest { slices, slice: [].iter() };
        from.pass(place);
        from
    }

    fn pass(&mut self, mut count: usize) {
        while count > self.slice.len() {
            count -= self.slice.len();
            match self.slices.next() {
                Some(slice) => self.slice = slice.iter(),
                None => return,
            }
        }
        self.slice = self.slice.as_slice()[count..].iter();
    }
}

impl<'t, I: Iterator<Item = &'t [u8]>> Iterator for Rest<'t, I> {
    type Item = &'t u8;

    #[inline]
    fn next(&mut self) -> Option<&'t u8> {
        loop {
            if let Some(byte) = self.slice.next() {
                return Some(byte);
            }
            self.slice = self.slices.next()?.iter();
        }
    }
}

impl Part {
    fn new(bytes: &[u8]) -> Result<Self, QueryProblem> {
        if bytes.contains(&b'_') {
            if bytes.len() > WILD_LEN_MAX {
                return Err(QueryProblem::TooMany {
                    what: "bytes of a pattern with _ between two %",
                    max: WILD_LEN_MAX,
                });
            }
            let mut places = Box::new([0u64; 256]);
            for (at, byte) in bytes.iter().enumerate() {
                match byte {
                    b'_' => places.iter_mut().for_each(|place| *place |= 1 << at),
                    byte => places[usize::from(*byte)] |= 1 << at,
                }
            }
            return Ok(Part::Wild { places, len: bytes.len() as u32 });
        }
        // A query is shorter than 2^16 bytes.
        let mut borders = vec![0u16; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = usize::from(borders[border - 1]);
            }
            border += usize::from(bytes[at] == bytes[border]);
            borders[at] = border as u16;
        }
        Ok(Part::Plain { bytes: bytes.into(), borders: borders.into() })
    }

    /// Reads a text up to the end of the first place where it has the part.
    fn find<'t>(&self, text: &mut impl Iterator<Item = &'t u8>) -> bool {
        match self {
            Part::Plain { bytes, borders } => {
                let mut found = 0;
                for byte in text {
                    count();
                    while found > 0 && bytes[found] != *byte {
                        count();
                        found = usize::from(borders[found - 1]);
                    }
                    found += usize::from(bytes[found] == *byte);
                    if found == bytes.len() {
                        return true;
                    }
                }
                false
            }
            Part::Wild { places, len } => {
                let mut reached = 0u64;
                text.any(|byte| {
                    count();
                    reached = (reached << 1 | 1) & places[usize::from(*byte)];
                    reached >> (len - 1) & 1 == 1
                })
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Steps of this thread's tests.
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

#[inline(always)]
fn count() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of LIKE.
    fn plainly(text: &[u8], pattern: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'%', rest @ ..] => (0..=text.len()).any(|at| plainly(&text[at..], rest)),
            [expected, rest @ ..] => {
                text.first().is_some_and(|byte| *expected == b'_' || byte == expected)
                    && plainly(&text[1..], rest)
            }
        }
    }

    #[test]
    fn patterns_match_what_the_definition_says() {
        let mut random = csp_support::Random::new(7);
        let mut matched = 0;
        for _ in 0..60_000 {
            let text: Vec<u8> = (0..random.below(12)).map(|_| b"aab"[random.below(3) as usize]).collect();
            let pattern: Vec<u8> =
                (0..random.below(9)).map(|_| b"ab%_%ab"[random.below(7) as usize]).collect();
            let parts: Vec<&[u8]> = text.chunks(1 + random.below(4) as usize).collect();
            let expected = plainly(&text, &pattern);
            let found = Pattern::new(&pattern).expect("short").matches(parts.iter().copied());
            assert_eq!(found, expected, "{:?} LIKE {:?}", text.escape_ascii(), pattern.escape_ascii());
            matched += u32::from(expected);
        }
        assert!(matched > 5000, "{matched}");
    }

    #[test]
    fn a_match_reads_each_byte_of_the_text_at_most_twice() {
        let text = vec![b'a'; 1 << 20];
        let half = "a".repeat(4000);
        for pattern in [
            format!("%{half}b%{half}"),
            format!("%{}b%", "a".repeat(8000)),
            format!("%{}b%", "a_".repeat(31)),
            "%a".repeat(4000) + "b",
            "%a_".repeat(15) + "%b_%",
            "%".repeat(8000) + "b%",
            "_".repeat(8000) + "%b",
        ] {
            let pattern = Pattern::new(pattern.as_bytes()).expect("within bounds");
            let slices: Vec<&[u8]> = text.chunks(2048).collect();
            STEPS.set(0);
            assert!(!pattern.matches(slices.iter().copied()));
            let most = 2 * (text.len() + pattern.bytes().len()) as u64;
            assert!(STEPS.get() <= most, "{} steps", STEPS.get());
        }
        let long = "_".repeat(WILD_LEN_MAX + 1);
        Pattern::new(format!("%{long}%").as_bytes()).expect_err("a part is too long");
        Pattern::new(("%_".repeat(PATTERN_PARTS_MAX + 1) + "%").as_bytes()).expect_err("too many parts");
        Pattern::new(format!("{long}%{long}").as_bytes()).expect("begin and end are compared");
    }
}
