//! The formats of one channel, by their ids.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use csp_formats::{Message, MessageView, Name, Schema, ViewError};
use csp_handlers::FormatId;
use thiserror::Error;

use crate::choice::Rules;
use crate::special::Specialiser;

/// The id of JSON texts, on each channel.
pub const JSON: FormatId = FormatId(u32::MAX);
/// The first id of formats that operators derive. Formats of the channel have ids below it.
pub const DERIVED_FIRST: u32 = 1 << 16;
/// Most formats that the operators of one channel derive.
pub const DERIVED_MAX: usize = 256;
/// Schema ids of derived formats are searched from here upwards.
const SCHEMA_ID_FIRST: u16 = 0xf000;

/// One message of a schema.
#[derive(Clone, Debug)]
pub struct Format {
    /// The schema.
    pub schema: Arc<Schema>,
    /// The message's name in it.
    pub name: Name,
    /// The schema as XML, of formats that operators have derived.
    pub xml: Option<Arc<str>>,
    index: usize,
}

/// Why a format is not added.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum FormatError {
    /// Ids are 1 to 65535.
    #[error("{0} is no id of a channel's format: 1 to 65535")]
    Id(u32),
    /// Another format has the id.
    #[error("two formats have the id {0}")]
    Taken(u32),
    /// The schema has no such message.
    #[error("schema {schema} has no message \"{name}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
    NoMessage { schema: u16, name: String, nearest: Option<String> },
    /// The channel's operators have derived as many formats as they may.
    #[error("the operators of a channel derive at most {DERIVED_MAX} formats")]
    TooMany,
}

/// The formats of one channel, and those that its operators have derived from them.
///
/// The channel's formats are added once; those of operators' results are added when the operators are
/// configured. Operators look formats up when they are configured, and never for a message.
#[derive(Debug, Default)]
pub struct FormatSet {
    seed: Option<u64>,
    specialiser: OnceLock<(Arc<dyn Specialiser>, Rules)>,
    formats: Vec<(FormatId, Arc<Format>)>,
    derived: Mutex<Vec<Derived>>,
}

/// A derived format.
#[derive(Debug)]
struct Derived {
    /// All of its schema but the id.
    key: String,
    format: Arc<Format>,
}

impl Format {
    /// A message of a schema.
    ///
    /// # Errors
    /// The schema has no message of that name.
    pub fn new(schema: Arc<Schema>, name: Name) -> Result<Self, FormatError> {
        let found = schema.messages.iter().position(|message| message.name == name);
        let index = found.ok_or_else(|| FormatError::NoMessage {
            schema: schema.id,
            name: name.to_string(),
            nearest: csp_formats::nearest(&name, schema.messages.iter().map(|message| &*message.name)),
        })?;
        Ok(Format { schema, name, xml: None, index })
    }

    /// The message's layout.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.schema.messages[self.index]
    }

    /// Views bytes as a message of this format.
    ///
    /// # Errors
    /// They are none.
    pub fn view<'s, 'b>(&'s self, slices: &'b [&'b [u8]]) -> Result<MessageView<'s, 'b>, Invalid> {
        view(&self.schema, self.message(), slices)
    }
}

/// Bytes are no message of the format that they are said to have.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum Invalid {
    /// They are no message of the schema.
    #[error(transparent)]
    View(#[from] ViewError),
    /// They are another message of the schema.
    #[error("another message of the schema")]
    Other,
}

/// Views bytes as one message of a schema.
pub(crate) fn view<'s, 'b>(
    schema: &'s Schema,
    message: &Message,
    slices: &'b [&'b [u8]],
) -> Result<MessageView<'s, 'b>, Invalid> {
    let view = MessageView::new(schema, slices)?;
    // Fields that were located in one message mean nothing in another.
    if view.message.id == message.id { Ok(view) } else { Err(Invalid::Other) }
}

impl FormatSet {
    /// No formats.
    #[must_use]
    pub fn new() -> Self {
        FormatSet::default()
    }

    /// Sets what determines the hash of keys in operators of the channel. Publishers should not know it; as
    /// long as it stays, state outlives a change of the path.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = Some(seed);
    }

    /// What determines the hash of keys, if it was set.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Sets what makes code for operators of the channel that are configured from now on, and how it is
    /// compared with theirs. The first one stays.
    pub fn set_specialiser(&self, specialiser: Arc<dyn Specialiser>, rules: Rules) {
        _ = self.specialiser.set((specialiser, rules));
    }

    pub(crate) fn specialiser(&self) -> Option<&(Arc<dyn Specialiser>, Rules)> {
        self.specialiser.get()
    }

    /// Adds a format of the channel.
    ///
    /// # Errors
    /// When the id is 0, too large or taken, or the schema has no such message.
    pub fn add(&mut self, id: FormatId, schema: Arc<Schema>, name: Name) -> Result<(), FormatError> {
        if !(1..DERIVED_FIRST).contains(&id.0) {
            return Err(FormatError::Id(id.0));
        }
        let Err(at) = self.formats.binary_search_by_key(&id, |(id, _)| *id) else {
            return Err(FormatError::Taken(id.0));
        };
        self.formats.insert(at, (id, Arc::new(Format::new(schema, name)?)));
        Ok(())
    }

    /// The format of that id, derived ones included.
    #[must_use]
    pub fn get(&self, id: FormatId) -> Option<Arc<Format>> {
        if id.0 >= DERIVED_FIRST {
            let at = (id.0 - DERIVED_FIRST) as usize;
            return self.lock().get(at).map(|derived| derived.format.clone());
        }
        let at = self.formats.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.formats[at].1.clone())
    }

    /// The format whose message has a name; the channel's formats come first.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<(FormatId, Arc<Format>)> {
        self.all().into_iter().find(|(_, format)| &*format.name == name)
    }

    /// All formats, derived ones behind those of the channel.
    #[must_use]
    pub fn all(&self) -> Vec<(FormatId, Arc<Format>)> {
        let derived = self.derived();
        self.formats.iter().cloned().chain(derived).collect()
    }

    /// The formats that operators have derived.
    #[must_use]
    pub fn derived(&self) -> Vec<(FormatId, Arc<Format>)> {
        let derived = self.lock();
        let id = |at: usize| FormatId(DERIVED_FIRST + at as u32);
        derived.iter().enumerate().map(|(at, derived)| (id(at), derived.format.clone())).collect()
    }

    /// The id of the format of some bytes, by their message header: [`FormatId::UNKNOWN`] if no format fits.
    #[must_use]
    pub fn identify(&self, slices: &[&[u8]]) -> FormatId {
        let fits = |(_, format): &&(FormatId, Arc<Format>)| format.view(slices).is_ok();
        self.formats.iter().find(fits).map_or(FormatId::UNKNOWN, |(id, _)| *id)
    }

    /// Adds the result's format of an operator, unless there is an equal one: equal results have one id,
    /// whoever derives them. `make` gets the id that the schema has to have.
    pub(crate) fn derive<T, E: From<FormatError>>(
        &self,
        make: impl Fn(u16) -> Result<(T, Arc<Schema>, String), E>,
    ) -> Result<(T, FormatId), E> {
        let mut all = self.lock();
        // Formats are equal if their schemas are, but for the id; however these are written.
        let schema = make(0)?.1;
        let key = format!("{:?} {:?}", schema.byte_order, schema.messages);
        let known = all.iter().position(|derived| derived.key == key);
        let schema_id = match known {
            Some(at) => all[at].format.schema.id,
            None if all.len() >= DERIVED_MAX => return Err(FormatError::TooMany.into()),
            None => self.free_schema_id(&all),
        };
        let (made, schema, xml) = make(schema_id)?;
        let at = known.unwrap_or(all.len());
        if known.is_none() {
            let name = schema.messages[0].name.clone();
            let format = Arc::new(Format { schema, name, xml: Some(xml.into()), index: 0 });
            all.push(Derived { key, format });
        }
        Ok((made, FormatId(DERIVED_FIRST + at as u32)))
    }

    fn free_schema_id(&self, derived: &[Derived]) -> u16 {
        let taken = |id: u16| {
            let formats = self.formats.iter().map(|(_, format)| format);
            formats.chain(derived.iter().map(|derived| &derived.format)).any(|format| format.schema.id == id)
        };
        // There are fewer formats than ids.
        (SCHEMA_ID_FIRST..=u16::MAX)
            .chain(0..SCHEMA_ID_FIRST)
            .find(|id| !taken(*id))
            .unwrap_or(SCHEMA_ID_FIRST)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Derived>> {
        self.derived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
