//! What a query or a path does, where, and what that costs: computed from a policy, with figures of the
//! proxies if they answer.

use csp_api::contexts::ContextsView;
use csp_api::mgmt::{ChannelView, ChannelsView};
use csp_planner::{Catalogue, KnownFormat, QuerySource};
use csp_policy::{Channel, ChannelTime, Policy};
use csp_queries::{Kind, Plan};
use serde::Serialize;

/// A query, explained.
#[derive(Debug, Serialize)]
pub(super) struct QueryExplanation {
    /// Its name; empty: it is not in the policy.
    pub name: String,
    pub sql: String,
    /// Where subscribers connect, and how rows are written; only of a query of the policy.
    pub address: Option<String>,
    pub output: Option<&'static str>,
    pub reads: Vec<Read>,
    pub plan: Vec<Step>,
    pub columns: Vec<Column>,
    /// The derived schema.
    pub schema: String,
    pub placement: Placement,
    /// What its handlers have cost; empty where no proxy runs it or was asked.
    pub cost: Vec<Cost>,
}

/// A channel that is read.
#[derive(Debug, Serialize)]
pub(super) struct Read {
    pub channel: String,
    pub format: FormatView,
    /// The field of time; `None`: when messages arrive.
    pub time: Option<ChannelTime>,
}

/// A format in one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FormatView {
    pub name: String,
    pub message: String,
    pub schema_id: u16,
    pub version: u16,
}

/// A step of a plan.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub operation: &'static str,
    pub detail: String,
}

/// A column of the result.
#[derive(Debug, Serialize)]
pub(super) struct Column {
    pub name: String,
    pub r#type: String,
}

/// Where it runs.
#[derive(Debug, Default, Serialize)]
pub(super) struct Placement {
    /// The channels and queries that have the same owner, itself included.
    pub with: Vec<String>,
    /// Owners that proxies name; more than one while a channel moves.
    pub owners: Vec<String>,
    pub context: Option<String>,
}

/// What a stage of a path has cost at a worker.
#[derive(Debug, Serialize)]
pub(super) struct Cost {
    pub worker: String,
    pub stage: u64,
    pub handler: String,
    pub messages_total: u64,
    pub emitted_total: u64,
    pub dropped_total: u64,
    pub lost_rows: csp_api::proxy::LostRows,
    pub mean_ns: u64,
    pub max_ns: u64,
}

/// A channel's path, explained.
#[derive(Debug, Serialize)]
pub(super) struct PathExplanation {
    pub channel: String,
    pub formats: Vec<FormatView>,
    /// Its paths: one of all formats, or one for each of some.
    pub paths: Vec<OnePath>,
    /// The channel whose paths lead here, if nobody publishes to the channel.
    pub source: Option<String>,
    /// Messages of none of the formats pass the handlers by.
    pub unknown_passes: bool,
    /// Queries that read what the path makes.
    pub queries: Vec<String>,
    pub placement: Placement,
    pub cost: Vec<Cost>,
}

/// A path.
#[derive(Debug, Serialize)]
pub(super) struct OnePath {
    /// The format of its messages; `None`: all.
    pub format: Option<String>,
    /// In the order in which they run.
    pub stages: Vec<StageView>,
    /// What the optimiser has done with the order, and what not and why.
    pub notes: Vec<String>,
}

/// An output of a handler.
#[derive(Debug, Serialize)]
pub(super) struct OutputView {
    /// What it gets, in the handler's words; empty: the message itself, or all that a handler with one output
    /// emits.
    pub emit: String,
    /// `receivers`, `channel` and a name, or `stage` and a number from 0 on.
    pub to: String,
    /// What becomes of each format.
    pub yields: Vec<FormatView>,
}

/// A stage of a path.
#[derive(Debug, Serialize)]
pub(super) struct StageView {
    pub handler: String,
    pub context: String,
    pub parameters: String,
    /// Of each format of the path, in their order: what the stage makes of it.
    pub yields: Vec<FormatView>,
    /// Where its outputs lead, unless there is one, which leads to the stage after it, or from the last to
    /// receivers.
    pub outputs: Vec<OutputView>,
}

/// What proxies have answered.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub channels: Option<ChannelsView>,
    pub contexts: Option<ContextsView>,
}

impl Seen {
    fn owners(&self, channel: &str) -> Vec<String> {
        let views = self.channels.iter().flat_map(|view| &view.channels);
        let known = views.filter(|known| known.name == channel);
        known.flat_map(|known| known.owners.iter().map(ToString::to_string)).collect()
    }

    /// Returns the channels of queries that programs have asked for.
    pub fn requested(&self) -> impl Iterator<Item = &ChannelView> {
        self.channels.iter().flat_map(|view| &view.channels).filter(|view| view.requested.is_some())
    }

    fn cost(&self, channel: &str) -> Vec<Cost> {
        let mut cost = Vec::new();
        for node in self.contexts.iter().flat_map(|view| &view.nodes) {
            let stages = node.contexts.stages.iter();
            cost.extend(stages.filter(|stage| *stage.channel == *channel).map(|stage| Cost {
                worker: format!("{}/{}", node.node, stage.worker),
                stage: stage.stage,
                handler: stage.handler.to_string(),
                messages_total: stage.messages_total,
                emitted_total: stage.emitted_total,
                dropped_total: stage.dropped_total,
                lost_rows: stage.lost_rows,
                mean_ns: stage.mean_ns,
                max_ns: stage.max_ns,
            }));
        }
        cost
    }
}

impl From<&KnownFormat> for FormatView {
    fn from(format: &KnownFormat) -> Self {
        FormatView {
            name: format.name.clone(),
            message: format.message.to_string(),
            schema_id: format.schema.id,
            version: format.schema.version,
        }
    }
}

/// Explains the query of the policy with this index.
pub(super) fn query(
    policy: &Policy,
    catalogue: &Catalogue,
    index: usize,
    seen: &Seen,
) -> Option<QueryExplanation> {
    let (query, planned) = (policy.queries.get(index)?, catalogue.planned(index)?);
    let mut found = explain(policy, &query.sql, &planned.plan, &planned.sources);
    found.name.clone_from(&query.name);
    found.address = Some(std::net::SocketAddr::from((query.vip, query.port)).to_string());
    found.output = Some(query.output.as_str());
    found.placement.context = Some(query.context.clone());
    found.placement.owners = seen.owners(&query.name);
    found.placement.with = group(policy, &query.name);
    found.cost = seen.cost(&query.name);
    Some(found)
}

/// Explains a query that the policy does not have.
pub(super) fn text(
    policy: &Policy,
    catalogue: &Catalogue,
    sql: &str,
    plan: &Plan,
    seen: &Seen,
) -> QueryExplanation {
    let sources: Vec<QuerySource> =
        plan.sources.iter().filter_map(|source| catalogue.source(&source.channel)).collect();
    let mut found = explain(policy, sql, plan, &sources);
    let owners = sources.iter().flat_map(|source| seen.owners(&source.channel));
    found.placement.owners = owners.collect();
    found.placement.owners.dedup();
    found
}

fn explain(policy: &Policy, sql: &str, plan: &Plan, sources: &[QuerySource]) -> QueryExplanation {
    let read = |source: &QuerySource| Read {
        channel: source.channel.clone(),
        format: (&source.format).into(),
        time: source.time.clone(),
    };
    let mut with: Vec<String> = sources.iter().flat_map(|source| group(policy, &source.channel)).collect();
    with.sort();
    with.dedup();
    QueryExplanation {
        name: String::new(),
        sql: sql.to_owned(),
        address: None,
        output: None,
        reads: sources.iter().map(read).collect(),
        plan: plan
            .steps()
            .into_iter()
            .map(|step| Step { operation: step.operation, detail: step.detail })
            .collect(),
        columns: plan.outputs.iter().map(|output| column(plan, output)).collect(),
        schema: plan.derived.xml.clone(),
        placement: Placement { with, ..Placement::default() },
        cost: Vec::new(),
    }
}

fn column(plan: &Plan, output: &csp_queries::Output) -> Column {
    let r#type = match (output.like, &output.kind) {
        (Some(at), kind) => format!("{}, as {}", kind.name(), plan.columns[at].path),
        (None, Kind::Integer) => "int64, may be null".to_owned(),
        (None, Kind::Float) => "double, may be null".to_owned(),
        (None, Kind::Boolean) => "False or True, may be null".to_owned(),
        (None, Kind::Text(_)) => format!("text of up to {} bytes, may be null", output.text_len),
        (None, kind) => kind.name().to_owned(),
    };
    Column { name: output.name.clone(), r#type }
}

/// The names of channels and queries that live where `name` does.
fn group(policy: &Policy, name: &str) -> Vec<String> {
    let keys = policy.placements();
    let Some(own) = keys.get(name) else { return Vec::new() };
    let mut names: Vec<String> =
        keys.iter().filter(|(_, key)| *key == own).map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

/// Explains the path of a channel.
pub(super) fn path(
    policy: &Policy,
    catalogue: &Catalogue,
    channel: &Channel,
    seen: &Seen,
) -> PathExplanation {
    let at = policy.channels.iter().position(|known| known.name == channel.name);
    let formats = at.and_then(|at| catalogue.channels.get(at)).map_or(&[][..], Vec::as_slice);
    let set = std::sync::Arc::new(csp_planner::format_set(formats));
    let plans = csp_planner::plan_paths(channel, formats, &set);
    let paths = plans.iter().map(|plan| one_path(channel, formats, plan)).collect();
    let is_operator = |stage: &csp_policy::PathStage| csp_operators::NAMES.contains(&stage.handler.as_str());
    let reads = |planned: &&csp_planner::PlannedQuery| {
        planned.sources.iter().any(|source| source.channel == channel.name)
    };
    PathExplanation {
        channel: channel.name.clone(),
        formats: formats.iter().map(FormatView::from).collect(),
        unknown_passes: !channel.paths.is_empty() || channel.stages().into_iter().any(is_operator),
        paths,
        source: policy.source_of(&channel.name).map(|source| source.name.clone()),
        queries: catalogue
            .queries
            .iter()
            .filter(reads)
            .map(|planned| policy.queries[planned.index].name.clone())
            .collect(),
        placement: Placement {
            with: group(policy, &channel.name),
            owners: seen.owners(&channel.name),
            context: None,
        },
        cost: seen.cost(&channel.name),
    }
}

fn one_path(channel: &Channel, formats: &[KnownFormat], plan: &csp_planner::PathPlan) -> OnePath {
    let to = |to: csp_planner::Destination| match to {
        csp_planner::Destination::Stage(at) => format!("stage {at}"),
        csp_planner::Destination::Receivers => "receivers".to_owned(),
        csp_planner::Destination::Channel(outlet) => {
            format!("channel {}", channel.outlets().get(outlet).copied().unwrap_or_default())
        }
    };
    let output = |output: &csp_planner::PlannedOutput| OutputView {
        emit: output.emit.clone(),
        to: to(output.to),
        yields: output.yields.iter().map(FormatView::from).collect(),
    };
    let stage = |(at, planned): (usize, &csp_planner::PlannedStage)| {
        let (stage, outputs) = (&planned.stage, &planned.outputs);
        // A chain says enough by its order.
        let next = match at + 1 < plan.stages.len() {
            true => csp_planner::Destination::Stage(at + 1),
            false => csp_planner::Destination::Receivers,
        };
        let divides = csp_planner::divides(&stage.handler) || outputs.iter().any(|output| output.to != next);
        StageView {
            handler: stage.handler.clone(),
            context: match &stage.place {
                Some(place) => place.auto.join(" or "),
                None => stage.context.clone(),
            },
            parameters: stage.parameters.clone(),
            yields: outputs
                .first()
                .map(|first| first.yields.iter().map(FormatView::from).collect())
                .unwrap_or_default(),
            outputs: outputs.iter().filter(|_| divides).map(output).collect(),
        }
    };
    OnePath {
        format: plan.format.and_then(|at| formats.get(at)).map(|format| format.name.clone()),
        stages: plan.stages.iter().enumerate().map(stage).collect(),
        notes: plan.notes.clone(),
    }
}
