//! Connections of balancers in front, which begin with a header of the PROXY protocol: they wait here until
//! it has arrived, and go on as connections of the client that it names.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use csp_tcp::State;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};
use csp_wire::proxy_protocol::{self, ACCEPTED_MAX, Parsed};

use super::ProxyOutput;
use super::connection_log::End;
use super::context::Turn;
use super::service::local::LocalServices;

/// How long a header may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose header has not arrived.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    service: u32,
    /// The balancer's address is its remote end.
    tuple: FourTuple,
    deadline: Instant,
}

/// The connections that wait for their header. The TCP engine bounds their number.
#[derive(Debug, Default)]
pub(crate) struct Prefaces {
    waiting: HashMap<FlowLabel, Waiting>,
    /// In the order of their deadlines. Some behind the first one may have ended.
    deadlines: VecDeque<(Instant, FlowLabel)>,
}

impl Prefaces {
    /// Returns when the next connection is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Returns how many connections wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a connection waits here.
    #[inline]
    pub(crate) fn has(&self, label: FlowLabel) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&label)
    }

    /// Forgets a connection that has ended; returns whether it waited here.
    #[inline]
    pub(crate) fn forget(&mut self, label: FlowLabel) -> bool {
        let waited = !self.waiting.is_empty() && self.waiting.remove(&label).is_some();
        if waited {
            let waiting = &self.waiting;
            // A label may have been given to another connection since.
            let ended = |(at, label): &mut (Instant, FlowLabel)| {
                waiting.get(label).is_none_or(|waiting| waiting.deadline != *at)
            };
            while self.deadlines.pop_front_if(ended).is_some() {}
        }
        waited
    }

    /// Returns the connection that has waited longest.
    pub(crate) fn oldest(&self) -> Option<FlowLabel> {
        self.deadlines.front().map(|(_, label)| *label)
    }

    fn next_overdue(&self, now: Instant) -> Option<FlowLabel> {
        self.deadlines.front().filter(|(at, _)| *at <= now).map(|(_, label)| *label)
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Has a connection wait for its header, if it comes from a balancer of the service.
    pub(super) fn awaits_header(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) -> bool {
        let networks = self.dispatcher.service(service).map(|service| &service.spec.accept_proxy_from);
        if networks.is_none_or(|networks| !networks.iter().any(|net| net.contains(tuple.remote.ip()))) {
            return false;
        }
        let deadline = self.cx.now + HEADER_TIMEOUT;
        self.prefaces.waiting.insert(label, Waiting { service, tuple, deadline });
        self.prefaces.deadlines.push_back((deadline, label));
        self.read_header(label);
        true
    }

    /// Reads the header of a connection that waits for it. A client of another family than the connection
    /// stays unknown: programs and servers get the balancer's address.
    pub(super) fn read_header(&mut self, label: FlowLabel) {
        let Some(Waiting { service, tuple, .. }) = self.prefaces.waiting.get(&label).copied() else { return };
        let (mut bytes, mut len) = ([0; ACCEPTED_MAX], 0);
        for part in self.cx.tcp.peek(label, ACCEPTED_MAX) {
            let room = &mut bytes[len..];
            let fits = part.len().min(room.len());
            room[..fits].copy_from_slice(&part[..fits]);
            len += fits;
        }
        let finished = self.cx.tcp.info(label).is_none_or(|info| info.state != State::Established);
        match proxy_protocol::parse(&bytes[..len]) {
            Parsed::More if !finished => {}
            // A check by the balancer: it connects, and no more.
            Parsed::More if len == 0 => {
                self.prefaces.forget(label);
                self.cx.abort_client(label);
            }
            Parsed::More | Parsed::Other => self.refuse_header(label),
            Parsed::Header { len, client } => {
                self.prefaces.forget(label);
                self.cx.tcp.consume(self.cx.now, label, len);
                let of_family = |client: &SocketAddr| client.is_ipv4() == tuple.local.is_ipv4();
                let client = client.map(|client| match tuple.local {
                    // Balancers of both families name clients of IPv4 by addresses of IPv6.
                    SocketAddr::V4(_) => SocketAddr::new(client.ip().to_canonical(), client.port()),
                    SocketAddr::V6(_) => client,
                });
                let client = client.filter(of_family);
                let remote = client.unwrap_or(tuple.remote);
                self.client_begins(label, service, FourTuple { remote, ..tuple });
                if finished && self.cx.tls.peer_finished(label) {
                    self.session_changed(label);
                } else if finished {
                    if let Some(flow) = self.cx.flows.get_mut(label) {
                        flow.client_finished = true;
                    }
                    self.cx.flows.ends(label, End::ClosedByClient);
                }
            }
        }
    }

    /// Gives connections up whose header has not arrived in time.
    pub(super) fn end_overdue_prefaces(&mut self) {
        while let Some(label) = self.prefaces.next_overdue(self.cx.now) {
            self.refuse_header(label);
        }
    }

    /// Resets the connection that has waited longest for its header; `false` if none waits.
    pub(super) fn oldest_preface_gives_way(&mut self) -> bool {
        let oldest = self.prefaces.oldest();
        oldest.into_iter().for_each(|label| self.refuse_header(label));
        oldest.is_some()
    }

    fn refuse_header(&mut self, label: FlowLabel) {
        if let Some(Waiting { service, tuple, .. }) = self.prefaces.waiting.get(&label).copied() {
            self.cx.recorder.log.refused(self.cx.now, (label, tuple, service), End::Protocol);
            self.cx.recorder.services.refused(self.dispatcher.counted(service), End::Protocol);
        }
        self.prefaces.forget(label);
        self.cx.recorder.counters.proxy_headers_refused += 1;
        self.cx.abort_client(label);
    }
}
