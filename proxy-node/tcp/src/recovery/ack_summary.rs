//! The effects of one acknowledgement, collected while it is processed.

use core::time::Duration;

use csp_types::Instant;

use crate::recovery::pool::Record;
use crate::seq::{Seq, SeqRange};

/// What one acknowledgement reports, with the state of the connection before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSummary {
    /// When the network node received it.
    pub at: Instant,
    /// The acknowledgement number.
    pub ack: Seq,
    /// SND.UNA, and the estimate of bytes in the network, before the acknowledgement.
    pub una: Seq,
    pub in_flight: u32,
    /// TSecr, and the offset of our timestamp clock from milliseconds.
    pub echo: Option<u32>,
    pub timestamp_offset: u32,
    /// The shortest round trip measured before.
    pub rtt_min: Option<Duration>,
    /// The retransmission timer fired since SND.UNA last advanced.
    pub timed_out: bool,
    /// Sequence numbers newly acknowledged, newly SACKed, and newly delivered in either way.
    pub acked: u32,
    pub sacked: u32,
    pub delivered: u32,
    /// Data was delivered that was sent only once, and before the loss was detected.
    pub original_delivered: bool,
    /// A duplicate acknowledgement on a connection without SACK (RFC 5681 §2).
    pub duplicate: bool,
    /// The connection does not use SACK, so duplicate acknowledgements count as deliveries.
    pub duplicate_bytes_apply: bool,
    /// Not all SACK blocks were processed, because the step budget was used up.
    pub skipped: bool,
    /// The range that the peer reports as received twice (D-SACK, RFC 2883).
    pub dsack: Option<SeqRange>,
    /// The highest sequence number reported as delivered.
    pub highest: Seq,
    /// Among the delivered records, the one that was sent last.
    pub newest: Option<Record>,
    /// Earliest and latest send time of the acknowledged (or, below, SACKed) records, of those that were sent
    /// once.
    acked_sent: Option<(Instant, Instant)>,
    sacked_sent: Option<(Instant, Instant)>,
    /// An acknowledged record was sent more than once.
    ambiguous: bool,
    /// Of the acknowledged records that were retransmitted: the earliest time of a last transmission.
    resent: Option<Instant>,
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
            timed_out: false,
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
            resent: None,
        }
    }

    /// Collects the send time of `record`. RFC 6298 §3 (Karn): records that were sent more than once are
    /// excluded.
    pub fn note_send_time(&mut self, record: &Record, cumulative: bool) {
        if record.retransmitted || record.folded {
            self.ambiguous |= cumulative;
            if record.retransmitted && cumulative {
                self.resent = Some(self.resent.map_or(record.sent, |sent| sent.min(record.sent)));
            }
            return;
        }
        let sent = if cumulative { &mut self.acked_sent } else { &mut self.sacked_sent };
        let (first, last) = sent.unwrap_or((record.sent, record.sent));
        *sent = Some((first.min(record.sent), last.max(record.sent)));
    }

    /// Whether the echo shows that the acknowledgement responds to a segment sent before `sent`.
    pub fn echoes_before(&self, sent: Instant) -> bool {
        let stamp = sent.as_millis_u32().wrapping_add(self.timestamp_offset);
        self.echo.is_some_and(|echo| (echo.wrapping_sub(stamp) as i32) < 0)
    }

    /// The round trips measured: the longest, which includes the peer's delay, and the shortest.
    pub fn round_trips(&self) -> Option<(Duration, Duration)> {
        let acked = self.acked_sent.filter(|_| !self.ambiguous);
        let (first, last) = acked.or(self.sacked_sent)?;
        Some((self.at.saturating_since(first), self.at.saturating_since(last)))
    }

    /// The round trip by timestamps, for retransmitted data (RFC 7323 §4.1), in whole milliseconds.
    ///
    /// After a timeout, an echo older than the retransmission does not show which of the two is acknowledged.
    /// If the original arrived and its acknowledgement was lost, the peer discards the retransmission as a
    /// duplicate, and its reply echoes the original (RFC 7323 §5.3 R2). The sample would contain the
    /// timeouts, so RFC 6298 §3 (Karn) excludes it.
    pub fn round_trip_by_timestamp(&self) -> Option<Duration> {
        if self.timed_out && self.resent.is_some_and(|sent| self.echoes_before(sent)) {
            return None;
        }
        let echo = self.echo.filter(|&echo| echo != 0 && self.acked > 0)?;
        let now = self.at.as_millis_u32().wrapping_add(self.timestamp_offset);
        let elapsed = now.wrapping_sub(echo);
        (elapsed < 120_000).then(|| Duration::from_millis(u64::from(elapsed.max(1))))
    }
}
