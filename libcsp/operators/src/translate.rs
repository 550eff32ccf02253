//! Messages of one format as messages of another that has fields of the same names: an old reader meets a new
//! writer.

use std::sync::Arc;

use csp_formats::{Block, Presence, Primitive, Scalar, Type, Writer};
use csp_handlers::{Call, Emit, FormatId, Handler, Needs, ParameterError, Piece, State, Stop};

use crate::counters::{Counter, claim};
use crate::formats::{Format, FormatSet};
use crate::input::Body;
use crate::map::{self, Key, Mapping, leaves};
use crate::parameters::{after_word, parts, wrong};
use crate::row::{FORMAT, INVALID, ROW_LEN_MAX, Room, SLICES, give_up, problem, room};
use crate::select::stateless;

const FINGERPRINT: u64 = 1;

/// Emits each message in another format. The parameter names it: `Flight`, or `Flight version 1` where
/// several versions are there, and what stands for values that the target must have: `Flight version 1
/// default seats 0, gate 'A1'`.
///
/// Fields are found by name; what the target does not have is left out, what the message does not have is
/// null or empty. Formats for which that cannot be said are not accepted. Messages of the target format pass
/// as they are.
#[derive(Debug)]
pub struct Translate {
    formats: Arc<FormatSet>,
    bound: Vec<(FormatId, Arc<Format>, Mapping)>,
    target: Option<(FormatId, Arc<Format>)>,
    room: Room,
}

impl Translate {
    /// A translation to nothing, before it is configured.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        Translate { formats: formats.clone(), bound: Vec::new(), target: None, room: room(ROW_LEN_MAX) }
    }

    /// A translation to the format with an id, which is not configured.
    ///
    /// # Errors
    /// There is no such format, or none of the others can be translated to it.
    pub fn into_format(formats: &Arc<FormatSet>, target: FormatId) -> Result<Self, ParameterError> {
        let format = formats.get(target);
        let format = format.ok_or_else(|| ParameterError(format!("there is no format {}", target.0)))?;
        let mut translate = Translate::new(formats);
        translate.bind((target, format), Vec::new())?;
        Ok(translate)
    }

    /// Maps the other formats to a target.
    fn bind(
        &mut self,
        (target, format): (FormatId, Arc<Format>),
        mut defaults: Vec<(String, map::Default)>,
    ) -> Result<(), ParameterError> {
        let block = &format.message().block;
        let (mut bound, mut first) = (Vec::new(), None);
        for (id, from) in self.formats.all().into_iter().filter(|(id, _)| *id != target) {
            match Mapping::by_name(&from.message().block, block, &mut defaults) {
                Ok(mapping) => bound.push((id, from, mapping)),
                Err(error) => first = first.or(Some(format!("from messages \"{}\": {error}", from.name))),
            }
        }
        if let (true, Some(error)) = (bound.is_empty(), first) {
            return wrong(error);
        }
        (self.bound, self.target) = (bound, Some((target, format)));
        Ok(())
    }

    fn find(&self, text: &str) -> Result<(FormatId, Arc<Format>), ParameterError> {
        let (name, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        let version = match after_word(rest, "version") {
            Some(number) => match number.trim().parse::<u16>() {
                Ok(version) => Some(version),
                Err(_) => return wrong(format!("\"{number}\" is no version")),
            },
            None if rest.trim().is_empty() => None,
            None => return wrong(format!("\"{}\" stands where only version can", rest.trim())),
        };
        let all = self.formats.all();
        let found = all.iter().find(|(_, format)| {
            &*format.name == name && version.is_none_or(|version| format.schema.version == version)
        });
        found.cloned().ok_or_else(|| {
            let versions: Vec<String> = all
                .iter()
                .filter(|(_, format)| &*format.name == name)
                .map(|(_, format)| format.schema.version.to_string())
                .collect();
            if !versions.is_empty() {
                return ParameterError(format!("\"{name}\" has the versions {}", versions.join(", ")));
            }
            let nearest = csp_formats::nearest(name, all.iter().map(|(_, format)| &*format.name));
            let near = nearest.map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default();
            ParameterError(format!("the channel has no format \"{name}\"{near}"))
        })
    }
}

/// `seats 0, gate 'A1'`: values for fields of a block.
fn defaults(block: &Block, text: &str) -> Result<Vec<(String, map::Default)>, ParameterError> {
    let fields = leaves(&block.fields);
    let mut defaults = Vec::new();
    for part in parts(text, ',') {
        let Some((path, value)) = part.split_once(char::is_whitespace) else {
            return wrong(format!("\"{part}\" is no field and value, such as: seats 0"));
        };
        let value = value.trim();
        let Some(field) = fields.iter().find(|field| &*field.name == path) else {
            let nearest = csp_formats::nearest(path, fields.iter().map(|field| &*field.name));
            let near = nearest.map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default();
            return wrong(format!("the target has no field \"{path}\"{near}"));
        };
        let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
        let default = match (&field.kind, quoted) {
            (Type::Encoded(encoded), Some(text))
                if encoded.primitive == Primitive::Char && encoded.is_array() =>
            {
                (text.len() <= encoded.size() as usize).then(|| map::Default::Text(text.as_bytes().to_vec()))
            }
            (Type::Encoded(encoded), None) if !encoded.is_array() && encoded.primitive != Primitive::Char => {
                let number = encoded.primitive.parse(value);
                let is_null =
                    |number: &Scalar| field.presence == Presence::Optional && number.same(encoded.null);
                number.filter(|number| !is_null(number)).map(map::Default::Number)
            }
            (Type::Enum(kind), Some(name)) => {
                kind.named(name).map(|value| map::Default::Number(value.number))
            }
            _ => None,
        };
        match default {
            Some(default) => defaults.push((path.to_owned(), default)),
            None => return wrong(format!("{value} is no value of \"{path}\"")),
        }
    }
    Ok(defaults)
}

impl Handler for Translate {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.target.as_ref().is_some_and(|(id, _)| *id == format)
            || self.bound.iter().any(|(id, ..)| *id == format)
    }

    fn yields(&self, _: u8, _: FormatId) -> FormatId {
        self.target.as_ref().map_or(FormatId::UNKNOWN, |(id, _)| *id)
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let text = parameters.trim();
        let at = text.to_ascii_lowercase().find(" default ");
        let (name, values) = match at {
            Some(at) => (&text[..at], Some(&text[at + " default ".len()..])),
            None => (text, None),
        };
        let (target, format) = self.find(name)?;
        let defaults = match values {
            Some(values) => defaults(&format.message().block, values)?,
            None => Vec::new(),
        };
        self.bind((target, format), defaults)
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let format = call.message().format;
        let Some((target, to)) = &self.target else { return give_up(call, (Counter::Invalid, FORMAT)) };
        if format == *target {
            call.emit(0, Emit::Same)?;
        } else {
            let Some((_, from, mapping)) = self.bound.iter().find(|(id, ..)| *id == format) else {
                return give_up(call, (Counter::Invalid, FORMAT));
            };
            let body = Body::of(call);
            match rewrite(call, body, (from, to), mapping, &Key::default(), &mut self.room) {
                Err(problem) => return give_up(call, problem),
                Ok(len) => body.emit(call, 0, *target, &[Piece::Bytes(&self.room[..len])])?,
            }
        }
        Counter::Read.add(call.state(), 1);
        Counter::Emitted.add(call.state(), 1);
        Ok(())
    }
}

/// Writes the message of a call by a mapping, and returns the length.
pub(crate) fn rewrite(
    call: &Call<'_>,
    body: Body,
    (from, to): (&Format, &Format),
    mapping: &Mapping,
    key: &Key,
    room: &mut [u8],
) -> Result<usize, (Counter, Stop)> {
    let written = body.read(call, |slices| {
        let view = from.view(slices).map_err(|_| (Counter::Invalid, INVALID))?;
        let mut write = || {
            let mut writer = Writer::new(&to.schema, to.message(), room)?;
            mapping.write(&view, &mut writer, key)?;
            Ok(writer.finish()?)
        };
        write().map_err(|error| problem(&error))
    });
    written.unwrap_or(Err((Counter::Invalid, SLICES)))
}
