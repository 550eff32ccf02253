//! Modules of supplied handlers get to proxies that lack them: those that joined later, or have lost their disk.
//!
//! ```text
//!   policy ─ names ─▶ module ─ GET ─ a proxy that has it ─▶ leader ─ PUT ─▶ proxies that lack it
//! ```
//! The proxies are the store. The leader compares before it publishes a policy, and whenever proxies or the policy in force have changed.

use std::collections::BTreeSet;
use std::time::Duration;

use csp_api::handlers::Handlers;
use csp_control::Policy;
use csp_types::Role;

use crate::fanout::{AskError, Target};
use crate::handler_routes::COMPILE_TIMEOUT;
use crate::views::Cluster;

/// How often the leader looks whether anything has changed.
const BEAT: Duration = Duration::from_secs(1);

/// What was in order when it was looked at: the policy in force, and the proxies with the starts of their daemons.
type Seen = (u64, Vec<(String, u64)>);

/// Gives proxies what they lack, for ever, while this node leads.
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
        let proxies = {
            let membership = cluster.membership.borrow();
            let proxies = membership.of_role(Role::ProxyNode);
            proxies.map(|member| (member.record.id.to_string(), member.record.incarnation)).collect()
        };
        let now = (active.generation, proxies);
        if in_order.as_ref() != Some(&now) {
            in_order = distribute(cluster, &active.policy).await.then_some(now);
        }
    }
}

/// Gives all proxies the modules that a policy names. Returns whether all have them.
pub async fn distribute(cluster: &Cluster, policy: &Policy) -> bool {
    let wanted: BTreeSet<&str> = policy.handlers.iter().map(|handler| handler.module.as_str()).collect();
    if wanted.is_empty() {
        return true;
    }
    let targets = cluster.targets(&[Role::ProxyNode]);
    let (answers, unreachable) = cluster.fanout.ask::<Handlers>(targets, "/v1/handlers", vec![]).await;
    let mut all = unreachable.is_empty();
    for module in wanted {
        let has = |handlers: &Handlers| handlers.modules.iter().any(|known| &*known.module == module);
        let (have, lack): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, handlers)| has(handlers));
        if lack.is_empty() {
            continue;
        }
        let mut bytes = None;
        for (from, _) in &have {
            bytes = bytes.or(fetch(cluster, from, module).await.ok());
        }
        // A policy that names a module which no proxy has is refused by each.
        let Some(bytes) = bytes else {
            all = false;
            continue;
        };
        for (target, _) in lack {
            let path = format!("/v1/handlers/{module}");
            match cluster.fanout.put(target, &path, bytes.clone(), COMPILE_TIMEOUT).await {
                Ok(()) => tracing::info!(module, proxy = target.id, "a proxy got a module that it lacked"),
                Err(error) => {
                    tracing::warn!(module, proxy = target.id, %error, "a proxy lacks a module and does not store it");
                    all = false;
                }
            }
        }
    }
    all
}

async fn fetch(cluster: &Cluster, from: &Target, module: &str) -> Result<Vec<u8>, AskError> {
    match cluster.fanout.get(from, &format!("/v1/handlers/{module}"), &[]).await? {
        (200, bytes) => Ok(bytes),
        (status, _) => Err(AskError::Status(status)),
    }
}
