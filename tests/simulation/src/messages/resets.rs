//! Observes which byte streams a proxy has cut short: resets that were sent before all that was written had
//! arrived, because the client had acknowledged too little for too long (decision 0073).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use csp_tcp::{Stack, State};

/// Resets of one proxy.
#[derive(Default)]
pub(super) struct Resets {
    /// How many were overdue.
    overdue: u64,
    /// Clients whose reset waits.
    waiting: BTreeSet<SocketAddr>,
    /// Clients whose reset was overdue.
    cut_short: BTreeSet<SocketAddr>,
}

impl Resets {
    /// To be called at each instant, after the proxy's turns.
    pub(super) fn observe(&mut self, tcp: &Stack) {
        let waiting = tcp.connections().filter(|c| c.state == State::Resetting).map(|c| c.tuple.remote);
        let waiting = waiting.collect();
        let overdue = tcp.counters().resets_overdue;
        if overdue > self.overdue {
            self.cut_short.extend(self.waiting.difference(&waiting));
        }
        (self.overdue, self.waiting) = (overdue, waiting);
    }

    /// Returns whether the stream of this client may have been cut short.
    pub(super) fn has_cut_short(&self, client: &SocketAddr) -> bool {
        self.cut_short.contains(client)
    }
}
