//! Requests of the admin endpoint that data threads answer, and the parameters of their URLs.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use csp_api::TraceEntry;
use csp_telemetry::{MailboxError, MailboxSender, Reply};
use csp_types::{FlowLabel, TraceEvent};
use serde::Deserialize;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// `?limit=`: the number of requested entries.
#[derive(Deserialize, Debug)]
pub struct Limit {
    limit: Option<usize>,
}

impl Limit {
    /// The number: 100 by default, at most 10,000.
    pub fn get(&self) -> usize {
        self.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX)
    }
}

/// `?label=`: a flow label, eight hexadecimal digits.
#[derive(Deserialize, Debug)]
pub struct Label {
    label: String,
}

impl Label {
    /// The label.
    pub fn get(&self) -> Result<FlowLabel, QueryError> {
        let digits = self.label.len() == 8 && self.label.bytes().all(|b| b.is_ascii_hexdigit());
        let parsed = digits.then(|| u32::from_str_radix(&self.label, 16).ok()).flatten();
        let label = parsed.and_then(FlowLabel::from_wire).filter(|label| !label.is_none());
        label.ok_or_else(|| QueryError::Label(self.label.clone()))
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The text is not a label.
    #[error("label {0:?}: eight hex digits are expected, such as 00000001")]
    Label(String),
    /// A data worker did not answer.
    #[error("a data worker: {0}")]
    Unanswered(#[from] MailboxError),
}

impl IntoResponse for QueryError {
    fn into_response(self) -> Response {
        let status = match self {
            QueryError::Label(_) => StatusCode::BAD_REQUEST,
            QueryError::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// The data workers of a node, as seen by its admin endpoint.
#[derive(Debug)]
pub struct Workers<Q> {
    /// The node's id.
    pub node: String,
    /// The workers' mailboxes, by worker number.
    pub mailboxes: Vec<MailboxSender<Q>>,
}

impl<Q> Clone for Workers<Q> {
    fn clone(&self) -> Self {
        Workers { node: self.node.clone(), mailboxes: self.mailboxes.clone() }
    }
}

impl<Q> Workers<Q> {
    /// Returns every worker's answer, by worker number.
    pub async fn ask<R>(&self, question: impl Fn(Reply<R>) -> Q) -> Result<Vec<R>, QueryError> {
        let mut answers = Vec::with_capacity(self.mailboxes.len());
        for mailbox in &self.mailboxes {
            answers.push(mailbox.ask(ANSWER_TIMEOUT, &question).await?);
        }
        Ok(answers)
    }

    /// The events of the workers' flight recorders that `question` asks for.
    pub async fn trace(
        &self,
        question: impl Fn(Reply<Vec<TraceEvent>>) -> Q,
    ) -> Result<Json<Vec<TraceEntry>>, QueryError> {
        let answers = self.ask(question).await?;
        let of_all = answers.iter().enumerate().flat_map(|(worker, events)| {
            events.iter().map(move |event| TraceEntry::new(event, &self.node, worker as u32))
        });
        Ok(Json(of_all.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_eight_hexadecimal_digits_and_not_none() {
        let get = |label: &str| Label { label: label.to_owned() }.get();
        assert_eq!(get("0100000a").unwrap().to_string(), "0100000a");
        for wrong in ["", "1", "00000000", "0000000g", "000000001", "+0000001"] {
            let error = get(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("eight hex digits"), "{error}");
        }
    }

    #[test]
    fn a_limit_has_a_default_and_a_bound() {
        for (given, expected) in [(None, 100), (Some(7), 7), (Some(1_000_000), 10_000)] {
            assert_eq!(Limit { limit: given }.get(), expected);
        }
    }
}
