//! The reason for an instance's level, as text.

use core::fmt;

/// Why an instance has its level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LevelReason {
    /// Neither a measurement nor an expectation exists.
    Unknown,
    /// Measured packets per second.
    Measured(u64),
    /// Expected packets per second.
    Expected(u64),
    /// It receives packets from this instance, which is to run in the driver; with the measured packets per
    /// second.
    With(String, u64),
    /// It should run in the driver, because of its rate or of lost frames, but cannot.
    Stays {
        /// The rate that calls for the driver.
        rate: Box<LevelReason>,
        /// Whether LAN ports lose frames because workers are too slow.
        overrun: bool,
        /// Why it cannot run there.
        reason: String,
    },
}

impl LevelReason {
    /// Returns the reason of an instance that cannot run in the driver. The obstacle is only mentioned where
    /// the driver would be chosen.
    pub(super) fn stays(self, wanted: bool, overrun: bool, reason: &str) -> Self {
        match wanted || overrun {
            true => LevelReason::Stays { rate: Box::new(self), overrun, reason: reason.to_owned() },
            false => self,
        }
    }
}

impl fmt::Display for LevelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LevelReason::Unknown => f.write_str("nothing measured"),
            LevelReason::Measured(rate) => write!(f, "{} packets/s", Short(*rate)),
            LevelReason::Expected(rate) => write!(f, "{} packets/s expected", Short(*rate)),
            LevelReason::With(other, rate) => write!(f, "{} packets/s, with {other}", Short(*rate)),
            LevelReason::Stays { rate, overrun, reason } => {
                let lost = if *overrun { ", LAN ports lose frames" } else { "" };
                write!(f, "{rate}{lost}; not in the driver: {reason}")
            }
        }
    }
}

/// Formats a number with at most three digits and a suffix.
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
