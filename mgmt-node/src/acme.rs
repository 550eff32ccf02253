//! Certificates of services from an authority (ACME, RFC 8555): the management node that leads orders and
//! renews them; proxies and the other management nodes get them from it over mutual TLS.
//!
//! ```text
//!             ┌── orders ────── authority                      (order.rs, authority.rs; when: schedule.rs)
//!  [leader] ──┤      │ challenges, certificates
//!             └── distribution ──▶ proxies, management nodes    (distribute.rs)
//! ```
//! Nothing of it is in etcd: private keys and the account's key are files of mode 600. A new leader has them
//! already, or asks the other nodes for what it lacks before it orders anything.

mod authority;
mod distribute;
mod order;
mod routes;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csp_api::Text;
use csp_api::certificates::{
    Bundle, CertificateState, CertificateView, CertificatesView, Challenges, StoredCertificate,
};
use csp_api::events::What;
use csp_api::time::utc;
use csp_daemon::clock::unix_now_s;
use csp_daemon::issued::Issued;
use csp_daemon::{Events, jitter};
use csp_policy::{AcmeCertificate, Policy};
use csp_telemetry::{MetricSource, MetricWriter};
use tokio::sync::watch;

use crate::config::AcmeSection;
use crate::views::Cluster;
use authority::{AccountFile, Client};
use order::{Answers, Asked};
use schedule::Attempts;

pub(crate) use routes::{node_routes, routes};

/// How often the leader looks whether there is something to do.
const BEAT: Duration = Duration::from_secs(1);
/// How long proxies may take to answer challenges.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
const DAY_S: i64 = 86_400;

/// What this node knows of certificates.
#[derive(Debug)]
pub struct Acme {
    section: AcmeSection,
    issued: Arc<Issued>,
    account: AccountFile,
    events: Events,
    state: Mutex<State>,
    /// The number of the challenges that every proxy answers.
    answered: watch::Sender<u64>,
    issued_total: AtomicU64,
    failed_total: AtomicU64,
}

/// What the leader does.
#[derive(Debug, Default)]
struct State {
    attempts: BTreeMap<String, Attempts>,
    /// Those that somebody has asked for.
    demanded: BTreeSet<String>,
    ordering: Option<String>,
    challenges: Challenges,
    /// Whether it has asked the other nodes for what they have.
    is_synced: bool,
    /// By certificate, the nodes that have not received it.
    lacking: BTreeMap<String, Vec<Text>>,
    /// Those that this node has; read again when one is stored.
    stored: BTreeMap<String, StoredCertificate>,
    read_at: Option<u64>,
    /// SHA-256 of the account that the authority does not know any more: it is not taken over from others.
    refused_account: Option<String>,
    /// The number of challenges, and how many proxies answer them.
    answering: (u64, usize),
}

impl Acme {
    /// What is in the folder of this node.
    pub fn new(section: &AcmeSection, state_dir: &Path, events: Events) -> Arc<Self> {
        let folder = state_dir.join("acme");
        Arc::new(Acme {
            section: section.clone(),
            account: AccountFile(folder.join("account.json")),
            issued: Issued::new(folder),
            events,
            state: Mutex::default(),
            answered: watch::Sender::new(0),
            issued_total: AtomicU64::new(0),
            failed_total: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the certificate that this node has.
    fn stored(&self, name: &str) -> Option<StoredCertificate> {
        let changes = self.issued.changes();
        let mut state = self.state();
        if state.read_at != Some(changes) {
            let all = self.issued.stored();
            state.stored = all.into_iter().map(|stored| (stored.name.to_string(), stored)).collect();
            state.read_at = Some(changes);
        }
        state.stored.get(name).cloned()
    }

    /// Orders a certificate as soon as possible, whatever failed before.
    fn demand(&self, name: &str) {
        let mut state = self.state();
        state.demanded.insert(name.to_owned());
        state.attempts.remove(name);
    }

    /// Returns whether a proxy answers the challenges with a number.
    fn are_some_answering(&self, number: u64) -> bool {
        matches!(self.state().answering, (of, count) if of == number && count > 0)
    }

    /// Replaces the challenges; returns their number.
    fn ask(&self, fence: i64, asked: Asked) -> u64 {
        let mut state = self.state();
        let number = state.challenges.number + 1;
        state.challenges = Challenges { fence, number, http: asked.http, tls: asked.tls };
        number
    }

    /// Returns what the certificates of a policy are like.
    fn view(&self, policy: &Policy, now_s: i64) -> CertificatesView {
        let Some(acme) = &policy.acme else { return CertificatesView::default() };
        let view = |of: &AcmeCertificate| {
            let (names, stored) = (of.dns_names(), self.stored(&of.name));
            let state = self.state();
            let attempts = state.attempts.get(&of.name).cloned().unwrap_or_default();
            let wanted = (&names[..], &*acme.directory);
            let next_order_s = schedule::order_at_s(stored.as_ref(), wanted, &attempts, now_s);
            let now = match &stored {
                _ if state.ordering.as_ref() == Some(&of.name) => CertificateState::Ordering,
                Some(stored) if stored.not_after_s <= now_s => CertificateState::Expired,
                _ if attempts.failures > 0 => CertificateState::Failing,
                Some(stored) if stored.is_for(&names) => CertificateState::Valid,
                _ => CertificateState::Waiting,
            };
            CertificateView {
                name: of.name.as_str().into(),
                names: names.iter().map(|name| name.as_str().into()).collect(),
                challenge: acme.challenge_of(of).as_str().into(),
                state: now,
                issuer: stored.as_ref().map(|stored| stored.issuer.clone()).unwrap_or_default(),
                not_after_s: stored.as_ref().map_or(0, |stored| stored.not_after_s),
                next_order_s,
                failures: attempts.failures,
                error: attempts.error.as_str().into(),
                lacking: state.lacking.get(&of.name).cloned().unwrap_or_default(),
            }
        };
        CertificatesView { certificates: acme.certificates.iter().map(view).collect() }
    }

    /// Returns the certificate of a policy that is to be ordered now.
    fn next(&self, policy: &Policy, now_s: i64) -> Option<AcmeCertificate> {
        let acme = policy.acme.as_ref()?;
        let is_due = |of: &&AcmeCertificate| {
            let stored = self.stored(&of.name);
            let state = self.state();
            let attempts = state.attempts.get(&of.name).cloned().unwrap_or_default();
            let names = of.dns_names();
            let wanted = (&names[..], &*acme.directory);
            let at = schedule::order_at_s(stored.as_ref(), wanted, &attempts, now_s);
            state.demanded.contains(&of.name) || at <= now_s
        };
        acme.certificates.iter().find(is_due).cloned()
    }

    /// Orders what is due, one after another. Does not end.
    async fn order_all(&self, cluster: &Cluster, fence: i64) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            if !self.state().is_synced {
                continue;
            }
            let Some(active) = cluster.policy.known().active else { continue };
            if let Some(certificate) = self.next(&active.policy, now_s()) {
                self.state().ordering = Some(certificate.name.clone());
                let obtained = self.order(&active.policy, &certificate, fence).await;
                self.ask(fence, Asked::default());
                self.state().ordering = None;
                self.conclude(&certificate.name, obtained);
            }
        }
    }

    async fn order(
        &self,
        policy: &Policy,
        certificate: &AcmeCertificate,
        fence: i64,
    ) -> Result<StoredCertificate, (String, i64)> {
        let Some(acme) = &policy.acme else { return Err((String::new(), 0)) };
        let client = Client::new(&self.section.ca_file).map_err(|error| (error, 0))?;
        let names = certificate.dns_names();
        let former = self.stored(&certificate.name);
        let is_urgent = former.as_ref().is_some_and(|former| schedule::is_urgent(former, now_s()));
        let published = Published { acme: self, fence, is_urgent };
        let course = async {
            // Authorities limit what they issue: nothing is ordered that cannot be stored.
            self.issued.check_writable()?;
            let account = authority::account(&client, &self.account, &self.section, acme).await?;
            let kind = acme.challenge_of(certificate);
            let bundle = order::obtain(&account, &published, (&names, kind)).await;
            let bundle = bundle.map_err(|error| error.to_string())?;
            let ordered = order::ordered(former.as_ref(), &acme.directory, now_s());
            let bundle = Bundle { ordered, ..bundle };
            order::check(&certificate.name, &names, &bundle, now_s())?;
            self.issued.put(&certificate.name, &bundle, now_s())
        };
        let done = tokio::time::timeout(order::ORDER_TIMEOUT, course).await;
        let done = done.unwrap_or_else(|_| Err("the order has taken too long".to_owned()));
        done.map_err(|error| {
            if error.contains("accountDoesNotExist") {
                self.forget_account();
            }
            (error, client.asked_s())
        })
    }

    /// Removes the account, which the authority does not know any more, and takes it over from nobody.
    fn forget_account(&self) {
        let refused = self.account.sha256();
        self.state().refused_account = refused;
        self.account.remove();
    }

    /// Notes what became of an order.
    fn conclude(&self, name: &str, obtained: Result<StoredCertificate, (String, i64)>) {
        self.state().demanded.remove(name);
        match obtained {
            Ok(stored) => {
                self.state().attempts.remove(name);
                self.issued_total.fetch_add(1, Ordering::Relaxed);
                let ends = utc(u64::try_from(stored.not_after_s).unwrap_or(0).saturating_mul(1000));
                tracing::info!(certificate = name, issuer = %stored.issuer, ends, "a certificate was issued");
                let (certificate, issuer) = (name.into(), stored.issuer);
                self.events.record(&What::CertificateIssued { certificate, issuer, ends: ends.into() });
            }
            Err((error, asked_s)) => {
                let left = self.stored(name).map_or(0, |stored| stored.not_after_s - now_s());
                let failures = {
                    let mut state = self.state();
                    let attempts = state.attempts.entry(name.to_owned()).or_default();
                    attempts.failed(now_s(), error.clone(), jitter::fraction(), asked_s);
                    attempts.failures
                };
                self.failed_total.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(certificate = name, error, failures, "a certificate was not obtained");
                let days_left = u64::try_from(left / DAY_S).unwrap_or(0);
                let (certificate, reason) = (name.into(), error.as_str().into());
                let failures = failures.into();
                self.events.record(&What::CertificateFailed { certificate, reason, failures, days_left });
            }
        }
    }
}

fn now_s() -> i64 {
    i64::try_from(unix_now_s()).unwrap_or(i64::MAX)
}

/// Where the challenges of an order are answered.
struct Published<'a> {
    acme: &'a Acme,
    fence: i64,
    /// Whether the certificate that is there ends soon.
    is_urgent: bool,
}

impl Answers for Published<'_> {
    async fn publish(&self, asked: Asked) -> Result<(), String> {
        let number = self.acme.ask(self.fence, asked);
        let mut answered = self.acme.answered.subscribe();
        match tokio::time::timeout(PUBLISH_TIMEOUT, answered.wait_for(|answered| *answered >= number)).await {
            Ok(_) => Ok(()),
            Err(_) if self.is_urgent && self.acme.are_some_answering(number) => {
                tracing::warn!("not every proxy answers the challenges; the certificate ends soon: ordered");
                Ok(())
            }
            Err(_) => {
                let limit = PUBLISH_TIMEOUT.as_secs();
                Err(format!("not every proxy has answered the challenges within {limit} s"))
            }
        }
    }
}

/// Orders, renews and distributes certificates, for ever, while this node leads.
pub(crate) async fn run(cluster: &Cluster) {
    let acme = &cluster.acme;
    let mut leadership = cluster.leadership.clone();
    loop {
        let Ok(fence) = leadership.wait_for(|now| now.fence().is_some()).await.map(|now| now.fence()) else {
            return;
        };
        let Some(own) = fence else { continue };
        {
            let mut state = acme.state();
            state.is_synced = false;
            state.ordering = None;
            state.answering = (0, 0);
            state.lacking.clear();
            state.challenges = Challenges { fence: own, number: 1, ..Challenges::default() };
        }
        acme.answered.send_replace(0);
        tokio::select! {
            _ = leadership.wait_for(|now| now.fence() != fence) => {}
            () = acme.order_all(cluster, own) => {}
            () = acme.distribute_all(cluster) => {}
        }
        acme.state().ordering = None;
    }
}

/// The metrics of certificates.
#[derive(Debug)]
pub struct AcmeMetrics(pub Arc<Cluster>);

impl MetricSource for AcmeMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let acme = &self.0.acme;
        let help = "Orders of certificates at an ACME authority, by their result";
        for (result, count) in [("issued", &acme.issued_total), ("failed", &acme.failed_total)] {
            out.counter("csp_acme_orders_total", help, &[("result", result)], count.load(Ordering::Relaxed));
        }
        let Some(active) = self.0.policy.known().active else { return };
        let named = active.policy.acme.iter().flat_map(|acme| &acme.certificates);
        for name in named.map(|of| of.name.as_str()) {
            let Some(stored) = acme.stored(name) else { continue };
            let help = "When the certificate of an ACME authority that this management node has ends, in seconds since 1970";
            let ends = stored.not_after_s as f64;
            out.gauge("csp_acme_certificate_not_after_seconds", help, &[("certificate", name)], ends);
        }
    }
}

#[cfg(test)]
mod tests;
