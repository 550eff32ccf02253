//! Where fields of a format lie, so that one module can serve several formats: the import `locate`.

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_formats::{ByteOrder, Primitive, Schema, Type};
use csp_handlers::FormatId;

use crate::abi::FIELD_LEN;

/// Where a field lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldAt {
    /// Bytes before it in the frame that has the format, the message header included.
    pub offset: u32,
    /// Its length in bytes.
    pub size: u32,
    /// The first byte of its name in the ABI: `c` text, `i` signed, `u` unsigned, `f` floating point, `x`
    /// composite.
    pub kind: u8,
    /// Its bytes are in big-endian order.
    pub is_big_endian: bool,
    /// The version of the schema that added it: messages of earlier versions do not have it.
    pub since_version: u16,
}

impl FieldAt {
    /// Returns it as `locate` writes it: offset, size, kind, and flags (bit 0: big-endian; from bit 16 on:
    /// the version that added it).
    #[must_use]
    pub fn encode(&self) -> [u8; FIELD_LEN] {
        let flags = u32::from(self.is_big_endian) | u32::from(self.since_version) << 16;
        let mut bytes = [0; FIELD_LEN];
        let numbers = [self.offset, self.size, u32::from(self.kind), flags];
        for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *bytes = number.to_le_bytes();
        }
        bytes
    }
}

/// Knows where fields lie.
pub trait Fields: Send + Sync {
    /// Finds a field by its path. `None`: there is no such field at a fixed place, or no such format.
    fn locate(&self, format: FormatId, path: &str) -> Option<FieldAt>;

    /// Returns the formats that it knows.
    fn formats(&self) -> Vec<FormatId>;
}

/// Knows none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFields;

impl Fields for NoFields {
    fn locate(&self, _: FormatId, _: &str) -> Option<FieldAt> {
        None
    }

    fn formats(&self) -> Vec<FormatId> {
        Vec::new()
    }
}

/// Fields of SBE messages: those of the root block, which lie at the same place in every message.
#[derive(Clone, Debug, Default)]
pub struct SbeFields {
    messages: BTreeMap<FormatId, (Arc<Schema>, usize)>,
}

impl SbeFields {
    /// Adds a format: a message of a schema, by its name. Returns whether the schema has it.
    pub fn add(&mut self, format: FormatId, schema: &Arc<Schema>, message: &str) -> bool {
        let found = schema.messages.iter().position(|known| &*known.name == message);
        found.is_some_and(|at| {
            self.messages.insert(format, (schema.clone(), at));
            true
        })
    }
}

impl Fields for SbeFields {
    fn locate(&self, format: FormatId, path: &str) -> Option<FieldAt> {
        let (schema, at) = self.messages.get(&format)?;
        let found = schema.messages.get(*at)?.locate(path).ok()?;
        let field = found.root_field().filter(|field| field.constant.is_none())?;
        Some(FieldAt {
            offset: schema.header.length.checked_add(field.offset)?,
            size: field.size(),
            kind: kind(&field.kind),
            is_big_endian: schema.byte_order == ByteOrder::Big,
            since_version: field.since_version,
        })
    }

    fn formats(&self) -> Vec<FormatId> {
        self.messages.keys().copied().collect()
    }
}

fn kind(kind: &Type) -> u8 {
    let primitive = match kind {
        Type::Encoded(encoded) => encoded.primitive,
        Type::Enum(kind) => kind.primitive,
        Type::Set(kind) => kind.primitive,
        Type::Composite(_) => return b'x',
    };
    match primitive {
        Primitive::Char => b'c',
        Primitive::Int8 | Primitive::Int16 | Primitive::Int32 | Primitive::Int64 => b'i',
        Primitive::UInt8 | Primitive::UInt16 | Primitive::UInt32 | Primitive::UInt64 => b'u',
        Primitive::Float | Primitive::Double => b'f',
    }
}
