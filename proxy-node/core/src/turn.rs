//! Steps of an input that concern several parts.

use csp_types::FlowLabel;

use super::connection_log::End;
use super::context::Turn;
use super::dispatch::pool::ChannelId;
use super::flow::{Flow, Stage};
use super::service::between::Towards;
use super::service::local::{LocalServices, Step};
use super::service::upstream::OpenError;
use super::{Lane, ProxyOutput, reason};

/// Largest number of passes over the flows that have work before the worker receives again. The rest waits
/// for the next turn in the receive buffers of its connections, whose windows close, and not in the tunnel,
/// which all connections share.
const PASSES_MAX: usize = 2;
/// Largest number of connections of local services that are added to a pass because of other connections.
const READIED_PER_PASS: usize = 64;
/// Largest number of idle clients' connections reset for one window: some hold no memory.
const IDLE_PER_WINDOW_MAX: usize = 8;

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes events of the engine, and moves bytes in both directions and segments, up to a limit.
    pub(super) fn drive(&mut self) {
        for _ in 0..PASSES_MAX {
            self.dispatcher.serve_backlogs(&mut self.cx); // waiting connections come before new ones
            self.process_client_events();
            let handshakes = self.advance_handshakes();
            self.dispatcher.serve_backlogs(&mut self.cx);
            self.call_servers();
            self.review_upstreams();
            let pumped = self.pump.pump(&mut self.cx, self.local, self.link);
            let readied = self.settle_local() | self.serve_requests();
            self.settle_hairpins();
            self.flush_sessions();
            let sent = self.tunnels.transmit(&mut self.cx) | self.share_link();
            let more = pumped || readied || sent || handshakes || self.dispatcher.is_readied();
            self.pump.set_unfinished(more);
            if !more {
                return;
            }
        }
    }

    /// Ends the connections that local services have finished with, and adds those that have something to
    /// send to the list of flows to pump. Returns whether there were any.
    fn settle_local(&mut self) -> bool {
        while let Some(lent) = self.local.take_lent() {
            self.cx.tcp.give_back(lent);
        }
        while let Some((label, step)) = self.pump.next_done() {
            if self.cx.upstreams.is_of(label) {
                self.settle_upstream(label, step);
                continue;
            }
            if step == Step::Idle && self.cx.tls.has_failed(label) {
                self.session_failed(label);
                continue;
            }
            match self.cx.flows.get(label).map(|flow| flow.stage) {
                None | Some(Stage::Finishing) => continue, // it has ended, or the service has closed it before
                Some(Stage::Checking(member)) => {
                    self.read_check(label, member);
                    continue;
                }
                Some(Stage::Joined(_)) => {
                    self.server_finished(label);
                    continue;
                }
                Some(_) => {}
            }
            match step {
                Step::Reset => self.reset_both(label),
                Step::Finish => {
                    self.cx.flows.ends(label, End::ClosedByServer);
                    self.shutdown_client(label);
                }
                Step::Close => self.application_closed(label),
                Step::Idle | Step::Moved => {}
            }
        }
        let mut any = false;
        // Contexts run in each pass, even if connections are always ready.
        self.local.run_contexts(self.cx.now, self.link);
        for _ in 0..READIED_PER_PASS {
            match self.local.next_ready(self.link) {
                Some(label) => {
                    self.pump.enqueue(self.cx.flows, label);
                    any = true;
                }
                None if self.local.run_contexts(self.cx.now, self.link) => {}
                None => break,
            }
        }
        any
    }

    /// Runs timers that are due.
    pub(super) fn on_timeout(&mut self) {
        let now = self.cx.now;
        self.cx.tcp.on_timeout(now);
        self.local.on_timeout(now);
        while let Some((label, served)) = self.dispatcher.next_expired(now, self.cx.flows) {
            if self.cx.upstreams.is_of(label) {
                self.fail_open(label, if served { OpenError::TimedOut } else { OpenError::NoServer });
                continue;
            }
            let counters = &mut self.cx.recorder.counters;
            match served {
                true => counters.drop_backlog_time += 1,
                false => counters.drop_no_server += 1,
            }
            self.cx.flows.ends(label, if served { End::BacklogTime } else { End::NoServer });
            self.abandon(label);
        }
        while let Some(label) = self.dispatcher.next_abandoned(now) {
            self.cx.recorder.counters.drop_not_taken_over += 1;
            self.cx.flows.ends(label, End::NotTakenOver);
            self.abandon(label);
        }
        while let Some(label) = self.cx.hairpin.next_overdue(now) {
            self.cx.recorder.counters.hairpin_resets_overdue += 1;
            self.fail(label, reason::CONNECTION_RESET);
        }
        while let Some(label) = self.pump.next_failed(now, self.cx.flows, self.cx.tcp) {
            self.fail_broken(label);
        }
        self.end_overdue_upstreams();
        self.end_overdue_calls();
        self.end_overdue_prefaces();
        self.end_overdue_handshakes();
        self.dispatcher.check_offers(&mut self.cx);
        self.drive();
    }

    /// Inserts a flow into the table; a flow of an older generation in its slot is released first.
    pub(super) fn admit(&mut self, flow: Flow) {
        self.dispatcher.flow_began(flow.service);
        if let Some(old) = self.cx.flows.insert(flow) {
            self.release(&old);
        }
    }

    /// Resets the client's connection, or the other end of a hairpin, and ends the flow; its own process is
    /// not notified. The reset follows what the process has written.
    pub(super) fn abandon(&mut self, label: FlowLabel) {
        self.reset_after_written(label);
    }

    /// Resets both ends of a flow whose protocol was violated.
    pub(super) fn reset_both(&mut self, label: FlowLabel) {
        self.notify_failure(label, reason::INVALID);
        self.cx.flows.ends(label, End::Protocol);
        self.abandon(label);
    }

    /// Leaves a flow without process to the TCP engine, which delivers the written bytes. The flow keeps only
    /// the budget for these.
    pub(super) fn leave_to_engine(&mut self, label: FlowLabel) {
        let waiting = self.cx.queued_to_client(label);
        let Some(flow) = self.cx.flows.get_mut(label) else { return };
        if let Some(choice) = flow.choice() {
            self.dispatcher.release(choice);
        }
        if let Some(plain) = flow.plain() {
            self.dispatcher.release_plain(plain);
        }
        let stage = flow.stage;
        self.pump.application_closed(flow, waiting);
        if flow.stage == Stage::Local {
            self.local.gone(self.cx.now, label);
        }
        self.cx.flows.set_stage(self.cx.now, label, Stage::Finishing);
        self.part(label, stage);
    }

    /// Returns whether a stream of a flow would end at a point that the service between both ends does not
    /// permit.
    pub(super) fn is_cut_off(&mut self, label: FlowLabel, towards: Towards) -> bool {
        let between =
            self.cx.flows.get(label).is_some_and(|f| f.between && matches!(f.stage, Stage::Open(_)));
        between && !self.local.may_end(label, towards)
    }

    /// Removes a flow from the table.
    pub(super) fn remove_flow(&mut self, label: FlowLabel) {
        if let Some(flow) = self.cx.flows.remove(label) {
            self.release(&flow);
        }
    }

    /// Releases the state that each part keeps of a flow that was removed from the table.
    fn release(&mut self, flow: &Flow) {
        if flow.stage == Stage::Local {
            self.local.gone(self.cx.now, flow.label);
        }
        if flow.between {
            self.local.ended(flow.label);
        }
        if !self.cx.hairpin.release(flow.label) {
            self.pump.release(flow.from_app_window);
        }
        self.cx.tls.release(flow.label);
        let report = self.cx.upstreams.release(self.cx.tcp, flow.label);
        self.egress.shares.release(flow.charge);
        self.cx.recorder.flow_ended(self.cx.now, flow);
        self.log_end(flow);
        self.dispatcher.flow_ended(self.cx.flows, self.cx.tcp, flow);
        self.part(flow.label, flow.stage);
        if let Some(report) = report {
            self.report_upstream(flow.label, report);
        }
    }

    /// Counts the end of a connection, and records it in the log.
    fn log_end(&mut self, flow: &Flow) {
        let lasted_ns = self.cx.now.as_nanos().saturating_sub(flow.began.as_nanos());
        self.cx.recorder.services.ended(flow.counted, flow.end.unwrap_or(End::Proxy), lasted_ns);
        let log = &mut self.cx.recorder.log;
        if !log.is_on() {
            return;
        }
        let Some(member) = log.member(flow.label) else { return };
        let server = member.and_then(|member| self.dispatcher.pools().get(member));
        let server = server.map(|member| (member.host, member.port));
        log.ended(self.cx.now, flow, server, self.cx.tcp.figures(flow.label));
    }

    /// Reserves a window for a new flow. If none is left, stalled flows are dropped first, then connections
    /// of idle clients are reset. `None` if there are none either.
    pub(super) fn reserve_window(&mut self) -> Option<u32> {
        let mut given_way = 0;
        loop {
            if let Some(window) = self.pump.reserve() {
                return Some(window);
            }
            if let Some(label) = self.pump.next_stalled(self.cx.now, self.cx.flows, self.cx.tcp) {
                self.cx.recorder.counters.stalled_given_up += 1;
                self.cx.flows.ends(label, End::Stalled);
                self.reset_client(label);
            } else if given_way == IDLE_PER_WINDOW_MAX
                || !(self.oldest_handshake_gives_way() || self.idle_gives_way())
            {
                return None;
            }
            given_way += 1;
        }
    }

    /// Ends the flows of a channel, or of one `lane` of it, that is down: they are offered elsewhere,
    /// finished, or reset. `hangup`: the process has ended, so that its connections end as the kernel would
    /// end them.
    pub(super) fn end_flows(&mut self, channel: ChannelId, lane: Option<Lane>, hangup: bool) {
        let lost = |flow: &&Flow| lane.is_none_or(|lane| lane == flow.lane);
        let labels: Vec<FlowLabel> =
            self.cx.flows.of_channel(channel).filter(lost).map(|f| f.label).collect();
        for label in labels {
            let Some(flow) = self.cx.flows.get(label) else { continue };
            match flow.stage {
                Stage::Offered(choice) => {
                    self.dispatcher.take_back(self.cx.now, self.cx.flows, label, choice);
                    self.dispatcher.dispatch(&mut self.cx, label);
                }
                Stage::Open(_) if hangup => self.application_closed(label),
                Stage::Open(_)
                | Stage::Connecting { .. }
                | Stage::Pending
                | Stage::Local
                | Stage::Left(_)
                | Stage::Calling(_)
                | Stage::Called(_)
                | Stage::Joined(_)
                | Stage::Behind(_)
                | Stage::Checking(_)
                | Stage::Finishing => {
                    self.cx.flows.ends(label, End::ServerLost);
                    self.abandon(label);
                }
            }
        }
        self.pump.remove_stale(self.cx.flows);
    }
}
