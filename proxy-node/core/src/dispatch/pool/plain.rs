//! Plain servers: hosts without software of the cluster.
//!
//! ```text
//!        refused, unreachable, late                    time is over            one connection at a time
//!  up ────────────────────────────▶ down for BACK_OFF ─────────────▶ on trial ─┬─ established ─▶ up
//!                                     ▲ doubled each time, at most BACK_OFF_MAX │
//!                                     └────────────────────────────────────────┴─ not established
//! ```
//! A server that is *checked* is not tried by clients' connections: checks in a row put it into use again.
//! They also put it out of use, as a connection that fails does at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use csp_types::{Duration, Instant};

use super::{Candidate, Change, Member, MemberId, Pools};
use crate::dispatch::services::ServerHost;
use crate::servers::CheckSpec;

/// How long a plain server that could not be reached gets no connections.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Upper limit of that time, which doubles with each failed trial.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// The whole share of a plain server, of which one that is up again gets a part at first.
pub(in crate::dispatch) const WARM: u64 = 256;
/// That part at its beginning.
const WARMTH_MIN: u64 = 8;

/// Whether a plain server can be reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Plain {
    down: Option<Down>,
    /// Since when it is up after it was down.
    up_since: Option<Instant>,
    /// Before this time connections cannot be begun, for a reason that is not the server's.
    unreached_until: Instant,
    checks: Option<CheckRow>,
}

/// Results of checks in a row, and how many make a difference.
#[derive(Clone, Copy, Debug)]
struct CheckRow {
    rise: u8,
    fall: u8,
    passed: u8,
    failed: u8,
}

/// A server that could not be reached.
#[derive(Clone, Copy, Debug)]
struct Down {
    since: Instant,
    /// Code of [`reason`](crate::reason).
    code: u32,
    back_off: Duration,
    /// When one connection may be tried.
    retry_at: Instant,
    /// A connection is being tried.
    on_trial: bool,
}

/// The state of a plain server, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlainState {
    /// The last connection was established, or none was tried yet.
    Up,
    /// Connections could not be established.
    Down {
        /// Since when.
        since: Instant,
        /// Why: a code of [`reason`](crate::reason).
        code: u32,
    },
}

impl Plain {
    /// Returns whether it gets connections like any other member.
    pub(super) fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Returns whether it may get one connection now.
    fn is_ready(&self, now: Instant) -> bool {
        let may_try = |down: Down| self.checks.is_none() && now >= down.retry_at && !down.on_trial;
        now >= self.unreached_until && self.down.is_none_or(may_try)
    }

    /// Returns when it may be tried again, if it is down.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.down.map(|down| down.retry_at)
    }

    /// Returns its state for display.
    pub(super) fn state(&self) -> PlainState {
        match self.down {
            None => PlainState::Up,
            Some(Down { since, code, .. }) => PlainState::Down { since, code },
        }
    }
}

impl Pools {
    /// Takes a plain server for a connection.
    pub(super) fn take_plain(&mut self, member: MemberId) {
        let Some(known) = self.get_mut(member) else { return };
        known.open += 1;
        let plain = known.plain.as_mut().filter(|plain| plain.checks.is_none());
        if let Some(down) = plain.and_then(|plain| plain.down.as_mut()) {
            down.on_trial = true;
        }
    }

    /// Records that a connection to a plain server is established.
    pub fn plain_up(&mut self, now: Instant, member: MemberId) {
        let Some(known) = self.get_mut(member) else { return };
        known.accepted += 1;
        if known.plain.as_ref().is_some_and(|plain| plain.checks.is_none()) {
            self.set_plain_up(now, member);
        }
    }

    fn set_plain_up(&mut self, now: Instant, member: MemberId) {
        let Some(plain) = self.get_mut(member).and_then(|known| known.plain.as_mut()) else { return };
        let Some(down) = plain.down.take() else { return };
        plain.up_since = Some(now);
        self.retries.remove(&(down.retry_at, member));
        self.readied = true;
        self.changed(member, Change::Up);
    }

    /// Replaces which plain servers are checked.
    pub fn set_checks(&mut self, checked: &BTreeMap<MemberId, Arc<CheckSpec>>) {
        for (at, known) in self.members.iter_mut().enumerate() {
            let Some(plain) = known.as_mut().and_then(|member| member.plain.as_mut()) else { continue };
            let spec = checked.get(&MemberId(at as u32));
            let (passed, failed) = plain.checks.map_or((0, 0), |row| (row.passed, row.failed));
            plain.checks = spec.map(|spec| CheckRow { rise: spec.rise, fall: spec.fall, passed, failed });
        }
    }

    /// Records the result of a check; the error is a code of [`reason`](crate::reason).
    pub fn checked(&mut self, now: Instant, member: MemberId, result: Result<(), u32>) {
        let Some(plain) = self.get_mut(member).and_then(|known| known.plain.as_mut()) else { return };
        let Some(row) = plain.checks.as_mut() else { return };
        match result {
            Ok(()) => {
                (row.passed, row.failed) = (row.passed.saturating_add(1), 0);
                if row.passed >= row.rise {
                    self.set_plain_up(now, member);
                }
            }
            Err(code) => {
                (row.passed, row.failed) = (0, row.failed.saturating_add(1));
                if row.failed >= row.fall {
                    self.plain_down(now, now, member, code);
                }
            }
        }
    }

    /// Records that a connection to a plain server could not be begun: it is no candidate for a while.
    pub fn plain_unreached(&mut self, now: Instant, member: MemberId) {
        let Some(plain) = self.get_mut(member).and_then(|known| known.plain.as_mut()) else { return };
        plain.unreached_until = now + BACK_OFF;
        self.retries.insert((now + BACK_OFF, member));
    }

    /// Records that a connection to a plain server, begun at `began`, could not be established, for the
    /// reason with this code. The connection must be [released](Self::release_plain) as well.
    pub fn plain_down(&mut self, now: Instant, began: Instant, member: MemberId, code: u32) {
        let Some(known) = self.get_mut(member) else { return };
        let Some(plain) = known.plain.as_mut() else { return };
        if let Some(row) = plain.checks.as_mut() {
            row.passed = 0;
        }
        let before = plain.down;
        // Connections that were under way when it went down do not prolong the time.
        if before.is_some_and(|down| now < down.retry_at || began <= down.since) {
            return;
        }
        let (since, back_off) = match before {
            None => (now, BACK_OFF),
            Some(down) => (down.since, (down.back_off * 2).min(BACK_OFF_MAX)),
        };
        let retry_at = now + back_off;
        plain.down = Some(Down { since, code, back_off, retry_at, on_trial: false });
        if before.is_none() {
            known.unserved_since = now;
            self.readied = true; // those that wait for it may go to a backup
            self.changed(member, Change::Down(code));
        }
        if let Some(down) = before {
            self.retries.remove(&(down.retry_at, member));
        }
        self.retries.insert((retry_at, member));
    }

    /// Releases a connection to a plain server. `tried`: it was not established, and did not fail either.
    pub fn release_plain(&mut self, member: MemberId, tried: bool) {
        let Some(known) = self.get_mut(member) else { return };
        known.open = known.open.saturating_sub(1);
        if tried && let Some(down) = known.plain.as_mut().and_then(|plain| plain.down.as_mut()) {
            down.on_trial = false;
        }
        // A bound of its connections may have kept others waiting.
        self.readied = true;
        self.remove_if_unused(member);
    }

    /// Returns whether a member is a plain server that is checked.
    pub(crate) fn is_checked(&self, member: MemberId) -> bool {
        let plain = self.get(member).and_then(|member| member.plain.as_ref());
        plain.is_some_and(|plain| plain.checks.is_some())
    }

    /// Returns which part of its share a member gets, of [`WARM`].
    pub(crate) fn warmth(&self, now: Instant, member: MemberId, slow_start: Duration) -> u64 {
        self.get(member).map_or(WARM, |member| member.warmth(now, slow_start))
    }

    /// Returns when a plain server that is down can be tried.
    pub fn retry_deadline(&self) -> Option<Instant> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Makes waiting connections look for a plain server whose time is over.
    pub fn retry(&mut self, now: Instant) {
        while self.retries.first().is_some_and(|(at, _)| *at <= now) {
            self.retries.pop_first();
            self.readied = true;
        }
    }
}

impl Member {
    /// Returns the state of a plain server.
    pub fn plain_state(&self) -> Option<PlainState> {
        self.plain.as_ref().map(Plain::state)
    }

    /// Returns the address of a plain server.
    pub(crate) fn plain_address(&self) -> Option<SocketAddr> {
        match self.host {
            ServerHost::Address(address) => Some((address, self.port).into()),
            ServerHost::Node(_) => None,
        }
    }

    /// Returns whether it can get connections: a process listens, or the plain server is up.
    pub(super) fn is_served(&self) -> bool {
        self.listeners > 0 || self.plain.as_ref().is_some_and(Plain::is_up)
    }

    /// Returns whether this is a plain server that may get one connection now.
    pub(super) fn plain_ready(&self, now: Instant, candidate: &Candidate) -> bool {
        let is_ready = |plain: &Plain| match candidate.even_down && plain.checks.is_some() {
            true => now >= plain.unreached_until,
            false => plain.is_ready(now),
        };
        self.open < candidate.connections_max && self.plain.as_ref().is_some_and(is_ready)
    }

    /// Returns which part of its share it gets, of [`WARM`]: less while it is up again for less than
    /// `slow_start`.
    pub(super) fn warmth(&self, now: Instant, slow_start: Duration) -> u64 {
        let up = self.plain.as_ref().and_then(|plain| plain.up_since);
        let Some(up) = up.map(|since| now.saturating_since(since)).filter(|up| *up < slow_start) else {
            return WARM;
        };
        let part = u128::from(WARM) * up.as_nanos() / slow_start.as_nanos().max(1);
        (part as u64).max(WARMTH_MIN)
    }
}
