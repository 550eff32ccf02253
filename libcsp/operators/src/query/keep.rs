//! What is kept of a message: all of it, or its header and the fixed part that the schema knows.

use csp_formats::{ByteOrder, Slot};
use csp_handlers::{Call, Stop};
use csp_queries::{ColumnPlace, Plan};

use crate::counters::Counter;
use crate::input::Body;
use crate::row::{INVALID, TOO_LONG};

/// How messages of a source are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// Whether groups or data are needed.
    whole: bool,
    header: usize,
    block: usize,
    slot: Slot,
    order: ByteOrder,
}

impl Keep {
    /// What some columns of a source need.
    pub fn new(plan: &Plan, source: usize, mut columns: impl Iterator<Item = usize>) -> Self {
        let schema = &plan.sources[source].schema;
        let whole = columns.any(|column| {
            let column = &plan.columns[column];
            column.source == source && !matches!(column.place, ColumnPlace::Field(_))
        });
        Keep {
            whole,
            header: schema.header.length as usize,
            block: plan.sources[source].format().block.length as usize,
            slot: schema.header.block_length,
            order: schema.byte_order,
        }
    }

    /// Most bytes that are kept; `None`: as many as the message has.
    #[inline]
    pub fn len_max(&self) -> Option<usize> {
        (!self.whole).then_some(self.header + self.block)
    }

    /// Whether there is room for what is kept of a message.
    #[inline]
    pub fn fits(&self, body: Body, room: &[u8]) -> bool {
        !self.whole || body.len as usize <= room.len()
    }

    /// Copies what is kept of the message of a call. Returns its length.
    #[inline]
    pub fn copy(&self, call: &Call<'_>, body: Body, into: &mut [u8]) -> Result<usize, (Counter, Stop)> {
        let len = body.len as usize;
        let wanted = self.len_max().unwrap_or(len).min(len);
        let Some(room) = into.get_mut(..wanted) else { return Err((Counter::TooLong, TOO_LONG)) };
        call.copy(body.start, room);
        self.cut(into, wanted, len).ok_or((Counter::Invalid, INVALID))
    }

    /// Copies what is kept of a message that was kept by another. Returns its length; `None`: it does not
    /// fit.
    pub fn again(&self, from: &[u8], into: &mut [u8]) -> Option<usize> {
        let wanted = self.len_max().unwrap_or(from.len()).min(from.len());
        into.get_mut(..wanted)?.copy_from_slice(&from[..wanted]);
        self.cut(into, wanted, from.len())
    }

    /// Shortens the fixed part to what the schema knows. `wanted` bytes of a message of `len` are there.
    #[inline]
    fn cut(&self, bytes: &mut [u8], wanted: usize, len: usize) -> Option<usize> {
        if self.whole {
            return Some(wanted);
        }
        let has = self.block_length(bytes.get(..wanted)?)?;
        if self.header.checked_add(has)? > len {
            return None;
        }
        if has > self.block {
            self.set_block_length(bytes, self.block);
        }
        Some(self.header + has.min(self.block))
    }

    #[inline]
    fn block_length(&self, bytes: &[u8]) -> Option<usize> {
        let (at, size) = (self.slot.offset as usize, self.slot.primitive.size() as usize);
        let digits = bytes.get(at..at + size)?;
        // The width that the standard recommends.
        if let (2, Some(chunk)) = (size, digits.first_chunk()) {
            return Some(usize::from(match self.order {
                ByteOrder::Little => u16::from_le_bytes(*chunk),
                ByteOrder::Big => u16::from_be_bytes(*chunk),
            }));
        }
        let digits = digits.iter();
        let number = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        usize::try_from(match self.order {
            ByteOrder::Little => digits.rev().fold(0, number),
            ByteOrder::Big => digits.fold(0, number),
        })
        .ok()
    }

    fn set_block_length(&self, bytes: &mut [u8], length: usize) {
        let (at, size) = (self.slot.offset as usize, self.slot.primitive.size() as usize);
        let word = (length as u64).to_le_bytes();
        let Some(into) = bytes.get_mut(at..at + size) else { return };
        into.copy_from_slice(&word[..size]);
        if self.order == ByteOrder::Big {
            into.reverse();
        }
    }
}
