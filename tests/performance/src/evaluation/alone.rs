//! A handler without the message plane: what an operator itself costs.

use std::time::{Duration, Instant as Clock};

use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State};
use csp_types::Instant;

/// A message in one slice, and how many were emitted.
struct Bytes<'a> {
    bytes: &'a [u8],
    emitted: u64,
}

impl Port for Bytes<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        (&self.bytes[at..], Place { at: self.bytes.len() as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, _: u8, emit: Emit<'_>) -> Result<(), Full> {
        std::hint::black_box(emit);
        self.emitted += 1;
        Ok(())
    }
}

/// A handler with its state.
pub struct Alone {
    handler: Box<dyn Handler>,
    state: State,
    sequence: u64,
    /// Messages that it has emitted.
    pub emitted: u64,
}

impl Alone {
    pub fn new(handler: Box<dyn Handler>) -> Self {
        let state = State::new(&handler.needs());
        Alone { handler, state, sequence: 0, emitted: 0 }
    }

    fn call(&mut self, format: FormatId, bytes: &[u8]) {
        self.sequence += 1;
        let now = Instant::from_nanos(self.sequence * 1_000);
        let message =
            Message { format, sequence: self.sequence, arrived: now, len: bytes.len() as u32, frames: 1 };
        let mut port = Bytes { bytes, emitted: 0 };
        let done = self.handler.on_message(&mut Call::new(message, now, &mut self.state, &mut port));
        done.expect("the port has room, and the message its format");
        self.emitted += port.emitted;
    }

    /// Calls the handler in batches of 32 with what `next` passes to its argument, for `time`. Returns the
    /// nanoseconds of a message in the median of batches, with those of making it.
    pub fn measure(&mut self, time: Duration, mut next: impl FnMut(&mut dyn FnMut(FormatId, &[u8]))) -> f64 {
        let (begin, mut times) = (Clock::now(), Vec::new());
        while begin.elapsed() < time {
            let batch = Clock::now();
            for _ in 0..32 {
                next(&mut |format, bytes| self.call(format, bytes));
            }
            times.push(batch.elapsed().as_secs_f64() * 1e9 / 32.0);
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}
