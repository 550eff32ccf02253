//! The life of an upstream connection: how it begins, and how it ends on either side.

use std::net::SocketAddr;

use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple};
use csp_wire::channel::{MessageHeader, MessageKind};

use super::{CLOSING_MAX, End, Report, ServiceEnds, State};
use crate::application::Verdict;
use crate::context::Turn;
use crate::dispatch::backlog::NO_SERVER_GRACE;
use crate::dispatch::pool::{Choice, MemberId};
use crate::events::new_flow;
use crate::flow::{Flow, Stage};
use crate::service::ApplicationEnd;
use crate::service::local::{LocalServices, Step};
use crate::service::upstream::{Ended, OpenError, Opened, Request, UPSTREAM_WINDOW, Upstream};
use crate::{ProxyOutput, reason};

/// Largest number of requests of local services that are processed in one pass.
const REQUESTS_PER_PASS: usize = 64;

/// Returns the addresses that a server sees of an upstream connection. `address`: that of its service;
/// `front`: the one to which the client has connected. A process sees both ends of its connections in one
/// address family, as at a socket of the kernel.
fn tuple_of(address: SocketAddr, front: SocketAddr, client: SocketAddr) -> FourTuple {
    let is_of_service = address.port() != 0 && address.is_ipv4() == client.is_ipv4();
    FourTuple { local: if is_of_service { address } else { front }, remote: client }
}

/// Requests.
impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes requests of local services. Returns whether there were any.
    pub(crate) fn serve_requests(&mut self) -> bool {
        for served in 0..REQUESTS_PER_PASS {
            match self.local.next_request() {
                Some(Request::Open(upstream)) => {
                    let token = upstream.token;
                    if let Err(error) = self.open_upstream(upstream) {
                        self.open_failed(token, error);
                    }
                }
                Some(Request::Cancel(token)) => {
                    if let Some(label) = self.cx.upstreams.cancel(token) {
                        self.notify_failure(label, reason::CONNECTION_RESET);
                        self.remove_flow(label);
                    }
                }
                None => return served > 0,
            }
        }
        true
    }

    fn open_upstream(&mut self, request: Upstream) -> Result<(), OpenError> {
        let now = self.cx.now;
        self.cx.recorder.counters.connections_upstream += 1;
        let Upstream { token, service, excluded, client, client_flow, window, deadline } = request;
        let (number, address) = self.dispatcher.service_named(&service).ok_or(OpenError::NoService)?;
        let excluded = self.dispatcher.check_members(number, &excluded)?;
        let front = self.cx.flows.get(client_flow).map_or(address, |flow| flow.tuple.local);
        let is_neutral = client.ip().is_unspecified();
        let client = if is_neutral { SocketAddr::new(front.ip(), client.port()) } else { client };
        let tuple = tuple_of(address, front, client);
        if tuple.local.is_ipv4() != tuple.remote.is_ipv4() && self.dispatcher.has_processes(number) {
            return Err(OpenError::MixedFamilies);
        }
        let grace = (!excluded.is_empty()).then(|| now + NO_SERVER_GRACE);
        let deadline = deadline.into_iter().chain(grace).min();
        let label = self.cx.upstreams.begin(token, excluded, deadline)?;
        let wanted = if window == 0 { UPSTREAM_WINDOW } else { window };
        let Some(window) = self.reserve_window() else {
            // Without a flow nothing else needs to be released, and the caller reports the error.
            self.cx.upstreams.release(self.cx.tcp, label);
            return Err(OpenError::NoRoom);
        };
        let window = self.pump.limit(window, wanted);
        if let Some(end) = self.cx.upstreams.get_mut(label).filter(|_| !is_neutral) {
            end.front = Some(front);
        }
        let arrived = self.dispatcher.next_arrival();
        self.admit(Flow { arrived, ..new_flow(now, (label, tuple), number, Stage::Pending, window) });
        self.cx.relate(client_flow, label);
        self.dispatcher.dispatch(&mut self.cx, label);
        if self.cx.flows.get(label).is_some_and(|flow| flow.stage == Stage::Pending) {
            self.local.waits(now, token, &service);
        }
        Ok(())
    }

    /// Processes ACCEPTED of an upstream connection.
    pub(crate) fn upstream_accepted(&mut self, label: FlowLabel, choice: Choice) {
        self.upstream_opened(label, choice.member);
    }

    /// Reports to its service that a request has got a connection to this member.
    pub(super) fn upstream_opened(&mut self, label: FlowLabel, member: MemberId) {
        let known = self.dispatcher.pools().get(member);
        let Some((server, address)) = known.map(|m| (m.id(member), (m.host, m.port))) else { return };
        if let Some(token) = self.cx.upstreams.accept(label) {
            self.review(label);
            self.local.opened(self.cx.now, token, Ok(Opened { label, server, address }));
        }
    }

    /// Has services look at connections whose servers get no new ones any more, so that they do not keep
    /// them.
    pub(crate) fn review_upstreams(&mut self) {
        if !self.dispatcher.take_unreviewed() {
            return;
        }
        let served: Vec<FlowLabel> = self.cx.upstreams.served().collect();
        for label in served {
            if self.review(label) {
                self.pump.enqueue(self.cx.flows, label);
            }
        }
    }

    /// Records whether the server of a connection gets new ones. Returns whether that is so no longer.
    fn review(&mut self, label: FlowLabel) -> bool {
        let unwanted = self.cx.flows.get(label).is_some_and(|flow| !self.dispatcher.is_wanted(flow));
        let end = self.cx.upstreams.get_mut(label);
        end.is_some_and(|end| !std::mem::replace(&mut end.unwanted, unwanted) && unwanted)
    }

    /// Ends a request that no process accepts. A process that was offered the connection is notified.
    pub(crate) fn fail_open(&mut self, label: FlowLabel, error: OpenError) {
        if let Some(end) = self.cx.upstreams.get_mut(label) {
            end.error = error;
        }
        self.notify_failure(label, reason::CONNECTION_RESET);
        self.remove_flow(label);
    }

    /// Ends the request of a flow whose process, by this choice, has refused it.
    pub(crate) fn open_refused(&mut self, label: FlowLabel, choice: Choice) {
        let member = self.dispatcher.pools().get(choice.member);
        let error = member.map_or(OpenError::NoServer, |m| OpenError::Refused(m.id(choice.member)));
        self.fail_open(label, error);
    }

    /// Ends upstream connections and requests whose deadline has passed.
    pub(crate) fn end_overdue_upstreams(&mut self) {
        while let Some(label) = self.cx.upstreams.next_overdue(self.cx.now) {
            match self.cx.upstreams.get(label).map(|end| end.state) {
                Some(State::Asked) => self.fail_open(label, OpenError::TimedOut),
                Some(State::Closing) => self.reset_upstream(label),
                Some(State::Served) | None => {}
            }
        }
    }

    /// Reports to its service the fate of a flow that was removed.
    pub(crate) fn report_upstream(&mut self, label: FlowLabel, report: Report) {
        match report {
            Report::Failed(token, error) => self.open_failed(token, error),
            Report::Gone(how) => self.local.upstream_gone(self.cx.now, label, how),
            Report::None => {}
        }
    }

    fn open_failed(&mut self, token: u64, error: OpenError) {
        self.cx.recorder.counters.upstream_opens_failed += 1;
        self.local.opened(self.cx.now, token, Err(error));
    }
}

/// Streams.
impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Stores bytes of a process until its service reads them.
    pub(crate) fn upstream_data(
        &mut self,
        label: FlowLabel,
        bytes: &[u8],
        buffer: Option<&Buffer>,
    ) -> Verdict {
        let cx = &mut self.cx;
        let Some(flow) = cx.flows.get_mut(label) else { return Verdict::Fine };
        let window = flow.from_app_window;
        let mut application: ApplicationEnd<'_, O> =
            ApplicationEnd { now: cx.now, flow, recorder: cx.recorder, out: cx.out };
        if !application.received(bytes.len() as u32) {
            return Verdict::Violation;
        }
        let Some(End { held, .. }) = cx.upstreams.get_mut(label).filter(|end| end.state == State::Served)
        else {
            self.reset_upstream(label); // the service has closed it: nobody will read this
            return Verdict::Fine;
        };
        if cx.tcp.hold(held, bytes, buffer, window) < bytes.len() {
            // Windows are granted only for available memory, so this is an error of the proxy. A stream with
            // missing bytes must not continue.
            application.report_loss();
            self.upstream_ended(label, Ended::Reset);
            return Verdict::Fine;
        }
        self.pump.enqueue(cx.flows, label);
        Verdict::Fine
    }

    /// Processes the end of an upstream connection on the server's side. The service can still read the
    /// bytes that have arrived.
    pub(crate) fn upstream_ended(&mut self, label: FlowLabel, how: Ended) {
        let choice = self.cx.flows.get(label).and_then(Flow::choice);
        match (self.cx.upstreams.get(label).map(|end| end.state), choice) {
            (Some(State::Served), _) => self.set_ended(label, how),
            (Some(State::Asked), Some(choice)) => return self.open_refused(label, choice),
            (Some(State::Closing), _) => {
                self.count_end(how);
                return self.remove_flow(label);
            }
            _ => return self.remove_flow(label),
        }
        if let Some(choice) = choice {
            self.dispatcher.release(choice);
        }
        if let Some(plain) = self.cx.flows.get(label).and_then(Flow::plain) {
            self.dispatcher.release_plain(plain);
        }
        self.cx.flows.set_stage(self.cx.now, label, Stage::Finishing);
        self.pump.enqueue(self.cx.flows, label);
    }

    /// Ends an upstream connection as its service requested.
    pub(crate) fn settle_upstream(&mut self, label: FlowLabel, step: Step) {
        let Some(end) = self.cx.upstreams.get(label).filter(|end| end.state == State::Served) else { return };
        if end.ended.is_some() && self.cx.unread_of_server(label) == 0 {
            return self.settle_finished(label); // whatever the service says: the process has ended it
        }
        match step {
            Step::Idle | Step::Moved => self.settle_finished(label),
            Step::Finish => {
                self.finish_upstream(label);
                self.settle_finished(label);
            }
            Step::Close => self.close_upstream(label),
            Step::Reset => {
                self.set_ended(label, Ended::ByService);
                self.reset_upstream(label);
            }
        }
    }

    /// Ends an upstream connection without unread bytes, if its process has ended it or both sides have
    /// finished.
    fn settle_finished(&mut self, label: FlowLabel) {
        let Some((end, flow)) = self.cx.upstreams.get(label).zip(self.cx.flows.get(label)) else { return };
        if end.state != State::Served || self.cx.unread_of_server(label) > 0 {
            return;
        }
        if let Some(how) = end.ended {
            self.count_end(how);
            return self.remove_flow(label);
        }
        if flow.app_finished && flow.shutdown_sent {
            self.both_finished(label, Ended::Closed);
        }
    }

    fn close_upstream(&mut self, label: FlowLabel) {
        let Some((end, flow)) = self.cx.upstreams.get(label).zip(self.cx.flows.get(label)) else { return };
        let (ended, app_finished) = (end.ended, flow.app_finished);
        let unread = self.cx.unread_of_server(label);
        if let Some(how) = ended {
            self.count_end(how);
            return self.remove_flow(label);
        }
        self.set_ended(label, Ended::ByService);
        if unread > 0 {
            // RFC 9293 §3.6.1: the process must be informed that its data was not read.
            return self.reset_upstream(label);
        }
        if let Some(server) = self.cx.server_of(label) {
            return self.close_server(label, server);
        }
        self.finish_upstream(label);
        if app_finished {
            return self.both_finished(label, Ended::ByService);
        }
        self.cx.upstreams.close(label, self.cx.now + CLOSING_MAX);
        self.local.upstream_gone(self.cx.now, label, Ended::ByService);
    }

    fn finish_upstream(&mut self, label: FlowLabel) {
        let cx = &mut self.cx;
        if let Some(end) = cx.upstreams.get_mut(label) {
            end.finished = true;
        }
        if let Some(server) = cx.server_of(label) {
            return cx.finish_server(label, server);
        }
        let Some(flow) = cx.flows.get_mut(label).filter(|f| matches!(f.stage, Stage::Open(_))) else {
            return;
        };
        let mut application: ApplicationEnd<'_, O> =
            ApplicationEnd { now: cx.now, flow, recorder: cx.recorder, out: cx.out };
        application.finish();
    }

    /// Ends a connection whose both sides have finished, as TCP does when both FINs are acknowledged.
    fn both_finished(&mut self, label: FlowLabel, how: Ended) {
        self.count_end(how);
        if let Some(server) = self.cx.server_of(label) {
            self.leave_server(label, server);
        }
        if let Some(lane) = self.cx.flows.get(label).filter(|f| f.channel().is_some()).map(|f| f.lane) {
            self.cx.send(lane, MessageHeader::of_flow(MessageKind::Close, label, 0, 0), &[]);
        }
        self.set_ended(label, how);
        self.remove_flow(label);
    }

    /// Processes the end of a process's stream.
    pub(crate) fn upstream_finished(&mut self, label: FlowLabel) {
        match self.cx.upstreams.get(label).map(|end| end.state) {
            Some(State::Closing) => self.both_finished(label, Ended::ByService),
            _ => self.pump.enqueue(self.cx.flows, label),
        }
    }

    /// Another process has taken over an upstream connection. It does not know of the end of the stream, nor
    /// of the room of bytes that the service has read since the former process left.
    pub(crate) fn upstream_taken_over(&mut self, label: FlowLabel) {
        self.cx.upstreams.unpark(label);
        let mut ends = ServiceEnds { cx: &mut self.cx, pump: self.pump, served: label, front: false };
        if let Some(mut end) = ends.channel_end(label) {
            end.return_room();
        }
        if self.cx.upstreams.get(label).is_some_and(|end| end.finished) {
            self.finish_upstream(label);
        }
    }

    /// Counts the end of a connection, of which this is the way.
    pub(super) fn count_end(&mut self, how: Ended) {
        let counters = &mut self.cx.recorder.counters;
        match how {
            Ended::Closed | Ended::ByService => counters.connections_closed += 1,
            Ended::Reset => counters.connections_failed += 1,
        }
    }

    fn reset_upstream(&mut self, label: FlowLabel) {
        self.cx.recorder.counters.connections_failed += 1;
        self.fail(label, reason::CONNECTION_RESET);
    }

    pub(super) fn set_ended(&mut self, label: FlowLabel, how: Ended) {
        if let Some(end) = self.cx.upstreams.get_mut(label) {
            end.ended = Some(how);
        }
    }
}
