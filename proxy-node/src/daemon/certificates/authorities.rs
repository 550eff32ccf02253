//! The authorities by which certificates of clients are verified, and their revocation lists.
//!
//! ```text
//!  /etc/csp/tls/staff.ca.pem     certificates of authorities
//!  /etc/csp/tls/staff.crl.pem    their revocation lists, for services that ask for them
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use csp_policy::{Policy, ServiceClients};
use csp_tls::ClientVerifier;
use rustls::crypto::CryptoProvider;
use rustls::time_provider::DefaultTimeProvider;

use super::{FILE_LEN_MAX, Stamp, read_public, stamp};

/// Longest file of revocation lists in bytes: those of public authorities have several MiB.
const LISTS_LEN_MAX: u64 = 16 << 20;

/// The files of one authority: with and without a revocation list it is another one.
pub(super) type Key = (String, bool);

/// An authority, and the state of its files when it was read.
#[derive(Debug)]
struct Loaded {
    stamps: [Option<Stamp>; 2],
    authorities: Vec<u8>,
    revoked: Option<Vec<u8>>,
}

/// The authorities that a policy names.
#[derive(Debug, Default)]
pub(super) struct Authorities {
    loaded: HashMap<Key, Loaded>,
    /// What the files were at the last try, usable or not.
    tried: HashMap<Key, [Option<Stamp>; 2]>,
}

/// How a service's clients are verified, and what it is made of.
pub(super) struct Verifies {
    pub(super) stamps: [Option<Stamp>; 2],
    pub(super) verifier: ClientVerifier,
    /// Sessions of services with the same one can be resumed at each other.
    pub(super) binding: Vec<u8>,
}

fn with(provider: &Arc<CryptoProvider>) -> (Arc<CryptoProvider>, Arc<DefaultTimeProvider>) {
    (Arc::clone(provider), Arc::new(DefaultTimeProvider))
}

impl Authorities {
    /// Reads what a policy names, as far as it has changed; returns what is wrong.
    pub(super) fn load(
        &mut self,
        folder: &Path,
        provider: &Arc<CryptoProvider>,
        policy: &Policy,
    ) -> Vec<String> {
        let clients = policy.tls_services().filter_map(|(_, tls)| tls.clients.as_ref());
        let keys: Vec<Key> = clients.map(key).collect();
        self.loaded.retain(|key, _| keys.contains(key));
        self.tried.retain(|key, _| keys.contains(key));
        let mut wrong = Vec::new();
        for key in keys {
            let stamps = stamps(folder, &key);
            self.tried.insert(key.clone(), stamps);
            if self.loaded.get(&key).is_some_and(|loaded| loaded.stamps == stamps) {
                continue;
            }
            match read(folder, provider, &key) {
                Ok((authorities, revoked)) => {
                    self.loaded.insert(key, Loaded { stamps, authorities, revoked });
                }
                Err(error) if !wrong.contains(&error) => wrong.push(error),
                Err(_) => {}
            }
        }
        wrong
    }

    /// Returns whether files have changed.
    pub(super) fn have_changed(&self, folder: &Path) -> bool {
        self.tried.iter().any(|(key, tried)| *tried != stamps(folder, key))
    }

    /// Returns how the clients of a service are verified.
    pub(super) fn verifies(
        &self,
        provider: &Arc<CryptoProvider>,
        clients: &ServiceClients,
    ) -> Result<Verifies, String> {
        let Some(loaded) = self.loaded.get(&key(clients)) else {
            return Err(format!(
                "this proxy has not the files of its clients' authority {}",
                clients.authority
            ));
        };
        let Loaded { stamps, authorities, revoked } = loaded;
        let (provider, time) = with(provider);
        let revoked_text = revoked.as_deref();
        let verifier =
            ClientVerifier::from_pem((provider, time), authorities, revoked_text, clients.required)
                .map_err(|error| error.to_string())?;
        let revoked = revoked_text.unwrap_or_default();
        let required = [u8::from(clients.required)];
        let binding = [&required[..], &authorities.len().to_be_bytes(), authorities, revoked].concat();
        Ok(Verifies { stamps: *stamps, verifier, binding })
    }
}

fn key(clients: &ServiceClients) -> Key {
    (clients.authority.clone(), clients.revocation)
}

fn stamps(folder: &Path, (name, revocation): &Key) -> [Option<Stamp>; 2] {
    let of_list = revocation.then(|| stamp(&folder.join(format!("{name}.crl.pem")))).flatten();
    [stamp(&folder.join(format!("{name}.ca.pem"))), of_list]
}

/// Reads the files of an authority, and checks that clients can be verified by them.
fn read(
    folder: &Path,
    provider: &Arc<CryptoProvider>,
    (name, revocation): &Key,
) -> Result<(Vec<u8>, Option<Vec<u8>>), String> {
    let file = |suffix: &str, most: u64| {
        let path = folder.join(format!("{name}.{suffix}"));
        read_public(&path, most)
            .map_err(|error| format!("clients' authority {name}: {}: {error}", path.display()))
    };
    let authorities = file("ca.pem", FILE_LEN_MAX)?;
    let revoked = revocation.then(|| file("crl.pem", LISTS_LEN_MAX)).transpose()?;
    let (provider, time) = with(provider);
    match ClientVerifier::from_pem((provider, time), &authorities, revoked.as_deref(), true) {
        Ok(_) => Ok((authorities, revoked)),
        Err(error) => {
            let suffix =
                if matches!(error, csp_tls::ClientsError::Revocation(_)) { "crl.pem" } else { "ca.pem" };
            let path = folder.join(format!("{name}.{suffix}"));
            Err(format!("clients' authority {name}: {}: {error}", path.display()))
        }
    }
}
