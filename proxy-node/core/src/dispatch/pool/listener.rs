//! What is known of one listening socket of a process.

use std::net::IpAddr;

use csp_types::Instant;

use super::{MemberId, UNANSWERED_MAX};

/// A process' listening socket at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) member: MemberId,
    /// Where it is bound.
    pub(super) address: IpAddr,
    pub(super) credit: u32,
    pub(super) open: u32,
    /// Offers among the open ones that the process has not answered.
    pub(super) unanswered: u32,
    /// Since when it is in doubt; zero: it is not.
    pub(super) doubted: Instant,
    /// One of the unanswered offers is overdue.
    pub(super) slow: bool,
}

impl Listener {
    /// Whether it takes offers.
    pub(super) fn is_ready(&self) -> bool {
        self.credit > 0 && self.unanswered < UNANSWERED_MAX && !self.slow
    }

    /// An offer was answered, or is void.
    pub(super) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.slow &= self.unanswered > 0;
    }
}
