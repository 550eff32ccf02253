//! Changes that operators make: who the caller is, what was changed, and what it changes.

use serde::{Deserialize, Serialize};

/// `GET /api/v1/session`: who the caller is, and what the page may offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Identity, such as `csp://demo/operator/alice`; absent for a client of a node without an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// `viewer`, `operator` or `admin`.
    pub role: String,
    /// How the caller is known: `session`, `certificate` or `local`.
    pub by: String,
    /// Of a session: its age in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u64>,
    /// Whether the caller may apply a policy and roll back. A session may while it is young.
    pub fresh: bool,
}

/// Body of `PUT /api/v1/link/scheme`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemeRequest {
    /// `RR`, `EAS`, `SA`, `PA` or `PAR`.
    pub scheme: String,
}

/// One line of the audit log, and an element of `GET /api/v1/audit`. A change has two: one before it is
/// tried, one with its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// When, Unix time in ms.
    pub time_ms: u64,
    /// The change: the same in both lines.
    pub id: String,
    /// `asked`, then `done`.
    pub stage: String,
    /// Identity of the caller; `local` for a client of a node without an identity.
    pub who: String,
    /// `session`, `certificate` or `local`.
    pub by: String,
    /// Address of the caller.
    pub from: String,
    /// Method of the request.
    pub method: String,
    /// Path of the request.
    pub path: String,
    /// What is changed, in words.
    pub what: String,
    /// Generation in force when it was asked for; 0: none, or not known.
    pub generation: u64,
    /// Idempotency-Key of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Status of the answer, in the second line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `accepted`, or why it was refused; in the second line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// `GET /api/v1/audit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditView {
    /// The management node that has written them.
    pub node: String,
    /// The newest records, newest first.
    pub records: Vec<AuditRecord>,
}
