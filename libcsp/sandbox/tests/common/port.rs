//! A port that records what is emitted.
#![allow(dead_code, clippy::unwrap_used)]

use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Piece, Place, Port, State, Stop, Tick};
use csp_types::Instant;

/// What was emitted: output, format, bytes.
pub type Emitted = (u8, u32, Vec<u8>);

/// A message in slices, and outputs with bounded room.
pub struct FakePort {
    pub frames: Vec<Vec<u8>>,
    pub format: u32,
    pub emitted: Vec<Emitted>,
    /// Emits that find room.
    pub room: usize,
    /// Bytes of a slice.
    pub slice: usize,
}

impl FakePort {
    pub fn new(bytes: &[u8]) -> Self {
        FakePort { frames: vec![bytes.to_vec()], format: 7, emitted: vec![], room: usize::MAX, slice: 100 }
    }

    fn bytes(&self) -> Vec<u8> {
        self.frames.concat()
    }
}

impl Port for FakePort {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        // Frames begin slices of their own, as in a message pool.
        let mut before = 0;
        for frame in &self.frames {
            let at = (place.at as usize).saturating_sub(before);
            if at < frame.len() {
                let end = ((at / self.slice + 1) * self.slice).min(frame.len());
                return (&frame[at..end], Place { at: (before + end) as u32, note: 0 });
            }
            before += frame.len();
        }
        (&[], place)
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        self.frames.get(usize::from(frame)).map(|frame| frame.len() as u32)
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Result<(), Full> {
        if self.room == 0 {
            return Err(Full);
        }
        self.room -= 1;
        let all = self.bytes();
        let part = |start: u32, len: u32| all[start as usize..(start + len) as usize].to_vec();
        let (format, bytes) = match emit {
            Emit::Same => (FormatId(self.format), all),
            Emit::Range { format, start, len } => (format, part(start, len)),
            Emit::Frames { format, first, count } => {
                (format, self.frames[usize::from(first)..usize::from(first + count)].concat())
            }
            Emit::New { format, frames, pieces } => {
                let bytes = pieces.iter().flat_map(|piece| match piece {
                    Piece::Of { start, len } => part(*start, *len),
                    Piece::Bytes(bytes) => bytes.to_vec(),
                });
                let bytes = bytes.collect::<Vec<_>>();
                assert_eq!(frames.iter().sum::<u32>() as usize, bytes.len());
                (format, bytes)
            }
        };
        self.emitted.push((output, format.0, bytes));
        Ok(())
    }
}

pub fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

pub fn send(
    handler: &mut dyn Handler,
    state: &mut State,
    port: &mut FakePort,
    now: Instant,
) -> Result<(), Stop> {
    let message = Message {
        format: FormatId(port.format),
        sequence: 42,
        arrived: at(1),
        len: port.bytes().len() as u32,
        frames: port.frames.len() as u8,
    };
    handler.on_message(&mut Call::new(message, now, state, port))
}

pub fn tick(
    handler: &mut dyn Handler,
    state: &mut State,
    port: &mut FakePort,
    now: Instant,
) -> Result<(), Stop> {
    handler.on_timer(&mut Tick::new(now, state, port))
}
