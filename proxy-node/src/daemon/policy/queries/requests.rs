//! Queries, translations and formats on request: what programs may ask of each channel, and how it is
//! planned.

use std::collections::HashMap;
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_messages::QueueLimits;
use csp_planner::{
    Catalogue, KnownFormat, Planned, PlannedChannel, QueryRequest, QuerySource, RequestError,
    TranslationRequest,
};
use csp_policy::{BroughtHandlers, Channel, Format, Policy, Requests, RowFormat};
use csp_services::{
    BroughtFormat, ChannelFeed, ChannelSpec, FormatAsked, HandlerBounds, HandlerRules, QueryAsked, QueryPlan,
    QueryPlanner, QueryRefused, RequestPlace, RequestSpec, Wanted,
};
use csp_types::Duration;

use super::{feeds_of, path_of, path_of_translation};
use crate::daemon::policy::{Numbers, channel};
use crate::daemon::specialised;

/// Plans queries that are asked of one channel, by the policy that was translated.
struct Planner {
    policy: Arc<Policy>,
    catalogue: Arc<Catalogue>,
    channel: String,
    numbers: Arc<HashMap<String, u32>>,
    seed: u64,
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planner").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl Planner {
    fn plan_query(&self, asked: QueryAsked<'_>, sql: &str) -> Result<QueryPlan, RequestError> {
        let request = QueryRequest { channel: &self.channel, name: asked.topic, sql, output: output(asked) };
        let found = self.catalogue.request(&self.policy, request, &known(asked.brought))?;
        Ok(QueryPlan {
            path: path_of(&found.query, &found.planned, asked.number, self.seed),
            feeds: self.feeds(&found.planned.sources, asked),
            schema: found.planned.plan.derived.xml.clone(),
        })
    }

    fn plan_translation(
        &self,
        asked: QueryAsked<'_>,
        (schema, message): (&str, Option<&str>),
    ) -> Result<QueryPlan, RequestError> {
        let request = TranslationRequest {
            channel: &self.channel,
            name: asked.topic,
            schema,
            message,
            output: output(asked),
        };
        let found = self.catalogue.translate(&self.policy, request, &known(asked.brought))?;
        Ok(QueryPlan {
            path: path_of_translation(&found, schema, asked.number),
            feeds: self.feeds(&found.sources, asked),
            schema: schema.to_owned(),
        })
    }

    fn feeds(&self, sources: &[QuerySource], asked: QueryAsked<'_>) -> Vec<ChannelFeed> {
        feeds_of(sources, asked.number, |name| self.numbers.get(name).copied().unwrap_or(u32::MAX))
    }
}

impl QueryPlanner for Planner {
    fn plan(&self, asked: QueryAsked<'_>) -> Result<QueryPlan, QueryRefused> {
        let planned = match asked.wanted {
            Wanted::Query(sql) => self.plan_query(asked, sql),
            Wanted::Translation { schema, message } => {
                self.plan_translation(asked, (schema, message.as_deref()))
            }
        };
        planned.map_err(refused)
    }

    fn bring(
        &self,
        asked: FormatAsked<'_>,
        brought: &[BroughtFormat],
    ) -> Result<(Arc<Schema>, Name), QueryRefused> {
        let (name, schema) = (asked.name.to_owned(), asked.xml.to_owned());
        let format = Format { name, schema, message: asked.message.map(str::to_owned) };
        let found = self.catalogue.bring(&self.policy, &self.channel, &format, &known(brought));
        found.map(|format| (format.schema, format.message)).map_err(refused)
    }
}

fn refused(RequestError { message, place }: RequestError) -> QueryRefused {
    QueryRefused { message, place }
}

fn output(asked: QueryAsked<'_>) -> RowFormat {
    if asked.json { RowFormat::Json } else { RowFormat::Sbe }
}

/// Returns formats that publishers have brought as the catalogue knows formats.
fn known(brought: &[BroughtFormat]) -> Vec<(u32, KnownFormat)> {
    let of = |BroughtFormat { name, id, schema, message, .. }: &BroughtFormat| {
        let (name, schema, message) = (name.clone(), schema.clone(), message.clone());
        (id.0, KnownFormat { name, schema, message })
    };
    brought.iter().map(of).collect()
}

/// Returns who may bring handlers to a channel, and within what they are made.
fn handler_rules(rules: BroughtHandlers, requests: &Requests, asked: &ChannelSpec) -> HandlerRules {
    let BroughtHandlers { each, module_kib, memory_kib, fuel, on_stop, anyone } = rules;
    let bytes = u64::from(requests.memory.max_mib) << 19; // the rest of the memory is for its subscribers
    let bounds = HandlerBounds {
        module_len_max: (module_kib as usize) << 10,
        memory_max: u64::from(memory_kib) << 10,
        fuel_max: fuel,
        on_stop,
        context: requests.context_number(),
        queue: QueueLimits { messages: requests.limits.waiting, bytes, ..QueueLimits::default() },
        formats: asked.formats.clone(),
    };
    HandlerRules { each: each.into(), anyone, bounds }
}

/// Returns what programs may ask of a channel that this proxy serves.
pub(in crate::daemon::policy) fn spec(
    planned: &Planned,
    of: &PlannedChannel<'_>,
    asked: &ChannelSpec,
    numbers: &mut Numbers,
) -> Option<RequestSpec> {
    let (policy, name) = (planned.policy(), &of.channel.name);
    let requests = of.channel.requests.as_ref()?;
    let place = |place: &Channel| RequestPlace {
        spec: ChannelSpec {
            derived: true,
            keys: asked.keys.clone(),
            ..ChannelSpec::open(numbers.of(&place.name), channel::config(place))
        },
        address: (place.vip, place.port).into(),
    };
    let places: Vec<RequestPlace> = of.requested.iter().map(place).collect();
    if places.is_empty() {
        return None;
    }
    if asked.formats.is_some() || requests.formats > 0 {
        specialised::start();
    }
    Some(RequestSpec {
        number: asked.number,
        places,
        each: requests.each.into(),
        formats_max: requests.formats.into(),
        handlers: requests.handlers.map(|rules| handler_rules(rules, requests, asked)),
        lease: Duration::from_secs(requests.lease_s.into()),
        planner: Arc::new(Planner {
            policy: policy.clone(),
            catalogue: planned.catalogue().clone(),
            channel: name.clone(),
            numbers: numbers.channels.clone(),
            seed: numbers.seed,
        }),
    })
}
