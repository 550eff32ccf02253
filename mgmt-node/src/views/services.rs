//! The services of the policy with what the proxies report of their pools.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use csp_api::mgmt::{PoolMemberView, ServiceView};
use csp_api::proxy;
use csp_policy::{Server, Service};

use crate::fanout::Target;

/// A service as one proxy reports it, with the proxy's id.
type Seen<'a> = (&'a str, &'a proxy::Service);

/// What the proxies report, by the name of the service.
pub(super) struct Reported<'a>(Vec<(&'a str, HashMap<&'a str, &'a proxy::Service>)>);

impl<'a> Reported<'a> {
    pub(super) fn new(answers: &'a [(Target, Vec<proxy::Service>)]) -> Self {
        let by_name = |all: &'a [proxy::Service]| all.iter().map(|s| (s.name.as_str(), s)).collect();
        Reported(answers.iter().map(|(proxy, all)| (&*proxy.id, by_name(all))).collect())
    }
}

/// Returns a service of the policy with what the proxies report of it.
pub(super) fn live(service: &Service, reported: &Reported<'_>) -> ServiceView {
    let of_proxy = |(proxy, all): &(_, HashMap<_, _>)| Some((*proxy, *all.get(&*service.name)?));
    let seen: Vec<Seen<'_>> = reported.0.iter().filter_map(of_proxy).collect();
    ServiceView {
        name: service.name.clone(),
        vip: if service.has_end() { service.vip.to_string() } else { String::new() },
        port: service.port,
        protocol: service.protocol.to_string(),
        via: service.via.to_string(),
        pending: seen.iter().map(|(_, s)| s.pending).fold(0, u64::saturating_add),
        pool: servers(service, &seen),
        leads_to: leads_to(service),
        figures: seen.iter().filter_map(|(_, s)| s.figures).reduce(|mut sum, one| {
            sum.add(&one);
            sum
        }),
    }
}

/// Returns the services to which the routes and the names of a service lead.
fn leads_to(service: &Service) -> Vec<String> {
    let by_name = service.sni.iter().map(|sni| sni.service.as_str());
    let targets = service.http.iter().flat_map(csp_policy::Http::targets).chain(by_name);
    targets.collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
}

/// Returns the pool: its entries in their order, where the first name with a port stands for all addresses
/// that proxies know by names with this port.
fn servers(service: &Service, seen: &[Seen<'_>]) -> Vec<PoolMemberView> {
    let mut shown = BTreeSet::new();
    let mut views = Vec::new();
    for server in &service.pool {
        let Some(name) = &server.name else {
            let node = server.node.map(|node| node.to_string()).unwrap_or_default();
            views.push(member(node, server.address, server.port, seen));
            continue;
        };
        let addresses = named(service, server.port, seen);
        if addresses.is_empty() {
            let nowhere = member(String::new(), None, server.port, &[]);
            views.push(PoolMemberView { names: vec![name.clone()], ..nowhere });
        } else if shown.insert(server.port) {
            let names = names(service, server.port);
            views.extend(addresses.into_iter().map(|address| PoolMemberView {
                names: names.clone(),
                ..member(String::new(), Some(address), server.port, seen)
            }));
        }
    }
    views
}

/// Returns the addresses with this port that proxies have in the pool, and the policy has only by name.
fn named(service: &Service, port: u16, seen: &[Seen<'_>]) -> BTreeSet<IpAddr> {
    let listed = |address: IpAddr| {
        let same = |server: &Server| server.address == Some(address) && server.port == port;
        service.pool.iter().any(same)
    };
    let members = seen.iter().flat_map(|(_, s)| &s.members).filter(|m| m.port == port);
    members.filter_map(|m| m.address).filter(|address| !listed(*address)).collect()
}

fn names(service: &Service, port: u16) -> Vec<String> {
    let with_port = service.pool.iter().filter(|server| server.port == port);
    with_port.filter_map(|server| server.name.clone()).collect()
}

/// Returns a member of the pool with its state summed over the proxies.
fn member(node: String, address: Option<IpAddr>, port: u16, seen: &[Seen<'_>]) -> PoolMemberView {
    let is_it = |m: &&proxy::PoolMember| m.node == *node && m.address == address && m.port == port;
    let at: Vec<(&str, &proxy::PoolMember)> =
        seen.iter().filter_map(|(proxy, s)| Some((*proxy, s.members.iter().find(is_it)?))).collect();
    let down = |(proxy, member): &(&str, &proxy::PoolMember)| {
        member.down.as_ref().map(|why| format!("{proxy}: {why}"))
    };
    let sum =
        |of: fn(&proxy::PoolMember) -> u64| at.iter().map(|(_, m)| of(m)).reduce(|a, b| a.saturating_add(b));
    let is_node = !node.is_empty();
    PoolMemberView {
        node,
        address,
        names: Vec::new(),
        down_at: at.iter().filter_map(down).collect(),
        port,
        // Every process listens at every proxy: the maximum is the number of processes, the sum would not be.
        processes: at.iter().map(|(_, m)| m.listeners).max().filter(|_| is_node),
        open_connections: sum(|m| m.open),
        connections_total: sum(|m| m.connections_total),
        accept_credit: sum(|m| m.accept_credit).filter(|_| is_node),
        packets_total: None,
    }
}
