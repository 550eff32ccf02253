//! Topics as text. A topic is any bytes: what a terminal could take for a command, or a reader for another
//! topic, is escaped.

use std::fmt::Write as _;

use crate::Text;

/// Writes a topic as text: letters, digits, marks of ASCII and spaces as they are, `\` as `\\`, other bytes
/// as `\xHH`.
pub fn escape(topic: &[u8]) -> Text {
    let mut text = String::with_capacity(topic.len());
    for chunk in topic.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                ' '..='~' => text.push(c),
                c if c.is_alphanumeric() => text.push(c),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escape_byte(&mut text, byte)),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape_byte(&mut text, *byte));
    }
    text.into()
}

fn escape_byte(text: &mut String, byte: u8) {
    let _ = write!(text, "\\x{byte:02x}"); // writing to a String does not fail
}

/// Reads what [`escape`] writes; `None` if a `\` is followed by anything else.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut topic, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            topic.push(*first);
            continue;
        }
        if let Some(after) = rest.strip_prefix(b"\\") {
            topic.push(b'\\');
            rest = after;
            continue;
        }
        let digits = rest.strip_prefix(b"x")?.get(..2).and_then(|digits| std::str::from_utf8(digits).ok())?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        topic.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        rest = &rest[3..];
    }
    Some(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_reads_as_it_is_unless_a_terminal_could_take_it_for_something_else() {
        for (topic, text) in [
            (&b"ACME"[..], "ACME"),
            (b"", ""),
            ("K\u{f6}ln/1".as_bytes(), "K\u{f6}ln/1"),
            (b"a\x1b[2Jb", "a\\x1b[2Jb"),
            (b"a\\x00", "a\\\\x00"),
            (b"\x00\xff\n", "\\x00\\xff\\x0a"),
            ("\u{202e}".as_bytes(), "\\xe2\\x80\\xae"),
        ] {
            assert_eq!(escape(topic), *text);
            assert_eq!(unescape(text).as_deref(), Some(topic), "{text}");
        }
        for wrong in ["\\", "\\x", "\\x0", "\\xg0", "\\n", "\\x+1"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_topic_comes_back_from_its_text() {
        for seed in 0..200u32 {
            let mut state = seed;
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let topic: Vec<u8> = (0..seed).map(|_| byte()).collect();
            assert_eq!(unescape(escape(&topic).as_str()), Some(topic), "seed {seed}");
        }
    }
}
