//! Tests of the policy state machine.

use super::*;

fn record(generation: u64, port: u16) -> GenerationRecord {
    let text = format!(
        "{{apiVersion: csp/v1, services: [{{name: web, vip: 10.76.0.100, port: {port}, pool: [{{node: an-1, port: 80}}]}}]}}"
    );
    GenerationRecord {
        created_unix_ms: 1,
        ..GenerationRecord::new(generation, Policy::parse_yaml(&text, "t").unwrap())
    }
}

fn put(record: &GenerationRecord) -> Entry {
    (keys::generation(record.generation), serde_json::to_vec(record).unwrap())
}

fn activate(generation: &str) -> Entry {
    (keys::ACTIVE.to_owned(), generation.as_bytes().to_vec())
}

fn store() -> Store {
    let check: PolicyCheck =
        Arc::new(
            |policy| {
                if policy.services[0].port == 666 { Err("not this port".to_owned()) } else { Ok(()) }
            },
        );
    Store::new(check, (Verifier::new(None), None), 5)
}

fn said(store: &Store) -> (u64, AckState, u64, &str) {
    let ack = store.ack().unwrap();
    assert_eq!(ack.incarnation, 5);
    (ack.generation, ack.state, ack.active, &ack.error)
}

fn serving(store: &Store) -> Option<(u64, u16)> {
    store.current().map(|active| (active.generation, active.policy.services[0].port))
}

#[test]
fn a_generation_is_staged_then_applied() {
    let mut store = store();
    store.reset(vec![put(&record(1, 80))]);
    assert_eq!((serving(&store), said(&store)), (None, (1, AckState::Staged, 0, "")));
    store.change(vec![KeyChange::Put(activate("1"))]);
    assert_eq!(serving(&store), Some((1, 80)));
    assert_eq!(store.applied(1, Ok(())), Some(Kept { record: record(1, 80), activation: None }));
    assert_eq!(said(&store), (1, AckState::Active, 1, ""));
    // The next one waits: what is said is about it, and that the first is still at work.
    store.change(vec![KeyChange::Put(put(&record(2, 81)))]);
    assert_eq!((serving(&store), said(&store)), (Some((1, 80)), (2, AckState::Staged, 1, "")));
}

#[test]
fn a_generation_that_cannot_be_used_is_refused_and_the_old_one_stays() {
    let text = String::from_utf8(put(&record(2, 81)).1).unwrap();
    let key = keys::generation(2);
    let cases = [
        (text.replace("10.76.0.100", "10.76.0.101"), "the hash is"),
        (text.replace("\"port\":81", "\"port\":0"), "is not a port"),
        (text.replace("\"generation\":2", "\"generation\":3"), "says that it is generation 3"),
        (String::from_utf8(put(&record(2, 666)).1).unwrap(), "not this port"),
        ("{".to_owned(), "EOF"),
    ];
    for (value, reason) in cases {
        let mut store = store();
        store.reset(vec![put(&record(1, 80)), activate("1")]);
        store.applied(1, Ok(()));
        store.change(vec![KeyChange::Put((key.clone(), value.into_bytes()))]);
        let (generation, state, active, error) = said(&store);
        assert_eq!((generation, state, active), (2, AckState::Refused, 1), "{reason}");
        assert!(error.contains(reason), "{error:?} does not tell {reason:?}");
        // Even when it is activated against this node's word.
        store.change(vec![KeyChange::Put(activate("2"))]);
        assert_eq!((serving(&store), said(&store).1), (Some((1, 80)), AckState::Refused));
    }
}

#[test]
fn going_back_is_applied_and_said() {
    let mut store = store();
    store.reset(vec![put(&record(1, 80)), put(&record(2, 81)), activate("2")]);
    assert_eq!(store.applied(2, Err("no room".to_owned())), None);
    assert_eq!(said(&store), (2, AckState::Refused, 0, "no room"));
    store.change(vec![KeyChange::Put(activate("1"))]);
    assert_eq!(serving(&store), Some((1, 80)));
    store.applied(1, Ok(()));
    // What is wrong with the newest stays to be read.
    assert_eq!(said(&store), (2, AckState::Refused, 1, "no room"));
    assert_eq!(store.applied(2, Ok(())), None, "an answer about a generation that is not at work any more");
    assert_eq!(said(&store), (2, AckState::Refused, 1, "no room"));
}

#[test]
fn what_vanishes_from_etcd_is_not_taken_away() {
    let mut store = store();
    store.reset(vec![put(&record(1, 80)), activate("1")]);
    store.change(vec![KeyChange::Delete(keys::ACTIVE.to_owned()), KeyChange::Delete(keys::generation(1))]);
    assert_eq!(serving(&store), Some((1, 80)));
    store.reset(vec![]);
    assert_eq!(serving(&store), Some((1, 80)));
    store.change(vec![KeyChange::Put(activate("9"))]);
    store.change(vec![KeyChange::Put(activate("nine"))]);
    assert_eq!(serving(&store), Some((1, 80)));
}

#[test]
fn a_number_that_comes_again_with_another_policy_is_not_the_one_at_work() {
    let mut store = store();
    assert_eq!(store.problem(), "");
    store.reset(vec![put(&record(2, 81)), activate("2")]);
    store.applied(2, Ok(()));
    assert_eq!(store.problem(), "");
    store.reset(vec![]);
    assert!(store.problem().starts_with("etcd holds no policy in force; generation 2 stays in use"));
    assert_eq!(said(&store), (2, AckState::Active, 2, ""));
    store.change(vec![KeyChange::Put(put(&record(2, 90)))]);
    assert_eq!((serving(&store), said(&store)), (Some((2, 81)), (2, AckState::Staged, 0, "")));
    store.change(vec![KeyChange::Put(activate("2"))]);
    assert_eq!((serving(&store), said(&store).2), (Some((2, 90)), 0));
    store.applied(2, Ok(()));
    assert_eq!((said(&store), store.problem().as_str()), ((2, AckState::Active, 2, ""), ""));
    store.change(vec![KeyChange::Put(activate("3"))]);
    assert!(store.problem().starts_with("generation 3 is in force but not in etcd"), "{}", store.problem());
    store.change(vec![KeyChange::Put(put(&record(3, 666)))]);
    assert!(store.problem().contains("cannot be used: not this port; generation 2"), "{}", store.problem());
}

#[test]
fn the_disk_serves_until_etcd_speaks() {
    let mut store = store();
    store.use_last_known_good(record(4, 84));
    assert_eq!(store.current().unwrap().source, PolicySource::LastKnownGood);
    assert_eq!(store.ack(), None, "nothing to say before etcd is there");
    store.applied(4, Ok(()));
    store.reset(vec![put(&record(4, 84)), activate("4")]);
    assert_eq!(store.current().unwrap().source, PolicySource::Etcd);
    assert_eq!(said(&store), (4, AckState::Active, 4, ""));
    store.use_last_known_good(record(3, 83));
    assert_eq!(serving(&store), Some((4, 84)), "the disk comes too late");
}

#[test]
fn what_was_refused_is_used_once_the_node_has_what_it_lacked() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let has_come = Arc::new(AtomicBool::new(false));
    let seen = has_come.clone();
    let check: PolicyCheck = Arc::new(move |_| match seen.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err("a module is missing".to_owned()),
    });
    let mut store = Store::new(check, (Verifier::new(None), None), 5);
    store.reset((1..=7).map(|number| put(&record(number, 80))).chain([activate("1")]).collect());
    assert_eq!(said(&store), (1, AckState::Refused, 0, "a module is missing"));
    store.recheck();
    assert_eq!((serving(&store), said(&store).1), (None, AckState::Refused), "it has not come yet");
    has_come.store(true, Ordering::Relaxed);
    store.recheck();
    assert_eq!((serving(&store), said(&store)), (Some((1, 80)), (7, AckState::Staged, 0, "")));
    store.applied(1, Ok(()));
    assert_eq!(said(&store), (7, AckState::Staged, 1, ""));
}
