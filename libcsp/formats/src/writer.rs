//! Writes messages into a buffer of the caller. Nothing is allocated; what does not fit is an error.
//!
//! A new block has null in optional fields and enumerations and zero elsewhere. Groups and data are written
//! in the schema's order; those passed over are empty.
//!
//! ```text
//!  Writer::new ─▶ scalar, text, …  ─▶ begin_group ─▶ entry ─▶ scalar, …, begin_group, …, data ─▶ entry … ─▶ end_group
//!                                 ─▶ data ─▶ … ─▶ finish: length
//! ```

mod error;
mod values;

use crate::primitive::{ByteOrder, Scalar};
use crate::schema::{Block, Counts, Data, GROUP_DEPTH_MAX, Group, Message, Schema, Slot};
pub use error::{WriteError, WriteProblem};

/// Writes one message.
#[derive(Debug)]
pub struct Writer<'s, 'o> {
    message: &'s Message,
    out: &'o mut [u8],
    len: usize,
    order: ByteOrder,
    frames: [Frame<'s>; GROUP_DEPTH_MAX + 1],
    depth: usize,
}

/// A record that is being written: the message, or the last entry of a group.
#[derive(Clone, Copy, Debug)]
struct Frame<'s> {
    layout: &'s Block,
    /// The group, and where its dimension lies.
    group: Option<(&'s Group, usize)>,
    /// Entries begun. A message counts as one.
    count: u64,
    /// Where the fixed part begins.
    start: usize,
    /// The next group or, behind the groups, the next data.
    next: usize,
}

impl<'s, 'o> Writer<'s, 'o> {
    /// Writes the header and a root block with nothing in it.
    ///
    /// # Errors
    /// The buffer is too small.
    pub fn new(schema: &'s Schema, message: &'s Message, out: &'o mut [u8]) -> Result<Self, WriteError> {
        let root = Frame { layout: &message.block, group: None, count: 1, start: 0, next: 0 };
        let mut writer = Self {
            message,
            out,
            len: 0,
            order: schema.byte_order,
            frames: [root; GROUP_DEPTH_MAX + 1],
            depth: 0,
        };
        let header = &schema.header;
        writer.grow(header.length as usize)?.fill(0);
        writer.slot(0, header.block_length, u64::from(message.block.length));
        writer.slot(0, header.template_id, u64::from(message.id));
        writer.slot(0, header.schema_id, u64::from(schema.id));
        writer.slot(0, header.version, u64::from(schema.version));
        writer.counts(0, header.counts, &message.block);
        writer.frames[0].start = writer.block(&message.block)?;
        Ok(writer)
    }

    /// A writer of groups and data behind header and root block, which lie in the buffer already.
    ///
    /// # Errors
    /// The buffer is smaller than they are.
    pub fn behind_block(
        schema: &'s Schema,
        message: &'s Message,
        out: &'o mut [u8],
    ) -> Result<Self, WriteError> {
        let start = schema.header.length as usize;
        let root = Frame { layout: &message.block, group: None, count: 1, start, next: 0 };
        let frames = [root; GROUP_DEPTH_MAX + 1];
        let mut writer = Self { message, out, len: 0, order: schema.byte_order, frames, depth: 0 };
        writer.grow(start + message.block.length as usize)?;
        Ok(writer)
    }

    /// The block whose fields can be set: the message's, or that of the innermost group's entry.
    #[must_use]
    pub fn layout(&self) -> &'s Block {
        self.frame().layout
    }

    /// The bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is written; never, since the header is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Begins the group of that index in the current record.
    ///
    /// # Errors
    /// The record has no such group or has passed it, no entry is begun, or the buffer is full.
    pub fn begin_group(&mut self, index: usize) -> Result<(), WriteError> {
        let layout = self.record()?.layout;
        let Some(group) = layout.groups.get(index) else { return Err(self.error(WriteProblem::NoMember)) };
        self.pass(index)?;
        let at = self.dimension(group)?;
        self.depth += 1;
        self.frames[self.depth] =
            Frame { layout: &group.block, group: Some((group, at)), count: 0, start: 0, next: 0 };
        Ok(())
    }

    /// Begins the next entry of the group that was begun last.
    ///
    /// # Errors
    /// No group is begun, it has as many entries as it may, or the buffer is full.
    pub fn entry(&mut self) -> Result<(), WriteError> {
        let Some((group, dimension)) = self.frame().group else {
            return Err(self.error(WriteProblem::NoGroup));
        };
        self.close_record()?;
        let slot = group.dimension.num_in_group;
        let max = largest(slot);
        let count = self.frame().count + 1;
        if count > max {
            return Err(WriteError::new(&group.name, WriteProblem::TooManyEntries { max }));
        }
        let start = self.block(&group.block)?;
        self.slot(dimension, slot, count);
        let frame = &mut self.frames[self.depth];
        (frame.count, frame.start, frame.next) = (count, start, 0);
        Ok(())
    }

    /// Ends the group that was begun last.
    ///
    /// # Errors
    /// No group is begun, or the buffer is full.
    pub fn end_group(&mut self) -> Result<(), WriteError> {
        if self.depth == 0 {
            return Err(self.error(WriteProblem::NoGroup));
        }
        self.close_record()?;
        self.depth -= 1;
        Ok(())
    }

    /// Writes variable data from several slices.
    ///
    /// # Errors
    /// The record has no such data or has passed it, the bytes are more than the schema permits, or the
    /// buffer is full.
    pub fn data<'d>(
        &mut self,
        index: usize,
        parts: impl IntoIterator<Item = &'d [u8], IntoIter: Clone>,
    ) -> Result<(), WriteError> {
        let layout = self.record()?.layout;
        let Some(data) = layout.data.get(index) else { return Err(self.error(WriteProblem::NoMember)) };
        self.pass(layout.groups.len() + index)?;
        let parts = parts.into_iter();
        let len = parts.clone().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        self.data_of(data, len)?;
        for part in parts {
            self.grow(part.len())?.copy_from_slice(part);
        }
        Ok(())
    }

    /// Writes the length of variable data whose bytes the caller puts elsewhere: between the bytes before and
    /// behind the position that is returned.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub fn data_apart(&mut self, index: usize, len: usize) -> Result<usize, WriteError> {
        let layout = self.record()?.layout;
        let Some(data) = layout.data.get(index) else { return Err(self.error(WriteProblem::NoMember)) };
        self.pass(layout.groups.len() + index)?;
        self.data_of(data, len)?;
        Ok(self.len)
    }

    /// Ends the message and returns its length.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn finish(mut self) -> Result<usize, WriteError> {
        while self.depth > 0 {
            self.end_group()?;
        }
        self.close_record()?;
        Ok(self.len)
    }

    fn frame(&self) -> &Frame<'s> {
        &self.frames[self.depth]
    }

    /// The current record; an error if a group is begun that has no entry yet.
    fn record(&self) -> Result<&Frame<'s>, WriteError> {
        let frame = self.frame();
        if frame.count == 0 { Err(self.error(WriteProblem::NoEntry)) } else { Ok(frame) }
    }

    /// Writes what precedes `member` as empty.
    fn pass(&mut self, member: usize) -> Result<(), WriteError> {
        let Frame { layout, next, .. } = *self.frame();
        if member < next {
            return Err(self.error(WriteProblem::Passed));
        }
        self.write_empty(layout, next, member)?;
        self.frames[self.depth].next = member + 1;
        Ok(())
    }

    /// Writes what is missing of the current record, if there is one.
    fn close_record(&mut self) -> Result<(), WriteError> {
        let Frame { layout, count, next, .. } = *self.frame();
        if count > 0 {
            self.write_empty(layout, next, layout.groups.len() + layout.data.len())?;
        }
        Ok(())
    }

    fn write_empty(&mut self, layout: &'s Block, from: usize, to: usize) -> Result<(), WriteError> {
        for member in from..to {
            match layout.groups.get(member) {
                Some(group) => {
                    self.dimension(group)?;
                }
                None => self.data_of(&layout.data[member - layout.groups.len()], 0)?,
            }
        }
        Ok(())
    }

    /// Writes the dimension of a group without entries and returns its place.
    fn dimension(&mut self, group: &'s Group) -> Result<usize, WriteError> {
        let at = self.len;
        let dimension = &group.dimension;
        self.grow(dimension.length as usize)?.fill(0);
        self.slot(at, dimension.block_length, u64::from(group.block.length));
        self.counts(at, dimension.counts, &group.block);
        Ok(at)
    }

    /// Writes the length of data; its bytes follow.
    fn data_of(&mut self, data: &'s Data, len: usize) -> Result<(), WriteError> {
        let max = data.length_max;
        if len as u64 > max {
            return Err(WriteError::new(&data.name, WriteProblem::TooLong { len, max }));
        }
        let at = self.len;
        self.grow(data.bytes_offset as usize)?.fill(0);
        self.slot(at, data.length, len as u64);
        Ok(())
    }

    fn block(&mut self, layout: &'s Block) -> Result<usize, WriteError> {
        let (start, order) = (self.len, self.order);
        let bytes = self.grow(layout.length as usize)?;
        bytes.fill(0);
        for field in &layout.fields {
            values::blank(bytes, field, order);
        }
        Ok(start)
    }

    fn counts(&mut self, at: usize, counts: Counts, layout: &Block) {
        if let Some(slot) = counts.groups {
            self.slot(at, slot, layout.groups.len() as u64);
        }
        if let Some(slot) = counts.data {
            self.slot(at, slot, layout.data.len() as u64);
        }
    }

    /// Writes a number of a header that is written already.
    fn slot(&mut self, at: usize, slot: Slot, number: u64) {
        values::put_word(&mut self.out[at..], slot.offset, slot.primitive, Scalar::UInt(number), self.order);
    }

    /// Takes the next bytes of the buffer.
    fn grow(&mut self, count: usize) -> Result<&mut [u8], WriteError> {
        let end = self.len.checked_add(count).filter(|&end| end <= self.out.len());
        let Some(end) = end else {
            return Err(self.error(WriteProblem::NoSpace { need: count, room: self.out.len() - self.len }));
        };
        let start = core::mem::replace(&mut self.len, end);
        Ok(&mut self.out[start..end])
    }

    #[cold]
    fn error(&self, problem: WriteProblem) -> WriteError {
        WriteError::new(self.frame().group.map_or(&self.message.name, |(group, _)| &group.name), problem)
    }
}

/// The greatest number that a header's slot can say; its own null value is none.
fn largest(slot: Slot) -> u64 {
    (1u64 << (8 * slot.primitive.size())) - 2
}
