//! Why an instance has its level, as text.

use core::fmt;

/// Why an instance has its level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Nothing was measured, and nothing is expected.
    Unknown,
    /// So many packets per second were measured.
    Measured(u64),
    /// So many packets per second are expected.
    Expected(u64),
    /// It gets packets of this instance, which is to run in the driver. So many packets per second were measured.
    With(String, u64),
    /// It would run in the driver, or its workers lose frames, but it cannot.
    Stays {
        /// What speaks for the driver.
        rate: Box<Why>,
        /// LAN ports lose frames, since workers do not take them in time.
        overrun: bool,
        /// Why it cannot.
        reason: String,
    },
}

impl Why {
    /// The reason of an instance that cannot run in the driver: worth a word only where it should.
    pub(super) fn stays(self, wanted: bool, overrun: bool, reason: &str) -> Self {
        match wanted || overrun {
            true => Why::Stays { rate: Box::new(self), overrun, reason: reason.to_owned() },
            false => self,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Unknown => f.write_str("nothing measured"),
            Why::Measured(rate) => write!(f, "{} packets/s", Short(*rate)),
            Why::Expected(rate) => write!(f, "{} packets/s expected", Short(*rate)),
            Why::With(other, rate) => write!(f, "{} packets/s, with {other}", Short(*rate)),
            Why::Stays { rate, overrun, reason } => {
                let lost = if *overrun { ", LAN ports lose frames" } else { "" };
                write!(f, "{rate}{lost}; not in the driver: {reason}")
            }
        }
    }
}

/// A number with at most three digits and a suffix.
struct Short(u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Short(number) = *self;
        let (unit, suffix) = match number {
            0..1_000 => return write!(f, "{number}"),
            1_000..1_000_000 => (1_000, 'k'),
            _ => (1_000_000, 'M'),
        };
        match number / unit {
            whole @ 0..10 => write!(f, "{whole}.{}{suffix}", number % unit * 10 / unit),
            whole => write!(f, "{whole}{suffix}"),
        }
    }
}
