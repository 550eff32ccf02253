//! Asks every member for its readiness and metrics, again and again, and keeps what the operations page
//! shows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use csp_api::mgmt::{DropView, NodeState};
use csp_api::{ConditionState, Readiness};
use csp_control::Membership;
use csp_types::Role;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fanout::{self, Fanout, Target};
use crate::limits::{DROP_SAMPLES_MAX, POLL_INTERVAL};
use crate::scrape::{self, Sample};
use crate::series::Series;
use crate::service_metrics::ServiceReports;

/// Longest detail shown of a node, in characters.
const DETAIL_LEN_MAX: usize = 300;

/// How one member did when last asked.
#[derive(Clone, Debug)]
pub struct Health {
    /// Which start of the daemon this is about.
    pub incarnation: u64,
    /// `Ready`, `NotReady` or `Unreachable`.
    pub state: NodeState,
    /// Why it is not ready.
    pub detail: String,
    /// Its latest metrics and when they were read.
    pub sample: Option<(Instant, Sample)>,
    /// The ones before, for rates.
    pub previous: Option<(Instant, Sample)>,
    /// Drops by reason of the last samples, oldest first.
    drops: VecDeque<BTreeMap<String, u64>>,
}

/// The latest of all members, by node id.
#[derive(Debug, Default)]
pub struct Poller {
    /// Figures of the last hour.
    pub series: Series,
    health: Mutex<BTreeMap<String, Health>>,
    /// The services as proxies and network nodes report them.
    pub(crate) services: ServiceReports,
}

impl Poller {
    /// How each member did.
    pub fn health(&self) -> BTreeMap<String, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks forever.
    pub async fn run(&self, fanout: Fanout, membership: watch::Receiver<Membership>) {
        let mut beat = tokio::time::interval(POLL_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let (members, [proxies, network_nodes]) = {
                let membership = membership.borrow();
                let of_role = |role| membership.of_role(role).map(|m| target(&m.record)).collect();
                let all = membership.nodes.values().map(|m| (target(&m.record), m.record.incarnation));
                (all.collect::<Vec<_>>(), [Role::ProxyNode, Role::NetworkNode].map(of_role))
            };
            let mut asked = JoinSet::new();
            for (target, incarnation) in members {
                let fanout = fanout.clone();
                asked.spawn(async move { (target.id.clone(), incarnation, ask(&fanout, &target).await) });
            }
            let (answers, ()) =
                tokio::join!(asked.join_all(), self.services.refresh(&fanout, proxies, network_nodes));
            let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            health.retain(|id, _| answers.iter().any(|(answered, ..)| answered == id));
            for (id, incarnation, answer) in answers {
                let before = health.remove(&id).filter(|h| h.incarnation == incarnation);
                health.insert(id, follow(before, incarnation, answer));
            }
        }
    }

    /// Drops of all members, most recent first, then by total.
    pub fn drops(&self) -> Vec<DropView> {
        let mut out = Vec::new();
        for (node, health) in self.health() {
            let (Some(now), Some(then)) = (health.drops.back(), health.drops.front()) else { continue };
            for (reason, total) in now {
                let recent = total.saturating_sub(then.get(reason).copied().unwrap_or(0));
                out.push(DropView { node: node.clone(), reason: reason.clone(), total: *total, recent });
            }
        }
        out.sort_by_key(|d| (std::cmp::Reverse((d.recent, d.total)), d.node.clone(), d.reason.clone()));
        out
    }
}

/// Where a member is asked.
pub fn target(record: &csp_control::NodeRecord) -> Target {
    Target { id: record.id.to_string(), role: record.role.to_string(), admin: record.admin.clone() }
}

struct Answer {
    state: NodeState,
    detail: String,
    sample: Option<(Instant, Sample)>,
}

async fn ask(fanout: &Fanout, target: &Target) -> Answer {
    let (state, detail) = match fanout.get(target, "/readyz", &[]).await {
        Ok((200, body)) => (NodeState::Ready, conditions(&body)),
        Ok((503, body)) => (NodeState::NotReady, conditions(&body)),
        Ok((status, _)) => (NodeState::NotReady, format!("/readyz answered with status {status}")),
        Err(error) => {
            return Answer { state: NodeState::Unreachable, detail: error.to_string(), sample: None };
        }
    };
    let page = fanout.get(target, "/metrics", &[]).await.ok().filter(|(status, _)| *status == 200);
    let sample = page.map(|(_, body)| (Instant::now(), scrape::read(&String::from_utf8_lossy(&body))));
    Answer { state, detail, sample }
}

/// The conditions that are not well, as one line.
fn conditions(body: &[u8]) -> String {
    let readiness: Readiness = match fanout::parse("/readyz", body) {
        Ok(readiness) => readiness,
        Err(error) => return error.to_string(),
    };
    let bad = readiness.conditions.iter().filter(|c| c.state != ConditionState::Ok);
    let lines: Vec<String> = bad.map(|c| format!("{}: {}", c.name, c.reason)).collect();
    lines.join("; ").chars().take(DETAIL_LEN_MAX).collect()
}

fn follow(before: Option<Health>, incarnation: u64, answer: Answer) -> Health {
    let (mut drops, last) = match before {
        Some(health) => (health.drops, health.sample),
        None => (VecDeque::new(), None),
    };
    if let Some((_, sample)) = &answer.sample {
        drops.push_back(sample.drops.clone());
        while drops.len() > DROP_SAMPLES_MAX {
            drops.pop_front();
        }
    }
    Health {
        incarnation,
        state: answer.state,
        detail: answer.detail,
        sample: answer.sample,
        previous: last,
        drops,
    }
}
