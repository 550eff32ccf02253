//! What the link needs of the owner of the messages in its queues.

use csp_types::Instant;

use super::SharedLink;
use crate::Item;

/// Keeps items in the queues of flows: messages. Byte streams do not need it. It chooses the handles of its
/// items, within [`HANDLE_MASK`](super::HANDLE_MASK).
pub trait LinkClient {
    /// Lets contexts process items that they [take](SharedLink::take). Called before items are released, if
    /// there are contexts or items that waited for one.
    fn process(&mut self, now: Instant, link: &mut SharedLink);

    /// Returns whether an item can be transmitted now. If not, its flow waits.
    fn takes(&self, item: &Item) -> bool;

    /// Transmits an item that the link has taken.
    fn transmit(&mut self, now: Instant, item: Item);

    /// Processes and transmits an item that no context has processed, because flows no longer share the link.
    fn transmit_unprocessed(&mut self, now: Instant, item: Item);

    /// Releases an item that gave way to another of its flow.
    fn evicted(&mut self, item: Item);
}

/// A worker whose byte streams share the link, and nothing else.
impl LinkClient for () {
    fn process(&mut self, _: Instant, _: &mut SharedLink) {}

    fn takes(&self, _: &Item) -> bool {
        true
    }

    fn transmit(&mut self, _: Instant, _: Item) {}

    fn transmit_unprocessed(&mut self, _: Instant, _: Item) {}

    fn evicted(&mut self, _: Item) {}
}
