//! A connection's timers and their handlers.

use csp_types::Instant;

use crate::api::{FailReason, State};
use crate::tcb::{Context, FinalTransmit, Probe, Tcb};

/// The purpose of the retransmission timer; it has one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retransmission {
    /// Retransmission timeout: data was not acknowledged in time (RFC 6298 §5).
    Timeout,
    /// Tail loss probe: the end of the flight may be lost (RFC 8985 §7).
    TailProbe,
    /// Window probe: the peer's window is closed (RFC 9293 §3.8.6.1).
    Persist,
}

/// Deadlines of one connection, except that of a delayed acknowledgement. [`Instant::FAR_FUTURE`]: the timer
/// does not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    pub retransmission: (Instant, Retransmission),
    /// The end of the reordering window (RFC 8985 §6.2).
    pub reordering: Instant,
    /// When the data sent so far will have taken its time at the pacing rate.
    pub paced_until: Instant,
    pub keepalive: Instant,
    /// End of FIN-WAIT-2 after `Stack::close`, or of the wait of a reset.
    pub linger: Instant,
    /// How often in succession the retransmission timer fired without a response.
    pub retries: u8,
    /// The pacing timer runs: data waits until `paced_until`.
    pub pacing: bool,
}

impl Default for Timers {
    fn default() -> Self {
        let never = Instant::FAR_FUTURE;
        Timers {
            retransmission: (never, Retransmission::Timeout),
            reordering: never,
            paced_until: Instant::ZERO,
            pacing: false,
            keepalive: never,
            linger: never,
            retries: 0,
        }
    }
}

impl Timers {
    /// The earliest deadline.
    fn earliest(&self) -> Instant {
        let pacing = if self.pacing { self.paced_until } else { Instant::FAR_FUTURE };
        self.retransmission.0.min(pacing).min(self.reordering).min(self.keepalive).min(self.linger)
    }

    /// Stops the timer after everything sent was acknowledged.
    pub fn stop_retransmission(&mut self) {
        self.retransmission = (Instant::FAR_FUTURE, Retransmission::Timeout);
        self.retries = 0;
    }

    /// Whether the retransmission timer runs.
    pub fn retransmission_runs(&self) -> bool {
        self.retransmission.0 != Instant::FAR_FUTURE
    }

    /// Whether the timer runs for a closed window.
    pub fn persists(&self) -> bool {
        self.retransmission_runs() && self.retransmission.1 == Retransmission::Persist
    }
}

impl Tcb {
    /// The earliest deadline, that of a delayed acknowledgement included.
    pub fn deadline(&self) -> Instant {
        self.timers.earliest().min(self.delayed_ack)
    }

    /// Restarts the retransmission timer (RFC 6298 §5.1, §5.3).
    pub fn arm_timeout(&mut self, cx: &Context<'_>) {
        self.timers.retransmission = (cx.now + self.rtt.rto(cx.config), Retransmission::Timeout);
    }

    /// Starts the timer that probes a closed window.
    pub fn arm_persist(&mut self, cx: &Context<'_>) {
        self.timers.retransmission = (cx.now + self.rtt.rto(cx.config), Retransmission::Persist);
        self.quiet = false; // any acknowledgement may open the window
    }

    /// Restarts the timer after new data was sent or acknowledged, for a tail loss probe or for the timeout,
    /// whichever is earlier (RFC 8985 §7.2).
    pub fn arm_probe_or_timeout(&mut self, cx: &Context<'_>) {
        let rto = self.rtt.rto(cx.config);
        // RFC 8985 §7.2 considers one segment in flight. A peer may also delay the acknowledgement of more
        // than one and less than two full-sized segments (RFC 9293 §3.8.6.3).
        let delayed = self.outstanding() < 2 * u32::from(self.mss());
        let eligible = self.sack && self.is_synchronised() && self.recovery.may_probe_tail();
        self.timers.retransmission = match self.rtt.probe_timeout(cx.config, delayed).filter(|_| eligible) {
            // Further transmissions postpone the probe, but not beyond the timeout of the oldest data.
            Some(pto) => {
                let sent = self.recovery.flight().head(cx.records).map_or(cx.now, |head| head.sent);
                let deadline = (cx.now + pto).min((sent + rto).max(cx.now));
                (deadline, Retransmission::TailProbe)
            }
            None => (cx.now + rto, Retransmission::Timeout),
        };
    }

    /// Starts the keepalive timer if keepalives are enabled.
    pub fn start_keepalive(&mut self, cx: &Context<'_>) {
        self.timers.keepalive = match self.options.keepalive_idle() {
            Some(idle) if self.is_synchronised() => cx.now + idle,
            _ => Instant::FAR_FUTURE,
        };
    }

    /// Runs every timer that is due.
    pub fn on_timers(&mut self, cx: &mut Context<'_>) {
        if self.delayed_ack <= cx.now {
            self.delayed_ack = Instant::FAR_FUTURE;
            self.ack_now = true;
            self.maybe_transmit = true;
        }
        if self.timers.pacing && self.timers.paced_until <= cx.now {
            self.timers.pacing = false;
            self.maybe_transmit = true;
        }
        if self.timers.linger <= cx.now && self.state == State::Resetting {
            cx.counters.resets_overdue += 1;
            return self.send_reset(cx);
        }
        if self.timers.linger <= cx.now {
            return self.fail(cx, FinalTransmit::Reset, FailReason::TimedOut);
        }
        if self.timers.keepalive <= cx.now {
            self.on_keepalive(cx);
        }
        if self.timers.reordering <= cx.now && self.is_synchronised() {
            self.on_reordering_timer(cx);
        }
        let (deadline, kind) = self.timers.retransmission;
        if deadline <= cx.now && self.state != State::Done {
            self.timers.retransmission = (Instant::FAR_FUTURE, Retransmission::Timeout);
            match kind {
                Retransmission::TailProbe => self.on_tail_probe(cx),
                Retransmission::Persist => self.on_persist(cx),
                Retransmission::Timeout if self.is_synchronised() && self.snd_wnd == 0 => self.on_persist(cx),
                Retransmission::Timeout => self.on_retransmission_timeout(cx),
            }
        }
    }

    /// Counts a retry. Returns `true` if the retries, or the user timeout, are exhausted; the connection has
    /// failed then.
    fn retries_exhausted(&mut self, cx: &mut Context<'_>, most: u8) -> bool {
        self.timers.retries = self.timers.retries.saturating_add(1);
        let overdue =
            self.options.user_timeout().is_some_and(|t| cx.now.saturating_since(self.progress_at) >= t);
        if self.timers.retries <= most && !overdue {
            return false;
        }
        // If the peer is alive after all, the RST notifies it of the end. In the handshake no RST is sent.
        let final_transmit =
            if self.is_synchronised() { FinalTransmit::Reset } else { FinalTransmit::Record };
        self.fail(cx, final_transmit, FailReason::TimedOut);
        true
    }

    fn on_retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        let handshake = !self.is_synchronised();
        let most = match handshake {
            true if self.passive => cx.config.syn_ack_retries,
            true => cx.config.syn_retries,
            false => cx.config.retries,
        };
        if self.retries_exhausted(cx, most) {
            return;
        }
        cx.counters.retransmission_timeouts += 1;
        self.rtt.back_off();
        self.syn_sent = Instant::FAR_FUTURE; // Karn: what is sent twice is not timed
        self.maybe_transmit = true;
        if handshake {
            self.syn_due = true;
            return;
        }
        self.suspect_black_hole(cx);
        self.on_data_timeout(cx);
    }

    fn on_tail_probe(&mut self, cx: &mut Context<'_>) {
        if self.outstanding() == 0 {
            return;
        }
        cx.counters.tail_loss_probes += 1;
        self.probe = Some(Probe::Tail);
        self.maybe_transmit = true;
        self.arm_timeout(cx);
    }

    fn on_persist(&mut self, cx: &mut Context<'_>) {
        if self.retries_exhausted(cx, cx.config.retries) {
            return;
        }
        // RFC 9293 §3.8.6.1 lets a window stay closed indefinitely while the peer responds. When memory is
        // short, other connections need it.
        let short = cx.send_blocks.free() <= cx.send_blocks.capacity() / 4; // writers wait for blocks below this level
        if short && cx.now.saturating_since(self.progress_at) >= cx.config.zero_window_when_short {
            cx.counters.zero_window_evicted += 1;
            return self.fail(cx, FinalTransmit::Reset, FailReason::TimedOut);
        }
        cx.counters.window_probes += 1;
        self.rtt.back_off();
        self.probe = Some(Probe::Window);
        self.maybe_transmit = true;
        self.arm_persist(cx);
    }

    fn on_keepalive(&mut self, cx: &mut Context<'_>) {
        let Some(idle) = self.options.keepalive_idle() else {
            self.timers.keepalive = Instant::FAR_FUTURE;
            return;
        };
        // Data in flight has a timer of its own.
        let due = self.last_received + idle;
        let again = cx.now + self.options.keepalive_interval();
        if due > cx.now || self.outstanding() > 0 {
            self.keepalive_probes = 0;
            self.timers.keepalive = if due > cx.now { due } else { again };
            return;
        }
        if self.keepalive_probes >= self.options.keepalive_probes {
            return self.fail(cx, FinalTransmit::Reset, FailReason::TimedOut);
        }
        cx.counters.keepalive_probes += 1;
        self.keepalive_probes += 1;
        self.timers.keepalive = again;
        self.probe = Some(Probe::Keepalive);
        self.maybe_transmit = true;
    }
}
