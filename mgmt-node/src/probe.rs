//! Asks a type that can be deserialised what it expects at a place, without a document.
//!
//! A probe stands for a document in which there is one way only, from the top to the place in question. Where
//! the way ends it notes what the type asks for, and fails. Derived and hand-written readers alike are asked:
//! what they accept is not written down a second time.

use std::cell::RefCell;
use std::fmt::{self, Display};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected,
    IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Value, json};

/// What a type expects.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// A mapping with these fields. The name is the type's.
    Struct(&'static str, &'static [&'static str]),
    /// One of these names.
    Enum(&'static [&'static str]),
    /// A list.
    List,
    /// A mapping with any keys.
    Map,
    /// A text, or what can be read as one.
    Text,
    /// A whole number from and to.
    Integer(i64, u64),
    /// A number.
    Number,
    /// true or false.
    Bool,
    /// Nothing: a variant without content.
    Unit,
    /// What a hand-written reader describes so.
    Any(String),
}

/// A step from a value to a part of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// A field of a mapping.
    Field(&'static str),
    /// The first of a list.
    Element,
    /// A value of a mapping with any keys.
    Value,
    /// The content of a variant.
    Variant(&'static str),
    /// The content of a variant that is named by a field beside it: that field, the variant, and the field
    /// with the content.
    Beside(&'static str, &'static str, &'static str),
    /// A whole mapping, with these fields and values.
    Filled(Vec<(&'static str, Value)>),
}

/// Why deserialising ended.
#[derive(Debug)]
struct Stop {
    /// A field is missing.
    missing: Option<&'static str>,
    why: String,
}

impl Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: Display>(why: T) -> Self {
        Stop { missing: None, why: why.to_string() }
    }

    fn missing_field(field: &'static str) -> Self {
        Stop { missing: Some(field), why: format!("{field} is missing") }
    }
}

/// Returns what `T` expects at the end of `path`; `None` where it is never asked.
pub fn shape<'de, T: Deserialize<'de>>(path: &[Step]) -> Option<Shape> {
    let (found, missing) = (RefCell::new(None), RefCell::new(None));
    let _ = T::deserialize(Probe { path, found: &found, missing: &missing });
    found.into_inner()
}

/// Returns the field that the mapping lacks with which `path` ends ([`Step::Filled`]); `None` if it lacks
/// none, or has a value that is not read.
fn missing<'de, T: Deserialize<'de>>(path: &[Step]) -> Option<&'static str> {
    let (found, missing) = (RefCell::new(None), RefCell::new(None));
    let _ = T::deserialize(Probe { path, found: &found, missing: &missing });
    missing.into_inner()
}

/// Returns the fields without which the mapping at `path` is not read: each is found by filling in those
/// before it.
pub fn required<T: DeserializeOwned>(path: &[Step]) -> Vec<&'static str> {
    let candidates = [
        json!("csp/v1"),
        json!("10.76.0.100"),
        json!("10.76.0.0/24"),
        json!(80),
        json!([]),
        json!({}),
        json!(true),
        json!("ok"),
        json!("info"),
    ];
    let ends = |filled: &[(&'static str, Value)]| {
        let whole = [path, &[Step::Filled(filled.to_vec())]].concat();
        missing::<T>(&whole)
    };
    let mut filled: Vec<(&'static str, Value)> = Vec::new();
    let mut required = Vec::new();
    while let Some(field) = ends(&filled).filter(|field| !required.contains(field)) {
        required.push(field);
        let fits = candidates.iter().find(|candidate| {
            let with = [&filled[..], &[(field, (*candidate).clone())]].concat();
            ends(&with).is_some_and(|next| next != field)
        });
        let Some(value) = fits else { break };
        filled.push((field, value.clone()));
    }
    required
}

#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [Step],
    found: &'a RefCell<Option<Shape>>,
    missing: &'a RefCell<Option<&'static str>>,
}

impl<'a> Probe<'a> {
    fn stop<T>(self, shape: Shape) -> Result<T, Stop> {
        if self.path.is_empty() {
            self.found.replace(Some(shape));
        }
        Err(de::Error::custom("the way ends here"))
    }

    fn mapping<'de, V: Visitor<'de>>(self, shape: Shape, visitor: V) -> Result<V::Value, Stop> {
        match self.path {
            [Step::Field(name), rest @ ..] => {
                visitor.visit_map(One { key: Some(name), probe: Probe { path: rest, ..self } })
            }
            [Step::Value, rest @ ..] => {
                visitor.visit_map(One { key: Some("name"), probe: Probe { path: rest, ..self } })
            }
            [Step::Beside(tag, variant, content), rest @ ..] => {
                let probe = Probe { path: rest, ..self };
                visitor.visit_map(Beside { keys: [Some(content), Some(tag)], variant, probe })
            }
            // The mappings around this one lack fields, too.
            [Step::Filled(fields)] => {
                let stop = visitor.visit_map(Filled(fields)).err();
                self.missing.replace(stop.and_then(|stop| stop.missing));
                Err(de::Error::custom("the way ends here"))
            }
            _ => self.stop(shape),
        }
    }
}

macro_rules! integers {
    ($($name:ident $type:ty),*) => {
        $(fn $name<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            self.stop(Shape::Integer(i64::try_from(<$type>::MIN).unwrap_or(i64::MIN), <$type>::MAX as u64))
        })*
    };
}

macro_rules! shapes {
    ($($name:ident $shape:expr),*) => {
        $(fn $name<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            self.stop($shape)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    integers!(
        deserialize_u8 u8, deserialize_u16 u16, deserialize_u32 u32, deserialize_u64 u64,
        deserialize_i8 i8, deserialize_i16 i16, deserialize_i32 i32, deserialize_i64 i64
    );
    shapes!(
        deserialize_bool Shape::Bool, deserialize_f32 Shape::Number, deserialize_f64 Shape::Number,
        deserialize_char Shape::Text, deserialize_str Shape::Text, deserialize_string Shape::Text,
        deserialize_identifier Shape::Text, deserialize_bytes Shape::Text, deserialize_byte_buf Shape::Text,
        deserialize_unit Shape::Unit
    );

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let words = (&visitor as &dyn Expected).to_string();
        // So are mappings read that stand beside their tag.
        self.mapping(Shape::Any(words), visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, Stop> {
        self.stop(Shape::Unit)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.path {
            [Step::Element, rest @ ..] => {
                visitor.visit_seq(One { key: Some(""), probe: Probe { path: rest, ..self } })
            }
            _ => self.stop(Shape::List),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.mapping(Shape::Map, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.mapping(Shape::Struct(name, fields), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.path {
            [Step::Variant(name), rest @ ..] => {
                visitor.visit_enum(Chosen { name, probe: Probe { path: rest, ..self } })
            }
            _ => self.stop(Shape::Enum(variants)),
        }
    }
}

/// A mapping with one field, or a list with one element.
struct One<'a> {
    key: Option<&'static str>,
    probe: Probe<'a>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let Some(key) = self.key.take() else { return Ok(None) };
        seed.deserialize(StrDeserializer::<Stop>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(self.probe)
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Stop> {
        if self.key.take().is_none() {
            return Ok(None);
        }
        seed.deserialize(self.probe).map(Some)
    }
}

/// A mapping with values.
struct Filled<'a>(&'a [(&'static str, Value)]);

impl<'de> MapAccess<'de> for Filled<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let Some((key, _)) = self.0.first() else { return Ok(None) };
        seed.deserialize(StrDeserializer::<Stop>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        let Some(((_, value), rest)) = self.0.split_first() else {
            return Err(de::Error::custom("there is no value"));
        };
        self.0 = rest;
        seed.deserialize(value.clone().into_deserializer()).map_err(de::Error::custom)
    }
}

/// A mapping with a tag and its content.
struct Beside<'a> {
    /// The keys to come, the last one first.
    keys: [Option<&'static str>; 2],
    variant: &'static str,
    probe: Probe<'a>,
}

impl<'de> MapAccess<'de> for Beside<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let [content, tag] = &mut self.keys;
        let Some(key) = tag.take().or_else(|| content.take()) else { return Ok(None) };
        seed.deserialize(StrDeserializer::<Stop>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        match self.keys {
            [Some(_), None] => seed.deserialize(StrDeserializer::<Stop>::new(self.variant)),
            _ => seed.deserialize(self.probe),
        }
    }
}

/// A variant of an enumeration.
struct Chosen<'a> {
    name: &'static str,
    probe: Probe<'a>,
}

impl<'de> EnumAccess<'de> for Chosen<'_> {
    type Error = Stop;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Stop> {
        let value = seed.deserialize(StrDeserializer::<Stop>::new(self.name))?;
        Ok((value, self))
    }
}

impl<'de> VariantAccess<'de> for Chosen<'_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        self.probe.stop(Shape::Unit)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Stop> {
        seed.deserialize(self.probe)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        self.probe.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.probe.deserialize_struct(self.name, fields, visitor)
    }
}
