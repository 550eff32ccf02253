//! The receiving half of a stream: bytes into frames, and the bodies of messages into their buffers.

use super::frame::{HEADER_LEN, Header, Kind};
use crate::receives::{Arrived, Receives};

/// The peer sent what no correct peer sends. The VI ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

/// A whole frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub header: Header,
    pub body: Body,
}

/// The body of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// There is none.
    Empty,
    /// A message, in its receive buffer.
    Message(Arrived),
    /// A set-up, to be parsed.
    Setup(Vec<u8>),
}

/// The frame of which a part has arrived.
#[derive(Default)]
pub(super) struct Incoming {
    header: [u8; HEADER_LEN],
    /// Bytes of the header that are there.
    header_len: usize,
    begun: Option<Begun>,
    /// Length of the last message, in bytes.
    last_len: usize,
}

/// A frame whose header has arrived.
struct Begun {
    header: Header,
    /// Bytes of the body that are there.
    filled: usize,
    /// The receive buffer of a message.
    buffer: Option<u16>,
    setup: Vec<u8>,
}

impl Incoming {
    /// Bytes of an incomplete message that have arrived.
    pub(super) fn incomplete(&self) -> usize {
        self.begun.as_ref().map_or(self.header_len, |begun| HEADER_LEN + begun.filled)
    }

    /// Length of the last message, in bytes.
    pub(super) fn last_len(&self) -> usize {
        self.last_len
    }

    /// Consumes bytes of the stream, up to the end of one frame, which is returned when it is whole.
    pub(super) fn feed(
        &mut self,
        receives: &mut Receives,
        bytes: &mut &[u8],
    ) -> Result<Option<Frame>, Violation> {
        while self.begun.is_none() {
            let rest = self.header.get_mut(self.header_len..).unwrap_or(&mut []);
            let count = rest.len().min(bytes.len());
            let (now, later) = bytes.split_at(count);
            rest.get_mut(..count).unwrap_or(&mut []).copy_from_slice(now);
            *bytes = later;
            self.header_len += count;
            if self.header_len < HEADER_LEN {
                return Ok(None);
            }
            self.begun = Some(begin(&self.header, receives)?);
        }
        let Some(begun) = &mut self.begun else { return Ok(None) };
        let (now, later) = bytes.split_at((begun.header.len - begun.filled).min(bytes.len()));
        *bytes = later;
        match begun.buffer {
            Some(buffer) => receives.fill(buffer, begun.filled, now).ok_or(Violation)?,
            None => begun.setup.extend_from_slice(now),
        }
        begun.filled += now.len();
        self.finish(receives)
    }

    /// Where the rest of the body of a message belongs: its address and length in bytes. `None` between
    /// messages.
    pub(super) fn place(&self, receives: &mut Receives) -> Option<(*mut u8, usize)> {
        let begun = self.begun.as_ref()?;
        let len = begun.header.len - begun.filled;
        Some((receives.at(begun.buffer?, begun.filled, len)?, len))
    }

    /// Records that `count` bytes were received at [`place`](Self::place). Returns the frame if it is whole.
    pub(super) fn placed(
        &mut self,
        receives: &mut Receives,
        count: usize,
    ) -> Result<Option<Frame>, Violation> {
        if let Some(begun) = &mut self.begun {
            begun.filled += count;
        }
        self.finish(receives)
    }

    fn finish(&mut self, receives: &mut Receives) -> Result<Option<Frame>, Violation> {
        let Some(begun) = self.begun.take_if(|begun| begun.filled >= begun.header.len) else {
            return Ok(None);
        };
        self.header_len = 0;
        let header = begun.header;
        let body = match (begun.buffer, header.kind) {
            (Some(buffer), _) => {
                self.last_len = header.len;
                Body::Message(receives.complete(buffer, header.len, header.immediate).ok_or(Violation)?)
            }
            (None, Kind::Request | Kind::Accept) => Body::Setup(begun.setup),
            (None, _) => Body::Empty,
        };
        Ok(Some(Frame { header, body }))
    }
}

/// Begins a frame: a message needs a posted receive.
fn begin(header: &[u8; HEADER_LEN], receives: &mut Receives) -> Result<Begun, Violation> {
    let header = Header::parse(header).ok_or(Violation)?;
    let buffer = match header.kind {
        Kind::Data => Some(receives.reserve(header.len).ok_or(Violation)?),
        _ => None,
    };
    Ok(Begun { header, filled: 0, buffer, setup: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ViConfig;

    const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 4, message_len: 64 };

    fn data(immediate: u32, body: &[u8]) -> Vec<u8> {
        [&Header::new(Kind::Data, body.len(), immediate).write(), body].concat()
    }

    /// Whatever the cuts between reads, the same frames come out.
    #[test]
    fn frames_come_out_whole_however_the_stream_is_cut() {
        let setup = [&Header::new(Kind::Accept, 3, 0).write()[..], b"set"].concat();
        let counts = Header::new(Kind::Counts, 0, 0).write();
        let stream = [&setup, &data(1, b"first")[..], &data(2, b""), &counts, &data(3, &[7; 64])].concat();
        for step in 1..=stream.len() {
            let (mut incoming, mut receives) = (Incoming::default(), Receives::new(&CONFIG));
            let mut frames = Vec::new();
            for chunk in stream.chunks(step) {
                let mut rest = chunk;
                while let Some(frame) = incoming.feed(&mut receives, &mut rest).unwrap() {
                    frames.push(frame);
                }
                assert!(rest.is_empty());
            }
            let kinds: Vec<_> = frames.iter().map(|frame| frame.header.kind).collect();
            assert_eq!(kinds, [Kind::Accept, Kind::Data, Kind::Data, Kind::Counts, Kind::Data]);
            assert_eq!(frames[0].body, Body::Setup(b"set".to_vec()));
            assert_eq!(frames[4].body, Body::Message(Arrived { buffer: 2, len: 64, immediate: 3 }));
            let mut bytes = [0; 64];
            assert_eq!((receives.read(2, 0, &mut bytes), bytes), (Some(64), [7; 64]));
            assert_eq!((incoming.incomplete(), incoming.last_len()), (0, 64));
        }
    }

    #[test]
    fn a_body_can_be_received_where_it_belongs() {
        let (mut incoming, mut receives) = (Incoming::default(), Receives::new(&CONFIG));
        assert_eq!(incoming.place(&mut receives), None);
        let stream = data(9, b"abcdef");
        let mut head = &stream[..HEADER_LEN + 2];
        assert_eq!(incoming.feed(&mut receives, &mut head), Ok(None));
        assert_eq!(incoming.incomplete(), HEADER_LEN + 2);
        let (at, len) = incoming.place(&mut receives).unwrap();
        assert_eq!(len, 4);
        // SAFETY: `at` points to the 4 bytes of the buffer that are missing, and nothing else uses them.
        unsafe { std::ptr::copy_nonoverlapping(b"cdef".as_ptr(), at, 4) };
        assert_eq!(incoming.placed(&mut receives, 3), Ok(None));
        let frame = incoming.placed(&mut receives, 1).unwrap().unwrap();
        assert_eq!(frame.body, Body::Message(Arrived { buffer: 0, len: 6, immediate: 9 }));
        let mut bytes = [0; 6];
        receives.read(0, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abcdef");
    }

    #[test]
    fn messages_without_a_receive_or_too_long_are_violations() {
        let (mut incoming, mut receives) = (Incoming::default(), Receives::new(&CONFIG));
        let long = Header::new(Kind::Data, 65, 0).write();
        assert_eq!(incoming.feed(&mut receives, &mut &long[..]), Err(Violation));
        let mut incoming = Incoming::default();
        for _ in 0..4 {
            assert!(incoming.feed(&mut receives, &mut &data(0, b"x")[..]).unwrap().is_some());
        }
        assert_eq!(incoming.feed(&mut receives, &mut &data(0, b"x")[..]), Err(Violation));
        let mut incoming = Incoming::default();
        assert_eq!(incoming.feed(&mut receives, &mut &[9; HEADER_LEN][..]), Err(Violation));
    }
}
