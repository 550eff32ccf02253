//! Logins of browsers.

use serde::{Deserialize, Serialize};

/// `POST /api/v1/login`: what a session is wanted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    /// `viewer` or `operator`; not above the caller's own role.
    #[serde(default = "viewer")]
    pub role: String,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginView {
    /// Path of the page, with the link's secret after `#`: browsers do not send that part.
    pub path: String,
    /// The session's role.
    pub role: String,
    /// How long the link can be used, in seconds. It can be used once.
    pub expires_in_s: u64,
}

/// `POST /api/v1/login/link`: whose link it is, which stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// The link's secret.
    pub token: String,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// The identity in whose name the session acts, a URI.
    pub identity: String,
    /// The session's role.
    pub role: String,
}

/// `POST /api/v1/login/redeem`: what the page makes of the link when its reader has agreed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedeemRequest {
    /// The link's secret.
    pub token: String,
    /// The identity that the page has shown: that of the link, else the session does not begin.
    pub identity: String,
}

fn viewer() -> String {
    "viewer".to_owned()
}
