//! Events that are noticed by comparing: conditions, generations, and counters of bounds that rose.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_api::events::What;
use csp_api::{ConditionState, Text};
use csp_control::ControlStatus;
use csp_telemetry::{Exposition, Readiness};
use tokio::time::Instant;

use super::Events;

/// A condition that is not well is an event once it lasts so long: daemons need a moment to start.
const LASTS: Duration = Duration::from_secs(1);
/// Interval at which counters of bounds are looked at.
const LIMITS_INTERVAL: Duration = Duration::from_secs(10);

/// Reasons of `csp_drops_total` that are bounds of a node (docs/limits.md). The others are what strangers and
/// lossy networks do.
const BOUNDS: [&str; 20] = [
    "answer_limit",
    "backlog_time",
    "fragment_room",
    "kernel_full",
    "lan_receive_overrun",
    "lan_transmit_full",
    "no_budget",
    "not_taken_over",
    "peers_full",
    "plugin_kernel_full",
    "san_stranger_evicted",
    "san_user_share",
    "search_limit",
    "table_full",
    "tcp_backlog_full",
    "tcp_cookie_queue_full",
    "tcp_table_full",
    "tunnel_full",
    "no_proxy",
    "no_server",
];

/// What was seen last.
#[derive(Debug)]
pub(crate) struct Notices {
    node: Text,
    /// By condition: the state that was recorded, and since when another one lasts.
    conditions: BTreeMap<String, (ConditionState, Option<Instant>)>,
    staged: u64,
    active: u64,
    drops: BTreeMap<String, u64>,
    limits_at: Instant,
}

impl Notices {
    pub(crate) fn new(node: Text) -> Notices {
        let (conditions, drops) = (BTreeMap::new(), BTreeMap::new());
        Notices { node, conditions, staged: 0, active: 0, drops, limits_at: Instant::now() }
    }

    /// Records what changed since the last call.
    pub(crate) fn look(
        &mut self,
        events: &Events,
        readiness: &Readiness,
        status: &ControlStatus,
        metrics: &Exposition,
    ) {
        self.conditions(events, readiness);
        let staged = std::mem::replace(&mut self.staged, status.staged_generation);
        if status.staged_generation > staged {
            events.record(&What::PolicyStagedHere { generation: status.staged_generation });
        }
        let active = std::mem::replace(&mut self.active, status.active_generation);
        if status.active_generation != active && status.active_generation > 0 {
            events.record(&What::PolicyActiveHere { generation: status.active_generation });
        }
        if self.limits_at.elapsed() >= LIMITS_INTERVAL {
            let interval_s = self.limits_at.elapsed().as_secs();
            self.limits_at = Instant::now();
            self.limits(events, metrics, interval_s);
        }
    }

    fn conditions(&mut self, events: &Events, readiness: &Readiness) {
        for condition in readiness.conditions() {
            let known = self.conditions.entry(condition.name.to_string());
            let (recorded, since) = known.or_insert((ConditionState::Ok, None));
            if *recorded == condition.state {
                *since = None;
                continue;
            }
            let lasts = since.get_or_insert_with(Instant::now).elapsed();
            if condition.state != ConditionState::Ok && lasts < LASTS {
                continue;
            }
            (*recorded, *since) = (condition.state, None);
            events.record(&What::ConditionChanged {
                node: self.node.clone(),
                condition: condition.name,
                state: condition.state,
                reason: condition.reason,
            });
        }
    }

    fn limits(&mut self, events: &Events, metrics: &Exposition, interval_s: u64) {
        for (reason, total) in metrics.sums("csp_drops", "reason") {
            if !BOUNDS.contains(&reason.as_str()) {
                continue;
            }
            let before = self.drops.insert(reason.clone(), total).unwrap_or(0);
            let count = total.saturating_sub(before);
            if count > 0 {
                events.record(&What::LimitReached { reason: reason.into(), count, interval_s });
            }
        }
    }
}
