//! Messages that nobody will fetch from this worker any more.

use super::{ChannelId, MessagePlane, UnknownChannel};

impl MessagePlane {
    /// Discards the pushed messages that wait for a puller. They count as lost; returns their number. To be called when the
    /// channel has no peers: nobody is held back then.
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
        ch.counters.lost += lost;
        Ok(lost)
    }
}
