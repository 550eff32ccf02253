//! Certificates, the account and challenges get to the nodes that lack them.
//!
//! The nodes are the store, as with modules: a leader takes the certificate of the latest order that a
//! management node has. Only if none has one that is valid, it takes that of a proxy. Proxies get
//! certificates first, then the challenges: a proxy that was told of challenges, if only that there are none,
//! has its certificates.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_api::Text;
use csp_api::certificates::{Bundle, Challenges, StoredCertificate, StoredCertificates};
use csp_control::MemberState;
use csp_daemon::issued;
use csp_policy::{AcmeCertificate, Policy};
use csp_types::Role;
use futures_util::future::join_all;

use super::{Acme, BEAT, now_s};
use crate::fanout::{Asked, Target, parse};
use crate::poller;
use crate::views::Cluster;

/// How long a node may take to store a certificate, or to answer challenges.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Beats after which nodes are asked again although nothing is known to have changed.
const LOOK_BEATS: u32 = 30;
/// Beats without an answer of every node before a new leader orders nevertheless.
const PATIENCE_BEATS: u32 = 15;

const CERTIFICATES: &str = "/v1/certificates";
const ACCOUNT: &str = "/v1/acme-account";

/// What was in order when it was looked at: generation, nodes with the starts of their daemons, certificates
/// and challenges.
type Seen = (u64, Vec<(String, u64)>, u64, u64);

impl Acme {
    /// Gives nodes what they lack. Does not end.
    pub(super) async fn distribute_all(&self, cluster: &Cluster) {
        let mut beat = tokio::time::interval(BEAT / 2);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut in_order, mut beats, mut tries) = (None::<Seen>, 0, 0);
        loop {
            beat.tick().await;
            let Some(active) = cluster.policy.known().active else { continue };
            if active.policy.acme.is_none() {
                continue;
            }
            let (proxies, others) = nodes(cluster);
            let members = proxies.iter().chain(&others).map(|(of, start)| (of.id.clone(), *start)).collect();
            let number = self.state().challenges.number;
            let now = (active.generation, members, self.issued.changes(), number);
            beats += 1;
            if in_order.as_ref() == Some(&now) && beats < LOOK_BEATS {
                continue;
            }
            beats = 0;
            let all = self.distribute(cluster, &active.policy, (proxies, others)).await;
            tries += 1;
            if all || tries >= PATIENCE_BEATS {
                self.state().is_synced = true;
            }
            let now = (now.0, now.1, self.issued.changes(), now.3);
            in_order = all.then_some(now);
        }
    }

    /// Compares, takes what this node lacks, and gives what others lack. Returns whether all is in order.
    async fn distribute(&self, cluster: &Cluster, policy: &Policy, nodes: (Nodes, Nodes)) -> bool {
        let (proxies, others) = nodes;
        let (proxy_count, other_count) = (proxies.len(), others.len());
        let wanted = policy.acme.iter().flat_map(|acme| &acme.certificates);
        let ask = |of: Nodes| {
            let targets = of.into_iter().map(|(target, _)| target).collect();
            cluster.fanout.ask::<StoredCertificates>(targets, CERTIFICATES, vec![])
        };
        let ((proxies, _), (others, _)) = tokio::join!(ask(proxies), ask(others));
        let mut all = proxies.len() == proxy_count && others.len() == other_count;
        let mut lacking: BTreeMap<String, Vec<Text>> = BTreeMap::new();
        // While a management node is silent, it is unknown whether it has what a proxy offers.
        let asked = if others.len() == other_count { &proxies[..] } else { &[] };
        for certificate in wanted {
            self.take(cluster, certificate, (&others, asked)).await;
            let Some(own) = self.stored(&certificate.name) else { continue };
            for (target, stored) in others.iter().chain(&proxies) {
                if lacks(stored, &own, now_s()) && !self.give(cluster, target, &own.name).await {
                    lacking.entry(certificate.name.clone()).or_default().push(target.id.as_str().into());
                }
            }
        }
        all &= lacking.is_empty() && self.share_account(cluster, &others).await;
        let challenges = self.state().challenges.clone();
        let asked = proxies.iter().map(|(target, stored)| {
            let lacks = lacking.values().flatten().any(|node| **node == *target.id);
            let version = Some((challenges.fence, challenges.number));
            let challenges = &challenges;
            async move {
                stored.challenges == version || !lacks && self.challenge(cluster, target, challenges).await
            }
        });
        let answering = join_all(asked).await.into_iter().filter(|answers| *answers).count();
        self.state().answering = (challenges.number, answering);
        if answering == proxy_count {
            self.answered.send_replace(challenges.number);
        }
        self.state().lacking = lacking;
        all && answering == proxy_count
    }

    /// Takes the certificate that another node has, if it counts more than this node's.
    async fn take(
        &self,
        cluster: &Cluster,
        certificate: &AcmeCertificate,
        (others, proxies): (&Known, &Known),
    ) {
        let (name, names) = (&certificate.name, certificate.dns_names());
        let Some((target, is_proxy)) =
            source(self.stored(name).as_ref(), (name, &names), (others, proxies), now_s())
        else {
            return;
        };
        let path = ["v1", "certificates", name];
        let taken = cluster.fanout.call(target, &path, Asked::Read(vec![]), TIMEOUT).await;
        let bundle = taken.and_then(|body| parse::<Bundle>(CERTIFICATES, &body));
        let stored = bundle.map_err(|error| error.to_string()).and_then(|mut bundle| {
            if is_proxy {
                // What a proxy says of orders holds off nothing.
                bundle.ordered.at_s = 0;
            }
            if !issued::read(name, &bundle)?.is_usable(&names, now_s()) {
                return Err("it has ended, or is for other names".to_owned());
            }
            self.issued.put(name, &bundle, now_s())
        });
        let node = &target.id;
        match stored {
            Ok(_) => tracing::info!(certificate = name, node, "a certificate was taken over"),
            Err(error) => {
                tracing::warn!(certificate = name, node, error, "a certificate cannot be taken over");
            }
        }
    }

    /// Gives a node a certificate. Returns whether it has it.
    async fn give(&self, cluster: &Cluster, target: &Target, name: &str) -> bool {
        let bundle = self.issued.load(name).ok().and_then(|(bundle, _)| serde_json::to_string(&bundle).ok());
        let Some(body) = bundle else { return false };
        let path = ["v1", "certificates", name];
        match cluster.fanout.call(target, &path, Asked::Change(body), TIMEOUT).await {
            Ok(_) => true,
            Err(error) => {
                let node = &target.id;
                tracing::warn!(certificate = name, node, %error, "a node lacks a certificate and does not store it");
                false
            }
        }
    }

    /// Takes over the account of another management node, or gives it to those that have not the same one.
    async fn share_account(&self, cluster: &Cluster, others: &[(Target, StoredCertificates)]) -> bool {
        let path = ["v1", "acme-account"];
        if self.account.text().is_none()
            && let Some((target, _)) = others.iter().find(|(_, stored)| self.is_account(stored))
        {
            let taken = cluster.fanout.call(target, &path, Asked::Read(vec![]), TIMEOUT).await;
            let text = taken.ok().and_then(|body| String::from_utf8(body).ok()).unwrap_or_default();
            if let Err(error) = self.account.write(&text) {
                tracing::warn!(node = target.id, error, "the account cannot be taken over");
                return false;
            }
        }
        let (Some(text), Some(own)) = (self.account.text(), self.account.sha256()) else { return true };
        let mut all = true;
        for (target, _) in others.iter().filter(|(_, stored)| stored.account.as_deref() != Some(&*own)) {
            let given = cluster.fanout.call(target, &path, Asked::Change(text.clone()), TIMEOUT).await;
            if let Err(error) = given {
                tracing::warn!(node = target.id, %error, "a management node does not store the account");
                all = false;
            }
        }
        all
    }

    /// Returns whether a node has an account that the authority has not refused.
    pub(super) fn is_account(&self, stored: &StoredCertificates) -> bool {
        let state = self.state();
        stored.account.as_deref().is_some_and(|account| state.refused_account.as_deref() != Some(account))
    }

    /// Has a proxy answer challenges. Returns whether all its workers do.
    async fn challenge(&self, cluster: &Cluster, target: &Target, challenges: &Challenges) -> bool {
        let Ok(body) = serde_json::to_string(challenges) else { return false };
        match cluster.fanout.call(target, &["v1", "challenges"], Asked::Change(body), TIMEOUT).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(node = target.id, %error, "a proxy does not answer challenges");
                false
            }
        }
    }
}

/// Nodes, each with the start of its daemon.
type Nodes = Vec<(Target, u64)>;

/// What nodes have.
type Known = [(Target, StoredCertificates)];

/// Returns the node whose certificate is to be taken over, and whether it is a proxy: the management node
/// with that of the latest order, if it is later than this node's. A proxy may have been broken into: it is
/// asked if neither this node nor another management node has one that is valid.
pub(super) fn source<'a>(
    own: Option<&StoredCertificate>,
    (name, names): (&str, &[String]),
    (others, proxies): (&'a Known, &'a Known),
    now_s: i64,
) -> Option<(&'a Target, bool)> {
    let offer = |(target, stored): &'a (Target, StoredCertificates)| {
        let usable = |of: &&StoredCertificate| *of.name == *name && of.is_usable(names, now_s);
        let found = stored.certificates.iter().find(usable)?;
        Some((target, found.ordered_s(now_s), found.not_after_s))
    };
    let own = own.filter(|own| own.is_usable(names, now_s)).map(|own| own.ordered_s(now_s));
    let best = others.iter().filter_map(offer).max_by_key(|(_, ordered_s, ends)| (*ordered_s, *ends));
    match (own, best) {
        (Some(own), Some((_, ordered_s, _))) if own >= ordered_s => None,
        (_, Some((target, ..))) => Some((target, false)),
        (Some(_), None) => None,
        (None, None) => {
            let best = proxies.iter().filter_map(offer).max_by_key(|(_, _, ends)| *ends);
            best.map(|(target, ..)| (target, true))
        }
    }
}

/// Returns the live proxies that take connections, and the other live management nodes.
fn nodes(cluster: &Cluster) -> (Nodes, Nodes) {
    let membership = cluster.membership.borrow();
    let of = |role| {
        let live = membership.of_role(role).filter(|member| {
            let goes = member.record.leaving || role == Role::ProxyNode && member.record.draining;
            member.state == MemberState::Live && !goes
        });
        let others = live.filter(|member| member.record.id.as_str() != cluster.id);
        others.map(|member| (poller::target(&member.record), member.record.incarnation)).collect()
    };
    (of(Role::ProxyNode), of(Role::MgmtNode))
}

/// Returns whether a node is to get this certificate: it has none by that name, or one for other names, or
/// one that is not of a later order.
pub(super) fn lacks(theirs: &StoredCertificates, own: &StoredCertificate, now_s: i64) -> bool {
    let names: Vec<String> = own.names.iter().map(ToString::to_string).collect();
    match theirs.certificates.iter().find(|of| of.name == own.name) {
        None => true,
        Some(of) if of.sha256 == own.sha256 => false,
        Some(of) => !of.is_usable(&names, now_s) || of.ordered_s(now_s) <= own.ordered_s(now_s),
    }
}

/// Where the account of a management node is.
pub(super) const fn account_path() -> &'static str {
    ACCOUNT
}
