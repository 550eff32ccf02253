//! Estimate of the payload length of the peer's full-sized segments. They are shorter than the MSS that we
//! announced if the peer's own MSS, or that of the path, is smaller.
//!
//! Every second full-sized segment must be acknowledged (RFC 9293 §3.8.6.3); otherwise the peer's window
//! grows slowly and its tail loss probes are sent in vain. Full-sized segments are recognised because a
//! sender with much data cuts it into equal pieces, of which only the last has PSH set.

use csp_wire::tcp::Flags;

use crate::input::Incoming;

/// Segments of at least the default MSS (RFC 9293 §3.7.1) are candidates whatever their flags, because some
/// stacks set PSH on all segments.
const DEFAULT_MSS: u16 = 536;

/// The latest segment that was shorter than the estimate: its length, and the low 16 bits of the sequence
/// number after it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShortSegment {
    len: u16,
    end: u16,
}

/// Returns the estimate, in bytes of payload, after a segment with payload; `full` is the previous estimate.
/// A segment longer than `most`, our largest MSS, was coalesced on its way without a record of the original
/// size; it counts as `most`.
pub(crate) fn estimate(full: u16, short: &mut ShortSegment, segment: &Incoming<'_>, most: u16) -> u16 {
    let (payload, size) = (segment.payload.len(), usize::from(segment.segment_size));
    let joined = size > 0 && payload > size;
    let len = u16::try_from(if joined { size } else { payload }).unwrap_or(u16::MAX);
    let len = len.min(most).max(crate::MSS_MIN);
    if len >= full {
        return len; // full-sized segments cost one comparison
    }
    let pushed = segment.flags.contains(Flags::PSH);
    let whole = joined || !pushed || len >= DEFAULT_MSS;
    let follows_alike = short.len == len && short.end == segment.seq.0 as u16;
    *short = ShortSegment { len, end: segment.seq.plus(payload as u32).0 as u16 };
    if whole && (follows_alike || payload >= 2 * usize::from(len)) { len } else { full }
}

#[cfg(test)]
mod tests {
    use csp_types::Instant;
    use csp_wire::tcp::Options;

    use super::*;
    use crate::seq::Seq;

    #[test]
    fn equal_pieces_of_a_stream_are_full_sized_and_messages_are_not() {
        let (mut full, mut short, mut seq) = (1448, ShortSegment::default(), Seq(7));
        let mut check = |len: usize, segment_size, pushed, expected, what| {
            let bytes = vec![0; len];
            let segment = Incoming {
                seq,
                ack: Seq(0),
                flags: if pushed { Flags::ACK | Flags::PSH } else { Flags::ACK },
                window: 0,
                unscaled: false,
                options: Options::default(),
                payload: &bytes,
                place: None,
                ingress: Instant::ZERO,
                ecn: 0,
                segment_size,
            };
            seq = seq.plus(len as u32);
            full = estimate(full, &mut short, &segment, 1448);
            assert_eq!(full, expected, "{what}");
        };
        check(524, 0, false, 1448, "a single short segment proves nothing");
        check(524, 0, false, 524, "two of the same length in a row");
        check(216, 0, true, 524, "the end of a stream");
        check(200, 0, true, 524, "a message");
        check(200, 0, true, 524, "another of the same length");
        check(200, 0, false, 200, "the same length without PSH");
        check(1448, 0, true, 1448, "a longer segment counts immediately");
        check(1000, 0, true, 1448, "a long message");
        check(1448, 0, false, 1448, "full");
        check(1000, 0, true, 1448, "a long message, not behind the other");
        check(1000, 0, true, 1000, "and one behind it");
        check(65_000, 0, false, 1448, "coalesced, size of the parts unknown");
        check(2_000, 700, true, 700, "coalesced, size of the parts known");
        check(1_100, 600, true, 700, "a full part and a remainder");
        check(1, 0, false, 700, "a single byte");
    }
}
