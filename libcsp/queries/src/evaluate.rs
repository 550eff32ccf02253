//! Values of expressions over messages. Nothing is allocated.

use core::cmp::Ordering;

use csp_formats::{Bytes, Record, Scalar, Value, ViewError};

use crate::convert::{self, Number};

use crate::plan::{Cast, Column, ColumnPlace, Comparison, Expr, Literal, Operator, Plan};

/// A value of an expression.
#[derive(Clone, Copy, Debug)]
pub enum Datum<'v> {
    /// Null.
    Null,
    /// A truth value.
    Boolean(bool),
    /// A whole number.
    Integer(i128),
    /// A floating-point number; never NaN, which is null.
    Float(f64),
    /// Text.
    Text(Text<'v>),
    /// The number of an enumeration's value.
    Enum(Scalar),
    /// Bits.
    Set(u64),
}

/// Text in a message or a query, up to its first NUL where it has a fixed length.
#[derive(Clone, Copy, Debug)]
pub enum Text<'v> {
    /// In a message.
    Wire {
        /// The bytes.
        bytes: Bytes<'v>,
        /// How many of them are text.
        len: usize,
    },
    /// Elsewhere.
    Plain(&'v [u8]),
    /// One character.
    Character(u8),
}

impl<'v> Text<'v> {
    /// The bytes as one slice, if they lie in one.
    #[must_use]
    #[inline]
    pub fn contiguous(&self) -> Option<&'v [u8]> {
        match *self {
            Text::Wire { bytes, len } => bytes.take(len)?.contiguous(),
            Text::Plain(text) => Some(text),
            Text::Character(_) => None,
        }
    }
}

impl Text<'_> {
    /// The bytes, in the column's encoding.
    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        self.parts().flatten().copied()
    }

    /// The slices in which the bytes lie; none of them is empty.
    fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let (wire, plain) = match self {
            Text::Wire { bytes, len } => (bytes.take(*len), &[][..]),
            Text::Plain(text) => (None, *text),
            Text::Character(byte) => (None, core::slice::from_ref(byte)),
        };
        let plain = (!plain.is_empty()).then_some(plain);
        wire.into_iter().flat_map(Bytes::parts).chain(plain)
    }
}

impl Plan {
    /// Whether the filter accepts a row: one record of each source. What is null is not accepted.
    ///
    /// # Errors
    /// A record is not valid.
    pub fn accepts(&self, rows: &[&Record<'_, '_>]) -> Result<bool, ViewError> {
        match &self.filter {
            None => Ok(true),
            Some(filter) => Ok(matches!(self.evaluate(filter, rows, &[])?, Datum::Boolean(true))),
        }
    }

    /// The value of a column over a row: one record of each source.
    ///
    /// # Errors
    /// The record is not valid.
    pub fn value<'v>(&'v self, column: usize, rows: &[&Record<'v, 'v>]) -> Result<Datum<'v>, ViewError> {
        self.columns.get(column).map_or(Ok(Datum::Null), |column| read(column, rows))
    }

    /// The value of an expression of this plan over a row: one record of each source, and the results of the
    /// plan's aggregates where the expression has some.
    ///
    /// # Errors
    /// A record is not valid.
    pub fn evaluate<'v>(
        &'v self,
        expr: &'v Expr,
        rows: &[&Record<'v, 'v>],
        aggregates: &[Datum<'v>],
    ) -> Result<Datum<'v>, ViewError> {
        let evaluate = |expr| self.evaluate(expr, rows, aggregates);
        Ok(match expr {
            Expr::Literal(literal) => constant(literal),
            Expr::Aggregate(index) => aggregates.get(*index).copied().unwrap_or(Datum::Null),
            Expr::Column(index) => read(&self.columns[*index], rows)?,
            Expr::Arithmetic(operator, left, right) => {
                arithmetic(*operator, evaluate(left)?, evaluate(right)?)
            }
            Expr::Compare(comparison, left, right) => compare(*comparison, evaluate(left)?, evaluate(right)?),
            Expr::And(left, right) => match evaluate(left)? {
                Datum::Boolean(false) => Datum::Boolean(false),
                first => match (first, evaluate(right)?) {
                    (_, Datum::Boolean(false)) => Datum::Boolean(false),
                    (Datum::Boolean(true), second) => second,
                    _ => Datum::Null,
                },
            },
            Expr::Or(left, right) => match evaluate(left)? {
                Datum::Boolean(true) => Datum::Boolean(true),
                first => match (first, evaluate(right)?) {
                    (_, Datum::Boolean(true)) => Datum::Boolean(true),
                    (Datum::Boolean(false), second) => second,
                    _ => Datum::Null,
                },
            },
            Expr::Not(inner) => match evaluate(inner)? {
                Datum::Boolean(value) => Datum::Boolean(!value),
                _ => Datum::Null,
            },
            Expr::IsNull(inner) => Datum::Boolean(matches!(evaluate(inner)?, Datum::Null)),
            Expr::Has(inner, bit) => match evaluate(inner)? {
                Datum::Set(bits) => Datum::Boolean(bits >> bit & 1 == 1),
                _ => Datum::Null,
            },
            Expr::Like(inner, pattern) => match evaluate(inner)? {
                Datum::Text(text) => Datum::Boolean(pattern.matches(text.parts())),
                _ => Datum::Null,
            },
            Expr::If(parts) => match evaluate(&parts[0])? {
                Datum::Boolean(true) => evaluate(&parts[1])?,
                _ => evaluate(&parts[2])?,
            },
            Expr::Coalesce(first, second) => match evaluate(first)? {
                Datum::Null => evaluate(second)?,
                value => value,
            },
            Expr::Absolute(inner) => match evaluate(inner)? {
                Datum::Integer(number) => number.checked_abs().map_or(Datum::Null, Datum::Integer),
                Datum::Float(number) => Datum::Float(number.abs()),
                _ => Datum::Null,
            },
            Expr::Cast(inner, cast) => cast_to(evaluate(inner)?, *cast),
        })
    }
}

impl Datum<'_> {
    /// Whether two values are equal as keys of a join are: null equals nothing.
    #[must_use]
    pub fn equals(self, other: Datum<'_>) -> bool {
        matches!(compare(Comparison::Equal, self, other), Datum::Boolean(true))
    }

    /// Whether two values are of one group: null is a value here.
    #[must_use]
    pub fn groups_with(self, other: Datum<'_>) -> bool {
        match (self, other) {
            (Datum::Null, Datum::Null) => true,
            (Datum::Set(left), Datum::Set(right)) => left == right,
            (left, right) => left.equals(right),
        }
    }
}

fn constant(literal: &Literal) -> Datum<'_> {
    match literal {
        Literal::Null => Datum::Null,
        Literal::Boolean(value) => Datum::Boolean(*value),
        Literal::Integer(number) => Datum::Integer(*number),
        Literal::Float(number) => Datum::Float(*number),
        Literal::Text(text) => Datum::Text(Text::Plain(text)),
        Literal::Enum(number) => Datum::Enum(*number),
    }
}

fn read<'v>(column: &'v Column, rows: &[&Record<'v, 'v>]) -> Result<Datum<'v>, ViewError> {
    let Some(record) = rows.get(column.source) else { return Ok(Datum::Null) };
    match &column.place {
        ColumnPlace::Field(field) => Ok(datum(record.fixed().value(field)?)),
        ColumnPlace::Data(index) => Ok(record
            .data(*index)?
            .map_or(Datum::Null, |bytes| Datum::Text(Text::Wire { bytes, len: bytes.len() }))),
        ColumnPlace::Group(_) => Ok(Datum::Null),
    }
}

fn datum(value: Value<'_>) -> Datum<'_> {
    match value {
        Value::Scalar(Scalar::Int(number)) => Datum::Integer(i128::from(number)),
        Value::Scalar(Scalar::UInt(number)) => Datum::Integer(i128::from(number)),
        Value::Scalar(Scalar::Float(number)) => float(number),
        Value::Scalar(Scalar::Char(byte)) => Datum::Text(Text::Character(byte)),
        Value::Enum(number) => Datum::Enum(number),
        Value::Set(bits) => Datum::Set(bits),
        Value::Text(bytes) => {
            let len = match bytes.contiguous() {
                Some(text) => text.iter().position(|&byte| byte == 0).unwrap_or(text.len()),
                None => bytes.iter().take_while(|&byte| byte != 0).count(),
            };
            Datum::Text(Text::Wire { bytes, len })
        }
        Value::Literal(text) => Datum::Text(Text::Plain(text)),
        Value::Null | Value::Array(_) | Value::Composite(_) => Datum::Null,
    }
}

/// A number; null if it is none, as infinity less infinity.
pub(crate) fn float<'v>(number: f64) -> Datum<'v> {
    if number.is_nan() { Datum::Null } else { Datum::Float(number) }
}

fn as_float(datum: Datum<'_>) -> Option<f64> {
    match datum {
        Datum::Integer(number) => Some(number as f64),
        Datum::Float(number) => Some(number),
        _ => None,
    }
}

fn arithmetic<'v>(operator: Operator, left: Datum<'_>, right: Datum<'_>) -> Datum<'v> {
    if let (Datum::Integer(left), Datum::Integer(right)) = (left, right) {
        let whole = match operator {
            Operator::Add => left.checked_add(right),
            Operator::Subtract => left.checked_sub(right),
            Operator::Multiply => left.checked_mul(right),
            Operator::Remainder => left.checked_rem(right),
            Operator::Divide if right == 0 => None,
            Operator::Divide => return float(left as f64 / right as f64),
        };
        return whole.map_or(Datum::Null, Datum::Integer);
    }
    let (Some(left), Some(right)) = (as_float(left), as_float(right)) else { return Datum::Null };
    match operator {
        Operator::Add => float(left + right),
        Operator::Subtract => float(left - right),
        Operator::Multiply => float(left * right),
        Operator::Divide | Operator::Remainder if right == 0.0 => Datum::Null,
        Operator::Divide => float(left / right),
        Operator::Remainder => float(left % right),
    }
}

fn compare<'v>(comparison: Comparison, left: Datum<'_>, right: Datum<'_>) -> Datum<'v> {
    let order = match (left, right) {
        (Datum::Integer(left), Datum::Integer(right)) => Some(left.cmp(&right)),
        (Datum::Text(left), Datum::Text(right)) => Some(match (left.contiguous(), right.contiguous()) {
            (Some(left), Some(right)) => left.cmp(right),
            _ => compare_parts(left, right),
        }),
        (Datum::Enum(left), Datum::Enum(right)) => left.compare(right),
        (Datum::Boolean(left), Datum::Boolean(right)) => Some(left.cmp(&right)),
        (left, right) => {
            as_float(left).zip(as_float(right)).and_then(|(left, right)| left.partial_cmp(&right))
        }
    };
    order.map_or(Datum::Null, |order| {
        Datum::Boolean(match comparison {
            Comparison::Equal => order == Ordering::Equal,
            Comparison::Less => order == Ordering::Less,
            Comparison::LessOrEqual => order != Ordering::Greater,
        })
    })
}

/// A value as another type; null where it has none there.
fn cast_to<'v>(datum: Datum<'_>, cast: Cast) -> Datum<'v> {
    match (cast, datum) {
        (_, Datum::Null | Datum::Set(_)) => Datum::Null,
        (_, Datum::Boolean(value)) => match cast {
            Cast::Integer => Datum::Integer(value.into()),
            Cast::Float => Datum::Float(f64::from(u8::from(value))),
        },
        (Cast::Integer, Datum::Integer(number)) => in_64_bits(number),
        (Cast::Integer, Datum::Float(number)) => {
            convert::whole(number).map_or(Datum::Null, |n| Datum::Integer(n.into()))
        }
        (Cast::Float, Datum::Integer(number)) => Datum::Float(number as f64),
        (Cast::Float, Datum::Float(number)) => Datum::Float(number),
        (_, Datum::Enum(Scalar::Int(number))) => cast_to(Datum::Integer(number.into()), cast),
        (_, Datum::Enum(Scalar::UInt(number))) => cast_to(Datum::Integer(number.into()), cast),
        (_, Datum::Enum(Scalar::Char(byte))) => cast_to(Datum::Text(Text::Character(byte)), cast),
        (_, Datum::Enum(Scalar::Float(_))) => Datum::Null,
        (_, Datum::Text(text)) => {
            let mut room = [0; convert::NUMBER_LEN_MAX];
            let Some(number) = convert::digits(text.bytes(), &mut room) else { return Datum::Null };
            match (cast, convert::parse(number)) {
                (_, None) => Datum::Null,
                (Cast::Integer, Some(Number::Whole(number))) => Datum::Integer(number.into()),
                (Cast::Integer, Some(Number::Float(number))) => cast_to(Datum::Float(number), cast),
                (Cast::Float, Some(Number::Whole(number))) => Datum::Float(number as f64),
                (Cast::Float, Some(Number::Float(number))) => float(number),
            }
        }
    }
}

fn in_64_bits<'v>(number: i128) -> Datum<'v> {
    i64::try_from(number).map_or(Datum::Null, |_| Datum::Integer(number))
}

/// Compares texts part by part.
fn compare_parts(left: Text<'_>, right: Text<'_>) -> Ordering {
    let (mut lefts, mut rights) = (left.parts(), right.parts());
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left.is_empty() {
            left = lefts.next().unwrap_or_default();
        }
        if right.is_empty() {
            right = rights.next().unwrap_or_default();
        }
        if left.is_empty() || right.is_empty() {
            return left.len().cmp(&right.len());
        }
        let len = left.len().min(right.len());
        match left[..len].cmp(&right[..len]) {
            Ordering::Equal => (left, right) = (&left[len..], &right[len..]),
            order => return order,
        }
    }
}
