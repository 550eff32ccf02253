//! A request, as it is read from its text.

use serde_json::{Map, Value};

use super::handlers::HandlerAsked;
use super::{QueryRefused, Wanted, brought};
use crate::messages::requests::{ENVELOPE, REQUEST_LEN_MAX, too_long};

/// The answer to a request that is not understood.
const FORM: &str = "a request is an object such as {\"get\": \"channel\"}, {\"query\": \"SELECT …\"} or {\"release\": \"…\"}";

/// A request to a channel.
#[derive(Clone, PartialEq, Debug)]
pub enum Asked {
    /// `{"get": "channel"}`: what the channel is.
    Channel,
    /// `{"get": "formats"}`: the formats of its messages.
    Formats,
    /// `{"get": "queries"}`: the queries that were asked of it.
    Queries,
    /// `{"get": "handlers"}`: the handlers that were brought to it.
    Handlers,
    /// `{"release": NAME}`: a query, format or handler is no longer needed. The name is text in every request
    /// that succeeds.
    Release(Value),
    /// `{"query": …}` or `{"translate": …}`.
    Query {
        /// The query or translation.
        wanted: Wanted,
        /// Whether rows are JSON.
        json: bool,
    },
    /// `{"format": …}`: a publisher brings a format.
    Format {
        /// Its name.
        name: String,
        /// The schema, as XML.
        xml: String,
        /// The message of the schema; `None`: its only one.
        message: Option<String>,
    },
    /// `{"handler": …}`: a program brings a handler.
    Handler(HandlerAsked),
}

/// Why a text is no request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AskedError {
    /// It has not the form of a request; contains the answer.
    Form(String),
    /// What it asks for has another form.
    Refused(QueryRefused),
}

impl From<QueryRefused> for AskedError {
    fn from(refused: QueryRefused) -> Self {
        AskedError::Refused(refused)
    }
}

impl Asked {
    /// Reads a request. `alone`: no frame follows it. Only a request for a handler is followed by one, its
    /// module.
    ///
    /// # Errors
    /// The text is no JSON, or no request.
    pub fn read(text: &[u8], alone: bool) -> Result<Self, AskedError> {
        let hint = if alone { String::new() } else { format!("; {ENVELOPE}") };
        let request: Value = serde_json::from_slice(text)
            .map_err(|error| AskedError::Form(format!("not JSON: {error}{hint}")))?;
        let Value::Object(request) = request else { return Err(AskedError::Form(format!("{FORM}{hint}"))) };
        if request.contains_key("handler") {
            return Ok(Asked::Handler(HandlerAsked::read(&request)?));
        }
        if !alone {
            let only = "only a request for a handler is followed by a further frame";
            return Err(AskedError::Form(only.to_owned()));
        }
        let has_schema = request.contains_key("format") || request.contains_key("translate");
        if text.len() > REQUEST_LEN_MAX && !has_schema {
            return Err(AskedError::Form(too_long(REQUEST_LEN_MAX)));
        }
        if request.contains_key("format") {
            let asked = brought::read(&request)?;
            let (name, xml) = (asked.name.to_owned(), asked.xml.to_owned());
            return Ok(Asked::Format { name, xml, message: asked.message.map(str::to_owned) });
        }
        if request.contains_key("query") || request.contains_key("translate") {
            let (wanted, json) = Wanted::read(&request)?;
            return Ok(Asked::Query { wanted, json });
        }
        Asked::get_or_release(request)
    }

    fn get_or_release(mut request: Map<String, Value>) -> Result<Self, AskedError> {
        if let Some(name) = request.remove("release") {
            return Ok(Asked::Release(name));
        }
        match request.get("get").and_then(Value::as_str) {
            Some("channel") => Ok(Asked::Channel),
            Some("formats") => Ok(Asked::Formats),
            Some("queries") => Ok(Asked::Queries),
            Some("handlers") => Ok(Asked::Handlers),
            Some(other) => Err(AskedError::Form(format!(
                "`{other}` is not known; `get` may be \"channel\", \"formats\", \"handlers\" or \"queries\""
            ))),
            None => Err(AskedError::Form(FORM.to_owned())),
        }
    }
}
