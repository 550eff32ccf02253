//! State of one listening socket of a process.

use std::net::IpAddr;

use csp_types::Instant;

use super::{MemberId, UNANSWERED_MAX};

/// Why a listener was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// [`MEMBERS_MAX`](super::MEMBERS_MAX), or another bound of listeners, is reached.
    Full,
    /// The channel uses this listener id already.
    Duplicate,
}

/// A process's listening socket at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) member: MemberId,
    /// The address that it is bound to.
    pub(super) address: IpAddr,
    pub(super) credit: u32,
    pub(super) open: u32,
    /// Number of open offers that the process has not answered.
    pub(super) unanswered: u32,
    /// Since when the process is in doubt; zero if it is not.
    pub(super) doubted: Instant,
    /// One of the unanswered offers is overdue.
    pub(super) slow: bool,
}

impl Listener {
    /// Returns whether it can be offered connections.
    pub(super) fn is_ready(&self) -> bool {
        self.credit > 0 && self.unanswered < UNANSWERED_MAX && !self.slow
    }

    /// Records that an offer was answered or voided.
    pub(super) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.slow &= self.unanswered > 0;
    }
}
