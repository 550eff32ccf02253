//! Repeating groups.

use super::{Record, ViewError, ViewProblem, number};
use crate::bytes::Bytes;
use crate::primitive::ByteOrder;
use crate::schema::{Block, Group};

/// Entries without bytes that a group may have. A few bytes could claim billions of them.
pub const EMPTY_ENTRIES_MAX: u64 = 4096;

/// A group of a record.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'s, 'b> {
    group: &'s Group,
    count: u32,
    block_length: u64,
    /// From the first entry to the end of the message.
    entries: Bytes<'b>,
    version: u16,
    order: ByteOrder,
}

/// The entries of a group, in order. It ends at the first error.
#[derive(Clone, Debug)]
pub struct Entries<'s, 'b> {
    view: GroupView<'s, 'b>,
    left: u32,
    at: Bytes<'b>,
}

impl<'s, 'b> GroupView<'s, 'b> {
    /// The group at the begin of `at`; without entries if the writer did not know it.
    pub(super) fn new(
        group: &'s Group,
        at: Bytes<'b>,
        version: u16,
        order: ByteOrder,
    ) -> Result<Self, ViewError> {
        if group.since_version > version {
            return Ok(Self { group, count: 0, block_length: 0, entries: at, version, order });
        }
        let dimension = &group.dimension;
        let truncated = || ViewError::truncated(Some(&group.name), dimension.length, at);
        let entries = at.skip(dimension.length as usize).ok_or_else(truncated)?;
        let block_length = number(at, dimension.block_length, order).ok_or_else(truncated)?;
        let count = number(at, dimension.num_in_group, order).ok_or_else(truncated)?;
        // Both are of at most 32 bits: the product does not overflow.
        if count * block_length > entries.len() as u64 {
            return Err(ViewError::truncated(Some(&group.name), count * block_length, entries));
        }
        if block_length == 0 && count > EMPTY_ENTRIES_MAX && !has_tail(&group.block, version) {
            let problem = ViewProblem::EmptyEntries { count, max: EMPTY_ENTRIES_MAX };
            return Err(ViewError::new(&group.name, problem));
        }
        Ok(Self { group, count: count as u32, block_length, entries, version, order })
    }

    /// What the group is made of.
    #[must_use]
    pub fn group(&self) -> &'s Group {
        self.group
    }

    /// The number of entries that the message claims. Those that have a variable part are not checked yet.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The entries.
    #[must_use]
    pub fn iter(&self) -> Entries<'s, 'b> {
        Entries { view: *self, left: self.count, at: self.entries }
    }

    /// The bytes behind the group.
    pub(super) fn end(&self) -> Result<Bytes<'b>, ViewError> {
        if self.group.block.is_flat() {
            let length = u64::from(self.count) * self.block_length;
            let end = usize::try_from(length).ok().and_then(|length| self.entries.skip(length));
            return end.ok_or_else(|| ViewError::truncated(Some(&self.group.name), length, self.entries));
        }
        let mut at = self.entries;
        for _ in 0..self.count {
            at = self.record(at)?.end()?;
        }
        Ok(at)
    }

    /// Where the first entry begins.
    pub(crate) fn begin(&self) -> Bytes<'b> {
        self.entries
    }

    /// The entry that begins at `at`.
    pub(crate) fn record(&self, at: Bytes<'b>) -> Result<Record<'s, 'b>, ViewError> {
        Record::new(&self.group.block, at, self.block_length, self.version, self.order)
            .ok_or_else(|| ViewError::truncated(Some(&self.group.name), self.block_length, at))
    }
}

/// Whether entries of that version have a variable part, which takes bytes.
fn has_tail(block: &Block, version: u16) -> bool {
    block.groups.iter().any(|group| group.since_version <= version)
        || block.data.iter().any(|data| data.since_version <= version)
}

impl<'s, 'b> Iterator for Entries<'s, 'b> {
    type Item = Result<Record<'s, 'b>, ViewError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let next = self.view.record(self.at).and_then(|record| Ok((record, record.end()?)));
        Some(match next {
            Ok((record, end)) => {
                self.at = end;
                Ok(record)
            }
            Err(error) => {
                self.left = 0;
                Err(error)
            }
        })
    }
}

impl<'s, 'b> IntoIterator for &GroupView<'s, 'b> {
    type Item = Result<Record<'s, 'b>, ViewError>;
    type IntoIter = Entries<'s, 'b>;

    fn into_iter(self) -> Entries<'s, 'b> {
        self.iter()
    }
}
