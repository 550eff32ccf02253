//! Clients that acknowledge nothing of the data sent to them: their flows are dropped when all send memory is
//! granted.
//!
//! Otherwise clients that never read would exclude all others: their windows stay granted as long as their
//! connections exist, and a client that answers window probes keeps its connection for ever (RFC 9293
//! §3.8.6.1).

use csp_tcp::Stack;
use csp_types::{Duration, FlowLabel, Instant};

use super::Pump;
use crate::client;
use crate::flow::FlowTable;

/// Clients stalled for less than this are not dropped: a path may be interrupted for some seconds.
const STALL_MIN: Duration = Duration::from_secs(10);
/// Interval between scans of the flow table, and number of flows per scan: the cost is bounded, however many
/// connections are refused meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOK_FLOWS_MAX: usize = 4_096;
/// Largest number of stalled flows kept per scan.
const FOUND_MAX: usize = 64;

/// The result of the last scan.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// The flow that has been stalled longest is last.
    found: Vec<FlowLabel>,
    looked: Option<Instant>,
    /// The slot where the next scan continues.
    cursor: usize,
}

/// Returns since when the client has acknowledged nothing of the data sent to it, if that is long enough.
fn stalled_since(tcp: &Stack, now: Instant, label: FlowLabel) -> Option<Instant> {
    client::unacknowledged_since(tcp, label).filter(|since| now.saturating_since(*since) >= STALL_MIN)
}

impl Pump {
    /// Returns a flow whose client has been stalled for long, to be dropped if no window is left.
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
