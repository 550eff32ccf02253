//! Services whose packets the network nodes forward, with what these report of the servers.

use csp_api::mgmt::{PoolMemberView, ServiceView, Unreachable};
use csp_api::network::{Forwarded, ForwardedServer};
use csp_policy::{Policy, Server, Service};
use csp_types::Role;

use super::Cluster;
use crate::fanout::Target;

/// What the network nodes report.
pub(super) struct Reports {
    answers: Vec<(Target, Vec<Forwarded>)>,
    pub(super) unreachable: Vec<Unreachable>,
}

impl Cluster {
    /// Asks the network nodes, if the policy has such a service.
    pub(super) async fn forwarded(&self, policy: Option<&Policy>) -> Reports {
        if policy.is_none_or(|policy| policy.forwarded().next().is_none()) {
            return Reports { answers: Vec::new(), unreachable: Vec::new() };
        }
        let targets = self.targets(&[Role::NetworkNode]);
        let (answers, unreachable) = self.fanout.ask(targets, "/v1/forwarded", vec![]).await;
        Reports { answers, unreachable }
    }
}

impl Reports {
    /// Returns a service of the policy with what is reported of it.
    pub(super) fn view(&self, service: &Service) -> ServiceView {
        ServiceView {
            name: service.name.clone(),
            vip: service.vip.to_string(),
            leads_to: Vec::new(),
            port: service.port,
            protocol: service.protocol.to_string(),
            via: service.via.to_string(),
            pending: 0,
            pool: service.pool.iter().map(|server| self.member(&service.name, server)).collect(),
            figures: None,
        }
    }

    fn member(&self, service: &str, server: &Server) -> PoolMemberView {
        let at = |(node, services): &'_ (Target, Vec<Forwarded>)| {
            let found = services.iter().find(|known| known.name == *service)?;
            let found = found.servers.iter().find(|known| Some(known.address) == server.address)?;
            Some((node.id.clone(), found.clone()))
        };
        let at: Vec<(String, ForwardedServer)> = self.answers.iter().filter_map(at).collect();
        let down = |(node, server): &(String, ForwardedServer)| {
            server.down.as_ref().map(|why| format!("{node}: {why}"))
        };
        let sum = |of: fn(&ForwardedServer) -> u64| {
            at.iter().map(|(_, server)| of(server)).reduce(u64::saturating_add)
        };
        PoolMemberView {
            node: String::new(),
            address: server.address,
            names: Vec::new(),
            down_at: at.iter().filter_map(down).collect(),
            port: server.port,
            processes: None,
            open_connections: None,
            accept_credit: None,
            connections_total: sum(|server| server.flows_total),
            packets_total: sum(|server| server.packets_total),
        }
    }
}
