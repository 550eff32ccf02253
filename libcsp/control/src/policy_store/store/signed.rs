//! Tests of what a node with an identity follows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use csp_identity::{Credentials, IdentityRole};

use super::*;
use crate::lkg;
use crate::signatures::{PolicySignature, sign_activation, sign_generation};
use crate::tests::pki::Pki;

/// A cluster with a management node, and a node that looks on.
struct Cluster {
    directory: PathBuf,
    pki: Pki,
    manager: Credentials,
    node: Credentials,
}

impl Cluster {
    fn new() -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-signed-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let pki = Pki::create(&directory);
        let (manager, node) =
            (pki.issue(IdentityRole::MgmtNode, "mn-1"), pki.issue(IdentityRole::ProxyNode, "pn-1"));
        Cluster { directory, pki, manager, node }
    }

    fn verifier(&self) -> Verifier {
        Verifier::new(Some(self.node.clone()))
    }

    fn store(&self) -> Store {
        self.store_after(None)
    }

    fn store_after(&self, followed: Option<Activation>) -> Store {
        Store::new(Arc::new(|_| Ok(())), (self.verifier(), followed), 5)
    }

    /// A node on which generation 1 is at work.
    fn at_work(&self) -> Store {
        let mut store = self.store();
        let first = generation(&self.manager, 1, 80);
        store.reset([vec![put(&first)], activate(&self.manager, &first, 10)].concat());
        assert_eq!(serving(&store), Some((1, 80)), "{}", store.problem());
        store.applied(1, Ok(())).unwrap();
        store
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn unsigned(number: u64, port: u16) -> GenerationRecord {
    let text = format!(
        "{{apiVersion: csp/v1, services: [{{name: web, vip: 10.76.0.100, port: {port}, pool: [{{node: an-1, port: 80}}]}}]}}"
    );
    GenerationRecord::new(number, Policy::parse_yaml(&text, "t").unwrap())
}

fn generation(signer: &Credentials, number: u64, port: u16) -> GenerationRecord {
    let record = unsigned(number, port);
    GenerationRecord { signature: Some(sign_generation(signer, &record).unwrap()), ..record }
}

fn put(record: &GenerationRecord) -> Entry {
    (keys::generation(record.generation), serde_json::to_vec(record).unwrap())
}

fn number(of: u64) -> Entry {
    (keys::ACTIVE.to_owned(), of.to_string().into_bytes())
}

fn activation(signer: &Credentials, record: &GenerationRecord, sequence: u64) -> Activation {
    sign_activation(signer, (record.generation, &record.hash), sequence).unwrap()
}

fn signed(activation: &Activation) -> Entry {
    (keys::ACTIVE_SIGNED.to_owned(), serde_json::to_vec(activation).unwrap())
}

fn activate(signer: &Credentials, record: &GenerationRecord, sequence: u64) -> Vec<Entry> {
    vec![number(record.generation), signed(&activation(signer, record, sequence))]
}

fn puts(entries: Vec<Entry>) -> Vec<KeyChange> {
    entries.into_iter().map(KeyChange::Put).collect()
}

fn serving(store: &Store) -> Option<(u64, u16)> {
    store.current().map(|active| (active.generation, active.policy.services[0].port))
}

fn refused(store: &Store) -> (u64, &str) {
    let ack = store.ack().unwrap();
    assert_eq!(ack.state, AckState::Refused, "{ack:?}");
    (ack.generation, &ack.error)
}

#[test]
fn what_a_management_node_signed_is_followed_and_kept_with_its_signature() {
    let cluster = Cluster::new();
    let mut store = cluster.store();
    let first = generation(&cluster.manager, 1, 80);
    store.reset(vec![put(&first)]);
    assert_eq!(store.ack().unwrap().state, AckState::Staged);
    store.change(puts(activate(&cluster.manager, &first, 10)));
    let kept = store.applied(1, Ok(())).unwrap();
    assert_eq!(kept, Kept { record: first.clone(), activation: Some(activation_of(&kept)) });
    assert_eq!((activation_of(&kept).sequence, store.problem().as_str()), (10, ""));
    assert_eq!(store.signed_anew(), None);
    // Another management node signs it anew: nothing is applied, and the disk gets the new signature.
    let second = cluster.pki.issue(IdentityRole::MgmtNode, "mn-2");
    store.change(puts(activate(&second, &first, 11)));
    let anew = store.signed_anew().unwrap();
    assert_eq!((activation_of(&anew).sequence, store.signed_anew()), (11, None));
    assert_eq!(store.ack().unwrap().state, AckState::Active);
    std::fs::write(cluster.directory.join(lkg::FILE), serde_json::to_string(&anew).unwrap()).unwrap();
    assert_eq!(lkg::load(&cluster.directory, &cluster.verifier()), Some(anew));
}

fn activation_of(kept: &Kept) -> Activation {
    kept.activation.clone().unwrap()
}

/// A forgery's name, the generation, and what the refusal says.
type Forgery = (&'static str, GenerationRecord, &'static str);

fn forgeries(cluster: &Cluster) -> Vec<Forgery> {
    let other = Cluster::new();
    let good = generation(&cluster.manager, 2, 81);
    let signature = good.signature.clone().unwrap();
    let with = |signature: PolicySignature| GenerationRecord { signature: Some(signature), ..good.clone() };
    let by = |role, id| generation(&cluster.pki.issue(role, id), 2, 81);
    let revoked = cluster.pki.issue(IdentityRole::MgmtNode, "mn-9");
    cluster.pki.revoke(IdentityRole::MgmtNode, "mn-9");
    assert!(cluster.node.check());
    let long = BASE64.encode(vec![7; 9 << 10]);
    vec![
        ("unsigned", unsigned(2, 81), "generation 2 is not signed"),
        ("another cluster", generation(&other.manager, 2, 81), "certificate is not accepted"),
        (
            "another number",
            GenerationRecord { generation: 2, ..generation(&cluster.manager, 3, 81) },
            "of another text",
        ),
        ("another time", GenerationRecord { created_unix_ms: 1, ..good.clone() }, "of another text"),
        (
            "another content",
            GenerationRecord {
                signature: Some(signature.clone()),
                created_unix_ms: good.created_unix_ms,
                ..unsigned(2, 666)
            },
            "of another text",
        ),
        (
            "an application node",
            by(IdentityRole::AppNode, "an-1"),
            "csp://test/app-node/an-1 is no management node",
        ),
        ("an admin", by(IdentityRole::Admin, "eve"), "csp://test/admin/eve is no management node"),
        ("ended", generation(&cluster.pki.ended("mn-8"), 2, 81), "expired"),
        ("revoked", generation(&revoked, 2, 81), "revoked"),
        (
            "another algorithm",
            with(PolicySignature { scheme: 0x0401, ..signature.clone() }),
            "0x0401 is none of those in use",
        ),
        (
            "another key's algorithm",
            with(PolicySignature { scheme: 0x0807, ..signature.clone() }),
            "another key",
        ),
        (
            "a long certificate",
            with(PolicySignature { certificate: long.clone(), ..signature.clone() }),
            "too long",
        ),
        ("a long signature", with(PolicySignature { signature: long, ..signature.clone() }), "too long"),
        ("no base64", with(PolicySignature { signature: "-".to_owned(), ..signature.clone() }), "no base64"),
        ("no certificate", with(PolicySignature { certificate: String::new(), ..signature }), "not accepted"),
    ]
}

#[test]
fn a_forged_generation_is_refused_with_a_reason_and_never_checked_or_used() {
    let cluster = Cluster::new();
    for (name, forged, reason) in forgeries(&cluster) {
        let mut store = cluster.at_work();
        store.check = Arc::new(|_| panic!("a policy that nobody signed reached the daemon's check"));
        store.change(puts(vec![put(&forged)]));
        let (generation, error) = refused(&store);
        assert!(generation == 2 && error.contains(reason), "{name}: {error}");
        // Nor where somebody puts it in force, with a signature of his own.
        let thief = cluster.pki.issue(IdentityRole::AppNode, "an-7");
        store.change(puts(activate(&thief, &forged, 20)));
        assert_eq!((serving(&store), refused(&store).0), (Some((1, 80)), 2), "{name}");
        assert!(store.problem().contains("generation 1 stays in use"), "{name}: {}", store.problem());
    }
}

#[test]
fn a_forged_activation_is_not_followed() {
    let cluster = Cluster::new();
    let good = generation(&cluster.manager, 2, 81);
    let other_hash = unsigned(2, 90);
    let app_node = cluster.pki.issue(IdentityRole::AppNode, "an-1");
    let stranger = Cluster::new();
    let cases: Vec<(&str, Vec<Entry>, &str)> = vec![
        ("the number alone", vec![number(2)], "a management node has signed that generation 1 is"),
        ("by an application node", activate(&app_node, &good, 20), "an-1 is no management node"),
        ("of another cluster", activate(&stranger.manager, &good, 20), "certificate is not accepted"),
        ("of an ended certificate", activate(&cluster.pki.ended("mn-8"), &good, 20), "expired"),
        ("of another content", activate(&cluster.manager, &other_hash, 20), "what was signed has"),
        (
            "with another sequence",
            vec![number(2), signed(&Activation { sequence: 21, ..activation(&cluster.manager, &good, 20) })],
            "of another text",
        ),
        (
            "with the sequence of the one before",
            activate(&cluster.manager, &good, 10),
            "an old one was put back",
        ),
        ("that is no JSON", vec![number(2), (keys::ACTIVE_SIGNED.to_owned(), b"{".to_vec())], "malformed"),
        (
            "that is long",
            vec![number(2), (keys::ACTIVE_SIGNED.to_owned(), vec![b' '; 1 << 20])],
            "is longer than",
        ),
    ];
    for (name, entries, reason) in cases {
        let mut store = cluster.at_work();
        store.change(puts([vec![put(&good)], entries].concat()));
        assert_eq!(serving(&store), Some((1, 80)), "{name}");
        assert!(store.problem().contains(reason), "{name}: {}", store.problem());
        // What a management node signs next is followed.
        store.change(puts(activate(&cluster.manager, &good, 30)));
        assert_eq!((serving(&store), store.problem().as_str()), (Some((2, 81)), ""), "{name}");
    }
    let mut store = cluster.at_work();
    store.change(vec![KeyChange::Delete(keys::ACTIVE_SIGNED.to_owned())]);
    assert!(
        store.problem().contains("no management node has signed that; generation 1 stays"),
        "{}",
        store.problem()
    );
    assert_eq!(refused(&store).0, 1, "the operator sees it in the acknowledgement");
    store.change(puts(activate(&cluster.manager, &generation(&cluster.manager, 1, 80), 11)));
    assert_eq!((store.ack().unwrap().state, store.problem().as_str()), (AckState::Active, ""));
}

#[test]
fn no_byte_of_an_activation_can_be_changed() {
    let cluster = Cluster::new();
    let good = generation(&cluster.manager, 2, 81);
    let (key, value) = signed(&activation(&cluster.manager, &good, 20));
    let mut store = cluster.at_work();
    store.change(puts(vec![put(&good), number(2)]));
    for at in 0..value.len() {
        for change in [1, 0x20] {
            let mut altered = value.clone();
            altered[at] ^= change;
            store.change(puts(vec![(key.clone(), altered)]));
            assert_eq!(serving(&store), Some((1, 80)), "byte {at} changed by {change}");
        }
        store.change(puts(vec![(key.clone(), value[..at].to_vec())]));
        assert_eq!(serving(&store), Some((1, 80)), "cut at byte {at}");
    }
    store.change(puts(vec![(key, value)]));
    assert_eq!(serving(&store), Some((2, 81)));
}

#[test]
fn an_activation_that_was_put_back_is_not_followed_not_even_after_a_restart() {
    let cluster = Cluster::new();
    let (first, second) = (generation(&cluster.manager, 1, 80), generation(&cluster.manager, 2, 81));
    let old = activate(&cluster.manager, &first, 10);
    let mut store = cluster.at_work();
    store.change(puts([vec![put(&second)], activate(&cluster.manager, &second, 20)].concat()));
    let kept = store.applied(2, Ok(())).unwrap();
    store.change(puts(old.clone()));
    let reason = "generation 1 is in force, but its activation (sequence 10) is 0 s older than the one of generation 2";
    assert!(store.problem().contains(reason), "{}", store.problem());
    assert_eq!((serving(&store), refused(&store).0), (Some((2, 81)), 1));

    let mut restarted = cluster.store_after(kept.activation.clone());
    restarted.use_last_known_good(kept.record);
    restarted.reset([vec![put(&first), put(&second)], old].concat());
    assert_eq!(serving(&restarted), Some((2, 81)));
    assert!(restarted.problem().contains("was put back"), "{}", restarted.problem());
    // Going back is activating anew.
    restarted.change(puts(activate(&cluster.manager, &first, 30)));
    assert_eq!((serving(&restarted), restarted.problem().as_str()), (Some((1, 80)), ""));
}

#[test]
fn a_policy_from_before_signatures_is_used_once_its_activation_is_signed() {
    let cluster = Cluster::new();
    let old = unsigned(4, 84);
    let mut store = cluster.store();
    store.use_last_known_good(old.clone());
    store.applied(4, Ok(())).unwrap();
    store.reset(vec![put(&old), number(4)]);
    assert_eq!(
        (serving(&store), refused(&store).0),
        (Some((4, 84)), 4),
        "what the disk holds is used meanwhile"
    );
    store.change(puts(vec![signed(&activation(&cluster.manager, &old, 10))]));
    assert_eq!((store.current().unwrap().source, store.problem().as_str()), (PolicySource::Etcd, ""));
    assert_eq!((store.ack().unwrap().state, store.ack().unwrap().active), (AckState::Active, 4));
    assert!(store.signed_anew().unwrap().activation.is_some(), "the disk gets the signature");
}

#[test]
fn a_signature_by_an_authority_that_the_node_does_not_know_yet_is_accepted_once_it_does() {
    let cluster = Cluster::new();
    let second = generation(&cluster.manager, 2, 81);
    let mut store = cluster.at_work();
    store.change(puts(vec![put(&second)]));
    cluster.pki.rotate();
    let renewed = cluster.pki.issue(IdentityRole::MgmtNode, "mn-1");
    store.change(puts([vec![put(&generation(&renewed, 3, 83))], activate(&renewed, &second, 20)].concat()));
    assert_eq!((serving(&store), refused(&store).0), (Some((1, 80)), 2));
    assert!(store.doubts() && !store.verify_again(), "nothing has changed yet");
    assert!(cluster.node.check());
    assert!(store.verify_again());
    assert_eq!((serving(&store), store.problem().as_str(), store.doubts()), (Some((2, 81)), "", false));
}

#[test]
fn the_disk_is_verified_and_an_ended_certificate_does_not_take_the_policy_away() {
    let cluster = Cluster::new();
    let record = generation(&cluster.manager, 2, 81);
    let load = |kept: &Kept| {
        std::fs::write(cluster.directory.join(lkg::FILE), serde_json::to_string(kept).unwrap()).unwrap();
        lkg::load(&cluster.directory, &cluster.verifier())
    };
    let kept = |activation: Activation| Kept { record: record.clone(), activation: Some(activation) };
    let yesterday = std::time::Duration::from_secs(24 * 3600 - 60);
    let then = (crate::signatures::now() - yesterday).as_millis() as u64;
    let ended = kept(activation(&cluster.pki.ended("mn-8"), &record, then));
    assert_eq!(load(&ended), Some(ended.clone()), "it was right when this node followed it");
    let thief = cluster.pki.issue(IdentityRole::AppNode, "an-1");
    assert_eq!(load(&kept(activation(&thief, &record, then))), None);
    assert_eq!(load(&kept(activation(&cluster.manager, &unsigned(3, 81), 10))), None);
    let before = Kept { record: unsigned(1, 80), activation: None };
    assert_eq!(load(&before), Some(before.clone()), "from before signatures");
    cluster.pki.revoke(IdentityRole::MgmtNode, "mn-8");
    assert!(cluster.node.check());
    assert_eq!(load(&ended), None, "a revoked signer's policy is not used");
}

#[test]
fn the_chunks_of_a_large_generation_are_read_only_for_a_signed_header() {
    let cluster = Cluster::new();
    let mut store = cluster.at_work();
    let packed = packed::Packed { chunks: 1, len: 100 };
    let hash = unsigned(2, 81).hash;
    let header = Header { generation: 2, created_unix_ms: 7, hash, services: 1, packed, signature: None };
    let entry = |header: &Header| (keys::generation(2), serde_json::to_vec(header).unwrap());
    store.change(puts(vec![entry(&header)]));
    assert!(store.wanted().is_empty() && refused(&store).1.contains("is not signed"));
    let record = GenerationRecord { created_unix_ms: 7, ..unsigned(2, 81) };
    let good = Header { signature: Some(sign_generation(&cluster.manager, &record).unwrap()), ..header };
    let misnamed = Header { created_unix_ms: 8, ..good.clone() };
    store.change(puts(vec![entry(&misnamed)]));
    assert!(store.wanted().is_empty(), "{:?}", store.ack());
    store.change(puts(vec![entry(&good)]));
    assert_eq!(store.wanted(), [good]);
}
