//! The catalogue: the formats and queries of a policy, parsed and checked against each other.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use csp_config::Problems;
use csp_formats::{Name, Schema};
use csp_handlers::{FormatId, Handler};
use csp_operators::{Limits, QuerySetupError, Time};
use csp_policy::{ChannelTime, Policy, QUERIES_MAX, QUERY_KIB_MAX, Query, QueryLimits, RowFormat};
use csp_queries::{Catalog, Plan, QueryError, QueryProblem, ROW};
use csp_types::Duration;

use crate::formats::{self, KnownFormat};
use crate::times::{self, RowTime};
use crate::{flows, handlers, http, paths};

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
    pub(crate) readable: Vec<(String, Readable)>,
}

/// What a query can read.
#[derive(Debug)]
pub(crate) struct Readable {
    /// Each with its id among the channel's messages.
    pub(crate) formats: Vec<(u32, KnownFormat)>,
    pub(crate) time: Option<ChannelTime>,
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
    /// The id of the format among what the channel's receivers get; of a query's rows
    /// [`PlannedQuery::output`].
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
    pub(crate) fn new(policy: &Policy, problems: &mut Problems) -> Catalogue {
        handlers::check(policy, problems);
        http::check(policy, problems);
        let known = formats::known(&policy.formats, problems);
        let mut catalogue = Catalogue { formats: known, ..Catalogue::default() };
        for (index, channel) in policy.channels.iter().enumerate() {
            let at = format!("channels[{index}]");
            let formats = formats::of_channel(channel, &catalogue.formats, &at, problems);
            let ends = paths::check(channel, &formats, &policy.handlers, &at, problems);
            catalogue.keep(&ends.state_kib, &at, problems);
            catalogue.derive(policy, channel, &ends.channels);
            let behind = ends.receivers;
            if channel.is_readable() {
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
        for (index, query) in policy.queries.iter().enumerate().take(QUERIES_MAX) {
            let at = format!("queries[{index}]");
            match Plan::new(&query.sql, &catalogue, schema_id(query)) {
                Ok(plan) => catalogue.add(index, query, plan, &at, problems),
                Err(error) => {
                    if let Some(message) = catalogue.problem_of(policy, index, &error, problems) {
                        let place = (error.position.line, error.position.column);
                        problems.add_inside(&format!("{at}.sql"), place, message);
                    }
                }
            }
        }
        flows::check(policy, &catalogue, problems);
        catalogue
    }

    /// Notes state of a path's handlers that its context has no room for.
    fn keep(&mut self, state_kib: &[(String, u64)], at: &str, problems: &mut Problems) {
        let most = u64::from(QUERY_KIB_MAX);
        for (context, kib) in state_kib {
            let kept = self.kept_kib.entry(context.clone()).or_default();
            let before = std::mem::replace(kept, *kept + kib);
            if before <= most && *kept > most {
                let message =
                    format!("handlers of paths in {context} keep up to {kept} KiB, and it has {most} KiB");
                problems.add(format!("{at}.path"), message);
            }
        }
    }

    /// Records what queries can read of the channels derived from one.
    fn derive(
        &mut self,
        policy: &Policy,
        channel: &csp_policy::Channel,
        derived: &[(String, paths::Behind)],
    ) {
        for (name, formats) in derived {
            // A derived channel may have keys although its source has none.
            let is_keyed = |known: &csp_policy::Channel| known.name == *name && known.curve.is_some();
            // Rows of a handler do not say which of their fields is the time.
            let is_whole = formats.iter().all(|(id, _)| *id < csp_operators::DERIVED_FIRST);
            let readable = Readable {
                formats: formats.clone(),
                time: channel.time.clone().filter(|_| is_whole),
                lost_time: channel.time.is_some() && !is_whole,
                is_keyed: channel.curve.is_some() || policy.channels.iter().any(is_keyed),
            };
            self.readable.push((name.clone(), readable));
        }
    }

    /// Parses the formats and plans the queries of a policy. What is wrong is left out: a policy that was
    /// planned has nothing wrong.
    pub fn of(policy: &Policy) -> Catalogue {
        Catalogue::new(policy, &mut Problems::default())
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
        // Placements go by the names that stand in the text: they must be those that the plan reads.
        let planned: BTreeSet<String> = sources.iter().map(|source| source.channel.clone()).collect();
        let named: BTreeSet<String> = query.reads().into_iter().collect();
        if named != planned {
            let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
            let message = format!("reads {}, and its text names {}", list(planned), list(named));
            problems.add(format!("{at}.sql"), message);
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
    pub(crate) fn time_of(&self, channel: &str) -> Option<ChannelTime> {
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

/// The id of the schema derived for a query: any that is the same for the same name.
pub(crate) fn schema_id(query: &Query) -> u16 {
    let digest = csp_policy::sha256(&query.name);
    u16::from_str_radix(&digest[..4], 16).unwrap_or_default() | 0x8000
}
