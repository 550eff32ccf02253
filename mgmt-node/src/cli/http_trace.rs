//! `cspctl http trace`: the next requests, from the client's first byte to the end, with what each part took.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use csp_api::http::{HTTP_TRACE_COUNT_MAX, HTTP_TRACE_TIMEOUT_S_MAX, HttpRecord};
use csp_api::mgmt::{HttpTraceView, TraceView};

use super::Context;
use super::args::Output;
use super::error::CliError;
use super::ladder::{self, Style};
use super::observe::{missing, width};
use super::paint::{Colour, Paint};
use super::table::bytes;

/// Columns of a drawn span.
const BAR_WIDTH: u64 = 40;

/// `cspctl http ...`
#[derive(Debug, Subcommand)]
pub enum HttpCommand {
    /// Follow the next requests through the proxies: route, server, times, and how each ended
    ///
    /// Waits for requests that end from now on, whatever the log takes. With --packets the events of the
    /// client's connection on every tier are drawn, too. Needs the role operator, since paths and queries may
    /// hold secrets of clients.
    ///
    /// Exit code 1 when no request ended in time.
    #[command(after_help = "Examples:\n  cspctl http trace --service www --count 5\n  \
                            cspctl http trace --path /api/ --failed --timeout 60\n  \
                            cspctl http trace --client 10.76.0.1 --packets\n  \
                            cspctl http trace --count 64 -o json | jq '.requests[] | {path, server, total_us}'")]
    Trace(HttpTraceArgs),
}

/// Arguments of `cspctl http trace`.
#[derive(Debug, Args)]
pub struct HttpTraceArgs {
    /// Only requests of this service
    #[arg(long, short, value_name = "NAME")]
    pub service: Option<String>,
    /// Only requests under this route
    #[arg(long, short, value_name = "NAME")]
    pub route: Option<String>,
    /// Only requests for this host
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Only requests whose path with the query begins so
    #[arg(long, short, value_name = "PREFIX")]
    pub path: Option<String>,
    /// Only requests of this method
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub method: Option<String>,
    /// Only requests of this client, or of a network
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<String>,
    /// Only requests that fail, or that the proxy answers with an error
    #[arg(long)]
    pub failed: bool,
    /// How many (1 to 64)
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=HTTP_TRACE_COUNT_MAX as u64))]
    pub count: u64,
    /// How long to wait for them, in seconds (1 to 60)
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=HTTP_TRACE_TIMEOUT_S_MAX))]
    pub timeout: u64,
    /// Draw the packets of the client's connection, too
    #[arg(long)]
    pub packets: bool,
    /// Draw with ASCII characters only
    #[arg(long)]
    pub ascii: bool,
}

impl HttpTraceArgs {
    fn query(&self) -> Vec<(&'static str, String)> {
        let named = [
            ("service", &self.service),
            ("route", &self.route),
            ("host", &self.host),
            ("path", &self.path),
            ("method", &self.method),
            ("source", &self.client),
        ];
        let mut query: Vec<_> =
            named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        query.extend(self.failed.then(|| ("failed", "true".to_owned())));
        query.push(("count", self.count.to_string()));
        query.push(("timeout_s", self.timeout.to_string()));
        query
    }
}

/// `cspctl http trace`.
pub(super) async fn trace(context: &Context, args: HttpTraceArgs) -> Result<(), CliError> {
    let view: HttpTraceView = context.client.get("/api/v1/http/trace", &args.query()).await?;
    if view.requests.is_empty() {
        eprint!("{}", missing(context, &view.unreachable));
        return Err(CliError::Failed(format!(
            "no such request ended within {} s; `cspctl routes` lists what the proxies serve",
            args.timeout
        )));
    }
    context.show(&view, |view| {
        let drawn: Vec<String> =
            view.requests.iter().map(|request| draw(request, args.ascii, context.paint)).collect();
        drawn.join("\n") + &missing(context, &view.unreachable)
    })?;
    if args.packets && context.output == Output::Table {
        let style = Style { width: width(), ascii: args.ascii, paint: context.paint };
        for request in &view.requests {
            let query = [("label", request.label.clone()), ("proxy", request.proxy.to_string())];
            let packets: TraceView = context.client.get("/api/v1/trace", &query).await?;
            super::put(&format!("\n{}", ladder::draw(&packets, style)))?;
        }
    }
    Ok(())
}

/// Draws one request.
fn draw(of: &HttpRecord, ascii: bool, paint: Paint) -> String {
    let is_well = of.status < 500 && matches!(&*of.code, "ok" | "redirect" | "answer" | "max-forwards");
    let colour = if is_well { Colour::Green } else { Colour::Red };
    let mut out = format!(
        "{} {}{} HTTP/{}  {}\n",
        paint.bold(&of.method),
        of.host,
        of.path,
        of.version,
        paint.paint(colour, &format!("{} {}", of.status, of.code))
    );
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<8} {text}"); // a string takes it
    };
    line("ended", format!("{} at {} worker {}", of.time, of.proxy, of.worker));
    let source = if of.source.is_empty() { String::new() } else { format!(" for {}", of.source) };
    line(
        "client",
        format!("{}{source}, connection {} (cspctl flow trace {})", of.client, of.label, of.label),
    );
    let route = if of.route.is_empty() { "none" } else { &*of.route };
    line("route", format!("{route} of {}", of.service));
    if !of.server.is_empty() {
        let kept = if of.reused { "kept connection" } else { "new connection" };
        let tries =
            if of.attempts > 1 { format!(", {} connections tried", of.attempts) } else { String::new() };
        line("server", format!("{}, {kept}{tries}", of.server));
    }
    line("bytes", format!("{} in, {} out", bytes(of.bytes_in), bytes(of.bytes_out)));
    for (name, id) in [("trace", &of.trace_id), ("request", &of.request_id)] {
        if !id.is_empty() {
            line(name, id.clone());
        }
    }
    for (name, start, took) in spans(of) {
        line("", format!("{name:<10} {:>9} µs  {}", took, bar(start, took, of.head_us + of.total_us, ascii)));
    }
    out
}

/// The parts of a request: name, start since its first byte, and how long it took, in microseconds.
fn spans(of: &HttpRecord) -> Vec<(&'static str, u64, u64)> {
    let mut spans = vec![("head", 0, of.head_us)];
    let connected = of.head_us.saturating_add(of.connect_us);
    let end = of.head_us.saturating_add(of.total_us);
    if !of.server.is_empty() {
        spans.push(("connect", of.head_us, of.connect_us));
        if let Some(first_byte) = of.first_byte_us {
            let answered = connected.saturating_add(first_byte);
            spans.push(("server", connected, first_byte));
            spans.push(("body", answered, end.saturating_sub(answered)));
        }
    }
    spans.push(("in all", 0, end));
    spans
}

fn bar(start: u64, took: u64, all: u64, ascii: bool) -> String {
    let column = |at: u64| (at.min(all) * BAR_WIDTH / all.max(1)) as usize;
    let (from, to) = (column(start), column(start.saturating_add(took)));
    let full = if ascii { "#" } else { "█" };
    format!("{}{}", " ".repeat(from), full.repeat((to - from).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_drawn_with_its_parts() {
        let request = HttpRecord {
            method: "GET".into(),
            host: "www.example.com".into(),
            path: "/a?b".into(),
            version: "2".into(),
            status: 200,
            code: "ok".into(),
            service: "www".into(),
            route: "site".into(),
            server: "an-1:80".into(),
            attempts: 2,
            head_us: 100,
            connect_us: 100,
            first_byte_us: Some(200),
            total_us: 300,
            ..HttpRecord::default()
        };
        let text = draw(&request, true, Paint::off());
        assert!(text.starts_with("GET www.example.com/a?b HTTP/2  200 ok\n"), "{text}");
        assert!(text.contains("server   an-1:80, new connection, 2 connections tried\n"), "{text}");
        assert!(
            text.contains(&format!("server           200 µs  {}{}\n", " ".repeat(20), "#".repeat(20))),
            "{text}"
        );
        assert!(text.contains(&format!("in all           400 µs  {}\n", "#".repeat(40))), "{text}");
    }

    #[test]
    fn bars_of_any_times_fit() {
        for (start, took, all) in [(0, 0, 0), (u64::MAX / 64, 5, u64::MAX / 64), (7, 100, 10)] {
            assert!(bar(start, took, all, true).len() <= BAR_WIDTH as usize + 1);
        }
    }
}
