//! Heartbeats of a link: when a PING is due, and when silence means that the peer is dead.

use csp_types::Instant;
use csp_wire::link::Kind;

use super::link::{Link, State};
use crate::config::Heartbeat;

impl Link {
    /// Whether the peer's silence means its death.
    pub(super) fn is_dead(&mut self, now: Instant, late: bool, heartbeat: &Heartbeat) -> bool {
        let until = self.silent_until(now, heartbeat);
        until < Instant::FAR_FUTURE && self.is_over(now, late, until, heartbeat)
    }

    /// End of the peer's permitted silence; [`Instant::FAR_FUTURE`] if nothing requires it to send.
    fn silent_until(&self, now: Instant, heartbeat: &Heartbeat) -> Instant {
        // After a late PING the peer has as long to answer as after one in time.
        let answer = if self.ping_unanswered { self.ping_sent_at } else { Instant::ZERO };
        let answer_time = heartbeat.deadline - heartbeat.interval;
        let until = (self.silence_since() + heartbeat.deadline).max(answer + answer_time);
        // A PING that cannot be sent for lack of a descriptor counts as unanswered.
        let unasked = !self.descriptors.allows(Kind::Ping) && until < self.pings_until(heartbeat);
        let counts = self.ping_unanswered || unasked || !self.pings_alone();
        if self.peer_is_daemon() && counts && !self.is_quiet(now, heartbeat) {
            until
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Start of the peer's silence.
    fn silence_since(&self) -> Instant {
        self.last_received.max(self.used_since)
    }

    /// Whether only this side sends PING: a daemon sends none if a hang-up reports the application's end.
    fn pings_alone(&self) -> bool {
        !self.local.is_daemon()
    }

    /// The time at which PING is due. If both sides send PING: after the interval without a message to the
    /// peer. If only this side does: after the interval without a message from it.
    fn ping_at(&self, heartbeat: &Heartbeat) -> Instant {
        let since = if self.pings_alone() { self.silence_since() } else { self.last_sent };
        since + heartbeat.interval
    }

    /// End of the time for which PINGs are sent. If the provider reports the ends of peers, PING only detects
    /// a daemon that lives and is silent. An application sends PING for this purpose while it uses the link;
    /// its idle link wakes no process.
    fn pings_until(&self, heartbeat: &Heartbeat) -> Instant {
        match (self.ends_reported, self.peer_is_daemon(), self.local.is_daemon()) {
            (false, _, _) | (true, true, true) => Instant::FAR_FUTURE,
            (true, true, false) => self.last_used + heartbeat.quiet_after,
            (true, false, _) => Instant::ZERO,
        }
    }

    /// Whether no PING is sent or expected to be answered until the link is used again.
    pub(super) fn is_quiet(&self, now: Instant, heartbeat: &Heartbeat) -> bool {
        now >= self.pings_until(heartbeat) && !self.ping_unanswered
    }

    /// Takes what of an incomplete message has arrived. A peer whose bytes arrive is not silent, though it
    /// takes long until a message is whole.
    pub(super) fn note_incomplete(&mut self, now: Instant, len: usize) {
        if len > 0 && len != self.incomplete {
            (self.last_received, self.grace_until) = (now, None);
        }
        self.incomplete = len;
    }

    /// Records that a message other than a heartbeat was sent or received.
    pub(super) fn used(&mut self, now: Instant, heartbeat: &Heartbeat) {
        if self.is_quiet(now, heartbeat) {
            self.used_since = now;
            self.grace_until = None;
        }
        self.last_used = now;
    }

    /// Whether the handshake took too long.
    pub(super) fn handshake_failed(&mut self, now: Instant, late: bool, heartbeat: &Heartbeat) -> bool {
        self.is_over(now, late, self.handshake_until, heartbeat)
    }

    /// Whether the time `until` which the peer had to send has ended. If this thread did not run in time
    /// itself (`late`), as on a stopped host, the peer gets one more interval, once.
    fn is_over(&mut self, now: Instant, late: bool, until: Instant, heartbeat: &Heartbeat) -> bool {
        if now < until {
            return false;
        }
        if late && self.grace_until.is_none() {
            self.grace_until = Some(now + heartbeat.interval);
        }
        self.grace_until.is_none_or(|until| now >= until)
    }

    /// Whether a CREDIT message is due.
    pub(super) fn credit_due(&self, now: Instant, heartbeat: &Heartbeat) -> bool {
        self.descriptors.return_due()
            || (self.descriptors.starves_peer() && now >= self.last_sent + heartbeat.interval)
    }

    /// Whether PING is due. At most one is outstanding: a VI loses nothing, a process may sleep for hours.
    pub(super) fn ping_due(&self, now: Instant, heartbeat: &Heartbeat) -> bool {
        let at = self.ping_at(heartbeat);
        self.ping_allowed() && now >= at && now < self.pings_until(heartbeat)
    }

    fn ping_allowed(&self) -> bool {
        self.can_send() && self.descriptors.allows(Kind::Ping) && !self.ping_unanswered
    }

    /// When the link must be served next if nothing arrives. A PING without credit waits for credit.
    pub(super) fn next_deadline(&self, now: Instant, heartbeat: &Heartbeat) -> Instant {
        let grace = self.grace_until.unwrap_or(Instant::ZERO);
        match self.state {
            State::Connecting
            | State::AwaitAck
            | State::AwaitHello
            | State::AwaitConfirm
            | State::Resuming => self.handshake_until.max(grace),
            State::Interrupted => {
                let retry = self.interruption.as_ref().map_or(Instant::FAR_FUTURE, |known| known.retry_at);
                self.handshake_until.max(grace).min(retry)
            }
            State::Ending(_) => Instant::FAR_FUTURE,
            State::Up => {
                let (at, until) = (self.ping_at(heartbeat), self.pings_until(heartbeat));
                let pings = self.ping_allowed() && at < until && now < until;
                let ping = if pings { at } else { Instant::FAR_FUTURE };
                let starves = self.descriptors.starves_peer() && self.descriptors.allows(Kind::Credit);
                let credit = if starves { self.last_sent + heartbeat.interval } else { Instant::FAR_FUTURE };
                ping.min(credit).min(self.silent_until(now, heartbeat).max(grace))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use csp_types::{Duration, Role};
    use csp_vi::ViId;

    use super::*;
    use crate::identity::PeerIdentity;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// A long message on a slow network: each look finds more of it, and later no more.
    #[test]
    fn a_peer_whose_bytes_arrive_is_not_silent() {
        let daemon = PeerIdentity::daemon(Role::ProxyNode, "pn-1".parse().unwrap(), 1, 0);
        let heartbeat = Heartbeat::default();
        let mut link = Link::new(at(0), ViId(0), daemon, 64, at(2_000));
        (link.state, link.peer) = (State::Up, Some(daemon));
        for step in 1..=20 {
            link.note_incomplete(at(200 * step), step as usize);
            assert!(!link.is_dead(at(200 * step), false, &heartbeat), "step {step}");
        }
        link.note_incomplete(at(4_500), 20);
        assert!(!link.is_dead(at(4_799), false, &heartbeat));
        assert!(link.is_dead(at(4_800), false, &heartbeat), "nothing has arrived for 800 ms");
    }
}
