//! TLS towards plain servers.
//!
//! ```text
//!  SYN/ACK ─▶ Called, handshake ── established ─▶ Joined, Behind ── as of any connection with a session
//!  Checking     └─ failed, late ─▶ as if the server had refused the connection
//! ```
//! The session stands where a client's stands, between the TCP engine and the connection's flow: it begins
//! when the connection is established, after a header of the PROXY protocol. The time for the connection is
//! that for the handshake, too.

use csp_tls::{ClientTls, Failure, FailureClass, Session};
use csp_types::{FlowLabel, Instant, TraceKind};

use crate::context::Turn;
use crate::dispatch::pool::MemberId;
use crate::dispatch::services::Service;
use crate::flow::{Joint, Stage};
use crate::service::local::LocalServices;
use crate::tls::Begins;
use crate::{ProxyOutput, ServerOptions, reason};

impl Service {
    /// Records how its plain servers are reached from now on.
    pub(crate) fn note_reached(&mut self, now: Instant, options: &ServerOptions) {
        let before = &self.spec.servers;
        let same = match (&before.tls, &options.tls) {
            (None, None) => true,
            (Some(before), Some(tls)) => tls.keeps(before),
            _ => false,
        };
        if !same || before.header != options.header {
            self.reached_since = now;
        }
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Calls for a client again: since the call the policy reaches the servers of its service in another way,
    /// so that this one, which was chosen before, may be another's or speak otherwise.
    pub(super) fn call_outdated(&mut self, server: FlowLabel, client: FlowLabel, member: MemberId) {
        self.cx.abort_client(server);
        self.remove_flow(server);
        self.cx.flows.set_stage(self.cx.now, client, Stage::Pending);
        self.dispatcher.release_plain((member, true));
        self.dispatcher.dispatch(&mut self.cx, client);
    }

    /// Begins the handshake with a server whose connection is established.
    pub(super) fn secure_server(&mut self, server: FlowLabel, tls: &ClientTls) {
        let Some(address) = self.cx.tcp.info(server).map(|info| info.tuple.remote) else { return };
        let Some(flow) = self.cx.flows.get_mut(server) else { return };
        flow.secured = true;
        let window = flow.from_app_window;
        match Session::towards(tls, address) {
            Some(session) => {
                self.cx.tls.begin(server, session, Begins::Server, window);
                self.cx.tls.flush_later(server);
            }
            None => self.refuse_server(server, reason::of_tls(FailureClass::Protocol)),
        }
    }

    /// Continues the handshake with a server.
    pub(crate) fn advance_server(&mut self, label: FlowLabel) {
        let (now, tcp) = (self.cx.now, &mut *self.cx.tcp);
        let Some(secured) = self.cx.tls.get_mut(label) else { return };
        secured.advance(tcp, now);
        if let Some(class) = secured.session.failure().map(Failure::class)
            && !secured.session.is_established()
        {
            return self.refuse_server(label, reason::of_tls(class));
        }
        if secured.session.is_established() {
            secured.begins = None;
            let counters = &mut self.cx.recorder.counters;
            counters.tls_server_handshakes += 1;
            counters.tls_server_resumed += u64::from(secured.session.is_resumed());
            match self.cx.flows.get(label).map(|flow| flow.stage) {
                Some(Stage::Called(client)) => self.server_ready(label, client),
                Some(Stage::Checking(server)) => self.check_ready(label, server),
                _ => {}
            }
            self.session_changed(label); // more may have come with the end of the handshake
        }
        self.cx.tls.flush_later(label);
    }

    /// Ends a handshake with a server. The alert, if there is one, precedes the reset.
    fn refuse_server(&mut self, label: FlowLabel, code: u32) {
        self.flush_session(label);
        let stage = self.cx.flows.get(label).map(|flow| flow.stage);
        self.cx.tcp.reset(self.cx.now, label);
        match stage {
            Some(Stage::Called(client)) => self.call_failed(label, client, code),
            Some(Stage::Checking(server)) => self.check_failed(label, server, code),
            _ => self.remove_flow(label),
        }
    }

    /// Returns why the handshake with a server has failed whose connection has, for the reason with this
    /// code, while bytes are unread: an alert may be among them. `None` if it is in none.
    pub(crate) fn broken_handshake(&mut self, label: FlowLabel, code: u32) -> Option<u32> {
        let (now, tcp) = (self.cx.now, &mut *self.cx.tcp);
        let secured = self.cx.tls.get_mut(label)?;
        matches!(secured.begins, Some(Begins::Server)).then_some(())?;
        secured.advance(tcp, now);
        Some(secured.session.failure().map_or(code, |failure| reason::of_tls(failure.class())))
    }

    /// Counts that the connection to a server has failed for the reason with this code, if it is in the
    /// handshake.
    pub(super) fn count_handshake(&mut self, label: FlowLabel, code: u32) {
        let secured = self.cx.tls.get(label);
        if !secured.is_some_and(|secured| matches!(secured.begins, Some(Begins::Server))) {
            return;
        }
        let counters = &mut self.cx.recorder.counters;
        match code {
            reason::TIMED_OUT => counters.tls_server_late += 1,
            _ => {
                let class = reason::tls_class(code).unwrap_or(FailureClass::Truncated);
                counters.tls_server_failed[class.index()] += 1;
            }
        }
    }

    /// Serves a client by the connection to a plain server, which is established, with its session if it has
    /// one.
    pub(super) fn server_ready(&mut self, server: FlowLabel, client: FlowLabel) {
        let Some(Stage::Calling(call)) = self.cx.flows.get(client).map(|flow| flow.stage) else { return };
        let now = self.cx.now;
        self.dispatcher.plain_up(now, call.member);
        if self.cx.upstreams.is_of(client) {
            return self.upstream_called(client, server, call.member);
        }
        let joint = Joint { peer: server, member: Some(call.member) };
        self.cx.flows.set_stage(now, client, Stage::Joined(joint));
        self.cx.flows.set_stage(now, server, Stage::Joined(Joint { peer: client, member: None }));
        self.cx.recorder.log.opened(now, client, call.member, "");
        self.cx.record(client, TraceKind::OpenSent, 0);
        self.pump.enqueue(self.cx.flows, client);
    }
}
