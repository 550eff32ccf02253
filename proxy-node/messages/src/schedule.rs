//! The order in which a worker serves its channels, and how much it does for one before the next.
//!
//! [`RoundRobin`] divides a worker among channels with work. Information flows are divided before their
//! messages reach queues (`csp_quality`).

use crate::channel::Channel;
use crate::list::{Links, List};

/// Most work for a flow in one turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnBudget {
    /// Messages delivered.
    pub messages: u32,
    /// Bytes delivered. The last message of a turn may exceed it; the flow's later turns are shorter by as
    /// much.
    pub bytes: u32,
}

impl Default for TurnBudget {
    fn default() -> Self {
        TurnBudget { messages: 64, bytes: 64 * 1024 }
    }
}

/// The rest of a flow's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "pass it to RoundRobin::end_turn"]
pub struct Turn {
    /// Index of the flow: of a channel, or after these of a context; within a context, of a queue.
    pub flow: u16,
    messages: u32,
    bytes: i64,
}

impl Turn {
    /// Records a delivery of `len` bytes.
    pub fn charge(&mut self, len: u32) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes -= i64::from(len);
    }

    /// Returns whether the budget is used up.
    pub fn is_over(&self) -> bool {
        self.messages == 0 || self.bytes <= 0
    }
}

/// Serves flows with work one after the other, with equal budgets.
#[derive(Debug)]
pub struct RoundRobin {
    budget: TurnBudget,
    active: List,
    links: Links,
    /// By flow: bytes by which earlier turns exceeded the budget.
    debts: Vec<i64>,
}

impl RoundRobin {
    /// A schedule of `flows` flows, all without work.
    pub fn new(budget: TurnBudget, flows: usize) -> Self {
        let budget = TurnBudget { messages: budget.messages.max(1), bytes: budget.bytes.max(1) };
        RoundRobin { budget, active: List::EMPTY, links: Links::new(flows), debts: vec![0; flows] }
    }

    /// Records whether `flow` has work.
    pub fn set_active(&mut self, flow: u16, active: bool) {
        if active {
            self.active.push_back(&mut self.links, u32::from(flow));
        } else {
            self.active.remove(&mut self.links, u32::from(flow));
        }
    }

    /// Returns whether a flow has work.
    pub fn has_work(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns the turn of the next flow with work; `None` if no flow has any.
    pub fn next_flow(&mut self) -> Option<Turn> {
        let bytes = i64::from(self.budget.bytes);
        loop {
            let slot = self.active.front()?;
            let alone = self.active.after(&self.links, slot).is_none();
            self.active.rotate(&mut self.links, slot);
            let debt = self.debts.get_mut(slot as usize)?;
            if alone {
                *debt = 0;
            }
            // Each pass pays for one turn, so that the loop ends after (longest message / budget) rounds.
            let left = bytes - *debt;
            *debt = (*debt - bytes).max(0);
            if left > 0 {
                return Some(Turn { flow: slot as u16, messages: self.budget.messages, bytes: left });
            }
        }
    }

    /// Records the use of a turn.
    pub fn end_turn(&mut self, turn: Turn) {
        if let Some(debt) = self.debts.get_mut(usize::from(turn.flow)) {
            *debt = (-turn.bytes).max(0);
        }
    }
}

/// The turns of a worker: those of its channels, then those of its contexts.
#[derive(Debug)]
pub(crate) struct Schedule {
    turns: RoundRobin,
    /// Number of channels. The first context has the flow behind them.
    channels: u16,
}

impl Schedule {
    /// A schedule of so many channels and contexts, all without work.
    pub fn new(budget: TurnBudget, channels: u16, contexts: u16) -> Self {
        let flows = usize::from(channels) + usize::from(contexts);
        Schedule { turns: RoundRobin::new(budget, flows), channels }
    }

    /// Records whether a channel has messages for receivers that have room.
    #[inline]
    pub fn set_channel(&mut self, slot: u16, ch: &Channel) {
        self.turns.set_active(slot, !ch.pending.is_empty());
    }

    /// Records whether a context has messages to process.
    pub fn set_context(&mut self, context: u16, active: bool) {
        self.turns.set_active(self.channels + context, active);
    }

    /// Returns the context whose turn it is; `None`: the turn is a channel's.
    pub fn context_of(&self, turn: &Turn) -> Option<u16> {
        turn.flow.checked_sub(self.channels)
    }

    /// Returns the next turn; `None` if there is no work.
    pub fn next_flow(&mut self) -> Option<Turn> {
        self.turns.next_flow()
    }

    /// Records the use of a turn.
    pub fn end_turn(&mut self, turn: Turn) {
        self.turns.end_turn(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves flows that always have work, with messages of the given lengths; returns the bytes of each.
    fn serve(lens: &[u32], turns: usize) -> Vec<u64> {
        let mut schedule = RoundRobin::new(TurnBudget { messages: 100, bytes: 10_000 }, lens.len());
        (0..lens.len()).for_each(|flow| schedule.set_active(flow as u16, true));
        let mut served = vec![0; lens.len()];
        for _ in 0..turns {
            let mut turn = schedule.next_flow().unwrap();
            let flow = usize::from(turn.flow);
            while !turn.is_over() {
                turn.charge(lens[flow]);
                served[flow] += u64::from(lens[flow]);
            }
            schedule.end_turn(turn);
        }
        served
    }

    #[test]
    fn long_messages_give_no_larger_share() {
        let served = serve(&[1_000, 600, 64_000, 9_999], 10_000);
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(*most as f64 <= *least as f64 * 1.02, "{served:?}");
    }

    #[test]
    fn a_turn_ends_after_its_messages_too() {
        let served = serve(&[1, 1_000], 1_000);
        assert_eq!(served, [100 * 500, 10_000 * 500]);
    }

    #[test]
    fn only_flows_with_work_have_turns() {
        let mut schedule = RoundRobin::new(TurnBudget::default(), 3);
        assert!(schedule.next_flow().is_none());
        [2, 0].into_iter().for_each(|flow| schedule.set_active(flow, true));
        let order: Vec<u16> = (0..4).filter_map(|_| schedule.next_flow()).map(|turn| turn.flow).collect();
        assert_eq!(order, [2, 0, 2, 0]);
        schedule.set_active(2, false);
        assert_eq!(schedule.next_flow().map(|turn| turn.flow), Some(0));
        schedule.set_active(7, true);
        assert_eq!(schedule.next_flow().map(|turn| turn.flow), Some(0), "an unknown flow is ignored");
    }
}
