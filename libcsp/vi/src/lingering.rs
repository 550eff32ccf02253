//! Ends that their owner has released and whose peer has not answered yet. They are kept for a while, so that
//! the last message arrives.

use std::collections::VecDeque;

/// Milliseconds that a peer has to acknowledge the end of a VI. By then messages that were sent before are in
/// its memory or cannot be delivered.
const LINGER_MS: u64 = 2000;

#[derive(Debug)]
struct Waiting {
    vi: u64,
    /// Start of the wait, in milliseconds of the monotonic clock.
    since_ms: u64,
}

/// Lingering ends, the oldest first. Times are milliseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Lingering(VecDeque<Waiting>);

impl Lingering {
    /// Adds an end.
    pub fn push(&mut self, vi: u64, now_ms: u64) {
        self.0.push_back(Waiting { vi, since_ms: now_ms });
    }

    /// Removes an end, if it is there.
    pub fn remove(&mut self, vi: u64) {
        self.0.retain(|waiting| waiting.vi != vi);
    }

    /// The end that has lingered longest.
    pub fn oldest(&self) -> Option<u64> {
        self.0.front().map(|waiting| waiting.vi)
    }

    /// An end that has lingered for as long as it may: it is to be removed.
    pub fn expired(&self, now_ms: u64) -> Option<u64> {
        let oldest = self.0.front()?;
        (now_ms.saturating_sub(oldest.since_ms) >= LINGER_MS).then_some(oldest.vi)
    }

    /// Whether none lingers.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Lingering;

    #[test]
    fn ends_expire_in_the_order_in_which_they_came() {
        let mut lingering = Lingering::default();
        lingering.push(7, 100);
        lingering.push(8, 1000);
        assert_eq!((lingering.oldest(), lingering.expired(2099)), (Some(7), None));
        assert_eq!(lingering.expired(2100), Some(7));
        lingering.remove(7);
        assert_eq!((lingering.oldest(), lingering.expired(2100)), (Some(8), None));
        lingering.remove(8);
        assert_eq!((lingering.expired(u64::MAX), lingering.is_empty()), (None, true));
    }
}
