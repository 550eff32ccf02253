//! Parameters that are fragments of SQL, bound to each format that they fit.

use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_handlers::{FormatId, ParameterError};
use csp_queries::{Catalog, Plan, QueryError};

use crate::formats::{DERIVED_FIRST, Format, FormatError, FormatSet};
use crate::parameters::find_word;
use crate::row::Ready;

/// What fragments of SQL call the message.
pub const MESSAGE: &str = "message";

/// One format as the only channel of a query.
pub(crate) struct One<'a>(pub &'a Format);

impl Catalog for One<'_> {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        (channel == MESSAGE).then(|| (self.0.schema.clone(), self.0.name.clone()))
    }

    fn channels(&self) -> Vec<String> {
        vec![MESSAGE.to_owned()]
    }
}

/// The plan for messages of one format.
#[derive(Debug)]
pub(crate) struct Bound {
    pub plan: Ready,
    /// The format of results.
    pub output: FormatId,
}

/// A plan that is not made.
#[derive(Debug)]
pub(crate) enum Unbound {
    Query(QueryError),
    Format(FormatError),
}

impl From<FormatError> for Unbound {
    fn from(error: FormatError) -> Self {
        Unbound::Format(error)
    }
}

impl Unbound {
    /// The error of a query that was given as a whole.
    pub fn whole(self) -> String {
        match self {
            Unbound::Query(error) => error.to_string(),
            Unbound::Format(error) => error.to_string(),
        }
    }

    /// The error with positions in the fragment, which begins at the second line of the query.
    fn message(self) -> String {
        match self {
            Unbound::Query(mut error) => {
                error.position.line = error.position.line.saturating_sub(1).max(1);
                error.to_string()
            }
            Unbound::Format(error) => error.to_string(),
        }
    }
}

/// The plan of a condition over one format. Its result is not used.
pub(crate) fn condition(format: &Format, text: &str) -> Result<Plan, String> {
    let sql = format!("SELECT 1 AS one FROM {MESSAGE} WHERE\n{text}");
    Plan::new(&sql, &One(format), 0).map_err(|error| Unbound::Query(error).message())
}

/// The same, ready for messages of a channel.
pub(crate) fn ready_condition(set: &FormatSet, format: &Format, text: &str) -> Result<Ready, String> {
    Ok(Ready::new(condition(format, text)?).specialised(set.specialiser(), true))
}

/// The plan of a SELECT list over one format, and the format of its result.
pub(crate) fn projection(set: &FormatSet, format: &Format, list: &str) -> Result<Bound, String> {
    bind(set, format, &format!("SELECT\n{list}\nFROM {MESSAGE}"))
}

/// The plan of a SELECT list that may have a condition behind WHERE.
pub(crate) fn row(set: &FormatSet, format: &Format, text: &str) -> Result<Bound, String> {
    match find_word(text, "where") {
        Some(at) => {
            let (list, condition) = (&text[..at], &text[at + "where".len()..]);
            bind(set, format, &format!("SELECT\n{list} FROM {MESSAGE} WHERE {condition}"))
        }
        None => projection(set, format, text),
    }
}

fn bind(set: &FormatSet, format: &Format, sql: &str) -> Result<Bound, String> {
    let made = set.derive(|schema_id| {
        let plan = Plan::new(sql, &One(format), schema_id).map_err(Unbound::Query)?;
        let (schema, xml) = (plan.derived.schema.clone(), plan.derived.xml.clone());
        Ok((plan, schema, xml))
    });
    let (plan, output) = made.map_err(Unbound::message)?;
    Ok(Bound { plan: Ready::new(plan).specialised(set.specialiser(), false), output })
}

/// What an operator has for each format that its parameters fit.
///
/// All formats are bound when the operator is configured. A format that an earlier stage derives later,
/// because its parameters have changed, is bound with its first message.
#[derive(Debug)]
pub(crate) struct Bindings<T> {
    formats: Arc<FormatSet>,
    bound: Vec<(FormatId, T)>,
    /// Formats that were looked at with their first message.
    tried: Vec<FormatId>,
}

impl<T> Bindings<T> {
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        Bindings { formats: formats.clone(), bound: Vec::new(), tried: Vec::new() }
    }

    pub fn formats(&self) -> &Arc<FormatSet> {
        &self.formats
    }

    #[inline]
    pub fn get(&self, id: FormatId) -> Option<&T> {
        self.bound.iter().find(|(known, _)| *known == id).map(|(_, bound)| bound)
    }

    #[inline]
    pub fn get_mut(&mut self, id: FormatId) -> Option<&mut T> {
        self.bound.iter_mut().find(|(known, _)| *known == id).map(|(_, bound)| bound)
    }

    /// Binds parameters to each format that they fit.
    ///
    /// # Errors
    /// They fit none: the error of the format that is named first. What was bound stays.
    pub fn bind(
        &mut self,
        mut bind: impl FnMut(FormatId, &Arc<Format>) -> Result<T, String>,
    ) -> Result<(), ParameterError> {
        let (mut bound, mut first) = (Vec::new(), None);
        for (id, format) in self.formats.all() {
            match bind(id, &format) {
                Ok(found) => bound.push((id, found)),
                Err(error) => first = first.or(Some((format.name.clone(), error))),
            }
        }
        match first {
            _ if !bound.is_empty() => {
                (self.bound, self.tried) = (bound, Vec::new());
                Ok(())
            }
            Some((name, error)) => Err(ParameterError(format!("for messages \"{name}\": {error}"))),
            None => Err(ParameterError("the channel has no formats".to_owned())),
        }
    }

    /// Binds a format with its first message. Returns whether it fits.
    #[cold]
    pub fn late(
        &mut self,
        id: FormatId,
        bind: impl FnOnce(FormatId, &Arc<Format>) -> Result<T, String>,
    ) -> bool {
        if id.0 < DERIVED_FIRST || self.tried.contains(&id) {
            return false;
        }
        let Some(format) = self.formats.get(id) else { return false };
        self.tried.push(id);
        match bind(id, &format) {
            Ok(bound) => {
                self.bound.push((id, bound));
                true
            }
            Err(_) => false,
        }
    }
}
