//! Continual queries: channels whose messages the proxies make of the messages of other channels.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_handlers::{FormatId, Handler};
use csp_operators::{Limits, QuerySetupError, Time};
use csp_queries::{Catalog, Plan, QueryError, QueryProblem, ROW};
use csp_types::Duration;
use serde::{Deserialize, Deserializer, Serialize};

use super::check::check_count;
use super::formats::{self, KnownFormat};
use super::framing::is_default;
use super::paths::{self, context_of, first_context};
use super::{
    Channel, ChannelMemory, ChannelTime, Curve, FullQueue, Pattern, Policy, ReceiverQueue, TcpOptions,
    TimeUnit,
};
use crate::config::{Problems, ip_address, number, port};

/// Most queries of a policy.
pub const QUERIES_MAX: usize = 64;
/// Most rows that a query keeps.
pub const QUERY_ROWS_MAX: u32 = 1 << 20;
/// Most memory for rows that a query keeps, in KiB: what a context has for all of its handlers.
pub const QUERY_KIB_MAX: u32 = 16 << 10;
/// Most messages that wait for a query.
pub const QUERY_WAITING_MAX: u32 = 1 << 16;

/// A query: a channel of its own, to which the proxies publish the result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// 1 to 63 of `a-z 0-9 -`, unique among services, channels and queries.
    pub name: String,
    /// The query (`docs/queries.md`).
    pub sql: String,
    /// The address that subscribers connect to.
    #[serde(deserialize_with = "ip_address")]
    pub vip: IpAddr,
    /// The port that they connect to.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// How rows of the result are written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: RowFormat,
    /// The context of the proxy worker that runs the query: `c0` to `c7`.
    #[serde(default = "first_context", skip_serializing_if = "is_first_context")]
    pub context: String,
    /// Bounds of what it keeps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: QueryLimits,
    /// The queue of each subscriber.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: ReceiverQueue,
    /// Memory for rows of the result, and for messages that wait for the query.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: ChannelMemory,
    /// A last frame with the row's number, from 1 on, and the time of arrival is added to each row.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sequence: bool,
    /// Encryption, and who may subscribe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<Curve>,
    /// How connections behave.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tcp: TcpOptions,
}

/// How rows of a result are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowFormat {
    /// As SBE messages of the derived schema.
    #[default]
    Sbe,
    /// As JSON objects.
    Json,
}

/// Bounds of what a query keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueryLimits {
    /// Rows that wait for their partners, on each side of a join.
    #[serde(deserialize_with = "rows")]
    pub rows: u32,
    /// Memory for them, on each side, in KiB.
    #[serde(deserialize_with = "kib")]
    pub kib: u32,
    /// Groups of all windows that are open.
    #[serde(deserialize_with = "rows")]
    pub groups: u32,
    /// Seconds without messages after which a channel of the query is not waited for.
    #[serde(deserialize_with = "idle_s")]
    pub idle_s: u32,
    /// Seconds without messages of any channel after which the windows that are open close; 0: they wait for messages.
    #[serde(deserialize_with = "idle_s")]
    pub flush_s: u32,
    /// Messages of the query's channels that wait for it; beyond them the newest are dropped.
    #[serde(deserialize_with = "waiting")]
    pub waiting: u32,
}

impl Default for QueryLimits {
    fn default() -> Self {
        QueryLimits { rows: 8_192, kib: 2_048, groups: 4_096, idle_s: 30, flush_s: 0, waiting: 4_096 }
    }
}

impl RowFormat {
    /// Its name in the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            RowFormat::Sbe => "sbe",
            RowFormat::Json => "json",
        }
    }
}

impl Query {
    /// Returns the channel at which its subscribers connect.
    pub fn channel(&self) -> Channel {
        Channel {
            name: self.name.clone(),
            vip: self.vip,
            port: self.port,
            framing: Default::default(),
            clients: None,
            header: Default::default(),
            encoding: None,
            listen: Vec::new(),
            pool: Vec::new(),
            pattern: Pattern::Publish,
            message_kib: MESSAGE_KIB,
            queue: self.queue,
            memory: self.memory,
            path: Vec::new(),
            given_up: Default::default(),
            last_value: None,
            sequence: self.sequence,
            heartbeat_s: 0,
            curve: self.curve.clone(),
            tcp: self.tcp,
            formats: Vec::new(),
            unknown: Default::default(),
            time: None,
            requests: None,
        }
    }

    /// Returns the number of its context.
    pub fn context_number(&self) -> Option<u16> {
        context_of(&self.context)
    }

    /// The id of the derived schema: any that is the same for the same name.
    fn schema_id(&self) -> u16 {
        let digest = super::sha256(&self.name);
        u16::from_str_radix(&digest[..4], 16).unwrap_or_default() | 0x8000
    }

    fn check(&self, at: &str, problems: &mut Problems) {
        if self.context_number().is_none() {
            let contexts = csp_handlers::CONTEXTS_MAX - 1;
            let message = format!("`{}` is no context; there are c0 to c{contexts}", self.context);
            problems.add(format!("{at}.context"), message);
        }
        if self.queue.full == FullQueue::Block {
            let message = "a query holds back nobody: its channels' publishers go on; allowed are drop-newest, drop-oldest";
            problems.add(format!("{at}.queue.full"), message);
        }
    }

    /// Describes it in one line.
    pub(super) fn summary(&self) -> String {
        let Query { name, sql, vip, port, output, context, limits, queue, memory, curve, tcp, sequence } =
            self;
        let numbered = if *sequence { ", numbered" } else { "" };
        let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let QueryLimits { rows, kib, groups, idle_s, flush_s, waiting } = limits;
        let curve = curve.as_ref().map(Curve::summary).unwrap_or_default();
        let tcp = if *tcp == TcpOptions::default() { String::new() } else { format!(" {tcp:?}") };
        format!(
            "{name} {vip} port {port} as {} on {context}: {sql}; keeps {rows} rows in {kib} KiB, {groups} groups, idle after {idle_s} s, windows close after {flush_s} s, {waiting} messages wait, \
             queues of {} and {} KiB {:?}, memory {} to {} MiB{numbered}{curve}{tcp}",
            output.as_str(),
            queue.messages,
            queue.kib,
            queue.full,
            memory.guaranteed_mib,
            memory.max_mib
        )
    }
}

/// Longest row, and longest message that a query reads, in KiB.
pub(super) const MESSAGE_KIB: u32 = 1_024;

/// The formats and queries of a policy, parsed and checked against each other.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// All formats by name.
    pub formats: HashMap<String, KnownFormat>,
    /// The formats of each channel of the policy, in its order.
    pub channels: Vec<Vec<KnownFormat>>,
    /// The queries whose plans are valid, in the policy's order.
    pub queries: Vec<PlannedQuery>,
    /// By context, what its queries keep at most.
    kept_kib: HashMap<String, u64>,
    /// By name, what queries can read.
    readable: Vec<(String, Readable)>,
}

/// What a query can read.
#[derive(Debug)]
struct Readable {
    /// Each with its id among the channel's messages.
    formats: Vec<(u32, KnownFormat)>,
    time: Option<ChannelTime>,
    /// Rows of a query whose channels have a time that no column has.
    lost_time: bool,
    is_keyed: bool,
}

/// A query with its plan.
#[derive(Clone, Debug)]
pub struct PlannedQuery {
    /// Its index in the policy.
    pub index: usize,
    /// The plan.
    pub plan: Arc<Plan>,
    /// The derived format.
    pub result: KnownFormat,
    /// Where the rows of each source of the plan come from.
    pub sources: Vec<QuerySource>,
}

/// A channel that a query reads.
#[derive(Clone, Debug)]
pub struct QuerySource {
    /// The name of the channel or query.
    pub channel: String,
    /// The id of the format among what the channel's receivers get; of a query's rows [`PlannedQuery::output`].
    pub format_id: u32,
    /// The format.
    pub format: KnownFormat,
    /// The channel's time; `None`: when messages arrive.
    pub time: Option<ChannelTime>,
    /// It is a query whose channels have a time, and no column of its rows has it.
    pub lost_time: bool,
}

impl PlannedQuery {
    /// The id of the result's format in the query's channel. Its sources have the ids before it, from 1 on.
    pub fn output(&self) -> FormatId {
        FormatId(self.sources.len() as u32 + 1)
    }

    /// Makes what runs the query; `seed` determines the hash of its keys.
    ///
    /// # Errors
    /// The times of its channels or its limits do not fit.
    pub fn handler(&self, query: &Query, seed: u64) -> Result<csp_operators::Query, QuerySetupError> {
        times::check(&self.plan, &self.sources)?;
        let QueryLimits { rows, kib, groups, idle_s, flush_s, .. } = query.limits;
        let seconds = |count: u32| (count > 0).then(|| Duration::from_secs(count.into()));
        let limits = Limits {
            rows,
            row_bytes: kib << 10,
            groups,
            idle: seconds(idle_s),
            flush: seconds(flush_s),
            seed,
            ..Limits::default()
        };
        let input = |(at, source): (usize, &QuerySource)| (FormatId(at as u32 + 1), source.time());
        let inputs: Vec<(FormatId, Time)> = self.sources.iter().enumerate().map(input).collect();
        csp_operators::Query::new(self.plan.clone(), &inputs, self.output(), limits)
    }
}

impl Catalogue {
    /// Parses what the policy names; notes what is wrong.
    pub(super) fn new(policy: &Policy, problems: &mut Problems) -> Catalogue {
        let known = formats::known(&policy.formats, problems);
        let mut catalogue = Catalogue { formats: known, ..Catalogue::default() };
        for (index, channel) in policy.channels.iter().enumerate() {
            let at = format!("channels[{index}]");
            let formats = formats::of_channel(channel, &policy.formats, &catalogue.formats, &at, problems);
            let behind = paths::check(channel, &formats, &policy.handlers, &at, problems);
            if channel.pool.is_empty() && (!formats.is_empty() || channel.takes_formats()) {
                let readable = Readable {
                    formats: behind,
                    time: channel.time.clone(),
                    lost_time: false,
                    is_keyed: channel.curve.is_some(),
                };
                catalogue.readable.push((channel.name.clone(), readable));
            }
            catalogue.channels.push(formats);
        }
        requests::check(policy, &catalogue, problems);
        check_count("queries", policy.queries.len(), 0, QUERIES_MAX, problems);
        for (index, query) in policy.queries.iter().enumerate().take(QUERIES_MAX) {
            let at = format!("queries[{index}]");
            query.check(&at, problems);
            match Plan::new(&query.sql, &catalogue, query.schema_id()) {
                Ok(plan) => catalogue.add(index, query, plan, &at, problems),
                Err(error) => {
                    if let Some(message) = catalogue.problem_of(policy, index, &error, problems) {
                        let place = (error.position.line, error.position.column);
                        problems.add_inside(&format!("{at}.sql"), place, message);
                    }
                }
            }
        }
        catalogue
    }

    /// Returns what to say of an error in the query with an index; `None` if it follows from another mistake.
    fn problem_of(
        &self,
        policy: &Policy,
        index: usize,
        error: &QueryError,
        problems: &Problems,
    ) -> Option<String> {
        let wrong = |(at, _)| problems.concerns(&format!("channels[{at}].formats"));
        if problems.concerns("formats") || policy.channels.iter().enumerate().any(wrong) {
            return None;
        }
        let QueryProblem::Unknown { what: "channel", name, .. } = &error.problem else {
            return Some(error.to_string());
        };
        let channel = name.split('/').next().unwrap_or(name);
        let known = policy.channels.iter().position(|known| known.name == channel);
        let query = policy.queries.iter().position(|query| query.name == channel);
        let why = match (known, query) {
            (Some(at), _) if policy.channels[at].formats.is_empty() => "has no formats".to_owned(),
            (Some(at), _) => format!("has the formats {}", policy.channels[at].formats.join(", ")),
            (_, Some(at)) if policy.queries[at].output == RowFormat::Json => {
                "has rows in JSON, which queries do not read".to_owned()
            }
            (_, Some(at)) if at >= index => "is no query above this one".to_owned(),
            (_, Some(at)) if self.planned(at).is_none() => return None,
            _ => return Some(error.to_string()),
        };
        let csp_queries::Position { line, column } = error.position;
        Some(format!("line {line}, column {column}: \"{channel}\" {why}"))
    }

    fn add(&mut self, index: usize, query: &Query, plan: Plan, at: &str, problems: &mut Problems) {
        let source = |source: &csp_queries::Source| self.source(&source.channel);
        let sources: Vec<QuerySource> = plan.sources.iter().filter_map(source).collect();
        let keyed = |source: &&QuerySource| {
            self.readable.iter().any(|(name, known)| *name == source.channel && known.is_keyed)
        };
        if let (None, Some(keyed)) = (&query.curve, sources.iter().find(keyed)) {
            let message = format!("reads {}, which has keys, and needs `curve` itself", keyed.channel);
            problems.add(at, message);
        }
        let (schema, message) = (plan.derived.schema.clone(), Name::from(ROW));
        let result = KnownFormat { name: query.name.clone(), schema, message };
        if query.output == RowFormat::Sbe {
            let formats = vec![(plan.sources.len() as u32 + 1, result.clone())];
            let rows = RowTime::of(&plan, &sources);
            let lost_time = rows == RowTime::Lost;
            let time = if let RowTime::Column(time) = rows { Some(time) } else { None };
            let readable = Readable { formats, time, lost_time, is_keyed: query.curve.is_some() };
            self.readable.push((query.name.clone(), readable));
        }
        let planned = PlannedQuery { index, plan: Arc::new(plan), result, sources };
        match planned.handler(query, 0) {
            Ok(handler) => {
                let kept = self.kept_kib.entry(query.context.clone()).or_default();
                let before = std::mem::replace(kept, *kept + u64::from(handler.needs().state >> 10));
                let most = u64::from(QUERY_KIB_MAX);
                if before <= most && *kept > most {
                    let message =
                        format!("queries in {} keep up to {kept} KiB, and it has {most} KiB", query.context);
                    problems.add(format!("{at}.limits"), message);
                }
            }
            // A wrong time was noted at its channel.
            Err(_)
                if (0..self.channels.len()).any(|at| problems.concerns(&format!("channels[{at}].time"))) => {}
            Err(error) => problems.add(format!("{at}.sql"), error.to_string()),
        }
        self.queries.push(planned);
    }

    /// Returns what a name in a query stands for: `channel`, or `channel/format`.
    pub fn source(&self, name: &str) -> Option<QuerySource> {
        let (channel, format) = name.split_once('/').map_or((name, None), |(c, f)| (c, Some(f)));
        let (_, known) = self.readable.iter().find(|(readable, _)| readable == channel)?;
        let at = match format {
            None => 0,
            Some(format) => known.formats.iter().position(|(_, known)| known.name == format)?,
        };
        Some(QuerySource {
            channel: channel.to_owned(),
            format_id: known.formats.get(at)?.0,
            format: known.formats[at].1.clone(),
            time: known.time.clone(),
            lost_time: known.lost_time,
        })
    }

    /// Returns the time of a channel that queries can read.
    fn time_of(&self, channel: &str) -> Option<ChannelTime> {
        self.readable.iter().find(|(name, _)| name == channel).and_then(|(_, known)| known.time.clone())
    }

    /// Returns the plan of the query with this index in the policy.
    pub fn planned(&self, index: usize) -> Option<&PlannedQuery> {
        self.queries.iter().find(|planned| planned.index == index)
    }
}

impl Catalog for Catalogue {
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)> {
        let source = self.source(channel)?;
        Some((source.format.schema, source.format.message))
    }

    fn channels(&self) -> Vec<String> {
        let names = |(channel, known): &(String, Readable)| {
            let first = std::iter::once(channel.clone());
            let further = known.formats.iter().map(|(_, format)| format!("{channel}/{}", format.name));
            let further = if known.formats.len() > 1 { further.collect() } else { Vec::new() };
            first.chain(further).collect::<Vec<_>>()
        };
        self.readable.iter().flat_map(names).collect()
    }
}

impl Policy {
    /// Parses the formats and plans the queries. What is wrong is left out: a valid policy has nothing wrong.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue::new(self, &mut Problems::default())
    }

    /// Returns the channels to which programs connect: those of the policy, then the queries'.
    pub fn all_channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.iter().cloned().chain(self.queries.iter().map(Query::channel))
    }
}

fn is_first_context(context: &String) -> bool {
    *context == first_context()
}

fn rows<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, QUERY_ROWS_MAX.into(), "a number of rows")? as u32)
}

fn kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, QUERY_KIB_MAX.into(), "a size in KiB")? as u32)
}

fn idle_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 86_400, "a number of seconds (0: for ever)")? as u32)
}

fn waiting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, QUERY_WAITING_MAX.into(), "a number of messages")? as u32)
}

mod brought;
mod brought_handlers;
mod places;
mod requests;
mod times;

pub use brought::{RequestedTranslation, TranslationRequest};
pub use brought_handlers::BroughtHandlers;
pub use requests::{QueryRequest, REQUESTED_MAX, RequestError, RequestedQuery, Requests};
use times::RowTime;

#[cfg(test)]
mod tests;
