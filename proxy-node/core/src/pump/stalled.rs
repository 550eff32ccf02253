//! Clients that take nothing of what waits for them: their flows give way when the memory for sending is all granted.
//!
//! Without this, clients that never read would keep out all others: their windows stay granted for as long as their
//! connections live, and a client that answers window probes keeps its connection for ever (RFC 9293 §3.8.6.1).

use csp_tcp::Stack;
use csp_types::{Duration, FlowLabel, Instant};

use super::Pump;
use crate::flow::FlowTable;

/// Clients that took nothing for less than this are left alone: a path may be broken for some seconds.
const STALL_MIN: Duration = Duration::from_secs(10);
/// How often the table is looked through, and how much of it at once: what that costs is bounded, however many
/// connections are refused meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOK_FLOWS_MAX: usize = 4_096;
/// Stalled flows that one look remembers.
const FOUND_MAX: usize = 64;

/// What the last look found.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// The longest stalled last.
    found: Vec<FlowLabel>,
    looked: Option<Instant>,
    /// Where the next look goes on.
    cursor: usize,
}

/// Since when the client has taken nothing of what waits for it, if that is long enough.
fn stalled_since(tcp: &Stack, now: Instant, label: FlowLabel) -> Option<Instant> {
    tcp.unacknowledged_since(label).filter(|since| now.saturating_since(*since) >= STALL_MIN)
}

impl Pump {
    /// A flow whose client has taken nothing for long: it is to give way where no window is left.
    pub(crate) fn next_stalled(&mut self, now: Instant, flows: &FlowTable, tcp: &Stack) -> Option<FlowLabel> {
        loop {
            while let Some(label) = self.stalled.found.pop() {
                if flows.get(label).is_some() && stalled_since(tcp, now, label).is_some() {
                    return Some(label);
                }
            }
            if self.stalled.looked.is_some_and(|at| now.saturating_since(at) < LOOK_INTERVAL) {
                return None;
            }
            self.stalled.look(now, flows, tcp);
        }
    }
}

impl Stalled {
    fn look(&mut self, now: Instant, flows: &FlowTable, tcp: &Stack) {
        let part = flows.part(self.cursor, LOOK_FLOWS_MAX).map(|flow| flow.label);
        let stalled = part.filter_map(|label| Some((stalled_since(tcp, now, label)?, label)));
        let mut found: Vec<_> = stalled.take(FOUND_MAX).collect();
        found.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        self.found.extend(found.into_iter().map(|(_, label)| label));
        self.cursor = (self.cursor + LOOK_FLOWS_MAX) % flows.capacity().max(1);
        self.looked = Some(now);
    }
}
