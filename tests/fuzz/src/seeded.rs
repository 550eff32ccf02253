//! Inputs made of seeds: a target's examples, changed in a few places.
//!
//! ```text
//!   seed ─▶ an example ─▶ words, digits, ranges, nesting, another example's end; bits and numbers if it is no text ─▶ input
//! ```
//! Equal seeds give equal inputs while the examples stay. Inputs that have found a fault are therefore kept
//! as files.

use csp_support::Random;

use crate::Target;

/// Numbers next to which parsers go wrong.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX / 2,
    u64::MAX,
];
/// The same as text, and what people write instead of numbers.
const DIGITS: [&str; 14] = [
    "0",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "1e309",
    "0.1",
    "+7",
];
/// What nests in the languages of the targets: what stands before, and behind.
const PAIRS: [(&str, &str); 12] = [
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("{\"a\":", "}"),
    ("[[", "]]"),
    ("\"", "\""),
    ("'", "'"),
    ("<a>", "</a>"),
    ("NOT ", ""),
    ("- ", ""),
    ("", "\n"),
    ("", ","),
];
/// Most repetitions of a range.
const REPETITIONS_MAX: u64 = 4_096;

/// Returns the input of a seed.
pub fn input(target: &Target, examples: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    // Seeds that follow each other give unlike numbers only after the first.
    random.number();
    let example = |random: &mut Random| examples.get(random.below(examples.len() as u64) as usize);
    let mut bytes = match random.below(16) {
        0 => noise(&mut random, 256),
        _ => example(&mut random).cloned().unwrap_or_else(|| noise(&mut random, 512)),
    };
    // Most changes of a text leave it a text: another byte in it is seldom more than no UTF-8.
    let is_text = core::str::from_utf8(&bytes).is_ok() && random.below(8) > 0;
    let most = if random.below(8) == 0 { 20 } else { 4 };
    let changes = if random.below(2) == 0 { 1 } else { 1 + random.below(most) };
    for _ in 0..changes {
        match random.below(if is_text { 8 } else { 12 }) {
            0 | 1 => insert_word(&mut random, &mut bytes, target.words),
            2 => replace_digits(&mut random, &mut bytes),
            3 => {
                let (from, to) = range(&mut random, &bytes);
                bytes.drain(from..to);
            }
            4 => repeat(&mut random, &mut bytes, target.len_max),
            5 => nest(&mut random, &mut bytes, target.len_max),
            6 => move_range(&mut random, &mut bytes),
            7 => {
                let (at, _) = range(&mut random, &bytes);
                let tail =
                    example(&mut random).map_or(&[][..], |other| &other[range(&mut random, other).0..]);
                bytes.truncate(at);
                bytes.extend_from_slice(tail);
            }
            8 => flip(&mut random, &mut bytes),
            9 | 10 => overwrite(&mut random, &mut bytes),
            _ => {
                let (at, _) = range(&mut random, &bytes);
                let noise = noise(&mut random, 16);
                bytes.splice(at..at, noise);
            }
        }
    }
    bytes.truncate(target.len_max);
    bytes
}

fn noise(random: &mut Random, len_max: u64) -> Vec<u8> {
    (0..random.below(len_max)).map(|_| random.number() as u8).collect()
}

/// A range within the bytes, mostly a short one. Half of them end where a word or a bracket of a text does.
fn range(random: &mut Random, bytes: &[u8]) -> (usize, usize) {
    let len = bytes.len() as u64;
    let from = random.below(len + 1);
    let longest = if random.below(4) == 0 { len - from } else { (len - from).min(16) };
    let (from, to) = (from as usize, (from + random.below(longest + 1)) as usize);
    if random.below(2) == 0 {
        return (from, to);
    }
    let is_edge = |at: &usize| {
        *at == 0
            || *at >= bytes.len()
            || !(bytes[*at - 1].is_ascii_alphanumeric() && bytes[*at].is_ascii_alphanumeric())
    };
    let edge = |at: usize| (at..=bytes.len()).find(is_edge).unwrap_or(at);
    (edge(from), edge(to))
}

fn flip(random: &mut Random, bytes: &mut [u8]) {
    let at = random.below(bytes.len() as u64) as usize;
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

/// Puts a number of 1 to 8 bytes in either order.
fn overwrite(random: &mut Random, bytes: &mut [u8]) {
    let number = match random.below(3) {
        0 => random.number(),
        _ => NUMBERS[random.below(NUMBERS.len() as u64) as usize].wrapping_sub(random.below(2)),
    };
    let width = 1 << random.below(4);
    let number = if random.below(2) == 0 {
        number.to_le_bytes()[..width].to_vec()
    } else {
        number.to_be_bytes()[8 - width..].to_vec()
    };
    let at = random.below(bytes.len() as u64) as usize;
    bytes.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
}

/// Puts a range several times behind itself.
fn repeat(random: &mut Random, bytes: &mut Vec<u8>, len_max: usize) {
    let (from, to) = range(random, bytes);
    let count = if random.below(4) == 0 { random.below(REPETITIONS_MAX) } else { 1 + random.below(8) };
    let room = len_max.saturating_sub(bytes.len()) / (to - from).max(1);
    let copies = bytes[from..to].repeat((count as usize).min(room));
    bytes.splice(to..to, copies);
}

fn insert_word(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    let Some(word) = words.get(random.below(words.len() as u64) as usize) else { return };
    let (from, to) = range(random, bytes);
    let replaced = if random.below(2) == 0 { from } else { to };
    bytes.splice(from..replaced, word.bytes());
}

/// Replaces a run of digits, the next one from some place on.
fn replace_digits(random: &mut Random, bytes: &mut Vec<u8>) {
    let (at, _) = range(random, bytes);
    let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
    let len = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digits = DIGITS[random.below(DIGITS.len() as u64) as usize];
    bytes.splice(from..from + len, digits.bytes());
}

/// Puts a range into brackets, many times.
fn nest(random: &mut Random, bytes: &mut Vec<u8>, len_max: usize) {
    let (from, to) = range(random, bytes);
    let (before, behind) = PAIRS[random.below(PAIRS.len() as u64) as usize];
    let count = if random.below(2) == 0 { random.below(REPETITIONS_MAX) } else { 1 + random.below(4) };
    let room = len_max.saturating_sub(bytes.len()) / (before.len() + behind.len());
    let count = (count as usize).min(room);
    bytes.splice(to..to, behind.repeat(count).into_bytes());
    bytes.splice(from..from, before.repeat(count).into_bytes());
}

fn move_range(random: &mut Random, bytes: &mut Vec<u8>) {
    let (from, to) = range(random, bytes);
    let moved: Vec<u8> = bytes.drain(from..to).collect();
    let (at, _) = range(random, bytes);
    bytes.splice(at..at, moved);
}
