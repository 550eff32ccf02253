//! Messages in the queues of information flows: how the plane finds them, and the fields of them that flows
//! use.
//!
//! The output link itself is the proxy core's ([`SharedLink`]). The plane is passed it wherever it may put a
//! message into a queue, and is its client.

mod fields;

pub(crate) use fields::FieldsInForce;
pub use fields::{FieldReader, FlowFields};

use csp_quality::{FlowId, Item as Queued, SharedLink};
use csp_types::Instant;

use crate::pool::MessageHandle;
use crate::queue::Item;

/// A publisher is held back for a message of this flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The generation of the table of flows. With another one the publisher asks again: its flow may have
    /// another id.
    generation: u64,
    flow: FlowId,
    bytes: u32,
}

impl Wanted {
    pub fn new(link: &SharedLink, flow: FlowId, bytes: u32) -> Self {
        Wanted { generation: link.table().generation(), flow, bytes }
    }

    /// Returns whether the flow has room for the message now.
    pub fn has_room(&self, link: &SharedLink) -> bool {
        self.generation != link.table().generation() || link.has_room(self.flow, self.bytes)
    }
}

/// Marks messages that a context must process first.
const UNPROCESSED: u64 = 1 << 62;
const _: () = assert!(UNPROCESSED & csp_quality::HANDLE_MASK != 0);

/// Packs the identification of a released message: its slot in the pool, and the generation of its channel's
/// slot.
pub(crate) fn pack(index: u32, generation: u16) -> u64 {
    u64::from(index) | u64::from(generation) << 32
}

/// Returns place and generation.
pub(crate) fn unpack(handle: u64) -> (u32, u16) {
    (handle as u32, (handle >> 32) as u16)
}

/// A message of the pool with the bytes of all its copies.
pub(crate) fn queued(index: u32, generation: u16, bytes: u32, arrived: Instant) -> Queued {
    Queued { handle: pack(index, generation), bytes, messages: 1, arrived }
}

/// The same for a message that a context is to process first.
pub(crate) fn unprocessed(queued: Queued) -> Queued {
    Queued { handle: queued.handle | UNPROCESSED, ..queued }
}

/// Returns whether a context is to process a message first.
pub(crate) fn is_unprocessed(item: &Queued) -> bool {
    item.handle & UNPROCESSED != 0
}

/// What a queue of receivers refers to.
pub(crate) fn item(handle: MessageHandle, len: u32) -> Item {
    Item { handle, len, cached: false }
}
