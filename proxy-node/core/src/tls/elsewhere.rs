//! Handshakes whose next step another thread makes, so that a signature of a millisecond does not hold up all
//! other connections of the worker.

use csp_tls::Session;
use csp_types::{FlowLabel, Instant};

use super::Sessions;
use crate::ProxyCore;
use crate::service::local::LocalServices;

/// Sessions of a worker that are away at the same time: further ones wait with the engine, whose windows
/// bound what their clients send.
pub const HANDSHAKES_AWAY_MAX: usize = 32;

/// A session whose handshake waits for a [step](HandshakeStep::run) that takes long.
#[derive(Debug)]
pub struct HandshakeStep {
    label: FlowLabel,
    session: Session,
}

impl HandshakeStep {
    /// Makes the step, on any thread.
    pub fn run(&mut self) {
        self.session.run();
    }

    /// Has the handshake fail instead.
    pub fn fail(&mut self) {
        self.session.fail("the proxy could not make a step of the handshake");
    }
}

/// Handshakes that are not continued by the worker itself.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Whether there is another thread.
    is_there: bool,
    /// Those with a step that was put off, in their order. Some may have ended.
    put_off: std::collections::VecDeque<FlowLabel>,
    away: usize,
}

impl Sessions {
    /// Has a new session put off what takes long, if there is another thread for it.
    pub(super) fn put_off_dear_steps(&self, session: &mut Session) {
        if self.elsewhere.is_there {
            session.put_off_dear_steps();
        }
    }

    /// Makes one step here while the other threads are behind, so that they are no bottleneck.
    #[inline]
    pub(super) fn lend_a_hand(&mut self, now: Instant) {
        if self.elsewhere.away < HANDSHAKES_AWAY_MAX {
            return;
        }
        while let Some(label) = self.elsewhere.put_off.pop_front() {
            let Some(secured) = self.get_mut(label) else { continue };
            secured.leaves = false;
            if secured.session.is_put_off() && !secured.has_waited(now) {
                secured.session.run();
                return self.advance_later(label);
            }
        }
    }

    /// Adds a session that waits for another thread to the list of these; `false` if it does not wait.
    pub(super) fn is_put_off(&mut self, label: FlowLabel) -> bool {
        let Some(secured) = self.get_mut(label) else { return false };
        let (is_put_off, is_away) = (secured.session.is_put_off(), secured.session.is_away());
        if is_put_off && !std::mem::replace(&mut secured.leaves, true) {
            self.elsewhere.put_off.push_back(label);
        }
        is_put_off || is_away
    }
}

/// Handshakes elsewhere.
impl<S: LocalServices> ProxyCore<S> {
    /// Says that there is a thread that makes [steps](Self::poll_handshake_step). Until then the worker makes
    /// all of them.
    pub fn handshakes_elsewhere(&mut self) {
        self.tls.elsewhere.is_there = true;
    }

    /// Returns the next step for another thread, which brings it [back](Self::handshake_step_made) in any
    /// case; `None` while [`HANDSHAKES_AWAY_MAX`] are away.
    pub fn poll_handshake_step(&mut self, now: Instant) -> Option<HandshakeStep> {
        while self.tls.elsewhere.away < HANDSHAKES_AWAY_MAX {
            let label = self.tls.elsewhere.put_off.pop_front()?;
            let Some(secured) = self.tls.get_mut(label) else { continue };
            secured.leaves = false;
            if secured.has_waited(now) {
                continue; // its time ends before its client's answer comes
            }
            if let Some(session) = secured.session.take_away() {
                self.tls.elsewhere.away += 1;
                self.recorder.counters.tls_handshake_steps_elsewhere += 1;
                return Some(HandshakeStep { label, session });
            }
        }
        None
    }

    /// Brings a step back, made or not. Its connection may have ended. Call [`drive`](Self::drive)
    /// afterwards.
    pub fn handshake_step_made(&mut self, step: HandshakeStep) {
        let HandshakeStep { label, session } = step;
        self.tls.elsewhere.away = self.tls.elsewhere.away.saturating_sub(1);
        if let Some(secured) = self.tls.get_mut(label) {
            secured.session.bring_back(session);
            self.tls.advance_later(label);
        }
    }
}
