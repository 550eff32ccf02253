//! `pki.json`: the cluster, its authorities and every certificate issued. All other files of the folder
//! follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use csp_identity::{Identity, IdentityRole};
use csp_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::files::{self, REGISTRY};
use crate::{CERTIFICATES_MAX, PkiError, Serial, Timestamp};

/// Version of the file's format.
const VERSION: u32 = 1;
/// Largest number of authorities over the life of a folder.
const AUTHORITIES_MAX: usize = 1000;
/// How long the lists contain a certificate after its expiry, so that hosts whose clocks are late still
/// reject it.
const LISTED_AFTER_EXPIRY: Duration = Duration::from_secs(86_400);

/// The content of `pki.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    version: u32,
    /// The cluster that the authorities serve.
    #[serde(with = "text")]
    pub cluster: NodeId,
    /// Number of the latest revocation lists; all authorities' lists are made together (RFC 5280 §5.2.3).
    pub list_number: u64,
    /// All authorities, including retired ones, in the order of their numbers.
    pub authorities: Vec<AuthorityRecord>,
    /// Certificates in the order in which they were issued.
    pub certificates: Vec<CertificateRecord>,
}

/// An authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthorityRecord {
    /// Its number: 1 for the first.
    pub number: u32,
    /// Its present use.
    pub state: AuthorityState,
    /// Serial number of its certificate.
    #[serde(with = "text")]
    pub serial: Serial,
    /// Beginning of its validity.
    pub not_before: Timestamp,
    /// End of its validity, inclusive.
    pub not_after: Timestamp,
}

/// The use of an authority. `rotate start`, `switch` and `finish` change it.
///
/// ```text
/// (rotate start) -> next -> (switch) -> issuing -> (switch of the one after it) -> previous -> (finish) -> retired
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthorityState {
    /// Trusted; does not issue yet.
    Next,
    /// Trusted and issuing. Exactly one authority is in this state.
    Issuing,
    /// Trusted; no longer issues.
    Previous,
    /// No longer trusted.
    Retired,
}

/// A certificate that was issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRecord {
    /// Its serial number.
    #[serde(with = "text")]
    pub serial: Serial,
    /// The owner's role.
    #[serde(with = "text")]
    pub role: IdentityRole,
    /// The owner's id.
    #[serde(with = "text")]
    pub id: NodeId,
    /// Number of the authority that signed it.
    pub authority: u32,
    /// Beginning of its validity.
    pub not_before: Timestamp,
    /// End of its validity, inclusive.
    pub not_after: Timestamp,
    /// Time of the revocation; `None` if it is not revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl AuthorityState {
    /// Returns the state's name in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            AuthorityState::Next => "next",
            AuthorityState::Issuing => "issuing",
            AuthorityState::Previous => "previous",
            AuthorityState::Retired => "retired",
        }
    }

    /// Returns whether certificates signed by it are accepted.
    pub const fn is_trusted(self) -> bool {
        !matches!(self, AuthorityState::Retired)
    }
}

impl CertificateRecord {
    /// Returns whether nodes accept it at `now`, provided that its authority is trusted.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && now <= self.not_after
    }

    /// Returns whether it belongs to this owner.
    pub fn is_of(&self, role: IdentityRole, id: NodeId) -> bool {
        (self.role, self.id) == (role, id)
    }
}

impl Registry {
    /// Reads the registry of the folder `dir` without locking it, since writers replace the file atomically.
    pub fn read(dir: &Path) -> Result<Self, PkiError> {
        let path = dir.join(REGISTRY);
        let text = files::read(&path)?.ok_or_else(|| PkiError::Missing { dir: dir.to_owned() })?;
        Registry::parse(&text).map_err(|problem| PkiError::Damaged { path, problem })
    }

    /// Returns the registry of a new cluster.
    pub(crate) fn new(cluster: NodeId) -> Self {
        Registry {
            version: VERSION,
            cluster,
            list_number: 0,
            authorities: Vec::new(),
            certificates: Vec::new(),
        }
    }

    /// Parses the file's text. The error completes a sentence that begins with the file's name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let registry: Registry = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if registry.version != VERSION {
            return Err(format!(
                "version {} is not known, only {VERSION}; use a newer cspctl",
                registry.version
            ));
        }
        registry.check_authorities()?;
        registry.check_certificates()?;
        Ok(registry)
    }

    /// Returns the file's text.
    pub(crate) fn text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|e| e.to_string())
    }

    fn check_authorities(&self) -> Result<(), String> {
        let numbers = self.authorities.iter().zip(1..).all(|(a, number)| a.number == number);
        if !numbers || self.authorities.len() > AUTHORITIES_MAX {
            return Err(format!("authorities must be numbered 1, 2, ... up to {AUTHORITIES_MAX}"));
        }
        if self.authorities.iter().any(|a| a.not_before > a.not_after) {
            return Err("an authority ends before it begins".to_owned());
        }
        let states: Vec<AuthorityState> = self.authorities.iter().map(|a| a.state).collect();
        let retired = states.iter().take_while(|state| !state.is_trusted()).count();
        match states[retired..] {
            [AuthorityState::Issuing]
            | [AuthorityState::Issuing, AuthorityState::Next]
            | [AuthorityState::Previous, AuthorityState::Issuing] => Ok(()),
            _ => Err(
                "the states of its authorities do not fit together: one must be issuing, at most one more \
                      may be the next or the previous one, those before are retired"
                    .to_owned(),
            ),
        }
    }

    fn check_certificates(&self) -> Result<(), String> {
        if self.certificates.len() > CERTIFICATES_MAX {
            return Err(format!("it has more than {CERTIFICATES_MAX} certificates"));
        }
        let mut serials = BTreeSet::new();
        for certificate in &self.certificates {
            let problem = if !serials.insert(certificate.serial) {
                "is there twice"
            } else if self.authority(certificate.authority).is_none() {
                "is of an authority that is not listed"
            } else if certificate.not_before > certificate.not_after {
                "ends before it begins"
            } else {
                continue;
            };
            return Err(format!("certificate {} {problem}", certificate.serial));
        }
        Ok(())
    }

    /// Returns the authority with this number.
    pub fn authority(&self, number: u32) -> Option<&AuthorityRecord> {
        self.authorities.iter().find(|authority| authority.number == number)
    }

    /// Returns the trusted authorities, one or two.
    pub fn trusted(&self) -> impl Iterator<Item = &AuthorityRecord> {
        self.authorities.iter().filter(|authority| authority.state.is_trusted())
    }

    /// Returns the number of the trusted authority in this state.
    pub fn in_state(&self, state: AuthorityState) -> Option<u32> {
        self.authorities.iter().find(|authority| authority.state == state).map(|authority| authority.number)
    }

    /// Returns the certificates of an owner in the order in which they were issued.
    pub fn of(&self, role: IdentityRole, id: NodeId) -> impl DoubleEndedIterator<Item = &CertificateRecord> {
        self.certificates.iter().filter(move |certificate| certificate.is_of(role, id))
    }

    /// Returns each owner's newest certificate, by role and id.
    pub fn newest(&self) -> BTreeMap<(IdentityRole, NodeId), CertificateRecord> {
        self.certificates
            .iter()
            .map(|certificate| ((certificate.role, certificate.id), *certificate))
            .collect()
    }

    /// Returns the identity in the certificates of this owner.
    pub(crate) fn identity(&self, role: IdentityRole, id: NodeId) -> Identity {
        Identity { cluster: self.cluster, role, id }
    }

    /// Adds a record. If the registry is full, records of expired certificates that were replaced are
    /// dropped.
    pub(crate) fn add(&mut self, certificate: CertificateRecord, now: Timestamp) -> Result<(), PkiError> {
        if self.certificates.len() >= CERTIFICATES_MAX {
            let newest = self.newest();
            self.certificates.retain(|c| {
                now <= c.not_after.plus(LISTED_AFTER_EXPIRY)
                    || newest.get(&(c.role, c.id)).is_some_and(|newest| newest.serial == c.serial)
            });
        }
        if self.certificates.len() >= CERTIFICATES_MAX {
            return Err(PkiError::Full);
        }
        self.certificates.push(certificate);
        Ok(())
    }

    /// Revokes all certificates of an owner. Returns whether one of them was not revoked before.
    pub(crate) fn revoke(&mut self, role: IdentityRole, id: NodeId, now: Timestamp) -> bool {
        let theirs = self.certificates.iter_mut().filter(|c| c.is_of(role, id) && c.revoked_at.is_none());
        theirs.map(|certificate| certificate.revoked_at = Some(now)).count() > 0
    }

    /// Returns the certificates for an authority's revocation list: revoked ones that have not expired, or
    /// have expired recently (RFC 5280 §3.3).
    pub(crate) fn revoked(
        &self,
        authority: u32,
        now: Timestamp,
    ) -> impl Iterator<Item = (Serial, Timestamp)> {
        let its = self.certificates.iter().filter(move |c| c.authority == authority);
        its.filter(move |c| now <= c.not_after.plus(LISTED_AFTER_EXPIRY))
            .filter_map(|c| c.revoked_at.map(|at| (c.serial, at)))
    }
}

/// Values that are written as text and parsed from it.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn serialize_option<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
