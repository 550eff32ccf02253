//! TLS of clients' connections, and of those to plain servers, between the TCP engine and the services.
//!
//! ```text
//!  Connected ─▶ handshake ── established ─▶ the flow begins, as any other ── shutdown, close ─▶ close_notify, FIN
//!                   └─ failed, late ─▶ alert, reset
//! ```
//! This part owns the sessions. A service reads and writes plaintext by a [`TlsEnd`](crate::service::TlsEnd);
//! what is written in a turn is encrypted at its end, into as much room as the connection has. A connection
//! whose stream ends without close_notify fails, since bytes may be missing (RFC 8446 §6.1).

mod elsewhere;
mod sessions;
mod sources;

use csp_tls::{Failure, Session};
use csp_types::{Duration, FlowLabel, FourTuple};

use super::connection_log::{End, TlsNote};
use super::context::{Context, Turn};
use super::flow::{Joint, Stage};
use super::service::local::LocalServices;
use super::{ProxyOutput, reason};

pub use elsewhere::{HANDSHAKES_AWAY_MAX, HandshakeStep};
use sessions::{Arrival, Ending};
pub(crate) use sessions::{Begins, Sessions};

/// How long a handshake may take, and a client to end its stream after its server has closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a handshake is safe from giving way to other connections.
const HANDSHAKE_MIN: Duration = Duration::from_secs(1);
/// Window of a connection during its handshake: the longest chains of certificates fit.
const HANDSHAKE_WINDOW: u32 = 16 * 1024;
/// Longest reason of a failed handshake in the log, in bytes.
const FAULT_LEN_MAX: usize = 200;
/// Handshakes that are continued in one pass.
const HANDSHAKES_PER_PASS: usize = 16;

impl<O> Context<'_, O> {
    /// Ends the stream of a TCP connection after the written bytes.
    pub(crate) fn shutdown_stream(&mut self, label: FlowLabel) {
        if self.tls.len().0 == 0 || !self.tls.end(label, Ending::Finish) {
            self.tcp.shutdown(self.now, label);
        }
    }

    /// Closes a TCP connection: written bytes are delivered, then FIN.
    pub(crate) fn close_stream(&mut self, label: FlowLabel) {
        if self.tls.len().0 == 0 || !self.tls.end(label, Ending::Close) {
            self.tcp.close(self.now, label);
        }
    }

    /// Resets a TCP connection after the written bytes; `false` if it no longer exists.
    pub(crate) fn reset_stream(&mut self, label: FlowLabel) -> bool {
        if self.tls.len().0 == 0 || !self.tls.end(label, Ending::Reset) {
            return self.tcp.reset(self.now, label);
        }
        true
    }

    /// Has a session process what has arrived, and passes the end of its client's stream on to the flow.
    /// Returns whether the session has failed.
    pub(crate) fn advance_session(&mut self, label: FlowLabel) -> bool {
        let Some(secured) = self.tls.get_mut(label) else { return false };
        secured.advance(self.tcp, self.now);
        let (ended, failed) = (secured.session.is_closed_by_peer(), secured.session.failure().is_some());
        if ended && self.flows.get(label).is_some_and(|flow| !flow.client_finished) {
            self.stream_ended(label);
        }
        failed
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Begins the handshake of a client's connection, if its service is one with TLS.
    pub(super) fn begin_handshake(
        &mut self,
        label: FlowLabel,
        service: u32,
        tuple: FourTuple,
        window: u32,
    ) -> bool {
        let tls = self.dispatcher.service(service).and_then(|service| service.spec.tls.as_ref());
        let Some(tls) = tls.cloned() else { return false };
        if !self.may_begin_handshake(service, &tuple) {
            self.pump.release(window);
            self.handshake_not_admitted(label, service, tuple);
            return true;
        }
        let Some(mut session) = Session::new(&tls) else {
            self.pump.release(window);
            self.cx.abort_client(label);
            return true;
        };
        self.cx.tls.put_off_dear_steps(&mut session);
        let window = self.pump.limit(window, HANDSHAKE_WINDOW);
        self.cx.tcp.set_send_capacity(label, window);
        let arrival = Arrival { service, tuple, deadline: self.cx.now + HANDSHAKE_TIMEOUT };
        self.cx.tls.begin(label, session, Begins::Client(arrival), window);
        self.cx.tls.advance_later(label);
        true
    }

    /// Returns whether a client's source may begin a handshake, and counts it.
    fn may_begin_handshake(&mut self, service: u32, tuple: &FourTuple) -> bool {
        let spec = self.dispatcher.service(service).map(|service| &service.spec);
        let rate = spec.map_or(0, |spec| spec.handshakes_per_source);
        rate == 0 || self.cx.tls.sources.admits(self.cx.now, service, tuple.remote.ip(), rate)
    }

    /// Resets a connection whose source has begun too many handshakes.
    fn handshake_not_admitted(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) {
        self.cx.recorder.log.refused_because(self.cx.now, (label, tuple, service), End::Handshake, || {
            Some(TlsNote { fault: "too many handshakes of this source".into(), ..TlsNote::default() })
        });
        let counted = self.dispatcher.counted(service);
        self.cx.recorder.services.refused(counted, End::Handshake);
        self.cx.recorder.counters.tls_handshakes_not_admitted += 1;
        self.cx.abort_client(label);
    }

    /// Continues some of the handshakes with something to process. Returns whether others are left.
    pub(super) fn advance_handshakes(&mut self) -> bool {
        self.cx.tls.lend_a_hand(self.cx.now);
        for _ in 0..HANDSHAKES_PER_PASS {
            let Some(label) = self.cx.tls.next_to_advance() else { return false };
            self.advance_handshake(label);
        }
        self.cx.tls.has_to_advance()
    }

    fn advance_handshake(&mut self, label: FlowLabel) {
        match self.cx.tls.get_mut(label).map(|secured| secured.begins) {
            Some(Some(Begins::Client(_))) => {}
            Some(Some(Begins::Server)) => return self.advance_server(label),
            Some(None) => return self.session_changed(label), // it has ended, or failed
            None => return,
        }
        let failed = self.cx.advance_session(label);
        self.cx.tls.flush_later(label);
        if self.cx.tls.is_put_off(label) {
            return; // it is looked at again when it is back
        }
        let Some(secured) = self.cx.tls.get_mut(label) else { return };
        let Some(begins) = secured.arrival().copied() else { return };
        if failed {
            return self.refuse_handshake(label, End::Handshake);
        }
        if !secured.session.is_established() {
            return;
        }
        if self.dispatcher.service(begins.service).is_none() {
            // The policy removed the service during the handshake.
            return self.refuse_handshake(label, End::Proxy);
        }
        // It may itself give way to the reservation.
        self.pump.release(std::mem::take(&mut secured.window));
        let Some(window) = self.reserve_window() else {
            self.cx.recorder.counters.drop_no_budget += 1;
            return self.refuse_handshake(label, End::NoMemory);
        };
        let Some(secured) = self.cx.tls.get_mut(label) else { return self.pump.release(window) };
        (secured.begins, secured.window) = (None, window);
        self.cx.tcp.set_send_capacity(label, window);
        self.cx.tls.handshakes -= 1;
        self.cx.tls.prune();
        self.cx.recorder.counters.tls_handshakes += 1;
        self.serve_client(label, begins.service, begins.tuple, window);
        self.cx.advance_session(label);
    }

    /// Processes changes at the connection of a session: bytes, room, the end of the stream.
    pub(super) fn session_changed(&mut self, label: FlowLabel) {
        if self.cx.tls.get(label).is_some_and(|secured| secured.begins.is_some()) {
            return self.cx.tls.advance_later(label);
        }
        let failed = self.cx.advance_session(label);
        self.cx.tls.flush_later(label);
        if self.cx.tls.get(label).is_some_and(|secured| secured.lingers.is_some()) {
            return self.linger(label);
        }
        match failed {
            true => self.session_failed(label),
            false => self.pump.enqueue(self.cx.flows, label),
        }
    }

    /// Ends a flow whose session has failed; all of its client's bytes were read by then.
    pub(super) fn session_failed(&mut self, label: FlowLabel) {
        let Some(secured) = self.cx.tls.get_mut(label) else { return };
        let truncated = secured.session.failure() == Some(&Failure::Truncated);
        let class = secured.session.failure().map(Failure::class);
        let (end, code) = match truncated {
            true => (End::ClientReset, reason::CONNECTION_RESET),
            false => (End::Protocol, reason::INVALID),
        };
        match self.cx.flows.get(label).map(|flow| flow.stage) {
            // Nobody reads what is missing.
            None | Some(Stage::Finishing) => return,
            Some(Stage::Checking(server)) => {
                self.cx.abort_client(label);
                return self.check_failed(label, server, class.map_or(code, reason::of_tls));
            }
            Some(Stage::Joined(Joint { peer, member: None })) => self.cx.flows.ends(peer, End::ServerReset),
            Some(_) => self.cx.flows.ends(label, end),
        }
        self.cx.recorder.counters.tls_sessions_failed += 1;
        self.notify_failure(label, code);
        self.abandon(label);
    }

    /// Encrypts and writes what sessions have, and ends the connections that end after it.
    pub(super) fn flush_sessions(&mut self) {
        while let Some(label) = self.cx.tls.to_flush.pop_front() {
            self.flush_session(label);
        }
    }

    pub(super) fn flush_session(&mut self, label: FlowLabel) {
        let Context { now, tcp, tls, .. } = &mut self.cx;
        let mut scratch = std::mem::take(&mut tls.scratch);
        let ending = tls.get_mut(label).and_then(|secured| {
            secured.flushing = false;
            secured.flush(tcp, *now, &mut scratch)
        });
        tls.scratch = scratch;
        if tls.has_failed(label) {
            self.pump.settle_later(label); // by the last record that its keys permit
        }
        match ending {
            None => {}
            Some(Ending::Finish) => tcp.shutdown(*now, label),
            Some(Ending::Close) => self.begin_to_linger(label),
            Some(Ending::Reset) if tcp.reset(*now, label) => {}
            Some(Ending::Reset) => self.remove_flow(label),
        }
    }

    /// Ends a connection that its server has closed, but for the end of the client's stream.
    fn begin_to_linger(&mut self, label: FlowLabel) {
        let Context { now, tcp, tls, .. } = &mut self.cx;
        tcp.shutdown(*now, label);
        if let Some(secured) = tls.get_mut(label) {
            let until = *now + HANDSHAKE_TIMEOUT;
            secured.lingers = Some(until);
            tls.deadlines.push_back((until, label));
        }
        self.linger(label);
    }

    /// Closes a connection when its client's stream has ended. What else the client sends has no reader, and
    /// resets it (RFC 9293 §3.6.1).
    fn linger(&mut self, label: FlowLabel) {
        let Context { now, tcp, tls, .. } = &mut self.cx;
        let Some(secured) = tls.get_mut(label) else { return };
        let is_broken = matches!(
            secured.session.failure(),
            Some(Failure::Protocol(_) | Failure::KeysUsedUp | Failure::Unnamed | Failure::NoProtocol)
        );
        let is_unread = secured.session.readable() > 0 || is_broken;
        if !is_unread && !secured.session.is_closed_by_peer() && !secured.peer_finished {
            return;
        }
        secured.lingers = None;
        tls.prune();
        match is_unread {
            false => tcp.close(*now, label),
            true if !tcp.reset(*now, label) => self.remove_flow(label),
            true => {}
        }
    }

    /// Gives up handshakes that take too long, and connections whose clients do not end their stream.
    pub(super) fn end_overdue_handshakes(&mut self) {
        while let Some(label) = self.cx.tls.next_overdue(self.cx.now) {
            let lingers = self.cx.tls.get_mut(label).and_then(|secured| secured.lingers.take());
            match lingers {
                None => self.refuse_handshake(label, End::Handshake),
                Some(_) => self.cx.tcp.close(self.cx.now, label),
            }
            self.cx.tls.prune();
        }
    }

    /// Ends the handshake that has taken longest, or a connection that lingers; `false` if none has for a
    /// second.
    pub(super) fn oldest_handshake_gives_way(&mut self) -> bool {
        let Some((until, label)) = self.cx.tls.deadlines.front().copied() else { return false };
        if until > self.cx.now + (HANDSHAKE_TIMEOUT - HANDSHAKE_MIN) {
            return false;
        }
        let lingers = self.cx.tls.get_mut(label).and_then(|secured| secured.lingers.take());
        match lingers {
            None => self.refuse_handshake(label, End::Handshake),
            Some(_) if !self.cx.tcp.reset(self.cx.now, label) => self.remove_flow(label),
            Some(_) => {}
        }
        self.cx.tls.prune();
        true
    }

    /// Ends a handshake. The alert, if there is one, precedes the reset.
    fn refuse_handshake(&mut self, label: FlowLabel, end: End) {
        self.flush_session(label);
        self.end_handshake(label, end);
        self.cx.tcp.reset(self.cx.now, label);
    }

    /// Releases what a handshake holds whose client has ended it, if the connection is in one.
    pub(super) fn forget_handshake(&mut self, label: FlowLabel) {
        if self.cx.tls.len().1 > 0 {
            self.end_handshake(label, End::Handshake);
        }
    }

    /// Notes in the log what a session says of its client.
    pub(super) fn note_session(&mut self, label: FlowLabel) {
        let Some(session) = self.cx.tls.get(label).map(|secured| &secured.session) else { return };
        let client = session.identity().map(|identity| &*identity.subject);
        self.cx.recorder.log.note(label, None, client);
    }

    fn end_handshake(&mut self, label: FlowLabel, end: End) {
        let begins = self.cx.tls.get(label).and_then(|secured| secured.arrival().copied());
        let Some(Arrival { service, tuple, .. }) = begins else { return };
        let session = self.cx.tls.get(label).map(|secured| &secured.session);
        self.cx.recorder.log.refused_because(self.cx.now, (label, tuple, service), end, || {
            let session = session?;
            let mut fault = session.failure().map(ToString::to_string).unwrap_or_default();
            fault.truncate(fault.floor_char_boundary(FAULT_LEN_MAX));
            Some(TlsNote { fault: fault.into(), ..TlsNote::default() })
        });
        if let Some(window) = self.cx.tls.release(label) {
            self.pump.release(window);
        }
        let counted = self.dispatcher.counted(service);
        self.cx.recorder.services.refused(counted, end);
        self.cx.recorder.counters.tls_handshakes_failed += 1;
    }
}
