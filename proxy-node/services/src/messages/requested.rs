//! Queries and translations on request: channels whose path runs a program's request, as long as there are
//! subscribers.
//!
//! ```text
//!  REQ {"query": …} ─▶ planner ─▶ a place of the channel that is free ─▶ channel, path, feeds ─▶ {"address": …, "topic": …}
//!                                        ▲                                       │
//!                                        └──── no subscriber for the lease ──────┘
//! ```
//! The places stand in the policy: each is a port of its own, which admits no peer while it has no query.
//! Rows have the query's topic, which is never used again: a subscriber that returns late receives nothing,
//! instead of the rows of a different query.

mod answer;
mod asked;
mod brought;
mod handlers;
mod label;
mod planning;
mod plans;
mod report;
mod supply;
mod wanted;

pub(super) use answer::Asker;
pub use asked::{Asked, AskedError};
pub use brought::{BroughtFormat, FormatAsked};
pub use handlers::{HandlerAsked, HandlerBounds, HandlerJob, HandlerRules, MadeHandler};
pub(super) use planning::Source;
pub use planning::{PlanJob, Planned};
pub use report::{RequestCounters, RequestNotice, RequestedSnapshot};
pub use wanted::Wanted;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_types::{CurvePublicKey, Duration, Instant};
use csp_zmtp::Connection;

use self::brought::Brought;
use self::handlers::Supply;
use self::planning::Plans;
use super::MessageBroker;
use super::formats::ChannelFeed;
use super::paths::{ChannelPath, PathStage};
use super::peer::Peer;
use super::requests::{REQUEST_LEN_MAX, RequestBounds, SCHEMA_REQUEST_LEN_MAX};
use super::served::Served;
use super::spec::ChannelSpec;

/// Number of requesters recorded for a query; further ones share the query and cannot release it.
const HOLDERS_MAX: usize = 64;
/// Events that wait to be logged; beyond this number the oldest are dropped.
const NOTICES_MAX: usize = 64;

/// A request for a query, as the planner gets it.
#[derive(Clone, Copy, Debug)]
pub struct QueryAsked<'a> {
    /// The query's name, which is the topic of its rows.
    pub topic: &'a str,
    /// The number of the query's place.
    pub number: u32,
    /// A query, or a translation.
    pub wanted: &'a Wanted,
    /// Rows are JSON; otherwise messages of the derived schema.
    pub json: bool,
    /// Formats that publishers have brought to the channel.
    pub brought: &'a [BroughtFormat],
}

/// The plan of a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryPlan {
    /// The path of its channel.
    pub path: ChannelPath,
    /// The messages that it receives from other channels.
    pub feeds: Vec<ChannelFeed>,
    /// The schema of its rows, as XML.
    pub schema: String,
}

/// The reason for which a query does not run, or a format is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryRefused {
    /// The error, for the requester.
    pub message: String,
    /// The line and column of the text, from 1.
    pub place: Option<(u64, u64)>,
}

/// Plans queries and checks formats by the policy in force.
pub trait QueryPlanner: std::fmt::Debug + Send + Sync {
    /// Plans a query.
    ///
    /// # Errors
    /// The text is wrong, or the query cannot run.
    fn plan(&self, asked: QueryAsked<'_>) -> Result<QueryPlan, QueryRefused>;

    /// Checks a format that a publisher brings, beside the policy's formats and those brought before.
    ///
    /// # Errors
    /// The schema is wrong, or a format of the channel has the same name, or the same schema id and template
    /// id.
    fn bring(
        &self,
        asked: FormatAsked<'_>,
        brought: &[BroughtFormat],
    ) -> Result<(Arc<Schema>, Name), QueryRefused>;
}

/// A place for a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestPlace {
    /// The channel to which subscribers connect while the place has a query.
    pub spec: ChannelSpec,
    /// Its address.
    pub address: SocketAddr,
}

/// What may be asked of a channel.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// Number of the channel that is asked.
    pub number: u32,
    /// The places. Each runs one query at a time.
    pub places: Vec<RequestPlace>,
    /// Largest number of queries of one requester, and of formats of one publisher.
    pub each: usize,
    /// Largest number of formats that publishers may bring to the channel.
    pub formats_max: usize,
    /// Handlers that programs may bring; `None`: none.
    pub handlers: Option<HandlerRules>,
    /// How long a query or handler runs without subscribers.
    pub lease: Duration,
    /// Plans the queries.
    pub planner: Arc<dyn QueryPlanner>,
}

/// The owner of a request. A query belongs to all requesters that have asked for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Requester {
    Key([u8; 32]),
    Address(IpAddr),
}

impl Requester {
    pub(super) fn of(peer: &Peer) -> Self {
        let key = peer.connection.zmtp().and_then(Connection::peer).and_then(|known| known.key);
        key.map_or(Requester::Address(peer.client.ip()), Requester::Key)
    }
}

impl std::fmt::Display for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Requester::Key(key) => CurvePublicKey(*key).fmt(f),
            Requester::Address(address) => address.fmt(f),
        }
    }
}

/// What a place runs.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Runs {
    Wanted(Wanted),
    Handler(Box<handlers::Brought>),
}

impl std::fmt::Display for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Runs::Wanted(wanted) => wanted.fmt(f),
            Runs::Handler(brought) => brought.fmt(f),
        }
    }
}

/// A query or handler that runs.
#[derive(Debug)]
struct Live {
    /// Number of the channel that was asked.
    of: u32,
    place: RequestPlace,
    topic: String,
    runs: Runs,
    json: bool,
    by: Requester,
    holders: Vec<Requester>,
    plan: QueryPlan,
    lease: Duration,
    /// When it last had a subscriber, or was requested.
    seen: Instant,
    /// All requesters have released it: it ends when it has no subscriber.
    is_released: bool,
}

impl Live {
    fn number(&self) -> u32 {
        self.place.spec.number
    }

    fn name(&self) -> &str {
        &self.place.spec.channel.name
    }

    /// Returns the number of subscriptions to its rows. Subscribers of former queries that return to the
    /// place have other topics and do not count.
    fn subscriptions(&self, served: &Served<'_>) -> usize {
        served.subscriptions(self.number(), &self.topic)
    }
}

/// The queries that programs have asked a worker for.
#[derive(Debug, Default)]
pub(super) struct Requested {
    specs: Vec<RequestSpec>,
    live: Vec<Live>,
    /// Feeds of the policy's own queries.
    feeds: Vec<ChannelFeed>,
    /// Numbers of places whose queries have ended, the most recent one last.
    ended: Vec<u32>,
    /// How often a query has begun.
    begun: u64,
    pub(super) brought: Brought,
    pub(super) supply: Supply,
    pub(super) plans: Plans,
    pub(super) counters: RequestCounters,
    notices: std::collections::VecDeque<RequestNotice>,
}

impl Requested {
    /// Records that a subscriber of a query arrives or leaves.
    pub(super) fn touch(&mut self, now: Instant, number: u32) {
        if let Some(live) = self.live.iter_mut().find(|live| live.number() == number) {
            live.seen = now;
        }
    }

    /// Returns when [`Requested::settle`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let queries = self.live.iter().map(|live| live.seen + live.lease).min();
        let formats = self.brought.next_timeout(|number| self.lease(number));
        queries
            .into_iter()
            .chain(formats)
            .chain(self.supply.next_timeout())
            .chain(self.plans.next_timeout())
            .min()
    }

    /// Returns the channels of the queries that run.
    pub(super) fn specs(&self) -> impl Iterator<Item = &ChannelSpec> {
        self.live.iter().map(|live| &live.place.spec)
    }

    /// Returns their paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &ChannelPath> {
        self.live.iter().map(|live| &live.plan.path)
    }

    /// Returns the rules for requests to a channel.
    fn spec(&self, number: u32) -> Option<&RequestSpec> {
        self.specs.iter().find(|spec| spec.number == number)
    }

    /// Returns the bounds of requests to a channel.
    pub(super) fn bounds(&self, number: u32) -> RequestBounds {
        let spec = self.spec(number);
        let rules = spec.and_then(|spec| spec.handlers.as_ref());
        RequestBounds {
            text: if spec.is_some() { SCHEMA_REQUEST_LEN_MAX } else { REQUEST_LEN_MAX },
            module: rules.map_or(0, |rules| rules.bounds.module_len_max),
        }
    }

    /// Returns how long an unused query or format of a channel is kept.
    fn lease(&self, number: u32) -> Duration {
        self.specs.iter().find(|spec| spec.number == number).map_or(Duration::ZERO, |spec| spec.lease)
    }

    /// Returns the free place whose last query ended longest ago.
    fn free_place(&self, spec: &RequestSpec) -> Option<RequestPlace> {
        let is_free = |place: &&RequestPlace| {
            let number = place.spec.number;
            self.live.iter().all(|live| live.number() != number)
                && !self.supply.keeps(number)
                && !self.plans.keeps(number)
        };
        let ended = |place: &&RequestPlace| {
            self.ended.iter().position(|number| *number == place.spec.number).map_or(0, |at| at + 1)
        };
        spec.places.iter().filter(is_free).min_by_key(ended).cloned()
    }

    /// Replaces the rules for requests. Queries for which the new policy has no place, or that it does not
    /// permit, end; the others continue.
    fn set(&mut self, specs: Vec<RequestSpec>, served: &mut Served<'_>) {
        self.specs = specs;
        self.keep_formats();
        let Requested { live, specs, brought, .. } = self;
        let mut withdrawn = Vec::new();
        for (at, live) in live.iter_mut().enumerate() {
            let spec = specs.iter().find(|spec| spec.number == live.of);
            let place = spec.and_then(|spec| {
                let place = spec.places.iter().find(|place| place.spec.number == live.place.spec.number)?;
                Some((spec, place))
            });
            let Some((spec, place)) = place else {
                withdrawn.push((at, "the policy has no place for it".to_owned()));
                continue;
            };
            let plan = match &live.runs {
                Runs::Handler(_) => live.outlives(spec, place).map(|()| live.plan.clone()),
                Runs::Wanted(wanted) => {
                    let (topic, number) = (&live.topic[..], place.spec.number);
                    let (json, brought) = (live.json, brought.formats(live.of));
                    let planned = spec.planner.plan(QueryAsked { topic, number, wanted, json, brought });
                    planned.map(|plan| labelled(plan, topic))
                }
            };
            match plan {
                Ok(plan) => (live.plan, live.place, live.lease) = (plan, place.clone(), spec.lease),
                Err(refused) => withdrawn.push((at, refused.message)),
            }
        }
        for (at, why) in withdrawn.into_iter().rev() {
            self.counters.withdrawn += 1;
            self.end_request(at, &why, served);
        }
    }

    /// Ends queries that had no subscriber, and formats that had no publisher, for the time of their lease.
    pub(super) fn settle(&mut self, now: Instant, served: &mut Served<'_>) {
        self.settle_queries(now, served);
        self.settle_formats(now, served.connections);
        self.settle_supply(now, served);
        self.settle_plans(now, served);
    }

    fn settle_queries(&mut self, now: Instant, served: &mut Served<'_>) {
        let mut at = 0;
        while let Some(live) = self.live.get(at) {
            let due = live.is_released || live.seen + live.lease <= now;
            let number = live.number();
            if due && live.subscriptions(served) == 0 {
                let (released, expired) = if live.is_released { (1, 0) } else { (0, 1) };
                let why = if live.is_released { "released" } else { "no subscriber" };
                self.counters.released += released;
                self.counters.expired += expired;
                self.end_request(at, why, served);
                continue;
            }
            if due {
                self.touch(now, number);
            }
            at += 1;
        }
    }

    /// Processes the end of a connection to a channel; `known`: it was a peer of the channel.
    pub(super) fn left(&mut self, now: Instant, (number, known): (u32, bool), served: &mut Served<'_>) {
        if known {
            self.touch(now, number);
        }
        if self.live.iter().any(|live| live.is_released && live.number() == number) {
            self.settle(now, served);
        }
    }

    fn end_request(&mut self, at: usize, why: &str, served: &mut Served<'_>) {
        let live = self.live.remove(at);
        let number = live.number();
        let read = served.status(number).map_or(0, |status| status.counters.published);
        served.remove(number);
        self.apply_feeds(served);
        self.ended.retain(|known| *known != number);
        self.ended.push(number);
        let (channel, by) = (live.name().to_owned(), live.by.to_string());
        self.notify(RequestNotice::Released { channel, by, why: why.to_owned(), read });
    }

    /// Begins a query. The error is for the requester.
    fn begin_request(&mut self, now: Instant, live: Live, served: &mut Served<'_>) -> Result<(), String> {
        let number = live.number();
        served.add(live.place.spec.clone()).map_err(|error| error.to_string())?;
        if let Err(error) = served.set_paths(now, number, &[&live.plan.path]) {
            served.remove(number);
            return Err(error.to_string());
        }
        let notice = live.begins();
        self.live.push(live);
        self.apply_feeds(served);
        self.notify(notice);
        Ok(())
    }

    fn apply_feeds(&self, served: &mut Served<'_>) {
        let of_requests = self.live.iter().flat_map(|live| &live.plan.feeds);
        let feeds: Vec<ChannelFeed> = self.feeds.iter().chain(of_requests).copied().collect();
        served.set_feeds(&feeds);
    }

    /// Returns a topic that no query of this cluster has had. It is no prefix of another topic.
    fn new_topic(&mut self, place: &RequestPlace, now: Instant, served: &Served<'_>) -> String {
        let mut hasher = DefaultHasher::new();
        self.begun += 1;
        (served.config.hash_key.0, self.begun, now.as_nanos()).hash(&mut hasher);
        format!("{}/{:016x}", place.spec.channel.name, hasher.finish())
    }
}

impl MessageBroker {
    /// Replaces the rules for requests.
    pub(super) fn set_requests(&mut self, specs: Vec<RequestSpec>) {
        let (requested, mut served) = self.parts();
        requested.set(specs, &mut served);
    }

    /// Replaces the feeds of the policy's queries. The channels that they join are served.
    pub(super) fn set_feeds(&mut self, feeds: &[ChannelFeed]) {
        let (requested, mut served) = self.parts();
        requested.feeds = feeds.to_vec();
        requested.apply_feeds(&mut served);
    }
}

fn refused(why: impl Into<String>) -> QueryRefused {
    QueryRefused { message: why.into(), place: None }
}

/// Appends a handler to the plan that puts the topic before each row.
fn labelled(mut plan: QueryPlan, topic: &str) -> QueryPlan {
    let context = plan.path.stages.first().map_or(0, |stage| stage.context);
    let stage = PathStage {
        handler: label::NAME.to_owned(),
        context,
        parameters: String::new(),
        maker: Some(label::maker(topic)),
        auto: None,
        outputs: Vec::new(),
    };
    plan.path.stages.push(stage);
    plan
}
