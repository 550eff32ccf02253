//! `cspctl cache`: the cache of HTTP responses of each proxy.

use clap::{Args, Subcommand};
use csp_api::cache::{CacheObject, CacheStatus, CacheView, PurgeBody, Purged};
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::table::{Cell, Table, bytes};

/// `cspctl cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show how much each proxy has stored
    ///
    /// MEMORY is what the stored responses take, MOST what they may. EVICTED have left, since others needed
    /// their memory; PURGED were purged, or made wrong by a request.
    #[command(
        after_help = "Examples:\n  cspctl cache status\n  cspctl cache status -o json | jq '.nodes[].answer.bytes'"
    )]
    Status,
    /// List stored responses
    #[command(
        after_help = "Examples:\n  cspctl cache list --prefix /assets/\n  cspctl cache list --limit 1000 -o json"
    )]
    List {
        /// Paths that begin so
        #[arg(long, default_value = "")]
        prefix: String,
        /// Most responses of each proxy (1 to 1000)
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
        limit: u64,
    },
    /// Remove stored responses from all proxies
    ///
    /// Responses that are on their way from a server meanwhile are not stored either. Exit code 1 if a
    /// proxy has not answered.
    #[command(
        after_help = "Examples:\n  cspctl cache purge --path /index.html\n  cspctl cache purge --path '/search?q=a'\n  cspctl cache purge --prefix /assets/\n  cspctl cache purge --tag product-17"
    )]
    Purge(PurgeArgs),
}

/// What is purged.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct PurgeArgs {
    /// This path with any query; with a query exactly that
    #[arg(long)]
    path: Option<String>,
    /// Paths that begin so
    #[arg(long)]
    prefix: Option<String>,
    /// What servers have tagged so by Cache-Tag or Surrogate-Key
    #[arg(long)]
    tag: Option<String>,
    /// Everything
    #[arg(long)]
    all: bool,
}

/// Runs a command.
pub(super) async fn run(context: &Context, command: CacheCommand) -> Result<(), CliError> {
    match command {
        CacheCommand::Status => {
            let view: CacheView<CacheStatus> = context.client.get("/api/v1/cache", &[]).await?;
            context
                .show(&view, |view| status(view).render(context.paint) + &missing(context, &view.unreachable))
        }
        CacheCommand::List { prefix, limit } => {
            let query = [("prefix", prefix), ("limit", limit.to_string())];
            let view: CacheView<Vec<CacheObject>> =
                context.client.get("/api/v1/cache/objects", &query).await?;
            context
                .show(&view, |view| list(view).render(context.paint) + &missing(context, &view.unreachable))
        }
        CacheCommand::Purge(PurgeArgs { path, prefix, tag, all: _ }) => {
            let path = path.map(PurgeBody::Path);
            let body = path.or(prefix.map(PurgeBody::Prefix)).or(tag.map(PurgeBody::Tag));
            purge(context, &body.unwrap_or(PurgeBody::All(true))).await
        }
    }
}

async fn purge(context: &Context, body: &impl Serialize) -> Result<(), CliError> {
    let view: CacheView<Purged> = context.client.post_json("/api/v1/cache/purge", body).await?;
    context.show(&view, |view| {
        let mut table = Table::new(&["NODE", "PURGED", "MEMORY"]);
        for node in &view.nodes {
            let memory = Cell::from(bytes(node.answer.bytes)).right();
            table.row([node.node.as_str().into(), node.answer.objects.into(), memory]);
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })?;
    match view.unreachable.len() {
        0 => Ok(()),
        left => {
            Err(CliError::Failed(format!("{left} proxies have not purged: purge again once they answer")))
        }
    }
}

fn status(view: &CacheView<CacheStatus>) -> Table {
    let mut table = Table::new(&["NODE", "OBJECTS", "MEMORY", "MOST", "STORED", "EVICTED", "PURGED"]);
    for node in &view.nodes {
        let of = &node.answer;
        let memory = |count| Cell::from(bytes(count)).right();
        table.row([
            node.node.as_str().into(),
            of.objects.into(),
            memory(of.bytes),
            if of.enabled { memory(of.bytes_max) } else { Cell::from("off").right() },
            of.stored_total.into(),
            of.evicted_total.into(),
            of.purged_total.into(),
        ]);
    }
    table
}

fn list(view: &CacheView<Vec<CacheObject>>) -> Table {
    let mut table = Table::new(&["NODE", "HOST", "PATH", "STATUS", "AGE", "FRESH", "MEMORY"]);
    for node in &view.nodes {
        for object in &node.answer {
            table.row([
                node.node.as_str().into(),
                object.host.as_str().into(),
                object.path.clone().into(),
                u64::from(object.status).into(),
                object.age_s.into(),
                object.fresh_s.into(),
                Cell::from(bytes(object.bytes)).right(),
            ]);
        }
    }
    table
}
