//! Neutral values: what stands in for a value that cannot be read.

use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};

use crate::read::Mistake;

/// Texts that some checked type accepts each: names, addresses (RFC 5737), networks, URLs, keys of CURVE.
const TEXTS: [&str; CANDIDATES] = [
    "unreadable",
    "192.0.2.1",
    "192.0.2.1:1",
    "192.0.2.0/24",
    "http://192.0.2.1:1",
    "1",
    "0000000000000000000000000000000000000000",
];
/// Numbers likewise.
const NUMBERS: [u64; CANDIDATES] = [1, 0, 16, 1024, 65_536, 1 << 20, 1 << 30];
/// How many values can be tried for one place.
pub(crate) const CANDIDATES: usize = 7;

/// Deserializes anything: the candidate of this number of texts and numbers, no elements, the first variant.
#[derive(Clone, Copy)]
pub(crate) struct Neutral(pub(crate) usize);

impl IntoDeserializer<'_, Mistake> for Neutral {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl Neutral {
    fn text(self) -> &'static str {
        TEXTS.get(self.0).copied().unwrap_or_default()
    }

    fn number(self) -> u64 {
        NUMBERS.get(self.0).copied().unwrap_or_default()
    }
}

macro_rules! neutral {
    ($($value:ident: $($name:ident)*;)*) => {
        $($(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
            self.$value(visitor)
        })*)*
    };
}

impl Neutral {
    fn visit_text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_str(self.text())
    }

    fn visit_number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_u64(self.number())
    }

    fn visit_nothing<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_unit()
    }
}

impl<'de> Deserializer<'de> for Neutral {
    type Error = Mistake;

    neutral! {
        visit_text: deserialize_str deserialize_string deserialize_char deserialize_bytes deserialize_byte_buf
            deserialize_identifier;
        visit_number: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
            deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64;
        visit_nothing: deserialize_unit deserialize_ignored_any;
    }

    /// The first candidate is a number, the others are texts: types that take either check the text.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        if self.0 == 0 { self.visit_number(visitor) } else { self.visit_text(visitor) }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_bool(false)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_none()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_seq(SeqDeserializer::new(std::iter::empty::<Neutral>()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_seq(SeqDeserializer::new(std::iter::repeat_n(self, len)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let entries = std::iter::empty::<(&'static str, Neutral)>();
        visitor.visit_map(MapDeserializer::new(entries))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        let entries = fields.iter().map(|field| (*field, self));
        visitor.visit_map(MapDeserializer::new(entries))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        visitor.visit_enum(StrDeserializer::new(variants.first().copied().unwrap_or_default()))
    }
}
