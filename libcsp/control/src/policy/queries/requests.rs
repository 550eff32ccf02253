//! Queries on request: what programs may ask a channel for, and the addresses that are kept for their rows.
//!
//! Each query that runs has a port of the channel's address. The ports stand in the policy, so that network nodes know whose they
//! are before anything is asked; what is asked, and by whom, only the owner of the channel knows.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use csp_formats::{Name, Schema, nearest};
use csp_queries::{Catalog, Plan, Position, QueryError, QueryProblem, ROW};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::brought_handlers::BroughtHandlers;
use super::{
    Catalogue, Channel, ChannelMemory, KnownFormat, PlannedQuery, Policy, Query, QueryLimits, QuerySource,
    ReceiverQueue, RowFormat, first_context, is_default, is_first_context,
};
use crate::config::{Problems, number, port};

/// Most queries that programs may have asked for at a time, over all channels of a policy.
pub const REQUESTED_MAX: usize = 64;
/// Longest time that a query runs without subscribers, in seconds.
const LEASE_S_MAX: u64 = 86_400;

/// `requests:` of a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// The first port of the channel's address for rows; each query that runs has one, from here on.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// Queries at a time.
    #[serde(default = "queries", deserialize_with = "read_queries")]
    pub queries: u16,
    /// Of them, those of one requester: the owner of a key, or an address.
    #[serde(default = "each", deserialize_with = "read_queries")]
    pub each: u16,
    /// Formats that publishers may bring to the channel, at a time.
    #[serde(default, deserialize_with = "read_formats", skip_serializing_if = "is_default")]
    pub formats: u16,
    /// Programs may bring handlers; absent: nobody may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handlers: Option<BroughtHandlers>,
    /// What else queries may read, beside the channel: names of channels and queries, which then live where it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<String>,
    /// Seconds from when the last subscriber has left, or from the request if none came, until a query ends.
    #[serde(default = "lease_s", deserialize_with = "read_lease_s")]
    pub lease_s: u32,
    /// The context of the proxy worker that runs the queries: `c0` to `c7`.
    #[serde(default = "first_context", skip_serializing_if = "is_first_context")]
    pub context: String,
    /// Bounds of what each keeps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: QueryLimits,
    /// The queue of each subscriber.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: ReceiverQueue,
    /// Memory of each for its rows, and for messages that wait for it.
    #[serde(default = "memory")]
    pub memory: ChannelMemory,
}

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

impl Requests {
    /// Returns the channels at which the queries' subscribers connect: those of `channel`, of which this is a part.
    fn places<'a>(&'a self, channel: &'a Channel) -> impl Iterator<Item = Channel> + 'a {
        let ports = (1..=self.queries).map_while(|n| Some((n, self.port.checked_add(n - 1)?)));
        ports.map(|(n, port)| {
            let name = format!("{}.{n}", channel.name);
            let place = self.query(channel, name, port, String::new(), RowFormat::Sbe).channel();
            Channel { message_kib: self.place_message_kib(channel, place.message_kib), ..place }
        })
    }

    /// Returns the number of the context that runs queries and handlers.
    pub fn context_number(&self) -> u16 {
        super::context_of(&self.context).unwrap_or(0) // the policy names no other
    }

    pub(super) fn query(
        &self,
        channel: &Channel,
        name: String,
        port: u16,
        sql: String,
        output: RowFormat,
    ) -> Query {
        Query {
            name,
            sql,
            vip: channel.vip,
            port,
            output,
            context: self.context.clone(),
            limits: self.limits,
            queue: self.queue,
            memory: self.memory,
            sequence: false,
            curve: channel.curve.clone(),
            tcp: channel.tcp,
        }
    }

    /// Describes it in words, for a difference.
    pub(in crate::policy) fn summary(&self) -> String {
        let Requests { port, queries, each, formats, handlers, with, .. } = self;
        let Requests { lease_s, context, limits, queue, memory, .. } = self;
        let formats =
            if *formats == 0 { String::new() } else { format!(" {formats} formats of publishers,") };
        let handlers = handlers.as_ref().map(BroughtHandlers::summary).unwrap_or_default();
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) };
        format!(
            ", {queries} queries on request from port {port} on, {each} each,{formats}{handlers}{with} {lease_s} s without subscribers, on {context}, \
             {limits:?}, {queue:?}, memory {} to {} MiB",
            memory.guaranteed_mib, memory.max_mib
        )
    }
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
    /// Plans a query that a program asks for. `brought` are the formats that publishers have brought to the channel, by their ids.
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
        let plan = Plan::new(asked.sql, &scope, query.schema_id()).map_err(|error| RequestError {
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
pub(super) fn asked_channel<'p>(
    policy: &'p Policy,
    name: &str,
) -> Result<(&'p Channel, &'p Requests), RequestError> {
    let channel = policy.channels.iter().find(|known| known.name == name);
    let found = channel.and_then(|channel| Some((channel, channel.requests.as_ref()?)));
    found.ok_or_else(|| RequestError::new(format!("{name} has no queries on request")))
}

impl Channel {
    /// Returns whether publishers may bring formats to it.
    pub(in crate::policy) fn takes_formats(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.formats > 0)
    }
}

impl RequestError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        RequestError { message: message.into(), place: None }
    }
}

impl Policy {
    /// Returns the channels at which subscribers of requested queries connect, each with the index of the channel that is asked. Most
    /// of the time most of them have no query.
    pub fn requested_channels(&self) -> impl Iterator<Item = (usize, Channel)> + '_ {
        let of = |(at, channel): (usize, &'_ Channel)| -> Vec<(usize, Channel)> {
            let requests = channel.requests.iter();
            requests.flat_map(|requests| requests.places(channel)).map(|place| (at, place)).collect()
        };
        self.channels.iter().enumerate().flat_map(of)
    }

    /// Returns their addresses and ports.
    pub(in crate::policy) fn requested_ends(&self) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
        self.requested_channels().map(|(_, place)| (place.vip, place.port))
    }
}

/// Notes what is wrong in the channels' `requests`.
pub(super) fn check(policy: &Policy, catalogue: &Catalogue, problems: &mut Problems) {
    let mut all = 0;
    for (index, channel) in policy.channels.iter().enumerate() {
        let Some(requests) = &channel.requests else { continue };
        let at = format!("channels[{index}].requests");
        all += usize::from(requests.queries);
        if all > REQUESTED_MAX && all - usize::from(requests.queries) <= REQUESTED_MAX {
            let message = format!("programs may ask for {all} queries in all; allowed are {REQUESTED_MAX}");
            problems.add(format!("{at}.queries"), message);
        }
        check_one(channel, requests, &at, problems);
        check_sources(policy, catalogue, (channel, requests), &at, problems);
    }
}

fn check_one(channel: &Channel, requests: &Requests, at: &str, problems: &mut Problems) {
    let reads_nothing = channel.formats.is_empty() && requests.formats == 0 && requests.handlers.is_none();
    if reads_nothing || !channel.pool.is_empty() {
        let message = "queries read channels with formats, and without a pool; publishers may bring as many as `formats` here says";
        problems.add(at, message);
    }
    if requests.port.checked_add(requests.queries - 1).is_none() {
        let message = format!("{} ports from {} on reach beyond 65535", requests.queries, requests.port);
        problems.add(format!("{at}.port"), message);
    }
    let sql = String::new();
    let query = requests.query(channel, channel.name.clone(), requests.port, sql, RowFormat::Sbe);
    query.check(at, problems);
    if let Some(handlers) = &requests.handlers {
        handlers.check(channel, at, problems);
    }
    let ChannelMemory { guaranteed_mib, max_mib } = requests.memory;
    if guaranteed_mib > max_mib {
        let message = format!("{guaranteed_mib} MiB are more than max_mib, {max_mib}");
        problems.add(format!("{at}.memory.guaranteed_mib"), message);
    }
}

fn check_sources(
    policy: &Policy,
    catalogue: &Catalogue,
    (channel, requests): (&Channel, &Requests),
    at: &str,
    problems: &mut Problems,
) {
    let mut seen = HashSet::new();
    for (index, name) in requests.with.iter().enumerate() {
        let at = format!("{at}.with[{index}]");
        if *name == channel.name || !seen.insert(name) {
            problems.add(at, format!("{name} is read anyway; each name stands once"));
            continue;
        }
        let names =
            || policy.channels.iter().map(|c| &c.name[..]).chain(policy.queries.iter().map(|q| &q.name[..]));
        if !names().any(|known| known == name) {
            let near = nearest(name, names());
            let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
            problems.add(at, format!("there is no channel \"{name}\"{near}"));
            continue;
        }
        let channel_of = policy.channels.iter().find(|known| known.name == *name);
        let readable = catalogue.readable.iter().any(|(known, _)| known == name);
        if channel_of.is_some() && !readable {
            let message = "has no formats, or a pool: queries do not read it";
            problems.add(&at, format!("{name} {message}"));
        }
        let of_query = policy.queries.iter().find(|known| known.name == *name);
        let curve = channel_of.map_or_else(|| of_query.and_then(|q| q.curve.as_ref()), |c| c.curve.as_ref());
        if curve.is_some() && curve != channel.curve.as_ref() {
            let message = format!(
                "{name} has keys of its own, and subscribers of {} would read it: `curve` of both must be equal",
                channel.name
            );
            problems.add(at, message);
        }
    }
}

const fn queries() -> u16 {
    8
}

const fn each() -> u16 {
    2
}

const fn lease_s() -> u32 {
    30
}

const fn memory() -> ChannelMemory {
    ChannelMemory { guaranteed_mib: 1, max_mib: 16 }
}

fn read_queries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 1, REQUESTED_MAX as u64, "a number of queries")? as u16)
}

fn read_formats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 0, super::formats::CHANNEL_FORMATS_MAX as u64, "a number of formats")? as u16)
}

fn read_lease_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, LEASE_S_MAX, "a number of seconds")? as u32)
}
