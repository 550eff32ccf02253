//! What workers report as events: servers that come into use or go out of it, and what happens to channels,
//! handlers and triggers.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use csp_api::events::What;
use csp_daemon::events::Reporter;
use csp_services::{ContextNotice, MoveNotice};

use crate::ProxyWorker;
use crate::core::{ServerChange, ServerHost, ServiceSpec};

use super::contexts::name_of;

/// Servers that are known to be down; further ones are not reported.
const DOWN_MAX: usize = 65_536;

/// Which workers of this node see a server down, by service and server: a bit each.
type Down = HashMap<(String, String), u64>;

/// A worker's way to this node's events.
#[derive(Clone, Debug)]
pub struct WorkerEvents {
    reporter: Reporter,
    worker: u8,
    down: Arc<Mutex<Down>>,
}

impl WorkerEvents {
    /// Returns the way of worker 0.
    pub fn new(reporter: Reporter) -> WorkerEvents {
        WorkerEvents { reporter, worker: 0, down: Arc::default() }
    }

    /// Returns the way of another worker of the same node.
    pub fn of_worker(&self, worker: u8) -> WorkerEvents {
        WorkerEvents { worker, ..self.clone() }
    }

    /// Forgets servers that no service of `known` has any longer.
    pub(super) fn keep(&self, known: &HashSet<(String, String)>) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.retain(|server, _| known.contains(server));
    }

    /// Reports the first worker that sees a server down, and the last one that sees it up again.
    fn server(&self, change: ServerChange) {
        let key = (change.service, name(change.host, change.port));
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let bit = 1u64 << (self.worker % 64);
        match change.down {
            Some(reason) if down.len() < DOWN_MAX || down.contains_key(&key) => {
                let workers = down.entry(key.clone()).or_default();
                let was_up = std::mem::replace(workers, *workers | bit) == 0;
                drop(down);
                if was_up {
                    let (service, server) = (key.0.into(), key.1.into());
                    self.reporter.report(What::ServerDown { service, server, reason: reason.into() });
                }
            }
            Some(_) => {}
            None => {
                let Some(workers) = down.get_mut(&key) else { return };
                *workers &= !bit;
                if *workers == 0 {
                    down.remove(&key);
                    drop(down);
                    self.reporter.report(What::ServerUp { service: key.0.into(), server: key.1.into() });
                }
            }
        }
    }

    fn channel(&self, notice: MoveNotice) {
        let MoveNotice::Done { channel, from, to, connections, lost } = notice else { return };
        let (from, to) = (from.to_string().into(), to.to_string().into());
        self.reporter.report(What::ChannelMoved { channel: channel.into(), from, to, connections, lost });
    }
}

/// Returns what a notice about a handler says.
pub(super) fn what_of(notice: ContextNotice) -> What {
    match notice {
        ContextNotice::Refused { channel, handler, context, why } => What::HandlerRefused {
            channel: channel.into(),
            handler: handler.into(),
            context: name_of(context).into(),
            reason: why.into(),
        },
        ContextNotice::StateRefused { channel, handler } => {
            What::HandlerStateRefused { channel: channel.into(), handler: handler.into() }
        }
        ContextNotice::Moved { channel, handler, from, to, why, error } => What::HandlerMoved {
            channel: channel.into(),
            handler: handler.into(),
            from: name_of(from).into(),
            to: name_of(to).into(),
            why: why.to_string().into(),
            error: error.map(|error| error.to_string()).unwrap_or_default().into(),
        },
    }
}

/// Returns the servers of services, each with the service's name.
pub(super) fn servers(services: &[ServiceSpec]) -> HashSet<(String, String)> {
    let of = |spec: &ServiceSpec| {
        let service = spec.name.clone();
        spec.pool.iter().map(move |at| (service.clone(), name(at.host, at.port))).collect::<Vec<_>>()
    };
    services.iter().flat_map(of).collect()
}

/// Returns the name of a server in events and in the connection log.
pub(super) fn name(host: ServerHost, port: u16) -> String {
    match host {
        ServerHost::Node(node) => format!("{node}:{port}"),
        ServerHost::Address(address) => SocketAddr::from((address, port)).to_string(),
    }
}

/// Reports what has happened at a worker since the last call.
pub(super) fn report(worker: &mut ProxyWorker) {
    let Some(events) = worker.events().cloned() else { return };
    worker.take_server_changes().into_iter().for_each(|change| events.server(change));
    while let Some(notice) = worker.poll_notice() {
        events.channel(notice);
    }
    while let Some(notice) = worker.broker_mut().poll_context_notice() {
        events.reporter.report(what_of(notice));
    }
    while let Some((trigger, change)) = worker.poll_fired() {
        events.reporter.report(What::TriggerFired { trigger: trigger.into(), fired: change.fired });
    }
}
