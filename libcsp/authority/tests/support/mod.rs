//! What both test files use.
// Each uses its own part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Authority, Request, Timestamp};
use csp_identity::IdentityRole;
use csp_types::NodeId;

pub const DAY: Duration = Duration::from_secs(86_400);

/// A moment; nothing here depends on which.
pub fn start() -> Timestamp {
    Timestamp::from_unix_s(1_800_000_000)
}

pub fn id(text: &str) -> NodeId {
    text.parse().expect("id")
}

pub fn proxy(name: &str) -> Request {
    Request::new(IdentityRole::ProxyNode, id(name)).address([10, 77, 0, 3].into()).name("PN-1.example")
}

/// A folder that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-pki-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Scratch(std::env::temp_dir().join(name))
    }

    pub fn create(&self) -> Authority {
        Authority::create(&self.0, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start()).expect("a new folder")
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Verifies the certificate of an identity folder with OpenSSL against the files beside it, at a moment.
pub fn verify(folder: &Path, at: Timestamp) -> Result<String, String> {
    let file = |name: &str| folder.join(name).into_os_string();
    let mut command = Command::new("openssl");
    command.arg("verify").arg("-CAfile").arg(file("ca.pem")).arg("-CRLfile").arg(file("revoked.pem"));
    command.args([
        "-crl_check",
        "-x509_strict",
        "-purpose",
        "sslclient",
        "-attime",
        &at.unix_s().to_string(),
    ]);
    finished(command.arg(file("certificate.pem")).output().expect("openssl runs"))
}

/// What a certificate or list says in OpenSSL's words.
pub fn text(kind: &str, file: &Path) -> String {
    let mut command = Command::new("openssl");
    finished(command.args([kind, "-noout", "-text", "-in"]).arg(file).output().expect("openssl runs"))
        .expect("OpenSSL reads it")
        .replace(" = ", "=") // names as releases from 3.2 on print them
}

fn finished(output: Output) -> Result<String, String> {
    let text = |octets: Vec<u8>| String::from_utf8_lossy(&octets).into_owned();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stdout) + &text(output.stderr)),
    }
}
