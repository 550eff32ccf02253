//! Aggregates: what they are called, their types, and what they keep of a window's rows.

use csp_formats::nearest;

use crate::evaluate::Datum;
use crate::plan::{AggregateFunction, Kind};

pub(crate) const NAMES: [(&str, AggregateFunction); 6] = [
    ("COUNT", AggregateFunction::Count),
    ("SUM", AggregateFunction::Sum),
    ("AVG", AggregateFunction::Average),
    ("MIN", AggregateFunction::Minimum),
    ("MAX", AggregateFunction::Maximum),
    ("LAST", AggregateFunction::Last),
];

/// The name of the function that says whether a set has a choice.
pub(crate) const HAS: &str = "HAS";

/// The aggregate of that name, in any case.
pub(crate) fn aggregate(name: &str) -> Option<AggregateFunction> {
    NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|&(_, function)| function)
}

/// The function most like a name.
pub(crate) fn nearest_function(name: &str) -> Option<String> {
    nearest(name, NAMES.iter().map(|(known, _)| *known).chain([HAS]))
}

impl AggregateFunction {
    /// Its name in SQL.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, function)| *function == self).map_or("", |(name, _)| name)
    }

    /// The type of its result over values of a type; `None` if it cannot be applied to them.
    pub(crate) fn result(self, argument: &Kind) -> Option<Kind> {
        match (self, argument) {
            (Self::Count, _) => Some(Kind::Integer),
            (Self::Average, kind) if kind.is_number() => Some(Kind::Float),
            (Self::Sum | Self::Minimum | Self::Maximum | Self::Last, kind) if kind.is_number() => {
                Some(kind.clone())
            }
            _ => None,
        }
    }
}

/// Bytes of an aggregate in state.
pub const ACCUMULATOR_LEN: usize = 32;

/// What an aggregate keeps of the rows of a window.
#[derive(Clone, Copy, Debug)]
pub struct Accumulator {
    function: AggregateFunction,
    count: u64,
    value: Option<Number>,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Accumulator {
    /// An aggregate over no rows.
    #[must_use]
    pub fn new(function: AggregateFunction) -> Self {
        Self { function, count: 0, value: None }
    }

    /// Adds a row's value; nulls are passed over. For `COUNT(*)` any value but null counts.
    pub fn add(&mut self, datum: Datum<'_>) {
        let number = match datum {
            Datum::Null => return,
            Datum::Integer(number) => Some(Number::Integer(number)),
            Datum::Float(number) => Some(Number::Float(number)),
            _ => None,
        };
        self.count += 1;
        let Some(number) = number else { return };
        let Some(value) = self.value else {
            self.value = Some(number);
            return;
        };
        self.value = Some(match self.function {
            AggregateFunction::Minimum if number.float() < value.float() => number,
            AggregateFunction::Maximum if number.float() > value.float() => number,
            AggregateFunction::Minimum | AggregateFunction::Maximum => value,
            AggregateFunction::Last => number,
            _ => value.plus(number),
        });
    }

    /// The aggregate as bytes, for state that outlives the program's values.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ACCUMULATOR_LEN] {
        let mut bytes = [0; ACCUMULATOR_LEN];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        match self.value {
            None => (),
            Some(Number::Integer(number)) => {
                bytes[8] = 1;
                bytes[16..].copy_from_slice(&number.to_le_bytes());
            }
            Some(Number::Float(number)) => {
                bytes[8] = 2;
                bytes[16..24].copy_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    /// The aggregate that [`to_bytes`](Self::to_bytes) has written.
    #[must_use]
    pub fn from_bytes(function: AggregateFunction, bytes: &[u8; ACCUMULATOR_LEN]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let value = match bytes[8] {
            1 => Some(Number::Integer((i128::from(word(24) as i64) << 64) | i128::from(word(16)))),
            2 => Some(Number::Float(f64::from_bits(word(16)))),
            _ => None,
        };
        Self { function, count: word(0), value }
    }

    /// The aggregate of the rows so far: null without rows, but for counts.
    #[must_use]
    pub fn result(&self) -> Datum<'static> {
        match (self.function, self.value) {
            (AggregateFunction::Count, _) => Datum::Integer(i128::from(self.count)),
            (_, None) => Datum::Null,
            (AggregateFunction::Average, Some(sum)) => Datum::Float(sum.float() / self.count as f64),
            (_, Some(Number::Integer(number))) => Datum::Integer(number),
            (_, Some(Number::Float(number))) => Datum::Float(number),
        }
    }
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Self::Integer(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            // 64-bit numbers: the sum of as many as can be counted fits.
            (Self::Integer(left), Self::Integer(right)) => Self::Integer(left.saturating_add(right)),
            _ => Self::Float(self.float() + other.float()),
        }
    }
}
