//! Messages that no receiver of this worker will take any more.

use super::{ChannelId, MessagePlane, UnknownChannel};

impl MessagePlane {
    /// Discards the pushed messages that wait for a puller, and all that are in paths. They count as lost;
    /// returns their number. Called when the channel has no peers, so that no publisher is held back.
    ///
    /// # Errors
    /// When there is no such channel.
    pub fn discard_backlog(&mut self, id: ChannelId) -> Result<u64, UnknownChannel> {
        self.channel(id).ok_or(UnknownChannel)?;
        let ch = self.channels[usize::from(id.index)].channel.as_mut().ok_or(UnknownChannel)?;
        let mut lost = 0;
        while let Some(item) = ch.backlog.pop_back() {
            self.pool.release(item.handle);
            lost += 1;
        }
        lost += self.contexts.discard(ch, &mut self.pool, (&mut self.schedule, self.config.channels_max));
        ch.counters.lost += lost;
        Ok(lost)
    }
}
