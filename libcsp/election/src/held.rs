//! What a network node holds, as all its workers see it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use csp_types::Instant;

/// Until when a node holds a group. The worker that takes part in the election writes it, the others read it
/// before they answer for an address.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<AtomicU64>);

impl Held {
    /// Sets until when the group is held; `None`: it is not.
    pub fn set(&self, until: Option<Instant>) {
        self.0.store(until.map_or(0, Instant::as_nanos), Relaxed);
    }

    /// Returns whether the group is held at `now`.
    pub fn is_at(&self, now: Instant) -> bool {
        self.0.load(Relaxed) > now.as_nanos()
    }
}
