//! Results as copies of bytes into an image of an empty row.

use csp_formats::{ByteOrder, Cell, Encoded, Field, Load, Presence, Primitive, Type, Value, Writer};

use super::code::Code;
use crate::derive::Place;
use crate::plan::{ColumnPlace, Output, Plan};

/// How a plan writes header and root block of results.
#[derive(Clone, Debug)]
pub struct Image {
    /// Header and block of a row with its constants, and null or zero elsewhere.
    empty: Box<[u8]>,
    moves: Box<[Move]>,
    computed: Box<[Computed]>,
    /// Whether results have no groups and no variable data.
    is_whole: bool,
}

/// Bytes that are those of a source.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// The source.
    pub source: usize,
    /// Where they lie in the source's row.
    pub from: usize,
    /// Where they go in the result.
    pub to: usize,
    /// How many.
    pub len: usize,
    /// How they are copied.
    pub how: How,
}

/// How bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// As they are.
    Plain,
    /// What follows a NUL becomes NUL.
    Text,
    /// The value may be none that the result reads as null.
    NotNull(Load),
}

/// An expression and where its value goes. A value that is null, or the least number, leaves there what an
/// empty row has.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The expression.
    pub code: Code,
    /// Where its value goes in the result.
    pub to: usize,
    /// As what.
    pub kind: Store,
    /// The most significant byte first.
    pub big: bool,
}

/// As what a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A number of 64 bits with sign.
    Int,
    /// A `double`.
    Float,
    /// A byte.
    Boolean,
}

/// What moves are made from.
struct Maker<'w, 's, 'o> {
    writer: &'w mut Writer<'s, 'o>,
    moves: Vec<Move>,
    order: ByteOrder,
    /// Bytes of the result's header.
    header: usize,
}

/// The source of a field.
#[derive(Clone, Copy)]
struct Origin {
    source: usize,
    order: ByteOrder,
    /// Bytes before the block or composite in which the field lies.
    base: usize,
}

impl Image {
    /// How header and root block of a plan's results are written. `None`: they have a value that has to be
    /// looked at.
    #[must_use]
    pub fn new(plan: &Plan) -> Option<Self> {
        let schema = &plan.derived.schema;
        let message = schema.messages.first()?;
        let mut empty = vec![0; (schema.header.length + message.block.length) as usize];
        let mut writer = Writer::new(schema, message, &mut empty).ok()?;
        let (order, header) = (schema.byte_order, schema.header.length as usize);
        let mut maker = Maker { writer: &mut writer, moves: Vec::new(), order, header };
        let mut computed = Vec::new();
        for (output, place) in plan.outputs.iter().zip(&plan.derived.places) {
            let Place::Field(index) = *place else { continue };
            let to = message.block.fields.get(index)?;
            match output.like {
                Some(column) => maker.column(plan, column, to)?,
                None => computed.push(maker.computed(plan, output, to)?),
            }
        }
        let moves = joined(maker.moves);
        let is_whole = message.block.groups.is_empty() && message.block.data.is_empty();
        Some(Image { empty: empty.into(), moves: moves.into(), computed: computed.into(), is_whole })
    }

    /// Whether that is all of a result.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Header and block of a row without values.
    #[must_use]
    pub fn empty(&self) -> &[u8] {
        &self.empty
    }

    /// The bytes that are those of sources. No two go to the same place.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// The values that are computed.
    #[must_use]
    pub fn computed(&self) -> &[Computed] {
        &self.computed
    }

    /// Writes header and root block of the result of rows, each header and block of a source's message, and
    /// returns their length. `None`: the buffer is too small, or a value has to be looked at.
    #[must_use]
    #[inline]
    pub fn emit(&self, rows: &[&[u8]], out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.empty.len())?;
        out.copy_from_slice(&self.empty);
        for part in &self.moves {
            let row = rows.get(part.source)?;
            let from = row.get(part.from..part.from + part.len)?;
            let to = out.get_mut(part.to..part.to + part.len)?;
            match part.how {
                How::Plain => copy(to, from),
                How::Text => copy_text(to, from),
                How::NotNull(load) => {
                    if load.read(row)? == Cell::Null {
                        return None;
                    }
                    copy(to, from);
                }
            }
        }
        for computed in &self.computed {
            computed.put(rows, out)?;
        }
        Some(out.len())
    }
}

impl Computed {
    fn put(&self, rows: &[&[u8]], out: &mut [u8]) -> Option<()> {
        let word = match (self.kind, self.code.run(rows)?) {
            // Null is in the image already; the least number stands for it.
            (_, Cell::Null) => return Some(()),
            (Store::Int, Cell::Int(i64::MIN)) | (Store::Float, Cell::Int(i64::MIN)) => return Some(()),
            (Store::Int, Cell::Int(number)) => number as u64,
            (Store::Float, Cell::Int(number)) => (number as f64).to_bits(),
            (Store::Float, Cell::Float(bits)) => bits,
            (Store::Boolean, truth @ (Cell::True | Cell::False)) => {
                *out.get_mut(self.to)? = u8::from(truth == Cell::True);
                return Some(());
            }
            _ => return None,
        };
        let bytes = if self.big { word.to_be_bytes() } else { word.to_le_bytes() };
        *out.get_mut(self.to..)?.first_chunk_mut()? = bytes;
        Some(())
    }
}

impl Maker<'_, '_, '_> {
    fn column(&mut self, plan: &Plan, column: usize, to: &Field) -> Option<()> {
        let column = plan.columns.get(column)?;
        let ColumnPlace::Field(from) = &column.place else { return None };
        let schema = &plan.sources[column.source].schema;
        let base = schema.header.length as usize;
        self.field(from, to, Origin { source: column.source, order: schema.byte_order, base })
    }

    /// Adds the moves of a field, or of a composite's member, whose offset is from the block's begin.
    fn field(&mut self, from: &Field, to: &Field, origin: Origin) -> Option<()> {
        if let Some(constant) = &from.constant {
            let value = match (constant, &from.kind) {
                (csp_formats::Constant::Text(text), _) => Value::Literal(text),
                (csp_formats::Constant::Scalar(scalar), Type::Enum(_)) => Value::Enum(*scalar),
                (csp_formats::Constant::Scalar(scalar), _) => Value::Scalar(*scalar),
            };
            return self.writer.put(to, value).ok();
        }
        if to.constant.is_some() {
            return None;
        }
        let same_order = origin.order == self.order;
        let how = match (&from.kind, &to.kind) {
            (Type::Composite(source), Type::Composite(target)) => {
                let inner = Origin { base: origin.base + from.offset as usize, ..origin };
                return source.members.iter().zip(&target.members).try_for_each(|(from, member)| {
                    let to = Field { offset: to.offset + member.offset, ..member.clone() };
                    self.field(from, &to, inner)
                });
            }
            (Type::Encoded(source), Type::Encoded(target)) => {
                encoded((from, source), (to, target), same_order, origin)?
            }
            (Type::Enum(source), Type::Enum(target))
                if source.primitive == target.primitive && source.null.same(target.null) && same_order =>
            {
                How::Plain
            }
            (Type::Set(source), Type::Set(target)) if source.primitive == target.primitive && same_order => {
                How::Plain
            }
            _ => return None,
        };
        self.moves.push(Move {
            source: origin.source,
            from: origin.base + from.offset as usize,
            to: self.header + to.offset as usize,
            len: to.size() as usize,
            how,
        });
        Some(())
    }

    fn computed(&self, plan: &Plan, output: &Output, to: &Field) -> Option<Computed> {
        let kind = match &to.kind {
            Type::Encoded(encoded) if encoded.length == 1 => match encoded.primitive {
                Primitive::Int64 => Store::Int,
                Primitive::Double => Store::Float,
                _ => return None,
            },
            Type::Enum(kind) if kind.primitive == Primitive::UInt8 => Store::Boolean,
            _ => return None,
        };
        Some(Computed {
            code: Code::new(plan, &output.expr)?,
            to: self.header + to.offset as usize,
            kind,
            big: self.order == ByteOrder::Big,
        })
    }
}

/// How a number, a text or an array is copied.
fn encoded(
    (from, source): (&Field, &Encoded),
    (to, target): (&Field, &Encoded),
    same_order: bool,
    origin: Origin,
) -> Option<How> {
    let is_free = target.min.is_none() && target.max.is_none();
    if source.primitive != target.primitive || source.length != target.length || !is_free {
        return None;
    }
    let is_same_null = source.null.same(target.null);
    if source.is_array() && source.primitive == Primitive::Char {
        // Null is then no text: all of it is NUL.
        let is_zero = source.null == Primitive::Char.null() && is_same_null;
        return (from.presence == Presence::Required || is_zero).then_some(How::Text);
    }
    if !same_order {
        return None;
    }
    match (from.presence, to.presence) {
        _ if source.is_array() => Some(How::Plain),
        (Presence::Required, Presence::Required) => Some(How::Plain),
        (Presence::Optional, Presence::Optional) if is_same_null => Some(How::Plain),
        (Presence::Required, Presence::Optional) => {
            let as_result = Field { offset: from.offset, ..to.clone() };
            Some(How::NotNull(Load::new(&as_result, origin.base, origin.order)?))
        }
        _ => None,
    }
}

/// Moves of bytes that follow one another become one.
fn joined(moves: Vec<Move>) -> Vec<Move> {
    let mut all: Vec<Move> = Vec::with_capacity(moves.len());
    for next in moves.into_iter().filter(|part| part.len > 0) {
        match all.last_mut() {
            Some(last)
                if (last.how, next.how) == (How::Plain, How::Plain)
                    && last.source == next.source
                    && last.from + last.len == next.from
                    && last.to + last.len == next.to =>
            {
                last.len += next.len;
            }
            _ => all.push(next),
        }
    }
    all
}

/// Copies of constant length are single instructions.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match (from.first_chunk::<8>(), from.first_chunk::<4>()) {
        (Some(chunk), _) if from.len() == 8 => to.copy_from_slice(chunk),
        (_, Some(chunk)) if from.len() == 4 => to.copy_from_slice(chunk),
        _ => to.copy_from_slice(from),
    }
}

#[inline]
fn copy_text(to: &mut [u8], from: &[u8]) {
    copy(to, from);
    if let Some(nul) = from.iter().position(|&byte| byte == 0) {
        to[nul..].fill(0);
    }
}
