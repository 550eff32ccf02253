//! Fields of a head as text: lines that a strict reader has accepted before.

/// The fields of a head, in order, as names and values without whitespace around them. Clones begin where the
/// original is.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the fields of a head that begins with a request or status line.
    pub fn of_head(head: &'a [u8]) -> Self {
        Fields(after_line(head))
    }

    /// Returns the values of all fields of this name, in any case.
    pub fn values(self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the value of the only field of this name; `None`: there is none, or there are several.
    pub fn only(self, name: &'a [u8]) -> Option<&'a [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Returns whether there is a field of this name.
    pub fn has(self, name: &'a [u8]) -> bool {
        self.values(name).next().is_some()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = line(self.0);
            if line.is_empty() {
                return None;
            }
            self.0 = after_line(self.0);
            if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                return Some((line[..colon].trim_ascii_end(), line[colon + 1..].trim_ascii()));
            }
        }
    }
}

/// Returns the first line without its end.
fn line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    text[..end].strip_suffix(b"\r").unwrap_or(&text[..end])
}

/// Returns what follows the first line.
fn after_line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1);
    &text[end..]
}

/// Returns the elements of a list, without whitespace around them and without empty ones. A comma in a quoted
/// string divides nothing.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let (mut quoted, mut escaped) = (false, false);
    let divides = move |byte: &u8| {
        match (*byte, quoted, escaped) {
            (_, true, true) => escaped = false,
            (b'\\', true, _) => escaped = true,
            (b'"', ..) => quoted = !quoted,
            (b',', false, _) => return true,
            _ => {}
        }
        false
    };
    value.split(divides).map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Reads a number of seconds: digits alone. Larger ones than 2³¹ are 2³¹ (RFC 9111 §1.2.2).
pub fn seconds(text: &[u8]) -> Option<u64> {
    const MOST: u64 = 1 << 31;
    let digit =
        |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| (sum * 10 + u64::from(byte - b'0')).min(MOST));
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_head() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nA:1\r\na :  2 \r\nEmpty:\r\n\r\nBody: no";
        let all: Vec<_> = Fields::of_head(head).collect();
        assert_eq!(all, [(&b"Host"[..], &b"a"[..]), (b"A", b"1"), (b"a", b"2"), (b"Empty", b"")], "{all:?}");
        let fields = Fields::of_head(head);
        assert_eq!(fields.values(b"A").count(), 2);
        assert_eq!((fields.only(b"A"), fields.only(b"host")), (None, Some(&b"a"[..])));
        assert!(!fields.has(b"body") && Fields::of_head(b"").next().is_none());
    }

    #[test]
    fn lists_and_numbers() {
        let all: Vec<&[u8]> = elements(b" a, ,b=\"x, \\\" ,\",c").collect();
        assert_eq!(all, [&b"a"[..], b"b=\"x, \\\" ,\"", b"c"]);
        assert_eq!(seconds(b"99999999999999999999"), Some(1 << 31));
        for wrong in [&b""[..], b"-1", b"1.5", b" 1", b"1s"] {
            assert_eq!(seconds(wrong), None);
        }
    }
}
