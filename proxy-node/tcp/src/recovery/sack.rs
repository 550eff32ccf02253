//! Processing of SACK blocks: data that the peer has received (RFC 2018), and data that it has received twice
//! (RFC 2883).

use csp_wire::tcp::SackBlock;

use crate::recovery::Recovery;
use crate::recovery::ack_summary::AckSummary;
use crate::recovery::pool::RecordPool;
use crate::seq::{Seq, SeqRange};

/// Most steps over records that one acknowledgement may cost beyond the records it covers. Without the bound,
/// a hostile peer could make us walk the whole flight for each of its blocks. Blocks beyond the bound are
/// ignored; the next acknowledgement continues from there.
const STEPS: u32 = 1024;

/// Longest possible block (RFC 7323 §2.3).
const BLOCK_LEN_MAX: u32 = 1 << 30;

impl Recovery {
    /// Processes the SACK blocks of an acknowledgement. Blocks outside `sent`, which starts at SND.UNA, are
    /// ignored.
    pub fn on_sack(
        &mut self,
        pool: &mut RecordPool,
        summary: &mut AckSummary,
        sent: SeqRange,
        blocks: &[SackBlock],
        mss: u32,
    ) {
        summary.dsack = reported_duplicate(blocks, summary.ack);
        // Bounds the records of the connection, because splitting off single bytes would fill the pool: twice
        // as many records as segments are enough.
        let most = 64 + sent.len() / mss.max(1) * 2;
        let mut budget = STEPS;
        for block in blocks {
            let range = SeqRange::new(Seq(block.start), Seq(block.end));
            // Measured from SND.UNA, because a hostile block can be longer than sequence number comparison
            // permits.
            let from_una = |seq: Seq| seq.0.wrapping_sub(sent.start.0);
            let (first, last) = (from_una(range.start), from_una(range.end));
            if first >= last || last > sent.len() {
                continue;
            }
            while let Some(record) = self.flight.sack(pool, range, most, &mut budget) {
                summary.sacked += record.len();
                self.on_delivered(summary, &record, false);
            }
            summary.skipped |= budget == 0;
        }
    }

    /// Processes a duplicate report (RFC 2883). The duplicate is that of a tail loss probe, of a spurious
    /// retransmission, or, if nothing was retransmitted, one that the network made.
    pub(super) fn on_duplicate_report(&mut self, range: SeqRange, una: Seq, nxt: Seq) {
        // RFC 8985 §7.4.2: the probe and the original both arrived.
        if self.tail_probe.is_some_and(|probe| probe.is_retrans && probe.end == range.end) {
            self.tail_probe = None;
            return;
        }
        let len = range.len();
        if self.resent == 0 {
            return;
        }
        self.resent = self.resent.saturating_sub(len);
        self.rack.on_duplicate_report(una, nxt);
        if self.undo.on_duplicate_report(range) {
            // The original was late, not lost. The recovery may have ended by now, but the next reordered
            // segment must be tolerated.
            self.rack.set_reordering_seen();
        }
    }
}

/// RFC 2883 §4: the first block reports a duplicate if the acknowledgement number, or the second block,
/// covers it.
fn reported_duplicate(blocks: &[SackBlock], ack: Seq) -> Option<SeqRange> {
    let first = blocks.first()?;
    let (start, end) = (Seq(first.start), Seq(first.end));
    let len = end.0.wrapping_sub(start.0);
    if len == 0 || len > BLOCK_LEN_MAX {
        return None;
    }
    let within = blocks.get(1).is_some_and(|second| {
        let offset = start.0.wrapping_sub(second.start);
        let whole = second.end.wrapping_sub(second.start);
        whole <= BLOCK_LEN_MAX && offset <= whole && len <= whole - offset
    });
    (!end.after(ack) || within).then_some(SeqRange { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_distinguished_from_selective_acknowledgements() {
        let block = |start, end| SackBlock { start, end };
        let range = |start, end| Some(SeqRange::new(Seq(start), Seq(end)));
        let ack = Seq(1000);
        assert_eq!(reported_duplicate(&[block(500, 600)], ack), range(500, 600));
        assert_eq!(reported_duplicate(&[block(2000, 2100)], ack), None);
        let nested = [block(2000, 2100), block(1900, 2100)];
        assert_eq!(reported_duplicate(&nested, ack), range(2000, 2100));
        assert_eq!(reported_duplicate(&[block(2000, 2100), block(2050, 2100)], ack), None);
        assert_eq!(reported_duplicate(&[block(600, 500)], ack), None, "backwards");
        assert_eq!(reported_duplicate(&[], ack), None);
    }
}
