//! Conditions that are ranges of fields: what can be decided by words, without evaluating an expression.

use std::ops::RangeInclusive;

use csp_formats::{Cell, Field, Fixed, Load, REACH_MAX, Scalar};
use csp_queries::{Column, ColumnPlace, Comparison, Expr, Kind, Literal};

use crate::bind::condition;
use crate::formats::Format;

/// What a condition asks of one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldRange {
    /// The field's path in the message.
    pub path: String,
    /// Between which words its value lies, both included, as [`Cell::order`] makes them.
    pub words: RangeInclusive<u64>,
}

/// Reads a condition whose parts, joined by AND, compare a field with a constant each: `=`, `<`, `<=`, `>`,
/// `>=`, `BETWEEN`.
///
/// # Errors
/// It is no condition over messages of the format, or one that is not of this form, reads a field at no fixed
/// place, or holds for no message.
pub fn ranges(format: &Format, text: &str) -> Result<Vec<FieldRange>, String> {
    let plan = condition(format, text)?;
    let mut parts = Parts { format, columns: &plan.columns, found: Vec::new() };
    match &plan.filter {
        Some(filter) => parts.add(filter)?,
        None => return Err("it is empty".to_owned()),
    }
    Ok(parts.found)
}

/// Returns how the value of a field is read.
///
/// # Errors
/// It lies at no fixed place, or cannot be read as a word.
pub fn field_load(format: &Format, field: &Field) -> Result<(Fixed, Load), String> {
    let name = &field.name;
    let fixed = Fixed::new(&format.schema, format.message(), [field]);
    if fixed.reach() > REACH_MAX {
        return Err(format!(
            "\"{name}\" ends at byte {}; fields are read up to byte {REACH_MAX}",
            fixed.reach()
        ));
    }
    let load = Load::new(field, fixed.header(), format.schema.byte_order);
    let load = load.ok_or_else(|| format!("\"{name}\" is no number, enumeration or text of 2 to 8 bytes"))?;
    Ok((fixed, load))
}

struct Parts<'a> {
    format: &'a Format,
    columns: &'a [Column],
    found: Vec<FieldRange>,
}

const FORM: &str =
    "only comparisons of a field with a constant can stand here (=, <, <=, >, >=, BETWEEN), joined by AND";

impl Parts<'_> {
    fn add(&mut self, part: &Expr) -> Result<(), String> {
        match part {
            Expr::And(left, right) => {
                self.add(left)?;
                self.add(right)
            }
            Expr::Compare(comparison, left, right) => match (&**left, &**right) {
                (Expr::Column(column), Expr::Literal(literal)) => {
                    let word = self.word(*column, literal)?;
                    self.restrict(
                        *column,
                        match comparison {
                            Comparison::Equal => Some((word, word)),
                            Comparison::Less => word.checked_sub(1).map(|last| (0, last)),
                            Comparison::LessOrEqual => Some((0, word)),
                        },
                    )
                }
                (Expr::Literal(literal), Expr::Column(column)) => {
                    let word = self.word(*column, literal)?;
                    self.restrict(
                        *column,
                        match comparison {
                            Comparison::Equal => Some((word, word)),
                            Comparison::Less => word.checked_add(1).map(|first| (first, u64::MAX)),
                            Comparison::LessOrEqual => Some((word, u64::MAX)),
                        },
                    )
                }
                _ => Err(FORM.to_owned()),
            },
            _ => Err(FORM.to_owned()),
        }
    }

    /// The word of a constant that a column is compared with.
    fn word(&self, column: usize, literal: &Literal) -> Result<u64, String> {
        let column = &self.columns[column];
        let ColumnPlace::Field(field) = &column.place else {
            return Err(format!("\"{}\" is no field of the root block", column.path));
        };
        field_load(self.format, field)?;
        let number = |number: &i128| i64::try_from(*number).ok();
        let cell = match (&column.kind, literal) {
            (Kind::Float, Literal::Integer(whole)) => Some(Cell::float(*whole as f64)),
            (Kind::Float, Literal::Float(number)) => Some(Cell::float(*number)),
            (Kind::Integer, Literal::Integer(whole)) => number(whole).map(Cell::Int),
            (Kind::Enum(_), Literal::Enum(Scalar::Float(_))) => None,
            (Kind::Enum(_), Literal::Enum(value)) => Cell::enumeration(*value),
            (Kind::Text(_), Literal::Text(text)) => Cell::text(text),
            _ => None,
        };
        cell.and_then(Cell::order).ok_or_else(|| {
            format!(
                "\"{}\" is {}, and is compared with something else, or too long",
                column.path,
                column.kind.name()
            )
        })
    }

    fn restrict(&mut self, column: usize, words: Option<(u64, u64)>) -> Result<(), String> {
        let path = &self.columns[column].path;
        let at = self.found.iter().position(|known| known.path == *path).unwrap_or(self.found.len());
        let known = self.found.get(at).map_or(0..=u64::MAX, |known| known.words.clone());
        let words = words.map(|(first, last)| *known.start().max(&first)..=*known.end().min(&last));
        let Some(words) = words.filter(|words| !words.is_empty()) else {
            return Err(format!("no value of \"{path}\" is in all ranges"));
        };
        match self.found.get_mut(at) {
            Some(known) => known.words = words,
            None => self.found.push(FieldRange { path: path.clone(), words }),
        }
        Ok(())
    }
}
