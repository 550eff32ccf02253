//! Formats whose schemas are parsed, and the ids that they have among a channel's messages.

use std::collections::HashMap;
use std::sync::Arc;

use csp_config::Problems;
use csp_formats::{Field, Message, Name, Presence, Primitive, Schema, Type, nearest};
use csp_handlers::FormatId;
use csp_operators::FormatSet;
use csp_policy::{Channel, ChannelTime, FORMAT_LEN_MAX, FORMATS_MAX, Format};

/// A format whose schema is parsed.
#[derive(Clone, Debug)]
pub struct KnownFormat {
    /// The name in the policy.
    pub name: String,
    /// The schema.
    pub schema: Arc<Schema>,
    /// The message in it.
    pub message: Name,
}

impl KnownFormat {
    /// Returns the layout of its messages.
    pub fn layout(&self) -> &Message {
        // `Format::parse` has found it.
        self.schema.message(&self.message).unwrap_or(&self.schema.messages[0])
    }
}

/// Returns the formats of a channel as operators look them up: with the ids 1, 2, ….
pub fn format_set(formats: &[KnownFormat]) -> FormatSet {
    let mut set = FormatSet::new();
    for (at, format) in formats.iter().enumerate() {
        // The ids are distinct, and the message is one of its schema's.
        let _ = set.add(FormatId(at as u32 + 1), format.schema.clone(), format.message.clone());
    }
    set
}

/// Parses the schema; notes what is wrong. Equal texts share a schema.
pub(crate) fn parse<'p>(
    format: &'p Format,
    schemas: &mut HashMap<&'p str, Option<Arc<Schema>>>,
    at: &str,
    problems: &mut Problems,
) -> Option<KnownFormat> {
    let field = format!("{at}.schema");
    if format.schema.len() > FORMAT_LEN_MAX {
        return None;
    }
    let schema = match schemas.get(format.schema.as_str()) {
        Some(known) => known.clone(),
        None => {
            let parsed = Schema::parse(&format.schema).map(Arc::new);
            if let Err(error) = &parsed {
                let place = (u64::from(error.line), u64::from(error.column));
                problems.add_inside(&field, place, error.to_string());
            }
            schemas.entry(&format.schema).or_insert(parsed.ok()).clone()
        }
    }?;
    let names = || schema.messages.iter().map(|message| &*message.name);
    let message = match &format.message {
        None if schema.messages.len() == 1 => schema.messages[0].name.clone(),
        None => {
            let names = names().collect::<Vec<_>>().join(", ");
            let message = match names.as_str() {
                "" => "the schema has no message".to_owned(),
                names => format!("name the message in `message`; the schema has {names}"),
            };
            problems.add(at, message);
            return None;
        }
        Some(name) => match schema.message(name) {
            Some(message) => message.name.clone(),
            None => {
                let near = nearest(name, names());
                let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
                problems.add(format!("{at}.message"), format!("the schema has no \"{name}\"{near}"));
                return None;
            }
        },
    };
    Some(KnownFormat { name: format.name.clone(), schema, message })
}

/// Checks that the field of a channel's time is a whole number in each of its formats; notes what is wrong.
pub(crate) fn check_time(time: &ChannelTime, formats: &[KnownFormat], at: &str, problems: &mut Problems) {
    for format in formats {
        let located = format.layout().locate(&time.field);
        let message = match &located {
            Ok(location) => match location.root_field() {
                Some(field) if is_whole(field) => continue,
                _ => format!(
                    "\"{}\" of format {} is no whole number of the root block",
                    time.field, format.name
                ),
            },
            Err(error) => format!("format {}: {error}", format.name),
        };
        problems.add(format!("{at}.time.field"), message);
    }
}

fn is_whole(field: &Field) -> bool {
    match &field.kind {
        Type::Encoded(encoded) => {
            let other = matches!(encoded.primitive, Primitive::Char | Primitive::Float | Primitive::Double);
            !other && !encoded.is_array() && field.presence != Presence::Constant
        }
        _ => false,
    }
}

/// Parses the formats; notes what is wrong with the schemas. Those that are wrong are left out.
pub(crate) fn known(formats: &[Format], problems: &mut Problems) -> HashMap<String, KnownFormat> {
    let (mut schemas, mut known) = (HashMap::new(), HashMap::new());
    for (index, format) in formats.iter().enumerate().take(FORMATS_MAX) {
        if let Some(parsed) = parse(format, &mut schemas, &format!("formats[{index}]"), problems) {
            known.insert(format.name.clone(), parsed);
        }
    }
    known
}

/// Returns the formats of a channel in the order of their ids; notes which cannot be distinguished.
pub(crate) fn of_channel(
    channel: &Channel,
    known: &HashMap<String, KnownFormat>,
    at: &str,
    problems: &mut Problems,
) -> Vec<KnownFormat> {
    let (mut formats, mut ids) = (Vec::new(), HashMap::new());
    for (index, name) in channel.formats.iter().enumerate() {
        // What is wrong with the format itself was noted there.
        let Some(format) = known.get(name) else { continue };
        // What a message's header says is all that distinguishes formats.
        if let Some(first) = ids.insert((format.schema.id, format.layout().id), name) {
            let message =
                format!("has the schema id and template id of \"{first}\": messages of both look alike");
            problems.add(format!("{at}.formats[{index}]"), message);
        }
        formats.push(format.clone());
    }
    if let Some(time) = channel.time.as_ref().filter(|_| !channel.formats.is_empty()) {
        check_time(time, &formats, at, problems);
    }
    formats
}
