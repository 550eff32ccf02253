//! Writes a row of the result.

use csp_formats::{BlockView, Field, Presence, Record, Scalar, Type, Value, ViewError, WriteError, Writer};
use thiserror::Error;

use crate::derive::Place;
use crate::evaluate::{Datum, Text};
use crate::plan::{ColumnPlace, Output, Plan};

/// A row that cannot be written.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EmitError {
    /// A message of a source is not valid.
    #[error("a message of a source: {0}")]
    Source(#[from] ViewError),
    /// The row does not fit in the buffer, or a value not in the derived format.
    #[error("the result: {0}")]
    Result(#[from] WriteError),
}

/// Most columns of a result whose bytes stay where they are.
pub const APART_MAX: usize = 4;

/// Variable data of a result that is not copied: its bytes stay in the message of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the result before it, those of other parts not counted.
    pub at: usize,
    /// Bytes of the message before it.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// Which variable data of a result stays where it is.
#[derive(Clone, Copy, Debug)]
pub struct Apart<'w> {
    whole: &'w [&'w [u8]],
    len_min: usize,
    parts: [Part; APART_MAX],
    count: usize,
}

impl<'w> Apart<'w> {
    /// Data of the message that lies in these slices, if it is long enough.
    #[must_use]
    pub fn new(whole: &'w [&'w [u8]], len_min: usize) -> Self {
        Apart { whole, len_min, parts: [Part::default(); APART_MAX], count: 0 }
    }

    /// What stays where it is, in order.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// Leaves the bytes of data out of the result, if they are to stay where they are.
    fn leaves_out(
        &mut self,
        writer: &mut Writer<'_, '_>,
        index: usize,
        bytes: &csp_formats::Bytes<'_>,
    ) -> Result<bool, EmitError> {
        if self.count == APART_MAX || bytes.len() < self.len_min {
            return Ok(false);
        }
        let Some(start) = bytes.position_in(self.whole) else { return Ok(false) };
        let at = writer.data_apart(index, bytes.len())?;
        self.parts[self.count] = Part { at, start, len: bytes.len() };
        self.count += 1;
        Ok(true)
    }
}

impl Plan {
    /// Writes the result of a row (one record of each source) as a message of the derived format, and returns
    /// its length. `aggregates` are the results of the plan's aggregates. Nothing is allocated.
    ///
    /// # Errors
    /// A record is not valid, or the buffer is too small.
    pub fn emit<'v>(
        &'v self,
        rows: &[&Record<'v, 'v>],
        aggregates: &[Datum<'v>],
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        self.emit_apart(rows, aggregates, out, None)
    }

    /// As [`emit`](Self::emit), but leaves out variable data that can stay where it is. The length is that of
    /// what was written.
    ///
    /// # Errors
    /// As [`emit`](Self::emit).
    pub fn emit_apart<'v>(
        &'v self,
        rows: &[&Record<'v, 'v>],
        aggregates: &[Datum<'v>],
        out: &mut [u8],
        apart: Option<&mut Apart<'_>>,
    ) -> Result<usize, EmitError> {
        let schema = &self.derived.schema;
        let message = &schema.messages[0];
        let mut writer = Writer::new(schema, message, out)?;
        // Fields, then groups, then data, each in the order of the outputs.
        for (output, place) in self.outputs.iter().zip(&self.derived.places) {
            if let Place::Field(index) = *place {
                self.field(output, &message.block.fields[index], rows, aggregates, &mut writer)?;
            }
        }
        self.behind_block(rows, writer, apart)
    }

    /// As [`emit_apart`](Self::emit_apart), for a result whose header and root block an
    /// [`Image`](crate::Image) has written into `out`.
    ///
    /// # Errors
    /// As [`emit`](Self::emit).
    pub fn emit_behind<'v>(
        &'v self,
        rows: &[&Record<'v, 'v>],
        out: &mut [u8],
        apart: Option<&mut Apart<'_>>,
    ) -> Result<usize, EmitError> {
        let schema = &self.derived.schema;
        self.behind_block(rows, Writer::behind_block(schema, &schema.messages[0], out)?, apart)
    }

    /// Writes groups and data.
    fn behind_block<'v>(
        &'v self,
        rows: &[&Record<'v, 'v>],
        mut writer: Writer<'_, '_>,
        mut apart: Option<&mut Apart<'_>>,
    ) -> Result<usize, EmitError> {
        for (output, place) in self.outputs.iter().zip(&self.derived.places) {
            if let (Place::Group(index), Some((record, ColumnPlace::Group(from)))) =
                (*place, self.origin(output, rows))
            {
                group(&mut writer, index, record, *from)?;
            }
        }
        for (output, place) in self.outputs.iter().zip(&self.derived.places) {
            if let (Place::Data(index), Some((record, ColumnPlace::Data(from)))) =
                (*place, self.origin(output, rows))
            {
                data(&mut writer, index, record, *from, apart.as_deref_mut())?;
            }
        }
        Ok(writer.finish()?)
    }

    fn field<'v>(
        &'v self,
        output: &'v Output,
        field: &Field,
        rows: &[&Record<'v, 'v>],
        aggregates: &[Datum<'v>],
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), EmitError> {
        if let Some((record, ColumnPlace::Field(from))) = self.origin(output, rows) {
            return copy(writer, field, &record.fixed(), from);
        }
        let number = match self.evaluate(&output.expr, rows, aggregates)? {
            // What a 64-bit number cannot hold is null, as other results that do not exist.
            Datum::Integer(number) => {
                i64::try_from(number).ok().filter(|&number| number != i64::MIN).map(Scalar::Int)
            }
            Datum::Float(number) => Some(Scalar::Float(number)),
            Datum::Boolean(value) => Some(Scalar::UInt(u64::from(value))),
            Datum::Text(text) => return write_text(writer, field, text),
            Datum::Null | Datum::Enum(_) | Datum::Set(_) => None,
        };
        match number {
            Some(Scalar::Int(number)) if is_float(field) => Ok(writer.scalar(field, number as f64)?),
            Some(number) => Ok(writer.scalar(field, number)?),
            None => Ok(writer.null(field)?),
        }
    }

    /// The record and place of an output that is a column.
    fn origin<'p, 'v>(
        &'p self,
        output: &Output,
        rows: &[&Record<'v, 'v>],
    ) -> Option<(Record<'v, 'v>, &'p ColumnPlace)> {
        let column = &self.columns[output.like?];
        rows.get(column.source).map(|record| (**record, &column.place))
    }
}

fn write_text(writer: &mut Writer<'_, '_>, field: &Field, text: Text<'_>) -> Result<(), EmitError> {
    match text {
        Text::Plain(text) => writer.text(field, text)?,
        Text::Character(byte) => writer.text(field, &[byte])?,
        Text::Wire { bytes, len } => {
            let value = bytes.take(len).map_or(Value::Null, Value::Text);
            writer.put(field, value)?;
        }
    }
    Ok(())
}

fn is_float(field: &Field) -> bool {
    matches!(&field.kind, Type::Encoded(encoded)
        if matches!(encoded.primitive, csp_formats::Primitive::Float | csp_formats::Primitive::Double))
}

/// Copies a value to a field of the same type.
fn copy(
    writer: &mut Writer<'_, '_>,
    to: &Field,
    block: &BlockView<'_>,
    from: &Field,
) -> Result<(), EmitError> {
    if writer.copy(to, block, from)? {
        return Ok(());
    }
    match (block.value(from)?, &to.kind, &from.kind) {
        (Value::Composite(inner), Type::Composite(target), Type::Composite(source)) => {
            for (member, from) in target.members.iter().zip(&source.members) {
                let offset = to.offset + member.offset;
                copy(writer, &Field { offset, ..member.clone() }, &inner, from)?;
            }
            Ok(())
        }
        // A set that its writer did not know has no bits; other fields like it are optional here.
        (Value::Null, Type::Set(_), _) => Ok(()),
        (Value::Null, ..)
            if to.presence == Presence::Required
                && !matches!(to.kind, Type::Enum(_) | Type::Composite(_)) =>
        {
            Ok(())
        }
        (value, ..) => Ok(writer.put(to, value)?),
    }
}

fn group(
    writer: &mut Writer<'_, '_>,
    index: usize,
    record: Record<'_, '_>,
    from: usize,
) -> Result<(), EmitError> {
    writer.begin_group(index)?;
    for entry in record.group(from)?.iter() {
        let entry = entry?;
        writer.entry()?;
        let (target, source) = (writer.layout(), entry.layout());
        for (to, from) in target.fields.iter().zip(&source.fields) {
            copy(writer, to, &entry.fixed(), from)?;
        }
        for inner in 0..source.groups.len() {
            group(writer, inner, entry, inner)?;
        }
        for inner in 0..source.data.len() {
            data(writer, inner, entry, inner, None)?;
        }
    }
    Ok(writer.end_group()?)
}

fn data(
    writer: &mut Writer<'_, '_>,
    index: usize,
    record: Record<'_, '_>,
    from: usize,
    apart: Option<&mut Apart<'_>>,
) -> Result<(), EmitError> {
    let Some(bytes) = record.data(from)? else { return Ok(()) };
    if let Some(apart) = apart
        && apart.leaves_out(writer, index, &bytes)?
    {
        return Ok(());
    }
    Ok(writer.data(index, bytes.parts())?)
}
