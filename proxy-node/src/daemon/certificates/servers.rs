//! How plain servers are reached over TLS: by which authorities their certificates are verified, and by which
//! certificate the proxy names itself.
//!
//! ```text
//!  /etc/csp/tls/internal.ca.pem     authorities that the policy names
//!  /etc/ssl/certs/…                 those of the system
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csp_policy::{Policy, SYSTEM_AUTHORITIES, ServersTls};
use csp_tls::{Certificate, ClientOptions, ClientTls, TlsVersion, Trust};
use rustls::crypto::CryptoProvider;
use rustls::time_provider::DefaultTimeProvider;

use super::{FILE_LEN_MAX, Loaded, Stamp, read_public, stamp};

/// Where systems have the certificates of public authorities: Debian, Red Hat, SUSE, Alpine.
const OF_SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Longest file of a system's authorities in bytes.
const OF_SYSTEM_LEN_MAX: u64 = 4 << 20;

/// What sessions of a service were made of.
#[derive(Clone, PartialEq, Eq)]
struct Source {
    options: ServersTls,
    http2: bool,
    authority: Option<Stamp>,
    certificate: Option<[Option<Stamp>; 2]>,
}

/// How the servers of a service are reached.
#[derive(Clone)]
pub struct Towards {
    /// For clients.
    pub calls: ClientTls,
    /// For checks that ask over HTTP/1.1: without HTTP/2 in the handshake.
    pub http_checks: ClientTls,
}

/// How the servers of the policy in force are reached.
#[derive(Default)]
pub(super) struct Servers {
    /// By the service's name.
    made: HashMap<String, (Source, Towards)>,
    /// The files of authorities at the last try, usable or not.
    tried: HashMap<PathBuf, Option<Stamp>>,
}

impl Servers {
    /// Makes what the services of a policy need, as far as it has changed; returns what is wrong. What was
    /// made before stays while its files cannot be used.
    pub(super) fn load(
        &mut self,
        folder: &Path,
        provider: &Arc<CryptoProvider>,
        (policy, certificates): (&Policy, &HashMap<String, Loaded>),
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        self.tried.clear();
        self.made.retain(|name, _| policy.services_to_tls().any(|(service, _)| service.name == *name));
        for (service, options) in policy.services_to_tls() {
            let http2 = service.servers.http2;
            if let Err(error) = self.make(folder, provider, &service.name, (options, http2), certificates) {
                // Not with less than the policy demands now.
                let same = |source: &Source| (&source.options, source.http2) == (options, http2);
                self.made.retain(|name, (source, _)| *name != service.name || same(source));
                let message = format!("service {}: servers.tls: {error}", service.name);
                wrong.push(message);
            }
        }
        wrong
    }

    /// Returns how the servers of a service are reached.
    pub(super) fn of(&self, service: &str) -> Option<&Towards> {
        self.made.get(service).map(|(_, tls)| tls)
    }

    /// Returns whether files have changed.
    pub(super) fn have_changed(&self) -> bool {
        self.tried.iter().any(|(path, tried)| *tried != stamp(path))
    }

    fn make(
        &mut self,
        folder: &Path,
        provider: &Arc<CryptoProvider>,
        service: &str,
        (options, http2): (&ServersTls, bool),
        certificates: &HashMap<String, Loaded>,
    ) -> Result<(), String> {
        let file = options.verify.then(|| match options.own_authority() {
            Some(name) => folder.join(format!("{name}.ca.pem")),
            None => of_system(),
        });
        let authority = file.as_ref().and_then(|path| stamp(path));
        if let Some(path) = &file {
            self.tried.insert(path.clone(), authority);
        }
        let own = match &options.certificate {
            None => None,
            Some(name) => Some(certificates.get(name).ok_or_else(|| {
                format!(
                    "this proxy has no certificate {name}; copy {name}.pem and {name}.key to {}",
                    folder.display()
                )
            })?),
        };
        let source = Source {
            options: options.clone(),
            http2,
            authority,
            certificate: own.map(|loaded| loaded.stamps),
        };
        if self.made.get(service).is_some_and(|(former, _)| *former == source) {
            return Ok(());
        }
        let own = own.map(|loaded| &loaded.certificate);
        let calls = client(provider, (options, http2), file.as_deref(), own)?;
        let http_checks = if http2 { calls.without_protocol() } else { calls.clone() };
        self.made.insert(service.to_owned(), (source, Towards { calls, http_checks }));
        Ok(())
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    (options, http2): (&ServersTls, bool),
    file: Option<&Path>,
    certificate: Option<&Certificate>,
) -> Result<ClientTls, String> {
    let is_own = options.own_authority().is_some();
    let most = if is_own { FILE_LEN_MAX } else { OF_SYSTEM_LEN_MAX };
    let of_file = |path: &Path, error: String| {
        let name = options.authority.as_deref().unwrap_or(SYSTEM_AUTHORITIES);
        format!("authority {name}: {}: {error}", path.display())
    };
    let text = file.map(|path| read_public(path, most).map_err(|error| of_file(path, error))).transpose()?;
    let trust = match &text {
        None => Trust::Anybody,
        Some(text) if is_own => Trust::Authorities(text),
        Some(text) => Trust::System(text),
    };
    let least = match options.min_version {
        csp_policy::TlsVersion::Tls12 => TlsVersion::Tls12,
        csp_policy::TlsVersion::Tls13 => TlsVersion::Tls13,
    };
    let (protocol, name) = (http2.then_some("h2"), options.name.as_deref());
    let with = (Arc::clone(provider), Arc::new(DefaultTimeProvider) as Arc<_>);
    let tls = ClientTls::new(with, &ClientOptions { trust, certificate, least, protocol, name });
    tls.map_err(|error| match file {
        Some(path) => of_file(path, error.to_string()),
        None => error.to_string(),
    })
}

/// Returns the file of the system's authorities: the first that there is.
fn of_system() -> PathBuf {
    let found = OF_SYSTEM.iter().map(Path::new).find(|path| path.exists());
    found.unwrap_or(Path::new(OF_SYSTEM[0])).to_owned()
}
