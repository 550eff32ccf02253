//! `acme:` what of an authority is this node's matter: files. The rest is in the policy.

use std::path::PathBuf;

use csp_control::config::Problems;
use serde::Deserialize;

/// `acme:` of `mgmt-node.yaml`; the same at each management node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeSection {
    /// File with the authorities that may have issued the certificate of the ACME authority's own server.
    pub ca_file: PathBuf,
    /// The account with which the authority asks new ones to be bound (RFC 8555 §7.3.4). Absent: none.
    pub external_account: Option<ExternalAccount>,
}

/// An account that the authority knows otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalAccount {
    /// Its id, as the authority says.
    pub id: String,
    /// File with its key in base64url, mode 600.
    pub key_file: PathBuf,
}

impl Default for AcmeSection {
    fn default() -> Self {
        AcmeSection { ca_file: super::outlets::authorities(), external_account: None }
    }
}

impl AcmeSection {
    pub(super) fn check(&self, problems: &mut Problems) {
        if self.external_account.as_ref().is_some_and(|external| external.id.is_empty()) {
            problems.add("acme.external_account.id", "is empty; the authority says what it is");
        }
    }
}
