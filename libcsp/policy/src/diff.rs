//! The difference of two policies, for people.

use std::collections::HashSet;

use csp_types::Prefix;

use crate::paths;
use crate::{
    Channel, ChannelPort, Egress, Framing, Policy, PoolMember, ProgramRule, Protocol, Server, Service,
    TcpOptions, Tunnel, UnknownFormat, Via,
};

/// Lines that lead from `old` to `new`.
pub(super) fn diff(old: &Policy, new: &Policy) -> Vec<String> {
    let mut lines = Vec::new();
    let before: HashSet<&str> = old.services.iter().map(|service| service.name.as_str()).collect();
    let now = new.by_name();
    for service in &old.services {
        match now.get(service.name.as_str()) {
            None => lines.push(format!("- service {}", summary(service))),
            Some(other) => changes(service, other, &mut lines),
        }
    }
    let added = new.services.iter().filter(|service| !before.contains(service.name.as_str()));
    lines.extend(added.map(|service| format!("+ service {}", summary(service))));
    let gone = old.formats.iter().filter(|format| !new.formats.contains(format));
    lines.extend(gone.map(|format| format!("- format {}", format.summary())));
    let come = new.formats.iter().filter(|format| !old.formats.contains(format));
    lines.extend(come.map(|format| format!("+ format {}", format.summary())));
    let gone = old.channels.iter().filter(|channel| !new.channels.contains(channel));
    lines.extend(gone.map(|channel| format!("- channel {}", channel_summary(channel))));
    let come = new.channels.iter().filter(|channel| !old.channels.contains(channel));
    lines.extend(come.map(|channel| format!("+ channel {}", channel_summary(channel))));
    let gone = old.queries.iter().filter(|query| !new.queries.contains(query));
    lines.extend(gone.map(|query| format!("- query {}", query.summary())));
    let come = new.queries.iter().filter(|query| !old.queries.contains(query));
    lines.extend(come.map(|query| format!("+ query {}", query.summary())));
    let gone = old.handlers.iter().filter(|handler| !new.handlers.contains(handler));
    lines.extend(gone.map(|handler| format!("- handler {}", handler.summary())));
    let come = new.handlers.iter().filter(|handler| !old.handlers.contains(handler));
    lines.extend(come.map(|handler| format!("+ handler {}", handler.summary())));
    let gone = old.contexts.iter().filter(|context| !new.contexts.contains(context));
    lines.extend(gone.map(|context| format!("- context {}", context.summary())));
    let come = new.contexts.iter().filter(|context| !old.contexts.contains(context));
    lines.extend(come.map(|context| format!("+ context {}", context.summary())));
    let gone = old.information_flows.iter().filter(|flow| !new.information_flows.contains(flow));
    lines.extend(gone.map(|flow| format!("- flow {}", flow.summary())));
    let come = new.information_flows.iter().filter(|flow| !old.information_flows.contains(flow));
    lines.extend(come.map(|flow| format!("+ flow {}", flow.summary())));
    if old.link != new.link {
        lines.extend(old.link.iter().map(|link| format!("- link {}", link.summary())));
        lines.extend(new.link.iter().map(|link| format!("+ link {}", link.summary())));
    }
    let gone = old.egress.iter().filter(|egress| !new.egress.contains(egress));
    lines.extend(gone.map(|egress| format!("- egress {}", egress_summary(egress))));
    let come = new.egress.iter().filter(|egress| !old.egress.contains(egress));
    lines.extend(come.map(|egress| format!("+ egress {}", egress_summary(egress))));
    let gone = old.vip_groups.iter().filter(|group| !new.vip_groups.contains(group));
    lines.extend(gone.map(|group| format!("- VIP group {}", group.summary())));
    let come = new.vip_groups.iter().filter(|group| !old.vip_groups.contains(group));
    lines.extend(come.map(|group| format!("+ VIP group {}", group.summary())));
    records(old, new, &mut lines);
    let gone = old.programs.iter().filter(|rule| !new.programs.contains(rule));
    lines.extend(gone.map(|rule| format!("- program {}", program_summary(rule))));
    let come = new.programs.iter().filter(|rule| !old.programs.contains(rule));
    lines.extend(come.map(|rule| format!("+ program {}", program_summary(rule))));
    let gone = old.access.iter().filter(|rule| !new.access.contains(rule));
    lines.extend(gone.map(|rule| format!("- access{}", rule.summary())));
    let come = new.access.iter().filter(|rule| !old.access.contains(rule));
    lines.extend(come.map(|rule| format!("+ access{}", rule.summary())));
    let gone = old.plugin_hosts.iter().filter(|host| !new.plugin_hosts.contains(host));
    lines.extend(gone.map(|host| format!("- plugin host {}", host.summary())));
    let come = new.plugin_hosts.iter().filter(|host| !old.plugin_hosts.contains(host));
    lines.extend(come.map(|host| format!("+ plugin host {}", host.summary())));
    let gone = old.plugins.iter().filter(|plugin| !new.plugins.contains(plugin));
    lines.extend(gone.map(|plugin| format!("- plugin {}", plugin.summary())));
    let come = new.plugins.iter().filter(|plugin| !old.plugins.contains(plugin));
    lines.extend(come.map(|plugin| format!("+ plugin {}", plugin.summary())));
    packet_rules(old, new, &mut lines);
    lines
}

/// Adds what differs in who gets events, and which connections are recorded.
fn records(old: &Policy, new: &Policy, lines: &mut Vec<String>) {
    let gone = old.event_subscribers.iter().filter(|of| !new.event_subscribers.contains(of));
    lines.extend(gone.map(|of| format!("- event subscriber {} {}", of.name, of.key)));
    let come = new.event_subscribers.iter().filter(|of| !old.event_subscribers.contains(of));
    lines.extend(come.map(|of| format!("+ event subscriber {} {}", of.name, of.key)));
    if old.connection_log != new.connection_log {
        lines.extend(old.connection_log.iter().map(|log| format!("- connection log {}", log.summary())));
        lines.extend(new.connection_log.iter().map(|log| format!("+ connection log {}", log.summary())));
    }
    if old.http_log != new.http_log {
        lines.extend(old.http_log.iter().map(|log| format!("- HTTP log {}", log.summary())));
        lines.extend(new.http_log.iter().map(|log| format!("+ HTTP log {}", log.summary())));
    }
    if old.acme != new.acme {
        lines.extend(old.acme.iter().map(|acme| format!("- acme {}", acme.summary())));
        lines.extend(new.acme.iter().map(|acme| format!("+ acme {}", acme.summary())));
    }
}

/// There may be thousands of rules: they are found by their text.
fn packet_rules(old: &Policy, new: &Policy, lines: &mut Vec<String>) {
    let texts = |policy: &Policy| policy.rules.iter().map(crate::PacketRule::text).collect::<Vec<_>>();
    let (before, now) = (texts(old), texts(new));
    let (had, have): (HashSet<&String>, HashSet<&String>) = (before.iter().collect(), now.iter().collect());
    lines.extend(before.iter().filter(|rule| !have.contains(rule)).map(|rule| format!("- rule {rule}")));
    lines.extend(now.iter().filter(|rule| !had.contains(rule)).map(|rule| format!("+ rule {rule}")));
}

fn changes(old: &Service, new: &Service, lines: &mut Vec<String>) {
    let name = &old.name;
    let mut change = |field: &str, was: String, is: String| {
        if was != is {
            lines.push(format!("~ service {name}: {field} {was} -> {is}"));
        }
    };
    change("vip", old.vip.to_string(), new.vip.to_string());
    change("port", old.port.to_string(), new.port.to_string());
    change("protocol", old.protocol.to_string(), new.protocol.to_string());
    change("via", old.via.to_string(), new.via.to_string());
    change("tcp.congestion", format!("{:?}", old.tcp.congestion), format!("{:?}", new.tcp.congestion));
    change("tcp.ecn", format!("{:?}", old.tcp.ecn), format!("{:?}", new.tcp.ecn));
    change("tcp.pacing", old.tcp.pacing.to_string(), new.tcp.pacing.to_string());
    change("tcp.keepalive_s", old.tcp.keepalive_s.to_string(), new.tcp.keepalive_s.to_string());
    change("tcp.user_timeout_s", old.tcp.user_timeout_s.to_string(), new.tcp.user_timeout_s.to_string());
    let mss = |tcp: &TcpOptions| tcp.mss.map_or_else(|| "of the LAN".to_owned(), |mss| mss.to_string());
    change("tcp.mss", mss(&old.tcp), mss(&new.tcp));
    change("backlog.connections", old.backlog.connections.to_string(), new.backlog.connections.to_string());
    change("backlog.time_s", old.backlog.time_s.to_string(), new.backlog.time_s.to_string());
    let networks = |networks: &[Prefix]| format!("[{}]", list(networks));
    change("accept_proxy_from", networks(&old.accept_proxy_from), networks(&new.accept_proxy_from));
    change("sni", crate::sni::summary(&old.sni), crate::sni::summary(&new.sni));
    let tls = |tls: &Option<crate::ServiceTls>| tls.as_ref().map_or("none".to_owned(), |tls| tls.summary());
    change("tls", tls(&old.tls), tls(&new.tls));
    let http = |http: &Option<crate::Http>| http.as_ref().map_or("none".to_owned(), |http| http.summary());
    change("http", http(&old.http), http(&new.http));
    let (was, is) = (&old.servers, &new.servers);
    let timeout = |ms: u32| format!("{ms} ms");
    change("servers.balance", format!("{:?}", was.balance), format!("{:?}", is.balance));
    change("servers.all_down", format!("{:?}", was.all_down), format!("{:?}", is.all_down));
    change("servers.slow_start_ms", timeout(was.slow_start_ms), timeout(is.slow_start_ms));
    change("servers.connect_timeout_ms", timeout(was.connect_timeout_ms), timeout(is.connect_timeout_ms));
    let header = |header| format!("{header:?}").to_lowercase();
    change("servers.http2", was.http2.to_string(), is.http2.to_string());
    change("servers.proxy_protocol", header(was.proxy_protocol), header(is.proxy_protocol));
    let check = |check: &Option<crate::ServerCheck>| match check {
        None => "none".to_owned(),
        Some(check) => format!("{check:?}"),
    };
    change("servers.check", check(&was.check), check(&is.check));
    let to_tls =
        |tls: &Option<crate::ServersTls>| tls.as_ref().map_or("none".to_owned(), |tls| tls.summary());
    change("servers.tls", to_tls(&was.tls), to_tls(&is.tls));
    let tunnel =
        |tunnel: Option<Tunnel>| tunnel.map_or("none".to_owned(), |t| format!("{t:?}").to_lowercase());
    change("servers.tunnel", tunnel(was.tunnel), tunnel(is.tunnel));
    let gone = old.pool.iter().filter(|server| !new.pool.contains(server));
    lines.extend(gone.map(|server| format!("~ service {name}: pool - {}", server.summary())));
    let come = new.pool.iter().filter(|server| !old.pool.contains(server));
    lines.extend(come.map(|server| format!("~ service {name}: pool + {}", server.summary())));
}

fn summary(service: &Service) -> String {
    let pool: Vec<String> = service.pool.iter().map(Server::summary).collect();
    let Service { name, vip, port, protocol, via, .. } = service;
    let protocol = if *protocol == Protocol::Tcp { String::new() } else { format!(" {protocol}") };
    let via = if *via == Via::Proxy { String::new() } else { format!(" via {via}") };
    let end = if service.has_end() { format!(" {vip} port {port}") } else { String::new() };
    let goes = match &service.http {
        None if pool.is_empty() => String::new(),
        None => format!("pool {}", pool.join(", ")),
        Some(http) => format!("http {}", http.summary()),
    };
    let sni = match &service.sni[..] {
        [] => String::new(),
        sni => format!("sni {}", crate::sni::summary(sni)),
    };
    let what: Vec<String> = [goes, sni].into_iter().filter(|text| !text.is_empty()).collect();
    format!("{name}{end}{protocol}{via} {}", what.join(" "))
}

fn channel_summary(channel: &Channel) -> String {
    let Channel { name, vip, pattern, message_kib, queue, memory, last_value, sequence, heartbeat_s, .. } =
        channel;
    let Channel { curve, path, paths: of_formats, given_up, tcp, formats, unknown, time, requests, .. } =
        channel;
    let requests = requests.as_ref().map(crate::Requests::summary).unwrap_or_default();
    let unknown = if *unknown == UnknownFormat::Drop { " and no others" } else { "" };
    let formats =
        if formats.is_empty() { String::new() } else { format!(", formats {}{unknown}", formats.join(", ")) };
    let time = time.as_ref().map(crate::ChannelTime::summary).unwrap_or_default();
    let last_value = last_value.as_ref().map(crate::LastValue::summary).unwrap_or_default();
    let sequence = if *sequence { ", numbered" } else { "" };
    let path = paths::summary(path, of_formats, *given_up);
    let heartbeat = if *heartbeat_s == 0 { String::new() } else { format!(", heartbeat {heartbeat_s} s") };
    let curve = curve.as_ref().map(crate::Curve::summary).unwrap_or_default();
    let tcp = if *tcp == TcpOptions::default() { String::new() } else { format!(" {tcp:?}") };
    let ports: Vec<String> = channel.ports().map(|port| port_summary(&port)).collect();
    let ports = ports.join(", ");
    let pool = match &channel.pool[..] {
        [] => String::new(),
        pool => format!(" pool {},", pool.iter().map(member_summary).collect::<Vec<_>>().join(", ")),
    };
    format!(
        "{name} {vip} {ports} {pattern:?},{pool} messages of {message_kib} KiB, queues of {} and {} KiB {:?}, memory {} to {} MiB{last_value}{sequence}{formats}{time}{requests}{path}{heartbeat}{curve}{tcp}",
        queue.messages, queue.kib, queue.full, memory.guaranteed_mib, memory.max_mib
    )
}

fn port_summary(port: &ChannelPort) -> String {
    let ChannelPort { port, framing, clients, header, encoding } = port;
    if *framing == Framing::Zmtp {
        return format!("port {port}");
    }
    let clients = clients.map_or_else(String::new, |clients| format!(" clients {clients:?}"));
    let encoding = encoding.map_or_else(String::new, |encoding| format!(" encoding {encoding:#06x}"));
    format!("port {port} {framing:?} {header:?}{clients}{encoding}")
}

fn member_summary(member: &PoolMember) -> String {
    format!("{}:{}", member.node, member.port)
}

fn list(prefixes: &[Prefix]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn egress_summary(egress: &Egress) -> String {
    let except = match egress.except.as_slice() {
        [] => String::new(),
        except => format!(" except {}", list(except)),
    };
    let TcpOptions { congestion, ecn, pacing, keepalive_s, user_timeout_s, mss } = egress.tcp;
    let mss = mss.map(|mss| format!(" tcp.mss {mss}")).unwrap_or_default();
    let tcp = match egress.tcp == TcpOptions::default() {
        true => String::new(),
        false => format!(
            " tcp.congestion {congestion:?} tcp.ecn {ecn:?} tcp.pacing {pacing} tcp.keepalive_s {keepalive_s} \
             tcp.user_timeout_s {user_timeout_s}{mss}"
        ),
    };
    format!("{} to {}{except}{tcp}", egress.address, list(&egress.destinations))
}

fn program_summary(rule: &ProgramRule) -> String {
    let listen = match rule.listen.as_deref() {
        None => "all ports".to_owned(),
        Some([]) => "no port".to_owned(),
        Some(ports) => {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            format!("ports {}", ports.join(", "))
        }
    };
    let connect = if rule.connect { "connects" } else { "does not connect" };
    format!("{}: listens on {listen}, {connect}", rule.program)
}
