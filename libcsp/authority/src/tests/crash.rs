//! Commands that end between two writes: whatever the folder then has, it opens, and running the command
//! again completes it.

use std::fs;
use std::path::Path;

use csp_identity::{CA, CERTIFICATE, KEY, REVOKED};

use super::*;
use crate::authority::owner_folder;
use crate::files::Folder;
use crate::inspect::Inspected;
use crate::signer::is_key_of;
use crate::{AuthorityState, Phase, PkiError};

/// Most steps that any of these commands takes.
const STEPS_MAX: u32 = 200;

/// Runs `command` again and again on a copy of `before`, each time ending it one step later, until it is
/// completed. After each interruption the folder must open, and be whole after `again`.
fn interrupt(
    before: &Path,
    command: impl Fn(Folder) -> Result<(), PkiError>,
    again: impl Fn(&Path) -> Result<(), PkiError>,
) {
    for steps in 0..STEPS_MAX {
        let copy = Scratch::new();
        copy_folder(before, &copy.0);
        let folder = Folder::make(&copy.0).unwrap();
        folder.steps_left.set(Some(steps));
        let done = command(folder);
        if let Err(error) = &done {
            assert!(error.to_string().contains("crash"), "step {steps}: {error}");
        }
        again(&copy.0).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
        whole(&copy.0);
        if done.is_ok() {
            assert!(steps >= 2, "the command has taken {steps} steps only");
            return;
        }
    }
    panic!("not completed after {STEPS_MAX} steps");
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).into_iter().flatten() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Checks that every identity folder can be used: the key fits, the certificate is recorded, nodes can read
/// it, and authorities and lists are the latest.
fn whole(dir: &Path) {
    let authority = Authority::open(dir, start()).unwrap();
    let registry = authority.registry();
    for (role, id) in registry.newest().into_keys() {
        let folder = dir.join(owner_folder(role, id));
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let certificate = Inspected::from_pem(&read(CERTIFICATE)).unwrap();
        assert!(is_key_of(&read(KEY), &certificate), "{role} {id}");
        assert!(registry.certificates.iter().any(|c| Some(c.serial) == certificate.serial), "{role} {id}");
        for name in [CA, REVOKED] {
            assert_eq!(read(name), fs::read_to_string(dir.join(name)).unwrap(), "{role} {id}: {name}");
        }
        csp_identity::Folder::read(&folder).unwrap();
    }
    for record in &registry.authorities {
        assert_eq!(dir.join(format!("ca-{}.key", record.number)).exists(), record.state.is_trusted());
    }
}

fn open(dir: &Path) -> Result<Authority, PkiError> {
    Authority::open(dir, start())
}

#[test]
fn making_an_authority_can_be_interrupted() {
    let create =
        |folder| Authority::create_in(folder, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start()).map(drop);
    interrupt(&Scratch::new().0, create, |dir| {
        match Authority::create(dir, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start()) {
            Err(PkiError::Exists { .. }) => open(dir).map(drop),
            other => other.map(drop),
        }
    });
}

#[test]
fn issuing_can_be_interrupted_the_first_time_and_when_it_replaces() {
    let scratch = Scratch::new();
    let mut first = authority(&scratch.0);
    let issue =
        |folder, request: &Request| Authority::open_in(folder, start())?.issue(request, start()).map(drop);
    let again = |dir: &Path, request: &Request| {
        open(dir)?.issue(request, start())?;
        let changed = open(dir)?.issue(request, start())?.changed;
        assert!(!changed, "the second time there is nothing to do");
        Ok(())
    };
    interrupt(&scratch.0, |folder| issue(folder, &proxy("pn-1")), |dir| again(dir, &proxy("pn-1")));

    first.issue(&proxy("pn-1"), start()).unwrap();
    drop(first);
    let other = proxy("pn-1").address([10, 77, 0, 9].into());
    interrupt(&scratch.0, |folder| issue(folder, &other), |dir| again(dir, &other));
}

#[test]
fn a_revocation_that_is_interrupted_reaches_all_folders_by_the_next_command() {
    let scratch = Scratch::new();
    let mut first = authority(&scratch.0);
    for name in ["pn-1", "pn-2"] {
        first.issue(&proxy(name), start()).unwrap();
    }
    drop(first);
    let role = IdentityRole::ProxyNode;
    let revoke = |mut authority: Authority| authority.revoke(role, id("pn-1"), start()).map(drop);
    interrupt(
        &scratch.0,
        |folder| revoke(Authority::open_in(folder, start())?),
        |dir| {
            revoke(open(dir)?)?;
            assert!(open(dir)?.registry().of(role, id("pn-1")).all(|c| c.revoked_at.is_some()));
            Ok(())
        },
    );
}

#[test]
fn each_step_of_a_rotation_can_be_interrupted() {
    let scratch = Scratch::new();
    authority(&scratch.0).issue(&proxy("pn-1"), start()).unwrap();

    let begin = |a: &mut Authority| a.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start());
    rotation_step(&scratch.0, begin, Phase::Started { issuing: 1, next: 2 });
    let switch = |a: &mut Authority| a.rotate_switch(start());
    rotation_step(&scratch.0, switch, Phase::Switched { issuing: 2, previous: 1 });
    open(&scratch.0).unwrap().issue(&proxy("pn-1"), start()).unwrap();
    let finish = |a: &mut Authority| a.rotate_finish(start());
    rotation_step(&scratch.0, finish, Phase::Settled { issuing: 2 });
    assert_eq!(open(&scratch.0).unwrap().registry().authority(1).unwrap().state, AuthorityState::Retired);
}

/// Interrupts one step everywhere, then makes it in `dir` itself.
fn rotation_step(
    dir: &Path,
    step: impl Fn(&mut Authority) -> Result<crate::Rotated, PkiError>,
    after: Phase,
) {
    interrupt(
        dir,
        |folder| step(&mut Authority::open_in(folder, start())?).map(drop),
        |dir| {
            assert_eq!(step(&mut open(dir)?)?.phase, after);
            Ok(())
        },
    );
    assert!(step(&mut open(dir).unwrap()).unwrap().changed);
}

#[test]
fn a_certificate_that_was_recorded_but_never_written_does_not_end_a_rotation() {
    let scratch = Scratch::new();
    let mut first = authority(&scratch.0);
    first.issue(&proxy("pn-1"), start()).unwrap();
    first.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap();
    first.rotate_switch(start()).unwrap();
    // The registry is written in two steps; the third one is the copy of the authorities' certificates.
    first.folder.steps_left.set(Some(2));
    first.issue(&proxy("pn-1"), start()).unwrap_err();
    drop(first);
    let error = open(&scratch.0).unwrap().rotate_finish(start()).unwrap_err().to_string();
    assert!(error.contains("proxy-node pn-1"), "{error}");
}

#[test]
fn expired_records_make_room_and_the_newest_of_an_owner_stays() {
    let scratch = Scratch::new();
    let mut first = authority(&scratch.0);
    let issued = first.issue(&proxy("pn-1"), start()).unwrap().certificate;
    let old = crate::CertificateRecord { not_after: start(), not_before: start(), ..issued };
    let serial = crate::Serial::random;
    first.registry.certificates.clear();
    first
        .registry
        .certificates
        .resize_with(crate::CERTIFICATES_MAX, || crate::CertificateRecord { serial: serial(), ..old });
    let kept = first.registry.certificates.last().copied().unwrap();
    first.registry.add(issued, start()).unwrap_err();
    first.registry.add(issued, start().plus(2 * DAY)).unwrap();
    assert_eq!(first.registry.certificates, [kept, issued]);
}
