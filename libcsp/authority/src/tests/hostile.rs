//! Files that are damaged or made by somebody else: an error that names the file, never a panic.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::inspect::{Inspected, revocation_lists};
use crate::{PkiError, Registry};

/// A folder with two authorities, a revoked certificate and a good one.
fn folder() -> Scratch {
    let scratch = Scratch::new();
    let mut authority = authority(&scratch.0);
    for name in ["pn-1", "pn-2"] {
        authority.issue(&proxy(name), start()).unwrap();
    }
    authority.revoke(IdentityRole::ProxyNode, id("pn-1"), start()).unwrap();
    authority.rotate_start(AUTHORITY_LIFETIME_DEFAULT, start()).unwrap();
    scratch
}

#[test]
fn a_registry_that_contradicts_itself_is_refused() {
    let scratch = folder();
    let path = scratch.0.join("pki.json");
    let good = fs::read_to_string(&path).unwrap();
    let serial = Registry::read(&scratch.0).unwrap().certificates[0].serial.to_string();
    for (from, to, problem) in [
        ("\"version\": 1", "\"version\": 2", "version 2 is not known"),
        ("\"demo\"", "\"De mo\"", "character 1 of an id"),
        ("\"issuing\"", "\"retired\"", "one must be issuing"),
        ("\"next\"", "\"issuing\"", "one must be issuing"),
        ("\"number\": 2", "\"number\": 3", "numbered 1, 2"),
        ("\"authority\": 1", "\"authority\": 9", "not listed"),
        ("\"proxy-node\"", "\"king\"", "allowed is network-node"),
        ("\"pn-1\"", "\"../../etc\"", "character 1 of an id"),
        ("\"2027-01-", "\"soon-", "is no time"),
        (&serial, "00", "32 hex digits"),
        (&serial, &"f".repeat(32), "32 hex digits"),
        (&serial, &"é".repeat(16), "32 hex digits"),
        ("\"list_number\"", "\"numbers\"", "unknown field `numbers`"),
    ] {
        assert!(good.contains(from), "{from}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        for error in
            [Registry::read(&scratch.0).unwrap_err(), Authority::open(&scratch.0, start()).unwrap_err()]
        {
            let error = error.to_string();
            assert!(error.contains("pki.json is damaged") && error.contains(problem), "{from}: {error}");
        }
    }
    fs::write(&path, good.replacen(&serial, &"7f".repeat(16), 1)).unwrap();
    Registry::read(&scratch.0).unwrap();
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(Registry::read(&scratch.0).unwrap_err().to_string().contains("no text"));
}

#[test]
fn an_authoritys_files_must_fit_together() {
    for (file, text, problem) in [
        ("ca-1.key", "", "PKCS#8"),
        ("ca-1.key", "ca-2.key", "belongs to another certificate"),
        ("ca-1.crt", "", "is empty"),
        ("ca-1.crt", "ca-2.crt", "not of `demo CA 1`"),
        ("ca-1.crt", "revoked.pem", "not a CERTIFICATE"),
        ("ca-1.crt", "issued/proxy-node/pn-2/certificate.pem", "not of `demo CA 1`"),
    ] {
        let scratch = folder();
        let text = match text {
            "" => String::new(),
            other => fs::read_to_string(scratch.0.join(other)).unwrap(),
        };
        fs::write(scratch.0.join(file), text).unwrap();
        let error = Authority::open(&scratch.0, start()).unwrap_err().to_string();
        assert!(error.contains(&format!("{file} is damaged")) && error.contains(problem), "{error}");
        fs::remove_file(scratch.0.join(file)).unwrap();
        let error = Authority::open(&scratch.0, start()).unwrap_err().to_string();
        assert!(error.contains("it is missing"), "{error}");
    }
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let scratch = folder();
    let key = scratch.0.join("ca-1.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Authority::open(&scratch.0, start()).unwrap_err();
    assert!(matches!(error, PkiError::Exposed { mode: 0o640, .. }), "{error}");
}

#[test]
fn another_authority_of_the_same_name_is_noticed() {
    let (scratch, other) = (folder(), folder());
    for file in ["ca-1.crt", "ca-1.key"] {
        fs::copy(other.0.join(file), scratch.0.join(file)).unwrap();
    }
    let error = Authority::open(&scratch.0, start()).unwrap_err().to_string();
    assert!(error.contains("not the certificate that pki.json describes"), "{error}");
}

#[test]
fn a_signature_that_is_wrong_is_noticed() {
    let scratch = folder();
    let path = scratch.0.join("ca-1.crt");
    let mut broken = fs::read(&path).unwrap();
    let middle = broken.len() - 60;
    broken[middle] = if broken[middle] == b'A' { b'B' } else { b'A' };
    fs::write(path, broken).unwrap();
    let error = Authority::open(&scratch.0, start()).unwrap_err().to_string();
    assert!(error.contains("ca-1.crt is damaged"), "{error}");
}

#[test]
fn octets_changed_anywhere_never_panic() {
    let scratch = folder();
    let seed = std::env::var("CSP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(15);
    println!("CSP_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let files =
        ["pki.json", "ca-1.crt", "ca-1.key", "ca-2.crt", "revoked.pem", "issued/proxy-node/pn-2/key.pem"];
    for name in files.into_iter().chain(["issued/proxy-node/pn-2/certificate.pem"]) {
        let path = scratch.0.join(name);
        let good = fs::read(&path).unwrap();
        for _ in 0..40 {
            let mut bad = good.clone();
            match random.next_u32() % 3 {
                0 => bad.truncate(random.next_u32() as usize % bad.len()),
                1 => drop(bad.drain(..random.next_u32() as usize % bad.len())),
                _ => {
                    let at = random.next_u32() as usize % bad.len();
                    bad[at] = random.next_u32() as u8;
                }
            }
            fs::write(&path, &bad).unwrap();
            if let Ok(mut authority) = Authority::open(&scratch.0, start()) {
                let _ = authority.issue(&proxy("pn-2"), start());
            }
            let text = String::from_utf8_lossy(&bad);
            let _ = (Inspected::from_pem(&text), revocation_lists(&text, 2));
        }
        // Commands have gone on where they could: the next file starts from a whole folder again.
        fs::write(&path, &good).unwrap();
    }
}
