//! `cspctl events`: what happened in the cluster, and what happens.

use clap::{Args, ValueEnum};
use csp_api::events::{Event, Page, Severity};
use csp_api::time::utc;

use super::args::Output;
use super::error::CliError;
use super::paint::Colour;
use super::{Context, put, show_as};

/// How long the server waits for an event, in seconds.
const WAIT_S: u64 = 20;

/// Arguments of `cspctl events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Goes on: prints events as they arrive, until it is ended; with `-o json` one event a line
    #[arg(long, short)]
    pub follow: bool,
    /// Only events that matter at least so much
    #[arg(long, value_enum)]
    pub severity: Option<Least>,
    /// Only objects that begin so, such as node/, server/web/ or policy/7
    #[arg(long, value_name = "PREFIX")]
    pub object: Option<String>,
    /// Only these kinds, such as server_down,server_up
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    pub kind: Vec<String>,
    /// Events after this cursor: that of an answer in JSON
    #[arg(long, value_name = "CURSOR")]
    pub since: Option<String>,
    /// Prints the JSON Schema of events, and asks no server
    #[arg(long, conflicts_with_all = ["follow", "severity", "object", "kind", "since"])]
    pub schema: bool,
    /// At most so many of the latest events
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=500))]
    pub limit: u16,
}

/// `--severity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Least {
    /// All
    Info,
    /// Warnings and errors
    Warning,
    /// Errors
    Error,
}

impl EventsArgs {
    fn query(&self) -> Vec<(&'static str, String)> {
        let severity = self.severity.map(|least| match least {
            Least::Info => Severity::Info,
            Least::Warning => Severity::Warning,
            Least::Error => Severity::Error,
        });
        let mut query = vec![("limit", self.limit.to_string())];
        query.extend(severity.map(|least| ("severity", least.as_str().to_owned())));
        query.extend(self.object.clone().map(|object| ("object", object)));
        if !self.kind.is_empty() {
            query.push(("kind", self.kind.join(",")));
        }
        query
    }
}

/// `cspctl events --schema`.
pub(super) fn schema() -> Result<(), CliError> {
    show_as(Output::Json, &crate::events::schema(), |_| String::new())
}

/// `cspctl events`.
pub(super) async fn events(context: &Context, args: &EventsArgs) -> Result<(), CliError> {
    let query = args.query();
    let ask = async |more: Vec<(&'static str, String)>| {
        let query: Vec<_> = query.iter().cloned().chain(more).collect();
        context.client.get::<Page>("/api/v1/events", &query).await
    };
    let first = args.since.clone().map(|since| ("since", since));
    let mut page = ask(first.into_iter().collect()).await?;
    if !args.follow {
        return context.show(&page, |page| lines(context, page));
    }
    loop {
        match context.output {
            Output::Table => put(&lines(context, &page))?,
            Output::Json => {
                let written = page.events.iter().filter_map(|event| serde_json::to_string(event).ok());
                put(&written.map(|line| line + "\n").collect::<String>())?;
            }
        }
        page = ask(vec![("since", page.cursor.clone()), ("wait_s", WAIT_S.to_string())]).await?;
    }
}

fn lines(context: &Context, page: &Page) -> String {
    let mut text = String::new();
    if page.missed > 0 {
        let words = format!("note: {} events are no longer kept\n", page.missed);
        text += &context.paint.paint(Colour::Yellow, &words);
    }
    for event in &page.events {
        text += &line(context, event);
    }
    text
}

fn line(context: &Context, event: &Event) -> String {
    let severity = format!("{:<7}", event.severity.as_str());
    let severity = match event.severity {
        Severity::Info => severity,
        Severity::Warning => context.paint.paint(Colour::Yellow, &severity),
        Severity::Error => context.paint.paint(Colour::Red, &severity),
    };
    let (time, origin) = (utc(event.time_ms).replace('T', " "), &event.origin);
    format!("{time}  {severity}  {origin:<8}  {}  {}\n", event.object, event.text)
}
