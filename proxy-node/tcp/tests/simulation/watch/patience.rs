//! Behaviour of the engine without responses: it sends less and less often, and little (RFC 6298 §5.5,
//! RFC 5681 §3.1).

use csp_tcp::StackConfig;
use csp_types::{Duration, Instant};

use super::{View, relative};
use crate::packet::Packet;

/// State since the last segment from the other side.
#[derive(Default)]
pub struct Patience {
    /// How often the first unacknowledged byte was sent, when last, and the interval before that.
    tries: u32,
    tried_at: Instant,
    gap: Duration,
    /// Payload bytes sent since the retransmission timer fired.
    pub sent_since_timeout: Option<u64>,
}

impl View {
    /// Observes a segment that is sent.
    pub(super) fn check_patience(&mut self, now: Instant, packet: &Packet, config: &StackConfig) {
        if packet.len() == 0 {
            return;
        }
        let mss = self.mss(&packet.tuple, config);
        if let Some(before) = self.patience.sent_since_timeout {
            let sent = before + packet.payload.len() as u64;
            // RFC 5681 §3.1: the loss window is one segment.
            assert!(sent <= mss, "{sent} bytes at once after a timeout: {self:?}");
            self.patience.sent_since_timeout = Some(sent);
        }
        if relative(packet.header.seq, self.iss, self.una) != self.una as i64 {
            return;
        }
        let patience = &mut self.patience;
        patience.tries += 1;
        let gap = now - patience.tried_at;
        // The first three are the segment, its tail loss probe and the first timeout.
        let backed_off = gap * 10 >= patience.gap * 15 || gap >= config.rto_max * 9 / 10;
        let (tries, before) = (patience.tries, patience.gap);
        (patience.tried_at, patience.gap) = (now, gap);
        assert!(
            tries <= 3 || backed_off,
            "try {tries} after {gap:?}, the one before after {before:?}: {self:?}"
        );
    }
}
