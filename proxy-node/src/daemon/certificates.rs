//! The certificates of services with TLS: files in one folder, which the policy names.
//!
//! ```text
//!  /etc/csp/tls/www.example.com.pem    the chain, the server's own certificate first
//!  /etc/csp/tls/www.example.com.key    its private key; mode 600, the daemon's user's
//! ```
//! Without a `.key` file the key is in the `.pem` file, as HAProxy has it. Files are looked at again every
//! few seconds: a certificate that was renewed is for new connections, without a restart. While new files are
//! wrong, or only one of the two has come, the old ones stay in use.

mod authorities;
mod obtained;
mod secret;
mod servers;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use authorities::{Authorities, Verifies};
use obtained::Obtained;
use secret::TicketSecret;
pub use secret::read as read_ticket_secret;
use servers::Servers;
pub use servers::Towards;

use csp_daemon::issued::Issued;
use csp_daemon::private_file;
use csp_policy::{Policy, ServiceTls};
use csp_tls::{Certificate, ServerTls, TlsChallenges, TlsVersion};
use csp_types::{Duration, Instant};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::ProducesTickets;
use rustls::time_provider::DefaultTimeProvider;

/// The folder, unless the configuration names another one. It need not exist.
pub const DEFAULT_FOLDER: &str = "/etc/csp/tls";
/// Longest file in bytes.
const FILE_LEN_MAX: u64 = 256 * 1024;
/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// The state of a file, which changes with its content: inode, length, time of change in nanoseconds.
type Stamp = (u64, u64, i64, i64);

/// A certificate, and the state of its files when it was read.
#[derive(Debug)]
struct Loaded {
    stamps: [Option<Stamp>; 2],
    certificate: Certificate,
}

/// What a service offers, and what it was made of.
struct Offered {
    options: ServiceTls,
    stamps: Vec<[Option<Stamp>; 2]>,
    /// The files of its clients' authority, and the version of the secret of tickets.
    clients: Option<[Option<Stamp>; 2]>,
    secret: u64,
    tickets: Option<Arc<dyn ProducesTickets>>,
    tls: ServerTls,
}

/// The certificates of the policy in force.
pub struct Certificates {
    folder: PathBuf,
    provider: Arc<CryptoProvider>,
    loaded: HashMap<String, Loaded>,
    /// What the files of all names were at the last try, usable or not.
    tried: HashMap<String, [Option<Stamp>; 2]>,
    /// Those that are obtained from an authority, and the challenges under way.
    obtained: Obtained,
    challenges: Option<TlsChallenges>,
    /// By which clients are verified.
    authorities: Authorities,
    /// How servers are reached.
    servers: Servers,
    /// Of which the keys of tickets are derived.
    secret: TicketSecret,
    /// By the service's name.
    offered: HashMap<String, Offered>,
    looked: Option<Instant>,
}

impl Default for Certificates {
    fn default() -> Self {
        Certificates::new(Path::new(DEFAULT_FOLDER), None)
    }
}

impl Certificates {
    /// None yet, of this folder. `secret`: a file with the secret of tickets, which other proxies have, too.
    pub fn new(folder: &Path, secret: Option<&Path>) -> Self {
        Certificates {
            folder: folder.to_owned(),
            provider: Arc::new(ring::default_provider()),
            loaded: HashMap::new(),
            tried: HashMap::new(),
            obtained: Obtained::default(),
            challenges: None,
            authorities: Authorities::default(),
            servers: Servers::default(),
            secret: TicketSecret::of(secret),
            offered: HashMap::new(),
            looked: None,
        }
    }

    /// The same, with those that are obtained from an authority and come to this folder.
    #[must_use]
    pub fn with_issued(self, issued: Arc<Issued>) -> Self {
        Certificates { obtained: Obtained::new(issued), ..self }
    }

    /// Sets the challenges that services answer.
    pub fn set_challenges(&mut self, challenges: Option<TlsChallenges>) {
        self.challenges = challenges;
    }

    /// Returns the certificates of the policy that are to come from an authority; empty if all are here.
    pub fn lacking(&self) -> String {
        self.obtained.lacking()
    }

    /// Reads what the services of a policy need, as far as it has changed. The error names every certificate
    /// that cannot be used; where there was one before, that stays, unless its service demands something else
    /// of its clients now: that service is not served until it can demand it.
    pub fn load(&mut self, policy: &Policy) -> Result<(), String> {
        let mut wrong = Vec::new();
        self.obtained.set(policy);
        let of_clients = policy.tls_services().flat_map(|(_, tls)| &tls.certificates);
        let to_servers = policy.services_to_tls().filter_map(|(_, tls)| tls.certificate.as_ref());
        let names: Vec<&String> = of_clients.chain(to_servers).collect();
        self.loaded.retain(|name, _| names.contains(&name));
        self.tried.retain(|name, _| names.contains(&name));
        for name in names {
            let stamps = self.stamps(name);
            self.tried.insert(name.clone(), stamps);
            if self.loaded.get(name).is_some_and(|loaded| loaded.stamps == stamps) {
                continue;
            }
            let read = match self.files(name).iter().any(|file| file.exists()) {
                true => self.read(name),
                false => self.obtained.placeholder(&self.provider, name).map_or_else(|| self.read(name), Ok),
            };
            match read {
                Ok(certificate) => {
                    self.loaded.insert(name.clone(), Loaded { stamps, certificate });
                }
                Err(error) if !wrong.contains(&error) => wrong.push(error),
                Err(_) => {}
            }
        }
        wrong.extend(self.authorities.load(&self.folder, &self.provider, policy));
        wrong.extend(self.servers.load(&self.folder, &self.provider, (policy, &self.loaded)));
        wrong.extend(self.secret.load().err().map(|error| format!("tls.ticket_secret: {error}")));
        self.offered.retain(|name, _| policy.tls_services().any(|(service, _)| service.name == *name));
        for (service, tls) in policy.tls_services() {
            let offered = ServiceTls { alpn: service.alpn(), ..tls.clone() };
            if let Err(error) = self.offer(&service.name, &offered) {
                // What was offered before stays, but lets in nobody whom the policy refuses now.
                let demands = |of: &ServiceTls| (of.clients.clone(), of.min_version);
                self.offered.retain(|name, former| {
                    *name != service.name || demands(&former.options) == demands(&offered)
                });
                wrong.push(format!("service {}: {error}", service.name));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Returns what a service offers.
    pub fn of(&self, service: &str) -> Option<ServerTls> {
        self.offered.get(service).map(|offered| offered.tls.clone().answering(self.challenges.clone()))
    }

    /// Returns how the servers of a service with `servers.tls` are reached.
    pub fn towards(&self, service: &str) -> Option<&Towards> {
        self.servers.of(service)
    }

    /// Returns whether the certificates of a service with TLS are here.
    pub fn has(&self, service: &str) -> bool {
        self.offered.contains_key(service)
    }

    /// Returns whether files have changed, which are looked at every few seconds.
    pub fn look_again(&mut self, now: Instant) -> bool {
        if self.looked.is_some_and(|at| now.saturating_since(at) < LOOK) {
            return false;
        }
        self.looked = Some(now);
        self.tried.iter().any(|(name, stamps)| *stamps != self.stamps(name))
            || self.authorities.have_changed(&self.folder)
            || self.servers.have_changed()
            || self.secret.has_changed()
    }

    /// Makes what a service offers, unless it is made of the same.
    fn offer(&mut self, service: &str, options: &ServiceTls) -> Result<(), String> {
        let lacks = |name: &&String| !self.loaded.contains_key(*name);
        let lacking: Vec<String> = options.certificates.iter().filter(lacks).cloned().collect();
        if !lacking.is_empty() {
            return Err(format!(
                "this proxy has not all of its certificates; copy {} to {}",
                lacking
                    .iter()
                    .map(|name| format!("{name}.pem and {name}.key"))
                    .collect::<Vec<_>>()
                    .join(", "),
                self.folder.display()
            ));
        }
        let used: Vec<&Loaded> =
            options.certificates.iter().filter_map(|name| self.loaded.get(name)).collect();
        let stamps: Vec<_> = used.iter().map(|loaded| loaded.stamps).collect();
        let former = self.offered.get(service);
        let clients = options.clients.as_ref().map(|of| self.authorities.verifies(&self.provider, of));
        let clients = clients.transpose()?;
        let of_clients = clients.as_ref().map(|clients| clients.stamps);
        let verifies_alike =
            |offered: &&Offered| offered.options.clients == options.clients && offered.clients == of_clients;
        let secret = self.secret.version();
        if former.filter(verifies_alike).is_some_and(|offered| {
            (&offered.options, &offered.stamps, offered.secret) == (options, &stamps, secret)
        }) {
            return Ok(());
        }
        let certificates: Vec<Certificate> = used.iter().map(|loaded| loaded.certificate.clone()).collect();
        let least = match options.min_version {
            csp_policy::TlsVersion::Tls12 => TlsVersion::Tls12,
            csp_policy::TlsVersion::Tls13 => TlsVersion::Tls13,
        };
        // Sessions are resumed after a certificate was renewed, too, but not after other clients are refused.
        let kept = former.filter(verifies_alike).and_then(|offered| offered.tickets.clone());
        let shared = self.secret.keys(&self.provider, &binding(service, clients.as_ref()));
        let tickets = shared.or(kept).or_else(|| ring::Ticketer::new().ok());
        let verifier = clients.map(|clients| clients.verifier);
        let provider = Arc::clone(&self.provider);
        let with = (provider, Arc::new(DefaultTimeProvider) as Arc<_>);
        let (protocols, tickets_too) = (&options.alpn, tickets.clone());
        let tls = ServerTls::with_clients(with, &certificates, least, protocols, tickets_too, verifier);
        let tls = tls.map_err(|error| error.to_string())?;
        let options = options.clone();
        let offered = Offered { options, stamps, clients: of_clients, secret, tickets, tls };
        self.offered.insert(service.to_owned(), offered);
        Ok(())
    }

    fn files(&self, name: &str) -> [PathBuf; 2] {
        if let Some(file) = self.obtained.file(name) {
            return [file.clone(), file.with_extension("key")];
        }
        ["pem", "key"].map(|suffix| self.folder.join(format!("{name}.{suffix}")))
    }

    fn stamps(&self, name: &str) -> [Option<Stamp>; 2] {
        self.files(name).map(|path| stamp(&path))
    }

    fn read(&self, name: &str) -> Result<Certificate, String> {
        let [chain, key] = self.files(name);
        let (key_text, key) = match key.exists() {
            true => (private_file::read(&key, FILE_LEN_MAX), key),
            false => (private_file::read(&chain, FILE_LEN_MAX), chain.clone()),
        };
        let of = |path: &Path, error: String| format!("certificate {name}: {}: {error}", path.display());
        let chain_text = read_public(&chain, FILE_LEN_MAX).map_err(|error| of(&chain, error))?;
        let key_text = key_text.map_err(|error| of(&key, error))?;
        Certificate::from_pem(&self.provider, name, &chain_text, key_text.as_bytes())
            .map_err(|error| of(&key, error.to_string()))
    }
}

/// Returns what tickets are bound to: the service, and how its clients are verified.
fn binding(service: &str, clients: Option<&Verifies>) -> Vec<u8> {
    let clients = clients.map_or(&[][..], |clients| &clients.binding);
    [service.as_bytes(), &[0], clients].concat()
}

/// Returns the state of a file; `None`: there is none.
fn stamp(path: &Path) -> Option<Stamp> {
    let file = fs::metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// Reads a file without secrets of at most so many bytes.
fn read_public(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("has more than {most} bytes, the most that are allowed"));
    }
    Ok(bytes)
}
