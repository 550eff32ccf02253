//! Reading without consuming.

use super::AppSide;
use super::slots::FlowId;

impl AppSide {
    /// Copies unread bytes, after skipping the first `skip`, without consuming them; returns how many. Errors
    /// and the end of the stream are reported by [`read`](Self::read) only.
    pub fn peek(&self, id: FlowId, skip: usize, into: &mut [u8]) -> usize {
        let Some(flow) = self.flows.get(id.0) else { return 0 };
        let waiting = flow.queue.len().saturating_sub(skip).min(into.len());
        for (to, from) in into.iter_mut().zip(flow.queue.range(skip.min(flow.queue.len())..)) {
            *to = *from;
        }
        waiting
    }
}
