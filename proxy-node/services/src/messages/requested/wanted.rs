//! Requests of programs for a query or a translation of a channel.

use std::fmt;

use serde_json::{Map, Value};

use super::{QueryRefused, refused};

/// A request of a program for a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The rows of a query: its text.
    Query(String),
    /// Its messages in a format of the program's own.
    Translation {
        /// The schema, as XML.
        schema: String,
        /// The message of the schema; `None`: its only one.
        message: Option<String>,
    },
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Query(sql) => f.write_str(sql),
            Wanted::Translation { message: Some(message), .. } => write!(f, "translation to {message}"),
            Wanted::Translation { message: None, .. } => f.write_str("translation"),
        }
    }
}

impl Wanted {
    /// Parses a request. Returns it, and whether rows are JSON.
    pub(super) fn read(request: &Map<String, Value>) -> Result<(Wanted, bool), QueryRefused> {
        let json = match request.get("output").map(Value::as_str) {
            None | Some(Some("sbe")) => false,
            Some(Some("json")) => true,
            Some(_) => return Err(refused("`output` may be \"sbe\" or \"json\"")),
        };
        let (what, wanted) = match (request.get("query"), request.get("translate")) {
            (Some(sql), None) => {
                let sql = sql.as_str().ok_or_else(|| refused("`query` is the text of a query"))?;
                ("query", Wanted::Query(sql.trim().to_owned()))
            }
            (None, Some(format)) => {
                let (schema, message) = schema("translate", format)?;
                ("translate", Wanted::Translation { schema, message })
            }
            _ => return Err(refused("a request has `query` or `translate`")),
        };
        match request.keys().find(|key| *key != what && *key != "output") {
            Some(other) => {
                Err(refused(format!("`{other}` is not known; beside `{what}` there may be `output`")))
            }
            None => Ok((wanted, json)),
        }
    }
}

/// Reads `{"schema": XML, "message": NAME}`.
fn schema(key: &str, value: &Value) -> Result<(String, Option<String>), QueryRefused> {
    let form = || refused(format!("`{key}` is an object: {{\"schema\": XML, \"message\": NAME}}"));
    let object = value.as_object().ok_or_else(form)?;
    let text = |name: &str| object.get(name).map(|text| text.as_str().map(str::to_owned).ok_or_else(form));
    if object.keys().any(|key| key != "schema" && key != "message") {
        return Err(form());
    }
    let schema = text("schema").ok_or_else(form)??;
    Ok((schema, text("message").transpose()?))
}
