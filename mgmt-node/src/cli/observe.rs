//! `cspctl nodes`, `services`, `flows`, `sockets` and `flow trace`.

use std::net::SocketAddr;

use csp_api::label;
use csp_api::mgmt::{
    FlowView, FlowsView, NodeState, NodesView, PoolMemberView, QueuesView, RecentView, ServiceView,
    ServicesView, SocketsView, TraceView, Unreachable,
};
use csp_types::{FlowLabel, Role};

use super::Context;
use super::args::Output;
use super::error::CliError;
use super::flow_args::{FlowsArgs, SocketsArgs, TraceArgs};
use super::ladder::{self, Style};
use super::paint::Colour;
use super::table::{Cell, Table, bytes, span};

/// Width of a drawing where neither the terminal nor COLUMNS gives one.
const WIDTH_DEFAULT: usize = 100;

/// `cspctl nodes`.
pub(super) async fn nodes(context: &Context) -> Result<(), CliError> {
    let view: NodesView = context.client.get("/api/v1/nodes", &[]).await?;
    context.show(&view, |view| {
        let mut table = Table::new(&[
            "NODE", "ROLE", "STATE", "POLICY", "WORKERS", "OWNS", "SAN", "ADMIN", "VERSION", "DETAIL",
        ]);
        for n in &view.nodes {
            let policy = match (n.policy_generation, n.policy_state.as_str(), n.policy_active) {
                (0, ..) => String::new(),
                (g, "active", _) => g.to_string(),
                (g, state, 0) => format!("{g} {state}"),
                (g, state, active) => format!("{active} ({g} {state})"),
            };
            table.row([
                n.id.clone().into(),
                if n.leader { format!("{} (leader)", n.role).into() } else { n.role.clone().into() },
                match n.draining {
                    true => Cell::from(format!("{}, draining", n.state.as_str())).coloured(Colour::Yellow),
                    false => Cell::from(n.state.as_str()).coloured(state_colour(n.state)),
                },
                policy.into(),
                u64::from(n.workers).into(),
                match n.owns.is_empty() {
                    true if n.role == Role::NetworkNode.as_str() => "all".into(),
                    _ => n.owns.join(" ").into(),
                },
                n.san.join(" ").into(),
                n.admin.clone().into(),
                n.version.clone().into(),
                n.detail.clone().into(),
            ]);
        }
        let mut out = table.render(context.paint);
        if !view.etcd.connected {
            let text = format!(
                "note: etcd has been silent for {}; this is the state last known\n",
                span(view.etcd.silent_ms)
            );
            out += &context.paint.paint(Colour::Yellow, &text);
        } else if view.leader.is_none() {
            out += &context.paint.paint(Colour::Yellow, "note: no management node leads at this time\n");
        }
        out
    })
}

const fn state_colour(state: NodeState) -> Colour {
    match state {
        NodeState::Ready => Colour::Green,
        NodeState::NotReady | NodeState::Unknown => Colour::Yellow,
        NodeState::Unreachable | NodeState::Lapsed => Colour::Red,
    }
}

/// `cspctl services`.
pub(super) async fn services(context: &Context) -> Result<(), CliError> {
    let view: ServicesView = context.client.get("/api/v1/services", &[]).await?;
    context.show(&view, |view| {
        if view.services.is_empty() {
            return "No services: no policy is active, or it names none.\n".to_owned()
                + &missing(context, &view.unreachable);
        }
        let head = ["SERVICE", "ADDRESS", "POOL MEMBER", "STATE", "OPEN", "TOTAL", "PENDING"];
        let mut table = Table::new(&head);
        let figure = |n: Option<u64>| Cell::from(n.map(|n| n.to_string()).unwrap_or_default()).right();
        for s in &view.services {
            if s.pool.is_empty() {
                let (targets, none) = (format!("routes to {}", s.leads_to.join(", ")), || Cell::from(" "));
                table.row([
                    s.name.clone().into(),
                    service_address(s).into(),
                    targets.into(),
                    none(),
                    none(),
                    none(),
                    none(),
                ]);
            }
            for (at, m) in s.pool.iter().enumerate() {
                let state = server_state(m);
                let first = |text: String| if at == 0 { Cell::from(text) } else { Cell::from(" ") };
                table.row([
                    first(s.name.clone()),
                    first(service_address(s)),
                    server(m).into(),
                    state,
                    figure(m.open_connections),
                    figure(m.connections_total),
                    if at == 0 { s.pending.into() } else { Cell::from(" ").right() },
                ]);
            }
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })
}

/// Where a service is, such as `10.76.0.102:53 udp`.
fn service_address(service: &ServiceView) -> String {
    if service.vip.is_empty() {
        return "by routes".to_owned();
    }
    let protocol = if service.protocol == "tcp" { String::new() } else { format!(" {}", service.protocol) };
    address(&service.vip, service.port) + &protocol
}

/// Returns where a pool member is: the names that may stand for an address follow it.
fn server(member: &PoolMemberView) -> String {
    let (names, port) = (member.names.join(", "), member.port);
    match member.address {
        Some(at) if names.is_empty() => address(&at.to_string(), port),
        Some(at) => format!("{} ({names})", address(&at.to_string(), port)),
        None if names.is_empty() => address(&member.node, port),
        None => address(&names, port),
    }
}

/// What a pool member can do: how many processes of a node listen, or whether proxies reach a plain server.
fn server_state(member: &PoolMemberView) -> Cell {
    let (text, colour) = match (member.address, member.processes) {
        (Some(_), _) if member.connections_total.is_none() => (String::new(), Colour::Plain),
        (Some(_), _) if member.down_at.is_empty() => ("up".to_owned(), Colour::Plain),
        (Some(_), _) => (format!("down ({})", member.down_at.join(", ")), Colour::Red),
        (None, None) if !member.names.is_empty() => ("no address".to_owned(), Colour::Red),
        (None, None) => (String::new(), Colour::Plain),
        (None, Some(0)) => ("no process".to_owned(), Colour::Red),
        (None, Some(1)) => ("1 process".to_owned(), Colour::Plain),
        (None, Some(count)) => (format!("{count} processes"), Colour::Plain),
    };
    Cell::from(text).coloured(colour)
}

pub(super) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `cspctl flows`.
pub(super) async fn flows(context: &Context, args: FlowsArgs) -> Result<(), CliError> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.service.map(|service| ("service", service)));
    let view: FlowsView = context.client.get("/api/v1/flows", &query).await?;
    context.show(&view, |view| {
        let mut table = Table::new(&[
            "LABEL", "CLIENT", "SERVER", "SERVICE", "MEMBER", "STATE", "IN", "OUT", "AGE", "NODE",
        ]);
        for f in &view.flows {
            // Bytes are those passed on to a process: the proxy itself is the peer of a channel's connection.
            let figure = |count: u64| match f.state.ends_with("/local") {
                true => Cell::from("-").right(),
                false => Cell::from(bytes(count)).right(),
            };
            table.row([
                f.label.to_string().into(),
                f.client.to_string().into(),
                f.server.to_string().into(),
                f.service.to_string().into(),
                f.member.to_string().into(),
                f.state.to_string().into(),
                figure(f.bytes_in),
                figure(f.bytes_out),
                span(f.age_ms).into(),
                f.node.to_string().into(),
            ]);
        }
        let mut out =
            if table.is_empty() { "No open flows.\n".to_owned() } else { table.render(context.paint) };
        if view.truncated {
            out += "More flows are open; --limit shows more.\n";
        }
        out + &missing(context, &view.unreachable)
    })
}

/// `cspctl sockets`.
pub(super) async fn sockets(context: &Context, args: SocketsArgs) -> Result<(), CliError> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.process.map(|process| ("process", process)));
    let view: SocketsView = context.client.get("/api/v1/sockets", &query).await?;
    context.show(&view, |view| {
        let mut table = Table::new(&[
            "NODE", "PROCESS", "FD", "SOCKET", "CARRIED", "LOCAL", "REMOTE", "LABEL", "STATE", "IN", "OUT",
            "QUEUED", "CREDIT", "ERROR",
        ]);
        for s in &view.sockets {
            let kernel = s.kind.starts_with("kernel");
            let listens = s.kind.ends_with("listener");
            let pair = |of: fn(&QueuesView) -> (u64, u64)| {
                let text = s.queues.as_ref().map(of).map(|(a, b)| format!("{}/{}", bytes(a), bytes(b)));
                text.unwrap_or_default()
            };
            let queued = match &s.queue {
                Some(queue) => format!("{}/{}", queue.waiting, queue.backlog),
                None => pair(|q| (q.queued_in, q.queued_out)),
            };
            let figure = |of: fn(&FlowView) -> u64| {
                Cell::from(s.flow.as_ref().map(|f| bytes(of(f))).unwrap_or_default()).right()
            };
            let carried = if kernel { format!("kernel: {}", s.reason) } else { s.reason.to_string() };
            table.row([
                s.node.to_string().into(),
                s.process.to_string().into(),
                if s.fd == 0 { Cell::from("").right() } else { u64::from(s.fd).into() },
                if listens { "listener" } else { "connection" }.into(),
                Cell::from(carried).coloured(if kernel { Colour::Yellow } else { Colour::Green }),
                s.local.to_string().into(),
                if listens { "".into() } else { s.remote.to_string().into() },
                s.label.map(|label| label.to_string()).unwrap_or_default().into(),
                s.flow.as_ref().map_or("", |f| f.state.as_str()).into(),
                figure(|f| f.bytes_in),
                figure(|f| f.bytes_out),
                Cell::from(queued).right(),
                Cell::from(pair(|q| (q.credit_in, q.credit_out))).right(),
                Cell::from(s.error.as_str()).coloured(Colour::Red),
            ]);
        }
        let mut out = if table.is_empty() {
            "No sockets: no process is attached to an agent, or none has any.\n".to_owned()
        } else {
            table.render(context.paint)
        };
        if view.truncated {
            out += "There are more; --limit shows more.\n";
        }
        out + &missing(context, &view.unreachable)
    })
}

/// `cspctl flow trace`.
pub(super) async fn trace(context: &Context, args: TraceArgs) -> Result<(), CliError> {
    let (label, proxy) = match &args.label {
        Some(text) => label::parse(text).map(|label| (label, args.proxy.clone())).ok_or_else(|| {
            CliError::Usage(format!(
                "`{text}` is no flow label; a label has 1 to 8 hex digits, for example 0040001f"
            ))
        })?,
        None => latest(context, args.client).await?,
    };
    let mut query = vec![("label", label.to_string())];
    query.extend(proxy.map(|proxy| ("proxy", proxy)));
    let view: TraceView = context.client.get("/api/v1/trace", &query).await?;
    if view.events.is_empty() && view.unreachable.is_empty() {
        return Err(CliError::Failed(format!(
            "no tier holds events of flow {label}: it never was, or the rings have moved on (`cspctl flow trace --last`)"
        )));
    }
    let style = Style { width: width(), ascii: args.ascii, paint: context.paint };
    context.show(&view, |view| ladder::draw(view, style))
}

/// The label of the latest flow, of `client` where one is given, and its proxy, if a node knows it.
async fn latest(
    context: &Context,
    client: Option<SocketAddr>,
) -> Result<(FlowLabel, Option<String>), CliError> {
    let mut query = vec![("limit", "1".to_owned())];
    query.extend(client.map(|c| ("client", c.to_string())));
    let view: RecentView = context.client.get("/api/v1/trace/recent", &query).await?;
    if let Some(flow) = view.recent.first() {
        let proxy = Some(flow.proxy.to_string()).filter(|proxy| !proxy.is_empty());
        return Ok((flow.label, proxy));
    }
    if context.output == Output::Table {
        eprint!("{}", missing(context, &view.unreachable));
    }
    Err(CliError::Failed(match client {
        Some(client) => format!("no flow of client {client} is known; `cspctl flows` lists the open ones"),
        None => "no flow was seen lately".to_owned(),
    }))
}

pub(super) fn missing(context: &Context, unreachable: &[Unreachable]) -> String {
    let note = |u: &Unreachable| {
        context.paint.paint(Colour::Yellow, &format!("note: {} did not answer: {}", u.node, u.error)) + "\n"
    };
    unreachable.iter().map(note).collect()
}

pub(super) fn width() -> usize {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal =
        || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    named.or_else(terminal).filter(|columns| *columns > 0).unwrap_or(WIDTH_DEFAULT)
}
