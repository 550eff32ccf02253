//! The date as text, and random numbers for ids and weights.

use csp_types::Instant;

/// Length of a date in a field (RFC 9110 §5.6.7).
const DATE_LEN: usize = 29;

/// Civil time from the monotonic clock. The caller sets it now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Nanoseconds of the Unix epoch's clock at the monotonic clock's epoch.
    offset_ns: Option<i128>,
    second: u64,
    text: [u8; DATE_LEN],
}

impl Clock {
    /// Sets the civil time: nanoseconds since 1970.
    pub(crate) fn set(&mut self, now: Instant, unix_ns: u64) {
        self.offset_ns = Some(i128::from(unix_ns) - i128::from(now.as_nanos()));
    }

    /// Returns the civil time in milliseconds since 1970; that of the monotonic clock if it was never set.
    pub(crate) fn unix_ms(&self, now: Instant) -> u64 {
        let ns = self.offset_ns.unwrap_or(0) + i128::from(now.as_nanos());
        u64::try_from(ns / 1_000_000).unwrap_or(0)
    }

    /// Returns the date as fields have it; `None` if the time was never set.
    pub(crate) fn date(&mut self, now: Instant) -> Option<&[u8]> {
        let ns = self.offset_ns? + i128::from(now.as_nanos());
        let second = u64::try_from(ns / 1_000_000_000).unwrap_or(0);
        if second != self.second || self.text[0] == 0 {
            (self.second, self.text) = (second, date_text(second));
        }
        Some(&self.text)
    }
}

/// Returns the date of a second since 1970, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date_text(second: u64) -> [u8; DATE_LEN] {
    let (days, of_day) = (second / 86_400, second % 86_400);
    let week = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    let months =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let (year, month, day) = civil(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[..3].copy_from_slice(week[(days % 7) as usize]);
    text[8..11].copy_from_slice(months[month as usize % 12]);
    let mut put = |at: usize, digits: usize, mut number: u64| {
        for place in (at..at + digits).rev() {
            text[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(5, 2, day);
    put(12, 4, year);
    put(17, 2, of_day / 3_600);
    put(20, 2, of_day / 60 % 60);
    put(23, 2, of_day % 60);
    text
}

/// Returns year, month from 0, and day from 1 of a day since 1970 in the Gregorian calendar.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole cycles of 400 years, so that any time takes few steps.
    let mut year = 1970 + 400 * (days / 146_097);
    days %= 146_097;
    loop {
        let len = if is_leap(year) { 366 } else { 365 };
        if days < len {
            break;
        }
        (days, year) = (days - len, year + 1);
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let lens = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    for len in lens {
        if days < len {
            break;
        }
        (days, month) = (days - len, month + 1);
    }
    (year, month, days + 1)
}

/// Random numbers that need not be secret (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns 16 bytes that are not all zero.
    pub(crate) fn id(&mut self) -> [u8; 16] {
        let (high, low) = (self.next(), self.next() | 1);
        ((u128::from(high) << 64) | u128::from(low)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let text = |second| String::from_utf8(date_text(second).to_vec()).unwrap();
        assert_eq!(text(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(text(1_735_689_599), "Tue, 31 Dec 2024 23:59:59 GMT");
        assert_eq!(text(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
    }
}
