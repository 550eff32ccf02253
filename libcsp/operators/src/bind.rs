//! Parameters that are fragments of SQL, bound to each format that they fit.

use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_handlers::{FormatId, ParameterError};
use csp_queries::{Catalog, Plan, QueryError};

use crate::formats::{Format, FormatError, FormatSet};
use crate::parameters::find_word;

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
    pub input: FormatId,
    pub plan: Plan,
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

/// The plan of a SELECT list over one format, and the format of its result.
pub(crate) fn projection(
    set: &FormatSet,
    id: FormatId,
    format: &Format,
    list: &str,
) -> Result<Bound, String> {
    bind(set, id, format, &format!("SELECT\n{list}\nFROM {MESSAGE}"))
}

/// The plan of a SELECT list that may have a condition behind WHERE.
pub(crate) fn row(set: &FormatSet, id: FormatId, format: &Format, text: &str) -> Result<Bound, String> {
    match find_word(text, "where") {
        Some(at) => {
            let (list, condition) = (&text[..at], &text[at + "where".len()..]);
            bind(set, id, format, &format!("SELECT\n{list} FROM {MESSAGE} WHERE {condition}"))
        }
        None => projection(set, id, format, text),
    }
}

fn bind(set: &FormatSet, input: FormatId, format: &Format, sql: &str) -> Result<Bound, String> {
    let made = set.derive(|schema_id| {
        let plan = Plan::new(sql, &One(format), schema_id).map_err(Unbound::Query)?;
        let (schema, xml) = (plan.derived.schema.clone(), plan.derived.xml.clone());
        Ok((plan, schema, xml))
    });
    let (plan, output) = made.map_err(Unbound::message)?;
    Ok(Bound { input, plan, output })
}

/// Binds something to each format that it fits.
///
/// # Errors
/// It fits none: the error of the format that is named first.
pub(crate) fn each<T>(
    set: &FormatSet,
    mut bind: impl FnMut(FormatId, &Format) -> Result<T, String>,
) -> Result<Vec<T>, ParameterError> {
    let (mut bound, mut first) = (Vec::new(), None);
    for (id, format) in set.all() {
        match bind(id, &format) {
            Ok(found) => bound.push(found),
            Err(error) => first = first.or(Some((format.name.clone(), error))),
        }
    }
    match first {
        _ if !bound.is_empty() => Ok(bound),
        Some((name, error)) => Err(ParameterError(format!("for messages \"{name}\": {error}"))),
        None => Err(ParameterError("the channel has no formats".to_owned())),
    }
}
