//! The control thread's part in forwarding: the servers of the policy's services with `via: network`, whether
//! they are up, and the pools that workers get when either changes.

mod checks;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use csp_api::events::What;
use csp_api::network::{Forwarded, ForwardedServer};
use csp_daemon::Events;
use csp_policy::{AllDown, Policy, Server, ServerCheck, Service};
use csp_types::{Encapsulation, OwnedAddresses, Transport};
use tokio::sync::Notify;

use crate::core::{ForwardCounts, Pool, PoolServer, Pools, ServerView};

use super::data_thread::Question;
use super::workers::DataWorkers;

/// How long changes of servers are gathered.
const GATHERED_FOR: Duration = Duration::from_millis(20);

/// What makes a server the same one under another policy.
type Key = (SocketAddr, Transport, IpAddr);

/// Whether a server is up.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Health {
    /// Why it is down; `None`: it is up.
    down: Option<String>,
    /// Results in a row that say otherwise.
    contrary: u8,
}

/// A server of the policy in force.
#[derive(Clone, Debug)]
struct Known {
    id: u32,
    health: Health,
}

/// A service of the policy in force that this node forwards.
#[derive(Clone, Debug)]
struct Forwarding {
    name: String,
    end: SocketAddr,
    protocol: Transport,
    servers: Vec<(IpAddr, u16, bool)>,
    all_down: AllDown,
    tunnel: Option<Encapsulation>,
    check: Option<ServerCheck>,
}

impl Forwarding {
    fn of(service: &Service) -> Self {
        let server = |server: &Server| Some((server.address?, server.weight, server.backup));
        Forwarding {
            name: service.name.clone(),
            end: SocketAddr::new(service.vip, service.port),
            protocol: service.protocol.into(),
            servers: service.pool.iter().filter_map(server).collect(),
            all_down: service.servers.all_down,
            tunnel: service.servers.tunnel.map(Encapsulation::from),
            check: service.servers.check.clone(),
        }
    }

    fn key(&self, address: IpAddr) -> Key {
        (self.end, self.protocol, address)
    }
}

#[derive(Debug, Default)]
struct State {
    services: Vec<Forwarding>,
    known: HashMap<Key, Known>,
    next_id: u32,
    /// Of the policy in force.
    generation: u64,
    /// Nothing else of the policy is at this node's addresses.
    alone: bool,
    /// The sets that workers have or had: the last owner frees one, and is not to be a worker.
    sent: Vec<Arc<Pools>>,
}

/// The servers that packets are forwarded to. It outlives policies: a server that stays keeps its state.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// Where servers that go up or down are recorded.
    events: Arc<OnceLock<Events>>,
}

impl Servers {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has servers that go up or down recorded.
    pub fn report_to(&self, events: &Events) {
        let _ = self.events.set(events.clone());
    }

    /// Takes over the services of a policy whose addresses this node owns, and returns their pools.
    pub fn of_policy(&self, policy: &Policy, generation: u64, owned: &OwnedAddresses) -> Arc<Pools> {
        let mut state = self.state();
        let services: Vec<Forwarding> =
            policy.forwarded().filter(|service| owned.contains(service.vip)).map(Forwarding::of).collect();
        let keys = services.iter().flat_map(|service| {
            service.servers.iter().map(|(address, ..)| (service.key(*address), service.check.is_some()))
        });
        let mut before = std::mem::take(&mut state.known);
        for (key, checked) in keys {
            let mut known = before.remove(&key).unwrap_or_else(|| {
                state.next_id += 1;
                Known { id: state.next_id, health: Health { down: None, contrary: 0 } }
            });
            if !checked {
                known.health = Health { down: None, contrary: 0 };
            }
            state.known.insert(key, known);
        }
        (state.services, state.generation) = (services, generation);
        state.kept_pools()
    }

    /// Sends workers the pools whenever a server's state has changed. Does not end.
    pub async fn publish(self, mailboxes: Vec<csp_telemetry::MailboxSender<Question>>) {
        loop {
            self.changed.notified().await;
            // Servers that change together are one change.
            tokio::time::sleep(GATHERED_FOR).await;
            let pools = self.state().kept_pools();
            for mailbox in &mailboxes {
                if let Err(error) = mailbox.send(Question::Pools(pools.clone())) {
                    tracing::warn!(%error, "a data worker does not know yet which servers are up");
                    self.changed.notify_one();
                }
            }
        }
    }

    /// Has workers get the pools again: since they were made for the rules, a server may have changed.
    /// `others` says whether the rules have services or channels, too, which need proxies.
    pub fn rules_are_in_force(&self, others: bool) {
        let mut state = self.state();
        state.alone = !state.services.is_empty() && !others;
        if !state.services.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Returns whether this node serves without any proxy.
    pub fn need_no_proxy(&self) -> bool {
        self.state().alone
    }

    /// Notes the result of a check. `Err` says why it failed.
    fn note(&self, key: &Key, check: &ServerCheck, result: Result<(), String>) {
        let mut state = self.state();
        let Some(name) = state.services.iter().find(|s| (s.end, s.protocol) == (key.0, key.1)) else {
            return;
        };
        let name = name.name.clone();
        let Some(known) = state.known.get_mut(key) else { return };
        if known.health.note(check, result) {
            let (service, server) = (name.into(), SocketAddr::from((key.2, key.0.port())).to_string().into());
            let what = match &known.health.down {
                Some(reason) => What::ServerDown { service, server, reason: reason.into() },
                None => What::ServerUp { service, server },
            };
            if let Some(events) = self.events.get() {
                events.record(&what);
            }
            self.changed.notify_one();
        }
    }

    /// Returns the servers that are to be checked.
    fn checked(&self) -> BTreeMap<Key, ServerCheck> {
        let state = self.state();
        let of = |service: &Forwarding| {
            let check = service.check.clone()?;
            let keys: Vec<Key> = service.servers.iter().map(|(address, ..)| service.key(*address)).collect();
            Some(keys.into_iter().map(move |key| (key, check.clone())))
        };
        state.services.iter().filter_map(of).flatten().collect()
    }

    /// Returns the services with what workers say of their servers, for the admin endpoint.
    pub fn view(&self, workers: &[Vec<ServerView>]) -> Vec<Forwarded> {
        let mut sums: HashMap<u32, (ForwardCounts, bool, bool)> = HashMap::new();
        for server in workers.iter().flatten() {
            let (sum, found, far) = sums.entry(server.id).or_default();
            sum.flows += server.counts.flows;
            sum.packets += server.counts.packets;
            sum.bytes += server.counts.bytes;
            *found |= server.mac.is_some();
            *far |= server.far;
        }
        let state = self.state();
        let server = |service: &Forwarding, address: IpAddr| {
            let known = state.known.get(&service.key(address));
            let (counts, found, far) =
                known.and_then(|known| sums.get(&known.id)).copied().unwrap_or_default();
            let down = known.and_then(|known| known.health.down.clone());
            let down = down.or_else(|| {
                far.then(|| "behind a router: without a `tunnel` only servers on the LAN get packets".into())
            });
            let down = down
                .or_else(|| (!found).then(|| "its Ethernet address, or its router's, is not known".into()));
            ForwardedServer {
                address,
                down: down.map(Into::into),
                flows_total: counts.flows,
                packets_total: counts.packets,
                bytes_total: counts.bytes,
            }
        };
        let view = |service: &Forwarding| Forwarded {
            name: service.name.as_str().into(),
            servers: service.servers.iter().map(|(address, ..)| server(service, *address)).collect(),
        };
        state.services.iter().map(view).collect()
    }
}

impl State {
    /// Makes the pools, and keeps them for as long as workers do.
    fn kept_pools(&mut self) -> Arc<Pools> {
        let pools = Arc::new(self.pools());
        self.sent.retain(|sent| Arc::strong_count(sent) > 1);
        self.sent.push(pools.clone());
        pools
    }

    /// Makes the pools of the services as their servers are now.
    fn pools(&self) -> Pools {
        let pool = |service: &Forwarding| {
            let is_up = |address: IpAddr| {
                self.known.get(&service.key(address)).is_some_and(|known| known.health.down.is_none())
            };
            let serves =
                |(address, weight, backup): &(IpAddr, u16, bool)| !backup && *weight > 0 && is_up(*address);
            let primary = service.servers.iter().any(serves);
            let any = service.servers.iter().any(|(address, weight, _)| *weight > 0 && is_up(*address));
            let tunnel = service.tunnel;
            let all = !any && service.all_down == AllDown::Serve;
            let server = |(address, weight, backup): &(IpAddr, u16, bool)| {
                let known = self.known.get(&service.key(*address))?;
                // A backup keeps the flows that it got, when it is no longer needed.
                let weight = if *backup && (primary || all) { 0 } else { *weight };
                Some(PoolServer {
                    id: known.id,
                    address: *address,
                    tunnel,
                    weight,
                    up: all || is_up(*address),
                })
            };
            Pool::new(service.end, service.protocol, service.servers.iter().filter_map(server).collect())
        };
        Pools::new(self.generation, self.services.iter().map(pool).collect())
    }
}

impl Health {
    /// Notes the result of a check; returns whether the server has changed.
    fn note(&mut self, check: &ServerCheck, result: Result<(), String>) -> bool {
        let is_up = self.down.is_none();
        if result.is_ok() == is_up {
            self.contrary = 0;
            return false;
        }
        self.contrary = self.contrary.saturating_add(1);
        let enough = if is_up { check.fall } else { check.rise };
        if self.contrary < enough {
            return false;
        }
        (self.down, self.contrary) = (result.err(), 0);
        true
    }
}

/// What goes on beside the control thread's loop, until it is dropped.
pub struct Running([tokio::task::JoinHandle<()>; 2]);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Starts the checks of servers, and gives workers the pools when a state changes.
pub fn start(servers: &Servers, workers: &DataWorkers) -> Running {
    let publishing = tokio::spawn(servers.clone().publish(workers.mailboxes()));
    Running([publishing, tokio::spawn(checks::run(servers.clone()))])
}

#[cfg(test)]
mod tests;
