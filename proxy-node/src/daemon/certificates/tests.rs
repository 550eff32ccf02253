//! What stays in use when files or options cannot be used.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

const WEB: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 443
    tls: {certificates: [a]}
    pool: [{address: 10.0.1.1, port: 80}]
egress: [{address: 10.76.0.101, destinations: [10.0.0.0/16]}]
";

/// A folder with the certificate `a`, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!(
            "csp-certificates-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir_all(&folder).unwrap();
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        fs::write(folder.join("a.pem"), made.cert.pem()).unwrap();
        fs::write(folder.join("a.key"), made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(folder.join("a.key"), Permissions::from_mode(0o600)).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn policy(tls: &str) -> Policy {
    Policy::parse_yaml(&WEB.replace("{certificates: [a]}", tls), "p.yaml").unwrap()
}

#[test]
fn what_demands_less_of_clients_does_not_stay_in_use() {
    let folder = Folder::new();
    let mut certificates = Certificates::new(&folder.0, None);
    certificates.load(&policy("{certificates: [a]}")).unwrap();
    assert!(certificates.has("web"));
    // A certificate that is missing leaves what was offered before.
    certificates.load(&policy("{certificates: [a, b]}")).unwrap_err();
    assert!(certificates.has("web"));
    // An authority that is missing does not: clients without a certificate would be let in.
    let error = certificates.load(&policy("{certificates: [a], clients: {authority: staff}}")).unwrap_err();
    assert!(error.contains("staff.ca.pem"), "{error}");
    assert!(!certificates.has("web") && certificates.of("web").is_none());
    certificates.load(&policy("{certificates: [a]}")).unwrap();
    assert!(certificates.has("web"));
}

/// A check over HTTP/1.1 of a server with which HTTP/2 was agreed would fail.
#[test]
fn checks_over_http_do_not_agree_on_http2() {
    let folder = Folder::new();
    let mut certificates = Certificates::new(&folder.0, None);
    for http2 in [false, true] {
        let mut policy = policy("{certificates: [a]}");
        policy.services[0].servers.http2 = http2;
        policy.services[0].servers.tls = Some(csp_policy::ServersTls { verify: false, ..Default::default() });
        certificates.load(&policy).unwrap();
        let towards = certificates.towards("web").unwrap().clone();
        assert_eq!(towards.calls != towards.http_checks, http2);
        certificates.load(&policy).unwrap();
        let again = certificates.towards("web").unwrap();
        assert!(again.calls == towards.calls && again.http_checks == towards.http_checks, "not made anew");
    }
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let folder = Folder::new();
    let path = folder.0.join("long");
    fs::write(&path, [b'a'; 9]).unwrap();
    assert_eq!(read_public(&path, 9).unwrap().len(), 9);
    assert!(read_public(&path, 8).unwrap_err().contains("more than 8 bytes"));
}
