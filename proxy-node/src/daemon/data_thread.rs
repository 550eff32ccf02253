//! A proxy worker in its data thread: the control thread's requests, and what the worker publishes.

use std::ops::ControlFlow;

use csp_api::contexts::Contexts;
use csp_api::proxy::Channel;
use csp_api::quality::Quality;
use csp_daemon::{DataWorker, clock};
use csp_services::{MadeHandler, Planned};
use csp_telemetry::Reply;
use csp_types::{FlowLabel, Instant, TraceEvent};
use csp_vi::{Armed, ViError, Wake};

use crate::core::{FlowSnapshot, HandshakeStep, RecentFlow, ServiceSnapshot};
use crate::{ProxyWorker, Registered, WorkerPolicy};

use super::applied::Applied;
use super::http_trace::{self, HttpTraced};
use super::messages::{self, Messages};
use super::metrics::Published;
use super::{channels, contexts, events, quality};

/// A message or request of the control thread to a worker.
pub enum Question {
    /// A new policy generation; answered when it is in force.
    Policy(WorkerPolicy, Reply<Applied>),
    /// What the nodes of the membership have registered.
    Registered(Registered),
    /// At most this many flows.
    Flows(usize, Reply<Vec<FlowSnapshot>>),
    /// At most this many active or recently ended flows, newest first.
    Recent(usize, Reply<Vec<RecentFlow>>),
    /// The services with their pools.
    Services(Reply<Vec<ServiceSnapshot>>),
    /// The channels of messages, each with its name.
    Channels(Reply<Vec<(String, Channel)>>),
    /// Contexts, paths and handlers.
    Contexts(Reply<Contexts>),
    /// Information flows.
    Quality(Reply<Quality>),
    /// Single peers of channels, and single messages.
    Messages(Messages),
    /// The next requests of HTTP that meet a filter.
    HttpTraced(HttpTraced),
    /// A handler that a client has brought was made, or why not, by the ticket of its request.
    Made(u64, Result<MadeHandler, String>),
    /// A query or format that a client has asked for was planned.
    Planned(Box<Planned>),
    /// A handshake whose step was made.
    HandshakeStep(Box<HandshakeStep>),
    /// The recorded events of one flow, or of all.
    Trace(Option<FlowLabel>, Reply<Vec<TraceEvent>>),
    /// Close all links and end the thread.
    Stop,
}

impl DataWorker for ProxyWorker {
    type Question = Question;
    type Published = Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        ProxyWorker::turn(self, now, unix_s)
    }

    fn answer(&mut self, now: Instant, question: Question) -> ControlFlow<()> {
        match question {
            Question::Policy(policy, reply) => {
                let done = self.set_policy(now, policy).map_err(|error| error.to_string());
                reply.send(Applied { done, span: (now, clock::now()) });
            }
            Question::Registered(registered) => self.set_registered(now, registered),
            Question::Flows(limit, reply) => reply.send(self.core().flows(now, limit)),
            Question::Recent(limit, reply) => reply.send(self.core().recent_flows(limit)),
            Question::Services(reply) => reply.send(self.core().services()),
            Question::Channels(reply) => reply.send(channels::of_worker(self.broker(), now)),
            Question::Contexts(reply) => reply.send(contexts::of_worker(self.broker())),
            Question::Quality(reply) => reply.send(quality::of_worker(self, now)),
            Question::Made(ticket, made) => self.broker_mut().handler_made(now, ticket, made),
            Question::Planned(planned) => self.broker_mut().planned(now, *planned),
            Question::HandshakeStep(step) => self.handshake_step_made(*step),
            Question::Messages(question) => messages::answer(self, now, question),
            Question::HttpTraced(question) => http_trace::answer(self, now, question),
            Question::Trace(label, reply) => {
                let events = self.core().trace().iter().filter(|e| label.is_none_or(|l| l == e.label));
                reply.send(events.copied().collect());
            }
            Question::Stop => {
                ProxyWorker::turn(self, now, clock::unix_now_s());
                self.close(now);
                ProxyWorker::turn(self, clock::now(), clock::unix_now_s());
                events::report(self);
                take_records(self);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self) -> Published {
        channels::log_requests(self);
        events::report(self);
        self.drain_clients(clock::now());
        self.gateway_mut().set_clock(clock::now(), clock::unix_now_ms().saturating_mul(1_000_000));
        take_records(self);
        if let Some(board) = self.http_board().cloned() {
            board.publish(self);
        }
        if let Some(services) = self.service_board() {
            services.publish(self);
        }
        let mut published = Published::of(self);
        published.quality = quality::of_worker(self, clock::now());
        published
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        ProxyWorker::arm(self)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        ProxyWorker::wake(self, into);
    }

    fn wake_generation(&self) -> u64 {
        ProxyWorker::wake_generation(self)
    }

    fn next_timeout(&self) -> Option<Instant> {
        ProxyWorker::next_timeout(self)
    }
}

/// Gives the writers of logs what waits at a worker.
fn take_records(worker: &mut ProxyWorker) {
    if let Some(log) = worker.connection_log().cloned() {
        log.take(worker);
    }
    if let Some(log) = worker.http_log().cloned() {
        log.take(worker);
    }
}
