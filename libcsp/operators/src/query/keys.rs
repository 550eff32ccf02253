//! Keys of rows, read at fixed places: hashed as values, and compared as bytes.

use csp_formats::{Cell, Field, Load, Presence, Primitive, Type};
use csp_queries::{Code, ColumnPlace, Expr, Plan};

use super::hash::Hash;

/// The keys of rows of a plan.
#[derive(Debug)]
pub(super) struct Keys(Box<[Key]>);

#[derive(Debug)]
enum Key {
    /// A field that is a cell, and its bytes.
    Cell(Load, Place),
    /// A longer text; whether it is null where it begins with NUL.
    Text(Place, bool),
    /// A value that has no bytes of its own.
    Code(Code),
}

/// Where the bytes of a key lie.
#[derive(Clone, Copy, Debug)]
struct Place {
    source: usize,
    at: usize,
    len: usize,
}

impl Place {
    #[inline]
    fn of<'r>(&self, rows: &[&'r [u8]]) -> Option<&'r [u8]> {
        rows.get(self.source)?.get(self.at..self.at + self.len)
    }
}

impl Keys {
    /// `None`: a key is neither a number, nor a text of fixed length, nor computed of them.
    pub fn new<'e>(plan: &Plan, keys: impl IntoIterator<Item = &'e Expr>) -> Option<Self> {
        keys.into_iter().map(|key| Key::new(plan, key)).collect::<Option<_>>().map(Keys)
    }

    /// The keys of one side of a join.
    pub fn of_join(plan: &Plan, keys: &[(usize, usize)], side: usize) -> Option<Self> {
        let key = |key: &(usize, usize)| Key::new(plan, &Expr::Column(if side == 0 { key.0 } else { key.1 }));
        keys.iter().map(key).collect::<Option<_>>().map(Keys)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the keys of rows, one of each source, to a hash, and puts those that are cells where there is
    /// room. Returns whether one is null. `None`: a row has to be viewed.
    #[inline]
    pub fn hash(&self, rows: &[&[u8]], hash: &mut Hash, cells: &mut [Cell]) -> Option<bool> {
        let (mut has_null, mut cells) = (false, cells.iter_mut());
        for key in &self.0 {
            let into = cells.next();
            let cell = match key {
                Key::Cell(load, place) => load.read(rows.get(place.source)?)?,
                Key::Code(code) => code.run(rows)?,
                Key::Text(place, is_optional) => {
                    let bytes = place.of(rows)?;
                    let text = &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())];
                    if !(*is_optional && text.is_empty()) {
                        hash.text(text);
                        continue;
                    }
                    Cell::Null
                }
            };
            has_null |= cell == Cell::Null;
            hash.cell(cell);
            if let Some(into) = into {
                *into = cell;
            }
        }
        Some(has_null)
    }

    /// Whether rows have the keys of other rows, which are cells or bytes. If not, their values can still be
    /// equal: they have to be viewed.
    #[inline]
    pub fn are_same(&self, (cells, left): (&[Cell], &[&[u8]]), right: &[&[u8]]) -> bool {
        let mut cells = cells.iter();
        self.0.iter().all(|key| {
            let cell = cells.next();
            match key {
                Key::Cell(load, place) => {
                    let other = right.get(place.source).and_then(|row| load.read(row));
                    other.is_some() && other.as_ref() == cell
                }
                Key::Text(place, _) => same(place.of(left), place.of(right)),
                Key::Code(code) => {
                    let other = code.run(right);
                    other.is_some() && other.as_ref() == cell
                }
            }
        })
    }
}

impl Key {
    fn new(plan: &Plan, key: &Expr) -> Option<Self> {
        let code = || Code::new(plan, key).map(Key::Code);
        let Expr::Column(column) = key else { return code() };
        let column = &plan.columns[*column];
        let ColumnPlace::Field(field) = &column.place else { return None };
        if field.constant.is_some() {
            return code();
        }
        let schema = &plan.sources[column.source].schema;
        let base = schema.header.length as usize;
        let place =
            Place { source: column.source, at: base + field.offset as usize, len: field.size() as usize };
        match Load::new(field, base, schema.byte_order) {
            Some(load) => Some(Key::Cell(load, place)),
            None => Some(Key::Text(place, is_text(field)?)),
        }
    }
}

/// Of text of fixed length, whether it is null where it begins with NUL.
fn is_text(field: &Field) -> Option<bool> {
    let Type::Encoded(encoded) = &field.kind else { return None };
    let is_optional = field.presence == Presence::Optional;
    let is_plain = !is_optional || encoded.null == Primitive::Char.null();
    (encoded.primitive == Primitive::Char && encoded.length > 1 && is_plain).then_some(is_optional)
}

/// Pairs of keys of two sources whose values are equal if their bytes are, unless they are null.
#[derive(Debug)]
pub(super) struct Pairs(Box<[(Place, Place)]>);

impl Pairs {
    /// `None`: a key of one source has another type in the other.
    pub fn new(plan: &Plan, keys: &[(usize, usize)]) -> Option<Self> {
        let place = |column: usize| {
            let column = &plan.columns[column];
            let ColumnPlace::Field(field) = &column.place else { return None };
            let schema = &plan.sources[column.source].schema;
            let at = (schema.header.length + field.offset) as usize;
            let place = Place { source: column.source, at, len: field.size() as usize };
            Some((place, schema.byte_order, primitive(field)?))
        };
        let pair = |&(first, second): &(usize, usize)| {
            let (first, second) = (place(first)?, place(second)?);
            let is_same = (first.1, first.2, first.0.len) == (second.1, second.2, second.0.len);
            is_same.then_some((first.0, second.0))
        };
        keys.iter().map(pair).collect::<Option<_>>().map(Pairs)
    }

    /// Whether rows, one of each source, have the same keys. If not, their values can still be equal.
    #[inline]
    pub fn are_same(&self, rows: &[&[u8]]) -> bool {
        self.0.iter().all(|(first, second)| same(first.of(rows), second.of(rows)))
    }
}

/// The primitive type of a number, a text or an enumeration.
fn primitive(field: &Field) -> Option<Primitive> {
    match &field.kind {
        _ if field.constant.is_some() => None,
        Type::Encoded(encoded) if encoded.primitive == Primitive::Char || !encoded.is_array() => {
            Some(encoded.primitive)
        }
        Type::Enum(kind) => Some(kind.primitive),
        _ => None,
    }
}

#[inline]
fn same(left: Option<&[u8]>, right: Option<&[u8]>) -> bool {
    let (Some(left), Some(right)) = (left, right) else { return false };
    match (left.first_chunk::<4>(), right.first_chunk::<4>()) {
        // Numbers and short texts without a call.
        (Some(left_chunk), Some(right_chunk)) if left.len() == 4 && right.len() == 4 => {
            left_chunk == right_chunk
        }
        _ => match (left.first_chunk::<8>(), right.first_chunk::<8>()) {
            (Some(left_chunk), Some(right_chunk)) if left.len() == 8 && right.len() == 8 => {
                left_chunk == right_chunk
            }
            _ => left == right,
        },
    }
}
