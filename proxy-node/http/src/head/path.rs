//! Paths in one form, so that a route and a member mean the same resource (RFC 3986 §6.2.2).

use memchr::{memchr, memmem};

use crate::fault::Fault;

/// Returns `path` with characters decoded that need no percent-encoding in a segment but `;`, hexadecimal
/// digits in upper case, and dot segments removed. It is `path` itself if it has that form already; otherwise
/// it is written to `room`. `%2F` stays encoded and is part of a segment; repeated slashes and parameters of
/// segments stay: see [`other_readings`].
///
/// Refused are percent signs without two hexadecimal digits, an encoded NUL, an encoded backslash, and dot
/// segments that climb above the root: members differ in what they make of them.
pub fn normalised<'a>(path: &'a [u8], room: &'a mut Vec<u8>) -> Result<&'a [u8], Fault> {
    if memchr(b'%', path).is_none() && memmem::find(path, b"/.").is_none() {
        return Ok(path);
    }
    room.clear();
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        at += 1;
        match byte {
            b'%' => {
                let digits = path.get(at..at + 2).ok_or(Fault::Target)?;
                at += 2;
                push_decoded(room, digits)?;
            }
            b'/' => {
                end_segment(room)?;
                room.push(b'/');
            }
            _ => room.push(*byte),
        }
    }
    // RFC 3986 §5.2.4: a path that ends with a dot segment ends with a slash.
    if end_segment(room)? {
        room.push(b'/');
    }
    Ok(room)
}

fn push_decoded(room: &mut Vec<u8>, digits: &[u8]) -> Result<(), Fault> {
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(Fault::Target);
    let byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => room.push(byte),
        // RFC 3986 §3.3: members take them for the same in a segment.
        b':' | b'@' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' => room.push(byte),
        0 | b'\\' => return Err(Fault::Target),
        _ => room.extend([b'%', digits[0].to_ascii_uppercase(), digits[1].to_ascii_uppercase()]),
    }
    Ok(())
}

/// Where a member that ignores parameters of segments takes the end of one to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parameters {
    Kept,
    /// At the next slash.
    CutBeforeDecoding,
    /// At the next slash, be it encoded.
    CutAfterDecoding,
}

/// How a member may read a path.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Repeated slashes are one.
    merges: bool,
    /// `%2F` is a slash.
    decodes: bool,
    parameters: Parameters,
}

/// Calls `is_same` with every path that a member may take `path` for, which is in the normal form, if it
/// merges repeated slashes, takes `%2F` for a slash, or ignores what follows `;` in a segment. A path without
/// those has no other readings.
///
/// Refused is a path that climbs above the root in a reading, or of which `is_same` returns `false`. There
/// are at most eleven calls.
pub fn other_readings(
    path: &[u8],
    room: &mut Vec<u8>,
    mut is_same: impl FnMut(&[u8]) -> bool,
) -> Result<(), Fault> {
    use Parameters::{CutAfterDecoding, CutBeforeDecoding, Kept};
    let contains = |text: &[u8]| memmem::find(path, text).is_some();
    let has_slash = contains(b"%2F");
    let has_parameters = memchr(b';', path).is_some() || contains(b"%3B");
    if !has_slash && !has_parameters && !contains(b"//") {
        return Ok(());
    }
    let decodings: &[bool] = if has_slash { &[false, true] } else { &[false] };
    let cuts: &[Parameters] =
        if has_parameters { &[Kept, CutBeforeDecoding, CutAfterDecoding] } else { &[Kept] };
    for merges in [false, true] {
        for decodes in decodings.iter().copied() {
            for parameters in cuts.iter().copied() {
                read(path, room, Reading { merges, decodes, parameters })?;
                if room != path && !is_same(room) {
                    return Err(Fault::PathAmbiguous);
                }
            }
        }
    }
    Ok(())
}

/// Writes a path as a member reads it.
fn read(path: &[u8], room: &mut Vec<u8>, how: Reading) -> Result<(), Fault> {
    let above_root = |_| Fault::PathAmbiguous;
    room.clear();
    let (mut rest, mut is_cut) = (path, false);
    while !rest.is_empty() {
        let (is_slash, is_raw, len) = match rest {
            [b'/', ..] => (true, true, 1),
            [b'%', b'2', b'F', ..] if how.decodes => (true, false, 3),
            _ => (false, false, 1),
        };
        if is_slash && (is_raw || !is_cut || how.parameters == Parameters::CutAfterDecoding) {
            is_cut = false;
            end_segment(room).map_err(above_root)?;
            if !(how.merges && room.ends_with(b"/")) {
                room.push(b'/');
            }
        } else if how.parameters != Parameters::Kept && matches!(rest, [b';', ..] | [b'%', b'3', b'B', ..]) {
            is_cut = true;
        } else if !is_cut {
            room.extend_from_slice(&rest[..len]);
        }
        rest = &rest[len..];
    }
    if end_segment(room).map_err(above_root)? {
        room.push(b'/');
    }
    Ok(())
}

/// Removes the last segment if it is a dot segment, with the segment before it for `..`, and with the slash
/// before what is removed. Returns whether it was one.
fn end_segment(room: &mut Vec<u8>) -> Result<bool, Fault> {
    let Some(slash) = memchr::memrchr(b'/', room) else { return Ok(false) };
    match &room[slash + 1..] {
        b"." => room.truncate(slash),
        b".." => {
            let parent = memchr::memrchr(b'/', &room[..slash]).ok_or(Fault::PathAboveRoot)?;
            room.truncate(parent);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Result<String, Fault> {
        let mut room = Vec::new();
        normalised(path.as_bytes(), &mut room).map(|path| String::from_utf8_lossy(path).into_owned())
    }

    #[test]
    fn paths_have_one_form() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/.", "/"),
            ("/a/..", "/"),
            ("/a/%2e%2E/b", "/b"),
            ("/%61dmin", "/admin"),
            ("/a%2fb", "/a%2Fb"),
            ("/a//b", "/a//b"),
            ("/a//../b", "/a/b"),
            ("/.hidden/..x/x..", "/.hidden/..x/x.."),
            ("/a%20b", "/a%20b"),
            ("/%7euser", "/~user"),
            ("/%c3%a9", "/%C3%A9"),
            ("/a%3adelete", "/a:delete"),
            ("/%40%21%24%26%27%28%29%2a%2B%2c%3D", "/@!$&'()*+,="),
            ("/a%3bx", "/a%3Bx"),
        ] {
            assert_eq!(of(path), Ok(expected.to_owned()), "{path}");
            assert_eq!(of(expected), Ok(expected.to_owned()), "{expected} is in the form");
        }
    }

    /// Returns the readings in which a path lies below `/admin`, or the fault.
    fn as_admin(path: &str) -> Result<Vec<String>, Fault> {
        let (mut room, mut found) = (Vec::new(), Vec::new());
        let path = of(path)?;
        other_readings(path.as_bytes(), &mut room, |other| {
            let other = String::from_utf8_lossy(other).into_owned();
            if other == "/admin" || other.starts_with("/admin/") {
                found.push(other);
            }
            true
        })?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    #[test]
    fn readings_of_members_that_differ() {
        for (path, expected) in [
            ("/x", &[][..]),
            ("/admin", &[]),
            ("//admin", &["/admin"]),
            ("/x//../../admin", &[]),
            ("/%2Fadmin", &["/admin"]),
            ("/%2fadmin//x", &["/admin/x"]),
            ("/admin%2Fx", &["/admin/x"]),
            ("/x/..%2fadmin", &["/admin"]),
            ("/admin;x", &["/admin"]),
            ("/admin;x=1/y", &["/admin/y"]),
            ("/admin%3Bx", &["/admin"]),
            ("/;/admin", &["/admin"]),
            ("/x/..;/admin", &["/admin"]),
            ("/x/.;a/%2E%2e;b%2Fadmin", &["/admin"]),
            ("/a%2F..;%2Fq/admin", &["/admin"]),
            ("/a;b=c/d", &[]),
        ] {
            let mut expected: Vec<String> = expected.iter().map(|path| (*path).to_owned()).collect();
            expected.sort();
            assert_eq!(as_admin(path), Ok(expected), "{path}");
        }
        for path in ["/..%2Fadmin", "/x/..%2F..%2Fadmin", "/..;/admin", "/x//..;/..;/..;/admin"] {
            assert_eq!(as_admin(path), Err(Fault::PathAmbiguous), "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for path in ["/..", "/a/../../b", "/%2e%2e/x", "/a/../.."] {
            assert_eq!(of(path), Err(Fault::PathAboveRoot), "{path}");
        }
        for path in ["/%", "/%4", "/%zz", "/%+1", "/%00", "/a%5cb"] {
            assert_eq!(of(path), Err(Fault::Target), "{path}");
        }
    }
}
