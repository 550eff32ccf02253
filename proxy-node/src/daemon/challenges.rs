//! The challenges of an ACME authority that this proxy answers, as the leading management node says.
//!
//! ```text
//!  leader ── PUT /v1/challenges ──▶ received ── control thread ──▶ workers ──▶ 204
//! ```
//! The answer to the leader means that every worker answers the challenges: the authority is told after that.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::put;
use axum::{Json, Router};
use csp_api::certificates::{self, CERTIFICATE_LEN_MAX, StoredCertificates};
use csp_daemon::issued::{self, Issued, refuse, require_management};
use csp_identity::Caller;
use csp_telemetry::{ConditionState, Readiness};
use csp_tls::TlsChallenges;
use csp_types::Instant;
use rustls::crypto::ring;
use rustls::time_provider::DefaultTimeProvider;
use tokio::sync::watch;

/// Challenges at a time: those of one certificate.
const CHALLENGES_MAX: usize = csp_policy::ACME_NAMES_MAX;
/// Longest token, and longest answer (RFC 8555 §8.1: the token, and a digest).
const TOKEN_LEN_MAX: usize = 256;
const AUTHORIZATION_LEN_MAX: usize = 512;
/// How long workers may take to answer them.
const APPLY_TIMEOUT: Duration = Duration::from_secs(8);
/// So long after the leader has named them last, challenges are answered no more: it may have died.
const KEPT: csp_types::Duration = csp_types::Duration::from_secs(600);

/// How long a proxy without its certificates waits for a leading management node before it is ready.
const WAIT: csp_types::Duration = csp_types::Duration::from_secs(20);

/// What management nodes give to this proxy.
#[derive(Clone, Debug)]
pub struct Given {
    /// Certificates.
    pub issued: Arc<Issued>,
    /// Challenges.
    pub challenges: Arc<Challenges>,
    /// The certificates that are lacking, and the number of those that had come when that was looked at.
    looked: Arc<Mutex<(String, u64)>>,
    began: Instant,
}

impl Given {
    /// Nothing yet but the certificates in this folder.
    pub fn new(folder: PathBuf) -> Self {
        let began = csp_daemon::clock::now();
        Given { issued: Issued::new(folder), challenges: Arc::default(), looked: Arc::default(), began }
    }

    fn looked(&self) -> MutexGuard<'_, (String, u64)> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the certificates of the policy that are to come, in words.
    pub fn lacks(&self, lacking: String) {
        self.looked().0 = lacking;
    }

    /// Returns whether certificates or challenges have come, once.
    pub fn take_changed(&self, now: Instant) -> bool {
        let changes = self.issued.changes();
        let came = std::mem::replace(&mut self.looked().1, changes) != changes;
        self.challenges.take_changed(now) | came
    }

    /// Sets whether this proxy has the certificates that it is to show.
    pub fn set_readiness(&self, readiness: &Readiness) {
        let lacking = self.looked().0.clone();
        let waited = csp_daemon::clock::now().saturating_since(self.began);
        let (state, reason) = match &*lacking {
            "" => (ConditionState::Ok, String::new()),
            _ if !self.challenges.are_known() && waited < WAIT => {
                (ConditionState::Failed, format!("waits for a management node that may have {lacking}"))
            }
            _ => {
                let reason = format!("not obtained yet: {lacking}; clients see a self-signed certificate");
                (ConditionState::Degraded, reason)
            }
        };
        readiness.set("certificates", state, reason);
    }
}

/// Fence of the leader, and number among its own.
type Version = (i64, u64);

/// What workers answer.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// To requests.
    pub http: csp_gateway::Challenges,
    /// To handshakes.
    pub tls: Option<TlsChallenges>,
}

#[derive(Debug, Default)]
struct Received {
    version: Version,
    answered: Answered,
    at: Option<Instant>,
    has_changed: bool,
}

/// The challenges of this proxy.
#[derive(Debug)]
pub struct Challenges {
    received: Mutex<Received>,
    /// What the workers have.
    applied: watch::Sender<Version>,
    started: u64,
}

impl Default for Challenges {
    fn default() -> Self {
        let started = rand::random::<u64>() >> 11;
        Challenges { received: Mutex::default(), applied: watch::Sender::default(), started }
    }
}

impl Challenges {
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a leader has given this proxy what it has: its certificates come first.
    pub fn are_known(&self) -> bool {
        self.received().at.is_some()
    }

    /// Returns whether workers are to be told, once.
    pub fn take_changed(&self, now: Instant) -> bool {
        let mut received = self.received();
        if received.at.is_some_and(|at| now.saturating_since(at) > KEPT) && received.answered.is_some() {
            (received.answered, received.has_changed) = (Answered::default(), true);
        }
        std::mem::take(&mut received.has_changed)
    }

    /// Returns what workers are to answer.
    pub fn now(&self) -> (Answered, Version) {
        let received = self.received();
        (received.answered.clone(), received.version)
    }

    /// Notes that the workers answer them.
    pub fn applied(&self, version: Version) {
        self.applied.send_replace(version);
    }

    /// Takes what a leader says. Returns its version; an error with its status.
    fn receive(&self, now: Instant, all: &certificates::Challenges) -> Result<Version, (StatusCode, String)> {
        let version = (all.fence, all.number);
        let answered = answers(all).map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, error))?;
        let mut received = self.received();
        // After etcd was restored, fences begin again: a leader that has been silent holds off nobody.
        let holds = received.at.is_some_and(|at| now.saturating_since(at) <= KEPT);
        if version < received.version && holds {
            let error = "a later leader, or the same one later, has said otherwise".to_owned();
            return Err((StatusCode::CONFLICT, error));
        }
        received.at = Some(now);
        if version != received.version {
            (received.version, received.answered, received.has_changed) = (version, answered, true);
        }
        Ok(version)
    }
}

impl Answered {
    fn is_some(&self) -> bool {
        self.tls.is_some() || self.http != csp_gateway::Challenges::default()
    }
}

/// Checks what is to be answered.
fn answers(all: &certificates::Challenges) -> Result<Answered, String> {
    if all.http.len() + all.tls.len() > CHALLENGES_MAX {
        return Err(format!("more than {CHALLENGES_MAX} challenges"));
    }
    let is_word =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    for challenge in &all.http {
        let lens = (challenge.token.len(), challenge.authorization.len());
        let fits = (1..=TOKEN_LEN_MAX).contains(&lens.0) && (1..=AUTHORIZATION_LEN_MAX).contains(&lens.1);
        if !fits || !is_word(&challenge.token) || !is_word(&challenge.authorization) {
            return Err("a token or its answer is none (RFC 8555 §8.1)".to_owned());
        }
    }
    let http =
        all.http.iter().map(|of| (of.token.clone().into_bytes(), of.authorization.clone().into_bytes()));
    let http = csp_gateway::Challenges::new(http);
    if all.tls.is_empty() {
        return Ok(Answered { http, tls: None });
    }
    let provider = Arc::new(ring::default_provider());
    let certificates: Vec<(&str, &str, &str)> =
        all.tls.iter().map(|of| (&*of.name, &*of.bundle.chain, &*of.bundle.key)).collect();
    let with = (Arc::clone(&provider), Arc::new(DefaultTimeProvider) as Arc<_>);
    let tls = TlsChallenges::new(with, &certificates).map_err(|error| error.to_string())?;
    Ok(Answered { http, tls: Some(tls) })
}

/// Returns the routes about certificates that are obtained, and challenges.
pub fn routes(issued: Arc<Issued>, challenges: Arc<Challenges>) -> Router {
    let own = Arc::clone(&challenges);
    let describe = move |stored: StoredCertificates| {
        let version = *own.applied.borrow(); // not merely received
        StoredCertificates { challenges: Some(version), started: own.started, ..stored }
    };
    Router::new()
        .route("/v1/challenges", put(receive).layer(DefaultBodyLimit::max(CERTIFICATE_LEN_MAX)))
        .with_state(challenges)
        .merge(issued::routes(issued, Arc::new(describe)))
}

/// `PUT /v1/challenges`: 204 once all workers answer them.
async fn receive(
    State(challenges): State<Arc<Challenges>>,
    Extension(caller): Extension<Caller>,
    Json(all): Json<certificates::Challenges>,
) -> Response {
    if let Err(refused) = require_management(&caller) {
        return *refused;
    }
    let version = match challenges.receive(csp_daemon::clock::now(), &all) {
        Ok(version) => version,
        Err((status, error)) => return refuse(status, error),
    };
    let mut applied = challenges.applied.subscribe();
    match tokio::time::timeout(APPLY_TIMEOUT, applied.wait_for(|applied| *applied == version)).await {
        Ok(Ok(_)) => StatusCode::NO_CONTENT.into_response(),
        _ => refuse(StatusCode::SERVICE_UNAVAILABLE, "the workers do not answer them yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use csp_api::certificates::{Bundle, HttpChallenge, TlsChallenge};

    use super::*;

    fn said(fence: i64, number: u64, token: &str) -> certificates::Challenges {
        let one = HttpChallenge { token: token.to_owned(), authorization: format!("{token}.key") };
        certificates::Challenges { fence, number, http: vec![one], tls: Vec::new() }
    }

    #[test]
    fn an_earlier_leader_is_refused_and_a_silent_one_forgotten() {
        let challenges = Challenges::default();
        let at = |seconds| Instant::ZERO + csp_types::Duration::from_secs(seconds);
        assert!(!challenges.are_known() && !challenges.take_changed(at(0)));
        assert_eq!(challenges.receive(at(1), &said(7, 3, "abc")), Ok((7, 3)));
        assert!(challenges.are_known() && challenges.take_changed(at(1)) && !challenges.take_changed(at(2)));
        for earlier in [said(6, 9, "x"), said(7, 2, "x")] {
            assert_eq!(challenges.receive(at(3), &earlier).unwrap_err().0, StatusCode::CONFLICT);
        }
        // The same again changes nothing, and a later leader counts from one.
        challenges.receive(at(4), &said(7, 3, "abc")).unwrap();
        assert!(!challenges.take_changed(at(4)));
        challenges.receive(at(5), &said(8, 1, "def")).unwrap();
        assert!(challenges.take_changed(at(5)) && challenges.now().0.is_some());
        assert!(challenges.take_changed(at(700)) && !challenges.now().0.is_some());
        assert!(!challenges.take_changed(at(701)));
        // Fences begin again after etcd was restored.
        assert_eq!(challenges.receive(at(702), &said(2, 1, "ghi")), Ok((2, 1)));
        assert!(challenges.take_changed(at(702)) && challenges.now().1 == (2, 1));
        assert!(challenges.receive(at(703), &said(1, 9, "x")).is_err());
    }

    #[test]
    fn what_is_no_challenge_is_refused() {
        let refused = |all: certificates::Challenges| answers(&all).unwrap_err();
        assert!(refused(said(1, 1, "")).contains("RFC 8555"));
        assert!(refused(said(1, 1, "a/b")).contains("RFC 8555"));
        assert!(refused(said(1, 1, &"a".repeat(257))).contains("RFC 8555"));
        let many = vec![said(1, 1, "a").http[0].clone(); CHALLENGES_MAX + 1];
        assert!(refused(certificates::Challenges { http: many, ..said(1, 1, "a") }).contains("more than"));
        let bundle =
            Bundle { chain: "x".to_owned(), key: String::new(), ordered: certificates::Ordered::default() };
        let one = TlsChallenge { name: "a.example".to_owned(), bundle };
        let tls = certificates::Challenges { tls: vec![one], ..said(1, 1, "a") };
        assert!(!refused(tls).is_empty());
    }
}
