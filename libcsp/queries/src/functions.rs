//! Aggregates: what they are called, their types, and what they keep of a window's rows.

use csp_formats::{Cell, nearest};

use crate::evaluate::{Datum, Text, float};
use crate::plan::{AggregateFunction, Kind};

pub(crate) const NAMES: [(&str, AggregateFunction); 8] = [
    ("COUNT", AggregateFunction::Count),
    ("SUM", AggregateFunction::Sum),
    ("AVG", AggregateFunction::Average),
    ("MIN", AggregateFunction::Minimum),
    ("MAX", AggregateFunction::Maximum),
    ("LAST", AggregateFunction::Last),
    (WINDOW_START, AggregateFunction::WindowStart),
    (WINDOW_END, AggregateFunction::WindowEnd),
];

/// The columns that say when a window begins and ends.
pub(crate) const WINDOW_START: &str = "WINDOW_START";
pub(crate) const WINDOW_END: &str = "WINDOW_END";

/// The name of the function that says whether a set has a choice.
pub(crate) const HAS: &str = "HAS";
/// The name of the function that takes a number's sign away.
pub(crate) const ABS: &str = "ABS";
/// The name of the function that gives the first value that is not null.
pub(crate) const COALESCE: &str = "COALESCE";

/// The aggregate of that name, in any case.
pub(crate) fn aggregate(name: &str) -> Option<AggregateFunction> {
    let found = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?.1;
    // Those of a window are no functions.
    (!matches!(found, AggregateFunction::WindowStart | AggregateFunction::WindowEnd)).then_some(found)
}

/// The function most like a name.
pub(crate) fn nearest_function(name: &str) -> Option<String> {
    nearest(name, NAMES.iter().map(|(known, _)| *known).chain([HAS, ABS, COALESCE, "CAST"]))
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
            (Self::Minimum | Self::Maximum | Self::Last, Kind::Text(_)) => Some(argument.clone()),
            (Self::WindowStart | Self::WindowEnd, _) => Some(Kind::Integer),
            _ => None,
        }
    }
}

/// Bytes of an aggregate in state.
pub const ACCUMULATOR_LEN: usize = 32;

const KIND: usize = 8;
const VALUE: usize = 16;
const INTEGER: u8 = 1;
const FLOAT: u8 = 2;
const TEXT: u8 = 3;
const TEXT_LEN: usize = KIND + 1;
const TEXT_AT: usize = TEXT_LEN + 1;
/// Longest text of an aggregate, in bytes.
pub const SHORT_TEXT_MAX: usize = ACCUMULATOR_LEN - TEXT_AT;

/// A text that an aggregate keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortText {
    len: u8,
    bytes: [u8; SHORT_TEXT_MAX],
}

impl ShortText {
    /// The first bytes of a text; `None` if it is longer.
    pub fn new(text: impl IntoIterator<Item = u8>) -> Option<Self> {
        let mut short = ShortText { len: 0, bytes: [0; SHORT_TEXT_MAX] };
        for byte in text {
            *short.bytes.get_mut(usize::from(short.len))? = byte;
            short.len += 1;
        }
        Some(short)
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What an aggregate is given of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sample {
    /// Nothing: it is passed over.
    #[default]
    Null,
    /// A value that can only be counted.
    Present,
    /// A whole number.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(ShortText),
}

impl From<Datum<'_>> for Sample {
    #[inline]
    fn from(datum: Datum<'_>) -> Self {
        match datum {
            Datum::Null => Sample::Null,
            Datum::Integer(number) => Sample::Integer(number),
            Datum::Float(number) => Sample::Float(number),
            Datum::Text(text) => ShortText::new(text.bytes()).map_or(Sample::Present, Sample::Text),
            _ => Sample::Present,
        }
    }
}

impl From<Cell> for Sample {
    #[inline]
    fn from(cell: Cell) -> Self {
        match cell {
            Cell::Null => Sample::Null,
            Cell::Int(number) => Sample::Integer(number.into()),
            Cell::Float(bits) => Sample::Float(f64::from_bits(bits)),
            Cell::Text(word) => {
                let text = word.to_be_bytes().into_iter().take_while(|byte| *byte != 0);
                ShortText::new(text).map_or(Sample::Present, Sample::Text)
            }
            _ => Sample::Present,
        }
    }
}

/// What an aggregate keeps of the rows of a window: bytes, in state that outlives the program's values. Zeros
/// are an aggregate over no rows.
///
/// ```text
///   | rows counted, 8 bytes | 0: no value, 1: whole, 2: floating-point | 7 bytes of 0 | value, 16 or 8 bytes |
///   |                       | 3: text | its length |  bytes, at most SHORT_TEXT_MAX                            |
/// ```
pub type Accumulator = [u8; ACCUMULATOR_LEN];

impl AggregateFunction {
    /// Adds a row's value to an aggregate; nulls are passed over. For `COUNT(*)` any value but null counts.
    #[inline]
    pub fn add(self, accumulator: &mut Accumulator, sample: &Sample) {
        match sample {
            Sample::Null => return,
            Sample::Present => (),
            Sample::Integer(number) => self.add_number(accumulator, Number::Integer(*number)),
            Sample::Float(number) => self.add_number(accumulator, Number::Float(*number)),
            Sample::Text(text) => self.add_text(accumulator, text),
        }
        put(accumulator, 0, (word(accumulator, 0) + 1).to_le_bytes());
    }

    #[inline]
    fn add_number(self, accumulator: &mut Accumulator, number: Number) {
        if self == Self::Count {
            return;
        }
        let value = match (self, Number::of(accumulator)) {
            (_, None) | (Self::Last, _) => number,
            (Self::Minimum, Some(value)) if !number.is_less(value) => return,
            (Self::Maximum, Some(value)) if !value.is_less(number) => return,
            (Self::Minimum | Self::Maximum, _) => number,
            (_, Some(value)) => value.plus(number),
        };
        match value {
            Number::Integer(number) => {
                accumulator[KIND] = INTEGER;
                put(accumulator, VALUE, number.to_le_bytes());
            }
            Number::Float(number) => {
                accumulator[KIND] = FLOAT;
                put(accumulator, VALUE, number.to_le_bytes());
            }
        }
    }

    #[inline]
    fn add_text(self, accumulator: &mut Accumulator, new: &ShortText) {
        let replaces = match (self, text(accumulator)) {
            (Self::Minimum, Some(old)) => new.text() < old,
            (Self::Maximum, Some(old)) => new.text() > old,
            (Self::Minimum | Self::Maximum, None) | (Self::Last, _) => true,
            _ => false,
        };
        if replaces {
            accumulator[KIND] = TEXT;
            accumulator[TEXT_LEN] = new.len;
            put(accumulator, TEXT_AT, new.bytes);
        }
    }

    /// The result of an aggregate over the rows so far: null without rows, but for counts, and where a sum is
    /// no number. When a window begins and ends is not known here.
    #[must_use]
    pub fn result_of(self, accumulator: &Accumulator) -> Datum<'_> {
        let count = word(accumulator, 0);
        match (self, Number::of(accumulator)) {
            (Self::Count, _) => Datum::Integer(i128::from(count)),
            (_, None) => text(accumulator).map_or(Datum::Null, |text| Datum::Text(Text::Plain(text))),
            (Self::Average, Some(sum)) => float(sum.float() / count as f64),
            (_, Some(Number::Integer(number))) => Datum::Integer(number),
            (_, Some(Number::Float(number))) => float(number),
        }
    }
}

/// The text that an aggregate keeps, if it keeps one.
#[inline]
fn text(accumulator: &Accumulator) -> Option<&[u8]> {
    let len = usize::from(accumulator[TEXT_LEN]).min(SHORT_TEXT_MAX);
    (accumulator[KIND] == TEXT).then(|| &accumulator[TEXT_AT..TEXT_AT + len])
}

#[inline]
fn word(accumulator: &Accumulator, at: usize) -> u64 {
    accumulator.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[inline]
fn put<const N: usize>(accumulator: &mut Accumulator, at: usize, bytes: [u8; N]) {
    accumulator[at..at + N].copy_from_slice(&bytes);
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    #[inline]
    fn of(accumulator: &Accumulator) -> Option<Self> {
        let (low, high) = (word(accumulator, VALUE), word(accumulator, VALUE + 8));
        match accumulator[KIND] {
            INTEGER => Some(Self::Integer((i128::from(high as i64) << 64) | i128::from(low))),
            FLOAT => Some(Self::Float(f64::from_bits(low))),
            _ => None,
        }
    }

    /// Whole numbers are compared as such, others as floating-point numbers.
    #[inline]
    fn is_less(self, other: Self) -> bool {
        match (self, other) {
            (Self::Integer(left), Self::Integer(right)) => left < right,
            _ => self.float() < other.float(),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Integer(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    #[inline]
    fn plus(self, other: Self) -> Self {
        match (self, other) {
            // 64-bit numbers: the sum of as many as can be counted fits.
            (Self::Integer(left), Self::Integer(right)) => Self::Integer(left.saturating_add(right)),
            _ => Self::Float(self.float() + other.float()),
        }
    }
}
