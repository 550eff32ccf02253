//! `cspctl pki` as operators and Ansible run it.
#![forbid(unsafe_code)]

mod support;

use std::path::PathBuf;
use std::process::Command;

use csp_authority::{Authority, Timestamp};
use csp_identity::{CA, CERTIFICATE, Folder, REVOKED};
use csp_support::installed;
use serde_json::Value;
use support::{Ran, Scratch, cspctl};

/// A CA folder, and cspctl on it.
struct Pki(Scratch);

impl Pki {
    fn new() -> Self {
        Pki(Scratch::new())
    }

    /// With an authority.
    fn made() -> Self {
        let pki = Pki::new();
        pki.run(&["init", "--cluster", "demo"]).exited(0);
        pki
    }

    fn dir(&self) -> PathBuf {
        self.0.0.join("pki")
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = cspctl();
        Ran::of(
            command.arg("pki").arg("--dir").arg(self.dir()).args(arguments).output().expect("cspctl runs"),
        )
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(&[arguments, &["--output", "json"]].concat()).exited(0);
        serde_json::from_str(&ran.out).expect("JSON")
    }

    fn changed(&self, arguments: &[&str]) -> bool {
        self.json(arguments)["changed"].as_bool().expect("changed")
    }

    /// Whether OpenSSL accepts the owner's certificate now, by the files beside it.
    fn verifies(&self, owner: &str) -> bool {
        let folder = self.dir().join("issued").join(owner);
        Folder::read(&folder).expect("nodes can read it");
        let mut command = Command::new("openssl");
        command.arg("verify").arg("-CAfile").arg(folder.join(CA)).arg("-CRLfile").arg(folder.join(REVOKED));
        command
            .arg("-crl_check")
            .arg(folder.join(CERTIFICATE))
            .output()
            .expect("openssl runs")
            .status
            .success()
    }
}

const ISSUE: [&str; 7] = ["issue", "proxy-node", "pn-1", "--address", "10.77.0.3", "--name", "pn-1.example"];

#[test]
fn an_identity_is_issued_once_renewed_when_due_and_revoked() {
    if !installed("openssl", "openssl") {
        return;
    }
    let pki = Pki::new();
    assert!(pki.changed(&["init", "--cluster", "demo"]));
    assert!(!pki.changed(&["init", "--cluster", "demo"]));
    let issued = pki.json(&ISSUE);
    assert_eq!(issued["changed"], true);
    assert_eq!(issued["folder"], pki.dir().join("issued/proxy-node/pn-1").to_str().expect("path"));
    assert_eq!(issued["certificate"]["state"], "valid");
    assert!(pki.verifies("proxy-node/pn-1"));
    assert!(!pki.changed(&ISSUE));
    assert!(pki.changed(&[&ISSUE[..], &["--renew-before", "89d", "--lifetime", "100d", "--force"]].concat()));
    assert!(!pki.changed(&[&ISSUE[..], &["--renew-before", "89d"]].concat()));
    pki.run(&[&ISSUE[..], &["--renew-before", "90d"]].concat()).exited(64);
    assert!(pki.changed(&[&ISSUE[..], &["--address", "10.77.0.4"]].concat()));

    assert!(pki.changed(&["issue", "viewer", "prometheus", "--lifetime", "60s"]));
    let list = pki.json(&["list"]);
    let viewer = &list["certificates"][1];
    assert_eq!((&viewer["role"], &viewer["id"]), (&"viewer".into(), &"prometheus".into()), "{list:#}");
    assert!(viewer["left_s"].as_u64().is_some_and(|left| left <= 60), "{list:#}");
    assert_eq!(list["authorities"][0]["state"], "issuing");

    let revoked = pki.json(&["revoke", "proxy-node", "pn-1"]);
    assert_eq!(revoked["certificates"].as_array().map(Vec::len), Some(3), "also those that were replaced");
    assert!(!pki.changed(&["revoke", "proxy-node", "pn-1"]));
    assert!(!pki.verifies("proxy-node/pn-1"));
    let lists =
        |owner: &str| std::fs::read(pki.dir().join("issued").join(owner).join(REVOKED)).expect("lists");
    assert_eq!(lists("viewer/prometheus"), lists("proxy-node/pn-1"));
    let show = pki.json(&["show", "proxy-node", "pn-1"]);
    assert_eq!(show["current"]["uris"][0], "csp://demo/proxy-node/pn-1");
    assert_eq!(show["certificates"][2]["state"], "revoked");
    assert!(pki.changed(&ISSUE) && pki.verifies("proxy-node/pn-1"));
}

#[test]
fn the_authority_is_replaced_while_every_certificate_verifies() {
    if !installed("openssl", "openssl") {
        return;
    }
    let pki = Pki::made();
    let issue = |id: &str| pki.changed(&["issue", "app-node", id]);
    assert!(issue("an-1") && issue("an-2"));
    let verify = || assert!(pki.verifies("app-node/an-1") && pki.verifies("app-node/an-2"));
    assert!(pki.run(&["rotate", "switch"]).exited(1).err.contains("rotate start"));
    assert_eq!(pki.json(&["rotate", "start"])["phase"], "started");
    assert!(!pki.changed(&["rotate", "start"]));
    verify();
    assert!(pki.run(&["rotate", "finish"]).exited(1).err.contains("rotate switch"));
    assert!(!issue("an-1"), "the old one issues still");
    assert!(pki.changed(&["rotate", "switch"]));
    verify();
    assert!(issue("an-1"));
    verify();
    let refused = pki.run(&["rotate", "finish"]).exited(1);
    assert!(refused.err.contains("app-node an-2") && !refused.err.contains("an-1"), "{refused:?}");
    assert!(issue("an-2"));
    let finished = pki.json(&["rotate", "finish"]);
    assert_eq!((&finished["phase"], &finished["issuing"]), (&"settled".into(), &2.into()));
    verify();
    assert!(!pki.dir().join("ca-1.key").exists());
}

#[test]
fn exit_codes_distinguish_what_went_wrong() {
    let pki = Pki::new();
    assert!(pki.run(&["list"]).exited(66).err.contains("cspctl pki init"));
    pki.run(&["init", "--cluster", "Demo"]).exited(64);
    pki.run(&["init", "--cluster", "demo", "--lifetime", "10y"]).exited(64);
    pki.run(&["init", "--cluster", "demo"]).exited(0);
    assert!(pki.run(&["init", "--cluster", "other"]).exited(1).err.contains("of cluster demo already"));
    let ran = pki.run(&["issue", "king", "x"]).exited(64);
    assert!(ran.err.contains("allowed is network-node, proxy-node"), "{ran:?}");
    pki.run(&["issue", "proxy-node", "pn 1"]).exited(64);
    pki.run(&["issue", "viewer", "alice", "--address", "10.0.0.1"]).exited(64);
    pki.run(&["issue", "viewer", "alice", "--lifetime", "0s"]).exited(64);
    pki.run(&["issue", "viewer", "alice", "--lifetime", "3651d"]).exited(1);
    pki.run(&["revoke", "viewer", "alice"]).exited(1);
    pki.run(&["show", "viewer", "alice"]).exited(1);

    let holder = Authority::open(&pki.dir(), Timestamp::now()).expect("folder opens");
    let ran = pki.run(&["issue", "viewer", "alice"]).exited(75);
    assert!(ran.err.contains(&format!("in use by process {}", std::process::id())), "{ran:?}");
    pki.run(&["list"]).exited(0);
    drop(holder);

    std::fs::write(pki.dir().join("pki.json"), "{}").expect("write");
    for command in [vec!["list"], vec!["issue", "viewer", "alice"], vec!["init", "--cluster", "demo"]] {
        assert!(pki.run(&command).exited(65).err.contains("pki.json is damaged"));
    }
    let ran = Ran::of(
        cspctl().args(["pki", "--dir", "/dev/null/x", "init", "--cluster", "demo"]).output().expect("runs"),
    );
    ran.exited(73);
}

#[test]
fn tables_are_for_people_and_name_what_to_do_next() {
    let pki = Pki::made();
    assert!(pki.run(&["list"]).exited(0).out.contains("No certificate was issued yet."));
    let issued = pki.run(&["issue", "operator", "alice"]).exited(0).out;
    assert!(
        issued.contains("operator alice has a new certificate") && issued.contains("issued/operator/alice")
    );
    let list = pki.run(&["list"]).exited(0).out;
    let left = ["89 d 23 h", "90 d 0 h"];
    assert!(list.contains("demo CA 1") && left.iter().any(|left| list.contains(left)), "{list}");
    let show = pki.run(&["show", "operator", "alice"]).exited(0).out;
    assert!(show.contains("csp://demo/operator/alice") && show.contains("addresses  none"), "{show}");
    let revoked = pki.run(&["revoke", "operator", "alice"]).exited(0).out;
    assert!(revoked.contains("copy revoked.pem to all hosts"), "{revoked}");
    assert!(pki.run(&["rotate", "start"]).exited(0).out.contains("then `rotate switch`"));
}
