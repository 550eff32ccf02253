//! Steps of a handshake that another thread makes: a signature with an RSA key takes longer than a data
//! worker may stand still for.
//!
//! ```text
//!   data worker: take_record ─▶ is_put_off ─ take_away ─▶ ⋯ other sessions ⋯ ─▶ bring_back ─▶ goes on
//!                                                │                                 ▲
//!   another thread:                              └───────────── run ───────────────┘
//! ```
//! While a session is away, a stand-in takes its place: it accepts no records, so that what the client sends
//! stays in its connection's window, and has nothing to send.

use rustls::{Error, HandshakeKind};

use super::engine::Engine;
use super::{Failure, Session};

/// The type of a change_cipher_spec record (RFC 8446 §5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;

impl Session {
    /// Has steps of the handshake that may be dear put off, if this side's keys make them so.
    pub fn put_off_dear_steps(&mut self) {
        self.puts_off = self.is_dear;
    }

    /// Returns whether a record was taken whose processing was put off, and waits.
    #[inline]
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        self.put_off
    }

    /// Returns whether the session is [away](Self::take_away), and this its stand-in.
    #[inline]
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self.engine, Engine::Away)
    }

    /// Takes the session away if a step was put off, and leaves a stand-in.
    pub fn take_away(&mut self) -> Option<Session> {
        self.put_off.then(|| std::mem::replace(self, Session::of(Engine::Away)))
    }

    /// Makes the step that was put off, on any thread.
    pub fn run(&mut self) {
        if std::mem::take(&mut self.put_off) {
            self.process();
        }
    }

    /// Has the session fail for a reason of this side's.
    pub fn fail(&mut self, reason: &str) {
        self.put_off = false;
        self.failure.get_or_insert_with(|| Failure::Protocol(Error::General(reason.to_owned())));
    }

    /// Puts the session in the place of its stand-in.
    pub fn bring_back(&mut self, session: Session) {
        if self.is_away() {
            *self = session;
        }
    }

    /// Returns whether to put off what was taken: the first message of a client, which a signature answers,
    /// also after a HelloRetryRequest, and the certificate of a client, whose chain is verified.
    pub(crate) fn is_to_put_off(&self) -> bool {
        let is_answered =
            matches!(self.engine.handshake_kind(), Some(HandshakeKind::Full | HandshakeKind::Resumed));
        self.puts_off
            && !self.established
            && self.incoming.first() != Some(&CHANGE_CIPHER_SPEC)
            && (!is_answered || self.clients.is_some())
    }
}
