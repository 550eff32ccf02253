//! `cspctl formats`, `queries`, `query explain` and `path explain`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use csp_api::mgmt::{ChannelView, ChannelsView, PolicyView};
use csp_planner::Catalogue;
use csp_policy::Policy;
use csp_queries::Plan;
use serde::Serialize;

use super::args::{Command, Output};
use super::contexts::lost_rows;
use super::error::CliError;
use super::explain::{self, Cost, FormatView, PathExplanation, Placement, QueryExplanation, Seen};
use super::observe::address;
use super::paint::{Colour, Paint};
use super::table::{Cell, Table, bytes};
use super::{Context, policy, put, show_as};
use crate::policy_view::field_errors;

/// The id of the derived schema of a query that the policy does not have.
const SCHEMA_ID: u16 = 0x8000;

/// Which policy to look at.
#[derive(Debug, Args)]
pub struct PolicyChoice {
    /// Policy file, YAML, instead of the active policy; no server is asked
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

/// `cspctl query ...`
#[derive(Debug, Subcommand)]
pub enum QueryCommand {
    /// Show the plan of a query, its formats, where it runs and what it costs
    ///
    /// The cost is that of its handlers at the proxies, measured every 16th call. With --policy no server is
    /// asked, and no cost is shown. With --sql the query need not be in the policy: its channels and formats
    /// are.
    #[command(
        after_help = "Examples:\n  cspctl query explain late\n  cspctl query explain late --policy demo.yaml\n  \
                            cspctl query explain --sql \"SELECT origin FROM flights WHERE delay > 10\"\n  \
                            cspctl query explain late -o json | jq -r .schema > late.xml"
    )]
    Explain(ExplainArgs),
}

/// Arguments of `cspctl query explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Query of the policy
    #[arg(required_unless_present = "sql", conflicts_with = "sql")]
    pub name: Option<String>,
    /// Text of a query
    #[arg(long, value_name = "TEXT")]
    pub sql: Option<String>,
    /// Print the derived schema, too
    #[arg(long)]
    pub schema: bool,
    /// Which policy
    #[command(flatten)]
    pub policy: PolicyChoice,
}

/// `cspctl path ...`
#[derive(Debug, Subcommand)]
pub enum PathCommand {
    /// Show the handlers that a channel's messages pass, what each makes of their formats, and what it costs
    #[command(
        after_help = "Examples:\n  cspctl path explain flights\n  cspctl path explain flights --policy demo.yaml -o json"
    )]
    Explain {
        /// Channel
        channel: String,
        /// Which policy
        #[command(flatten)]
        policy: PolicyChoice,
    },
}

/// Runs one of these commands if it needs no server.
pub(super) fn offline(command: &Command, output: Output, paint: Paint) -> Option<Result<(), CliError>> {
    let file = match command {
        Command::Formats(choice) | Command::Queries(choice) => &choice.policy,
        Command::Query(QueryCommand::Explain(args)) => &args.policy.policy,
        Command::Path(PathCommand::Explain { policy, .. }) => &policy.policy,
        _ => return None,
    };
    let file = file.as_deref()?;
    Some(read(file).and_then(|policy| run(command, &policy, &Seen::default(), output, paint)))
}

/// Runs one of these commands on the active policy.
pub(super) async fn online(context: &Context, command: &Command) -> Result<(), CliError> {
    let active: PolicyView = context.client.get("/api/v1/policy", &[]).await?;
    let policy = Policy::from_json(&active.policy.to_string(), "the active policy")
        .map_err(|error| CliError::Protocol(error.to_string()))?;
    // What proxies do not answer is left out.
    let channels: Option<ChannelsView> = context.client.get("/api/v1/channels", &[]).await.ok();
    let contexts = context.client.get("/api/v1/contexts", &[]).await.ok();
    run(command, &policy, &Seen { channels, contexts }, context.output, context.paint)
}

pub(super) fn read(file: &Path) -> Result<Policy, CliError> {
    let (name, text) = policy::read(file)?;
    let text = String::from_utf8_lossy(&text);
    Policy::parse_yaml(&text, &name).map_err(|error| CliError::BadPolicy(field_errors(&error)))
}

fn run(
    command: &Command,
    policy: &Policy,
    seen: &Seen,
    output: Output,
    paint: Paint,
) -> Result<(), CliError> {
    let catalogue = Catalogue::of(policy);
    match command {
        Command::Formats(_) => show_as(output, &formats(policy, &catalogue), |all| formats_table(all, paint)),
        Command::Queries(_) => {
            let all: Vec<QueryExplanation> = (0..policy.queries.len())
                .filter_map(|index| explain::query(policy, &catalogue, index, seen))
                .collect();
            let requested =
                seen.requested().filter_map(RequestedRow::of).map(|row| Listed::Requested(Box::new(row)));
            let all: Vec<Listed> =
                all.into_iter().map(|query| Listed::OfPolicy(Box::new(query))).chain(requested).collect();
            show_as(output, &all, |all| all_table(policy, all, seen, paint))
        }
        Command::Query(QueryCommand::Explain(args)) => {
            let found = explain_query(policy, &catalogue, args, seen)?;
            show_as(output, &found, |found| query_text(found, args.schema, paint))
        }
        Command::Path(PathCommand::Explain { channel, .. }) => {
            let known = policy.channels.iter().find(|known| known.name == *channel);
            let names = policy.channels.iter().map(|known| known.name.as_str());
            let known = known.ok_or_else(|| missing("channel", channel, names))?;
            let found = explain::path(policy, &catalogue, known, seen);
            show_as(output, &found, |found| path_text(found, paint))
        }
        _ => put(""),
    }
}

pub(super) fn missing<'n>(what: &str, name: &str, names: impl Iterator<Item = &'n str>) -> CliError {
    let near = csp_formats::nearest(name, names);
    let near = near.map_or_else(String::new, |near| format!("; the nearest is \"{near}\""));
    CliError::Failed(format!("the policy has no {what} \"{name}\"{near}"))
}

fn explain_query(
    policy: &Policy,
    catalogue: &Catalogue,
    args: &ExplainArgs,
    seen: &Seen,
) -> Result<QueryExplanation, CliError> {
    if let Some(sql) = &args.sql {
        let plan = Plan::new(sql, catalogue, SCHEMA_ID)
            .map_err(|error| CliError::Usage(format!("--sql: {error}")))?;
        return Ok(explain::text(policy, catalogue, sql, &plan, seen));
    }
    let name = args.name.as_deref().unwrap_or_default();
    let index = policy.queries.iter().position(|query| query.name == name);
    let found = index.and_then(|index| explain::query(policy, catalogue, index, seen));
    found.ok_or_else(|| missing("query", name, policy.queries.iter().map(|query| query.name.as_str())))
}

/// A format of the policy.
#[derive(Serialize)]
struct FormatRow {
    #[serde(flatten)]
    format: FormatView,
    template_id: u16,
    schema_bytes: usize,
    /// The channels that have it, each with its id there.
    channels: Vec<ChannelFormat>,
}

#[derive(Serialize)]
struct ChannelFormat {
    channel: String,
    id: usize,
}

fn formats(policy: &Policy, catalogue: &Catalogue) -> Vec<FormatRow> {
    let row = |format: &csp_policy::Format| {
        let known = catalogue.formats.get(&format.name)?;
        let channels = policy.channels.iter().filter_map(|channel| {
            let id = 1 + channel.formats.iter().position(|name| *name == format.name)?;
            Some(ChannelFormat { channel: channel.name.clone(), id })
        });
        Some(FormatRow {
            format: known.into(),
            template_id: known.layout().id,
            schema_bytes: format.schema.len(),
            channels: channels.collect(),
        })
    };
    policy.formats.iter().filter_map(row).collect()
}

fn formats_table(all: &[FormatRow], paint: Paint) -> String {
    if all.is_empty() {
        return "No formats: the policy names none.\n".to_owned();
    }
    let mut table = Table::new(&["FORMAT", "MESSAGE", "SCHEMA", "TEMPLATE", "VERSION", "SIZE", "CHANNELS"]);
    for row in all {
        let channels: Vec<String> =
            row.channels.iter().map(|known| format!("{} as {}", known.channel, known.id)).collect();
        table.row([
            row.format.name.clone().into(),
            row.format.message.clone().into(),
            u64::from(row.format.schema_id).into(),
            u64::from(row.template_id).into(),
            u64::from(row.format.version).into(),
            Cell::from(bytes(row.schema_bytes as u64)).right(),
            channels.join(", ").into(),
        ]);
    }
    table.render(paint)
}

/// What `cspctl queries` lists.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    OfPolicy(Box<QueryExplanation>),
    Requested(Box<RequestedRow>),
}

/// A query that a program has asked for.
#[derive(Serialize)]
struct RequestedRow {
    sql: String,
    #[serde(flatten)]
    channel: ChannelView,
}

impl RequestedRow {
    fn of(channel: &ChannelView) -> Option<Self> {
        let sql = channel.requested.as_ref()?.sql.to_string();
        Some(RequestedRow { sql, channel: channel.clone() })
    }
}

fn all_table(policy: &Policy, all: &[Listed], seen: &Seen, paint: Paint) -> String {
    let of_policy: Vec<&QueryExplanation> = all
        .iter()
        .filter_map(|listed| match listed {
            Listed::OfPolicy(query) => Some(&**query),
            Listed::Requested(_) => None,
        })
        .collect();
    let mut table = Table::new(&[
        "ON REQUEST",
        "ADDRESS",
        "OUTPUT",
        "BY",
        "OWNER",
        "RECEIVERS",
        "MESSAGES",
        "DROPPED",
        "LOST ROWS",
        "LEASE",
        "ENDS",
        "SQL",
    ]);
    let mut is_empty = true;
    for listed in all {
        let Listed::Requested(row) = listed else { continue };
        let RequestedRow { sql, channel } = &**row;
        let Some(query) = &channel.requested else { continue };
        let by = match query.requesters {
            0 | 1 => query.by.to_string(),
            more => format!("{} and {} more", query.by, more - 1),
        };
        let ends = query.ends_in_s.map_or_else(|| "-".to_owned(), |ends| format!("in {ends} s"));
        table.row([
            channel.name.clone().into(),
            query.address.to_string().into(),
            query.output.to_string().into(),
            by.into(),
            channel.owners.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ").into(),
            channel.receivers.into(),
            channel.figures.messages_total.into(),
            channel.figures.dropped_total.into(),
            lost_rows(&channel.figures.lost_rows),
            Cell::from(format!("{} s", query.lease_s)).right(),
            Cell::from(ends).right(),
            sql.split_whitespace().collect::<Vec<_>>().join(" ").into(),
        ]);
        is_empty = false;
    }
    match (of_policy.is_empty(), is_empty) {
        (_, true) => queries_table(policy, &of_policy, seen, paint),
        (true, false) => table.render(paint),
        (false, false) => {
            format!("{}\n{}", queries_table(policy, &of_policy, seen, paint), table.render(paint))
        }
    }
}

fn queries_table(policy: &Policy, all: &[&QueryExplanation], seen: &Seen, paint: Paint) -> String {
    if all.is_empty() {
        return "No queries: the policy names none.\n".to_owned();
    }
    let mut table = Table::new(&[
        "QUERY",
        "ADDRESS",
        "OUTPUT",
        "READS",
        "OWNER",
        "RECEIVERS",
        "MESSAGES",
        "ROWS",
        "DROPPED",
        "LOST ROWS",
        "SQL",
    ]);
    for query in all {
        let own = policy.queries.iter().find(|known| known.name == query.name);
        let end = own.map_or_else(String::new, |own| address(&own.vip.to_string(), own.port));
        let live =
            seen.channels.iter().flat_map(|view| &view.channels).find(|known| known.name == query.name);
        let figure = |value: Option<u64>| value.map_or_else(|| Cell::from("-").right(), Cell::from);
        let dropped = live.map(|live| live.figures.dropped_total);
        let colour = if dropped.unwrap_or(0) > 0 { Colour::Yellow } else { Colour::Plain };
        let first = query.cost.iter().filter(|cost| cost.stage == 0);
        let rows = live.map(|_| first.map(|cost| cost.emitted_total).sum());
        table.row([
            query.name.clone().into(),
            end.into(),
            query.output.unwrap_or_default().into(),
            query.reads.iter().map(|read| read.channel.as_str()).collect::<Vec<_>>().join(" ").into(),
            query.placement.owners.join(" ").into(),
            figure(live.map(|live| live.receivers)),
            figure(live.map(|live| live.figures.messages_total)),
            figure(rows),
            figure(dropped).coloured(colour),
            live.map_or_else(|| Cell::from("-").right(), |live| lost_rows(&live.figures.lost_rows)),
            query.sql.split_whitespace().collect::<Vec<_>>().join(" ").into(),
        ]);
    }
    table.render(paint)
}

fn format_words(format: &FormatView) -> String {
    let FormatView { name, message, schema_id, version } = format;
    format!("{name}: {message} of schema {schema_id} version {version}")
}

fn query_text(query: &QueryExplanation, schema: bool, paint: Paint) -> String {
    let mut out = String::new();
    if let (Some(address), Some(output)) = (&query.address, query.output) {
        let _ = writeln!(out, "query {} at {address}, rows as {output}", query.name);
    }
    for line in query.sql.trim().lines() {
        let _ = writeln!(out, "  {}", paint.paint(Colour::Dim, line.trim_end()));
    }
    out += "\nplan\n";
    for (at, step) in query.plan.iter().enumerate() {
        let _ = writeln!(out, "  {} {:<9} {}", at + 1, step.operation, step.detail);
    }
    out += "\nreads\n";
    for read in &query.reads {
        let time = match &read.time {
            Some(time) => {
                format!("time {} in {}, {} ms late at most", time.field, time.unit.as_str(), time.lateness_ms)
            }
            None => "time of arrival".to_owned(),
        };
        let _ = writeln!(out, "  {}  {}; {time}", read.channel, format_words(&read.format));
    }
    out += "\nrows\n";
    let width = query.columns.iter().map(|column| column.name.chars().count()).max().unwrap_or(0);
    for column in &query.columns {
        let _ = writeln!(out, "  {:<width$}  {}", column.name, column.r#type);
    }
    out += &placement_text(&query.placement);
    out += &cost_text(&query.cost, paint);
    if schema {
        let _ = writeln!(out, "\nschema\n{}", query.schema.trim_end());
    }
    out
}

fn path_text(path: &PathExplanation, paint: Paint) -> String {
    let mut out = format!("channel {}\n\nformats\n", path.channel);
    if path.formats.is_empty() {
        out += "  none: handlers that need no format may be used\n";
    }
    for (at, format) in path.formats.iter().enumerate() {
        let _ = writeln!(out, "  {}  {}", at + 1, format_words(format));
    }
    if path.paths.is_empty() {
        out += "\npath\n";
        out += &match &path.source {
            Some(source) => format!("  none: outputs of {source} lead here, and nobody publishes\n"),
            None => "  none: messages go straight to receivers\n".to_owned(),
        };
    }
    path.paths.iter().for_each(|path| out += &one_path_text(path));
    if path.unknown_passes {
        out += "  messages of none of the formats pass the handlers by\n";
    }
    if !path.queries.is_empty() {
        let _ = writeln!(out, "  then queries: {}", path.queries.join(", "));
    }
    out + &placement_text(&path.placement) + &cost_text(&path.cost, paint)
}

fn one_path_text(path: &explain::OnePath) -> String {
    let of = path.format.as_ref().map_or_else(String::new, |format| format!(" of {format}"));
    let mut out = format!("\npath{of}\n");
    let yields = |yields: &[FormatView]| match yields {
        [] => String::new(),
        all => format!("  -> {}", all.iter().map(|format| &*format.message).collect::<Vec<_>>().join(", ")),
    };
    for (at, stage) in path.stages.iter().enumerate() {
        let (parameters, last) = match stage.outputs.len() {
            0 | 1 => (format!("{} ", stage.parameters), yields(&stage.yields)),
            _ => (String::new(), String::new()),
        };
        let _ = writeln!(out, "  {} {} {parameters}on {}{last}", at + 1, stage.handler, stage.context);
        let stage_outputs = stage.outputs.len();
        for output in &stage.outputs {
            // Stages are numbered from 1 on here.
            let stage = output.to.strip_prefix("stage ").and_then(|at| at.parse::<usize>().ok());
            let to = stage.map_or_else(|| output.to.clone(), |at| format!("stage {}", at + 1));
            let (emit, yields) = match stage_outputs {
                1 => (String::new(), String::new()),
                _ if output.emit.is_empty() => ("whole ".to_owned(), yields(&output.yields)),
                _ => (format!("{} ", output.emit), yields(&output.yields)),
            };
            let _ = writeln!(out, "      {emit}to {to}{yields}");
        }
    }
    for note in &path.notes {
        let _ = writeln!(out, "  {note}");
    }
    out
}

fn placement_text(placement: &Placement) -> String {
    let Placement { with, owners, context } = placement;
    let context = context.as_ref().map_or_else(String::new, |context| format!(" in context {context}"));
    let owner = match owners.is_empty() {
        true => String::new(),
        false => format!(", now {}", owners.join(" ")),
    };
    format!("\nruns{context} at the owner of {}{owner}\n", with.join(", "))
}

fn cost_text(cost: &[Cost], paint: Paint) -> String {
    if cost.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "WORKER",
        "STAGE",
        "HANDLER",
        "MESSAGES",
        "EMITTED",
        "DROPPED",
        "LOST ROWS",
        "MEAN",
        "MAX",
    ]);
    for stage in cost {
        let time = |ns: u64| {
            if stage.max_ns == 0 { Cell::from("-") } else { Cell::from(format!("{ns} ns")).right() }
        };
        table.row([
            stage.worker.clone().into(),
            stage.stage.into(),
            stage.handler.clone().into(),
            stage.messages_total.into(),
            stage.emitted_total.into(),
            stage.dropped_total.into(),
            lost_rows(&stage.lost_rows),
            time(stage.mean_ns),
            time(stage.max_ns),
        ]);
    }
    format!("\n{}", table.render(paint))
}
