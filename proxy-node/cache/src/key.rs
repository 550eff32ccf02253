//! The key of a stored response: which rule, scheme, host, path and query, and what a policy adds.
//!
//! ```text
//!  rule's scope (8) │ scheme (1) │ host, lower case │ 0 │ path in its normal form │ ? │ query │ 0 │ NAME VALUE 0 …
//! ```
//! No part can have a NUL byte, so that two requests whose parts differ have different keys.

use crate::fields::Fields;

/// Longest key in bytes; a request with a longer one is not served from the cache.
pub const KEY_LEN_MAX: usize = 16 << 10;
/// Bytes before the host.
const START: usize = 9;

/// Which parameters of the query count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum QueryKey {
    /// All, in their order.
    #[default]
    All,
    /// None.
    Nothing,
    /// Those of these names.
    Only(Box<[Box<str>]>),
    /// All but those of these names.
    Without(Box<[Box<str>]>),
}

/// The parts of a key.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// What distinguishes the rule, and the ways in which it changes requests.
    pub scope: u64,
    /// Whether the client uses TLS.
    pub is_secure: bool,
    /// The host that the client names.
    pub host: &'a [u8],
    /// The port that the client names.
    pub port: Option<u16>,
    /// The path in its normal form.
    pub path: &'a [u8],
    /// The query without its question mark.
    pub query: Option<&'a [u8]>,
}

/// Writes a key, without further fields, into `key`.
pub fn write(key: &mut Vec<u8>, parts: &Parts<'_>, query: &QueryKey) {
    key.clear();
    key.extend_from_slice(&parts.scope.to_le_bytes());
    key.push(if parts.is_secure { b's' } else { b'p' });
    key.extend(parts.host.iter().map(u8::to_ascii_lowercase));
    if let Some(port) = parts.port {
        // Five digits: without an allocation.
        key.push(b':');
        key.extend([10_000, 1_000, 100, 10, 1].map(|unit| b'0' + (port / unit % 10) as u8));
    }
    key.push(0);
    key.extend_from_slice(parts.path);
    let Some(text) = parts.query else { return key.push(0) };
    let counts = |parameter: &[u8]| counts(parameter, query);
    if *query == QueryKey::All {
        key.push(b'?');
        key.extend_from_slice(text);
    } else {
        for (at, parameter) in text.split(|byte| *byte == b'&').filter(|text| counts(text)).enumerate() {
            key.push(if at == 0 { b'?' } else { b'&' });
            key.extend_from_slice(parameter);
        }
    }
    key.push(0);
}

/// Returns whether a parameter counts. One that some servers read as another than it looks always does,
/// unless none does: otherwise one client could choose what others get.
fn counts(parameter: &[u8], query: &QueryKey) -> bool {
    let end = parameter.iter().position(|byte| *byte == b'=').unwrap_or(parameter.len());
    let name = &parameter[..end];
    let is_two = parameter.contains(&b';');
    let is_odd =
        || name.iter().any(|byte| matches!(byte, b'%' | b'+' | b'[' | b'.') || !byte.is_ascii_graphic());
    match query {
        QueryKey::All => true,
        QueryKey::Nothing => false,
        QueryKey::Only(names) => {
            is_two || is_odd() || names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
        }
        QueryKey::Without(names) => is_two || !names.iter().any(|known| known.as_bytes() == name),
    }
}

/// Appends the values of a field. No value can have the byte before each.
pub fn add(key: &mut Vec<u8>, name: &str, fields: Fields<'_>) {
    let mut values = fields.values(name.as_bytes()).peekable();
    if values.peek().is_none() {
        return;
    }
    key.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
    for value in values {
        key.push(b'\n');
        key.extend_from_slice(value);
    }
    key.push(0);
}

/// Appends one field.
pub fn add_one(key: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    key.extend(name.iter().map(u8::to_ascii_lowercase));
    key.push(b'\n');
    key.extend_from_slice(value);
    key.push(0);
}

/// Returns the host of a key; a port behind it has five digits.
pub fn host(key: &[u8]) -> &[u8] {
    key.get(START..).and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default()
}

/// Returns the path and query of a key.
pub fn path(key: &[u8]) -> &[u8] {
    key.get(START..).and_then(|rest| rest.split(|byte| *byte == 0).nth(1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: Option<&str>, rule: &QueryKey) -> String {
        let mut key = Vec::new();
        let query = query.map(str::as_bytes);
        write(
            &mut key,
            &Parts { scope: 7, is_secure: true, host: b"A", port: Some(80), path: b"/x", query },
            rule,
        );
        assert_eq!(host(&key), b"a:00080");
        String::from_utf8(path(&key).to_vec()).unwrap()
    }

    #[test]
    fn queries() {
        let names = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect::<Box<[Box<str>]>>();
        assert_eq!(of(None, &QueryKey::All), "/x");
        assert_eq!(of(Some(""), &QueryKey::All), "/x?");
        assert_eq!(of(Some("b=1&a"), &QueryKey::All), "/x?b=1&a");
        assert_eq!(of(Some("b=1&a"), &QueryKey::Nothing), "/x");
        assert_eq!(of(Some("b=1&a&c=2"), &QueryKey::Only(names(&["a", "c"]))), "/x?a&c=2");
        assert_eq!(of(Some("b=1&utm=1&c=2"), &QueryKey::Without(names(&["utm", "b"]))), "/x?c=2");
        // What some servers take for a parameter that counts.
        for odd in ["%61=1", "A=1", "b=1;a=2", "a[]=1", "x%00=1", "+a=1", "a.b=1"] {
            assert_eq!(of(Some(&format!("b=1&{odd}")), &QueryKey::Only(names(&["a"]))), format!("/x?{odd}"));
        }
        for odd in ["utm=1;a=2", "%75tm=1", "a=1"] {
            assert_eq!(
                of(Some(&format!("utm=1&{odd}")), &QueryKey::Without(names(&["utm"]))),
                format!("/x?{odd}")
            );
        }
        assert_eq!(of(Some("utm.x=1&a"), &QueryKey::Without(names(&["utm.x"]))), "/x?a");
    }

    #[test]
    fn fields_are_distinct() {
        let key = |text: &str| {
            let mut key = Vec::new();
            write(
                &mut key,
                &Parts { scope: 0, is_secure: false, host: b"a", port: None, path: b"/", query: None },
                &QueryKey::All,
            );
            let head = format!("GET / HTTP/1.1\r\n{text}\r\n\r\n");
            ["X", "Y"].iter().for_each(|name| add(&mut key, name, Fields::of_head(head.as_bytes())));
            key
        };
        let all = ["", "X: 1", "Y: 1", "X:", "X: 1\r\nY: 1", "X: 1\r\nX: 1", "X: 1 1", "X: 2"].map(key);
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
    }
}
