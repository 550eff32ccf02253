//! What is ordered when, and what is said of it; without an authority.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::path::PathBuf;

use csp_api::certificates::{Bundle, Ordered, StoredCertificates};
use csp_control::NodeRecord;
use csp_daemon::issued;
use csp_types::Role;

use super::*;
use crate::fanout::Target;

const POLICY: &str = "apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 443
    tls: {certificates: [a, b]}
    pool: [{node: an-1, port: 80}]
acme:
  directory: https://acme.example/directory
  terms_agreed: true
  certificates: [{name: a, names: [a.example]}, {name: b, names: [b.example, c.example]}]
";

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn acme(of: &str) -> (Arc<Acme>, Folder, Policy) {
    let folder = std::env::temp_dir().join(format!("csp-acme-{}-{of}", std::process::id()));
    let record = NodeRecord::new("mgmt-1".parse().unwrap(), Role::MgmtNode, String::new());
    let events = Events::of(&record);
    let policy = Policy::parse_yaml(POLICY, "p.yaml").unwrap();
    (Acme::new(&AcmeSection::default(), &folder, events), Folder(folder), policy)
}

/// A certificate of an authority, from a time on, of the order at that time.
fn bundle_from(names: &[&str], from_s: i64, days: i64) -> Bundle {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut authority = rcgen::CertificateParams::default();
    authority.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
    let issuer = rcgen::Issuer::new(authority, rcgen::KeyPair::generate().unwrap());
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    let seconds = |s: i64| Duration::from_secs(u64::try_from(s).unwrap());
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + seconds(from_s);
    params.not_after = params.not_before + seconds(days * DAY_S);
    let key = rcgen::KeyPair::generate().unwrap();
    let chain = params.signed_by(&key, &issuer).unwrap().pem();
    let ordered = order::ordered(None, "https://acme.example/directory", from_s);
    Bundle { chain, key: key.serialize_pem(), ordered }
}

fn bundle(names: &[&str], days: i64) -> Bundle {
    bundle_from(names, at(0), days)
}

/// Seconds since 1970 of a day of 2026.
fn at(day: i64) -> i64 {
    rcgen::date_time_ymd(2026, 1, 1).unix_timestamp() + day * DAY_S
}

#[test]
fn certificates_are_ordered_one_after_another_and_again_when_they_are_due() {
    let (acme, _folder, policy) = acme("next");
    let next = |day| acme.next(&policy, at(day)).map(|of| of.name);
    assert_eq!(next(0).as_deref(), Some("a"));
    acme.issued.put("a", &bundle(&["a.example"], 90), at(0)).unwrap();
    assert_eq!(next(0).as_deref(), Some("b"));
    // One for other names does not do.
    acme.issued.put("b", &bundle(&["b.example"], 90), at(0)).unwrap();
    assert_eq!(next(0).as_deref(), Some("b"));
    acme.issued.put("b", &bundle(&["c.example", "b.example"], 90), at(0)).unwrap();
    assert_eq!((next(0), next(59)), (None, None));
    assert!(next(64).is_some());
    acme.demand("b");
    assert_eq!(next(0).as_deref(), Some("b"));
}

#[test]
fn a_failure_is_shown_and_waited_after_and_what_is_there_stays() {
    let (acme, _folder, policy) = acme("failure");
    acme.issued.put("a", &bundle_from(&["a.example"], now_s(), 90), now_s()).unwrap();
    acme.conclude("a", Err(("no answer".to_owned(), 0)));
    acme.conclude("b", Err(("rate limited".to_owned(), 7_200)));
    let view = acme.view(&policy, now_s());
    let [a, b] = &view.certificates[..] else { panic!("{view:?}") };
    assert_eq!((a.state, a.failures, &*a.error), (CertificateState::Failing, 1, "no answer"));
    assert!(a.not_after_s > now_s());
    assert!(b.next_order_s >= now_s() + 7_100, "{b:?}");
    assert_eq!(acme.next(&policy, now_s()), None);
    acme.demand("b");
    assert_eq!(acme.next(&policy, now_s()).map(|of| of.name).as_deref(), Some("b"));
    let new = bundle_from(&["b.example", "c.example"], now_s(), 90);
    let stored = acme.issued.put("b", &new, now_s()).unwrap();
    acme.conclude("b", Ok(stored));
    let b = &acme.view(&policy, now_s()).certificates[1];
    assert_eq!((b.state, b.failures, &*b.error), (CertificateState::Valid, 0, ""));
}

#[test]
fn what_is_issued_is_checked_and_replaces_what_is_there_whenever_that_ends() {
    let (acme, _folder, _) = acme("worse");
    let names = ["a.example".to_owned()];
    let check = |bundle: &Bundle| order::check("a", &names, bundle, at(100)).map(drop);
    check(&bundle(&["a.example"], 101)).unwrap();
    assert!(check(&bundle(&["a.example"], 99)).unwrap_err().contains("has ended"));
    assert!(check(&bundle(&["b.example"], 101)).unwrap_err().contains("b.example"));
    let (one, other) = (bundle(&["a.example"], 101), bundle(&["a.example"], 200));
    let mixed = Bundle { key: other.key.clone(), ..one.clone() };
    assert!(check(&mixed).is_err() && acme.issued.put("a", &mixed, at(0)).is_err());
    let former = acme.issued.put("a", &other, at(0)).unwrap();
    // Also if the clock has been set back a little since.
    let ordered = order::ordered(Some(&former), "https://acme.example/directory", at(0) - 60);
    assert_eq!(ordered.at_s, at(0) + 1);
    let one = Bundle { ordered, ..one };
    acme.issued.put("a", &one, at(0)).unwrap();
    assert_eq!(acme.issued.load("a").unwrap().0, one);
    assert!(acme.issued.put("a", &other, at(0)).unwrap_err().contains("ordered later"));
}

/// A node that has a certificate of an order that ends on a day.
fn node(id: &str, ordered_s: i64, ends: i64) -> (Target, StoredCertificates) {
    let target = Target { id: id.to_owned(), role: String::new(), admin: String::new() };
    let stored = StoredCertificate {
        name: "a".into(),
        sha256: id.into(),
        names: vec!["a.example".into()],
        issuer: "CN=x".into(),
        not_before_s: at(0),
        not_after_s: at(ends),
        ordered: Ordered { at_s: ordered_s, directory: Text::default() },
    };
    (target, StoredCertificates { certificates: vec![stored], ..StoredCertificates::default() })
}

#[test]
fn a_proxy_replaces_no_certificate_that_a_management_node_has() {
    let names = ["a.example".to_owned()];
    let of = |own: Option<&(Target, StoredCertificates)>, others: &[_], proxies: &[_]| {
        let own = own.map(|(_, stored)| &stored.certificates[0]);
        let found = distribute::source(own, ("a", &names), (others, proxies), at(10));
        found.map(|(target, is_proxy)| (target.id.clone(), is_proxy))
    };
    let hostile = [node("pn-1", at(9), 390), node("pn-2", i64::MAX, 395)];
    let own = node("mn-1", at(1), 90);
    assert_eq!(of(Some(&own), &[], &hostile), None);
    assert_eq!(of(None, &[node("mn-2", at(1), 20)], &hostile), Some(("mn-2".to_owned(), false)));
    // Of the management nodes' ones, that of the latest order, whenever it ends.
    let others = [node("mn-2", at(2), 20), node("mn-3", at(0), 90)];
    assert_eq!(of(Some(&own), &others, &hostile), Some(("mn-2".to_owned(), false)));
    assert_eq!(of(Some(&node("mn-1", at(3), 15)), &others, &hostile), None);
    // Without any that is valid, a proxy is asked.
    let ended = node("mn-1", at(1), 9);
    assert_eq!(of(Some(&ended), &[node("mn-2", at(2), 8)], &hostile), Some(("pn-2".to_owned(), true)));
    assert_eq!(of(None, &[], &[node("pn-1", at(1), 9)]), None);
    // The leader's own later one goes to all.
    let fresh = &node("mn-1", at(3), 15).1.certificates[0];
    assert!(distribute::lacks(&node("pn-1", at(2), 90).1, fresh, at(10)));
    assert!(distribute::lacks(&hostile[1].1, fresh, at(10)));
    assert!(!distribute::lacks(&node("mn-2", at(4), 90).1, fresh, at(10)));
}

#[test]
fn an_account_that_the_authority_has_forgotten_is_not_taken_over_again() {
    let (acme, _folder, _) = acme("account");
    let of = |account: &str| StoredCertificates { account: Some(account.into()), ..Default::default() };
    std::fs::create_dir_all(acme.issued.folder()).unwrap();
    issued::write_private(&acme.account.0, "the old one").unwrap();
    let old = of(&acme.account.sha256().unwrap());
    assert!(acme.is_account(&old));
    acme.forget_account();
    assert!(acme.account.text().is_none() && !acme.is_account(&old) && acme.is_account(&of("another")));
    assert!(!acme.is_account(&StoredCertificates::default()));
}

#[test]
fn proxies_that_do_not_answer_stop_no_order_of_what_ends_soon() {
    let (acme, _folder, _) = acme("urgent");
    let number = acme.ask(1, Asked::default());
    assert!(!acme.are_some_answering(number));
    acme.state().answering = (number, 0);
    assert!(!acme.are_some_answering(number));
    acme.state().answering = (number, 2);
    assert!(acme.are_some_answering(number) && !acme.are_some_answering(number + 1));
}
