//! Dates in fields (RFC 9110 §5.6.7).

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Reads a date in any of the three forms, as seconds since 1970. Earlier ones are 0. `now`, in the same
/// unit, decides the century of a year of two digits.
pub fn parse(text: &[u8], now: u64) -> Option<u64> {
    let rest = match text.iter().position(|byte| *byte == b',') {
        Some(comma) => text[comma + 1..].strip_prefix(b" ")?,
        None => return asctime(text),
    };
    match rest {
        // 06 Nov 1994 08:49:37 GMT
        [d1, d2, b' ', m1, m2, m3, b' ', year @ .., b' ', b'G', b'M', b'T'] if year.len() == 13 => {
            let (year, time) = (number(&year[..4])?, year.strip_prefix(&year[..4])?.strip_prefix(b" ")?);
            unix(year, month(&[*m1, *m2, *m3])?, number(&[*d1, *d2])?, time)
        }
        // 06-Nov-94 08:49:37 GMT
        [d1, d2, b'-', m1, m2, m3, b'-', y1, y2, b' ', time @ .., b' ', b'G', b'M', b'T'] => {
            let (of_century, day) = (number(&[*y1, *y2])?, number(&[*d1, *d2])?);
            let this = 1970 + now / 31_556_952;
            let year = this - this % 100 + of_century;
            // RFC 9110 §5.6.7: what seems to be more than 50 years ahead is of the last century.
            let year = if year > this + 50 { year - 100 } else { year };
            unix(year, month(&[*m1, *m2, *m3])?, day, time)
        }
        _ => None,
    }
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(text: &[u8]) -> Option<u64> {
    let [_, _, _, b' ', m1, m2, m3, b' ', d1, d2, b' ', time @ ..] = text else { return None };
    let day = if *d1 == b' ' { number(&[*d2])? } else { number(&[*d1, *d2])? };
    let (time, year) = time.split_at_checked(8)?;
    unix(number(year.strip_prefix(b" ")?)?, month(&[*m1, *m2, *m3])?, day, time)
}

fn number(digits: &[u8]) -> Option<u64> {
    let digit = |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'));
    if digits.is_empty() || digits.len() > 4 { None } else { digits.iter().try_fold(0, digit) }
}

fn month(name: &[u8]) -> Option<u64> {
    MONTHS.iter().position(|known| known.eq_ignore_ascii_case(name)).map(|at| at as u64 + 1)
}

fn unix(year: u64, month: u64, day: u64, time: &[u8]) -> Option<u64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = time else { return None };
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?, number(&[*s1, *s2])?);
    if !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if year < 1970 {
        return Some(0);
    }
    // Days of the Gregorian calendar, with years that begin in March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1;
    Some((days.saturating_sub(719_468)) * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        let now = 1_764_500_000;
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse(text.as_bytes(), now), Some(784_111_777), "{text}");
        }
        let of = |text: &str| parse(text.as_bytes(), now);
        assert_eq!(of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(of("Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
        assert_eq!(of("Sunday, 06-Nov-44 08:49:37 GMT"), of("Sun, 06 Nov 2044 08:49:37 GMT"));
        assert_eq!(of("Sun, 06 Nov 1904 08:49:37 GMT"), Some(0));
        for wrong in [
            "",
            "0",
            "-1",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            ",",
            "Sun Nov  6 08:49:37 19941",
            "Sun, 06 Nov 99999 08:49:37 GMT",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
