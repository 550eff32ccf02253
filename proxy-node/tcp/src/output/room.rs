//! The send buffer: how far a writer may be ahead of the peer.
//!
//! ```text
//!   snd_una          + cwnd              + 2 cwnd
//!      |--- in flight --|--- waits its turn --|      more would only wait longer: memory that does nothing, and bytes
//!                                                    that are old when they arrive
//! ```
//!
//! It grows with the congestion window and does not follow it down: while a hole is filled, what was SACKed behind it still
//! takes its room, and new data is to leave all the same.

use crate::blocks::BlockPool;
use crate::config::StackConfig;
use crate::tcb::{Context, Tcb};

impl Tcb {
    /// Bytes that the connection keeps for sending. A capacity that its owner set is promised, and holds whatever happens.
    pub fn send_capacity(&self, config: &StackConfig, pool: &BlockPool) -> u32 {
        let most = config.send_buffer_max;
        if let Some(own) = self.send.capacity() {
            return own.min(most);
        }
        pool.pressure().limit(self.send.grown, config.send_buffer_min).min(most)
    }

    /// Something was acknowledged, and the congestion window may have moved: a window in flight, and as much that is
    /// there when acknowledgements ask for it, even while the window doubles in each round trip.
    pub fn tune_send_buffer(&mut self, cx: &Context<'_>) {
        let wanted = self.congestion.cwnd().saturating_mul(2);
        cx.send_blocks.pressure().tune(&mut self.send.grown, wanted);
        self.notify_writer(cx.config, cx.send_blocks);
    }

    /// Tells a writer that had to wait once there is room worth waking up for.
    pub fn notify_writer(&mut self, config: &StackConfig, pool: &BlockPool) {
        if !self.write_blocked || self.fin_queued {
            return;
        }
        let capacity = self.send_capacity(config, pool);
        if capacity.saturating_sub(self.send.len()) >= capacity / 4 {
            self.write_blocked = false;
            self.pending.writable = true;
        }
    }
}
