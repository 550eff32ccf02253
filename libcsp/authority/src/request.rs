//! Requests for certificates, checked before anything is done.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use csp_identity::IdentityRole;
use csp_types::NodeId;

const DAY: Duration = Duration::from_secs(86_400);
/// Default lifetime of a certificate.
pub const LIFETIME_DEFAULT: Duration = Duration::from_secs(90 * 86_400);
/// Largest lifetime of a certificate or authority: 100 years.
const LIFETIME_MAX: Duration = Duration::from_secs(36_500 * 86_400);
/// Largest number of addresses and names in one certificate.
const NAMES_MAX: usize = 64;

/// A request for a certificate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The owner's role.
    pub role: IdentityRole,
    /// The owner's id.
    pub id: NodeId,
    /// Addresses at which others connect to the owner.
    pub addresses: BTreeSet<IpAddr>,
    /// DNS names at which others connect to the owner.
    pub names: BTreeSet<String>,
    /// Validity of a new certificate, from 1 s to 100 years.
    pub lifetime: Duration,
    /// Remaining validity at or below which a certificate is replaced. `None`: a third of the lifetime, at
    /// most 30 days.
    pub renew_before: Option<Duration>,
    /// Whether to issue a new certificate in any case.
    pub force: bool,
}

/// Why no authority can meet a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RequestError {
    /// The lifetime is out of range.
    #[error("a lifetime must be 1s to 36500d, not {0:?}")]
    Lifetime(Duration),
    /// `renew_before` is not shorter than the lifetime, so that each certificate would be replaced at once.
    #[error(
        "renew-before ({renew_before:?}) must be shorter than the lifetime ({lifetime:?}), or every certificate is replaced at once"
    )]
    RenewBefore { renew_before: Duration, lifetime: Duration },
    /// The owner accepts no connections, and so needs no addresses.
    #[error("nobody connects to a {0}: its certificate has no addresses and names")]
    NotServing(IdentityRole),
    /// The text is not a DNS name.
    #[error("`{0}` is no DNS name: up to 253 letters, digits, dots and hyphens, without wildcards")]
    Name(String),
    /// There are too many addresses and names.
    #[error("a certificate may have {NAMES_MAX} addresses and names, not {0}")]
    TooMany(usize),
    /// The address is unspecified or otherwise not that of one host.
    #[error("{0} is no address of one host")]
    Address(IpAddr),
    /// etcd's root user has a fixed id.
    #[error("the id of etcd's root user is `root`, not `{0}`")]
    Root(NodeId),
}

impl Request {
    /// Returns a request with the default lifetime and without addresses.
    pub fn new(role: IdentityRole, id: NodeId) -> Self {
        let (addresses, names) = (BTreeSet::new(), BTreeSet::new());
        Request { role, id, addresses, names, lifetime: LIFETIME_DEFAULT, renew_before: None, force: false }
    }

    /// Adds an address.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.insert(address);
        self
    }

    /// Adds a DNS name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into());
        self
    }

    /// Sets the lifetime of a new certificate.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Returns the owner as shown to people: `ROLE ID`.
    pub fn owner(&self) -> String {
        format!("{} {}", self.role, self.id)
    }

    /// Returns the remaining validity at which a certificate is replaced.
    pub(crate) fn renew_before(&self) -> Duration {
        self.renew_before.unwrap_or_else(|| (self.lifetime / 3).min(30 * DAY))
    }

    /// Checks the request. Returns it with names in lower case.
    pub(crate) fn checked(&self) -> Result<Self, RequestError> {
        let mut checked = self.clone();
        checked.names = self.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        check_lifetime(self.lifetime)?;
        if self.renew_before() >= self.lifetime {
            let (renew_before, lifetime) = (self.renew_before(), self.lifetime);
            return Err(RequestError::RenewBefore { renew_before, lifetime });
        }
        let count = self.addresses.len() + self.names.len();
        if !self.role.serves() && count > 0 {
            return Err(RequestError::NotServing(self.role));
        }
        if count > NAMES_MAX {
            return Err(RequestError::TooMany(count));
        }
        if let Some(name) = checked.names.iter().find(|name| !is_dns_name(name)) {
            return Err(RequestError::Name(name.escape_debug().take(300).collect()));
        }
        if let Some(address) = self.addresses.iter().find(|a| a.is_unspecified() || a.is_multicast()) {
            return Err(RequestError::Address(*address));
        }
        if self.role == IdentityRole::EtcdRoot && self.id.as_str() != "root" {
            return Err(RequestError::Root(self.id));
        }
        Ok(checked)
    }
}

pub(crate) fn check_lifetime(lifetime: Duration) -> Result<(), RequestError> {
    match lifetime {
        l if l < Duration::from_secs(1) || l > LIFETIME_MAX => Err(RequestError::Lifetime(l)),
        _ => Ok(()),
    }
}

/// Returns whether `name` is a host name (RFC 1123 §2.1) in lower case.
fn is_dns_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(legal)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The last label of a name is never numeric: a name such as 10.0.0.1 would match nothing.
    let numeric = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(label) && !numeric
}
