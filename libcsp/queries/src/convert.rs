//! Numbers made of other numbers, and of text.

/// Longest text that is read as a number, in bytes without the space around it.
pub(crate) const NUMBER_LEN_MAX: usize = 64;

/// A number that a text has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Whole(i64),
    Float(f64),
}

/// The nearest whole number, of two the even one; `None` beyond 64 bits.
pub(crate) fn whole(number: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let rounded = number.round_ties_even();
    (-LIMIT..LIMIT).contains(&rounded).then_some(rounded as i64)
}

/// The bytes of a text without spaces around them; `None` if they are more than a number has, or none.
pub(crate) fn digits(bytes: impl Iterator<Item = u8>, room: &mut [u8; NUMBER_LEN_MAX]) -> Option<&str> {
    let mut len = 0;
    for byte in bytes.skip_while(|byte| *byte == b' ') {
        // Space behind a number is read and not kept.
        if len == NUMBER_LEN_MAX {
            return None;
        }
        room[len] = byte;
        len += 1;
    }
    let text = core::str::from_utf8(&room[..len]).ok()?.trim_end_matches(' ');
    (!text.is_empty()).then_some(text)
}

/// The number that a text has: digits with a sign, a point or an exponent.
pub(crate) fn parse(text: &str) -> Option<Number> {
    if !text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')) {
        return None;
    }
    if let Ok(number) = text.parse() {
        return Some(Number::Whole(number));
    }
    text.parse().ok().filter(|number: &f64| number.is_finite()).map(Number::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_read_from_text() {
        for (number, expected) in [
            (2.5, Some(2)),
            (3.5, Some(4)),
            (-2.5, Some(-2)),
            (1e18, Some(1_000_000_000_000_000_000)),
            (9.3e18, None),
            (-9_223_372_036_854_775_808.0, Some(i64::MIN)),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(whole(number), expected, "{number}");
        }
        let read = |text: &str| {
            let mut room = [0; NUMBER_LEN_MAX];
            digits(text.bytes(), &mut room).and_then(parse)
        };
        assert_eq!(read(" 12 "), Some(Number::Whole(12)));
        assert_eq!(read("-1.5e1"), Some(Number::Float(-15.0)));
        for text in ["", " ", "1 2", "inf", "NaN", "0x10", "1e999", &"1".repeat(65)] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
