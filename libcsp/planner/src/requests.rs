//! Queries that programs ask a channel for, planned when they are asked.

use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_policy::{Channel, Policy, Query, Requests, RowFormat};
use csp_queries::{Catalog, Plan, Position, QueryError, QueryProblem, ROW};
use thiserror::Error;

use crate::catalogue::{Catalogue, PlannedQuery, QuerySource, schema_id};
use crate::formats::KnownFormat;

/// A query that a program asks for.
#[derive(Clone, Copy, Debug)]
pub struct QueryRequest<'a> {
    /// Name of the channel that is asked.
    pub channel: &'a str,
    /// The query's own name: its derived schema has an id that follows from it.
    pub name: &'a str,
    /// The text.
    pub sql: &'a str,
    /// How rows are to be written.
    pub output: RowFormat,
}

/// A query that was asked for and can run.
#[derive(Clone, Debug)]
pub struct RequestedQuery {
    /// As the policy would have it.
    pub query: Query,
    /// Its plan. Its index means nothing.
    pub planned: PlannedQuery,
}

/// Why a query that was asked for cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct RequestError {
    /// What is wrong, with the place in the text and the nearest name.
    pub message: String,
    /// The line and column of the text, from 1.
    pub place: Option<(u64, u64)>,
}

/// What the queries that are asked of one channel may read.
struct Scope<'a> {
    catalogue: &'a Catalogue,
    channel: &'a str,
    with: &'a [String],
    /// What publishers have brought to the channel, by the ids of the formats.
    brought: &'a [(u32, KnownFormat)],
}

impl Scope<'_> {
    fn has(&self, name: &str) -> bool {
        let channel = name.split('/').next().unwrap_or(name);
        channel == self.channel || self.with.iter().any(|known| known == channel)
    }

    /// Returns what to say of an error: a channel may be there, and be none that such a query reads.
    fn problem_of(&self, policy: &Policy, error: &QueryError) -> String {
        let QueryProblem::Unknown { what: "channel", name, .. } = &error.problem else {
            return error.to_string();
        };
        let channel = name.split('/').next().unwrap_or(name);
        let known = policy.channels.iter().find(|known| known.name == channel);
        let why = match known {
            // What such queries cannot read is not said to be there either.
            None => return error.to_string(),
            Some(_) if !self.has(channel) => return error.to_string(),
            Some(known) if !known.pool.is_empty() => {
                format!("channel \"{channel}\" has a pool, and queries do not read it")
            }
            Some(known) if known.formats.is_empty() && self.brought.is_empty() => {
                let brought = if known.takes_formats() { ", and no publisher has brought one" } else { "" };
                format!(
                    "channel \"{channel}\" has no formats, which queries read it by: its `formats` in the policy name none{brought}"
                )
            }
            Some(_) => return error.to_string(),
        };
        let Position { line, column } = error.position;
        format!("line {line}, column {column}: {why}")
    }

    /// Returns what a name in a query stands for: policy and path come first.
    fn source(&self, name: &str) -> Option<QuerySource> {
        if !self.has(name) {
            return None;
        }
        self.catalogue.source(name).or_else(|| {
            let of_channel = name.strip_prefix(self.channel)?;
            let (format_id, format) = match of_channel.strip_prefix('/') {
                Some(name) => self.brought.iter().find(|(_, known)| known.name == name)?,
                None => self.brought.first().filter(|_| of_channel.is_empty())?,
            };
            let (channel, time) = (self.channel.to_owned(), self.catalogue.time_of(self.channel));
            let format = format.clone();
            Some(QuerySource { channel, format_id: *format_id, format, time, lost_time: false })
        })
    }
}

impl Catalog for Scope<'_> {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        let source = self.source(channel)?;
        Some((source.format.schema, source.format.message))
    }

    fn channels(&self) -> Vec<String> {
        let own = self.catalogue.channels().into_iter().filter(|name| self.has(name));
        let brought = self.brought.iter().map(|(_, format)| format!("{}/{}", self.channel, format.name));
        own.chain(brought).collect()
    }
}

impl Catalogue {
    /// Plans a query that a program asks for. `brought` are the formats that publishers have brought to the
    /// channel, by their ids.
    ///
    /// # Errors
    /// The channel has none, the text is wrong, or the query cannot run.
    pub fn request(
        &self,
        policy: &Policy,
        asked: QueryRequest<'_>,
        brought: &[(u32, KnownFormat)],
    ) -> Result<RequestedQuery, RequestError> {
        let (channel, requests) = asked_channel(policy, asked.channel)?;
        let (name, sql) = (asked.name.to_owned(), asked.sql.to_owned());
        let query = requests.query(channel, name.clone(), requests.port, sql, asked.output);
        let scope = Scope { catalogue: self, channel: &channel.name, with: &requests.with, brought };
        let plan = Plan::new(asked.sql, &scope, schema_id(&query)).map_err(|error| RequestError {
            message: scope.problem_of(policy, &error),
            place: Some((error.position.line, error.position.column)),
        })?;
        let sources = plan.sources.iter().filter_map(|source| scope.source(&source.channel)).collect();
        let result = KnownFormat { name, schema: plan.derived.schema.clone(), message: Name::from(ROW) };
        let planned = PlannedQuery { index: 0, plan: Arc::new(plan), result, sources };
        planned.handler(&query, 0).map_err(|error| RequestError::new(error.to_string()))?;
        Ok(RequestedQuery { query, planned })
    }
}

/// Returns a channel that programs may ask, and what they may ask of it.
pub(crate) fn asked_channel<'p>(
    policy: &'p Policy,
    name: &str,
) -> Result<(&'p Channel, &'p Requests), RequestError> {
    let channel = policy.channels.iter().find(|known| known.name == name);
    let found = channel.and_then(|channel| Some((channel, channel.requests.as_ref()?)));
    found.ok_or_else(|| RequestError::new(format!("{name} has no queries on request")))
}

impl RequestError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        RequestError { message: message.into(), place: None }
    }
}
