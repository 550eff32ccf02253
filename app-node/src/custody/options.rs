//! Options of connections in custody, which processes that share a connection set by its ticket. An option
//! may arrive before its connection, which comes over the socket of another process.

use std::collections::{HashMap, VecDeque};

use csp_app::{AppSide, FlowId};
use csp_types::{Duration, Instant};
use csp_wire::agent::CarriedOption;
use csp_wire::channel::Ticket;

/// Largest number of options that wait for their connections; the oldest is dropped for a new one.
const EARLY_MAX: usize = 1024;
/// How long an option waits for its connection.
const EARLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The tickets of the connections, and the options that came before them.
#[derive(Default)]
pub(super) struct Options {
    flows: HashMap<Ticket, FlowId>,
    early: VecDeque<(Instant, CarriedOption)>,
}

impl Options {
    /// Records a connection that was taken over, and sets its options that came before.
    pub fn taken(&mut self, side: &mut AppSide, now: Instant, ticket: Ticket, flow: FlowId) {
        self.flows.insert(ticket, flow);
        self.early.retain(|(since, early)| {
            if early.ticket == ticket {
                apply(side, now, flow, early);
            }
            early.ticket != ticket && now.saturating_since(*since) < EARLY_TIMEOUT
        });
    }

    /// Removes a connection that has ended.
    pub fn ended(&mut self, ticket: Ticket) {
        self.flows.remove(&ticket);
    }

    /// Sets an option, or keeps it for its connection.
    pub fn set(&mut self, side: &mut AppSide, now: Instant, option: CarriedOption) {
        if let Some(flow) = self.flows.get(&option.ticket) {
            return apply(side, now, *flow, &option);
        }
        if self.early.len() == EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back((now, option));
    }

    /// Number of options that wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.early.len()
    }
}

fn apply(side: &mut AppSide, now: Instant, flow: FlowId, option: &CarriedOption) {
    // Fails for a connection that has ended, which does not need it.
    let _ = side.set_option(now, flow, option.option, option.value);
}
