//! `Vary`: which fields of a request have chosen a stored response (RFC 9111 §4.1).

use crate::fields::{Fields, elements};

/// Most names in `Vary` of a response that is stored.
const NAMES_MAX: usize = 16;
/// Longest values of these fields in bytes.
const VALUES_LEN_MAX: usize = 4 << 10;

/// Fields whose values the proxy makes for each client: servers see other values than those compared here.
const OF_CLIENTS: [&[u8]; 9] = [
    b"x-forwarded-for",
    b"forwarded",
    b"x-real-ip",
    b"traceparent",
    b"tracestate",
    b"x-request-id",
    b"client-cert",
    b"client-cert-chain",
    b"via",
];

/// The fields of a request that have chosen a response: of each its name, NUL, its values, LF.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Chosen(Box<[u8]>);

impl Chosen {
    /// Returns what a response was chosen by; `None`: it is for no other request.
    pub(crate) fn of(response: Fields<'_>, request: Fields<'_>) -> Option<Chosen> {
        let mut text = Vec::new();
        for (at, name) in response.values(b"vary").flat_map(elements).enumerate() {
            let is = |known: &&[u8]| name.eq_ignore_ascii_case(known);
            let begins =
                |start: &[u8]| name.get(..start.len()).is_some_and(|b| b.eq_ignore_ascii_case(start));
            if at >= NAMES_MAX || name == b"*" || OF_CLIENTS.iter().any(is) || begins(b"x-ssl-client") {
                return None;
            }
            text.extend_from_slice(name);
            text.push(0);
            values(&mut text, request, name);
            text.push(b'\n');
            if text.len() > VALUES_LEN_MAX {
                return None;
            }
        }
        Some(Chosen(text.into()))
    }

    /// Returns whether a request chooses the same response. `room` is memory for this call.
    pub(crate) fn is_by(&self, request: Fields<'_>, room: &mut Vec<u8>) -> bool {
        let lines = self.0.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            let Some(end) = line.iter().position(|byte| *byte == 0) else { return false };
            room.clear();
            values(room, request, &line[..end]);
            if room[..] != line[end + 1..] {
                return false;
            }
        }
        true
    }

    /// Returns its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Appends all values of a field as one list, without whitespace between elements. An absent field
/// differs from an empty one.
fn values(out: &mut Vec<u8>, fields: Fields<'_>, name: &[u8]) {
    for (_, value) in fields.filter(|(known, _)| known.eq_ignore_ascii_case(name)) {
        out.push(b',');
        for (at, element) in elements(value).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Vec<u8> {
        format!("X / HTTP/1.1\r\n{text}\r\n\r\n").into_bytes()
    }

    fn same(vary: &str, stored: &str, asked: &str) -> Option<bool> {
        let (vary, stored, asked) = (head(vary), head(stored), head(asked));
        let chosen = Chosen::of(Fields::of_head(&vary), Fields::of_head(&stored))?;
        Some(chosen.is_by(Fields::of_head(&asked), &mut Vec::new()))
    }

    #[test]
    fn requests_are_compared() {
        for (stored, asked, expected) in [
            ("", "", true),
            ("A: 1", "a:  1", true),
            ("A: x, y", "A: x\r\nA: y", true),
            ("A: x,y", "A: x ,  y", true),
            ("A: 1", "A: 2", false),
            ("A: 1", "", false),
            ("", "A:", false),
            ("B: 1", "B: 2", true),
        ] {
            assert_eq!(same("Vary: A", stored, asked), Some(expected), "{stored} {asked}");
        }
        assert_eq!(same("Vary: A, b", "A: 1\r\nB: 1", "A: 1\r\nB: 2"), Some(false));
        assert_eq!(same("Vary: A\r\nVary: B", "A: 1\r\nB: 1", "A: 1\r\nB: 1"), Some(true));
        assert_eq!(same("X: 1", "A: 1", "A: 2"), Some(true));
        for unknown in ["*", "A, *", "X-Forwarded-For", "client-cert", "X-SSL-Client-Subject"] {
            assert_eq!(same(&format!("Vary: {unknown}"), "", ""), None, "{unknown}");
        }
        let many: String = (0..20).map(|at| format!("n{at},")).collect();
        assert_eq!(same(&format!("Vary: {many}"), "", ""), None);
    }
}
