//! What is wrong with a head, and in which line: examined byte by byte once a head is refused.
//!
//! The first byte that is wrong decides, so that the answer is the same however much of the head has come.

use crate::fault::{Fault, Refusal};
use crate::limits::EMPTY_LINES_MAX;
use crate::name::{is_token_byte, is_value_byte};

/// Which head it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Request,
    Response,
}

/// Returns the number of bytes of empty lines before the first line; `None` if more are needed to say so.
pub(super) fn empty_lines(bytes: &[u8]) -> Result<Option<usize>, Refusal> {
    let mut at = 0;
    for line in 0.. {
        match &bytes[at..] {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] if line < EMPTY_LINES_MAX => at += 2,
            [b'\r', b'\n', ..] => return Err(Refusal::at(Fault::StartLine, line + 1)),
            [b'\r', ..] => return Err(Refusal::at(Fault::BareCr, line + 1)),
            [b'\n', ..] => return Err(Refusal::at(Fault::BareLf, line + 1)),
            _ => break,
        }
    }
    Ok(Some(at))
}

/// Returns the first fault of a head that begins with its first line; `None` if there is none in `bytes`.
pub(super) fn diagnose(bytes: &[u8], kind: Kind) -> Option<Refusal> {
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if matches!(line, b"\r\n" | b"\n") && at > 0 {
            return (line == b"\n").then(|| Refusal::at(Fault::BareLf, at + 1));
        }
        let fault = match (at, kind) {
            (0, Kind::Request) => request_line(line),
            (0, Kind::Response) => status_line(line),
            _ => field_line(line, kind),
        };
        if let Some(fault) = fault {
            return Some(Refusal::at(fault, at + 1));
        }
    }
    None
}

/// Returns the fault of an unexpected byte, and for a line end that is not CRLF.
fn control(rest: &[u8]) -> Option<Fault> {
    match rest {
        [b'\r', b'\n', ..] | [b'\r'] | [] => None,
        [b'\r', ..] => Some(Fault::BareCr),
        [b'\n', ..] => Some(Fault::BareLf),
        [0, ..] => Some(Fault::Nul),
        [0x7f, ..] => Some(Fault::Control),
        [byte, ..] if *byte < b' ' && *byte != b'\t' => Some(Fault::Control),
        _ => None,
    }
}

/// Returns the fault at the first byte of `rest`, which is none of those expected there: `otherwise`, unless
/// it is a control character. A CR is one of those only where a line may end. `None` at the end of the bytes
/// that have come.
fn unexpected(rest: &[u8], otherwise: Fault) -> Option<Fault> {
    match rest {
        [] => None,
        [b'\r', ..] => Some(otherwise),
        _ => control(rest).or(Some(otherwise)),
    }
}

fn request_line(line: &[u8]) -> Option<Fault> {
    let method = run(line, is_token_byte);
    if method == 0 || line.get(method) != Some(&b' ') {
        return unexpected(&line[method..], Fault::StartLine);
    }
    let target = &line[method + 1..];
    let len = run(target, |byte| byte > b' ' && byte != 0x7f);
    if len == 0 || target.get(len) != Some(&b' ') {
        return unexpected(&target[len..], Fault::StartLine);
    }
    // A target that is not UTF-8.
    if std::str::from_utf8(&target[..len]).is_err() {
        return Some(Fault::Target);
    }
    let is_preface = line.starts_with(b"PRI * ");
    version(&target[len + 1..], is_preface, |rest| match rest {
        [b'\r', b'\n'] | [] | [b'\r'] => None,
        _ => control(rest).or(Some(Fault::StartLine)),
    })
}

fn status_line(line: &[u8]) -> Option<Fault> {
    version(line, false, |rest| {
        let wrong = |at: usize| unexpected(&rest[at.min(rest.len())..], Fault::StartLine);
        if rest.first() != Some(&b' ') {
            return wrong(0);
        }
        let digits = run(&rest[1..], |byte| byte.is_ascii_digit()).min(3);
        match rest.get(1 + digits) {
            _ if digits < 3 => wrong(1 + digits),
            Some(b' ') => {
                let reason = run(&rest[5..], is_value_byte);
                control(&rest[5 + reason..])
            }
            Some(b'\r' | b'\n') => control(&rest[4..]),
            _ => wrong(4),
        }
    })
}

/// Examines the version at the start of `text`, then what follows it.
fn version(text: &[u8], is_preface: bool, then: impl FnOnce(&[u8]) -> Option<Fault>) -> Option<Fault> {
    const VERSION: &[u8] = b"HTTP/1.";
    let same = text.iter().zip(VERSION).take_while(|(a, b)| a == b).count();
    match text.get(same) {
        None => None,
        Some(b'0' | b'1') if same == VERSION.len() => then(&text[same + 1..]),
        // From the digit on it is another version.
        Some(_) if same > 5 => Some(Fault::Version),
        Some(b'2') if same == 5 && is_preface => Some(Fault::Http2Preface),
        Some(byte) if same == 5 && byte.is_ascii_digit() => Some(Fault::Version),
        Some(_) => unexpected(&text[same..], Fault::StartLine),
    }
}

fn field_line(line: &[u8], kind: Kind) -> Option<Fault> {
    if let [b' ' | b'\t', ..] = line {
        return Some(Fault::Fold);
    }
    if let [b'\r', ..] = line {
        return control(line);
    }
    let mut colon = run(line, is_token_byte);
    if colon == 0 {
        return unexpected(line, Fault::FieldName);
    }
    // RFC 9112 §5.1: whitespace before the colon of a response's field is removed.
    if kind == Kind::Response {
        colon += run(&line[colon..], |byte| matches!(byte, b' ' | b'\t'));
    }
    match line.get(colon) {
        None => None,
        Some(b':') => {
            let value = run(&line[colon + 1..], is_value_byte);
            control(&line[colon + 1 + value..])
        }
        Some(b' ' | b'\t') => Some(Fault::SpaceInName),
        Some(_) => unexpected(&line[colon..], Fault::FieldName),
    }
}

/// Returns how many bytes at the start of `text` are of a kind.
fn run(text: &[u8], is_of: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is_of(*byte)).unwrap_or(text.len())
}
