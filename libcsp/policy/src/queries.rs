//! Continual queries: channels whose messages the proxies make of the messages of other channels.

use std::net::IpAddr;

use csp_config::{Problems, ip_address, number, port};
use csp_handlers::CONTEXTS_MAX;
use csp_types::options::FullQueue;
use serde::{Deserialize, Deserializer, Serialize};

use crate::channels::{Channel, ChannelMemory, Pattern, ReceiverQueue};
use crate::check::{check_channel, check_count};
use crate::framing::is_default;
use crate::paths::{context_of, first_context};
use crate::{Curve, Policy, TcpOptions, sources};

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
    /// Seconds without messages of any channel after which the windows that are open close; 0: they wait for
    /// messages.
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
            paths: Vec::new(),
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

    pub(crate) fn check(&self, at: &str, problems: &mut Problems) {
        if self.context_number().is_none() {
            let contexts = CONTEXTS_MAX - 1;
            let message = format!("`{}` is no context; there are c0 to c{contexts}", self.context);
            problems.add(format!("{at}.context"), message);
        }
        if self.queue.full == FullQueue::Block {
            let message = "a query holds back nobody: its channels' publishers go on; allowed are drop-newest, drop-oldest";
            problems.add(format!("{at}.queue.full"), message);
        }
    }

    /// Describes it in one line.
    pub(crate) fn summary(&self) -> String {
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
pub const MESSAGE_KIB: u32 = 1_024;

impl Query {
    /// Returns the names of the channels and queries that it reads, as they stand behind FROM and JOIN.
    ///
    /// The planner checks that they are those of the plan.
    pub fn reads(&self) -> Vec<String> {
        sources::channels(&self.sql)
    }
}

impl Policy {
    /// Returns the channels to which programs connect: those of the policy, then the queries'.
    pub fn all_channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.iter().cloned().chain(self.queries.iter().map(Query::channel))
    }
}

/// Checks the queries of a policy, all but what they say.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("queries", policy.queries.len(), 0, QUERIES_MAX, problems);
    for (index, query) in policy.queries.iter().enumerate() {
        let at = format!("queries[{index}]");
        check_channel(&query.channel(), &at, problems);
        query.check(&at, problems);
    }
}

pub(crate) fn is_first_context(context: &String) -> bool {
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
