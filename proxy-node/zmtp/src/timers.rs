//! Deadlines of a connection.

use csp_types::{Duration, Instant};

use crate::config::Heartbeat;
use crate::error::ZmtpError;

/// The deadlines that are running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    /// End of the handshake.
    handshake: Option<Instant>,
    /// The next PING.
    ping: Option<Instant>,
    /// Traffic after a PING.
    answer: Option<Instant>,
    /// Traffic after a PING of the peer with a time-to-live.
    ttl: Option<Instant>,
}

impl Timers {
    /// The deadlines of a connection that begins.
    pub fn new(handshake: Instant) -> Self {
        Timers { handshake: Some(handshake), ping: None, answer: None, ttl: None }
    }

    /// The handshake is complete; the first of the heartbeats follows after an interval.
    pub fn established(&mut self, now: Instant, heartbeat: Option<Heartbeat>) {
        self.handshake = None;
        self.ping = heartbeat.map(|heartbeat| now + heartbeat.interval);
    }

    /// No deadline runs any more.
    pub fn stop(&mut self) {
        *self = Timers { handshake: None, ping: None, answer: None, ttl: None };
    }

    /// Something was received (37/ZMTP: any traffic is a sign of life).
    pub fn received(&mut self) {
        self.answer = None;
        self.ttl = None;
    }

    /// A PING was sent. An earlier one that waits for traffic keeps its deadline.
    pub fn ping_sent(&mut self, now: Instant, timeout: Duration) {
        self.answer = self.answer.or(Some(now + timeout));
    }

    /// A PING of the peer was received, with a time-to-live that is not zero.
    pub fn ttl_received(&mut self, now: Instant, ttl: Duration) {
        self.ttl = Some(now + ttl);
    }

    /// The first deadline.
    pub fn next(&self) -> Option<Instant> {
        [self.handshake, self.ping, self.answer, self.ttl].into_iter().flatten().min()
    }

    /// Returns the error of a deadline that has passed, or whether a PING is due.
    pub fn expire(&mut self, now: Instant, heartbeat: Option<Heartbeat>) -> Result<bool, ZmtpError> {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if passed(self.handshake) {
            return Err(ZmtpError::HandshakeTimeout);
        }
        if passed(self.answer) {
            return Err(ZmtpError::HeartbeatTimeout);
        }
        if passed(self.ttl) {
            return Err(ZmtpError::TtlTimeout);
        }
        let due = passed(self.ping);
        if due {
            self.ping = heartbeat.map(|heartbeat| now + heartbeat.interval);
        }
        Ok(due)
    }
}
