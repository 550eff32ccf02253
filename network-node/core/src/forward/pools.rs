//! Pools of servers to which packets are forwarded: made by the control thread, shared by the workers, never
//! changed. A change of a server's state is another set of pools.

use std::net::{IpAddr, SocketAddr};

use csp_classify::{BACKENDS_MAX, Maglev};
use csp_types::{Encapsulation, Transport};

/// Largest number of servers of a pool.
pub const POOL_SERVERS_MAX: usize = BACKENDS_MAX;

/// A server of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolServer {
    /// Identifies the server for as long as the daemon lives: the control thread gives a number once.
    pub id: u32,
    /// Its address: on the LAN, unless a tunnel leads there.
    pub address: IpAddr,
    /// How packets to it are packed; `None`: they are not.
    pub tunnel: Option<Encapsulation>,
    /// Its share of new flows, relative to the others'; 0: none.
    pub weight: u16,
    /// Whether it gets packets. One that is down keeps no flow.
    pub up: bool,
}

/// A service at an address of the cluster, and the servers that its packets are forwarded to.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The virtual address and port.
    pub end: SocketAddr,
    /// TCP or UDP.
    pub protocol: Transport,
    /// In the order of their ids.
    servers: Vec<PoolServer>,
    /// Position in `servers` for a new flow.
    table: Maglev<u16>,
    /// Position of its first server among those of all pools.
    first: usize,
}

impl Pool {
    /// Makes a pool of at most [`POOL_SERVERS_MAX`] servers; further ones get no new flows. New flows go by a
    /// Maglev table of the addresses of those that are up and have a weight, so that all network nodes which
    /// see the same servers make the same choice.
    pub fn new(end: SocketAddr, protocol: Transport, mut servers: Vec<PoolServer>) -> Self {
        servers.sort_by_key(|server| server.id);
        let names: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
        let mut order: Vec<usize> = (0..servers.len()).collect();
        // By address: ids differ between network nodes.
        order.sort_by_key(|at| servers[*at].address);
        let mut table = Maglev::new();
        table.rebuild_weighted(order.iter().filter(|at| servers[**at].up).map(|at| {
            let server = &servers[*at];
            (names[*at].as_bytes(), server.weight, *at as u16)
        }));
        Pool { end, protocol, servers, table, first: 0 }
    }

    /// Returns its servers.
    pub fn servers(&self) -> &[PoolServer] {
        &self.servers
    }

    /// Returns the server of a new flow with this hash, as its position; `None` if no server is up.
    pub(super) fn choose(&self, hash: u64) -> Option<usize> {
        self.table.choose(hash).map(usize::from)
    }

    /// Returns the position of a server that may keep its flows: it is up.
    pub(super) fn keeper(&self, id: u32) -> Option<usize> {
        let at = self.servers.binary_search_by_key(&id, |server| server.id).ok()?;
        self.servers[at].up.then_some(at)
    }

    /// Returns the position of one of its servers among those of all pools.
    pub(super) fn place(&self, at: usize) -> usize {
        self.first + at
    }
}

/// All pools of a policy.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// Of the policy.
    pub generation: u64,
    pools: Vec<Pool>,
}

impl Pools {
    /// Makes the set of these pools, by [`csp_classify::PoolIndex`], of a policy.
    pub fn new(generation: u64, mut pools: Vec<Pool>) -> Self {
        let mut first = 0;
        for pool in &mut pools {
            pool.first = first;
            first += pool.servers.len();
        }
        Pools { generation, pools }
    }

    /// Returns the pools.
    pub fn all(&self) -> &[Pool] {
        &self.pools
    }

    pub(super) fn get(&self, index: usize) -> Option<&Pool> {
        self.pools.get(index)
    }

    /// Returns the servers of all pools, by their place.
    pub(super) fn servers(&self) -> impl Iterator<Item = &PoolServer> {
        self.pools.iter().flat_map(|pool| &pool.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_network_nodes_choose_the_same_server() {
        let server = |id: u32, last: u8| PoolServer {
            id,
            address: IpAddr::from([10, 76, 0, last]),
            tunnel: None,
            weight: last.into(),
            up: true,
        };
        let end: SocketAddr = "10.76.0.102:80".parse().unwrap();
        // The other node met them in another order, so that it has other ids for them.
        let one = Pool::new(end, Transport::Tcp, (1..=6).map(|at| server(at, at as u8)).collect());
        let other = Pool::new(end, Transport::Tcp, (1..=6).map(|at| server(7 - at, at as u8)).collect());
        for hash in (0..20_000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let address = |pool: &Pool| pool.servers()[pool.choose(hash).unwrap()].address;
            assert_eq!(address(&one), address(&other));
        }
    }
}
