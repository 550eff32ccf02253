//! Messages as JSON and back, by the mapping of `docs/formats.md`.
//!
//! JSON is for people and tools: both operators allocate for each message, unlike all others.

use std::sync::Arc;

use csp_formats::json;
use csp_handlers::{Call, Emit, FormatId, Handler, Needs, ParameterError, Piece, State, Stop};

use crate::bind::Bindings;
use crate::counters::{Counter, claim};
use crate::formats::{Format, FormatSet, JSON};
use crate::input::Body;
use crate::parameters::wrong;
use crate::row::{FORMAT, INVALID, ROW_LEN_MAX, Room, SLICES, TOO_LONG, give_up, room};
use crate::select::stateless;

const FINGERPRINT: u64 = 1;
const NO_JSON: Stop = Stop::Fault("the message is no JSON of its format");

/// Emits each message as one line of JSON. It has no parameters.
#[derive(Debug)]
pub struct ToJson {
    bound: Bindings<Arc<Format>>,
    text: Vec<u8>,
}

impl ToJson {
    /// A printer of the formats of a channel.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        let mut bound = Bindings::new(formats);
        // A channel without formats prints nothing.
        let _ = bound.bind(|_, format| Ok(format.clone()));
        ToJson { bound, text: Vec::with_capacity(ROW_LEN_MAX as usize) }
    }
}

impl Handler for ToJson {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.bound.get(format).is_some()
    }

    fn yields(&self, _: u8, _: FormatId) -> FormatId {
        JSON
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        if parameters.trim().is_empty() { Ok(()) } else { wrong("to-json has no parameters") }
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let id = call.message().format;
        if self.bound.get(id).is_none() {
            self.bound.late(id, |_, format| Ok(format.clone()));
        }
        let Some(format) = self.bound.get(id) else { return give_up(call, (Counter::Invalid, FORMAT)) };
        let (body, text) = (Body::of(call), &mut self.text);
        text.clear();
        let printed = body.read(call, |slices| {
            let view = format.view(slices).map_err(|_| (Counter::Invalid, INVALID))?;
            json::print(&view, text, ROW_LEN_MAX as usize).map_err(|error| match error.problem {
                json::JsonProblem::TooLong { .. } => (Counter::TooLong, TOO_LONG),
                _ => (Counter::Invalid, INVALID),
            })
        });
        match printed {
            None => return give_up(call, (Counter::Invalid, SLICES)),
            Some(Err(problem)) => return give_up(call, problem),
            Some(Ok(())) => body.emit(call, 0, JSON, &[Piece::Bytes(&self.text)])?,
        }
        Counter::Read.add(call.state(), 1);
        Counter::Emitted.add(call.state(), 1);
        Ok(())
    }
}

/// Emits each JSON text as a message, and messages that are in one of the channel's formats already as they
/// are. The parameter is the name of the message; without one the channel has one format.
#[derive(Debug)]
pub struct FromJson {
    formats: Arc<FormatSet>,
    target: Option<(FormatId, Arc<Format>)>,
    text: Room,
    room: Room,
}

impl FromJson {
    /// A parser of the only format of a channel, or of none before it is configured.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        let all = formats.all();
        let target = if let [only] = &all[..] { Some(only.clone()) } else { None };
        FromJson { formats: formats.clone(), target, text: room(ROW_LEN_MAX), room: room(ROW_LEN_MAX) }
    }
}

/// Whether a message of this format may be a JSON text: printed on the path, or published in none of the
/// channel's formats.
fn is_text(format: FormatId) -> bool {
    format == JSON || format == FormatId::UNKNOWN
}

impl Handler for FromJson {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.target.is_some() && (is_text(format) || self.formats.get(format).is_some())
    }

    fn yields(&self, _: u8, format: FormatId) -> FormatId {
        match &self.target {
            Some((id, _)) if is_text(format) => *id,
            _ => format,
        }
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let name = parameters.trim();
        let Some(found) = self.formats.named(name) else {
            let all = self.formats.all();
            let nearest = csp_formats::nearest(name, all.iter().map(|(_, format)| &*format.name));
            let near = nearest.map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default();
            return wrong(format!("the channel has no format \"{name}\"{near}"));
        };
        self.target = Some(found);
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        if !is_text(call.message().format) {
            call.emit(0, Emit::Same)?;
            Counter::Read.add(call.state(), 1);
            Counter::Emitted.add(call.state(), 1);
            return Ok(());
        }
        let Some((id, format)) = &self.target else { return give_up(call, (Counter::Invalid, FORMAT)) };
        let (body, id) = (Body::of(call), *id);
        let Some(text) = self.text.get_mut(..body.len as usize) else {
            return give_up(call, (Counter::TooLong, TOO_LONG));
        };
        let len = call.copy(body.start, text);
        let Ok(len) = json::parse(&format.schema, &text[..len], &mut self.room) else {
            return give_up(call, (Counter::Invalid, NO_JSON));
        };
        // The text may name another message of the schema.
        let slices = [&self.room[..len]];
        if format.view(&slices).is_err() {
            return give_up(call, (Counter::Invalid, NO_JSON));
        }
        body.emit(call, 0, id, &[Piece::Bytes(&self.room[..len])])?;
        Counter::Read.add(call.state(), 1);
        Counter::Emitted.add(call.state(), 1);
        Ok(())
    }
}
