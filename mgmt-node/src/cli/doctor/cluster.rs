//! Checks of the cluster, as a management node shows it.

use std::time::Instant;

use csp_api::mgmt::{NodeState, NodesView, OverviewView};
use csp_policy::Policy;

use super::super::Context;
use super::super::error::CliError;
use super::super::table::span;
use super::finding::Findings;
use super::{Seen, capabilities};

/// How far a node's generation may be behind while it is being activated.
const BEHIND: &str = "cspctl policy history";

/// The cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Its nodes.
    pub nodes: NodesView,
    /// The policy in force, without keys; an error where it cannot be read.
    pub policy: Result<Policy, String>,
    /// Its generation.
    pub generation: u64,
    /// By how much this host's clock is ahead of the management node's, and how exact that is, in ms.
    pub clock_ahead_ms: (i64, i64),
}

impl Cluster {
    /// Asks the management node.
    pub async fn ask(context: &Context) -> Result<Cluster, CliError> {
        let nodes: NodesView = context.client.get("/api/v1/nodes", &[]).await?;
        let (before, started) = (now_unix_ms(), Instant::now());
        let overview: OverviewView = context.client.get("/api/v1/overview", &[]).await?;
        let took = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        // The overview may be a second old; the answer was made between request and arrival.
        let there = i64::try_from(overview.now_unix_ms).unwrap_or(i64::MAX);
        let clock_ahead_ms = (before.saturating_add(took / 2).saturating_sub(there), took / 2 + KEPT_MS);
        let (generation, policy) = match super::super::edit::active(context).await {
            Ok((generation, policy)) => (generation, Ok(policy)),
            Err(error) => (0, Err(error.to_string())),
        };
        Ok(Cluster { nodes, policy, generation, clock_ahead_ms })
    }
}

/// How old an overview may be, in milliseconds.
const KEPT_MS: i64 = crate::limits::OVERVIEW_KEPT.as_millis() as i64;

fn now_unix_ms() -> i64 {
    i64::try_from(csp_daemon::clock::unix_now_ms()).unwrap_or(i64::MAX)
}

/// `server`: a management node answers.
pub fn server(seen: &Seen, findings: &mut Findings) {
    match (&seen.cluster, seen.server_given) {
        (Some(cluster), _) => match &cluster.nodes.leader {
            Some(leader) => findings.ok(format!("{} answers, {} leads", seen.server, leader.id)),
            None => findings.error(
                format!("{} answers, and no management node leads", seen.server),
                "policies are not published, and nodes neither drain nor resume",
                "systemctl status csp-mgmt-node    # on each management node",
            ),
        },
        (None, true) => findings.error(
            seen.no_cluster.clone(),
            "the cluster cannot be looked at or controlled from here",
            "systemctl status csp-mgmt-node    # there",
        ),
        (None, false) => findings.info(
            format!("the cluster is not looked at: {}", seen.no_cluster),
            "checks of nodes, etcd, policy and releases need a management node",
            "cspctl doctor --server https://ADDRESS:9104",
        ),
    }
}

/// `nodes`: each is ready, and works by the policy in force.
pub fn nodes(seen: &Seen, findings: &mut Findings) {
    let Some(cluster) = &seen.cluster else {
        return findings.not_checked("the cluster's nodes", "no management node answers");
    };
    let mut ready = 0;
    for node in &cluster.nodes.nodes {
        let who = format!("{} ({}) is {}", node.id, node.role, node.state.as_str());
        let detail = if node.detail.is_empty() { String::new() } else { format!(": {}", node.detail) };
        let unit = format!("systemctl status csp-{}    # on the host of {}", node.role, node.id);
        match node.state {
            NodeState::Ready => ready += 1,
            NodeState::Unknown => findings.info(who, "it has registered just now", "cspctl nodes"),
            NodeState::NotReady => findings.error(who + &detail, "it does not serve", unit),
            NodeState::Unreachable => {
                findings.error(who + &detail, "nobody can look at it or its metrics", unit);
            }
            NodeState::Lapsed => findings.error(
                who + &detail,
                "it has lost etcd: it follows no new policy and is missing in a minute",
                unit,
            ),
        }
        if node.policy_state == "refused" || node.policy_state == "timed-out" {
            findings.error(
                format!("{} has {} generation {}", node.id, node.policy_state, node.policy_generation),
                "a generation that one node refuses comes into force nowhere",
                BEHIND,
            );
        } else if node.policy_active != 0 && node.policy_active < cluster.generation {
            findings.warning(
                format!(
                    "{} works by generation {}, {} is in force",
                    node.id, node.policy_active, cluster.generation
                ),
                "nodes with different policies treat one connection differently",
                BEHIND,
            );
        }
        if node.draining {
            let why = "it gets no new connections until somebody ends that";
            findings.info(format!("{} drains", node.id), why, format!("cspctl resume {}", node.id));
        }
    }
    if ready > 0 {
        findings.ok(format!("{ready} of {} nodes are ready", cluster.nodes.nodes.len()));
    }
}

/// `etcd`: it answers the management node, and this host reaches its members.
pub fn etcd(seen: &Seen, findings: &mut Findings) {
    let why = "without etcd nothing changes: no policy, no new node, no drain; what runs goes on";
    if let Some(cluster) = &seen.cluster {
        let etcd = &cluster.nodes.etcd;
        match (etcd.connected, etcd.private) {
            (true, false) => findings.ok("etcd answers the management node"),
            (true, true) => findings.info(
                "the management node runs an etcd of its own",
                "it has one member: meant for trials",
                "apt install etcd-server    # three members: docs/deployment.md",
            ),
            (false, _) => {
                let since = match etcd.silent_ms {
                    u64::MAX => "since the management node started".to_owned(),
                    ms => format!("for {}", span(ms)),
                };
                let remedy = "etcdctl endpoint health --cluster";
                findings.error(format!("etcd has not answered the management node {since}"), why, remedy);
            }
        }
    }
    let endpoints: std::collections::BTreeSet<&String> =
        seen.daemons.iter().flat_map(|daemon| &daemon.config.etcd.endpoints).collect();
    let mut failed = 0;
    for url in &endpoints {
        let authority = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).trim_end_matches('/');
        let Some(answer) = seen.host.connect(authority) else {
            return findings.not_checked("endpoints of etcd", super::NotRun::Elsewhere);
        };
        if let Err(reason) = answer {
            failed += 1;
            let remedy = format!("etcdctl --endpoints {url} endpoint health");
            findings.warning(format!("{url} is not reached from here: {reason}"), why, remedy);
        }
    }
    if failed == 0 && !endpoints.is_empty() {
        findings.ok(format!("{} endpoints of etcd accept connections of this host", endpoints.len()));
    }
    if endpoints.is_empty() && seen.cluster.is_none() {
        findings.not_checked("etcd", "no endpoint is configured here, and no management node answers");
    }
}

/// `capabilities`: what nodes have registered against what the policy needs.
pub fn policy_needs(seen: &Seen, findings: &mut Findings) {
    match (&seen.cluster, seen.policy()) {
        (Some(cluster), Some(policy)) => capabilities::compare(policy, &cluster.nodes.nodes, findings),
        _ => findings.not_checked("what the policy needs of nodes", seen.no_policy()),
    }
}
