//! What a packet, a record, a message, a byte and a transaction cost at each tier: a file of YAML or
//! JSON, where every number has its unit and its source.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{MICROSECOND, NANOSECOND};

/// The paper's costs, as far as it has them.
pub const PAPER: &str = include_str!("../costs/paper.yaml");
/// Costs from the figures of `make bench`.
pub const BENCH: &str = include_str!("../costs/bench.yaml");
/// A form for measured costs; it is refused until it is filled in.
pub const FORM: &str = include_str!("../costs/form.yaml");

/// Longest file that is read, bytes.
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// Largest cost of anything, nanoseconds: an hour.
const COST_NS_MAX: f64 = 3.6e12;

/// Costs of all tiers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Name of this set, for tables.
    pub name: String,
    /// The processor on which a cost is one second of processor time a second.
    pub processor: String,
    /// How far costs may be wrong: 0.15 for 15 %.
    pub error: f64,
    /// Network nodes.
    #[serde(default)]
    pub network: TierCosts,
    /// Proxy nodes.
    #[serde(default)]
    pub proxy: TierCosts,
    /// Application nodes.
    #[serde(default)]
    pub application: TierCosts,
}

/// Costs of one tier; what is not given costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierCosts {
    /// A transaction: a connection with one request and one response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Cost>,
    /// A packet of TCP/IP, received or sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<Cost>,
    /// A TLS record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Cost>,
    /// A message between proxy and application node, received or sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Cost>,
    /// A byte of a packet (network node), or of a request or response (proxy and application node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte: Option<Cost>,
}

/// One cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The number, in `unit`.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// Where it comes from.
    pub kind: Kind,
    /// The place where it stands, or how it was found.
    pub source: String,
}

/// Units of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
}

/// Where a cost comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It was measured.
    Measured,
    /// It follows from something else that was measured or published.
    Inferred,
    /// Nothing is known; the source says why this value was chosen.
    Assumed,
    /// Not filled in yet: the file is refused.
    Missing,
}

/// Why costs are refused.
#[derive(Debug, Error)]
pub enum CostError {
    /// The text is too long to be a file of costs.
    #[error("the file has {0} bytes; a file of costs has at most {FILE_BYTES_MAX}")]
    TooLong(usize),
    /// Not YAML, or other fields than those of a file of costs.
    #[error("{0}")]
    Syntax(String),
    /// A number is missing.
    #[error("{tier}.{name} is not filled in: give its value, and `kind: measured`")]
    Missing {
        /// The tier.
        tier: &'static str,
        /// The cost.
        name: &'static str,
    },
    /// A number makes no sense.
    #[error("{tier}.{name} is {value} ns; right is 0 to {COST_NS_MAX}")]
    OutOfRange {
        /// The tier.
        tier: &'static str,
        /// The cost.
        name: &'static str,
        /// What it is.
        value: f64,
    },
    /// A number without a source.
    #[error("{tier}.{name} has no source: say where the number comes from")]
    NoSource {
        /// The tier.
        tier: &'static str,
        /// The cost.
        name: &'static str,
    },
    /// `error` makes no sense.
    #[error("error is {0}; right is 0 to 1, 0.15 for 15 %")]
    Error(f64),
}

impl Costs {
    /// Reads costs from YAML or JSON and checks them.
    pub fn parse(text: &str) -> Result<Self, CostError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(CostError::TooLong(text.len()));
        }
        let costs: Costs =
            serde_saphyr::from_str(text).map_err(|error| CostError::Syntax(error.to_string()))?;
        costs.check()?;
        Ok(costs)
    }

    /// Costs under which nothing takes processor time.
    pub fn free() -> Self {
        Costs {
            name: "free".to_owned(),
            processor: "none".to_owned(),
            error: 0.0,
            network: TierCosts::default(),
            proxy: TierCosts::default(),
            application: TierCosts::default(),
        }
    }

    /// Returns the costs as text of a file.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).unwrap_or_default()
    }

    fn check(&self) -> Result<(), CostError> {
        if !(0.0..=1.0).contains(&self.error) {
            return Err(CostError::Error(self.error));
        }
        let tiers = [("network", &self.network), ("proxy", &self.proxy), ("application", &self.application)];
        for (tier, costs) in tiers {
            for (name, cost) in costs.named() {
                let Some(cost) = cost else { continue };
                let value = cost.nanoseconds();
                if cost.kind == Kind::Missing {
                    return Err(CostError::Missing { tier, name });
                }
                if !(0.0..=COST_NS_MAX).contains(&value) {
                    return Err(CostError::OutOfRange { tier, name, value });
                }
                if cost.source.trim().is_empty() {
                    return Err(CostError::NoSource { tier, name });
                }
            }
        }
        Ok(())
    }
}

impl TierCosts {
    /// Returns every cost with its name.
    pub fn named(&self) -> [(&'static str, Option<&Cost>); 5] {
        [
            ("transaction", self.transaction.as_ref()),
            ("packet", self.packet.as_ref()),
            ("record", self.record.as_ref()),
            ("message", self.message.as_ref()),
            ("byte", self.byte.as_ref()),
        ]
    }

    /// Returns the costs in picoseconds.
    pub fn work(&self) -> Work {
        let of = |cost: &Option<Cost>| cost.as_ref().map_or(0.0, |cost| cost.nanoseconds() * NANOSECOND);
        Work {
            transaction: of(&self.transaction),
            packet: of(&self.packet),
            record: of(&self.record),
            message: of(&self.message),
            byte: of(&self.byte),
        }
    }
}

impl Cost {
    /// A cost of this many microseconds that was chosen, not measured.
    pub fn assumed(microseconds: f64, source: &str) -> Self {
        Cost { value: microseconds, unit: Unit::Microseconds, kind: Kind::Assumed, source: source.to_owned() }
    }

    fn nanoseconds(&self) -> f64 {
        match self.unit {
            Unit::Nanoseconds => self.value,
            Unit::Microseconds => self.value * MICROSECOND / NANOSECOND,
        }
    }
}

/// Costs of a tier in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// A transaction.
    pub transaction: f64,
    /// A packet.
    pub packet: f64,
    /// A TLS record.
    pub record: f64,
    /// A message.
    pub message: f64,
    /// A byte.
    pub byte: f64,
}
