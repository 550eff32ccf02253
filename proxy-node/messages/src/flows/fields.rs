//! Fields of messages that flows ask for: where each lies, compiled by channel and format when the flows are
//! made.

use std::sync::Arc;

use csp_formats::{Fixed, Load, REACH_MAX};
use csp_handlers::FormatId;
use csp_quality::{Descriptor, FieldValue, SharedLink};

/// Readers of the fields that predicates of flows name. A field's index among those of its channel is its
/// index in descriptors.
#[derive(Clone, Debug, Default)]
pub struct FlowFields {
    /// Sorted by the policy's number of the channel and the format's id.
    readers: Vec<((u32, u32), FieldReader)>,
}

/// Reads fields of one format.
#[derive(Clone, Debug)]
pub struct FieldReader {
    /// All fields, as writers of the newest version have them.
    all: Fixed,
    /// The number of each field and how it is read, if its writer knew it.
    fields: Vec<(u8, Fixed, Load)>,
}

impl FieldReader {
    /// The fields of a format. `all` reaches over each of them, up to byte [`REACH_MAX`] at most: those of a
    /// longer one are in no message.
    pub fn new(all: Fixed, fields: Vec<(u8, Fixed, Load)>) -> Self {
        FieldReader { all, fields }
    }

    /// Sets the fields of a record of `len` bytes whose first slice is `first`. A field that the record lacks
    /// is not set.
    #[inline]
    fn read(&self, first: &[u8], len: usize, into: &mut Descriptor) {
        match self.all.of(first, len) {
            Some(bytes) => {
                for (number, _, load) in &self.fields {
                    set(into, *number, load, bytes);
                }
            }
            None => self.read_each(first, len, into),
        }
    }

    /// The record is short or of an older version: it may have some of the fields.
    #[cold]
    fn read_each(&self, first: &[u8], len: usize, into: &mut Descriptor) {
        for (number, fixed, load) in &self.fields {
            if let Some(bytes) = fixed.of(first, len) {
                set(into, *number, load, bytes);
            }
        }
    }

    /// Reads a record whose first slice ends before the fields do.
    #[cold]
    #[inline(never)]
    fn read_scattered<'a>(&self, slices: impl Iterator<Item = &'a [u8]>, len: usize, into: &mut Descriptor) {
        let (mut bytes, mut have) = ([0; REACH_MAX], 0);
        let reach = self.all.reach().min(REACH_MAX);
        for slice in slices {
            let part = slice.len().min(reach - have);
            bytes[have..have + part].copy_from_slice(&slice[..part]);
            have += part;
            if have == reach {
                break;
            }
        }
        self.read(&bytes[..have], len, into);
    }
}

#[inline]
fn set(into: &mut Descriptor, number: u8, load: &Load, bytes: &[u8]) {
    if let Some(word) = load.read(bytes).and_then(csp_formats::Cell::order) {
        into.set_field(number, FieldValue::unsigned(word));
    }
}

impl FlowFields {
    /// Adds how fields of a channel's format are read.
    pub fn add(&mut self, channel: u32, format: FormatId, reader: FieldReader) {
        let key = (channel, format.0);
        match self.readers.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.readers[at].1 = reader,
            Err(at) => self.readers.insert(at, (key, reader)),
        }
    }

    /// Sets the fields of a message that flows ask for; `record` yields the `len` bytes of the frame that has
    /// the format. Fields that it lacks, are null or exceed a word are not set.
    #[inline]
    pub fn read<'a, R: Iterator<Item = &'a [u8]>>(
        &self,
        (channel, format): (u32, FormatId),
        record: impl Fn() -> R,
        len: usize,
        into: &mut Descriptor,
    ) {
        if self.readers.is_empty() {
            return;
        }
        let Ok(at) = self.readers.binary_search_by_key(&(channel, format.0), |(key, _)| *key) else { return };
        let reader = &self.readers[at].1;
        let first = record().next().unwrap_or_default();
        match first.len() < reader.all.reach() && first.len() < len {
            true => reader.read_scattered(record(), len, into),
            false => reader.read(first, len, into),
        }
    }
}

/// The readers of the flows that share the link, and of those that wait until items of the former have left:
/// by the generation of the table of flows.
#[derive(Debug, Default)]
pub(crate) struct FieldsInForce(Vec<(u64, Arc<FlowFields>)>);

impl FieldsInForce {
    /// Sets the readers of a generation. Those of `in_force` stay, too.
    pub fn set(&mut self, in_force: Option<u64>, generation: u64, fields: Arc<FlowFields>) {
        self.0.retain(|(known, _)| *known != generation && Some(*known) == in_force);
        self.0.push((generation, fields));
    }

    /// Returns the readers of the flows that share the link.
    #[inline]
    pub fn of(&self, link: &SharedLink) -> Option<&FlowFields> {
        let generation = link.table().generation();
        self.0.iter().find(|(known, _)| *known == generation).map(|(_, fields)| &**fields)
    }
}
