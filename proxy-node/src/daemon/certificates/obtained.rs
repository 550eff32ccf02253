//! Certificates that management nodes obtain from an authority. Until the first one has come, what is shown
//! is a file of the proxy by that name, as before, or a certificate that nobody has issued.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use csp_daemon::issued::Issued;
use csp_policy::Policy;
use csp_tls::Certificate;
use rustls::crypto::CryptoProvider;

/// The certificates of the policy that are obtained.
#[derive(Debug, Default)]
pub(super) struct Obtained {
    issued: Option<Arc<Issued>>,
    /// The DNS names of each.
    names: HashMap<String, Vec<String>>,
}

impl Obtained {
    /// Those that this folder has or will have.
    pub(super) fn new(issued: Arc<Issued>) -> Self {
        Obtained { issued: Some(issued), names: HashMap::new() }
    }

    /// Takes the names of a policy.
    pub(super) fn set(&mut self, policy: &Policy) {
        let all = policy.acme.iter().flat_map(|acme| &acme.certificates);
        self.names = all.map(|of| (of.name.clone(), of.dns_names())).collect();
    }

    /// Returns the file of a certificate that was obtained; the key is in it.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        let file = self.issued.as_ref().filter(|_| self.names.contains_key(name))?.file(name);
        file.exists().then_some(file)
    }

    /// Returns the certificates that are to come, in words; empty if all are here.
    pub(super) fn lacking(&self) -> String {
        let mut names: Vec<&str> =
            self.names.keys().map(String::as_str).filter(|name| self.file(name).is_none()).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Makes what stands for a certificate that is to come; `None`: it is not obtained.
    pub(super) fn placeholder(&self, provider: &CryptoProvider, name: &str) -> Option<Certificate> {
        let names = self.names.get(name)?;
        let made = rcgen::generate_simple_self_signed(names.clone()).ok()?;
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        Certificate::from_pem(provider, name, chain.as_bytes(), key.as_bytes()).ok()
    }
}
