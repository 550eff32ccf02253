//! Who gives way when the memory for sending is all granted: clients that take nothing of what waits for them.
//!
//! Without this, clients that never read would keep out all others: their windows stay granted for as long as their
//! connections live, which a client that answers window probes decides (RFC 9293 §3.8.6.1).

use csp_types::{Duration, FlowLabel, Instant};
use csp_wire::channel::{MessageHeader, MessageKind};

use super::flow::Stage;
use super::{ProxyCore, ProxyOutput, reason};

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

impl ProxyCore {
    /// A window for a new flow; where none is left, flows that are stalled give way. `None`: there are none either.
    pub(super) fn reserve_window(&mut self, now: Instant, out: &mut impl ProxyOutput) -> Option<u32> {
        loop {
            if let Some(window) = self.budget.reserve() {
                return Some(window);
            }
            let label = self.next_stalled(now)?;
            self.give_up(now, label, out);
        }
    }

    /// Since when the client has taken nothing of what waits for it, if that is long enough.
    fn stalled_since(&self, now: Instant, label: FlowLabel) -> Option<Instant> {
        self.tcp.unacknowledged_since(label).filter(|since| now.saturating_since(*since) >= STALL_MIN)
    }

    fn next_stalled(&mut self, now: Instant) -> Option<FlowLabel> {
        loop {
            while let Some(label) = self.stalled.found.pop() {
                if self.flows.get(label).is_some() && self.stalled_since(now, label).is_some() {
                    return Some(label);
                }
            }
            if self.stalled.looked.is_some_and(|at| now.saturating_since(at) < LOOK_INTERVAL) {
                return None;
            }
            self.look_for_stalled(now);
        }
    }

    fn look_for_stalled(&mut self, now: Instant) {
        let part = self.flows.part(self.stalled.cursor, LOOK_FLOWS_MAX).map(|flow| flow.label);
        let stalled = part.filter_map(|label| Some((self.stalled_since(now, label)?, label)));
        let mut found: Vec<_> = stalled.take(FOUND_MAX).collect();
        found.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        self.stalled.found.extend(found.into_iter().map(|(_, label)| label));
        self.stalled.cursor = (self.stalled.cursor + LOOK_FLOWS_MAX) % self.flows.capacity().max(1);
        self.stalled.looked = Some(now);
    }

    fn give_up(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        self.counters.stalled_given_up += 1;
        let told = self.flows.get(label).filter(|flow| matches!(flow.stage, Stage::Open(_))).map(|f| f.lane);
        if let Some(lane) = told {
            let reset = MessageHeader::of_flow(MessageKind::Reset, label, reason::TIMED_OUT, 0);
            let _ = out.channel(lane, reset, &[]); // a lost channel reports itself down
        }
        self.abandon(now, label);
    }
}
