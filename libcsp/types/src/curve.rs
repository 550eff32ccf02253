//! CURVE public keys in ZeroMQ's notation: 40 characters of Z85 ([32/Z85](https://rfc.zeromq.org/spec/32)).

use core::fmt;
use core::str::FromStr;

/// Length of a CURVE key in bytes.
pub const CURVE_KEY_LEN: usize = 32;
/// Length of a key as text.
pub const CURVE_KEY_TEXT_LEN: usize = 40;

const DIGITS: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// A CURVE public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CurvePublicKey(pub [u8; CURVE_KEY_LEN]);

/// The text is not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoCurveKey;

impl fmt::Display for NoCurveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key has 40 characters of Z85, as cspctl and ZeroMQ's tools print it")
    }
}

impl core::error::Error for NoCurveKey {}

/// Formats a key, public or secret, as text.
pub fn to_z85(key: &[u8; CURVE_KEY_LEN]) -> [u8; CURVE_KEY_TEXT_LEN] {
    let mut out = [0; CURVE_KEY_TEXT_LEN];
    for (bytes, text) in key.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<5>().0) {
        let mut word = u32::from_be_bytes(*bytes);
        for place in text.iter_mut().rev() {
            *place = DIGITS[(word % 85) as usize];
            word /= 85;
        }
    }
    out
}

/// Parses a key, public or secret.
pub fn from_z85(text: &[u8]) -> Result<[u8; CURVE_KEY_LEN], NoCurveKey> {
    let text: &[u8; CURVE_KEY_TEXT_LEN] = text.try_into().map_err(|_| NoCurveKey)?;
    let mut out = [0; CURVE_KEY_LEN];
    for (text, bytes) in text.as_chunks::<5>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        let mut word = 0u32;
        for character in text {
            let digit = DIGITS.iter().position(|digit| digit == character).ok_or(NoCurveKey)?;
            word = word.checked_mul(85).and_then(|word| word.checked_add(digit as u32)).ok_or(NoCurveKey)?;
        }
        *bytes = word.to_be_bytes();
    }
    Ok(out)
}

impl FromStr for CurvePublicKey {
    type Err = NoCurveKey;

    fn from_str(text: &str) -> Result<Self, NoCurveKey> {
        from_z85(text.as_bytes()).map(CurvePublicKey)
    }
}

impl fmt::Display for CurvePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        to_z85(&self.0).iter().try_for_each(|character| fmt::Write::write_char(f, (*character).into()))
    }
}

impl fmt::Debug for CurvePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    /// The server's key in zmq_curve(7).
    const TEXT: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    const BYTES: [u8; 32] = [
        0x54, 0xfc, 0xba, 0x24, 0xe9, 0x32, 0x49, 0x96, 0x93, 0x16, 0xfb, 0x61, 0x7c, 0x87, 0x2b, 0xb0, 0xc1,
        0xd1, 0xff, 0x14, 0x80, 0x04, 0x27, 0xc5, 0x94, 0xcb, 0xfa, 0xcf, 0x1b, 0xc2, 0xd6, 0x52,
    ];

    #[test]
    fn a_key_is_written_as_zeromq_writes_it() {
        assert_eq!(CurvePublicKey(BYTES).to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(CurvePublicKey(BYTES)));
        for key in [[0; 32], [0xff; 32], core::array::from_fn(|at| at as u8)] {
            assert_eq!(from_z85(&to_z85(&key)), Ok(key));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = "0".repeat(41);
        // "#####" is 85^5 - 1, more than 32 bits hold.
        let wide = "#####".repeat(8);
        for text in ["", &TEXT[1..], &long, &wide, &TEXT.replace('r', "\""), &TEXT.replace('r', "é")] {
            assert_eq!(text.parse::<CurvePublicKey>(), Err(NoCurveKey), "{text}");
        }
    }
}
