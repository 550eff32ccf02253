//! `cspctl subscriptions` and `cspctl message trace`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use csp_api::messages::{CopyState, PeerName, Stage, TRACE_COUNT_MAX, TRACE_TIMEOUT_S_MAX, TracedCopy};
use csp_api::mgmt::{MessageTraceView, SubscriptionsView, TracedMessageView};
use csp_api::topic;
use csp_policy::Policy;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::{Colour, Paint};
use super::table::{Cell, Table, bytes, span};

/// Characters of a topic in a table.
const TOPIC_WIDTH: usize = 32;

/// Arguments of `cspctl subscriptions`.
#[derive(Debug, Args)]
pub struct SubscriptionsArgs {
    /// Only peers of this channel
    pub channel: Option<String>,
    /// At most so many peers (1 to 1000)
    #[arg(long, short, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// At most so many topics of a peer (0 to 1000)
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub topics: u32,
}

/// `cspctl message ...`
#[derive(Debug, Subcommand)]
pub enum MessageCommand {
    /// Follow the next messages of a channel through the proxy
    ///
    /// Shows of each message who sent it, how many receivers subscribe to its topic, and what becomes of the
    /// copy of each: written to its connection, waiting in its queue, dropped and why. Times are microseconds
    /// since the message arrived. A message that has all its copies written ends the wait; copies in queues
    /// are waited for one second.
    ///
    /// Exit code 1 when no message came in time.
    #[command(
        after_help = "Examples:\n  cspctl message trace ticks\n  cspctl message trace ticks --count 5 --topic ACME\n  \
                            cspctl message trace ticks --topic '\\x00\\x01'\n  \
                            cspctl message trace ticks -o json | jq '.messages[].copies[] | select(.state != \"written\")'"
    )]
    Trace(MessageTraceArgs),
}

/// Arguments of `cspctl message trace`.
#[derive(Debug, Args)]
pub struct MessageTraceArgs {
    /// Channel
    pub channel: String,
    /// Number of messages (1 to 32)
    #[arg(long, short, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=TRACE_COUNT_MAX as i64))]
    pub count: u32,
    /// Only messages whose topics begin like this; \xHH is a byte, \\ a backslash
    #[arg(long, short, value_name = "PREFIX", value_parser = topic_text)]
    pub topic: Option<String>,
    /// How long to wait for them, in seconds (1 to 30)
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=TRACE_TIMEOUT_S_MAX))]
    pub timeout: u64,
    /// Draw with ASCII characters only
    #[arg(long)]
    pub ascii: bool,
}

fn topic_text(text: &str) -> Result<String, String> {
    match topic::unescape(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a \\ stands before \\ or before x and two hex digits".to_owned()),
    }
}

/// `cspctl subscriptions`.
pub(super) async fn subscriptions(context: &Context, args: SubscriptionsArgs) -> Result<(), CliError> {
    let mut query = vec![("limit", args.limit.to_string()), ("prefixes", args.topics.to_string())];
    query.extend(args.channel.map(|channel| ("channel", channel)));
    let view: SubscriptionsView = context.client.get("/api/v1/subscriptions", &query).await?;
    context.show(&view, |view| peers_table(view, context.paint) + &missing(context, &view.unreachable))
}

fn peers_table(view: &SubscriptionsView, paint: Paint) -> String {
    if view.peers.is_empty() {
        return "No peers: no program is connected to a channel.\n".to_owned();
    }
    let mut table = Table::new(&[
        "CHANNEL", "PEER", "SOCKET", "SINCE", "IN", "OUT", "WAITING", "DROPPED", "WORKER", "TOPICS",
    ]);
    for view in &view.peers {
        let peer = &view.peer;
        let colour = if peer.dropped == 0 { Colour::Plain } else { Colour::Yellow };
        table.row([
            peer.channel.to_string().into(),
            who(&peer.name).into(),
            peer.name.socket.to_string().into(),
            span(peer.age_ms).into(),
            peer.messages_in.into(),
            peer.messages_out.into(),
            peer.waiting.into(),
            Cell::from(peer.dropped).coloured(colour),
            format!("{}/{}", view.proxy, peer.worker).into(),
            topics(&peer.prefixes, peer.subscriptions).into(),
        ]);
    }
    let mut out = table.render(paint);
    if view.more > 0 {
        let _ = writeln!(out, "{} more peers; --limit shows more.", view.more);
    }
    out
}

/// The topics that a peer subscribes to, in a cell of a table.
fn topics(prefixes: &[csp_api::Text], subscriptions: u64) -> String {
    let mut texts: Vec<String> = prefixes.iter().map(|prefix| shown(prefix, "(all)")).collect();
    match subscriptions.saturating_sub(prefixes.len() as u64) {
        0 => {}
        more => texts.push(format!("{more} more")),
    }
    texts.join(", ")
}

fn shown(topic: &str, empty: &str) -> String {
    match topic.char_indices().nth(TOPIC_WIDTH) {
        _ if topic.is_empty() => empty.to_owned(),
        Some((at, _)) => format!("{}…", &topic[..at]),
        None => topic.to_owned(),
    }
}

/// A peer as people know it: node and process of a program of the cluster, else its address.
fn who(name: &PeerName) -> String {
    match name.address {
        _ if !name.process.is_empty() => format!("{} {}", name.node, name.process),
        Some(address) => address.to_string(),
        None => "a peer that has left".to_owned(),
    }
}

/// The channels that a query of a policy reads; none if it is no query.
fn sources(policy: &Policy, name: &str) -> Vec<String> {
    let query = policy.queries.iter().find(|query| query.name == name);
    let mut names = query.map(csp_policy::Query::reads).unwrap_or_default();
    names.dedup();
    names
}

/// `cspctl message trace`.
pub(super) async fn trace(context: &Context, args: MessageTraceArgs) -> Result<(), CliError> {
    let mut query = vec![
        ("channel", args.channel.clone()),
        ("count", args.count.to_string()),
        ("timeout_s", args.timeout.to_string()),
    ];
    query.extend(args.topic.clone().map(|topic| ("topic", topic)));
    let view: MessageTraceView = context.client.get("/api/v1/messages/trace", &query).await?;
    if view.messages.is_empty() {
        eprint!("{}", missing(context, &view.unreachable));
        let of = args.topic.map(|topic| format!(" with a topic like {topic}")).unwrap_or_default();
        let read = super::edit::active(context).await.map(|(_, policy)| sources(&policy, &args.channel));
        let (channel, seconds) = (&args.channel, args.timeout);
        return Err(CliError::Failed(match read.unwrap_or_default().as_slice() {
            [] => format!(
                "no message{of} came to channel {channel} within {seconds} s; `cspctl subscriptions {channel}` lists its peers"
            ),
            read => format!(
                "{channel} is a query, whose rows are not traced; trace the messages that it reads: {}",
                read.iter()
                    .map(|name| format!("`cspctl message trace {name}`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        }));
    }
    context.show(&view, |view| {
        let mut out = draw_messages(view, args.ascii, context.paint);
        if (view.messages.len() as u32) < args.count {
            let _ = writeln!(out, "{} of {} messages came in time.", view.messages.len(), args.count);
        }
        out + &missing(context, &view.unreachable)
    })
}

/// Draws messages as trees with times, ending in a newline.
pub fn draw_messages(view: &MessageTraceView, ascii: bool, paint: Paint) -> String {
    let drawn: Vec<String> =
        view.messages.iter().map(|message| draw_message(message, ascii, paint)).collect();
    drawn.join("\n")
}

fn draw_message(view: &TracedMessageView, ascii: bool, paint: Paint) -> String {
    let message = &view.message;
    let size: u64 = message.frames.iter().map(|len| u64::from(*len)).sum();
    let title = format!("{} #{}", message.channel, message.sequence);
    let frames = match message.frames.len() {
        1 => "1 frame".to_owned(),
        frames => format!("{frames} frames"),
    };
    let topic = shown(&message.topic, "(empty)");
    let mut out = format!(
        "{}  {frames} {}  topic {topic}  from {}\n",
        paint.bold(&title),
        bytes(size),
        named(&message.publisher)
    );
    let mut lines = vec![(Some(0), format!("arrived at {}/{}", view.proxy, message.worker))];
    let (receivers, matched) = (message.receivers, message.matched);
    let looked_up = match (message.publisher.socket.as_str(), matched) {
        ("PUSH", _) => format!("one of {receivers} receivers gets it"),
        (_, 0) => format!("none of {receivers} receivers subscribes"),
        (_, 1) => format!("1 of {receivers} receivers subscribes"),
        _ => format!("{matched} of {receivers} receivers subscribe"),
    };
    lines.push((Some(message.looked_up_ns), looked_up));
    lines.extend(message.contexts.iter().map(|stage| (Some(stage.at_ns), stage_words(stage))));
    let copies: Vec<(&TracedCopy, String)> =
        message.copies.iter().map(|copy| (copy, named(&copy.receiver))).collect();
    let width = copies.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0);
    let count = copies.len() + usize::from(message.more > 0);
    for (at, (copy, name)) in copies.iter().enumerate() {
        let fill = " ".repeat(width - name.chars().count());
        let branch = branch(at + 1 == count, ascii);
        lines.push((Some(copy.at_ns), format!("{branch} {name}{fill}  {}", copy_words(copy, paint))));
    }
    if message.more > 0 {
        let more = message.more;
        lines.push((None, format!("{} {more} more receivers, not followed", branch(true, ascii))));
    }
    for (at_ns, words) in lines {
        let time = at_ns.map(|ns| micros(ns, ascii)).unwrap_or_default();
        let fill = " ".repeat(13usize.saturating_sub(time.chars().count()));
        let _ = writeln!(out, "{}  {words}", paint.paint(Colour::Dim, &(fill + &time)));
    }
    out
}

/// A peer with its socket type.
fn named(name: &PeerName) -> String {
    if name.socket.is_empty() { who(name) } else { format!("{} ({})", who(name), name.socket) }
}

fn branch(last: bool, ascii: bool) -> &'static str {
    match (last, ascii) {
        (false, false) => "├─",
        (true, false) => "└─",
        (false, true) => "|-",
        (true, true) => "`-",
    }
}

fn stage_words(stage: &Stage) -> String {
    let Stage { context, handler, took_ns, bytes: len, .. } = stage;
    format!("context {context}: {handler}, {} in {:.1} µs", bytes(*len), *took_ns as f64 / 1e3)
}

fn copy_words(copy: &TracedCopy, paint: Paint) -> String {
    let words = copy.state.words();
    match copy.state {
        CopyState::Written => format!("{words} {}", bytes(copy.bytes)),
        CopyState::Waiting | CopyState::InFlow => paint.paint(Colour::Yellow, words),
        _ => paint.paint(Colour::Red, words),
    }
}

fn micros(ns: u64, ascii: bool) -> String {
    format!("+{:.1} {}", ns as f64 / 1e3, if ascii { "us" } else { "µs" })
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
