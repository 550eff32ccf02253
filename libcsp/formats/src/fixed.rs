//! Root blocks that lie in one slice, and values at fixed places in them: resolved once, and then read
//! without the schema.
//!
//! It is a short cut beside [`MessageView`](crate::MessageView): what it yields is what the view yields.
//! Where it cannot say that (an older writer, a block in several slices, a number beyond 64 bits with sign)
//! it yields `None`, and the caller takes the view.

use crate::primitive::{ByteOrder, Primitive, Scalar};
use crate::schema::{Message, Schema, Slot};
use crate::types::{Constant, Field, Presence, Type};

/// Longest text that is a [`Cell`].
pub const CELL_TEXT_MAX: usize = 8;
/// Up to which byte of a record, its header included, fields are read also where the record's first slice is
/// shorter: readers copy that much.
pub const REACH_MAX: usize = 1024;
/// Bytes of the header whose usual value is known: four numbers of 16 bits, as the standard recommends.
const HEAD: usize = 8;

/// Where the header and the first fields of a message lie.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Bytes of the header.
    header: usize,
    /// Bytes of header and block up to the end of the last field.
    need: usize,
    /// Least version of a writer that knew all fields.
    version_min: u16,
    schema_id: u16,
    template_id: u16,
    slots: [Slot; 4],
    order: ByteOrder,
    /// The header as this version of the schema writes it, and the bytes of header and block then.
    usual: Option<([u8; HEAD], usize)>,
}

impl Fixed {
    /// The first slice of messages, as far as some fields of the root block reach.
    #[must_use]
    pub fn new<'f>(schema: &Schema, message: &Message, fields: impl IntoIterator<Item = &'f Field>) -> Self {
        let header = &schema.header;
        let (mut end, mut version_min) = (0, 0);
        for field in fields {
            end = end.max(field.end() as usize);
            version_min = version_min.max(latest(field));
        }
        let mut fixed = Fixed {
            header: header.length as usize,
            need: header.length as usize + end,
            version_min,
            schema_id: schema.id,
            template_id: message.id,
            slots: [header.block_length, header.template_id, header.schema_id, header.version],
            order: schema.byte_order,
            usual: None,
        };
        fixed.usual = fixed.usual_header(message, schema.version);
        fixed
    }

    /// Header and block of a message up to the end of the last field: of `len` bytes, of which the first
    /// slice has `first`. `None` if they do not lie in it, if the writer did not know all fields, or if the
    /// bytes are no such message.
    #[must_use]
    #[inline]
    pub fn of<'b>(&self, first: &'b [u8], len: usize) -> Option<&'b [u8]> {
        let bytes = first.get(..self.need)?;
        if let Some((head, whole)) = &self.usual
            && first.first_chunk::<HEAD>() == Some(head)
        {
            return (len >= *whole).then_some(bytes);
        }
        self.is_known(first, len).then_some(bytes)
    }

    /// Bytes of header and block up to the end of the last field.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.need
    }

    /// Bytes of the header: where the root block begins.
    #[must_use]
    pub fn header(&self) -> usize {
        self.header
    }

    fn is_known(&self, first: &[u8], len: usize) -> bool {
        let number = |slot: Slot| {
            let (at, size) = (slot.offset as usize, slot.primitive.size() as usize);
            let digits = first.get(at..at + size)?.iter();
            let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
            Some(match self.order {
                ByteOrder::Little => digits.rev().fold(0, add),
                ByteOrder::Big => digits.fold(0, add),
            })
        };
        let [block, template, schema, version] = self.slots.map(number);
        let block = block.and_then(|block| usize::try_from(block).ok());
        let fits = block.is_some_and(|block| {
            let end = self.header.checked_add(block);
            end.is_some_and(|end| self.need <= end && end <= len)
        });
        fits && template == Some(u64::from(self.template_id))
            && schema == Some(u64::from(self.schema_id))
            && version.is_some_and(|version| version >= u64::from(self.version_min))
    }

    fn usual_header(&self, message: &Message, version: u16) -> Option<([u8; HEAD], usize)> {
        let numbers = [message.block.length, message.id.into(), self.schema_id.into(), version.into()];
        let mut head = [0; HEAD];
        for (slot, number) in self.slots.iter().zip(numbers) {
            let word = slot.primitive.encode(Scalar::UInt(number.into()), self.order);
            let (at, size) = (slot.offset as usize, slot.primitive.size() as usize);
            head.get_mut(at..at + size)?.copy_from_slice(&word[..size]);
        }
        let whole = self.header + message.block.length as usize;
        // A header of another length may have more in it, or less.
        let mut bytes = head.to_vec();
        bytes.resize(whole.max(HEAD), 0);
        (self.header == HEAD && self.is_known(&bytes, whole)).then_some((head, whole))
    }
}

/// The schema version that added the last part of a field.
fn latest(field: &Field) -> u16 {
    let inner = match &field.kind {
        Type::Composite(composite) => composite.members.iter().map(latest).max().unwrap_or(0),
        _ => 0,
    };
    field.since_version.max(inner)
}

/// A value in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Null.
    Null,
    /// A truth value.
    False,
    /// The other one.
    True,
    /// A whole number.
    Int(i64),
    /// The bits of a floating-point number; never NaN, which is null.
    Float(u64),
    /// Text of up to 8 bytes without NUL, as the digits of a number whose first byte is the most significant,
    /// with zeros behind the text.
    Text(u64),
    /// The number of an enumeration's value.
    Enum(i64),
    /// Bits.
    Set(u64),
}

impl Cell {
    /// A floating-point number; NaN is null.
    #[must_use]
    #[inline]
    pub fn float(number: f64) -> Self {
        if number.is_nan() { Self::Null } else { Self::Float(number.to_bits()) }
    }

    /// Text without NUL that is short enough.
    #[must_use]
    pub fn text(text: &[u8]) -> Option<Self> {
        let mut word = [0; CELL_TEXT_MAX];
        word.get_mut(..text.len())?.copy_from_slice(text);
        (!text.contains(&0)).then_some(Self::Text(u64::from_be_bytes(word)))
    }

    /// The value that a constant of a field stands for.
    #[must_use]
    pub fn constant(field: &Field) -> Option<Self> {
        match (field.constant.as_ref()?, &field.kind) {
            (Constant::Text(text), _) => Self::text(text),
            (Constant::Scalar(scalar), Type::Enum(_)) => Self::enumeration(*scalar),
            (Constant::Scalar(Scalar::Int(number)), _) => Some(Self::Int(*number)),
            (Constant::Scalar(Scalar::UInt(number)), _) => i64::try_from(*number).ok().map(Self::Int),
            (Constant::Scalar(Scalar::Float(number)), _) => Some(Self::float(*number)),
            (Constant::Scalar(Scalar::Char(_)), _) => None,
        }
    }

    /// The value as a word. Words of one variant are ordered as values are: numbers by size, texts by bytes.
    /// `None` for null and bits.
    #[must_use]
    #[inline]
    pub fn order(self) -> Option<u64> {
        const SIGN: u64 = 1 << 63;
        match self {
            Self::Null | Self::Set(_) => None,
            Self::False => Some(0),
            Self::True => Some(1),
            Self::Int(number) | Self::Enum(number) => Some(number as u64 ^ SIGN),
            // Both zeros are equal.
            Self::Float(SIGN) => Some(SIGN),
            Self::Float(bits) => Some(if bits & SIGN == 0 { bits | SIGN } else { !bits }),
            Self::Text(word) => Some(word),
        }
    }

    /// The number of an enumeration's value.
    #[must_use]
    pub fn enumeration(number: Scalar) -> Option<Self> {
        match number {
            Scalar::Int(number) => Some(Self::Enum(number)),
            Scalar::UInt(number) => i64::try_from(number).ok().map(Self::Enum),
            Scalar::Char(byte) => Some(Self::Enum(byte.into())),
            Scalar::Float(_) => None,
        }
    }
}

/// How a value is read from header and block as [`Fixed::of`] yields them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    at: usize,
    what: What,
    big: bool,
    null: Option<u64>,
}

/// What is read. Numbers of 4 and 8 bytes and texts have their own variants, since they are the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A number of 32 bits with sign.
    Int32,
    /// A number of 32 bits without sign.
    UInt32,
    /// A number of 64 bits with sign.
    Int64,
    /// A `char` array of 4 bytes.
    Text4,
    /// A `char` array of so many bytes.
    Text(u32),
    /// Another number.
    Number(Primitive),
    /// The number of an enumeration's value.
    Enum(Primitive),
    /// Bits.
    Set(Primitive),
}

impl Load {
    /// How a field's value is read that lies `base` bytes behind its offset. `None`: it is no single number,
    /// no short text, or a constant.
    #[must_use]
    pub fn new(field: &Field, base: usize, order: ByteOrder) -> Option<Self> {
        let is_optional = field.presence == Presence::Optional;
        let (what, null) = match &field.kind {
            _ if field.constant.is_some() || field.presence == Presence::Constant => return None,
            Type::Encoded(encoded) if encoded.primitive == Primitive::Char => {
                let what = match encoded.length {
                    4 => What::Text4,
                    len @ 2..=8 => What::Text(len),
                    // A single character can be NUL, which is no text of a cell.
                    _ => return None,
                };
                (what, is_optional.then_some(encoded.null))
            }
            Type::Encoded(encoded) if encoded.is_array() => return None,
            Type::Encoded(encoded) => {
                let what = match encoded.primitive {
                    Primitive::Int32 => What::Int32,
                    Primitive::UInt32 => What::UInt32,
                    Primitive::Int64 => What::Int64,
                    primitive => What::Number(primitive),
                };
                (what, is_optional.then_some(encoded.null))
            }
            Type::Enum(kind) => (What::Enum(kind.primitive), Some(kind.null)),
            Type::Set(kind) => (What::Set(kind.primitive), None),
            Type::Composite(_) => return None,
        };
        let null = match null {
            None => None,
            Some(Scalar::Int(number)) => Some(number as u64),
            Some(Scalar::UInt(number)) => Some(number),
            Some(Scalar::Char(byte)) => Some(byte.into()),
            // NaN is null in any case.
            Some(Scalar::Float(number)) if number.is_nan() => None,
            Some(Scalar::Float(number)) => Some(number.to_bits()),
        };
        Some(Load { at: base + field.offset as usize, what, big: order == ByteOrder::Big, null })
    }

    /// Where the value begins, the header included.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// What it is.
    #[must_use]
    pub fn what(&self) -> What {
        self.what
    }

    /// Whether the most significant byte of a number comes first. Of texts this says nothing.
    #[must_use]
    pub fn is_big_endian(&self) -> bool {
        self.big
    }

    /// What stands for null: of integers the bits of the 64-bit number, of floating-point numbers those of a
    /// `double`, of texts the first byte. NaN is null in any case.
    #[must_use]
    pub fn null(&self) -> Option<u64> {
        self.null
    }

    /// The value. `None`: the bytes do not reach that far, or the number is greater than a cell's; the view
    /// has it then.
    #[must_use]
    #[inline(always)]
    pub fn read(&self, bytes: &[u8]) -> Option<Cell> {
        let number = match self.what {
            What::Int32 => i64::from(i32::from_le_bytes(self.chunk(bytes)?)),
            What::UInt32 => i64::from(u32::from_le_bytes(self.chunk(bytes)?)),
            What::Int64 => i64::from_le_bytes(self.chunk(bytes)?),
            What::Text4 => {
                let bytes = *bytes.get(self.at..)?.first_chunk()?;
                return Some(self.text(u32::from_le_bytes(bytes).into()));
            }
            _ => return self.read_rare(bytes),
        };
        Some(if self.null == Some(number as u64) { Cell::Null } else { Cell::Int(number) })
    }

    #[inline(never)]
    fn read_rare(&self, bytes: &[u8]) -> Option<Cell> {
        match self.what {
            What::Number(Primitive::Float) => {
                let number = f64::from(f32::from_bits(u32::from_le_bytes(self.chunk(bytes)?)));
                Some(self.float(number))
            }
            What::Number(Primitive::Double) => {
                Some(self.float(f64::from_bits(u64::from_le_bytes(self.chunk(bytes)?))))
            }
            What::Number(primitive) => self.signed(primitive, bytes, Cell::Int),
            What::Enum(primitive) => self.signed(primitive, bytes, Cell::Enum),
            What::Set(primitive) => Some(Cell::Set(self.whole(primitive, bytes)?)),
            What::Text(len) => {
                // A whole word that ends with the text: the header lies before it.
                let end = self.at + len as usize;
                let word = *bytes.get(end.checked_sub(8)?..end)?.first_chunk()?;
                Some(self.text(u64::from_le_bytes(word) >> (64 - 8 * len)))
            }
            // The others are read above.
            What::Int32 | What::UInt32 | What::Int64 | What::Text4 => None,
        }
    }

    /// A number that has to fit in 63 bits and a sign.
    fn signed(&self, primitive: Primitive, bytes: &[u8], cell: fn(i64) -> Cell) -> Option<Cell> {
        let word = self.whole(primitive, bytes)?;
        match self.null {
            Some(null) if null == word => Some(Cell::Null),
            _ if primitive == Primitive::UInt64 => i64::try_from(word).ok().map(cell),
            _ => Some(cell(word as i64)),
        }
    }

    /// An integer or character; the bits of its 64-bit number.
    fn whole(&self, primitive: Primitive, bytes: &[u8]) -> Option<u64> {
        Some(match primitive {
            Primitive::Char | Primitive::UInt8 => u64::from(*bytes.get(self.at)?),
            Primitive::Int8 => i64::from(*bytes.get(self.at)? as i8) as u64,
            Primitive::Int16 => i64::from(i16::from_le_bytes(self.chunk(bytes)?)) as u64,
            Primitive::UInt16 => u16::from_le_bytes(self.chunk(bytes)?).into(),
            Primitive::Int32 => i64::from(i32::from_le_bytes(self.chunk(bytes)?)) as u64,
            Primitive::UInt32 => u32::from_le_bytes(self.chunk(bytes)?).into(),
            Primitive::Int64 | Primitive::UInt64 => u64::from_le_bytes(self.chunk(bytes)?),
            Primitive::Float | Primitive::Double => return None,
        })
    }

    #[inline]
    fn float(&self, number: f64) -> Cell {
        let is_null = self.null.is_some_and(|null| f64::from_bits(null) == number);
        if is_null { Cell::Null } else { Cell::float(number) }
    }

    /// A text of a word whose lowest byte is the first character, with zeros behind it.
    #[inline]
    fn text(&self, word: u64) -> Cell {
        if self.null == Some(word & 0xff) {
            return Cell::Null;
        }
        // The highest bit of the first byte that is NUL; of those behind it nothing is said.
        let nul = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
        let before = if nul == 0 { u64::MAX } else { (nul ^ nul.wrapping_sub(1)) >> 8 };
        Cell::Text((word & before).swap_bytes())
    }

    /// The bytes of a number, the least significant first.
    #[inline]
    fn chunk<const N: usize>(&self, bytes: &[u8]) -> Option<[u8; N]> {
        let mut chunk = *bytes.get(self.at..)?.first_chunk::<N>()?;
        if self.big {
            chunk.reverse();
        }
        Some(chunk)
    }
}
