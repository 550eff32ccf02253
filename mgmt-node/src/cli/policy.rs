//! `cspctl policy ...`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use reqwest::StatusCode;

use csp_planner::Planned;

use csp_api::mgmt::{Acknowledged, DryRunView, GenerationView, Phase, PolicyView};

use super::args::{ApplyArgs, Output, PolicyCommand, RollbackArgs};
use super::error::CliError;
use super::paint::Colour;
use super::table::{Cell, Table, span};
use super::{Context, diff as line_diff, policy_check, put};

/// Longest policy file, in bytes; the server has the same bound.
const FILE_LEN_MAX: u64 = crate::limits::POLICY_LEN_MAX as u64;
/// How long the server may hold one request for progress, in seconds.
const POLL_S: u64 = 10;

/// `cspctl policy diff -o json`, where there are differences.
#[derive(serde::Serialize)]
struct PolicyDiff {
    /// Always true: without differences nothing is printed.
    differs: bool,
    /// The active policy as YAML, in canonical order.
    active: String,
    /// The file's, likewise.
    file: String,
}

/// Runs one of the commands that ask a server.
pub(super) async fn run(context: &Context, command: PolicyCommand) -> Result<(), CliError> {
    match command {
        PolicyCommand::Apply(args) => apply(context, args).await,
        PolicyCommand::Check { file } => policy_check::check(context, &file).await,
        PolicyCommand::Show { generation } => show(context, generation).await,
        PolicyCommand::Diff { file } => diff(context, &file).await,
        PolicyCommand::History => history(context).await,
        PolicyCommand::Rollback(args) => rollback(context, &args).await,
        PolicyCommand::Schema => Ok(()), // it needs no server
    }
}

/// `cspctl policy apply`.
async fn apply(context: &Context, args: ApplyArgs) -> Result<(), CliError> {
    let (name, yaml) = read(&args.file)?;
    if args.dry_run {
        let checked = check(context, &name, yaml.clone()).await?;
        context.show(&checked, |checked| {
            format!(
                "{name}: right, {}; nodes were not asked, nothing was changed\n",
                crate::policy_view::contents(checked)
            )
        })?;
    } else {
        publish(context, (&name, args.timeout), None, yaml.clone()).await?;
    }
    if let Ok(planned) = Planned::parse_yaml(&String::from_utf8_lossy(&yaml), &name) {
        super::edit::warn(&planned.warnings());
    }
    Ok(())
}

/// Publishes a policy and follows what becomes of it. `file` names it for errors, `timeout` is what the nodes
/// may take, in seconds; `instead_of`: refused unless this generation is the active one.
pub(super) async fn publish(
    context: &Context,
    (file, timeout): (&str, u64),
    instead_of: Option<u64>,
    yaml: Vec<u8>,
) -> Result<(), CliError> {
    let mut query = vec![("file", file.to_owned()), ("timeout_s", timeout.to_string())];
    query.extend(instead_of.map(|generation| ("if_generation", generation.to_string())));
    let (status, mut view) =
        context.client.post_yaml::<GenerationView>("/api/v1/policy", &query, yaml).await?;
    if status == StatusCode::OK {
        return context
            .show(&view, |v| format!("unchanged: generation {} with this policy is active\n", v.generation));
    }
    let mut reported = BTreeMap::new();
    loop {
        progress(context, &view, &mut reported);
        if view.phase.is_final() {
            break;
        }
        let path = format!("/api/v1/policy/generations/{}", view.generation);
        let query = [("since", view.revision.to_string()), ("wait_s", POLL_S.to_string())];
        view = context.client.get(&path, &query).await?;
    }
    outcome(context, &view)
}

/// Reports on standard error what has changed since the last call.
fn progress(context: &Context, view: &GenerationView, reported: &mut BTreeMap<String, Acknowledged>) {
    if context.output == Output::Json {
        return;
    }
    if reported.is_empty() {
        eprintln!("generation {}: asking {} nodes", view.generation, view.acks.len());
        reported.insert(String::new(), Acknowledged::Waiting);
    }
    for ack in &view.acks {
        if ack.state != Acknowledged::Waiting
            && reported.insert(ack.node.clone(), ack.state) != Some(ack.state)
        {
            let why = ack.error.as_deref().map(|e| format!(": {e}")).unwrap_or_default();
            eprintln!("  {} {}{why}", ack.node, ack.state.as_str());
        }
    }
}

fn outcome(context: &Context, view: &GenerationView) -> Result<(), CliError> {
    match view.phase {
        Phase::Active | Phase::Superseded => context.show(view, |v| {
            let late: Vec<&str> =
                v.acks.iter().filter(|a| a.state != Acknowledged::Active).map(|a| a.node.as_str()).collect();
            let note = match late.is_empty() {
                true => String::new(),
                false => format!(" (not yet confirmed by {})", late.join(", ")),
            };
            format!("generation {} is active on {} nodes{note}\n", v.generation, v.acks.len() - late.len())
        }),
        phase => {
            context.show(view, |_| String::new())?;
            Err(CliError::Failed(format!(
                "generation {} was not activated ({}): {}; the policy before it stays in force",
                view.generation,
                phase.as_str(),
                view.reason.as_deref().unwrap_or("no reason given")
            )))
        }
    }
}

/// `cspctl policy show`.
async fn show(context: &Context, generation: Option<u64>) -> Result<(), CliError> {
    let path = match generation {
        Some(n) => format!("/api/v1/policy/generations/{n}/policy"),
        None => "/api/v1/policy".to_owned(),
    };
    let view: PolicyView = context.client.get(&path, &[]).await?;
    context.show(&view, |v| format!("# generation {}, sha256 {}\n{}", v.generation, v.hash, ended(&v.yaml)))
}

/// `cspctl policy diff`.
async fn diff(context: &Context, file: &Path) -> Result<(), CliError> {
    let (name, yaml) = read(file)?;
    let wanted = check(context, &name, yaml).await?;
    let active: PolicyView = match context.client.get("/api/v1/policy", &[]).await {
        Err(CliError::Failed(_)) => PolicyView {
            generation: 0,
            created_unix_ms: 0,
            hash: String::new(),
            yaml: String::new(),
            policy: serde_json::Value::Null,
        },
        other => other?,
    };
    let old_name = match active.generation {
        0 => "no policy".to_owned(),
        n => format!("generation {n} (active)"),
    };
    let Some(text) = line_diff::unified(&active.yaml, &wanted.yaml, &old_name, &name, context.paint) else {
        return Ok(());
    };
    match context.output {
        Output::Table => put(&text)?,
        Output::Json => {
            let both = PolicyDiff { differs: true, active: active.yaml, file: wanted.yaml };
            context.show(&both, |_| String::new())?;
        }
    }
    Err(CliError::Differs)
}

/// `cspctl policy history`.
async fn history(context: &Context) -> Result<(), CliError> {
    let all: Vec<GenerationView> = context.client.get("/api/v1/policy/history", &[]).await?;
    let now = csp_daemon::clock::unix_now_ms();
    context.show(&all, |all| {
        if all.is_empty() {
            return "No policy was applied yet.\n".to_owned();
        }
        let mut table = Table::new(&["GENERATION", "STATE", "AGE", "SHA256", "REASON"]);
        for g in all {
            let colour = match g.phase {
                Phase::Active => Colour::Green,
                Phase::Refused | Phase::TimedOut | Phase::Abandoned => Colour::Red,
                Phase::Staging | Phase::Activating => Colour::Yellow,
                Phase::Superseded => Colour::Dim,
            };
            table.row([
                g.generation.into(),
                Cell::from(g.phase.as_str()).coloured(colour),
                span(now.saturating_sub(g.created_unix_ms)).into(),
                g.hash.chars().take(12).collect::<String>().into(),
                g.reason.clone().unwrap_or_default().into(),
            ]);
        }
        table.render(context.paint)
    })
}

/// `cspctl policy rollback`: an earlier policy becomes a new generation, which the nodes check as any other.
async fn rollback(context: &Context, args: &RollbackArgs) -> Result<(), CliError> {
    let history: Vec<GenerationView> = context.client.get("/api/v1/policy/history", &[]).await?;
    let (active, earlier) = choose(&history, args.generation).map_err(CliError::Failed)?;
    let path = format!("/api/v1/policy/generations/{earlier}/policy");
    let view: PolicyView = context.client.get(&path, &[]).await?;
    let file = format!("generation {earlier}");
    publish(context, (&file, args.timeout), Some(active), view.yaml.into_bytes()).await
}

/// The generation in force, and the one to return to: `wanted`, else the one that was in force before. Error:
/// what is missing.
fn choose(history: &[GenerationView], wanted: Option<u64>) -> Result<(u64, u64), String> {
    let was_in_force = |g: &GenerationView| matches!(g.phase, Phase::Active | Phase::Superseded);
    let active = history.iter().find(|g| matches!(g.phase, Phase::Active));
    let active = active.ok_or("no policy is active; publish one: cspctl policy apply FILE")?.generation;
    let Some(wanted) = wanted else {
        let before = history.iter().filter(|g| g.generation < active && was_in_force(g));
        let before = before.map(|g| g.generation).max();
        return Ok((active, before.ok_or(format!("no policy was in force before generation {active}"))?));
    };
    match history.iter().find(|g| g.generation == wanted) {
        Some(g) if was_in_force(g) => Ok((active, wanted)),
        Some(g) => Err(format!("generation {wanted} was never in force ({})", g.phase.as_str())),
        None => Err(format!("there is no generation {wanted}; `cspctl policy history` lists them")),
    }
}

async fn check(context: &Context, name: &str, yaml: Vec<u8>) -> Result<DryRunView, CliError> {
    let query = [("file", name.to_owned()), ("dry_run", "true".to_owned())];
    Ok(context.client.post_yaml("/api/v1/policy", &query, yaml).await?.1)
}

/// The file's name for messages, and its text.
pub(super) fn read(file: &Path) -> Result<(String, Vec<u8>), CliError> {
    let no_input = |source| CliError::NoInput { path: file.to_owned(), source };
    let mut text = Vec::new();
    let name = if file == Path::new("-") {
        std::io::stdin().take(FILE_LEN_MAX + 1).read_to_end(&mut text).map_err(no_input)?;
        "standard input".to_owned()
    } else {
        let source = std::fs::File::open(file).map_err(no_input)?;
        source.take(FILE_LEN_MAX + 1).read_to_end(&mut text).map_err(no_input)?;
        file.display().to_string()
    };
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(CliError::Usage(format!(
            "{name} is longer than {} KiB, the most a policy may be",
            FILE_LEN_MAX / 1024
        )));
    }
    Ok((name, text))
}

fn ended(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}
