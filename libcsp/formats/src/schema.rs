//! A schema and its messages, with all offsets resolved.

use std::collections::HashMap;

use crate::primitive::{ByteOrder, Primitive};
use crate::types::{Charset, Field, Name, Type};

/// Longest schema, in bytes.
pub const SCHEMA_LEN_MAX: usize = 1 << 20;
/// Elements, attributes' owners and texts of a schema.
pub const NODES_MAX: u32 = 100_000;
/// Elements below each other, counted from the root.
pub const ELEMENT_DEPTH_MAX: usize = 24;
/// Messages of a schema.
pub const MESSAGES_MAX: usize = 1024;
/// Types of a schema.
pub const TYPES_MAX: usize = 4096;
/// Fields, groups and data of one block, members of a composite, values of an enumeration.
pub const MEMBERS_MAX: usize = 1024;
/// Values of a composite, and of a block, those of nested composites included.
pub const LEAVES_MAX: u32 = 4096;
/// Composites within each other.
pub const COMPOSITE_DEPTH_MAX: usize = 8;
/// Types that name others, each within the one before it: encodings of enumerations, and constants by
/// `valueRef`.
pub const TYPE_DEPTH_MAX: usize = 32;
/// Groups within each other.
pub const GROUP_DEPTH_MAX: usize = 8;
/// Longest block or composite, in bytes.
pub const BLOCK_LEN_MAX: u32 = 65_534;
/// Longest name.
pub const NAME_LEN_MAX: usize = 64;

/// A schema.
#[derive(Debug)]
pub struct Schema {
    /// The package, a name space of generated code.
    pub package: Name,
    /// Identifies the schema in message headers.
    pub id: u16,
    /// The version in the headers of messages that are written with it.
    pub version: u16,
    /// The version of the semantics, if given.
    pub semantic_version: Option<Name>,
    /// The order of bytes in all numbers.
    pub byte_order: ByteOrder,
    /// The layout of the message header.
    pub header: Header,
    /// The messages as declared.
    pub messages: Vec<Message>,
    /// Template ids and indexes of `messages`, in the order of the ids.
    pub(crate) by_id: Vec<(u16, u16)>,
    /// Types by name.
    pub types: HashMap<Name, Type>,
}

/// A number in a header: where, and how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Bytes from the header's begin.
    pub offset: u32,
    /// An unsigned integer.
    pub primitive: Primitive,
}

/// The message header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Bytes of the header.
    pub length: u32,
    /// The length of the root block.
    pub block_length: Slot,
    /// The message's id.
    pub template_id: Slot,
    /// The schema's id.
    pub schema_id: Slot,
    /// The version of the writer's schema.
    pub version: Slot,
    /// Counts of groups and data, where the header has them.
    pub counts: Counts,
}

/// Optional counts in a message header or group dimension. With them a reader can skip groups and data that
/// it does not know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// `numGroups`.
    pub groups: Option<Slot>,
    /// `numVarDataFields`.
    pub data: Option<Slot>,
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// The name.
    pub name: Name,
    /// The template id.
    pub id: u16,
    /// The schema version that added it.
    pub since_version: u16,
    /// The schema version that deprecated it.
    pub deprecated: Option<u16>,
    /// What follows the message header.
    pub block: Block,
}

/// A message's body or a group's entry: fields at fixed offsets, then groups, then data.
#[derive(Debug)]
pub struct Block {
    /// Bytes of the fixed part.
    pub length: u32,
    /// The fields of the fixed part.
    pub fields: Vec<Field>,
    /// The groups, in order of the wire.
    pub groups: Vec<Group>,
    /// The variable data, in order of the wire.
    pub data: Vec<Data>,
}

/// A repeating group.
#[derive(Debug)]
pub struct Group {
    /// The name.
    pub name: Name,
    /// The id.
    pub id: u16,
    /// The schema version that added it.
    pub since_version: u16,
    /// The schema version that deprecated it.
    pub deprecated: Option<u16>,
    /// What precedes the entries.
    pub dimension: Dimension,
    /// An entry.
    pub block: Block,
}

/// The header of a group.
#[derive(Clone, Copy, Debug)]
pub struct Dimension {
    /// Bytes of the header.
    pub length: u32,
    /// The length of an entry's fixed part.
    pub block_length: Slot,
    /// The number of entries.
    pub num_in_group: Slot,
    /// Counts of groups and data of an entry, where the dimension has them.
    pub counts: Counts,
}

/// Variable data: a length, then so many bytes.
#[derive(Debug)]
pub struct Data {
    /// The name.
    pub name: Name,
    /// The id.
    pub id: u16,
    /// The schema version that added it.
    pub since_version: u16,
    /// The schema version that deprecated it.
    pub deprecated: Option<u16>,
    /// The length's place.
    pub length: Slot,
    /// Where the bytes begin, counted from the begin of the encoding.
    pub bytes_offset: u32,
    /// The greatest length that the schema permits.
    pub length_max: u64,
    /// How bytes are text; `None` for binary.
    pub charset: Option<Charset>,
}

impl Schema {
    /// The message of that name.
    #[must_use]
    pub fn message(&self, name: &str) -> Option<&Message> {
        self.messages.iter().find(|message| &*message.name == name)
    }

    /// The message of that template id.
    #[must_use]
    pub fn template(&self, id: u16) -> Option<&Message> {
        let found = self.by_id.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        self.messages.get(usize::from(self.by_id[found].1))
    }
}

impl Block {
    /// The field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| &*field.name == name)
    }

    /// The index of the group of that name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| &*group.name == name)
    }

    /// The index of the data of that name.
    #[must_use]
    pub fn data(&self, name: &str) -> Option<usize> {
        self.data.iter().position(|data| &*data.name == name)
    }

    /// Whether entries end with their fixed part.
    #[must_use]
    pub(crate) fn is_flat(&self) -> bool {
        self.groups.is_empty() && self.data.is_empty()
    }
}
