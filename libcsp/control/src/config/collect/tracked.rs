//! A deserializer around another one: it knows the path, notes the kind of a failure, and applies repairs.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::neutral::Neutral;
use super::{Kind, Pass, join};

/// The error of the deserializer inside, and what kind of mistake it is.
#[derive(Debug)]
pub(super) struct TrackedError<E> {
    pub(super) inner: E,
    kind: Kind,
}

impl<E> TrackedError<E> {
    fn other(inner: E) -> Self {
        TrackedError { inner, kind: Kind::Other }
    }
}

impl<E: fmt::Display> fmt::Display for TrackedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<E: std::error::Error> std::error::Error for TrackedError<E> {}

impl<E: de::Error> de::Error for TrackedError<E> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        TrackedError::other(E::custom(message))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let kind = Kind::UnknownVariant(variant.to_owned(), expected);
        TrackedError { inner: E::unknown_variant(variant, expected), kind }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let kind = Kind::UnknownField(field.to_owned(), expected);
        TrackedError { inner: E::unknown_field(field, expected), kind }
    }

    fn missing_field(field: &'static str) -> Self {
        TrackedError { inner: E::missing_field(field), kind: Kind::MissingField(field) }
    }
}

/// A deserializer, visitor, seed or access within a pass.
pub(super) struct Tracked<'p, T> {
    pub(super) inner: T,
    pub(super) pass: &'p Pass<'p>,
}

impl<'p, T> Tracked<'p, T> {
    fn with<U>(&self, inner: U) -> Tracked<'p, U> {
        Tracked { inner, pass: self.pass }
    }

    /// Notes a failure; gives the error to the deserializer inside.
    fn noted<V, E>(&self, result: Result<V, TrackedError<E>>) -> Result<V, E> {
        result.map_err(|error| {
            self.pass.note(error.kind);
            error.inner
        })
    }
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.with(visitor);
            self.inner.$name($($argument,)* visitor).map_err(TrackedError::other)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tracked<'_, D> {
    type Error = TrackedError<D::Error>;

    forward! {
        deserialize_any(); deserialize_bool(); deserialize_char(); deserialize_str(); deserialize_string();
        deserialize_i8(); deserialize_i16(); deserialize_i32(); deserialize_i64(); deserialize_i128();
        deserialize_u8(); deserialize_u16(); deserialize_u32(); deserialize_u64(); deserialize_u128();
        deserialize_f32(); deserialize_f64(); deserialize_bytes(); deserialize_byte_buf();
        deserialize_option(); deserialize_unit(); deserialize_seq(); deserialize_map();
        deserialize_identifier(); deserialize_ignored_any();
        deserialize_unit_struct(name: &'static str); deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize); deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident($kind:ty);)*) => {
        $(fn $name<E: de::Error>(self, value: $kind) -> Result<V::Value, E> {
            let pass = self.with(());
            pass.noted(self.inner.$name::<TrackedError<E>>(value))
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Tracked<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(bool); visit_char(char); visit_str(&str); visit_borrowed_str(&'de str); visit_string(String);
        visit_i8(i8); visit_i16(i16); visit_i32(i32); visit_i64(i64); visit_i128(i128);
        visit_u8(u8); visit_u16(u16); visit_u32(u32); visit_u64(u64); visit_u128(u128);
        visit_f32(f32); visit_f64(f64); visit_bytes(&[u8]); visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.with(()).noted(self.inner.visit_none::<TrackedError<E>>())
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.with(()).noted(self.inner.visit_unit::<TrackedError<E>>())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let (pass, deserializer) = (self.with(()), self.with(deserializer));
        pass.noted(self.inner.visit_some(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let (pass, deserializer) = (self.with(()), self.with(deserializer));
        pass.noted(self.inner.visit_newtype_struct(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        let (pass, list) = (self.with(()), List { inner: self.with(list), index: 0 });
        pass.noted(self.inner.visit_seq(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let pass = self.with(());
        let missing = self.pass.repairs.missing.get(&*self.pass.path.borrow());
        let added = missing.map_or(&[][..], Vec::as_slice).iter();
        pass.noted(self.inner.visit_map(Mapping { inner: pass.with(map), added, key: Key::None }))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        let (pass, data) = (self.with(()), self.with(data));
        pass.noted(self.inner.visit_enum(data))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Tracked<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let (pass, deserializer) = (self.with(()), self.with(deserializer));
        pass.noted(self.inner.deserialize(deserializer))
    }
}

impl<'de, 'p, A: EnumAccess<'de>> EnumAccess<'de> for Tracked<'p, A> {
    type Error = TrackedError<A::Error>;
    type Variant = Tracked<'p, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), Self::Error> {
        let (pass, seed) = (self.with(()), self.with(seed));
        let (value, variant) = self.inner.variant_seed(seed).map_err(TrackedError::other)?;
        Ok((value, pass.with(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Tracked<'_, A> {
    type Error = TrackedError<A::Error>;

    fn unit_variant(self) -> Result<(), Self::Error> {
        self.inner.unit_variant().map_err(TrackedError::other)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Self::Error> {
        let seed = self.with(seed);
        self.inner.newtype_variant_seed(seed).map_err(TrackedError::other)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        let visitor = self.with(visitor);
        self.inner.tuple_variant(len, visitor).map_err(TrackedError::other)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let visitor = self.with(visitor);
        self.inner.struct_variant(fields, visitor).map_err(TrackedError::other)
    }
}

/// Runs `read` with `path` as the current path. The path stays where it is after a failure.
fn at<T, E>(pass: &Pass<'_>, path: String, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let around = pass.path.replace(path);
    let value = read()?;
    pass.path.replace(around);
    Ok(value)
}

/// A neutral value for `seed`, if the current path is one that cannot be read; else the seed again.
fn neutral<'de, S: DeserializeSeed<'de>, E: de::Error>(
    pass: &Pass<'_>,
    seed: S,
) -> Result<Result<S::Value, TrackedError<E>>, S> {
    match pass.repairs.neutral.get(&*pass.path.borrow()) {
        Some(candidate) => Ok(seed.deserialize(Neutral { candidate: *candidate, error: PhantomData })),
        None => Err(seed),
    }
}

/// The elements of a list.
struct List<'p, A> {
    inner: Tracked<'p, A>,
    index: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for List<'_, A> {
    type Error = TrackedError<A::Error>;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        let pass = self.inner.pass;
        let path = format!("{}[{}]", pass.path.borrow(), self.index);
        self.index += 1;
        let wrapped = |seed| Tracked { inner: seed, pass };
        at(pass, path.clone(), || {
            if !pass.repairs.neutral.contains_key(&path) {
                return self.inner.inner.next_element_seed(wrapped(seed)).map_err(TrackedError::other);
            }
            let skipped = self.inner.inner.next_element::<IgnoredAny>().map_err(|error| {
                pass.broken.set(true);
                TrackedError::other(error)
            })?;
            match (skipped, neutral(pass, seed)) {
                (Some(_), Ok(value)) => value.map(Some),
                _ => Ok(None),
            }
        })
        .inspect_err(|error: &Self::Error| pass.note(error.kind.clone()))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.inner.size_hint()
    }
}

/// The key that was read last.
enum Key {
    None,
    /// A field of the document, with its path.
    Read(String),
    /// A field that the document lacks.
    Added(String),
}

/// The entries of a mapping, those that repairs add at the end.
struct Mapping<'p, A> {
    inner: Tracked<'p, A>,
    added: std::slice::Iter<'p, &'static str>,
    key: Key,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Mapping<'_, A> {
    type Error = TrackedError<A::Error>;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Self::Error> {
        let pass = self.inner.pass;
        while let Some(key) = self.inner.inner.next_key::<String>().map_err(TrackedError::other)? {
            let path = join(&pass.path.borrow(), &key);
            if pass.repairs.skipped.contains(&path) {
                self.inner.inner.next_value::<IgnoredAny>().map_err(TrackedError::other)?;
                continue;
            }
            self.key = Key::Read(path);
            return seed.deserialize(key.into_deserializer()).map(Some);
        }
        let Some(field) = self.added.next() else { return Ok(None) };
        self.key = Key::Added(join(&pass.path.borrow(), field));
        seed.deserialize(StrDeserializer::<Self::Error>::new(field)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Self::Error> {
        let pass = self.inner.pass;
        let (path, added) = match std::mem::replace(&mut self.key, Key::None) {
            Key::Read(path) => (path, false),
            Key::Added(path) => (path, true),
            Key::None => return Err(de::Error::custom("a value without a key")),
        };
        let replaced = pass.repairs.neutral.contains_key(&path);
        at(pass, path, || {
            if replaced && !added {
                self.inner.inner.next_value::<IgnoredAny>().map_err(|error| {
                    pass.broken.set(true);
                    TrackedError::other(error)
                })?;
            }
            match neutral(pass, seed) {
                Ok(value) => value,
                Err(seed) => {
                    let seed = Tracked { inner: seed, pass };
                    self.inner.inner.next_value_seed(seed).map_err(TrackedError::other)
                }
            }
        })
        .inspect_err(|error: &Self::Error| pass.note(error.kind.clone()))
    }
}
