//! Handlers through their interface, with a port that has room for some emits.
#![allow(clippy::unwrap_used, reason = "a test")]

use csp_handlers::builtin::{DropEvery, Duplicate, Forward};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Place, Port, State, Stop};
use csp_types::Instant;

/// A message cut into slices of three bytes, and what was emitted of it.
struct Cut {
    bytes: Vec<u8>,
    room: usize,
    emitted: Vec<u8>,
}

impl Port for Cut {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        let end = (at - at % 3 + 3).min(self.bytes.len());
        (&self.bytes[at..end], Place { at: end as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, output: u8, _: Emit<'_>) -> Result<(), Full> {
        self.room = self.room.checked_sub(1).ok_or(Full)?;
        self.emitted.push(output);
        Ok(())
    }
}

fn call(handler: &mut dyn Handler, state: &mut State, room: usize) -> (Result<(), Stop>, usize) {
    let mut port = Cut { bytes: (0..10).collect(), room, emitted: Vec::new() };
    let format = FormatId::UNKNOWN;
    let message = Message { format, sequence: 1, arrived: Instant::ZERO, len: 10, frames: 1 };
    let done = handler.on_message(&mut Call::new(message, Instant::ZERO, state, &mut port));
    (done, port.emitted.len())
}

#[test]
fn a_message_is_read_slice_by_slice() {
    let mut port = Cut { bytes: (0..10).collect(), room: 0, emitted: Vec::new() };
    let mut state = State::default();
    let message = Message { format: FormatId(1), sequence: 1, arrived: Instant::ZERO, len: 10, frames: 1 };
    let call = Call::new(message, Instant::ZERO, &mut state, &mut port);
    assert_eq!(call.slices().map(<[u8]>::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
    assert_eq!(call.range(2, 5).collect::<Vec<_>>().concat(), [2, 3, 4, 5, 6]);
    let mut some = [0; 4];
    assert_eq!((call.copy(8, &mut some), some), (2, [8, 9, 0, 0]));
    assert_eq!((call.frame_len(0), call.frame_len(1)), (Some(10), None));
}

#[test]
fn every_nth_message_is_dropped_and_none_is_counted_twice() {
    let mut handler = DropEvery::default();
    let mut state = State::new(&handler.needs());
    handler.configure("3", &mut state).unwrap();
    assert_eq!(call(&mut handler, &mut state, 0), (Err(Stop::Full), 0));
    assert_eq!(state.number(0), 0, "a call that is repeated has not changed the state");
    let emitted: Vec<usize> = (0..6).map(|_| call(&mut handler, &mut state, 1).1).collect();
    assert_eq!(emitted, [1, 1, 0, 1, 1, 0]);
}

#[test]
fn what_has_no_room_is_reported() {
    let (mut handler, mut state) = (Duplicate::default(), State::default());
    assert_eq!(call(&mut handler, &mut state, 1), (Err(Stop::Full), 1));
    assert_eq!(call(&mut handler, &mut state, 2), (Ok(()), 2));
}

#[test]
fn wrong_parameters_leave_the_former_ones() {
    let mut state = State::default();
    let mut duplicate = Duplicate::default();
    for wrong in ["", "0", "65", "-1", "two"] {
        assert!(duplicate.configure(wrong, &mut state).is_err(), "{wrong}");
    }
    assert_eq!(call(&mut duplicate, &mut state, 9).1, 2);
    assert!(DropEvery::default().configure("0", &mut state).is_err());
    assert!(Forward.configure("x", &mut state).is_err() && Forward.configure("", &mut state).is_ok());
}
