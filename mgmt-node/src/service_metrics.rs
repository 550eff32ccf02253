//! Services and their pools as metrics: what proxies and network nodes report of them, by reporting node.
//!
//! A counter is the reporting node's own, so that it starts anew only with that node. The nodes are asked
//! together with their health, for as long as somebody scrapes this node: their workers answer.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use csp_api::{network, proxy};
use csp_telemetry::MetricWriter;

use crate::fanout::{Fanout, Target};
use crate::limits::SERVICE_MEMBERS_SHOWN;

/// How long after a scrape the nodes are asked for the next one.
const WANTED_FOR: Duration = Duration::from_secs(150);

/// The services as last reported.
#[derive(Debug, Default)]
pub struct ServiceReports(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    scraped: Option<Instant>,
    services: Vec<Service>,
    left_out: usize,
}

/// A service as one node reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Service {
    name: String,
    reporter: String,
    waiting: u64,
    members: Vec<Member>,
}

/// A member of a pool as one node reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Member {
    /// Node or address, and port.
    name: String,
    is_up: bool,
    connections_total: u64,
    open: Option<u64>,
    processes: Option<u64>,
    /// Packets and bytes that were forwarded to it.
    forwarded: Option<(u64, u64)>,
}

impl ServiceReports {
    /// Asks the nodes, if this node was scraped lately.
    pub async fn refresh(&self, fanout: &Fanout, proxies: Vec<Target>, network_nodes: Vec<Target>) {
        if self.state().scraped.is_none_or(|scraped| scraped.elapsed() > WANTED_FOR) {
            self.state().services.clear();
            return;
        }
        let (proxies, network_nodes) = tokio::join!(
            fanout.ask::<Vec<proxy::Service>>(proxies, "/v1/services", vec![]),
            fanout.ask::<Vec<network::Forwarded>>(network_nodes, "/v1/forwarded", vec![]),
        );
        let mut services = Vec::new();
        for (node, reported) in proxies.0 {
            services.extend(reported.iter().map(|service| of_proxy(&node.id, service)));
        }
        for (node, reported) in network_nodes.0 {
            services.extend(reported.iter().map(|service| of_network_node(&node.id, service)));
        }
        let left_out = bound(&mut services, SERVICE_MEMBERS_SHOWN);
        let mut state = self.state();
        (state.services, state.left_out) = (services, left_out);
    }

    /// Writes the metrics of these services, and notes that they are wanted. Proxies report the addresses of
    /// channels as services, too, and after a change of the policy what it no longer names.
    pub fn collect(&self, out: &mut MetricWriter, named: &BTreeSet<&str>) {
        let mut state = self.state();
        state.scraped = Some(Instant::now());
        for service in state.services.iter().filter(|service| named.contains(service.name.as_str())) {
            service.collect(out);
        }
        let help = "Members of pools that have no metrics because others have as many as there may be";
        out.gauge("csp_service_members_left_out", help, &[], state.left_out as f64);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    fn collect(&self, out: &mut MetricWriter) {
        let own = [("reporter", self.reporter.as_str()), ("service", self.name.as_str())];
        let help = "Members in the pool of a service";
        out.gauge("csp_service_members", help, &own, self.members.len() as f64);
        let help = "Established connections of a service that wait for a process";
        out.gauge("csp_service_waiting_connections", help, &own, self.waiting as f64);
        for member in &self.members {
            let labels = [own[0], own[1], ("member", member.name.as_str())];
            let help = "1 while a member of a pool gets connections: processes listen, or the server is up";
            out.gauge("csp_service_member_up", help, &labels, f64::from(u8::from(member.is_up)));
            let help = "Connections (of a forwarded service flows) that a member of a pool was given";
            out.counter("csp_service_member_connections_total", help, &labels, member.connections_total);
            if let Some(open) = member.open {
                let help = "Connections that are open at a member of a pool, or offered to it";
                out.gauge("csp_service_member_open_connections", help, &labels, open as f64);
            }
            if let Some(processes) = member.processes {
                let help = "Processes of a member of a pool that listen";
                out.gauge("csp_service_member_processes", help, &labels, processes as f64);
            }
            if let Some((packets, bytes)) = member.forwarded {
                let help = "Packets forwarded to a server, coalesced ones once";
                out.counter("csp_service_member_forwarded_packets_total", help, &labels, packets);
                let help = "Bytes of IP packets forwarded to a server";
                out.counter("csp_service_member_forwarded_bytes_total", help, &labels, bytes);
            }
        }
    }
}

fn of_proxy(reporter: &str, service: &proxy::Service) -> Service {
    let member = |member: &proxy::PoolMember| {
        let is_node = member.address.is_none();
        Member {
            name: match member.address {
                Some(address) => std::net::SocketAddr::new(address, member.port).to_string(),
                None => format!("{}:{}", member.node, member.port),
            },
            is_up: if is_node { member.listeners > 0 } else { member.down.is_none() },
            connections_total: member.connections_total,
            open: Some(member.open),
            processes: is_node.then_some(member.listeners),
            forwarded: None,
        }
    };
    Service {
        name: service.name.to_string(),
        reporter: reporter.to_owned(),
        waiting: service.pending,
        members: service.members.iter().map(member).collect(),
    }
}

fn of_network_node(reporter: &str, service: &network::Forwarded) -> Service {
    let member = |server: &network::ForwardedServer| Member {
        name: server.address.to_string(),
        is_up: server.down.is_none(),
        connections_total: server.flows_total,
        forwarded: Some((server.packets_total, server.bytes_total)),
        ..Member::default()
    };
    Service {
        name: service.name.to_string(),
        reporter: reporter.to_owned(),
        waiting: 0,
        members: service.servers.iter().map(member).collect(),
    }
}

/// Removes services from the end until at most `most` members are left; returns how many were removed.
/// A service without members counts as one.
fn bound(services: &mut Vec<Service>, most: usize) -> usize {
    let mut seen = 0;
    let size = |service: &Service| service.members.len().max(1);
    let kept = services.iter().take_while(|service| {
        seen += size(service);
        seen <= most
    });
    let kept = kept.count();
    services.drain(kept..).map(|service| size(&service)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_bound_is_counted() {
        let service = |members| Service {
            name: "web".to_owned(),
            reporter: "pn-1".to_owned(),
            waiting: 0,
            members: vec![Member::default(); members],
        };
        let mut services = vec![service(3), service(0), service(4), service(1)];
        assert_eq!(bound(&mut services, 7), 5);
        assert_eq!(services, [service(3), service(0)]);
        assert_eq!(bound(&mut services, 4), 0);
    }
}
