//! The send buffer: how many written bytes a connection stores.
//!
//! ```text
//!   snd_una          + cwnd              + 2 cwnd
//!      |--- in flight --|----- not yet sent --|      a larger buffer would only add memory and delay
//! ```
//!
//! The buffer grows with the congestion window and does not shrink with it: while a hole is being repaired,
//! SACKed data after it still occupies the buffer, and new data must be sent all the same.

use crate::blocks::BlockPool;
use crate::config::StackConfig;
use crate::tcb::{Context, Tcb};

impl Tcb {
    /// The connection's send buffer in bytes. A capacity set by the caller is guaranteed, whatever the memory
    /// pressure.
    pub fn send_capacity(&self, config: &StackConfig, pool: &BlockPool) -> u32 {
        let most = config.send_buffer_max;
        if let Some(own) = self.send.capacity() {
            return own.min(most);
        }
        pool.pressure().limit(self.send.grown, config.send_buffer_min).min(most)
    }

    /// Adapts the send buffer after an acknowledgement, which may have changed the congestion window. The
    /// target is twice the window: one window in flight, and one ready to be sent when acknowledgements
    /// arrive, even while the window doubles each round trip.
    pub fn tune_send_buffer(&mut self, cx: &Context<'_>) {
        let wanted = self.congestion.cwnd().saturating_mul(2);
        cx.send_blocks.pressure().tune(&mut self.send.grown, wanted);
        self.notify_writer(cx.config, cx.send_blocks);
    }

    /// Reports `Writable` to a writer that had to wait, once a quarter of the capacity is free.
    pub fn notify_writer(&mut self, config: &StackConfig, pool: &BlockPool) {
        if !self.write_blocked || self.fin.is_queued() {
            return;
        }
        let capacity = self.send_capacity(config, pool);
        if capacity.saturating_sub(self.send.len()) >= capacity / 4 {
            self.write_blocked = false;
            self.pending.writable = true;
        }
    }
}
