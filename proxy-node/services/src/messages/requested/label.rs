//! Puts the topic before each message: the last handler of a requested query, or of a handler that a program
//! has brought.

use csp_handlers::{Call, Emit, Handler, Needs, ParameterError, Piece, State, Stop};
use csp_messages::{FRAMES_MAX, StageMaker};
use csp_operators::{ROW_LEN_MAX, body_frame};

/// Its name.
pub(super) const NAME: &str = "topic";

/// Makes it.
pub(super) fn maker(topic: &str) -> StageMaker {
    let topic = topic.to_owned();
    StageMaker::new(&topic.clone(), move || Some(Box::new(Label { topic: topic.clone() })))
}

/// Emits the record of each message behind a frame with the topic, in place of the message's own topic.
#[derive(Debug)]
struct Label {
    topic: String,
}

impl Handler for Label {
    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX + self.topic.len() as u32, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let message = *call.message();
        let frame = body_frame(message.frames);
        let start: u32 = (0..frame).filter_map(|frame| call.frame_len(frame)).sum();
        let len = call.frame_len(frame).unwrap_or(0);
        let frames = [self.topic.len() as u32, len];
        let pieces = [Piece::Bytes(self.topic.as_bytes()), Piece::Of { start, len }];
        // A row is never empty: it has the header of its schema, or the braces of an object.
        let pieces = if len > 0 { &pieces[..] } else { &pieces[..1] };
        Ok(call.emit(0, Emit::New { format: message.format, frames: &frames, pieces })?)
    }
}

/// Name of the handler that keeps the topic of each message as a frame behind the new one.
pub(super) const BEFORE: &str = "topic-before";

/// Returns the maker of a handler that puts the topic before each message as a frame of its own. Its output
/// has at most `longest` bytes.
pub(super) fn before(topic: &str, longest: u32) -> StageMaker {
    let topic = topic.to_owned();
    StageMaker::new(&format!("{topic} {longest}"), move || {
        Some(Box::new(Before { topic: topic.clone(), longest }))
    })
}

/// Emits each message behind a frame with the topic. Its own topic stays, as the second frame.
#[derive(Debug)]
struct Before {
    topic: String,
    longest: u32,
}

impl Handler for Before {
    fn needs(&self) -> Needs {
        Needs { new_len_max: self.longest, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let message = *call.message();
        let mut frames = [self.topic.len() as u32; FRAMES_MAX];
        let count = 1 + usize::from(message.frames);
        let Some(lens) = frames.get_mut(1..count) else {
            return Err(Stop::Fault("the message has no room for a frame with the topic"));
        };
        for (frame, len) in lens.iter_mut().enumerate() {
            *len = call.frame_len(frame as u8).unwrap_or(0);
        }
        let pieces = [Piece::Bytes(self.topic.as_bytes()), Piece::Of { start: 0, len: message.len }];
        let pieces = if message.len > 0 { &pieces[..] } else { &pieces[..1] };
        Ok(call.emit(0, Emit::New { format: message.format, frames: &frames[..count], pieces })?)
    }
}
