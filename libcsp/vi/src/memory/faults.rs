//! Faults and delays that a test injects into a fabric.

use csp_types::Duration;

use super::MemoryFabric;
use crate::ViId;

/// The fate of messages in flight when a VI or node dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlight {
    /// They arrive, as when a process on the same host dies.
    Delivered,
    /// They are lost, as when a host dies.
    Lost,
}

/// The delay of messages: `fixed`, plus less than `jitter` at random from the fabric's seed. The order within
/// a VI is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delay {
    /// Added to every message.
    pub fixed: Duration,
    /// Exclusive bound of the random part.
    pub jitter: Duration,
}

impl MemoryFabric {
    /// Sets the delay of ends created from now on.
    pub fn set_default_delay(&self, delay: Delay) {
        let mut state = self.lock();
        state.default_delay = delay.fixed;
        state.default_jitter = delay.jitter;
    }

    /// Sets the delay of what end `vi` sends from now on. Returns `false` if there is no such end.
    pub fn set_delay(&self, vi: ViId, delay: Delay) -> bool {
        let mut state = self.lock();
        let Some(end) = state.ends.get_mut(vi.0) else { return false };
        end.delay = delay.fixed;
        end.jitter = delay.jitter;
        true
    }

    /// Kills a connected VI: both ends see an unclean disconnect. Returns `false` if `vi` is not connected.
    pub fn kill_vi(&self, vi: ViId, in_flight: InFlight) -> bool {
        let mut state = self.lock();
        let Some(peer) = state.ends.get(vi.0).and_then(|end| end.peer) else { return false };
        for id in [vi.0, peer] {
            let due = state.ends.get(id).map_or(state.now, |end| end.last_due.max(state.now));
            state.lose_peer(if id == vi.0 { peer } else { vi.0 }, due, false, in_flight);
        }
        true
    }

    /// Makes VIs breakable from now on, as those between hosts are ([`crate::Provider::can_break`]). Costs a
    /// copy of each message.
    pub fn let_break(&self) {
        self.lock().breakable = true;
    }

    /// Breaks a connected VI whose ends live. Of the messages in flight only a random number of the first
    /// arrive, and the sender learns of a random number of these. The event is due at the end `vi` after the
    /// first of the two times, at its peer after the second; a send may fail before the event is polled.
    /// Returns `false` if `vi` is not connected.
    pub fn break_vi(&self, vi: ViId, reported_after: (Duration, Duration)) -> bool {
        self.lock().break_vi(vi.0, reported_after)
    }

    /// Kills a node: its VIs disconnect uncleanly, its listeners end and its provider fails. Returns `false`
    /// if no live node has the name.
    pub fn kill_node(&self, name: &str, in_flight: InFlight) -> bool {
        let mut state = self.lock();
        let Some(node) = state.node_named(name) else { return false };
        state.kill_node(node, in_flight);
        true
    }

    /// Stops (`true`) or resumes (`false`) delivery to a node, as for a stopped process: messages to it wait.
    /// Returns `false` if no live node has the name.
    pub fn pause_node(&self, name: &str, paused: bool) -> bool {
        let mut state = self.lock();
        let Some(node) = state.node_named(name) else { return false };
        state.nodes[node].paused = paused;
        state.wake_ready_nodes();
        true
    }

    /// Cuts (`true`) or mends (`false`) the way between two nodes, by name. Neither end of a VI between them
    /// receives a message or an event meanwhile, and requests of new VIs wait: all of it arrives when the way
    /// is mended, unless its receiver has given up.
    pub fn cut(&self, one: &str, other: &str, cut: bool) {
        let mut state = self.lock();
        state.cuts.retain(|[a, b]| (a.as_str(), b.as_str()) != (one, other));
        if cut {
            state.cuts.push([one.to_owned(), other.to_owned()]);
        }
        state.wake_ready_nodes();
    }

    /// Hides a node (`true`): new connections to it find no listener, as while the network to it is down. Its
    /// VIs remain. Returns `false` if no live node has the name.
    pub fn hide_node(&self, name: &str, hidden: bool) -> bool {
        let mut state = self.lock();
        let Some(node) = state.node_named(name) else { return false };
        state.nodes[node].hidden = hidden;
        true
    }
}
