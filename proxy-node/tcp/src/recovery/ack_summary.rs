//! What one acknowledgement tells, collected while it is read.

use core::time::Duration;

use csp_types::Instant;

use crate::recovery::pool::Record;
use crate::seq::Seq;

/// An acknowledgement's news.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSummary {
    /// When the network node received it.
    pub at: Instant,
    /// The acknowledgement number.
    pub ack: Seq,
    /// snd_una, and what was in the network, before it.
    pub una: Seq,
    pub in_flight: u32,
    /// The peer's echo of our timestamp, and what our clock adds to milliseconds.
    pub echo: Option<u32>,
    pub timestamp_offset: u32,
    /// The least round trip seen before.
    pub rtt_min: Option<Duration>,
    /// Sequence numbers acknowledged, newly SACKed, and newly known to be delivered in either way.
    pub acked: u32,
    pub sacked: u32,
    pub delivered: u32,
    /// Something was delivered that was sent only once, and before the loss was found.
    pub original_delivered: bool,
    /// A duplicate without SACK (RFC 5681 §2).
    pub duplicate: bool,
    /// Duplicates without SACK count.
    pub duplicate_bytes_apply: bool,
    /// SACK blocks were left out, because reading them took too many steps.
    pub skipped: bool,
    /// What the peer had twice (RFC 2883).
    pub dsack: Option<(Seq, Seq)>,
    /// The highest sequence number told of.
    pub highest: Seq,
    /// Of what was delivered, the record sent last.
    pub newest: Option<Record>,
    /// When the first and the last of what was acknowledged, or else SACKed, had been sent, as far as it was sent once.
    acked_sent: Option<(Instant, Instant)>,
    sacked_sent: Option<(Instant, Instant)>,
    /// Something acknowledged had been sent more than once.
    ambiguous: bool,
}

impl AckSummary {
    pub fn new(at: Instant, ack: Seq, una: Seq, in_flight: u32) -> Self {
        AckSummary {
            at,
            ack,
            una,
            in_flight,
            echo: None,
            timestamp_offset: 0,
            rtt_min: None,
            acked: 0,
            sacked: 0,
            delivered: 0,
            original_delivered: false,
            duplicate: false,
            duplicate_bytes_apply: false,
            skipped: false,
            dsack: None,
            highest: una,
            newest: None,
            acked_sent: None,
            sacked_sent: None,
            ambiguous: false,
        }
    }

    /// Notes when `record` was sent. RFC 6298 §3 (Karn): not where it was sent more than once.
    pub fn note_send_time(&mut self, record: &Record, cumulative: bool) {
        if record.retransmitted || record.folded {
            self.ambiguous |= cumulative;
            return;
        }
        let sent = if cumulative { &mut self.acked_sent } else { &mut self.sacked_sent };
        let (first, last) = sent.unwrap_or((record.sent, record.sent));
        *sent = Some((first.min(record.sent), last.max(record.sent)));
    }

    /// Whether the peer's echo shows that it answers something sent before `sent`.
    pub fn echoes_before(&self, sent: Instant) -> bool {
        let stamp = sent.as_millis_u32().wrapping_add(self.timestamp_offset);
        self.echo.is_some_and(|echo| (echo.wrapping_sub(stamp) as i32) < 0)
    }

    /// The round trips it measured: the longest, with the peer's delay in it, and the shortest.
    pub fn round_trips(&self) -> Option<(Duration, Duration)> {
        let acked = self.acked_sent.filter(|_| !self.ambiguous);
        let (first, last) = acked.or(self.sacked_sent)?;
        Some((self.at.saturating_since(first), self.at.saturating_since(last)))
    }

    /// The round trip by timestamps, for what was sent more than once (RFC 7323 §4.1): it is in whole milliseconds.
    pub fn round_trip_by_timestamp(&self) -> Option<Duration> {
        let echo = self.echo.filter(|&echo| echo != 0 && self.acked > 0)?;
        let now = self.at.as_millis_u32().wrapping_add(self.timestamp_offset);
        let elapsed = now.wrapping_sub(echo);
        (elapsed < 120_000).then(|| Duration::from_millis(u64::from(elapsed.max(1))))
    }
}
