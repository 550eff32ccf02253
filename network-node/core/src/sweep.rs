//! What is done to the flows of a proxy worker that is gone: a part of the table at a time, so that frames
//! are received in between.
//!
//! A flow that is found before its turn has come is treated at once, so that packets see the table as it is
//! after the whole pass.

use csp_types::{FourTuple, Instant};

use super::api::ProxyId;
use super::flow_table::{Flow, FlowIndex, FlowState};
use super::node::NetworkCore;

/// Slots of the flow table that one call looks at, and flows that it changes: together some 200 µs.
const SLOTS_PER_CALL: usize = 8192;
const FLOWS_PER_CALL: usize = 1024;

/// What becomes of the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// They are removed: their next segments go to other workers.
    Remove,
    /// Those with a label lose it, and are kept, as if they had lost it at this time.
    Unbind(Instant),
}

/// A pass over the flow table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    proxy: ProxyId,
    /// `None`: all of the proxy.
    worker: Option<u8>,
    act: Act,
    /// The next slot.
    next: usize,
}

impl Sweep {
    fn concerns(&self, flow: &Flow) -> bool {
        flow.proxy == self.proxy
            && self.worker.is_none_or(|worker| worker == flow.worker)
            && (self.act == Act::Remove || flow.state == FlowState::Bound)
    }
}

impl NetworkCore {
    /// Begins to remove the flows of a proxy, or of one of its workers.
    pub(super) fn remove_flows(&mut self, proxy: ProxyId, worker: Option<u8>) {
        self.begin(Sweep { proxy, worker, act: Act::Remove, next: 0 });
    }

    /// Begins to take the labels of a worker's flows.
    pub(super) fn unbind_flows(&mut self, now: Instant, proxy: ProxyId, worker: u8) {
        self.begin(Sweep { proxy, worker: Some(worker), act: Act::Unbind(now), next: 0 });
    }

    fn begin(&mut self, sweep: Sweep) {
        self.sweeps.push_back(sweep);
        self.sweep();
    }

    /// Goes on with the passes that have begun.
    pub(super) fn sweep(&mut self) {
        let mut changed = 0;
        for _ in 0..SLOTS_PER_CALL {
            let Some(sweep) = self.sweeps.front_mut() else { return };
            let (index, pass) = (FlowIndex(sweep.next as u32), *sweep);
            sweep.next += 1;
            if sweep.next >= self.flows.capacity() {
                self.sweeps.pop_front();
            }
            changed += usize::from(self.treat(index, &pass));
            if changed == FLOWS_PER_CALL {
                return;
            }
        }
    }

    /// Ends the passes over a proxy's flows, since it may get new ones.
    pub(super) fn finish_sweeps(&mut self, proxy: ProxyId) {
        while self.sweeps.iter().any(|sweep| sweep.proxy == proxy) {
            self.sweep();
        }
    }

    /// Returns the flow of a tuple, as it is after all passes that have begun.
    #[inline]
    pub(super) fn find_flow(&mut self, hash: u64, tuple: &FourTuple) -> Option<FlowIndex> {
        let index = self.flows.find(hash, tuple)?;
        for at in 0..self.sweeps.len() {
            let pass = self.sweeps[at];
            if pass.next <= index.0 as usize && self.treat(index, &pass) && pass.act == Act::Remove {
                return None;
            }
        }
        Some(index)
    }

    /// Treats one flow; returns whether it is concerned.
    fn treat(&mut self, index: FlowIndex, pass: &Sweep) -> bool {
        if !self.flows.flow(index).is_some_and(|flow| pass.concerns(flow)) {
            return false;
        }
        match pass.act {
            Act::Remove => {
                self.remove_flow(index);
                self.counters.flows_lost += 1;
            }
            Act::Unbind(since) => {
                self.unbind(index);
                self.flows.set_state(since, index, FlowState::Lingering);
            }
        }
        true
    }
}
