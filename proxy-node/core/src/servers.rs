//! Plain servers: pool members that run no software of the cluster and are reached over TCP, from an egress
//! address, through a network node.
//!
//! ```text
//!  client ── Pending ─▶ Calling ──────────── SYN/ACK ─▶ Joined ◀── bytes, ends ──▶ client
//!             ▲            │ opens                        ▲ │
//!             │ next       ▼                              │ ▼
//!  server     └───────── Called ── SYN, refused, late ─▶ Joined ◀── bytes, ends ──▶ server
//! ```
//! Both connections are flows of the TCP engine, each the other's peer. Bytes are copied once, from the
//! memory for received bytes to that for bytes to send; a window closes while the other connection takes
//! nothing. The end of either stream is passed on after its bytes, and so is a reset. A client does not see
//! that a server could not be reached while another one may be. A request of a local service is called for in
//! the same way; the connection is then one behind that of the service ([`upstream`](super::upstream)).

pub(crate) mod affinity;
mod checks;
mod pass;
mod secure;

use std::collections::BTreeSet;
use std::sync::Arc;

use csp_tls::ClientTls;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};

use super::connection_log::End;
use super::context::Turn;
use super::events::{NO_SERVICE, new_flow};
use super::flow::{Call, Joint, Stage};
use super::service::local::LocalServices;
use super::service::upstream::Ended;
use super::{ProxyOutput, reason};

pub use checks::{CheckSpec, HttpCheck, Question};
pub use csp_wire::proxy_protocol::ProxyHeader;

use checks::Checks;
pub(super) use pass::{pass_plaintext, pass_to_session};

/// Connections to plain servers that are tried for one client.
const CALLS_MAX: u8 = 3;
/// How long a connection to a server that has ended its stream stays while its client moves nothing: once to
/// twice this time.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(60);

/// By what a member is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    /// The one with the fewest open connections, relative to its weight.
    #[default]
    LeastConnections,
    /// By the client's address: one client's connections go to one member as long as it can be had.
    Source,
}

/// What clients get while all members are down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllDown {
    /// They wait for a time, then they are refused.
    #[default]
    Refuse,
    /// Plain servers, as if they were up.
    Serve,
}

/// How the servers of a service are chosen, and the plain ones reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerOptions {
    /// By what one is chosen.
    pub balance: Balance,
    /// What clients get while all are down.
    pub all_down: AllDown,
    /// How long a plain server that is up again gets less than its share, which grows meanwhile.
    pub slow_start: Duration,
    /// Time for the establishment of a connection.
    pub connect_timeout: Duration,
    /// The header before the first byte, which has the client's address.
    pub header: Option<ProxyHeader>,
    /// How this worker checks them; `None`: it learns from clients' connections which can be reached.
    pub check: Option<Arc<CheckSpec>>,
    /// TLS towards the plain ones; `None`: they get plaintext.
    pub tls: Option<ClientTls>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            balance: Balance::default(),
            all_down: AllDown::default(),
            slow_start: Duration::ZERO,
            connect_timeout: Duration::from_secs(3),
            header: None,
            check: None,
            tls: None,
        }
    }
}

/// When connections to plain servers must be established, and when checks begin and must have an answer.
#[derive(Debug)]
pub(crate) struct Calls {
    deadlines: BTreeSet<(Instant, u32)>,
    checks: Checks,
}

impl Calls {
    /// Creates the lists of a worker, whose checks are at other times than those of others by `seed`.
    pub(crate) fn new(seed: u32) -> Self {
        Calls { deadlines: BTreeSet::new(), checks: Checks::new(seed) }
    }

    /// Returns when the next one must be established, which it may be already, or the next check begins.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at).into_iter().chain(self.checks.due()).min()
    }

    fn add(&mut self, at: Instant, label: FlowLabel) {
        self.deadlines.insert((at, label.to_wire()));
    }

    fn next_overdue(&mut self, now: Instant) -> Option<FlowLabel> {
        while let Some((_, label)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_first();
            if let Some(label) = FlowLabel::from_wire(label) {
                return Some(label);
            }
        }
        None
    }
}

/// Calls.
impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Opens connections to the plain servers that were chosen for clients.
    pub(super) fn call_servers(&mut self) {
        while let Some(client) = self.dispatcher.next_call() {
            let Some(Stage::Calling(call)) = self.cx.flows.get(client).map(|flow| flow.stage) else {
                continue;
            };
            if !call.server.is_none() {
                continue;
            }
            if let Err(code) = self.call_server(client, call) {
                self.call_not_sent(client, call, code);
            }
        }
    }

    /// Opens the connection for a client. The error is a code of [`reason`].
    fn call_server(&mut self, client: FlowLabel, call: Call) -> Result<(), u32> {
        let known = self.cx.flows.get(client).and_then(|flow| {
            let service = self.dispatcher.service(flow.service)?;
            Some((self.dispatcher.plain_of(flow)?, service.spec.servers.connect_timeout))
        });
        let (address, timeout) = known.ok_or(reason::NETWORK_UNREACHABLE)?;
        self.egress.reaches(&*self.cx.out, address)?;
        let window = self.reserve_window().ok_or(reason::NO_BUFFERS)?;
        if self.cx.flows.get(client).is_none_or(|flow| flow.stage != Stage::Calling(call)) {
            self.pump.release(window); // it has given way to another client
            return Ok(());
        }
        let opened = self.egress.open(&mut self.cx, address);
        let opened = opened.inspect_err(|_| self.pump.release(window))?;
        self.admit_call(client, call, (opened, window), self.cx.now + timeout);
        Ok(())
    }

    fn admit_call(
        &mut self,
        client: FlowLabel,
        call: Call,
        (opened, window): ((FlowLabel, FourTuple), u32),
        deadline: Instant,
    ) {
        let (now, server) = (self.cx.now, opened.0);
        self.cx.tcp.set_send_capacity(server, window);
        self.admit(new_flow(now, opened, NO_SERVICE, Stage::Called(client), window));
        self.cx.flows.set_stage(now, client, Stage::Calling(Call { server, ..call }));
        self.cx.recorder.counters.connections_called += 1;
        self.cx.relate(client, server);
        self.calls.add(deadline, server);
    }

    /// Processes the establishment of the connection to a plain server.
    pub(super) fn server_connected(&mut self, server: FlowLabel, client: FlowLabel) {
        let call = self.cx.flows.get(client).and_then(|flow| match flow.stage {
            Stage::Calling(call) if call.server == server => Some((flow.tuple, flow.service, call.member)),
            _ => None,
        });
        let Some((tuple, service, member)) = call else {
            self.cx.abort_client(server);
            return self.remove_flow(server);
        };
        let service = self.dispatcher.service(service);
        let began = self.cx.flows.get(server).map_or(self.cx.now, |flow| flow.began);
        if service.is_some_and(|service| began < service.reached_since) {
            return self.call_outdated(server, client, member);
        }
        let options = service.map(|service| &service.spec.servers);
        let (header, tls) = options.map_or((None, None), |options| (options.header, options.tls.clone()));
        if let Some(header) = header {
            let bytes = match self.cx.upstreams.get(client) {
                None => header.bytes(tuple.remote, tuple.local),
                Some(end) => end.header(header, tuple.remote),
            };
            self.cx.tcp.write(self.cx.now, server, &bytes);
        }
        match tls {
            None => self.server_ready(server, client),
            Some(tls) => self.secure_server(server, &tls),
        }
    }

    /// Processes the failure of a connection to a plain server before it was established. The engine's
    /// connection no longer exists.
    pub(super) fn call_failed(&mut self, server: FlowLabel, client: FlowLabel, code: u32) {
        let began = self.cx.flows.get(server).map_or(self.cx.now, |flow| flow.began);
        self.count_handshake(server, code);
        self.remove_flow(server);
        let stage = self.cx.flows.get(client).map(|flow| flow.stage);
        let Some(Stage::Calling(call)) = stage.filter(|stage| stage.calls(server)) else { return };
        self.cx.recorder.counters.calls_failed += 1;
        self.dispatcher.plain_down(self.cx.now, began, call.member, code);
        self.call_again(client, call, code);
    }

    /// Processes that a connection to a plain server could not be begun. That says nothing of the server, but
    /// the next try would fare alike: the client gets another server, or waits.
    fn call_not_sent(&mut self, client: FlowLabel, call: Call, code: u32) {
        self.cx.recorder.counters.calls_unsent += 1;
        if code == reason::NO_BUFFERS {
            return self.call_again(client, call, code);
        }
        self.dispatcher.plain_unreached(self.cx.now, call.member);
        self.cx.flows.set_stage(self.cx.now, client, Stage::Pending);
        self.dispatcher.release_plain((call.member, true));
        self.dispatcher.dispatch(&mut self.cx, client);
    }

    /// Looks for another server for a client, or resets its connection.
    fn call_again(&mut self, client: FlowLabel, call: Call, code: u32) {
        let Some(flow) = self.cx.flows.set_stage(self.cx.now, client, Stage::Pending) else { return };
        flow.calls = flow.calls.saturating_add(1);
        let calls = flow.calls;
        let server = self.dispatcher.pools().get(call.member).map(|member| member.id(call.member));
        self.dispatcher.release_plain((call.member, true));
        if calls < CALLS_MAX {
            return self.dispatcher.dispatch(&mut self.cx, client);
        }
        if self.cx.upstreams.is_of(client) {
            return self.upstream_uncalled(client, server, code);
        }
        let counters = &mut self.cx.recorder.counters;
        match code {
            reason::NO_BUFFERS => counters.drop_no_budget += 1,
            _ => counters.drop_no_server += 1,
        }
        self.cx.flows.ends(client, End::ServerUnreachable);
        self.abandon(client);
    }

    /// Records that the connection to a plain server was opened again, from another port.
    pub(super) fn called_anew(&mut self, client: FlowLabel, former: FlowLabel, server: FlowLabel) {
        let known = self.cx.flows.get_mut(client).filter(|flow| flow.stage.calls(former));
        if let Some(flow) = known
            && let Stage::Calling(call) = &mut flow.stage
        {
            call.server = server;
            let service = self.dispatcher.service(flow.service);
            let timeout = service.map(|service| service.spec.servers.connect_timeout).unwrap_or_default();
            self.calls.add(self.cx.now + timeout, server);
        }
    }

    /// Records that the connection to a plain server could not be opened from another port.
    pub(super) fn call_unsent(&mut self, client: FlowLabel, former: FlowLabel, code: u32) {
        let stage = self.cx.flows.get(client).map(|flow| flow.stage);
        if let Some(Stage::Calling(call)) = stage.filter(|stage| stage.calls(former)) {
            self.call_not_sent(client, call, code);
        }
    }

    /// Gives up connections to plain servers that are not established in time, begins checks, and tries
    /// servers again that were down.
    pub(super) fn end_overdue_calls(&mut self) {
        while let Some(server) = self.calls.next_overdue(self.cx.now) {
            match self.cx.flows.get(server).map(|flow| flow.stage) {
                Some(Stage::Called(client)) => {
                    self.cx.abort_client(server);
                    self.call_failed(server, client, reason::TIMED_OUT);
                }
                Some(Stage::Checking(member)) => {
                    self.cx.abort_client(server);
                    self.check_failed(server, member, reason::TIMED_OUT);
                }
                Some(Stage::Joined(joint)) => self.end_half_closed(server, joint.peer),
                _ => {}
            }
        }
        self.run_checks();
        self.dispatcher.retry_plain(self.cx.now);
    }
}

/// Ends.
impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes the regular end of a joined connection: its client has finished, and has acknowledged what
    /// the other connection's had finished with. What is left of that one is the engine's.
    pub(super) fn joined_closed(&mut self, label: FlowLabel) {
        let Joint { peer, member } = match self.cx.flows.get(label).map(|flow| flow.stage) {
            Some(Stage::Joined(joint)) => joint,
            Some(Stage::Behind(upstream)) => return self.upstream_ended(upstream, Ended::Closed),
            _ => return,
        };
        match self.cx.tls.has(peer) {
            false => self.cx.shutdown_stream(peer),
            true => self.cx.close_stream(peer), // a client that ends its session need not end its connection
        }
        if let Some(member) = member {
            self.dispatcher.release_plain((member, false));
        }
        self.cx.flows.set_stage(self.cx.now, label, Stage::Finishing);
        self.leave_to_engine(peer);
    }

    /// Begins to watch the connection to a server that has ended its stream: a client that never ends its own
    /// must not hold it for ever.
    pub(super) fn server_finished(&mut self, server: FlowLabel) {
        let moved = self.cx.flows.get(server).map_or(0, |flow| flow.bytes_to_app + flow.bytes_from_app);
        if let Some(flow) = self.cx.flows.get_mut(server) {
            // A joined connection has no process to credit, and no stage after this one to wait for.
            (flow.to_app_credit, flow.since) = (moved as u32, self.cx.now);
        }
        self.calls.add(self.cx.now + HALF_CLOSED_MAX, server);
    }

    /// Resets both connections if nothing has moved since the last look, after the server's stream has ended.
    fn end_half_closed(&mut self, server: FlowLabel, client: FlowLabel) {
        let Some(flow) = self.cx.flows.get(server) else { return };
        let is_watched = flow.service == NO_SERVICE && flow.client_finished && flow.shutdown_sent;
        if !is_watched || self.cx.now < flow.since + HALF_CLOSED_MAX {
            return; // the deadline of its establishment, or of a former look
        }
        if (flow.bytes_to_app + flow.bytes_from_app) as u32 != flow.to_app_credit {
            return self.server_finished(server);
        }
        self.cx.recorder.counters.half_closed_given_up += 1;
        self.cx.flows.ends(client, End::HalfClosed);
        self.abandon(client);
    }

    /// Ends the other one of two connections when one of them has left the stage in which it belonged to it.
    pub(super) fn part(&mut self, label: FlowLabel, stage: Stage) {
        match stage {
            Stage::Calling(Call { server, .. }) if self.stage_is(server, |at| at == Stage::Called(label)) => {
                self.cx.abort_client(server);
                self.remove_flow(server);
            }
            Stage::Joined(Joint { peer, .. }) if self.stage_is(peer, |at| at.is_joined_to(label)) => {
                self.reset_after_written(peer);
            }
            Stage::Behind(upstream) if self.stage_is(upstream, |at| at.is_joined_to(label)) => {
                self.upstream_ended(upstream, Ended::Reset);
            }
            _ => {}
        }
    }
}

impl<O: ProxyOutput, S> Turn<'_, O, S> {
    fn stage_is(&self, label: FlowLabel, wanted: impl Fn(Stage) -> bool) -> bool {
        self.cx.flows.get(label).is_some_and(|flow| wanted(flow.stage))
    }
}

impl Stage {
    /// Returns whether bytes pass between this connection and `label`.
    fn is_joined_to(&self, label: FlowLabel) -> bool {
        match self {
            Stage::Joined(joint) => joint.peer == label,
            Stage::Behind(upstream) => *upstream == label,
            _ => false,
        }
    }

    /// Returns whether this is a client's whose connection to a server is `label`.
    fn calls(&self, label: FlowLabel) -> bool {
        matches!(self, Stage::Calling(call) if call.server == label)
    }
}
