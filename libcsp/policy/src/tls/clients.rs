//! Certificates of a service's clients, which proxies verify.

use csp_config::Problems;
use serde::{Deserialize, Serialize};

use crate::Service;
use crate::check::check_count;

/// How certificates of clients are verified.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceClients {
    /// Name of the authority, whose certificates each proxy has as file `NAME.ca.pem`.
    pub authority: String,
    /// Whether clients need a certificate. Without one they are otherwise served as usual; a wrong one is
    /// refused in either case.
    #[serde(default = "crate::yes", skip_serializing_if = "crate::is_yes")]
    pub required: bool,
    /// Whether certificates are looked up in revocation lists, which each proxy has as file `NAME.crl.pem`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revocation: bool,
    /// The fields by which servers learn of certificates, of services with `http`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<CertificateField>,
}

/// A way by which servers learn of a client's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateField {
    /// `Client-Cert` (RFC 9440).
    ClientCert,
    /// `X-SSL-Client-Verify`, `X-SSL-Client-Subject`, `X-SSL-Client-Issuer`, `X-SSL-Client-Serial`.
    XSslClient,
}

impl ServiceClients {
    /// In a few words, for differences of policies.
    pub(super) fn summary(&self) -> String {
        let required = if self.required { "" } else { "perhaps " };
        let revocation = if self.revocation { " with revocation" } else { "" };
        let fields = match self.fields.len() {
            0 => String::new(),
            _ => format!(" as {:?}", self.fields),
        };
        format!(", clients {required}of {}{revocation}{fields}", self.authority)
    }

    pub(super) fn check(&self, service: &Service, at: &str, problems: &mut Problems) {
        if let Some(message) = super::name_fault(&self.authority) {
            problems.add(format!("{at}.authority"), message);
        }
        check_count(&format!("{at}.fields"), self.fields.len(), 0, 2, problems);
        if self.fields.first().is_some_and(|first| self.fields.iter().skip(1).any(|other| other == first)) {
            problems.add(format!("{at}.fields[1]"), "is in this list already".to_owned());
        }
        if !self.fields.is_empty() && service.http.is_none() {
            let message = "fields are of requests, which are read at services with http only";
            problems.add(format!("{at}.fields"), message.to_owned());
        }
    }
}
