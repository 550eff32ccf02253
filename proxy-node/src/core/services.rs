//! Services as this worker serves them, and the clients' connections that wait for a process.

use std::collections::VecDeque;
use std::net::SocketAddr;

use csp_types::{FlowLabel, NodeId};

use super::pool::{MemberId, Pools};

/// Connections of one service that may wait for a process at once.
pub const PENDING_MAX: usize = 1024;

/// A server of a pool as policy names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolServer {
    /// The application node.
    pub node: NodeId,
    /// The port its processes listen on.
    pub port: u16,
}

/// A service as policy names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceSpec {
    /// Its name.
    pub name: String,
    /// VIP and port.
    pub address: SocketAddr,
    /// Where its connections go.
    pub pool: Vec<PoolServer>,
}

#[derive(Debug)]
pub(super) struct Service {
    pub(super) spec: ServiceSpec,
    pub(super) members: Vec<MemberId>,
    pub(super) pending: VecDeque<FlowLabel>,
    /// `false` once policy no longer names it; its connections live on.
    pub(super) active: bool,
}

/// All services that policy ever named; indices stay valid for the connections that carry them.
#[derive(Debug, Default)]
pub(super) struct Services {
    all: Vec<Service>,
}

impl Services {
    /// Takes a new generation of policy; says which addresses to listen on (with their index) and which no longer.
    pub(super) fn replace(
        &mut self,
        specs: Vec<ServiceSpec>,
        pools: &mut Pools,
    ) -> (Vec<(SocketAddr, u32)>, Vec<SocketAddr>) {
        let before: Vec<SocketAddr> = self.all.iter().filter(|s| s.active).map(|s| s.spec.address).collect();
        for service in &mut self.all {
            service.active = false;
        }
        let mut listen = Vec::new();
        for spec in specs {
            let members = spec.pool.iter().filter_map(|s| pools.member(s.node, s.port)).collect();
            let address = spec.address;
            let at = match self.all.iter().position(|s| s.spec.name == spec.name) {
                Some(at) => {
                    let service = &mut self.all[at];
                    (service.spec, service.members, service.active) = (spec, members, true);
                    at
                }
                None => {
                    self.all.push(Service {
                        spec,
                        members,
                        pending: VecDeque::with_capacity(PENDING_MAX),
                        active: true,
                    });
                    self.all.len() - 1
                }
            };
            listen.push((address, at as u32));
        }
        let gone = before.into_iter().filter(|a| !listen.iter().any(|(l, _)| l == a)).collect();
        (listen, gone)
    }

    pub(super) fn get(&self, service: u32) -> Option<&Service> {
        self.all.get(service as usize)
    }

    pub(super) fn get_mut(&mut self, service: u32) -> Option<&mut Service> {
        self.all.get_mut(service as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Service> {
        self.all.iter()
    }
}
