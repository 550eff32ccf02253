//! Detects that a flow's peer has moved to another Ethernet address or LAN port.
//!
//! Any host on a LAN can send a frame with the addresses of another host's connection. Replies follow such a
//! frame only if the proxy accepts its segment: it acknowledges what was sent recently, and its sequence
//! number is near the last one acknowledged (RFC 9293 §3.10.7.4). Both numbers are taken from the segments
//! sent to the peer.

use csp_wire::tcp::Segment;

/// The largest window of either side, in bytes.
const WINDOW_MAX: u32 = 1 << 23;

/// The sequence numbers sent to a flow's peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Whether anything was sent.
    any: bool,
    /// The sequence number after the highest one sent.
    next: u32,
    /// The highest acknowledgement sent.
    acknowledged: u32,
}

impl Sent {
    /// Records a segment with `payload_len` bytes that is sent to the peer.
    pub(super) fn note(&mut self, segment: &Segment<'_>, payload_len: usize) {
        let flags = segment.flags();
        let len = payload_len as u32 + u32::from(flags.syn()) + u32::from(flags.fin());
        let next = segment.seq().wrapping_add(len);
        if !self.any || is_later(next, self.next) {
            self.next = next;
        }
        if !self.any || (flags.ack() && is_later(segment.ack(), self.acknowledged)) {
            self.acknowledged = segment.ack();
        }
        self.any = true;
    }

    /// Returns whether the numbers of a segment are those that the peer could send; true while nothing was
    /// sent.
    pub(super) fn plausible(&self, segment: &Segment<'_>) -> bool {
        let flags = segment.flags();
        let recent = self.next.wrapping_sub(segment.ack()) <= WINDOW_MAX;
        let near = segment.seq().wrapping_sub(self.acknowledged).wrapping_add(WINDOW_MAX) <= 2 * WINDOW_MAX;
        !self.any || (flags.ack() && !flags.syn() && recent && near)
    }
}

/// Returns whether sequence number `a` is later than `b` (RFC 9293 §3.4).
fn is_later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests {
    use csp_wire::tcp::{Flags, Repr};

    use super::*;

    fn with_segment<T>(
        (seq, ack): (u32, u32),
        flags: Flags,
        data: usize,
        then: impl Fn(&Segment<'_>) -> T,
    ) -> T {
        let repr =
            Repr { source_port: 80, destination_port: 40_000, seq, ack, flags, window: 1, ..Repr::default() };
        let mut bytes = vec![0; repr.header_len()];
        repr.emit(&mut bytes).unwrap();
        bytes.resize(bytes.len() + data, 0);
        then(&Segment::parse(&bytes).unwrap())
    }

    #[test]
    fn a_segment_is_the_peer_s_if_it_acknowledges_what_was_sent_and_lies_where_it_is_expected() {
        let mut sent = Sent::default();
        assert!(with_segment((0, 0), Flags::SYN, 0, |s| sent.plausible(s)), "nothing was sent yet");
        let near_the_end = u32::MAX - 100;
        for (numbers, flags, data) in
            [((near_the_end, 7000), Flags::SYN | Flags::ACK, 0), ((near_the_end + 1, 7500), Flags::ACK, 1000)]
        {
            sent = with_segment(numbers, flags, data, |segment| {
                let mut noted = sent;
                noted.note(segment, data);
                noted
            });
        }
        let next = near_the_end.wrapping_add(1001);
        for (numbers, flags, expected) in [
            ((7500, next), Flags::ACK, true),
            ((7500, near_the_end + 1), Flags::ACK, true),
            ((7000, next), Flags::ACK, true),
            ((7500, next), Flags::NONE, false),
            ((7500, next), Flags::SYN | Flags::ACK, false),
            ((7500, next.wrapping_add(1)), Flags::ACK, false),
            ((7500, next.wrapping_sub(WINDOW_MAX + 1)), Flags::ACK, false),
            ((7500 + WINDOW_MAX + 1, next), Flags::ACK, false),
            ((7500u32.wrapping_sub(WINDOW_MAX + 1), next), Flags::ACK, false),
        ] {
            assert_eq!(
                with_segment(numbers, flags, 0, |s| sent.plausible(s)),
                expected,
                "{numbers:?} {flags:?}"
            );
        }
    }
}
