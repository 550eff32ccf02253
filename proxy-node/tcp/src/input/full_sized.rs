//! How long the peer's full-sized segments are: shorter than ours may be where its own MSS, or the path's, is smaller.
//!
//! Its sender is to hear of every second one (RFC 9293 §3.8.6.3), or its window grows slowly and its tail loss probes are
//! in vain. A sender with much to send cuts it into equal pieces, of which only the last has PSH: that is how they are
//! known.

use csp_wire::tcp::Flags;

use crate::input::Incoming;

/// Pieces of at least the default MSS (RFC 9293 §3.7.1) count whatever their flags: some stacks set PSH on all of them.
const DEFAULT_MSS: u16 = 536;

/// The latest segment that was shorter than the estimate: how long, and where it ended (the low bits of it).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShortSegment {
    len: u16,
    end: u16,
}

/// The estimate, in bytes of payload, after a segment with payload arrived; `full` is what it was before. What is longer
/// than `most`, the largest MSS of ours, was joined by somebody who did not say so.
pub(crate) fn estimate(full: u16, short: &mut ShortSegment, segment: &Incoming<'_>, most: u16) -> u16 {
    let (payload, size) = (segment.payload.len(), usize::from(segment.segment_size));
    let joined = size > 0 && payload > size;
    let len = u16::try_from(if joined { size } else { payload }).unwrap_or(u16::MAX);
    let len = len.min(most).max(crate::MSS_MIN);
    if len >= full {
        return len; // what full-sized segments cost is a comparison
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
        check(524, 0, false, 1448, "one may be anything");
        check(524, 0, false, 524, "two alike");
        check(216, 0, true, 524, "the end of a stream");
        check(200, 0, true, 524, "a message");
        check(200, 0, true, 524, "and the like of it");
        check(200, 0, false, 200, "a piece as long is not its end");
        check(1448, 0, true, 1448, "longer ones count at once");
        check(1000, 0, true, 1448, "a long message");
        check(1448, 0, false, 1448, "full");
        check(1000, 0, true, 1448, "a long message, not behind the other");
        check(1000, 0, true, 1000, "and one behind it");
        check(65_000, 0, false, 1448, "joined, and nobody said so");
        check(2_000, 700, true, 700, "joined, and told");
        check(1_100, 600, true, 700, "a piece and a rest");
        check(1, 0, false, 700, "crumbs");
    }
}
