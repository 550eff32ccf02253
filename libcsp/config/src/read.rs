//! Types from a tree: the only deserialiser of configuration and policies.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::neutral::Neutral;
use crate::tree::{Entry, Meaning, Node, Scalar, Step, Value, boolean, float, whole_number};

/// What kind of mistake it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A field that the mapping does not have; and those that it has.
    UnknownField(String, &'static [&'static str]),
    /// The mapping lacks a field that has no default.
    MissingField(&'static str),
    /// A word that is none of those allowed.
    UnknownVariant(String, &'static [&'static str]),
    /// No mapping.
    NoMapping,
    /// No list.
    NoList,
    /// No single value.
    NoScalar,
    /// A null where a text is asked for.
    NoText,
    /// Neither true nor false.
    NoBoolean,
    /// No whole number from the first to the second.
    NoInteger(i128, i128),
    /// Anything else, in words.
    Other(String),
}

/// Why a type cannot be read from a tree.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub kind: Kind,
    /// The steps to the value that is wrong, or to the mapping with an unknown or missing field; the last
    /// step first.
    back: Vec<Step>,
}

impl Mistake {
    fn new(kind: Kind) -> Self {
        Mistake { kind, back: Vec::new() }
    }

    /// Returns the steps from the root.
    pub fn steps(&self) -> Vec<Step> {
        self.back.iter().rev().cloned().collect()
    }

    fn within(mut self, step: Step) -> Self {
        self.back.push(step);
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::words::message(&self.kind, None))
    }
}

impl std::error::Error for Mistake {}

impl de::Error for Mistake {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Mistake::new(Kind::Other(message.to_string()))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Mistake::new(Kind::UnknownVariant(variant.to_owned(), expected))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Mistake::new(Kind::UnknownField(field.to_owned(), expected))
    }

    fn missing_field(field: &'static str) -> Self {
        Mistake::new(Kind::MissingField(field))
    }
}

/// Reads a type from a tree.
pub(crate) fn read<T: DeserializeOwned>(root: &Node) -> Result<T, Mistake> {
    T::deserialize(root)
}

fn scalar(node: &Node) -> Result<&Scalar, Mistake> {
    match &node.value {
        Value::Scalar(scalar) => Ok(scalar),
        _ => Err(Mistake::new(Kind::NoScalar)),
    }
}

/// Reads a whole number that lies between two, also from quotes.
fn integer<T: TryFrom<i128>>(node: &Node, least: i128, most: i128) -> Result<T, Mistake> {
    let number = match &node.value {
        Value::Scalar(Scalar { meaning: Meaning::Unsigned(number), .. }) => Some(i128::from(*number)),
        Value::Scalar(Scalar { meaning: Meaning::Signed(number), .. }) => Some(i128::from(*number)),
        Value::Scalar(Scalar { meaning: Meaning::Text, text }) => whole_number(text),
        _ => None,
    };
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| Mistake::new(Kind::NoInteger(least, most)))
}

macro_rules! integers {
    ($($name:ident $visit:ident $kind:ty;)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
            match self.value {
                Value::Neutral(candidate) => Neutral(candidate).$name(visitor),
                _ => visitor.$visit(integer::<$kind>(self, <$kind>::MIN.into(), <$kind>::MAX.into())?),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Mistake;

    integers! {
        deserialize_i8 visit_i8 i8; deserialize_i16 visit_i16 i16; deserialize_i32 visit_i32 i32; deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8; deserialize_u16 visit_u16 u16; deserialize_u32 visit_u32 u32; deserialize_u64 visit_u64 u64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match &self.value {
            Value::Neutral(candidate) => Neutral(*candidate).deserialize_any(visitor),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
            Value::Scalar(Scalar { text, meaning }) => match meaning {
                Meaning::Null => visitor.visit_unit(),
                Meaning::Bool(value) => visitor.visit_bool(*value),
                Meaning::Unsigned(number) => visitor.visit_u64(*number),
                Meaning::Signed(number) => visitor.visit_i64(*number),
                Meaning::Float(number) => visitor.visit_f64(*number),
                Meaning::Text => visitor.visit_borrowed_str(text),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        if let Value::Neutral(candidate) = self.value {
            return Neutral(candidate).deserialize_bool(visitor);
        }
        let value = scalar(self).ok().and_then(|scalar| boolean(scalar.text.trim()));
        visitor.visit_bool(value.ok_or_else(|| Mistake::new(Kind::NoBoolean))?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        if let Value::Neutral(candidate) = self.value {
            return Neutral(candidate).deserialize_f64(visitor);
        }
        let number = scalar(self).ok().and_then(|scalar| float(scalar.text.trim()));
        visitor.visit_f64(number.ok_or_else(|| de::Error::custom("is no number"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        if let Value::Neutral(candidate) = self.value {
            return Neutral(candidate).deserialize_str(visitor);
        }
        let scalar = scalar(self)?;
        if scalar.meaning == Meaning::Null {
            return Err(Mistake::new(Kind::NoText));
        }
        visitor.visit_borrowed_str(&scalar.text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.value {
            Value::Neutral(_) => visitor.visit_none(),
            _ if self.is_null() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match &self.value {
            Value::Neutral(candidate) => Neutral(*candidate).deserialize_seq(visitor),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Scalar(_) if self.is_null() => visitor.visit_seq(Items { items: [].iter(), index: 0 }),
            _ => Err(Mistake::new(Kind::NoList)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Mistake> {
        match self.value {
            Value::Neutral(candidate) => Neutral(candidate).deserialize_tuple(len, visitor),
            _ => self.deserialize_seq(visitor),
        }
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
        match &self.value {
            Value::Neutral(candidate) => Neutral(*candidate).deserialize_map(visitor),
            Value::Map(entries) => visitor.visit_map(Fields { entries: entries.iter(), value: None }),
            Value::Scalar(_) if self.is_null() => {
                visitor.visit_map(Fields { entries: [].iter(), value: None })
            }
            _ => Err(Mistake::new(Kind::NoMapping)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match self.value {
            Value::Neutral(candidate) => Neutral(candidate).deserialize_struct(name, fields, visitor),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match &self.value {
            Value::Neutral(candidate) => Neutral(*candidate).deserialize_enum(name, variants, visitor),
            Value::Scalar(scalar) => visitor.visit_enum(Variant { name: &scalar.text, content: None }),
            Value::Map(entries) => match &entries[..] {
                [entry] => visitor.visit_enum(Variant { name: &entry.key, content: Some(&entry.node) }),
                _ => Err(de::Error::custom("has several fields; allowed is one")),
            },
            Value::List(_) => Err(Mistake::new(Kind::NoScalar)),
        }
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct ignored_any i128 u128 }
}

/// The elements of a list.
struct Items<'t> {
    items: std::slice::Iter<'t, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Mistake;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mistake> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(node).map(Some).map_err(|mistake| mistake.within(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The fields of a mapping.
struct Fields<'t> {
    entries: std::slice::Iter<'t, Entry>,
    value: Option<&'t Entry>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Mistake;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mistake> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(entry);
        seed.deserialize(StrDeserializer::new(&entry.key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mistake> {
        let entry = self.value.take().ok_or_else(|| de::Error::custom("a value without a key"))?;
        seed.deserialize(&entry.node)
            .map_err(|mistake: Mistake| mistake.within(Step::Field(entry.key.clone())))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A variant by its name, and what it holds.
struct Variant<'t> {
    name: &'t str,
    content: Option<&'t Node>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Mistake;
    type Variant = Content<'de>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content<'de>), Mistake> {
        let name: StrDeserializer<'_, Mistake> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Content { name: self.name, node: self.content }))
    }
}

/// What a variant holds.
struct Content<'t> {
    name: &'t str,
    node: Option<&'t Node>,
}

impl<'de> Content<'de> {
    fn read<T>(self, read: impl FnOnce(&'de Node) -> Result<T, Mistake>) -> Result<T, Mistake> {
        let Some(node) = self.node else {
            return Err(de::Error::custom(format!("`{}` needs a value: write `{0}: …`", self.name)));
        };
        read(node).map_err(|mistake| mistake.within(Step::Field(self.name.to_owned())))
    }
}

impl<'de> VariantAccess<'de> for Content<'de> {
    type Error = Mistake;

    fn unit_variant(self) -> Result<(), Mistake> {
        match self.node {
            Some(node) if !node.is_null() => {
                Err(de::Error::custom(format!("`{}` has no value; write it alone", self.name)))
            }
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Mistake> {
        self.read(|node| seed.deserialize(node))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Mistake> {
        self.read(|node| node.deserialize_tuple(len, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.read(|node| node.deserialize_struct("", fields, visitor))
    }
}
