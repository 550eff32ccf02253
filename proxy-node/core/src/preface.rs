//! Connections whose first bytes are read before it is decided who serves them.
//!
//! ```text
//!  Connected ─▶ header of a balancer ─▶ ClientHello ─▶ TLS, local service, relay
//!                (PROXY protocol)        (SNI)
//! ```
//! Connections of balancers in front begin with a header of the PROXY protocol: they wait here until it has
//! arrived, and go on as connections of the client that it names. Those of a service that passes TLS on by
//! the server's name wait until the name has arrived ([`hello`]).

mod first_bytes;
mod hello;

use std::net::SocketAddr;

use csp_tcp::State;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};
use csp_wire::proxy_protocol::{self, ACCEPTED_MAX, Parsed};

use super::ProxyOutput;
use super::connection_log::End;
use super::context::Turn;
use super::service::local::LocalServices;

use first_bytes::{FirstBytes, Waiting};
use hello::Hellos;

/// How long a header may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections whose first bytes are awaited. The TCP engine bounds their number.
#[derive(Debug, Default)]
pub(crate) struct Prefaces {
    /// The balancer's address is the remote end of these.
    headers: FirstBytes<()>,
    hellos: Hellos,
}

impl Prefaces {
    /// Returns when the next connection is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.headers.deadline(), self.hellos.waiting.deadline()].into_iter().flatten().min()
    }

    /// Returns how many connections wait.
    pub(crate) fn len(&self) -> usize {
        self.headers.len() + self.hellos.waiting.len()
    }

    /// Returns whether a connection waits here.
    #[inline]
    pub(crate) fn has(&self, label: FlowLabel) -> bool {
        self.headers.has(label) || self.hellos.waiting.has(label)
    }

    /// Forgets a connection that has ended.
    #[inline]
    pub(crate) fn forget(&mut self, label: FlowLabel) {
        self.headers.remove(label);
        self.hellos.waiting.remove(label);
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Reads on where a connection waits for its first bytes.
    pub(super) fn read_preface(&mut self, label: FlowLabel) {
        match self.prefaces.headers.has(label) {
            true => self.read_header(label),
            false => self.read_hello(label),
        }
    }

    /// Has a connection wait for its header, if it comes from a balancer of the service.
    pub(super) fn awaits_header(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) -> bool {
        let networks = self.dispatcher.service(service).map(|service| &service.spec.accept_proxy_from);
        if networks.is_none_or(|networks| !networks.iter().any(|net| net.contains(tuple.remote.ip()))) {
            return false;
        }
        let deadline = self.cx.now + HEADER_TIMEOUT;
        self.prefaces.headers.begin(label, (service, tuple), deadline, ());
        self.read_header(label);
        true
    }

    /// Reads the header of a connection that waits for it. A client of another family than the connection
    /// stays unknown: programs and servers get the balancer's address.
    fn read_header(&mut self, label: FlowLabel) {
        let Some(Waiting { service, tuple, .. }) = self.prefaces.headers.get_mut(label).copied() else {
            return;
        };
        let (mut bytes, mut len) = ([0; ACCEPTED_MAX], 0);
        for part in self.cx.tcp.peek(label, ACCEPTED_MAX) {
            let room = &mut bytes[len..];
            let fits = part.len().min(room.len());
            room[..fits].copy_from_slice(&part[..fits]);
            len += fits;
        }
        let finished = self.has_finished(label);
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
                self.finished_before(label, finished);
            }
        }
    }

    /// Returns whether a client's stream has ended.
    fn has_finished(&self, label: FlowLabel) -> bool {
        self.cx.tcp.info(label).is_none_or(|info| info.state != State::Established)
    }

    /// Passes on that a client's stream ended while its first bytes were read.
    fn finished_before(&mut self, label: FlowLabel, finished: bool) {
        if finished && self.cx.tls.peer_finished(label) {
            self.session_changed(label);
        } else if finished {
            if let Some(flow) = self.cx.flows.get_mut(label) {
                flow.client_finished = true;
            }
            self.cx.flows.ends(label, End::ClosedByClient);
        }
    }

    /// Gives connections up whose first bytes have not arrived in time.
    pub(super) fn end_overdue_prefaces(&mut self) {
        while let Some(label) = self.prefaces.headers.next_overdue(self.cx.now) {
            self.refuse_header(label);
        }
        while let Some(label) = self.prefaces.hellos.waiting.next_overdue(self.cx.now) {
            self.refuse_hello(label, End::Handshake);
        }
    }

    /// Resets the connection that has waited longest for its first bytes; `false` if none waits.
    pub(super) fn oldest_preface_gives_way(&mut self) -> bool {
        if let Some(label) = self.prefaces.headers.oldest() {
            self.refuse_header(label);
            return true;
        }
        self.oldest_hello_gives_way()
    }

    fn refuse_header(&mut self, label: FlowLabel) {
        if let Some(Waiting { service, tuple, .. }) = self.prefaces.headers.remove(label) {
            self.cx.recorder.log.refused(self.cx.now, (label, tuple, service), End::Protocol);
            self.cx.recorder.services.refused(self.dispatcher.counted(service), End::Protocol);
        }
        self.cx.recorder.counters.proxy_headers_refused += 1;
        self.cx.abort_client(label);
    }
}
