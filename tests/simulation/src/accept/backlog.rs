//! Looks into the proxy's backlog now and then: connections leave it in the order of their arrival, whether they came
//! into it at first or were handed back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use csp_proxy_node::core::ProxyCore;
use csp_types::{Duration, FlowLabel, Instant};

/// Time between two looks, while connections wait.
const LOOK_REST: Duration = Duration::from_millis(10);

/// The backlog as it was at the last look.
#[derive(Default)]
pub(super) struct BacklogWatch {
    at: Instant,
    waiting: BTreeSet<FlowLabel>,
}

impl BacklogWatch {
    /// Compares the backlog with that of the last look: of the connections that waited then, all that have been offered
    /// since came before all that have waited on. `arrivals`: when each connection was established.
    pub(super) fn look(
        &mut self,
        now: Instant,
        core: &ProxyCore,
        arrivals: &BTreeMap<FlowLabel, (Instant, SocketAddr)>,
        violations: &mut Vec<String>,
    ) {
        if now < self.at + LOOK_REST {
            return;
        }
        let last = std::mem::replace(&mut self.at, now);
        let before = std::mem::take(&mut self.waiting);
        if core.services().iter().all(|service| service.pending == 0) {
            return;
        }
        let since_last_s = (now - last).as_secs_f64();
        let (mut offered, mut waited) = (None, None);
        for flow in core.flows(now, usize::MAX) {
            let pending = flow.state.ends_with("pending");
            if pending {
                self.waiting.insert(flow.label);
            }
            let Some(arrival) = arrivals.get(&flow.label).filter(|_| before.contains(&flow.label)) else {
                continue;
            };
            // One that was offered and handed back since has begun to wait again.
            if pending && flow.age_s >= since_last_s {
                waited = Some(waited.map_or(*arrival, |first: (Instant, _)| first.min(*arrival)));
            } else {
                offered = offered.max(Some(*arrival));
            }
        }
        if let (Some(offered), Some(waited)) = (offered, waited)
            && waited.0 < offered.0
        {
            violations
                .push(format!("at {now:?} {waited:?} waits, and {offered:?} was offered after {last:?}"));
        }
    }
}
