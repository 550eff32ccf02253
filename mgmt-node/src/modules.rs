//! Supplied modules get to nodes that lack them, those that joined later, or have lost their disk: modules of
//! handlers to proxies, modules of packet plug-ins to network nodes.
//!
//! ```text
//!   policy ─ names ─▶ module ─ GET ─ a node that has it ─▶ leader ─ PUT ─▶ nodes that lack it
//! ```
//! The nodes are the store. The leader compares before it publishes a policy, and whenever nodes or the
//! policy in force have changed.

use std::collections::BTreeSet;
use std::time::Duration;

use csp_api::plugins::StoredModules;
use csp_policy::Policy;

use crate::fanout::{AskError, Target};
use crate::handler_routes::{COMPILE_TIMEOUT, HANDLERS, Kind, PLUGINS};
use crate::views::Cluster;

/// How often the leader looks whether anything has changed.
const BEAT: Duration = Duration::from_secs(1);

/// What was in order when it was looked at: the policy in force, and the nodes with the starts of their
/// daemons.
type Seen = (u64, Vec<(String, u64)>);

/// Gives nodes what they lack, for ever, while this node leads.
pub async fn run(cluster: &Cluster) {
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut in_order: Option<Seen> = None;
    loop {
        beat.tick().await;
        if cluster.leadership.borrow().fence().is_none() {
            in_order = None;
            continue;
        }
        let Some(active) = cluster.policy.known().active else { continue };
        let nodes = {
            let membership = cluster.membership.borrow();
            let nodes = [HANDLERS.role, PLUGINS.role].into_iter().flat_map(|role| membership.of_role(role));
            nodes.map(|member| (member.record.id.to_string(), member.record.incarnation)).collect()
        };
        let now = (active.generation, nodes);
        if in_order.as_ref() != Some(&now) {
            in_order = distribute(cluster, &active.policy).await.then_some(now);
        }
    }
}

/// Gives all nodes the modules that a policy names. Returns whether all have them.
pub async fn distribute(cluster: &Cluster, policy: &Policy) -> bool {
    let handlers = distribute_kind(cluster, policy, &HANDLERS).await;
    distribute_kind(cluster, policy, &PLUGINS).await && handlers
}

async fn distribute_kind(cluster: &Cluster, policy: &Policy, kind: &Kind) -> bool {
    let wanted: BTreeSet<&str> = (kind.named)(policy).into_iter().map(|(_, module)| module).collect();
    if wanted.is_empty() {
        return true;
    }
    let targets = cluster.targets(&[kind.role]);
    let (answers, unreachable) = cluster.fanout.ask::<StoredModules>(targets, kind.path, vec![]).await;
    let mut all = unreachable.is_empty();
    for module in wanted {
        let has = |stored: &StoredModules| stored.modules.iter().any(|known| &*known.module == module);
        let (have, lack): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, stored)| has(stored));
        if lack.is_empty() {
            continue;
        }
        let mut bytes = None;
        for (from, _) in &have {
            bytes = bytes.or(fetch(cluster, from, kind, module).await.ok());
        }
        // A policy that names a module which no node has is refused by each.
        let Some(bytes) = bytes else {
            all = false;
            continue;
        };
        for (target, _) in lack {
            let path = format!("{}/{module}", kind.path);
            match cluster.fanout.put(target, &path, bytes.clone(), COMPILE_TIMEOUT).await {
                Ok(()) => tracing::info!(module, node = target.id, "a node got a module that it lacked"),
                Err(error) => {
                    tracing::warn!(module, node = target.id, %error, "a node lacks a module and does not store it");
                    all = false;
                }
            }
        }
    }
    all
}

async fn fetch(cluster: &Cluster, from: &Target, kind: &Kind, module: &str) -> Result<Vec<u8>, AskError> {
    match cluster.fanout.get(from, &format!("{}/{module}", kind.path), &[]).await? {
        (200, bytes) => Ok(bytes),
        (status, _) => Err(AskError::Status(status)),
    }
}
