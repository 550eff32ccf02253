//! Connections that a local service opens to a process of a service of the policy: a hairpin whose client is
//! the local service.
//!
//! ```text
//!  local service ◀─ serve ─ flow a ┐ rings ┐ flow b ─ OPEN ─▶ process of the pool
//! ```
//! A service that only local services reach has the port 0: nobody can connect to it from outside, and no
//! program of the cluster.

use std::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple};

use super::ProxyOutput;
use super::context::Turn;
use super::events::{NO_SERVICE, new_flow};
use super::flow::{Flow, Stage};
use super::hairpin::HAIRPIN_WINDOW;
use super::service::local::LocalServices;

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Opens the connections that local services ask for. Returns whether there were any.
    pub(super) fn open_local(&mut self) -> bool {
        let mut any = false;
        while let Some(name) = self.local.next_open() {
            any = true;
            if self.open_one(&name).is_none() {
                self.local.opened(self.cx.now, &name, None);
            }
        }
        any
    }

    /// Opens a connection to a process of the service of this name; `None` if there is no such service, or no
    /// room.
    fn open_one(&mut self, name: &str) -> Option<FlowLabel> {
        let now = self.cx.now;
        let (service, server) = self.dispatcher.service_named(name)?;
        // The local service has no address of its own.
        let source = SocketAddr::new(server.ip(), 0);
        let (client, at_server) = self.cx.hairpin.open(source)?;
        let tuple = FourTuple { local: source, remote: server };
        let flow = new_flow(now, (client, tuple), NO_SERVICE, Stage::Local, HAIRPIN_WINDOW);
        self.admit(flow);
        let tuple = FourTuple { local: server, remote: source };
        let arrived = self.dispatcher.next_arrival();
        let flow = new_flow(now, (at_server, tuple), service, Stage::Pending, HAIRPIN_WINDOW);
        self.admit(Flow { arrived, ..flow });
        self.cx.recorder.counters.connections_hairpin += 1;
        if !self.local.opened(now, name, Some(client)) {
            // The local service does not want the connection any more: in this stage `remove_flow` does not
            // call its `gone`.
            self.cx.flows.set_stage(now, client, Stage::Finishing);
            self.remove_flow(client);
            self.remove_flow(at_server);
            return Some(client);
        }
        self.find_application(at_server, service, tuple);
        self.pump.enqueue(self.cx.flows, client);
        Some(client)
    }
}
