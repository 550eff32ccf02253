//! Checked views of messages over lists of slices. They allocate nothing, and no input makes them panic.
//!
//! **Evolution.** The header says by which version of the schema a message was written. A field, group or
//! data of a later version reads as null or empty. What a later writer has appended to a block is skipped by
//! the block's length; groups and data that it has appended behind those known here are not looked at.

mod error;
mod group;
mod value;

use core::ops::Deref;

use crate::bytes::Bytes;
use crate::primitive::ByteOrder;
use crate::schema::{Block, Data, Message, Schema, Slot};
pub use error::{ViewError, ViewProblem};
pub use group::{EMPTY_ENTRIES_MAX, Entries, GroupView};
pub use value::{Array, Value};

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'s, 'b> {
    /// The message's format.
    pub message: &'s Message,
    record: Record<'s, 'b>,
}

/// The fixed part of a message or entry, or a composite in it.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'b> {
    bytes: Bytes<'b>,
    version: u16,
    order: ByteOrder,
}

/// A message's body or a group's entry: fields, then groups, then data.
#[derive(Clone, Copy, Debug)]
pub struct Record<'s, 'b> {
    layout: &'s Block,
    fixed: BlockView<'b>,
    /// What follows the fixed part, up to the end of the message.
    tail: Bytes<'b>,
}

impl<'s, 'b> MessageView<'s, 'b> {
    /// Reads the header of a message and finds its format. Groups and data are checked when they are read, or
    /// by [`Record::check`].
    ///
    /// # Errors
    /// The bytes end within the header or the root block, or the schema has no such message.
    pub fn new(schema: &'s Schema, slices: &'b [&'b [u8]]) -> Result<Self, ViewError> {
        let (bytes, header) = (Bytes::new(slices), &schema.header);
        let slot = |slot| {
            number(bytes, slot, schema.byte_order)
                .ok_or_else(|| ViewError::truncated(None, header.length, bytes))
        };
        let body = bytes
            .skip(header.length as usize)
            .ok_or_else(|| ViewError::truncated(None, header.length, bytes))?;
        let schema_id = slot(header.schema_id)?;
        if schema_id != u64::from(schema.id) {
            return Err(ViewError::header(ViewProblem::WrongSchema {
                found: schema_id,
                expected: schema.id,
            }));
        }
        let id = slot(header.template_id)?;
        let message = u16::try_from(id).ok().and_then(|id| schema.template(id));
        let message = message.ok_or_else(|| ViewError::header(ViewProblem::UnknownTemplate { id }))?;
        // A version that no schema can have is later than all.
        let version = u16::try_from(slot(header.version)?).unwrap_or(u16::MAX);
        let length = slot(header.block_length)?;
        let record = Record::new(&message.block, body, length, version, schema.byte_order)
            .ok_or_else(|| ViewError::truncated(Some(&message.name), length, body))?;
        Ok(Self { message, record })
    }
}

impl<'s, 'b> Deref for MessageView<'s, 'b> {
    type Target = Record<'s, 'b>;

    fn deref(&self) -> &Self::Target {
        &self.record
    }
}

impl<'s, 'b> Record<'s, 'b> {
    /// A record at the begin of `bytes`; `None` if they are fewer than its fixed part.
    #[inline]
    fn new(layout: &'s Block, bytes: Bytes<'b>, length: u64, version: u16, order: ByteOrder) -> Option<Self> {
        let length = usize::try_from(length).ok()?;
        let fixed = BlockView { bytes: bytes.take(length)?, version, order };
        Some(Self { layout, fixed, tail: bytes.skip(length)? })
    }

    /// What the record is made of.
    #[must_use]
    pub fn layout(&self) -> &'s Block {
        self.layout
    }

    /// The schema version of the writer.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.fixed.version
    }

    /// The fixed part.
    #[must_use]
    pub fn fixed(&self) -> BlockView<'b> {
        self.fixed
    }

    /// The group of that index; without entries if the writer did not know it.
    ///
    /// # Errors
    /// It, or a group before it, reaches beyond the end of the message or claims too many empty entries.
    ///
    /// # Panics
    /// The layout has no such group.
    pub fn group(&self, index: usize) -> Result<GroupView<'s, 'b>, ViewError> {
        let at = self.behind_groups(index)?;
        GroupView::new(&self.layout.groups[index], at, self.fixed.version, self.fixed.order)
    }

    /// The variable data of that index; `None` if the writer did not know it.
    ///
    /// # Errors
    /// It, or a group or data before it, reaches beyond the end of the message.
    ///
    /// # Panics
    /// The layout has no such data.
    pub fn data(&self, index: usize) -> Result<Option<Bytes<'b>>, ViewError> {
        let mut at = self.behind_groups(self.layout.groups.len())?;
        for data in &self.layout.data[..index] {
            at = self.split_data(data, at)?.1;
        }
        Ok(self.split_data(&self.layout.data[index], at)?.0)
    }

    /// Checks all lengths in the record, also in entries of groups, and returns the bytes behind it.
    ///
    /// # Errors
    /// A field lies outside its block, a group or data reaches beyond the end of the message, or a group
    /// claims too many empty entries.
    pub fn check(&self) -> Result<Bytes<'b>, ViewError> {
        for field in &self.layout.fields {
            self.fixed.value(field)?;
        }
        // One pass: each group begins where the one before it was found to end.
        let mut at = self.tail;
        for index in 0..self.layout.groups.len() {
            let group = self.group_at(index, at)?;
            at = group.begin();
            for _ in 0..group.count() {
                at = group.record(at)?.check()?;
            }
        }
        for index in 0..self.layout.data.len() {
            at = self.data_at(index, at)?.1;
        }
        Ok(at)
    }

    /// What follows the fixed part.
    pub(crate) fn tail(&self) -> Bytes<'b> {
        self.tail
    }

    /// The group of that index, which begins at `at`.
    pub(crate) fn group_at(&self, index: usize, at: Bytes<'b>) -> Result<GroupView<'s, 'b>, ViewError> {
        GroupView::new(&self.layout.groups[index], at, self.fixed.version, self.fixed.order)
    }

    /// The data of that index, which begins at `at`, and what follows it.
    pub(crate) fn data_at(
        &self,
        index: usize,
        at: Bytes<'b>,
    ) -> Result<(Option<Bytes<'b>>, Bytes<'b>), ViewError> {
        self.split_data(&self.layout.data[index], at)
    }

    /// The bytes behind the record.
    pub(crate) fn end(&self) -> Result<Bytes<'b>, ViewError> {
        let mut at = self.behind_groups(self.layout.groups.len())?;
        for data in &self.layout.data {
            at = self.split_data(data, at)?.1;
        }
        Ok(at)
    }

    fn behind_groups(&self, count: usize) -> Result<Bytes<'b>, ViewError> {
        let mut at = self.tail;
        for group in &self.layout.groups[..count] {
            at = GroupView::new(group, at, self.fixed.version, self.fixed.order)?.end()?;
        }
        Ok(at)
    }

    /// Data at the begin of `at`, and what follows it.
    fn split_data(&self, data: &'s Data, at: Bytes<'b>) -> Result<(Option<Bytes<'b>>, Bytes<'b>), ViewError> {
        if data.since_version > self.fixed.version {
            return Ok((None, at));
        }
        let truncated = |need: u64| ViewError::truncated(Some(&data.name), need, at);
        let prefix = data.bytes_offset as usize;
        let bytes = at.skip(prefix).ok_or_else(|| truncated(prefix as u64))?;
        let length = number(at, data.length, self.fixed.order).ok_or_else(|| truncated(prefix as u64))?;
        // Three numbers of at most 32 bits.
        let split = usize::try_from(length).ok().and_then(|len| Some((bytes.take(len)?, bytes.skip(len)?)));
        let (found, rest) = split.ok_or_else(|| truncated(prefix as u64 + length))?;
        Ok((Some(found), rest))
    }
}

/// An unsigned number of a header.
#[inline]
fn number(bytes: Bytes<'_>, slot: Slot, order: ByteOrder) -> Option<u64> {
    slot.primitive.decode(bytes.word(slot.offset as usize, slot.primitive.size())?, order).unsigned()
}
