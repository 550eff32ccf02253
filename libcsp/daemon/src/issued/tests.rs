//! Which certificates are stored, and which replace others.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rcgen::{CertificateParams, Issuer, KeyPair};

use super::*;

/// A certificate of an authority, from one day to another, of an order.
fn bundle(names: &[&str], days: (i64, i64), at_s: i64) -> Bundle {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
    let issuer = Issuer::new(authority, KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(names).unwrap();
    let at = |day: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs((day * DAY_S) as u64);
    (params.not_before, params.not_after) = (at(days.0), at(days.1));
    let key = KeyPair::generate().unwrap();
    let chain = params.signed_by(&key, &issuer).unwrap().pem();
    let ordered = Ordered { at_s, directory: "https://acme.example/dir".into() };
    Bundle { chain, key: key.serialize_pem(), ordered }
}

fn issued(of: &str) -> (Arc<Issued>, Folder) {
    let folder = std::env::temp_dir().join(format!("csp-issued-{}-{of}", std::process::id()));
    (Issued::new(folder.clone()), Folder(folder))
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NOW: i64 = 20_000 * DAY_S;

#[test]
fn that_of_the_later_order_counts_whenever_it_ends() {
    let (issued, _folder) = issued("later");
    let long = bundle(&["a.example"], (19_999, 20_090), 100);
    let short = bundle(&["a.example"], (20_000, 20_007), 200);
    issued.put("a", &long, NOW).unwrap();
    let stored = issued.put("a", &short, NOW).unwrap();
    assert_eq!((stored.not_after_s, stored.ordered.at_s), (20_007 * DAY_S, 200));
    assert!(issued.put("a", &long, NOW).unwrap_err().contains("ordered later"));
    assert_eq!(issued.load("a").unwrap(), (short, stored));
    // One that was ordered in the future holds off no other.
    let future = bundle(&["a.example"], (20_000, 20_090), i64::MAX);
    let (held, other) = (issued.put("b", &future, NOW).unwrap(), issued.put("b", &long, NOW).unwrap());
    assert_ne!(held.sha256, other.sha256);
    // One that has ended replaces none that has not.
    let ended = bundle(&["a.example"], (19_000, 19_010), 300);
    assert!(issued.put("a", &ended, NOW).unwrap_err().contains("has ended"));
    // One that is valid replaces one that has ended, and other names always do.
    issued.put("c", &bundle(&["a.example"], (19_000, 19_010), 300), NOW).unwrap();
    issued.put("c", &bundle(&["a.example"], (19_990, 20_010), 0), NOW).unwrap();
    issued.put("a", &bundle(&["a.example", "b.example"], (20_000, 20_007), 1), NOW).unwrap();
    let mode = fs::metadata(issued.file("a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_no_authority_would_issue_is_refused() {
    let (issued, _folder) = issued("refused");
    let refused = |name: &str, bundle: &Bundle| issued.put(name, bundle, NOW).unwrap_err();
    let well = bundle(&["a.example"], (20_000, 20_090), 1);
    assert!(refused("a", &bundle(&["a.example"], (20_000, 20_401), 1)).contains("at most 400"));
    assert!(refused("a", &bundle(&["a.example"], (20_002, 20_010), 1)).contains("clock"));
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    let own = (made.cert.pem(), made.signing_key.serialize_pem());
    let own = Bundle { chain: own.0, key: own.1, ordered: Ordered::default() };
    assert!(refused("a", &own).contains("self-signed"));
    let line = Ordered { at_s: 1, directory: "https://x\n-----BEGIN".into() };
    assert!(refused("a", &Bundle { ordered: line, ..well.clone() }).contains("no URL"));
    let mixed = Bundle { key: own.key, ..well.clone() };
    assert!(refused("a", &mixed).contains("key and certificate"));
    assert!(refused("../a", &well).contains("names no certificate"));
    assert!(issued.stored().is_empty());
    issued.check_writable().unwrap();
    assert_eq!(fs::read_dir(issued.folder()).unwrap().count(), 0);
}
