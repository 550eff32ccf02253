//! Formats of messages: FIX Simple Binary Encoding 1.0
//! ([specification](https://www.fixtrading.org/standards/sbe/)).
//!
//! The crate is sans-I/O. It owns schemas, checked views over lists of slices, writers, and the JSON mapping
//! of `docs/formats.md`. It refuses UTF-16 and other encodings of several bytes a character than UTF-8,
//! XInclude, and SBE 2.0. It does not know channels.
//!
//! ```text
//!  XML ─▶ Schema::parse ─▶ Schema ─▶ Message::locate("legs.price.mantissa") ─▶ Location ─┐
//!                            │                                                           ▼
//!  slices ──────────────▶ MessageView ─▶ Record: fields, groups, data ◀── Location::visit, BlockView::value
//!                            │
//!  buffer ◀─ Writer          └─▶ json::print;  json::parse ─▶ Writer
//! ```
//!
//! **Memory.** A schema allocates when it is parsed. Locating a field copies its type's reference. Views and
//! writers allocate nothing; an error counts a reference to the name of the field it is about. JSON
//! allocates.
//!
//! **Bounds.** Those of schemas stand in `schema`; entries without bytes at [`EMPTY_ENTRIES_MAX`]; JSON at
//! [`json::JSON_LEN_MAX`] when parsed, and at the caller's bound when printed.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod bytes;
mod fixed;
pub mod json;
mod load;
mod locate;
mod names;
mod primitive;
mod schema;
mod types;
mod view;
mod writer;

pub use bytes::Bytes;
pub use fixed::{CELL_TEXT_MAX, Cell, Fixed, Load, REACH_MAX, What};
pub use load::{SchemaError, SchemaProblem};
pub use locate::{Found, LocateError, Location, Target};
pub use names::nearest;
pub use primitive::{ByteOrder, Primitive, Scalar};
pub use schema::{
    BLOCK_LEN_MAX, Block, COMPOSITE_DEPTH_MAX, Counts, Data, Dimension, ELEMENT_DEPTH_MAX, GROUP_DEPTH_MAX,
    Group, Header, LEAVES_MAX, MEMBERS_MAX, MESSAGES_MAX, Message, NAME_LEN_MAX, NODES_MAX, SCHEMA_LEN_MAX,
    Schema, Slot, TYPE_DEPTH_MAX, TYPES_MAX,
};
pub use types::{
    Charset, Choice, Composite, Constant, Encoded, EnumType, EnumValue, Field, Name, Presence, SetType, Type,
};
pub use view::{
    Array, BlockView, EMPTY_ENTRIES_MAX, Entries, GroupView, MessageView, Record, Value, ViewError,
    ViewProblem,
};
pub use writer::{WriteError, WriteProblem, Writer};
