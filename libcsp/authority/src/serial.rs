//! Serial numbers of certificates.

use std::fmt;
use std::str::FromStr;

/// Octets of a serial number; at most 20 are allowed (RFC 5280 §4.1.2.2).
const LEN: usize = 16;

/// The serial number of a certificate: 16 octets, positive, the first one not zero. Formatted as 32 hex
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Serial([u8; LEN]);

impl Serial {
    /// Returns a new serial number with 126 random bits.
    pub(crate) fn random() -> Self {
        let mut octets: [u8; LEN] = rand::random();
        // Positive, and with a first octet that is not zero: DER then has exactly these octets.
        octets[0] = octets[0] & 0x3f | 0x40;
        Serial(octets)
    }

    /// Returns the serial number with these octets in DER's order, if it has the form of this crate's serial
    /// numbers.
    pub(crate) fn from_octets(octets: &[u8]) -> Option<Self> {
        let octets: [u8; LEN] = octets.try_into().ok()?;
        (octets[0] & 0xc0 == 0x40).then_some(Serial(octets))
    }

    /// Returns the octets in DER's order.
    pub(crate) fn octets(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl FromStr for Serial {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{}` is no serial number; one has 32 hex digits, 40.. to 7f..", text.escape_debug());
        let pairs = text.as_bytes().chunks(2).map(|pair| {
            let digits =
                std::str::from_utf8(pair).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
            u8::from_str_radix(digits, 16).ok()
        });
        let octets: Option<Vec<u8>> = pairs.collect();
        octets.filter(|_| text.len() == 2 * LEN).and_then(|o| Serial::from_octets(&o)).ok_or_else(wrong)
    }
}
