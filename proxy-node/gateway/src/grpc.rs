//! What the gateway knows of gRPC over HTTP/2: which requests are calls, their deadline, and how its own
//! answers look.

use csp_types::Duration;

use crate::Reason;

/// Most digits of a `grpc-timeout`.
const DIGITS_MAX: usize = 8;

/// Returns whether a request of this `Content-Type` is a call of gRPC: `application/grpc`, perhaps with a
/// format such as `+proto`, or parameters. gRPC-Web is another protocol.
pub(crate) fn is_call(content_type: &[u8]) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let is_type = content_type.get(..TYPE.len()).is_some_and(|start| start.eq_ignore_ascii_case(TYPE));
    is_type && matches!(content_type.get(TYPE.len()), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// Returns the time of a `grpc-timeout`: 1 to 8 digits and a unit. `None` if it is malformed.
pub(crate) fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=DIGITS_MAX).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Returns the `grpc-status` of an answer of the gateway: what clients of gRPC make of its status of HTTP,
/// but for a call that has taken too long, which is DEADLINE_EXCEEDED, and one that is denied with another
/// status of the client's, which is PERMISSION_DENIED.
pub(crate) fn status(reason: Reason, status: u16) -> &'static str {
    match (reason, status) {
        (Reason::TotalTimeout, _) => "4",
        (_, 400) => "13",
        (_, 401) => "16",
        (_, 403) => "7",
        (_, 404) => "12",
        (_, 429 | 502 | 503 | 504) => "14",
        (Reason::Denied, 400..500) => "7",
        _ => "2",
    }
}

/// Writes a `grpc-message`: what is not visible ASCII, and the percent sign, is percent-encoded.
pub(crate) fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | 0..b' ' | 0x7f.. => out.push_str(&format!("%{byte:02X}")),
            byte => out.push(char::from(byte)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_digits_and_a_unit() {
        assert_eq!(timeout(b"1H"), Some(Duration::from_secs(3_600)));
        assert_eq!(timeout(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(timeout(b"99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(timeout(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout(b"7u"), Some(Duration::from_micros(7)));
        assert_eq!(timeout(b"0n"), Some(Duration::ZERO));
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", " 1S", "1 S", "123456789S", "1SS"] {
            assert_eq!(timeout(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn calls_are_known_by_their_type() {
        for right in ["application/grpc", "application/grpc+proto", "Application/GRPC; a=b"] {
            assert!(is_call(right.as_bytes()), "{right}");
        }
        for wrong in ["", "application/json", "application/grpc-web", "application/grpcx", "application/grp"]
        {
            assert!(!is_call(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn messages_are_visible_ascii() {
        assert_eq!(message("a: b\n100 % ü"), "a: b%0A100 %25 %C3%BC");
    }
}
