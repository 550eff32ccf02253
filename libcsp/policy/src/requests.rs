//! Queries on request: what programs may ask a channel for, and the addresses that are kept for their rows.
//!
//! Each query that runs has a port of the channel's address. The ports stand in the policy, so that network
//! nodes know whose they are before anything is asked; what is asked, and by whom, only the owner of the
//! channel knows.

use std::collections::HashSet;
use std::net::IpAddr;

use csp_config::{Problems, nearest, number, port};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Policy;
use crate::brought_handlers::BroughtHandlers;
use crate::channels::{Channel, ChannelMemory, ReceiverQueue};
use crate::formats::CHANNEL_FORMATS_MAX;
use crate::framing::is_default;
use crate::paths::{context_of, first_context};
use crate::queries::{Query, QueryLimits, RowFormat, is_first_context};

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
    /// What else queries may read, beside the channel: names of channels and queries, which then live where
    /// it does.
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

impl Requests {
    /// Returns the channels at which the queries' subscribers connect: those of `channel`, of which this is a
    /// part.
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
        context_of(&self.context).unwrap_or(0) // the policy names no other
    }

    /// Returns a query of a channel's requests, of which this is a part, as the policy would have it.
    pub fn query(&self, channel: &Channel, name: String, port: u16, sql: String, output: RowFormat) -> Query {
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
    pub(crate) fn summary(&self) -> String {
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

impl Channel {
    /// Returns whether publishers may bring formats to it.
    pub fn takes_formats(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.formats > 0)
    }

    /// Returns whether queries may read it: it has formats, or publishers may bring some, and its messages
    /// end here.
    pub fn is_readable(&self) -> bool {
        self.pool.is_empty() && (!self.formats.is_empty() || self.takes_formats())
    }
}

impl Policy {
    /// Returns the channels at which subscribers of requested queries connect, each with the index of the
    /// channel that is asked. Most of the time most of them have no query.
    pub fn requested_channels(&self) -> impl Iterator<Item = (usize, Channel)> + '_ {
        let of = |(at, channel): (usize, &'_ Channel)| -> Vec<(usize, Channel)> {
            let requests = channel.requests.iter();
            requests.flat_map(|requests| requests.places(channel)).map(|place| (at, place)).collect()
        };
        self.channels.iter().enumerate().flat_map(of)
    }

    /// Returns their addresses and ports.
    pub(crate) fn requested_ends(&self) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
        self.requested_channels().map(|(_, place)| (place.vip, place.port))
    }
}

/// Notes what is wrong in the channels' `requests`.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
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
        check_sources(policy, (channel, requests), &at, problems);
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
        if channel_of.is_some_and(|channel| !channel.is_readable()) {
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
    Ok(number(deserializer, 0, CHANNEL_FORMATS_MAX as u64, "a number of formats")? as u16)
}

fn read_lease_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, LEASE_S_MAX, "a number of seconds")? as u32)
}
