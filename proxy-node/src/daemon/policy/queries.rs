//! Converts formats, paths with operators, and queries.

use std::sync::Arc;

use csp_handlers::{FormatId, Handler, OUTPUTS_MAX, State};
use csp_messages::{PathEntry, PlacementBounds, QueueLimits, Rule, StageMaker, Targets};
use csp_planner::{
    Destination, KnownFormat, PathPlan, PlannedQuery, PlannedStage, QuerySource, RequestedTranslation,
    format_set, parameters, plan_paths,
};
use csp_policy::{Channel, Policy, Query, RowFormat, SuppliedHandler};
use csp_services::{AutoPlace, ChannelFeed, ChannelFormats, ChannelPath, FormatText, PathStage};
use csp_types::Duration;

use crate::daemon::modules::Modules;
use crate::daemon::specialised;

pub(super) mod requests;

/// Name of the handler of a query's path.
const QUERY: &str = "query";
/// Name of the handler of a derived channel's path.
const FORWARD: &str = "forward";
/// Name of the handler of a translation's path.
const TRANSLATE: &str = "translate";
/// Name of the operator that writes rows as JSON.
const PRINT: &str = "to-json";

/// Returns the formats of a channel, which the catalogue knows as `known`; `None` if it has none. `seed`
/// determines the hashes of keys in its operators.
pub(in crate::daemon) fn formats(
    policy: &Policy,
    channel: &Channel,
    known: &[KnownFormat],
    seed: u64,
) -> Option<ChannelFormats> {
    if known.is_empty() {
        return None;
    }
    let texts = policy.formats.iter().filter(|format| channel.formats.contains(&format.name));
    let key = format!("{:?} {:?}", channel.formats, texts.collect::<Vec<_>>());
    let mut set = format_set(known);
    set.set_seed(seed);
    let set = Arc::new(set);
    // Formats that operators derive get their ids in the order of the stages, as in the catalogue.
    for stage in channel.stages() {
        if let Some(mut handler) = csp_operators::make(&stage.handler, &set) {
            let mut state = State::new(&handler.needs());
            let _ = handler.configure(&parameters(stage), &mut state); // checked with the policy
        }
    }
    let text = |(name, known): (&String, &csp_planner::KnownFormat)| {
        let schema = policy.formats.iter().find(|format| format.name == *name)?.schema.clone();
        Some(FormatText { name: name.clone(), message: known.message.to_string(), schema })
    };
    let texts = channel.formats.iter().zip(known).filter_map(text).collect();
    Some(ChannelFormats::new(&key, set).with_texts(texts))
}

/// Returns the formats of a channel that outputs of another one's paths lead to: they have the ids that they
/// have there.
pub(super) fn derived_formats(
    policy: &Policy,
    source: &Channel,
    known: &[KnownFormat],
    seed: u64,
) -> Option<ChannelFormats> {
    let formats = formats(policy, source, known, seed)?;
    Some(ChannelFormats::new(formats.key(), formats.set().clone()))
}

/// What makes the paths of a channel.
pub(super) struct PathSource<'a> {
    pub channel: &'a Channel,
    /// Its number.
    pub number: u32,
    /// Its formats, as the catalogue and as operators have them.
    pub known: &'a [KnownFormat],
    pub formats: Option<&'a ChannelFormats>,
    pub supplied: &'a [SuppliedHandler],
    pub modules: &'a Arc<Modules>,
}

/// Returns the paths of a channel; `number` gives the numbers of the channels to which they lead.
pub(super) fn channel_paths(of: &PathSource<'_>, number: impl FnMut(&str) -> u32) -> Vec<ChannelPath> {
    let outlets: Vec<u32> = of.channel.outlets().into_iter().map(number).collect();
    let set = of.formats.map_or_else(Arc::default, |formats| formats.set().clone());
    // `cspctl path explain` says the same.
    let plans = plan_paths(of.channel, of.known, &set);
    plans.iter().map(|plan| channel_path(of, plan, outlets.clone())).collect()
}

fn channel_path(of: &PathSource<'_>, plan: &PathPlan, outlets: Vec<u32>) -> ChannelPath {
    let &PathSource { channel, number, formats, supplied, modules, .. } = of;
    let maker = |stage: &csp_policy::PathStage| {
        let handler = supplied.iter().find(|handler| handler.name == stage.handler);
        match handler {
            Some(handler) => Some(modules.maker(handler, &channel.name, stage, formats)),
            None => formats.and_then(|formats| operator(&stage.handler, formats, &channel.name)),
        }
    };
    let stage = |planned: &PlannedStage| {
        let stage = &planned.stage;
        let auto = auto_place(stage, supplied);
        let first = auto.as_ref().and_then(AutoPlace::first);
        PathStage {
            handler: stage.handler.clone(),
            // The policy names no other.
            context: first.or_else(|| stage.context_number()).unwrap_or(0),
            parameters: stage.parameters.clone(),
            maker: maker(stage),
            auto,
            outputs: outputs(planned),
        }
    };
    let stages: Vec<PathStage> = plan.stages.iter().map(stage).collect();
    // Supplied handlers get all messages: they are asked for what they accept.
    let is_operator = |stage: &PathStage| {
        stage.maker.is_some() && supplied.iter().all(|handler| handler.name != stage.handler)
    };
    // Operators get messages of the channel's formats; the first one may make such messages of others.
    let entry = match stages.iter().find(|stage| is_operator(stage)) {
        None => PathEntry::All,
        Some(first) if first.handler == csp_operators::FROM_JSON => PathEntry::KnownOrUnknown,
        Some(_) => PathEntry::Known,
    };
    let passes_faults = channel.given_up == csp_policy::GivenUp::Pass;
    let format = plan.format.map(|at| FormatId(at as u32 + 1));
    ChannelPath { format, entry, passes_faults, outlets, ..ChannelPath::new(number, stages) }
}

/// Returns where the outputs of a stage lead. A handler with several has as many as there can be: those that
/// the policy does not name get nothing.
pub(in crate::daemon) fn outputs(planned: &PlannedStage) -> Vec<Targets> {
    let target = |output: &csp_planner::PlannedOutput| match output.to {
        Destination::Stage(at) => Targets::stage(at),
        Destination::Receivers => Targets::RECEIVERS,
        Destination::Channel(outlet) => Targets::outlet(outlet),
    };
    let mut outputs: Vec<Targets> = planned.outputs.iter().map(target).collect();
    let divides = csp_planner::divides(&planned.stage.handler);
    if divides {
        outputs.resize(OUTPUTS_MAX.into(), Targets::NONE);
    }
    outputs
}

/// Returns the path of a channel that outputs of another one's paths lead to: its messages wait there for its
/// receivers.
pub(super) fn derived_path(source: &Channel, name: &str, number: u32) -> ChannelPath {
    let leads = |stage: &&csp_policy::PathStage| {
        stage.outputs.iter().any(|output| output.channel.as_deref() == Some(name))
    };
    let stages = source.stages();
    let context = stages.into_iter().find(leads).and_then(csp_policy::PathStage::context_number);
    let stage = PathStage {
        handler: FORWARD.to_owned(),
        context: context.unwrap_or(0),
        parameters: String::new(),
        maker: None,
        auto: None,
        outputs: Vec::new(),
    };
    ChannelPath::new(number, vec![stage])
}

/// Returns how a stage finds its context by itself, if it does.
fn auto_place(stage: &csp_policy::PathStage, supplied: &[SuppliedHandler]) -> Option<AutoPlace> {
    let place = stage.place.as_ref()?;
    let is_supplied = supplied.iter().any(|handler| handler.name == stage.handler);
    Some(AutoPlace {
        rule: if is_supplied { Rule::Supplied } else { Rule::Cost },
        bounds: PlacementBounds {
            p99: Duration::from_micros(place.p99_us.into()),
            calls: place.calls.into(),
            hold: Duration::from_secs(place.hold_s.into()),
            crossing: Duration::from_nanos(place.crossing_ns.into()),
            crossing_kib: Duration::from_nanos(place.crossing_kib_ns.into()),
        },
        contexts: place.numbers(),
    })
}

/// Returns what makes an operator for formats; `None` if it needs none.
fn operator(name: &str, formats: &ChannelFormats, channel: &str) -> Option<StageMaker> {
    let name = *csp_operators::NAMES.iter().find(|known| **known == name)?;
    let set = formats.set().clone();
    specialised::specialise(&set, channel);
    Some(StageMaker::new(formats.key(), move || csp_operators::make(name, &set)))
}

/// Returns the path of the channel of a query, whose messages come from its sources.
pub(super) fn path_of(query: &Query, planned: &PlannedQuery, number: u32, seed: u64) -> ChannelPath {
    let sources: Vec<_> = planned.sources.iter().map(|source| (&source.channel, source.format_id)).collect();
    let key = format!("{} {:?} {:?} {sources:?} {seed}", query.sql, query.limits, planned.plan.derived.xml);
    let (made, planned) = (query.clone(), planned.clone());
    let (output, schema) = (planned.output(), planned.result.clone());
    let make = move || {
        let handler = planned.handler(&made, seed).ok()?;
        Some(Box::new(specialised::specialised(handler, &made.name)) as Box<dyn Handler>)
    };
    path_with(query, number, (QUERY, StageMaker::new(&key, make)), (output, schema))
}

/// Returns the path of a translation that was asked for.
fn path_of_translation(wanted: &RequestedTranslation, schema: &str, number: u32) -> ChannelPath {
    let sources: Vec<_> = wanted.sources.iter().map(|source| (&source.channel, source.format_id)).collect();
    let key = format!("{sources:?} {} {schema}", wanted.target.message);
    let (output, target) = (wanted.output(), wanted.target.clone());
    let made = wanted.clone();
    let make = move || Some(Box::new(made.handler().ok()?) as Box<dyn Handler>);
    path_with(&wanted.query, number, (TRANSLATE, StageMaker::new(&key, make)), (output, target))
}

/// Returns a path of a handler whose results have a format, and what writes them as the query says.
fn path_with(
    query: &Query,
    number: u32,
    (name, maker): (&str, StageMaker),
    (output, schema): (FormatId, KnownFormat),
) -> ChannelPath {
    let context = query.context_number().unwrap_or(0);
    let stage = |handler: &str, maker| PathStage {
        handler: handler.to_owned(),
        context,
        parameters: String::new(),
        maker: Some(maker),
        auto: None,
        outputs: Vec::new(),
    };
    let mut stages = vec![stage(name, maker)];
    if query.output == RowFormat::Json {
        let key = format!("{:?} {}", schema.schema.messages, schema.message);
        let mut set = csp_operators::FormatSet::new();
        let _ = set.add(output, schema.schema, schema.message); // it is its only format
        let set = Arc::new(set);
        stages.push(stage(PRINT, StageMaker::new(&key, move || csp_operators::make(PRINT, &set))));
    }
    let bytes = u64::from(query.memory.max_mib) << 19;
    let queue = QueueLimits { messages: query.limits.waiting, bytes, ..QueueLimits::default() };
    ChannelPath { queue: Some(queue), ..ChannelPath::new(number, stages) }
}

/// Returns what the channel of a query receives from its sources.
pub(super) fn feeds_of(
    sources: &[QuerySource],
    to: u32,
    mut number: impl FnMut(&str) -> u32,
) -> Vec<ChannelFeed> {
    let feed = |(at, source): (usize, &QuerySource)| ChannelFeed {
        from: number(&source.channel),
        format: FormatId(source.format_id),
        to,
        becomes: FormatId(at as u32 + 1),
    };
    sources.iter().enumerate().map(feed).collect()
}

#[cfg(test)]
mod tests;
