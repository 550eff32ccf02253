//! The last handler of a requested query: gives each row its topic.

use csp_handlers::{Call, Emit, Handler, Needs, ParameterError, Piece, State, Stop};
use csp_messages::StageMaker;
use csp_operators::{ROW_LEN_MAX, body_frame};

/// Its name.
pub(super) const NAME: &str = "topic";

/// Makes it.
pub(super) fn maker(topic: &str) -> StageMaker {
    let topic = topic.to_owned();
    StageMaker::new(&topic.clone(), move || Some(Box::new(Label { topic: topic.clone() })))
}

/// Emits the record of each message behind a frame with the topic, in the place of the topic that it may have.
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
