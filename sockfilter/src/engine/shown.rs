//! The contents of the process page: counters, events, sockets. The agent reads it.

use std::net::SocketAddr;

use csp_app::FlowId;
use csp_wire::agent::page::{AcceptQueue, COUNTER_NAMES, Reason, SOCKETS, SocketEntry, SocketKind};
use libc::c_int;

use super::{Engine, PUBLISH_EVENTS};
use crate::description::{Description, Kind};

impl Engine {
    /// Publishes once enough events are pending; all of them are published before a thread sleeps.
    pub fn publish_soon(&mut self) {
        if self.link.as_ref().is_some_and(|l| l.app.trace_waiting() >= PUBLISH_EVENTS) {
            self.publish();
        }
    }

    /// Publishes trace events and counters to the agent.
    pub fn publish(&mut self) {
        let Some(link) = &mut self.link else { return };
        let Some(page) = &mut link.page else { return };
        let c = &self.counters;
        let own = [
            c.listeners_accelerated,
            c.listeners_kernel,
            c.connects_kernel,
            c.inherited_connections_lost,
            c.waits,
            c.wakeups,
            c.attaches,
            c.attach_failures,
            c.forks,
            (link.app.flow_count() + link.app.listener_count()) as u64,
            link.app.flow_count() as u64,
            c.descriptors_full,
            c.connections_shared,
        ];
        const _: () = assert!(COUNTER_NAMES.len() == 20 + 13);
        page.publish(&mut link.app, own);
        for (id, _, _, waiting) in link.app.listeners() {
            // A slot without a description belongs to a listener that is being closed.
            let index = self.listener_owners.get(id.index()).map_or(0, |owner| *owner as usize);
            if (1..=SOCKETS / 2).contains(&index) {
                page.socket_waiting(index - 1, waiting as u32);
            }
        }
    }

    /// Publishes that a connection was established, or broke.
    pub fn publish_change(&mut self, index: usize, flow: FlowId) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        // The owner may be an older description, whose connection is being closed.
        if !matches!(d.kind, Kind::Flow(its) if its == flow) {
            return;
        }
        let Some(link) = &mut self.link else { return };
        let page = link.page.as_mut().filter(|_| index < SOCKETS / 2);
        if let Some(errno) = link.app.error(flow) {
            d.last_error = errno as u16;
        }
        let Some(page) = page else { return };
        if d.last_error != 0 {
            page.socket_error(index, d.last_error);
        }
        page.socket_connected(index, &link.app, flow);
    }

    /// Shows a socket on the process page.
    pub fn show_socket(&mut self, index: usize, entry: Option<SocketEntry>) {
        if let Some(page) = self.link.as_mut().and_then(|l| l.page.as_mut()) {
            page.socket(index, entry.as_ref());
        }
    }

    /// Shows an accelerated socket in the page's first half, by its description; further ones are not shown.
    pub fn show_ours(&mut self, index: usize, entry: Option<SocketEntry>) {
        if index < SOCKETS / 2 {
            self.show_socket(index, entry);
        }
    }

    /// Shows all accelerated sockets on a new page. Their descriptor numbers are no longer known here and are
    /// shown as 0.
    pub(super) fn show_again(&mut self) {
        let all: Vec<_> =
            self.descriptions.iter_mut().map(|(index, d)| (index, DescribedBy::of(d))).collect();
        for (index, what) in all {
            match what {
                DescribedBy::Listener(address) => self.show_listener(index, 0, address),
                DescribedBy::Flow(flow) => {
                    if let Some((local, remote, _)) = self.link.as_ref().and_then(|l| l.app.addresses(flow)) {
                        self.show_flow(index, 0, local, remote);
                    }
                }
                DescribedBy::Nothing => {}
            }
        }
    }

    /// Shows a listener on the process page.
    pub fn show_listener(&mut self, index: usize, fd: c_int, address: SocketAddr) {
        let Some(Description { kind: Kind::Listener(state), .. }) = self.descriptions.get(index) else {
            return;
        };
        let queue = AcceptQueue { waiting: 0, backlog: state.backlog };
        let (kind, reason) = (SocketKind::Listener, Reason::Accelerated);
        let entry = SocketEntry::new(kind, reason, fd as u32, address, address);
        self.show_ours(index, Some(SocketEntry { queue, ..entry }));
    }

    /// Shows a connection on the process page.
    pub fn show_flow(&mut self, index: usize, fd: c_int, local: SocketAddr, remote: SocketAddr) {
        let Some(Description { kind: Kind::Flow(flow), last_error: error, .. }) =
            self.descriptions.get(index)
        else {
            return;
        };
        let Some(app) = self.link.as_ref().map(|l| &l.app) else { return };
        let (label, error) = (app.label(*flow), *error);
        let (kind, reason) = (SocketKind::Connection, Reason::Accelerated);
        let entry = SocketEntry::new(kind, reason, fd as u32, local, remote);
        self.show_ours(index, Some(SocketEntry { label, error, ..entry }));
    }
}

/// The part of a description that is shown on the page.
enum DescribedBy {
    Listener(SocketAddr),
    Flow(FlowId),
    Nothing,
}

impl DescribedBy {
    fn of(description: &Description) -> Self {
        match &description.kind {
            Kind::Listener(state) => DescribedBy::Listener(state.address),
            Kind::Flow(flow) => DescribedBy::Flow(*flow),
            _ => DescribedBy::Nothing,
        }
    }
}
