//! Handles: 64 bits that encode kind, context, slot and the generations of context and slot.
//!
//! ```text
//!  63..60 kind | 59..52 context's slot | 51..40 context's generation | 39..20 generation | 19..0 index
//! ```

use crate::error::Error;

/// Bits of a slot's index.
pub const INDEX_BITS: u32 = 20;
/// Mask of a slot's generation in a handle.
pub const GENERATION_MASK: u32 = (1 << 20) - 1;
/// Mask of a context's generation in a handle.
pub const CONTEXT_GENERATION_MASK: u16 = (1 << 12) - 1;

/// The kind of object that a handle identifies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A context.
    Context = 1,
    /// A listener.
    Listener = 2,
    /// A stream or a channel.
    Connection = 3,
    /// A buffer of the pool, while the program holds it.
    Buffer = 4,
    /// A message in place, while the program holds it.
    InPlace = 5,
}

/// Identifies a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextId {
    /// Its slot.
    pub slot: u8,
    /// The generation of the slot, 12 bits.
    pub generation: u16,
}

/// Identifies an object of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its slot, 20 bits.
    pub index: u32,
    /// The generation of the slot, 20 bits.
    pub generation: u32,
}

impl Key {
    /// The key as a handle of `kind` in `context`.
    pub fn handle(self, kind: Kind, context: ContextId) -> u64 {
        (kind as u64) << 60
            | u64::from(context.slot) << 52
            | u64::from(context.generation & CONTEXT_GENERATION_MASK) << 40
            | u64::from(self.generation & GENERATION_MASK) << INDEX_BITS
            | u64::from(self.index & ((1 << INDEX_BITS) - 1))
    }
}

impl ContextId {
    /// The context's own handle.
    pub fn handle(self) -> u64 {
        Key { index: 0, generation: 0 }.handle(Kind::Context, self)
    }

    /// The context that a handle of any kind belongs to.
    pub fn of(handle: u64) -> Self {
        ContextId { slot: (handle >> 52) as u8, generation: (handle >> 40) as u16 & CONTEXT_GENERATION_MASK }
    }
}

/// The kind encoded in a handle.
pub fn kind(handle: u64) -> Result<Kind, Error> {
    match handle >> 60 {
        1 => Ok(Kind::Context),
        2 => Ok(Kind::Listener),
        3 => Ok(Kind::Connection),
        4 => Ok(Kind::Buffer),
        5 => Ok(Kind::InPlace),
        _ => Err(Error::HANDLE),
    }
}

/// The key in a handle.
pub fn key(handle: u64) -> Key {
    Key {
        index: handle as u32 & ((1 << INDEX_BITS) - 1),
        generation: (handle >> INDEX_BITS) as u32 & GENERATION_MASK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_decodes_to_its_parts() {
        let context = ContextId { slot: 63, generation: CONTEXT_GENERATION_MASK };
        let name = Key { index: (1 << INDEX_BITS) - 1, generation: GENERATION_MASK };
        for kind_of in [Kind::Context, Kind::Listener, Kind::Connection, Kind::Buffer, Kind::InPlace] {
            let handle = name.handle(kind_of, context);
            assert_eq!((kind(handle), ContextId::of(handle), key(handle)), (Ok(kind_of), context, name));
        }
        assert_eq!((kind(0), kind(u64::MAX)), (Err(Error::HANDLE), Err(Error::HANDLE)));
    }
}
