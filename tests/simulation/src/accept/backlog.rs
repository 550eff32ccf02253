//! Examines the proxy's backlog at intervals: connections leave it in the order of their arrival, whether
//! they entered it on arrival or were handed back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use csp_proxy_node::core::ProxyCore;
use csp_proxy_node::core::service::local::LocalServices;
use csp_types::{Duration, FlowLabel, Instant};

/// Time between two examinations, while connections wait.
const LOOK_REST: Duration = Duration::from_millis(10);

/// The backlog at the last examination.
#[derive(Default)]
pub(super) struct BacklogWatch {
    at: Instant,
    waiting: BTreeSet<FlowLabel>,
}

impl BacklogWatch {
    /// Compares the backlog with that of the last examination: of the connections that waited then, those
    /// offered since must have arrived before all that still wait. `arrivals`: when each connection was
    /// established.
    pub(super) fn look(
        &mut self,
        now: Instant,
        core: &ProxyCore<impl LocalServices>,
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
            // A connection that was offered and handed back since then has begun to wait again.
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
