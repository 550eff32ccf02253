//! Messages that no receiver of this worker will take any more.

use super::{ChannelId, MessagePlane};

impl MessagePlane {
    /// Discards the pushed messages that wait for a puller, and all that are in paths. They count as lost;
    /// returns their number. Called when the channel has no peers, so that no publisher is held back.
    pub fn discard_backlog(&mut self, id: ChannelId) -> u64 {
        let Some(ch) = self.channels.get_mut(id) else {
            self.counters.unknown += 1;
            return 0;
        };
        let mut lost = 0;
        while let Some(item) = ch.backlog.pop_back() {
            self.pool.release(item.handle);
            lost += 1;
        }
        lost += self.contexts.discard(ch, &mut self.pool, &mut self.schedule);
        ch.counters.lost += lost;
        lost
    }
}
