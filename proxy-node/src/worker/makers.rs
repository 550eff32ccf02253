//! What threads of the daemon do for a worker: make handlers, plan queries, sign in handshakes.

use std::sync::mpsc::{SendError, Sender};

use csp_services::{HandlerJob, PlanJob};
use csp_types::Instant;

use super::ProxyWorker;
use crate::core::HandshakeStep;

/// Where steps of handshakes are made: each goes there with the worker's number.
pub type Signers = crossbeam_channel::Sender<(u8, HandshakeStep)>;

impl ProxyWorker {
    /// Sets where handlers are made that clients bring: it gets each with the worker's number, and has
    /// [`MessageBroker::handler_made`](csp_services::MessageBroker::handler_made) called with the answer.
    pub fn set_makers(&mut self, makers: Sender<(u8, HandlerJob)>) {
        self.makers = Some(makers);
    }

    /// Sets where queries and formats are planned that clients ask for: it gets each with the worker's
    /// number, and has [`MessageBroker::planned`](csp_services::MessageBroker::planned) called with the
    /// answer.
    pub fn set_planner(&mut self, planner: Sender<(u8, PlanJob)>) {
        self.broker_mut().plan_elsewhere();
        self.planner = Some(planner);
    }

    /// Sets where steps of handshakes are made that take long: it gets each with the worker's number, and has
    /// [`handshake_step_made`](Self::handshake_step_made) called with the same.
    pub fn set_signers(&mut self, signers: Signers) {
        self.core.handshakes_elsewhere();
        self.signers = Some(signers);
    }

    /// Goes on with a handshake.
    pub fn handshake_step_made(&mut self, step: HandshakeStep) {
        self.core.handshake_step_made(step);
    }

    /// Passes on the handlers that clients have brought, what they have asked for that is to be planned, and
    /// the steps of handshakes that take long.
    pub(super) fn ask_others(&mut self, now: Instant) {
        self.ask_makers(now);
        self.ask_signers(now);
    }

    fn ask_signers(&mut self, now: Instant) {
        while let Some(signers) = &self.signers
            && let Some(step) = self.core.poll_handshake_step(now)
        {
            if let Err(crossbeam_channel::SendError((_, mut step))) = signers.send((self.number, step)) {
                step.run(); // the daemon ends
                self.core.handshake_step_made(step);
            }
        }
    }

    fn ask_makers(&mut self, now: Instant) {
        while let Some(job) = self.core.local_mut().first_mut().poll_handler_job() {
            let ticket = job.ticket;
            let sent = self.makers.as_ref().is_some_and(|makers| makers.send((self.number, job)).is_ok());
            if !sent {
                let none = Err("this proxy makes no handlers".to_owned());
                self.core.local_mut().first_mut().handler_made(now, ticket, none);
            }
        }
        while let Some(planner) = &self.planner
            && let Some(job) = self.core.local_mut().first_mut().poll_plan_job()
        {
            if let Err(SendError((_, job))) = planner.send((self.number, job)) {
                self.core.local_mut().first_mut().planned(now, job.failed("this proxy plans nothing"));
            }
        }
    }
}
