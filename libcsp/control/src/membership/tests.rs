//! Tests of membership without etcd.

use super::*;

fn record(id: &str) -> NodeRecord {
    NodeRecord::new(id.parse().unwrap(), Role::ProxyNode, "http://127.0.0.1:1".to_owned())
}

fn entry(record: &NodeRecord) -> Entry {
    (keys::node(record.role, &record.id), serde_json::to_vec(record).unwrap())
}

fn follower() -> (MembershipFollower, watch::Receiver<Membership>) {
    MembershipFollower::new(StatusCell::new().0)
}

fn states(receiver: &watch::Receiver<Membership>) -> Vec<(String, MemberState)> {
    receiver.borrow().nodes.values().map(|member| (member.record.id.to_string(), member.state)).collect()
}

#[test]
fn losing_etcd_changes_nobody_and_a_real_read_without_a_node_expires_it() {
    let (mut follower, receiver) = follower();
    let (a, b) = (record("pn-a"), record("pn-b"));
    follower.reset(7, vec![entry(&a), entry(&b)]);
    follower.lost("cut");
    assert!(!receiver.borrow().synced);
    assert_eq!(states(&receiver), [("pn-a".into(), MemberState::Live), ("pn-b".into(), MemberState::Live)]);
    follower.reset(9, vec![entry(&b)]);
    assert_eq!(
        states(&receiver),
        [("pn-a".into(), MemberState::LeaseExpired), ("pn-b".into(), MemberState::Live)]
    );
    follower.change(10, vec![KeyChange::Put(entry(&a))]);
    assert_eq!(states(&receiver)[0].1, MemberState::Live);
    assert_eq!(receiver.borrow().revision, 10);
}

#[test]
fn a_farewell_and_its_deletion_remove_a_node_at_once() {
    let (mut follower, receiver) = follower();
    let leaving = NodeRecord { leaving: true, ..record("pn-a") };
    follower.reset(7, vec![entry(&record("pn-a"))]);
    follower.change(
        8,
        vec![KeyChange::Put(entry(&leaving)), KeyChange::Delete(keys::node(leaving.role, &leaving.id))],
    );
    assert_eq!(states(&receiver), []);
}

#[tokio::test(start_paused = true)]
async fn an_expired_node_is_forgotten_after_a_while_but_not_without_etcd() {
    let (mut follower, receiver) = follower();
    follower.reset(7, vec![entry(&record("pn-a"))]);
    follower.reset(8, vec![]);
    follower.lost("cut");
    tokio::time::advance(FORGET_AFTER).await;
    follower.tick();
    assert_eq!(receiver.borrow().nodes.len(), 1);
    follower.reset(9, vec![]);
    follower.tick();
    assert_eq!(receiver.borrow().nodes.len(), 0);
}

#[test]
fn registrations_that_make_no_sense_are_ignored() {
    let (mut follower, receiver) = follower();
    let good = record("pn-a");
    let text = String::from_utf8(entry(&good).1).unwrap();
    let bad_role = text.replace("proxy-node", "proxy");
    let more = text.replacen('{', "{\"from_the_future\": 1,", 1);
    let key = keys::node(good.role, &good.id);
    for value in ["", "{}", "[]", "null", bad_role.as_str(), "\u{1f4a9}"] {
        follower.reset(1, vec![(key.clone(), value.as_bytes().to_vec())]);
        assert_eq!(states(&receiver), [], "{value:?}");
    }
    follower.reset(2, vec![("/csp/v1/nodes/pn-b".to_owned(), text.into_bytes())]);
    assert_eq!(states(&receiver), [], "a record under another node's key");
    follower.reset(3, vec![(key, more.into_bytes())]);
    assert_eq!(states(&receiver).len(), 1, "a newer version's record may have more fields");
}
