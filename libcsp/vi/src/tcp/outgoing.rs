//! The sending half of a stream: frames wait until the kernel has taken them, and messages stay in their ring
//! until the peer has them in its memory.

use std::collections::VecDeque;

use super::frame::{HEADER_LEN, Header, Kind, SETUP_LEN_MAX};
use crate::regions::Regions;
use crate::{Memory, PIECES_MAX, Piece, ViConfig};

/// Room for the provider's own frames that are not sent: at most a set-up, the counts, a rejection or an end.
const OWN_LEN: usize = 4 * (HEADER_LEN + SETUP_LEN_MAX);

/// Largest number of parts given to the kernel by one call.
pub(super) const PARTS_MAX: usize = 64;

/// A part of the stream: its address and length in bytes.
pub(super) type Part = (*const u8, usize);

/// A range of registered memory that a message uses, which stays mapped meanwhile.
struct Lent {
    memory: Memory,
    offset: usize,
    len: usize,
}

/// A frame that is not sent, or a message that is not confirmed.
struct Queued {
    /// Its place in the ring, or among the provider's own: the header, and what of the body was copied.
    start: usize,
    len: usize,
    /// The rest of the body, sent in place.
    lent: [Option<Lent>; PIECES_MAX],
    /// A message of the caller, not a frame of the provider.
    is_message: bool,
    immediate: u32,
    /// The caller's id of a signalled message.
    signal: Option<u64>,
}

impl Queued {
    fn lent_len(&self) -> usize {
        self.lent.iter().flatten().map(|lent| lent.len).sum()
    }

    fn total(&self) -> usize {
        self.len + self.lent_len()
    }
}

/// The frames of one end.
pub(super) struct Outgoing {
    ring: Box<[u8]>,
    /// The provider's own frames, and how much of it is in use. Nothing keeps those that are sent.
    own: [u8; OWN_LEN],
    own_len: usize,
    frames: VecDeque<Queued>,
    /// Frames at the end of `frames` that the kernel has not taken completely, and the bytes of the first of
    /// them that it has.
    unsent: usize,
    begun: usize,
    /// Bytes that the kernel has not taken.
    unsent_len: usize,
    /// Messages in `frames`, and how many of them the kernel has not taken.
    messages: u32,
    messages_unsent: u32,
    /// Messages that the peer is not known to have.
    unconfirmed: u32,
    send_depth: u32,
    /// Messages that the peer has confirmed in total, modulo 2³².
    confirmed: u32,
}

/// Returns the memory that an end with this configuration needs to send, in bytes.
pub(super) fn memory_len(config: &ViConfig) -> usize {
    // Two messages more: at most one is lost at the end of the ring, and one keeps its ends apart.
    (config.send_depth as usize + 2) * (HEADER_LEN + config.message_len as usize)
}

impl Outgoing {
    pub(super) fn new(config: &ViConfig) -> Self {
        Outgoing {
            ring: vec![0; memory_len(config)].into(),
            own: [0; OWN_LEN],
            own_len: 0,
            frames: VecDeque::with_capacity(config.send_depth as usize + 8),
            unsent: 0,
            begun: 0,
            unsent_len: 0,
            messages: 0,
            messages_unsent: 0,
            unconfirmed: 0,
            send_depth: config.send_depth,
            confirmed: 0,
        }
    }

    /// Whether the bound of outstanding messages is reached.
    pub(super) fn is_full(&self) -> bool {
        self.unconfirmed >= self.send_depth
    }

    /// Bytes that the kernel has not taken.
    pub(super) fn unsent_len(&self) -> usize {
        self.unsent_len
    }

    /// Appends a frame: the parts of `gather`, then the pieces of registered memory, which are sent in place.
    /// The header's length is set here. `None`: there is no room.
    pub(super) fn push(
        &mut self,
        mut header: Header,
        gather: &[&[u8]],
        (pieces, regions): (&[Piece], Option<&Regions>),
        signal: Option<u64>,
    ) -> Option<()> {
        let copied: usize = gather.iter().map(|part| part.len()).sum();
        header.len = pieces.iter().fold(copied, |len, piece| len + piece.len);
        let len = HEADER_LEN + copied;
        let is_message = header.kind == Kind::Data;
        let start = if is_message { self.room(len)? } else { self.own_len };
        let memory = if is_message { &mut self.ring[..] } else { &mut self.own[..] };
        let mut rest = memory.get_mut(start..start + len)?;
        for part in std::iter::once(&header.write()[..]).chain(gather.iter().copied()) {
            let (place, after) = rest.split_at_mut_checked(part.len())?;
            place.copy_from_slice(part);
            rest = after;
        }
        let mut queued =
            Queued { start, len, lent: Default::default(), is_message, immediate: header.immediate, signal };
        for (place, piece) in queued.lent.iter_mut().zip(pieces) {
            let memory = regions?.find(piece).ok()?.clone();
            *place = Some(Lent { memory, offset: piece.offset, len: piece.len });
        }
        self.own_len += if is_message { 0 } else { len };
        self.unsent_len += queued.total();
        for count in [&mut self.messages, &mut self.messages_unsent, &mut self.unconfirmed] {
            *count += u32::from(is_message);
        }
        self.unsent += 1;
        self.frames.push_back(queued);
        Some(())
    }

    /// Finds contiguous room. The messages lie in the ring in their order, and wrap at most once.
    fn room(&self, len: usize) -> Option<usize> {
        let mut messages = self.frames.iter().filter(|frame| frame.is_message);
        let (first, last) = (messages.next(), messages.next_back());
        let Some(first) = first else {
            return (len <= self.ring.len()).then_some(0);
        };
        let last = last.unwrap_or(first);
        let (head, tail) = (first.start, last.start + last.len);
        if tail <= head {
            return (tail + len < head).then_some(tail);
        }
        if tail + len <= self.ring.len() { Some(tail) } else { (len < head).then_some(0) }
    }

    /// Lists what the kernel has not taken, as far as there is room for it in `into`. Returns the number of
    /// parts. The addresses are valid until frames are appended or [taken](Self::taken).
    pub(super) fn parts(&self, into: &mut [Part; PARTS_MAX]) -> usize {
        let mut count = 0usize;
        let mut skip = self.begun;
        for frame in self.frames.range(self.frames.len() - self.unsent..) {
            let memory = if frame.is_message { &self.ring[..] } else { &self.own[..] };
            let copied = memory.get(frame.start..frame.start + frame.len).unwrap_or(&[]);
            let lent = frame.lent.iter().flatten();
            let lent = lent.filter_map(|l| Some((l.memory.at(l.offset, l.len)?.cast_const(), l.len)));
            for (at, len) in std::iter::once((copied.as_ptr(), copied.len())).chain(lent) {
                let from = skip.min(len);
                skip -= from;
                let (at, len) = (at.wrapping_add(from), len - from);
                let joins = |before: &Part| before.0.wrapping_add(before.1) == at;
                if len == 0 {
                } else if let Some(before) =
                    count.checked_sub(1).and_then(|n| into.get_mut(n)).filter(|b| joins(b))
                {
                    before.1 += len;
                } else {
                    let Some(place) = into.get_mut(count) else { return count };
                    *place = (at, len);
                    count += 1;
                }
            }
        }
        count
    }

    /// Records that the kernel has taken `len` bytes.
    pub(super) fn taken(&mut self, len: usize) {
        self.unsent_len = self.unsent_len.saturating_sub(len);
        self.begun += len;
        while let Some(at) = self.frames.len().checked_sub(self.unsent)
            && let Some(frame) = self.frames.get(at)
            && self.begun >= frame.total()
        {
            self.begun -= frame.total();
            self.unsent -= 1;
            if frame.is_message {
                self.messages_unsent -= 1;
            } else {
                self.frames.remove(at);
            }
        }
        if self.frames.len() == self.messages as usize {
            self.own_len = 0;
        }
    }

    /// Takes the peer's count of messages that it has, and calls `sent` with the ids of signalled ones.
    /// Returns `false` if the count is impossible.
    pub(super) fn confirm(&mut self, received: u32, sent: &mut dyn FnMut(u64)) -> bool {
        let more = received.wrapping_sub(self.confirmed);
        // The peer cannot have what was not sent. Counts come in order, so none is below the one before it.
        if more > self.messages - self.messages_unsent {
            return false;
        }
        self.confirmed = received;
        self.unconfirmed -= more;
        while self.messages > self.unconfirmed
            && let Some(frame) = self.frames.pop_front()
        {
            self.messages -= u32::from(frame.is_message);
            frame.signal.into_iter().for_each(&mut *sent);
        }
        true
    }

    /// Calls `visit` with the immediate data and the bytes of the messages that the peer is not known to
    /// have, oldest first; those with bytes in registered memory are left out.
    pub(super) fn unconfirmed(&self, visit: &mut dyn FnMut(u32, &[u8])) {
        let messages =
            self.frames.iter().filter(|frame| frame.is_message && frame.lent.iter().all(Option::is_none));
        for frame in messages {
            let bytes = self.ring.get(frame.start + HEADER_LEN..frame.start + frame.len);
            visit(frame.immediate, bytes.unwrap_or(&[]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 3, message_len: 100 };

    fn message(out: &mut Outgoing, immediate: u32, body: &[u8]) -> Option<()> {
        let header = Header::new(Kind::Data, 0, immediate);
        out.push(header, &[body], (&[], None), Some(immediate.into()))
    }

    /// Takes up to `len` bytes, as the kernel does.
    fn take(out: &mut Outgoing, len: usize) -> Vec<u8> {
        let mut parts = [(std::ptr::null(), 0); PARTS_MAX];
        let count = out.parts(&mut parts);
        let mut bytes = Vec::new();
        for (at, len) in &parts[..count] {
            // SAFETY: the parts are in the ring or in memory that `out` keeps, and nothing has been appended.
            bytes.extend(unsafe { std::slice::from_raw_parts(*at, *len) });
        }
        bytes.truncate(len);
        out.taken(bytes.len());
        bytes
    }

    fn confirmed(out: &mut Outgoing, received: u32) -> Option<Vec<u64>> {
        let mut sent = Vec::new();
        out.confirm(received, &mut |id| sent.push(id)).then_some(sent)
    }

    fn listed(out: &Outgoing) -> Vec<(u32, Vec<u8>)> {
        let mut listed = Vec::new();
        out.unconfirmed(&mut |immediate, bytes| listed.push((immediate, bytes.to_vec())));
        listed
    }

    #[test]
    fn messages_stay_until_the_peer_has_them() {
        let mut out = Outgoing::new(&CONFIG);
        for n in 0..3 {
            message(&mut out, n, &[n as u8; 9]).unwrap();
        }
        assert!(out.is_full());
        assert_eq!(take(&mut out, HEADER_LEN + 10).len(), HEADER_LEN + 10);
        assert_eq!(confirmed(&mut out, 2), None, "the second is not sent");
        assert_eq!(listed(&out).len(), 3);
        assert_eq!(confirmed(&mut out, 1), Some(vec![0]));
        assert!(!out.is_full());
        assert_eq!(listed(&out), [(1, vec![1; 9]), (2, vec![2; 9])]);
        assert_eq!((out.unsent_len(), take(&mut out, 1000).len(), out.unsent_len()), (57, 57, 0));
        assert_eq!((confirmed(&mut out, 3), listed(&out).len()), (Some(vec![1, 2]), 0));
        assert_eq!(confirmed(&mut out, 4), None);
    }

    #[test]
    fn a_full_depth_of_messages_always_fits_and_arrives_as_it_was() {
        let (mut out, mut stream, mut expected) = (Outgoing::new(&CONFIG), Vec::new(), Vec::new());
        let (mut random, mut received) = (7u32, 0);
        for n in 0..10_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let body = vec![n as u8; (random >> 24) as usize % 101];
            if n.is_multiple_of(5) && out.own_len < OWN_LEN / 2 {
                out.push(Header::new(Kind::Counts, 0, 0), &[], (&[], None), None).unwrap();
                expected.extend(Header::new(Kind::Counts, 0, 0).write());
            }
            message(&mut out, n, &body).unwrap();
            expected.extend(Header::new(Kind::Data, body.len(), n).write());
            expected.extend(&body);
            if out.is_full() || random & 1 == 1 {
                let all = out.unsent_len();
                stream.extend(take(&mut out, all / 2));
                stream.extend(take(&mut out, all));
                let count = if out.is_full() { out.unconfirmed } else { out.unconfirmed / 2 };
                received += count;
                confirmed(&mut out, received).unwrap();
            }
        }
        stream.extend(take(&mut out, usize::MAX));
        assert!(stream == expected, "the stream differs");
    }

    #[test]
    fn registered_memory_is_sent_in_place_and_kept_until_confirmed() {
        let (mut out, mut regions) = (Outgoing::new(&CONFIG), Regions::new());
        let memory = Memory::heap(64);
        memory.write(10, b"piece");
        let region = regions.register(&memory).unwrap();
        let pieces = [Piece { region, offset: 10, len: 2 }, Piece { region, offset: 12, len: 3 }];
        let header = Header::new(Kind::Data, 0, 5);
        out.push(header, &[b"a "], (&pieces, Some(&regions)), Some(8)).unwrap();
        message(&mut out, 6, b"copied").unwrap();
        regions.deregister(region).unwrap();
        let first = take(&mut out, HEADER_LEN + 4);
        assert_eq!(&first[HEADER_LEN..], b"a pi");
        assert_eq!(&take(&mut out, 100)[..3], b"ece");
        assert_eq!(listed(&out), [(6, b"copied".to_vec())]);
        assert!(!memory.is_unshared());
        assert_eq!(confirmed(&mut out, 1), Some(vec![8]));
        assert!(memory.is_unshared());
    }
}
