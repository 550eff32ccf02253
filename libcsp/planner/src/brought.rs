//! What programs bring along when they ask a channel: formats of publishers, and the format that a reader
//! wants messages in.

use std::collections::HashMap;
use std::sync::Arc;

use csp_config::Problems;
use csp_handlers::{FormatId, ParameterError};
use csp_operators::{FormatSet, Translate};
use csp_policy::{FORMAT_LEN_MAX, Format, Policy, Query, RowFormat, check_name};

use crate::catalogue::{Catalogue, QuerySource};
use crate::formats::{self, KnownFormat, check_time};
use crate::requests::{RequestError, asked_channel};

/// A translation that a program asks for: the messages of a channel, in a format of the program's own.
#[derive(Clone, Copy, Debug)]
pub struct TranslationRequest<'a> {
    /// Name of the channel that is asked.
    pub channel: &'a str,
    /// The translation's own name.
    pub name: &'a str,
    /// The schema of the wanted format, as XML.
    pub schema: &'a str,
    /// The message of the schema; `None`: its only one.
    pub message: Option<&'a str>,
    /// How messages are to be written.
    pub output: RowFormat,
}

/// A translation that was asked for and can run.
#[derive(Clone, Debug)]
pub struct RequestedTranslation {
    /// Its channel, context and memory, as a query without text.
    pub query: Query,
    /// What is translated, with the ids from 1 on, and the wanted format behind it.
    pub formats: Arc<FormatSet>,
    /// The wanted format.
    pub target: KnownFormat,
    /// What it gets: of the channel's formats those that can be translated.
    pub sources: Vec<QuerySource>,
}

impl RequestedTranslation {
    /// The id of the wanted format. The sources have the ids before it.
    pub fn output(&self) -> FormatId {
        FormatId(self.sources.len() as u32 + 1)
    }

    /// Makes what translates.
    ///
    /// # Errors
    /// The formats do not fit, which was checked.
    pub fn handler(&self) -> Result<Translate, ParameterError> {
        Translate::into_format(&self.formats, self.output())
    }
}

impl Catalogue {
    /// Checks a format that a publisher brings to a channel beside the policy's, and those that were brought
    /// before.
    ///
    /// # Errors
    /// The schema is wrong, or messages could not be distinguished from those of other formats of the
    /// channel.
    pub fn bring(
        &self,
        policy: &Policy,
        channel: &str,
        format: &Format,
        brought: &[(u32, KnownFormat)],
    ) -> Result<KnownFormat, RequestError> {
        let (asked, _) = asked_channel(policy, channel)?;
        let known = parse(format)?;
        let at = policy.channels.iter().position(|known| known.name == asked.name);
        let own = at.and_then(|at| self.channels.get(at)).map_or(&[][..], |known| known);
        for other in own.iter().chain(brought.iter().map(|(_, known)| known)) {
            let both = [other, &known].map(|format| (format.schema.id, format.layout().id));
            if other.name == known.name {
                return Err(RequestError::new(format!(
                    "the channel has a format \"{}\" already",
                    known.name
                )));
            }
            if both[0] == both[1] {
                let message = format!(
                    "has the schema id and template id of \"{}\": messages of both look alike",
                    other.name
                );
                return Err(RequestError::new(message));
            }
        }
        if let Some(time) = &asked.time {
            let mut problems = Problems::default();
            check_time(time, std::slice::from_ref(&known), "", &mut problems);
            first(&problems)?;
        }
        Ok(known)
    }

    /// Plans a translation of a channel's messages, behind its path. `brought` are the formats that
    /// publishers have brought to it, by their ids.
    ///
    /// # Errors
    /// The schema is wrong, or no format of the channel has what the wanted one must have.
    pub fn translate(
        &self,
        policy: &Policy,
        asked: TranslationRequest<'_>,
        brought: &[(u32, KnownFormat)],
    ) -> Result<RequestedTranslation, RequestError> {
        let (channel, requests) = asked_channel(policy, asked.channel)?;
        let name = "wanted".to_owned();
        let format =
            Format { name, schema: asked.schema.to_owned(), message: asked.message.map(str::to_owned) };
        let target = parse(&format)?;
        let readable = self.readable.iter().find(|(name, _)| *name == channel.name);
        let (own, time) = readable.map_or((&[][..], None), |(_, known)| (&known.formats, known.time.clone()));
        let source = |(id, format): &(u32, KnownFormat)| QuerySource {
            channel: channel.name.clone(),
            format_id: *id,
            format: format.clone(),
            time: time.clone(),
            lost_time: false,
        };
        let (mut sources, mut why) = (Vec::new(), None);
        for source in own.iter().chain(brought).map(source) {
            match translates(std::slice::from_ref(&source), &target) {
                Ok(_) => sources.push(source),
                Err(error) => why = why.or(Some(error)),
            }
        }
        if sources.is_empty() {
            let nothing = || RequestError::new("the channel has no formats yet");
            return Err(why.unwrap_or_else(nothing));
        }
        let formats = translates(&sources, &target)?;
        let query =
            requests.query(channel, asked.name.to_owned(), requests.port, String::new(), asked.output);
        Ok(RequestedTranslation { query, formats, target, sources })
    }
}

/// Returns the formats of a translation, if each source can be translated.
fn translates(sources: &[QuerySource], target: &KnownFormat) -> Result<Arc<FormatSet>, RequestError> {
    let mut set = FormatSet::new();
    let wrong = |error: String| RequestError::new(error);
    let all = sources.iter().map(|source| &source.format).chain([target]);
    for (at, format) in all.enumerate() {
        let added = set.add(FormatId(at as u32 + 1), format.schema.clone(), format.message.clone());
        added.map_err(|error| wrong(error.to_string()))?;
    }
    let set = Arc::new(set);
    let made = Translate::into_format(&set, FormatId(sources.len() as u32 + 1));
    made.map_err(|error| wrong(error.to_string()))?;
    Ok(set)
}

fn parse(format: &Format) -> Result<KnownFormat, RequestError> {
    let mut problems = Problems::default();
    check_name(&format.name, "format", "", &mut problems);
    if format.schema.len() > FORMAT_LEN_MAX {
        let message = format!("has {} bytes; allowed are {FORMAT_LEN_MAX}", format.schema.len());
        problems.add(".schema", message);
    }
    let known = formats::parse(format, &mut HashMap::new(), "", &mut problems);
    first(&problems)?;
    known.ok_or_else(|| RequestError::new("is no schema"))
}

/// The first problem as the answer to a request.
fn first(problems: &Problems) -> Result<(), RequestError> {
    match problems.first() {
        Some((message, place)) => Err(RequestError { message: message.to_owned(), place }),
        None => Ok(()),
    }
}
