//! Constants, and which types can meet.

use std::sync::Arc;

use csp_formats::{Charset, EnumType, nearest};

use super::expressions::Bound;
use crate::error::{Position, QueryError, QueryProblem};
use crate::plan::{Expr, Kind, Literal};

pub(super) fn number(digits: &str, at: Position) -> Result<(Expr, Kind), QueryError> {
    let unsupported = || {
        let what = format!("the number {digits}");
        QueryError::new(at, QueryProblem::Unsupported { what })
    };
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let number: u64 = digits.parse().map_err(|_| unsupported())?;
        return Ok((Expr::Literal(Literal::Integer(i128::from(number))), Kind::Integer));
    }
    let number: f64 = digits.parse().map_err(|_| unsupported())?;
    if !number.is_finite() {
        return Err(unsupported());
    }
    Ok((Expr::Literal(Literal::Float(number)), Kind::Float))
}

pub(super) fn text(text: &str) -> (Expr, Kind) {
    (Expr::Literal(Literal::Text(text.as_bytes().into())), Kind::Text(Charset::Utf8))
}

/// Converts a text literal to what it is compared with: the number of an enumeration's value, or the column's
/// encoding.
pub(super) fn coerce(bound: &mut Bound, other: &Kind) -> Result<(), QueryError> {
    let Expr::Literal(Literal::Text(bytes)) = &bound.expr else { return Ok(()) };
    let text = core::str::from_utf8(bytes).unwrap_or_default();
    match other {
        Kind::Enum(kind) => match kind.named(text) {
            Some(value) => bound.expr = Expr::Literal(Literal::Enum(value.number)),
            None => {
                let nearest = nearest(text, kind.values.iter().map(|value| &*value.name));
                let problem = QueryProblem::Unknown { what: "value", name: text.to_owned(), nearest };
                return Err(QueryError::new(bound.at, problem));
            }
        },
        Kind::Text(charset) => match encoded(text, *charset) {
            Some(encoded) => bound.expr = Expr::Literal(Literal::Text(encoded)),
            None => {
                let expected = "text in the column's encoding";
                return Err(wrong_type(bound.at, "the comparison", expected, &Kind::Text(Charset::Utf8)));
            }
        },
        _ => (),
    }
    Ok(())
}

fn encoded(text: &str, charset: Charset) -> Option<Arc<[u8]>> {
    match charset {
        Charset::Ascii => text.is_ascii().then(|| text.as_bytes().into()),
        Charset::Utf8 => Some(text.as_bytes().into()),
        Charset::Latin1 => text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect(),
    }
}

/// Whether values of two types can be compared.
pub(crate) fn comparable(left: &Kind, right: &Kind) -> bool {
    match (left, right) {
        (Kind::Opaque(_), _) | (_, Kind::Opaque(_)) => false,
        (Kind::Null, _) | (_, Kind::Null) => true,
        // ASCII is part of both others; of those the bytes differ.
        (Kind::Text(left), Kind::Text(right)) => {
            left == right || *left == Charset::Ascii || *right == Charset::Ascii
        }
        // Two schemas may give one name to different values.
        (Kind::Enum(left), Kind::Enum(right)) => {
            let values = |kind: &EnumType| {
                kind.values.iter().map(|value| (value.name.clone(), value.number)).collect()
            };
            let (left, right): (Vec<_>, Vec<_>) = (values(left), values(right));
            left == right
        }
        (Kind::Set(_), _) | (_, Kind::Set(_)) => false,
        (left, right) => (left.is_number() && right.is_number()) || (left.is_truth() && right.is_truth()),
    }
}

pub(super) fn wrong_type(at: Position, operation: &str, expected: &str, found: &Kind) -> QueryError {
    let (operation, expected, found) = (operation.to_owned(), expected.to_owned(), found.name().to_owned());
    QueryError::new(at, QueryProblem::Type { operation, expected, found })
}
