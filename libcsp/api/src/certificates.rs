//! Certificates of services that are obtained from an authority: what management nodes give to others, and
//! what they show.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Longest body of a certificate or of challenges, in bytes.
pub const CERTIFICATE_LEN_MAX: usize = 1 << 20;

/// A certificate with its private key. `GET` and `PUT /v1/certificates/NAME`, for management nodes only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// The chain as PEM, the server's own certificate first.
    pub chain: String,
    /// Its private key as PEM.
    pub key: String,
    /// The order that it comes from.
    #[serde(default)]
    pub ordered: Ordered,
}

/// The order that a certificate comes from. Of two certificates, that of the later order counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ordered {
    /// When it was issued by the clock of the leader, in seconds since 1970: after the one that it replaced.
    pub at_s: i64,
    /// The directory of the authority; empty: unknown.
    pub directory: Text,
}

impl fmt::Debug for Bundle {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// A certificate that a node has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredCertificate {
    /// Its name in the policy.
    pub name: Text,
    /// SHA-256 of chain and key.
    pub sha256: Text,
    /// Its DNS names.
    pub names: Vec<Text>,
    /// Who issued it.
    pub issuer: Text,
    /// From when on it is valid, in seconds since 1970.
    pub not_before_s: i64,
    /// When it ends, in seconds since 1970.
    pub not_after_s: i64,
    /// The order that it comes from.
    #[serde(default)]
    pub ordered: Ordered,
}

impl StoredCertificate {
    /// Returns when it was ordered, for comparison with others. A time in the future counts as none: clocks
    /// are set back, and nodes may be hostile.
    pub fn ordered_s(&self, now_s: i64) -> i64 {
        if self.ordered.at_s > now_s.saturating_add(86_400) { 0 } else { self.ordered.at_s }
    }

    /// Returns whether it is for these names and has not ended.
    pub fn is_usable(&self, names: &[String], now_s: i64) -> bool {
        self.is_for(names) && self.not_after_s > now_s
    }

    /// Returns whether it is for all of these names, which are in lower case, and for no others.
    pub fn is_for(&self, names: &[String]) -> bool {
        self.names.len() == names.len() && names.iter().all(|name| self.names.iter().any(|of| **of == **name))
    }
}

/// `GET /v1/certificates` of proxies and management nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoredCertificates {
    /// Those that the node has.
    pub certificates: Vec<StoredCertificate>,
    /// SHA-256 of the account at the authority; management nodes only.
    #[serde(default)]
    pub account: Option<Text>,
    /// Which challenges a proxy answers: fence and number; proxies only.
    #[serde(default)]
    pub challenges: Option<(i64, u64)>,
    /// Another number at each start of a proxy.
    #[serde(default)]
    pub started: u64,
}

/// The challenges that a proxy is to answer, in place of all former ones. `PUT /v1/challenges`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Challenges {
    /// Fence of the management node that leads: those of earlier leaders are refused.
    pub fence: i64,
    /// Number among those of this leader; it rises.
    pub number: u64,
    /// For requests (http-01).
    pub http: Vec<HttpChallenge>,
    /// For handshakes (tls-alpn-01).
    pub tls: Vec<TlsChallenge>,
}

/// What is shown in a handshake of the authority.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TlsChallenge {
    /// The name that it asks for.
    pub name: String,
    /// The certificate that proves it, with its key.
    pub bundle: Bundle,
}

/// What is answered to a request of the authority.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HttpChallenge {
    /// The end of the path that it asks for.
    pub token: String,
    /// The answer.
    pub authorization: String,
}

/// State of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateState {
    /// It is there and not due.
    Valid,
    /// It is ordered at this moment.
    Ordering,
    /// The last order failed, and what was there is still valid, or nothing is there yet.
    Failing,
    /// It has ended.
    Expired,
    /// It is not there yet; its first order is to come.
    Waiting,
}

impl CertificateState {
    /// Returns the name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            CertificateState::Valid => "valid",
            CertificateState::Ordering => "ordering",
            CertificateState::Failing => "failing",
            CertificateState::Expired => "expired",
            CertificateState::Waiting => "waiting",
        }
    }
}

/// A certificate of the policy in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificateView {
    /// Its name in the policy.
    pub name: Text,
    /// Its DNS names.
    pub names: Vec<Text>,
    /// `http-01` or `tls-alpn-01`.
    pub challenge: Text,
    /// Its state.
    pub state: CertificateState,
    /// Who issued it; empty if it is not there.
    pub issuer: Text,
    /// When it ends, in seconds since 1970; 0 if it is not there.
    pub not_after_s: i64,
    /// When it is ordered next, in seconds since 1970; 0: at once.
    pub next_order_s: i64,
    /// Orders that failed one after another.
    pub failures: u32,
    /// Why the last order failed; empty if it did not.
    pub error: Text,
    /// Nodes that have not received it, or another one.
    pub lacking: Vec<Text>,
}

/// `GET /api/v1/certificates`, as the leading management node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CertificatesView {
    /// Those of the policy in force that are obtained from an authority.
    pub certificates: Vec<CertificateView>,
}
