//! OpenSSL, which shares no code with this crate, reads and verifies what it makes.
#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Request};
use csp_identity::IdentityRole;
use csp_support::installed;
use support::{DAY, Scratch, id, proxy, start, text, verify};

#[test]
fn certificates_say_what_they_are_to_say() {
    if !installed("openssl", "openssl") {
        return;
    }
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let node = authority.issue(&proxy("pn-1").address("fd00::3".parse().unwrap()), start()).unwrap().folder;
    let node = text("x509", &node.join("certificate.pem"));
    for words in [
        "Version: 3 (0x2)",
        "Signature Algorithm: ecdsa-with-SHA256",
        "Issuer: CN=demo CA 1",
        "Subject: CN=proxy-node/pn-1",
        "NIST CURVE: P-256",
        "URI:csp://demo/proxy-node/pn-1, IP Address:10.77.0.3, IP Address:FD00:0:0:0:0:0:0:3, DNS:pn-1.example",
        "X509v3 Key Usage: critical\n                Digital Signature\n",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "CA:FALSE",
    ] {
        assert!(node.contains(words), "{words} is missing:\n{node}");
    }
    let person = Request::new(IdentityRole::Operator, id("alice"));
    let person = text("x509", &authority.issue(&person, start()).unwrap().folder.join("certificate.pem"));
    assert!(
        person.contains("Extended Key Usage: \n                TLS Web Client Authentication\n"),
        "{person}"
    );
    for (role, name, common_name) in [
        (IdentityRole::Etcd, "mn-1", "Subject: CN=etcd\n"),
        (IdentityRole::EtcdRoot, "root", "Subject: CN=root\n"),
    ] {
        let folder = authority.issue(&Request::new(role, id(name)), start()).unwrap().folder;
        let found = text("x509", &folder.join("certificate.pem"));
        assert!(found.contains(common_name), "{found}");
    }
    let issuer = text("x509", &scratch.0.join("ca-1.crt"));
    for words in ["CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign", "Subject: CN=demo CA 1"] {
        assert!(issuer.contains(words), "{words} is missing:\n{issuer}");
    }
}

#[test]
fn a_chain_verifies_until_it_expires_or_is_revoked() {
    if !installed("openssl", "openssl") {
        return;
    }
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let minute = authority.issue(&proxy("pn-1").lifetime(Duration::from_secs(60)), start()).unwrap();
    let long = authority.issue(&proxy("pn-2"), start()).unwrap();
    let at = |s: u64| start().plus(Duration::from_secs(s));

    verify(&minute.folder, at(0)).unwrap();
    verify(&minute.folder, at(59)).unwrap();
    assert!(verify(&minute.folder, at(61)).unwrap_err().contains("expired"));
    // Hosts whose clocks are late by five minutes accept it already.
    verify(&minute.folder, start().minus(Duration::from_secs(299))).unwrap();
    assert!(
        verify(&minute.folder, start().minus(Duration::from_secs(301)))
            .unwrap_err()
            .contains("not yet valid")
    );

    verify(&long.folder, at(1)).unwrap();
    authority.revoke(IdentityRole::ProxyNode, id("pn-2"), at(1)).unwrap();
    assert!(verify(&long.folder, at(1)).unwrap_err().contains("revoked"));
    verify(&minute.folder, at(1)).unwrap();
    let list = text("crl", &scratch.0.join("revoked.pem"));
    let serial = long.certificate.serial.to_string().to_uppercase();
    assert!(list.contains(&format!("Serial Number: {serial}")) && list.contains("CRL Number"), "{list}");
}

#[test]
fn everything_verifies_at_each_step_of_a_rotation() {
    if !installed("openssl", "openssl") {
        return;
    }
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let mut folders = Vec::new();
    for name in ["pn-1", "pn-2", "pn-3"] {
        folders.push(authority.issue(&proxy(name), start()).unwrap().folder);
    }
    authority.revoke(IdentityRole::ProxyNode, id("pn-3"), start()).unwrap();
    let all = |step: &str| {
        for folder in &folders[..2] {
            verify(folder, start().plus(DAY)).unwrap_or_else(|error| panic!("{step}: {error}"));
        }
        assert!(verify(&folders[2], start().plus(DAY)).unwrap_err().contains("revoked"), "{step}");
    };
    all("before");
    authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap();
    all("started");
    // The folder of a host that has not got the new authority yet must accept those that have.
    let host = Scratch::new();
    std::fs::create_dir_all(&host.0).unwrap();
    for name in ["ca.pem", "revoked.pem", "certificate.pem"] {
        std::fs::copy(folders[0].join(name), host.0.join(name)).unwrap();
    }
    authority.rotate_switch(start()).unwrap();
    all("switched");
    assert!(authority.issue(&proxy("pn-1"), start()).unwrap().changed);
    all("one has its new certificate");
    verify(&host.0, start().plus(DAY)).unwrap();
    std::fs::copy(folders[0].join("certificate.pem"), host.0.join("certificate.pem")).unwrap();
    verify(&host.0, start().plus(DAY)).unwrap();

    let error = authority.rotate_finish(start()).unwrap_err().to_string();
    assert!(
        error.contains("proxy-node pn-2") && !error.contains("pn-1") && !error.contains("pn-3"),
        "{error}"
    );
    assert!(authority.issue(&proxy("pn-2"), start()).unwrap().changed);
    assert!(authority.rotate_finish(start()).unwrap().changed);
    for folder in &folders[..2] {
        verify(folder, start().plus(DAY)).unwrap();
    }
    // Neither that one's authority nor its list is there any more.
    verify(&folders[2], start().plus(DAY)).unwrap_err();
    assert_eq!(scratch.text("ca.pem"), scratch.text("ca-2.crt"));
}
