//! Primitive types of SBE 1.0: sizes, ranges, null values, and scalars of them.

use core::fmt;

/// The order of bytes in numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ByteOrder {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

/// A primitive type (SBE 1.0, "Primitive encodings").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Primitive {
    /// One byte of text.
    Char,
    /// Signed, 1 byte.
    Int8,
    /// Signed, 2 bytes.
    Int16,
    /// Signed, 4 bytes.
    Int32,
    /// Signed, 8 bytes.
    Int64,
    /// Unsigned, 1 byte.
    UInt8,
    /// Unsigned, 2 bytes.
    UInt16,
    /// Unsigned, 4 bytes.
    UInt32,
    /// Unsigned, 8 bytes.
    UInt64,
    /// IEEE 754 binary32.
    Float,
    /// IEEE 754 binary64.
    Double,
}

/// A number or a character. The variant follows from the primitive type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `char`.
    Char(u8),
    /// `int8` to `int64`.
    Int(i64),
    /// `uint8` to `uint64`.
    UInt(u64),
    /// `float` (widened) and `double`.
    Float(f64),
}

impl Primitive {
    /// All of them, for lists in errors.
    pub const ALL: [Self; 11] = [
        Self::Char,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float,
        Self::Double,
    ];

    /// The name in schemas.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Char => "char",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float => "float",
            Self::Double => "double",
        }
    }

    /// The primitive type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|primitive| primitive.name() == name)
    }

    /// Bytes on the wire.
    #[must_use]
    pub const fn size(self) -> u32 {
        match self {
            Self::Char | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float => 4,
            Self::Int64 | Self::UInt64 | Self::Double => 8,
        }
    }

    /// Whether numbers are unsigned integers.
    #[must_use]
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64)
    }

    /// The value that stands for null where the schema names no other.
    #[must_use]
    pub const fn null(self) -> Scalar {
        match self {
            Self::Char => Scalar::Char(0),
            Self::Int8 => Scalar::Int(i8::MIN as i64),
            Self::Int16 => Scalar::Int(i16::MIN as i64),
            Self::Int32 => Scalar::Int(i32::MIN as i64),
            Self::Int64 => Scalar::Int(i64::MIN),
            Self::UInt8 => Scalar::UInt(u8::MAX as u64),
            Self::UInt16 => Scalar::UInt(u16::MAX as u64),
            Self::UInt32 => Scalar::UInt(u32::MAX as u64),
            Self::UInt64 => Scalar::UInt(u64::MAX),
            Self::Float | Self::Double => Scalar::Float(f64::NAN),
        }
    }

    /// Whether a scalar has this type's variant and can be written in its bytes without change.
    #[must_use]
    pub fn holds(self, scalar: Scalar) -> bool {
        match (self, scalar) {
            (Self::Char, Scalar::Char(_)) | (Self::Double, Scalar::Float(_)) => true,
            (Self::Int8, Scalar::Int(number)) => i8::try_from(number).is_ok(),
            (Self::Int16, Scalar::Int(number)) => i16::try_from(number).is_ok(),
            (Self::Int32, Scalar::Int(number)) => i32::try_from(number).is_ok(),
            (Self::Int64, Scalar::Int(_)) | (Self::UInt64, Scalar::UInt(_)) => true,
            (Self::UInt8, Scalar::UInt(number)) => u8::try_from(number).is_ok(),
            (Self::UInt16, Scalar::UInt(number)) => u16::try_from(number).is_ok(),
            (Self::UInt32, Scalar::UInt(number)) => u32::try_from(number).is_ok(),
            // A double that is no float is rounded to one; a finite one stays finite.
            (Self::Float, Scalar::Float(number)) => !number.is_finite() || (number as f32).is_finite(),
            _ => false,
        }
    }

    /// The scalar of the same number in this type's variant, if there is one: integers convert among
    /// themselves and to floating point as long as they are exact. Characters convert to nothing.
    #[must_use]
    pub fn convert(self, scalar: Scalar) -> Option<Scalar> {
        let converted = match (self, scalar) {
            (Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64, Scalar::UInt(number)) => {
                Scalar::Int(i64::try_from(number).ok()?)
            }
            (Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64, Scalar::Int(number)) => {
                Scalar::UInt(u64::try_from(number).ok()?)
            }
            (Self::Float | Self::Double, Scalar::Int(number)) if number.unsigned_abs() <= 1 << 53 => {
                Scalar::Float(number as f64)
            }
            (Self::Float | Self::Double, Scalar::UInt(number)) if number <= 1 << 53 => {
                Scalar::Float(number as f64)
            }
            _ => scalar,
        };
        self.holds(converted).then_some(converted)
    }

    /// Parses a number (or, for `char`, one character or its code as sbe-tool has it) as schemas have them.
    #[must_use]
    pub fn parse(self, text: &str) -> Option<Scalar> {
        let text = text.trim();
        let scalar = match self {
            Self::Char => match text.as_bytes() {
                [byte] => Scalar::Char(*byte),
                _ => Scalar::Char(text.parse().ok()?),
            },
            Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64 => Scalar::Int(text.parse().ok()?),
            Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64 => Scalar::UInt(text.parse().ok()?),
            Self::Float => Scalar::Float(f64::from(text.parse::<f32>().ok()?)),
            Self::Double => Scalar::Float(text.parse().ok()?),
        };
        self.holds(scalar).then_some(scalar)
    }

    /// Reads a scalar from the first [`Primitive::size`] bytes of a word.
    #[must_use]
    pub(crate) fn decode(self, bytes: [u8; 8], order: ByteOrder) -> Scalar {
        // The number's bytes as the low ones of a word.
        let word = match order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes) >> (64 - 8 * self.size()),
        };
        match self {
            Self::Char => Scalar::Char(word as u8),
            Self::Int8 => Scalar::Int(i64::from(word as i8)),
            Self::Int16 => Scalar::Int(i64::from(word as i16)),
            Self::Int32 => Scalar::Int(i64::from(word as i32)),
            Self::Int64 => Scalar::Int(word as i64),
            Self::UInt8 => Scalar::UInt(u64::from(word as u8)),
            Self::UInt16 => Scalar::UInt(u64::from(word as u16)),
            Self::UInt32 => Scalar::UInt(u64::from(word as u32)),
            Self::UInt64 => Scalar::UInt(word),
            Self::Float => Scalar::Float(f64::from(f32::from_bits(word as u32))),
            Self::Double => Scalar::Float(f64::from_bits(word)),
        }
    }

    /// The bytes of a scalar, in the first [`Primitive::size`] of a word.
    #[must_use]
    pub(crate) fn encode(self, scalar: Scalar, order: ByteOrder) -> [u8; 8] {
        let word = match scalar {
            Scalar::Char(byte) => u64::from(byte),
            Scalar::Int(number) => number as u64,
            Scalar::UInt(number) => number,
            Scalar::Float(number) if self == Self::Float => u64::from((number as f32).to_bits()),
            Scalar::Float(number) => number.to_bits(),
        };
        match order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => (word << (64 - 8 * self.size())).to_be_bytes(),
        }
    }
}

impl Scalar {
    /// Equality as null values have it: any NaN is the null of a floating-point type.
    #[must_use]
    pub fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Float(left), Self::Float(right)) => left == right || (left.is_nan() && right.is_nan()),
            _ => self == other,
        }
    }

    /// Order of two scalars of one type; `None` with NaN.
    #[must_use]
    pub fn compare(self, other: Self) -> Option<core::cmp::Ordering> {
        match (self, other) {
            (Self::Char(left), Self::Char(right)) => Some(left.cmp(&right)),
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(&right)),
            (Self::UInt(left), Self::UInt(right)) => Some(left.cmp(&right)),
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(&right),
            _ => None,
        }
    }

    /// The value as an unsigned integer, if it is one.
    #[must_use]
    pub fn unsigned(self) -> Option<u64> {
        match self {
            Self::UInt(number) => Some(number),
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Char(byte) => Some(u64::from(byte)),
            Self::Float(_) => None,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Char(byte) => write!(f, "'{}'", byte.escape_ascii()),
            Self::Int(number) => number.fmt(f),
            Self::UInt(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_reads_what_it_writes_in_both_orders() {
        let numbers = [
            (Primitive::Char, Scalar::Char(b'A')),
            (Primitive::Int8, Scalar::Int(-127)),
            (Primitive::Int16, Scalar::Int(-32_767)),
            (Primitive::Int32, Scalar::Int(-2)),
            (Primitive::Int64, Scalar::Int(i64::MIN + 1)),
            (Primitive::UInt8, Scalar::UInt(254)),
            (Primitive::UInt16, Scalar::UInt(0x0102)),
            (Primitive::UInt32, Scalar::UInt(0x0102_0304)),
            (Primitive::UInt64, Scalar::UInt(0x0102_0304_0506_0708)),
            (Primitive::Float, Scalar::Float(-1.5)),
            (Primitive::Double, Scalar::Float(0.1)),
        ];
        for (primitive, number) in numbers {
            for order in [ByteOrder::Little, ByteOrder::Big] {
                assert_eq!(
                    primitive.decode(primitive.encode(number, order), order),
                    number,
                    "{}",
                    primitive.name()
                );
                let null = primitive.decode(primitive.encode(primitive.null(), order), order);
                assert!(null.same(primitive.null()) && !null.same(number), "{}", primitive.name());
            }
        }
        assert_eq!(Primitive::UInt16.encode(Scalar::UInt(0x0102), ByteOrder::Big)[..2], [1, 2]);
        assert_eq!(Primitive::UInt16.encode(Scalar::UInt(0x0102), ByteOrder::Little)[..2], [2, 1]);
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        assert_eq!(Primitive::UInt8.parse("256"), None);
        assert_eq!(Primitive::Int8.parse("-128"), Some(Scalar::Int(-128)));
        assert_eq!(Primitive::Char.parse("A"), Some(Scalar::Char(b'A')));
        assert_eq!(Primitive::Char.parse("65"), Some(Scalar::Char(65)));
        assert_eq!(Primitive::UInt8.convert(Scalar::Int(-1)), None);
        assert_eq!(Primitive::Int64.convert(Scalar::UInt(7)), Some(Scalar::Int(7)));
        assert_eq!(Primitive::Double.convert(Scalar::UInt(u64::MAX)), None);
        assert!(!Primitive::Float.holds(Scalar::Float(1e300)));
    }
}
