//! Active checks of plain servers: a connection now and then that no client has asked for.
//!
//! ```text
//!          due              SYN/ACK           answer
//!  member ─────▶ Checking ─────────▶ asked ───────────▶ passed: `rise` in a row put the server into use
//!                    │ refused, late    │ late, another answer ▶ failed: `fall` in a row put it out of use
//! ```
//! Each worker checks for itself, from the egress address by which it connects for clients. Only the status
//! of an answer counts, or that it is the start of TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use csp_tls::ClientTls;
use csp_types::{Duration, FlowLabel, Instant};
use csp_wire::tls::{self, Answer};

use crate::context::Turn;
use crate::dispatch::pool::{Member, MemberId, ServerId};
use crate::events::{NO_SERVICE, new_flow};
use crate::flow::Stage;
use crate::service::local::LocalServices;
use crate::{ProxyOutput, reason};

use super::ProxyHeader;

/// Length of the part of a response that has the status: `HTTP/1.1 200`.
const STATUS_LEN: usize = 12;
/// Memory for a check's request, in bytes.
const REQUEST_MAX: u32 = 8 * 1024;
/// Bytes of an answer that are read.
const ANSWER_MAX: u64 = 64 * 1024;
/// Largest number of checks that are begun in one turn; others follow in the next.
const BEGIN_MAX: usize = 16;

/// How a plain server is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckSpec {
    /// Time between two checks; varied by an eighth in either direction.
    pub interval: Duration,
    /// Time for a check.
    pub timeout: Duration,
    /// Checks in a row that must pass to put a server into use.
    pub rise: u8,
    /// Checks in a row that must fail to put it out of use.
    pub fall: u8,
    /// The port that is asked; `None`: the server's.
    pub port: Option<u16>,
    /// The header that the server expects.
    pub header: Option<ProxyHeader>,
    /// What is asked; `None`: the connection is enough.
    pub question: Option<Question>,
    /// TLS in which it is asked; without a question the handshake is enough.
    pub tls: Option<ClientTls>,
}

/// What a server is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// A request over HTTP/1.1.
    Http(HttpCheck),
    /// This ClientHello, which passes if a ServerHello is the answer.
    Tls(Arc<[u8]>),
}

/// A request over HTTP/1.1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpCheck {
    /// Its bytes.
    pub request: Arc<[u8]>,
    /// The statuses by which the check passes.
    pub status: RangeInclusive<u16>,
}

/// The checks of a worker.
#[derive(Debug)]
pub(crate) struct Checks {
    specs: BTreeMap<MemberId, Arc<CheckSpec>>,
    due: BTreeSet<(Instant, MemberId)>,
    random: u64,
}

impl Checks {
    /// Creates the list of a worker. Workers and proxies with different seeds check at different times.
    pub(super) fn new(seed: u32) -> Self {
        Checks { specs: BTreeMap::new(), due: BTreeSet::new(), random: seed.into() }
    }

    /// Replaces what is checked by that of a new policy. New members, and those with another check, are
    /// checked within their interval, not all at once.
    pub(super) fn set(&mut self, now: Instant, specs: BTreeMap<MemberId, Arc<CheckSpec>>) {
        self.due
            .retain(|(_, member)| specs.get(member).is_some_and(|spec| self.specs.get(member) == Some(spec)));
        let planned: BTreeSet<MemberId> = self.due.iter().map(|(_, member)| *member).collect();
        for (member, spec) in specs.iter().filter(|(member, _)| !planned.contains(*member)) {
            let wait = spec.interval.mul_f64(self.fraction());
            self.due.insert((now + wait, *member));
        }
        self.specs = specs;
    }

    /// Returns when the next check begins.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the next member whose check is due, and plans the one after it.
    fn next_due(&mut self, now: Instant) -> Option<(MemberId, Arc<CheckSpec>)> {
        let (_, member) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let spec = self.spec(member)?;
        let varied = spec.interval.mul_f64(0.875 + self.fraction() / 4.0);
        self.due.insert((now + varied, member));
        Some((member, spec))
    }

    fn spec(&self, member: MemberId) -> Option<Arc<CheckSpec>> {
        self.specs.get(&member).cloned()
    }

    /// Returns a number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 40) as f64 / (1u64 << 24) as f64
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Checks the plain servers of the services that ask for it.
    pub(crate) fn set_checks(&mut self) {
        let checks = self.dispatcher.set_checks();
        self.calls.checks.set(self.cx.now, checks);
    }

    /// Begins the checks that are due.
    pub(super) fn run_checks(&mut self) {
        for _ in 0..BEGIN_MAX {
            let Some((member, spec)) = self.calls.checks.next_due(self.cx.now) else { return };
            if self.begin_check(member, &spec).is_none() {
                self.cx.recorder.counters.calls_unsent += 1;
            }
        }
    }

    /// Opens the connection of a check; `None` if that is not possible now, which says nothing of the server.
    fn begin_check(&mut self, member: MemberId, spec: &CheckSpec) -> Option<()> {
        let now = self.cx.now;
        let known = self.dispatcher.pools().get(member)?;
        let (mut address, server) = (known.plain_address()?, known.id(member));
        address.set_port(spec.port.unwrap_or(address.port()));
        self.egress.reaches(&*self.cx.out, address).ok()?;
        let window = self.pump.reserve()?; // no client gives way to a check
        let window = self.pump.limit(window, REQUEST_MAX);
        let opened =
            self.egress.open(&mut self.cx, address).inspect_err(|_| self.pump.release(window)).ok()?;
        self.cx.tcp.set_send_capacity(opened.0, window);
        self.admit(new_flow(now, opened, NO_SERVICE, Stage::Checking(server), window));
        self.calls.add(now + spec.timeout, opened.0);
        self.cx.recorder.counters.checks += 1;
        Some(())
    }

    /// The connection of a check was opened again, from another port.
    pub(crate) fn checked_anew(&mut self, label: FlowLabel, server: ServerId) {
        if let Some(spec) = self.calls.checks.spec(server.member) {
            self.calls.add(self.cx.now + spec.timeout, label);
        }
    }

    /// Processes the establishment of a check's connection.
    pub(crate) fn check_connected(&mut self, label: FlowLabel, server: ServerId) {
        let (now, spec) = (self.cx.now, self.calls.checks.spec(server.member));
        let header = spec.as_ref().and_then(|spec| spec.header);
        if let Some(header) = header {
            self.cx.tcp.write(now, label, &header.local());
        }
        if let Some(tls) = spec.as_ref().and_then(|spec| spec.tls.as_ref()) {
            return self.secure_server(label, tls);
        }
        match spec.as_ref().and_then(|spec| spec.question.as_ref()) {
            Some(Question::Http(http)) => _ = self.cx.tcp.write(now, label, &http.request),
            Some(Question::Tls(hello)) => _ = self.cx.tcp.write(now, label, hello),
            None if header.is_some() => {
                self.check_result(server, Ok(()));
                self.cx.tcp.shutdown(now, label);
                if let Some(flow) = self.cx.flows.get_mut(label) {
                    flow.app_finished = true;
                }
            }
            // The SYN/ACK was the answer: the server's program need not accept.
            None => {
                self.check_result(server, Ok(()));
                self.cx.abort_client(label);
                self.remove_flow(label);
            }
        }
    }

    /// Processes the end of a check's handshake: asks, or ends the session.
    pub(super) fn check_ready(&mut self, label: FlowLabel, server: ServerId) {
        let spec = self.calls.checks.spec(server.member);
        match spec.as_ref().and_then(|spec| spec.question.as_ref()) {
            Some(Question::Http(http)) => {
                if let Some(secured) = self.cx.tls.get_mut(label) {
                    secured.session.write(&http.request);
                }
            }
            // The server ends its stream, or the time for the check ends the connection.
            _ => {
                self.check_result(server, Ok(()));
                self.cx.shutdown_stream(label);
                if let Some(flow) = self.cx.flows.get_mut(label) {
                    flow.app_finished = true;
                }
            }
        }
    }

    /// Reads the answer to a check, as far as it has arrived. The rest, up to [`ANSWER_MAX`], is read until
    /// the server ends the connection or the time is over: a server should not see a reset for an answer.
    pub(crate) fn read_check(&mut self, label: FlowLabel, server: ServerId) {
        let Some(flow) = self.cx.flows.get(label) else { return };
        if self.cx.tls.get(label).is_some_and(|secured| secured.begins.is_some()) {
            return; // nothing is asked before the end of the handshake
        }
        let (finished, has_result) = (flow.client_finished, flow.app_finished);
        if !has_result {
            let Some(result) = self.result_of(label, server, finished) else { return };
            self.check_result(server, result);
        }
        let read = self.discard_answer(label);
        let spec = self.calls.checks.spec(server.member);
        let is_tls = spec.is_some_and(|spec| matches!(spec.question, Some(Question::Tls(_))));
        let Some(flow) = self.cx.flows.get_mut(label) else { return };
        (flow.app_finished, flow.bytes_from_app) = (true, flow.bytes_from_app + read as u64);
        // A server would wait for the rest of the handshake.
        if finished || is_tls {
            self.cx.close_stream(label);
            self.leave_to_engine(label);
        } else if flow.bytes_from_app > ANSWER_MAX {
            self.cx.abort_client(label);
            self.remove_flow(label);
        }
    }

    /// Discards what has arrived of an answer; returns its length.
    fn discard_answer(&mut self, label: FlowLabel) -> usize {
        let (now, tcp) = (self.cx.now, &mut *self.cx.tcp);
        let Some(secured) = self.cx.tls.get_mut(label) else { return tcp.consume(now, label, usize::MAX) };
        let mut read = 0;
        while secured.session.readable() > 0 {
            read += secured.session.readable();
            secured.session.consume(usize::MAX);
            secured.advance(tcp, now);
        }
        if read > 0 {
            self.cx.tls.settle_later(label);
        }
        read
    }

    /// Returns what the first bytes of an answer say; `None` if they have not arrived.
    fn result_of(&mut self, label: FlowLabel, server: ServerId, finished: bool) -> Option<Result<(), u32>> {
        let (mut start, mut len) = ([0; STATUS_LEN], 0);
        let of_session = self.cx.tls.get(label).map(|secured| secured.session.plaintext());
        let of_engine = of_session.is_none().then(|| self.cx.tcp.peek(label, STATUS_LEN));
        for byte in of_engine.into_iter().flatten().chain(of_session).flatten().take(STATUS_LEN) {
            start[len] = *byte;
            len += 1;
        }
        let start = &start[..len];
        let spec = self.calls.checks.spec(server.member);
        let passes = match spec.as_ref().and_then(|spec| spec.question.as_ref()) {
            None => true,
            Some(Question::Http(_)) if len < STATUS_LEN && !finished => return None,
            Some(Question::Http(http)) => status(start).is_some_and(|status| http.status.contains(&status)),
            Some(Question::Tls(_)) if tls::answer(start) == Answer::More && !finished => return None,
            Some(Question::Tls(_)) => tls::answer(start) == Answer::Hello,
        };
        Some(if passes { Ok(()) } else { Err(reason::INVALID) })
    }

    /// Ends a check whose connection no longer exists: it has failed, unless its result is known.
    pub(crate) fn check_failed(&mut self, label: FlowLabel, server: ServerId, code: u32) {
        let has_result = self.cx.flows.get(label).is_some_and(|flow| flow.app_finished);
        self.count_handshake(label, code);
        self.remove_flow(label);
        if !has_result {
            self.check_result(server, Err(code));
        }
    }

    fn check_result(&mut self, server: ServerId, result: Result<(), u32>) {
        self.cx.recorder.counters.checks_failed += u64::from(result.is_err());
        let same = |known: &Member| known.id(server.member) == server;
        if self.dispatcher.pools().get(server.member).is_some_and(same) {
            self.dispatcher.checked(self.cx.now, server.member, result);
        }
    }
}

/// Returns the status of an HTTP response's first bytes.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let digits = rest.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
