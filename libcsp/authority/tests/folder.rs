//! The folder as its users see it: when certificates are replaced, what reaches which file, what is refused.
#![forbid(unsafe_code)]

mod support;

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Authority, PkiError, Registry, Request};
use csp_identity::{Folder, Identity, IdentityRole};
use support::{DAY, Scratch, id, proxy, start};

#[test]
fn a_certificate_stays_until_something_about_it_changes() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let mut changed = |what: &str, request: &Request, after: Duration| {
        let issued = authority.issue(request, start().plus(after)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let read = Folder::read(&issued.folder).unwrap();
        let identity = format!("csp://demo/proxy-node/{}", request.id).parse::<Identity>().unwrap();
        assert_eq!(read.holder.identity, identity, "{what}");
        issued.changed
    };
    assert!(changed("new", &proxy("pn-1"), Duration::ZERO));
    assert!(!changed("again", &proxy("pn-1"), DAY));
    assert!(!changed("31 days left", &proxy("pn-1"), DAY * 59));
    assert!(changed("30 days left", &proxy("pn-1"), DAY * 60));
    assert!(!changed("renewed", &proxy("pn-1"), DAY * 60));
    let sooner = Request { renew_before: Some(DAY * 80), ..proxy("pn-1") };
    assert!(!changed("81 days left", &sooner, DAY * 69));
    assert!(changed("80 days left", &sooner, DAY * 70));
    assert!(changed("an address more", &proxy("pn-1").address([10, 77, 0, 4].into()), DAY * 70));
    assert!(changed("an address less", &proxy("pn-1"), DAY * 70));
    assert!(changed("a name more", &proxy("pn-1").name("other"), DAY * 70));
    assert!(!changed("the same names", &proxy("pn-1").name("OTHER"), DAY * 70));
    assert!(changed("forced", &Request { force: true, ..proxy("pn-1").name("other") }, DAY * 70));
    assert!(changed("a clock before its beginning", &proxy("pn-1").name("other"), DAY * 69));
    assert!(changed("another owner", &proxy("pn-2"), DAY * 70));
}

#[test]
fn short_certificates_are_replaced_when_a_third_is_left() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let request = proxy("pn-1").lifetime(Duration::from_secs(60));
    let mut changed =
        |s: u64| authority.issue(&request, start().plus(Duration::from_secs(s))).unwrap().changed;
    assert_eq!(
        [changed(0), changed(39), changed(40), changed(79), changed(80)],
        [true, false, true, false, true]
    );
}

#[test]
fn an_identity_folder_that_lost_a_file_is_made_whole() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let folder = authority.issue(&proxy("pn-1"), start()).unwrap().folder;
    drop(authority);
    for (name, reissued) in
        [("key.pem", true), ("certificate.pem", true), ("ca.pem", false), ("revoked.pem", false)]
    {
        for damage in [None, Some("-----BEGIN CERTIFICATE-----\n")] {
            match damage {
                None => std::fs::remove_file(folder.join(name)).unwrap(),
                Some(text) => std::fs::write(folder.join(name), text).unwrap(),
            }
            let issued =
                Authority::open(&scratch.0, start()).unwrap().issue(&proxy("pn-1"), start()).unwrap();
            assert_eq!(issued.changed, reissued, "{name}");
            Folder::read(&folder).unwrap();
        }
    }
}

#[test]
fn keys_are_for_their_owner_alone() {
    let scratch = Scratch::new();
    let folder = scratch.create().issue(&proxy("pn-1"), start()).unwrap().folder;
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(scratch.0.clone()), 0o700);
    assert_eq!(mode(scratch.0.join("issued")), 0o700);
    assert_eq!(mode(folder.clone()), 0o700);
    assert_eq!(mode(scratch.0.join("ca-1.key")), 0o600);
    assert_eq!(mode(folder.join("key.pem")), 0o600);
    assert_eq!(mode(folder.join("certificate.pem")), 0o644);
}

#[test]
fn a_folder_with_other_things_in_it_is_left_alone() {
    let scratch = Scratch::new();
    let create = || Authority::create(&scratch.0, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start());
    std::fs::create_dir_all(scratch.0.join("photos")).unwrap();
    let before = std::fs::metadata(&scratch.0).unwrap().permissions();
    let error = create().unwrap_err();
    assert!(matches!(error, PkiError::Foreign { .. }), "{error}");
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().permissions(), before);
    std::fs::remove_dir(scratch.0.join("photos")).unwrap();
    create().unwrap();
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_revocation_reaches_every_folder_and_a_new_certificate_follows_it() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let folders = ["pn-1", "pn-2"].map(|name| authority.issue(&proxy(name), start()).unwrap().folder);
    authority.issue(&Request { force: true, ..proxy("pn-1") }, start()).unwrap();
    let before = scratch.text("revoked.pem");
    let revoked = authority.revoke(IdentityRole::ProxyNode, id("pn-1"), start().plus(DAY)).unwrap();
    assert!(revoked.changed && revoked.certificates.len() == 2);
    assert!(revoked.certificates.iter().all(|c| c.revoked_at == Some(start().plus(DAY))));
    let lists = scratch.text("revoked.pem");
    assert_ne!(lists, before);
    for folder in &folders {
        assert_eq!(std::fs::read_to_string(folder.join("revoked.pem")).unwrap(), lists);
    }
    let again = authority.revoke(IdentityRole::ProxyNode, id("pn-1"), start().plus(2 * DAY)).unwrap();
    assert!(!again.changed && scratch.text("revoked.pem") == lists);
    let error = authority.revoke(IdentityRole::AppNode, id("pn-1"), start()).unwrap_err().to_string();
    assert!(error.contains("no certificate was ever issued to app-node pn-1"), "{error}");
    assert!(authority.issue(&proxy("pn-1"), start().plus(DAY)).unwrap().changed);
}

#[test]
fn lists_are_renewed_by_any_command_before_they_are_old() {
    let scratch = Scratch::new();
    drop(scratch.create());
    let lists = |after: Duration| {
        Authority::open(&scratch.0, start().plus(after)).unwrap();
        scratch.text("revoked.pem")
    };
    let first = lists(DAY);
    assert_eq!(lists(14 * DAY), first);
    let second = lists(16 * DAY);
    assert_ne!(second, first);
    assert_eq!(lists(17 * DAY), second);
    assert_ne!(lists(DAY), second, "made by a clock that was ahead");
}

#[test]
fn a_second_writer_is_refused_and_readers_are_not() {
    let scratch = Scratch::new();
    let first = scratch.create();
    let error = Authority::open(&scratch.0, start()).unwrap_err();
    let words = format!("in use by process {}", std::process::id());
    assert!(matches!(error, PkiError::Busy { .. }) && error.to_string().contains(&words), "{error}");
    Registry::read(&scratch.0).unwrap();
    drop(first);
    Authority::open(&scratch.0, start()).unwrap();
    let error = Authority::create(&scratch.0, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start()).unwrap_err();
    assert!(matches!(error, PkiError::Exists { .. }), "{error}");
    let error = Authority::open(&scratch.0.join("none"), start()).unwrap_err().to_string();
    assert!(error.contains("cspctl pki init"), "{error}");
}

#[test]
fn requests_that_nobody_can_meet_are_refused_and_leave_nothing_behind() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    let before = scratch.text("pki.json");
    let viewer = Request::new(IdentityRole::Viewer, id("alice"));
    let any: IpAddr = [0, 0, 0, 0].into();
    let many = (0..65).fold(proxy("pn-1"), |request, n| request.address([10, 0, 0, n].into()));
    for (request, problem) in [
        (viewer.clone().address([10, 0, 0, 1].into()), "nobody connects to a viewer"),
        (viewer.clone().name("alice"), "nobody connects to a viewer"),
        (proxy("pn-1").name("*.example"), "no DNS name"),
        (proxy("pn-1").name(""), "no DNS name"),
        (proxy("pn-1").name("a..b"), "no DNS name"),
        (proxy("pn-1").name("-a"), "no DNS name"),
        (proxy("pn-1").name("10.0.0.1"), "no DNS name"),
        (proxy("pn-1").name("a\nb"), "`a\\nb` is no DNS name"),
        (proxy("pn-1").name("a".repeat(64)), "no DNS name"),
        (proxy("pn-1").address(any), "no address of one host"),
        (many, "64 addresses and names, not 67"),
        (viewer.clone().lifetime(Duration::ZERO), "1s to 36500d"),
        (viewer.clone().lifetime(Duration::MAX), "1s to 36500d"),
        (viewer.clone().lifetime(36_500 * DAY), "authority 1 ends at"),
        (Request { renew_before: Some(90 * DAY), ..viewer.clone() }, "shorter than the lifetime"),
        (Request::new(IdentityRole::EtcdRoot, id("alice")), "is `root`, not `alice`"),
    ] {
        let error = authority.issue(&request, start()).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let error = authority.issue(&viewer, start().minus(DAY)).unwrap_err().to_string();
    assert!(error.contains("set the clock"), "{error}");
    assert_eq!(scratch.text("pki.json"), before);
}

#[test]
fn a_rotation_goes_forward_only_and_each_step_can_be_repeated() {
    let scratch = Scratch::new();
    let mut authority = scratch.create();
    assert!(authority.rotate_switch(start()).unwrap_err().to_string().contains("rotate start"));
    assert!(!authority.rotate_finish(start()).unwrap().changed);
    assert!(authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap().changed);
    assert!(!authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap().changed);
    assert!(authority.rotate_finish(start()).unwrap_err().to_string().contains("rotate switch"));
    assert!(authority.rotate_switch(start()).unwrap().changed);
    assert!(!authority.rotate_switch(start()).unwrap().changed);
    assert!(!authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap().changed);
    assert!(authority.rotate_finish(start()).unwrap().changed);
    assert!(!authority.rotate_finish(start()).unwrap().changed);
    assert!(!scratch.0.join("ca-1.key").exists() && scratch.0.join("ca-1.crt").exists());
    assert!(authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap().changed);
    assert!(scratch.0.join("ca-3.key").exists());
}
