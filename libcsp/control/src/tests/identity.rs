//! Registration: ids, leases, farewells.

use super::*;
use crate::membership::{MemberState, Membership};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_of_the_same_id_is_refused_until_the_first_leaves() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let first = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    assert!(first.status.borrow().registered);
    let error = etcd.node("pn-1", Role::ProxyNode).await.unwrap_err();
    assert!(matches!(error, ControlError::IdTaken { .. }), "{error}");
    assert_eq!(error.exit_code(), 73);
    assert!(error.to_string().starts_with("node id pn-1 is taken: proxy-node incarnation "), "{error}");
    // The refused one did the first no harm.
    assert!(first.status.borrow().registered);
    first.shutdown().await;
    let began = std::time::Instant::now();
    let second = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    assert!(second.status.borrow().registered);
    assert!(began.elapsed() < Duration::from_secs(3), "a farewell must free the id at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_killed_can_start_again_under_its_id() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let killed = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let mut observer = etcd.node("nn-1", Role::NetworkNode).await.unwrap();
    let before = observer.membership.borrow().clone();
    drop(killed);
    let began = std::time::Instant::now();
    let again = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    assert!(again.status.borrow().registered);
    assert!(began.elapsed() < Duration::from_secs(3), "its own dead predecessor's lease is not waited for");
    let incarnation = before.nodes[&node_id("pn-1")].record.incarnation;
    let after = until("the new incarnation shows", &mut observer.membership, |membership| {
        let member = &membership.nodes[&node_id("pn-1")];
        member.record.incarnation != incarnation && member.state == MemberState::Live
    })
    .await;
    let ids = |membership: &Membership| membership.nodes.keys().copied().collect::<Vec<_>>();
    assert_eq!(ids(&after), ids(&before), "nobody else came or left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_that_starts_elsewhere_waits_for_its_old_lease() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let killed = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    drop(killed);
    let record = NodeRecord { host: "another kernel".to_owned(), ..record("pn-1", Role::ProxyNode) };
    let began = std::time::Instant::now();
    let again = etcd.node_with(record, &etcd.section(), ControlOptions::default()).await.unwrap();
    assert!(again.status.borrow().registered);
    assert!(began.elapsed() > Duration::from_secs(3), "a lease of 5 s lapsed in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_expires_a_member_and_a_farewell_removes_it() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let mut observer = etcd.node("nn-1", Role::NetworkNode).await.unwrap();
    let silent = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let polite = etcd.node("pn-2", Role::ProxyNode).await.unwrap();
    let all = |membership: &crate::Membership| membership.of_role(Role::ProxyNode).count() == 2;
    until("both proxies are there", &mut observer.membership, all).await;
    drop(silent);
    polite.shutdown().await;
    let state =
        |membership: &crate::Membership, id| membership.nodes.get(&node_id(id)).map(|member| member.state);
    until("pn-2 has left", &mut observer.membership, |membership| state(membership, "pn-2").is_none()).await;
    until("pn-1's lease has expired", &mut observer.membership, |membership| {
        state(membership, "pn-1") == Some(MemberState::LeaseExpired)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_registers_anew_after_etcd_was_away_for_longer_than_its_lease() {
    let Some(mut etcd) = TestEtcd::start().await else { return };
    let mut node = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    etcd.stop().await;
    let lost =
        until("the loss shows", &mut node.status, |status| !status.registered && !status.synced()).await;
    assert!(!lost.registration_problem.is_empty() && !lost.sync_problem.is_empty());
    let membership = node.membership.borrow().clone();
    assert!(!membership.synced);
    assert_eq!(membership.nodes[&node_id("pn-1")].state, MemberState::Live, "etcd's absence expires nobody");
    etcd.restart().await;
    until("it is registered again", &mut node.status, |status| status.registered && status.synced()).await;
    let error = etcd.node("pn-1", Role::ProxyNode).await.unwrap_err();
    assert_eq!(error.exit_code(), 73, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_is_granted_anew_at_once() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let mut node = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let client = node.client();
    let key = crate::keys::node(Role::ProxyNode, &node_id("pn-1"));
    let lease = client.get(&key, None).await.unwrap().kvs()[0].lease();
    client.inner.lease_client().revoke(lease).await.unwrap();
    // Its record may be back before anyone looks.
    let renewed = async {
        loop {
            let found = client.get(&key, None).await.unwrap();
            if found.kvs().first().is_some_and(|kv| kv.lease() != lease) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.expect("another lease");
    let id = node_id("pn-1");
    until("its own record is back", &mut node.membership, |membership| {
        membership.nodes[&id].state == MemberState::Live
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_shows_that_it_drains_also_after_a_restart() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let mut watcher = etcd.node("nn-1", Role::NetworkNode).await.unwrap();
    let drains = |membership: &Membership| membership.nodes.get(&node_id("pn-1")).map(|m| m.record.draining);
    let manager = PolicyManager::new(watcher.client());
    let first = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let other = etcd.node("pn-10", Role::ProxyNode).await.unwrap();
    manager.set_draining(&node_id("pn-10"), true).await.unwrap();
    manager.set_draining(&node_id("pn-1"), true).await.unwrap();
    until("pn-1 drains", &mut watcher.membership, |m| drains(m) == Some(true)).await;
    manager.set_draining(&node_id("pn-1"), false).await.unwrap();
    until("pn-1 serves", &mut watcher.membership, |m| drains(m) == Some(false)).await;
    manager.set_draining(&node_id("pn-1"), true).await.unwrap();
    until("pn-1 drains again", &mut watcher.membership, |m| drains(m) == Some(true)).await;

    first.shutdown().await;
    until("pn-1 has left", &mut watcher.membership, |m| drains(m).is_none()).await;
    let again = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let seen = until("pn-1 is back", &mut watcher.membership, |m| drains(m).is_some()).await;
    assert_eq!(drains(&seen), Some(true), "it was offered connections in between");
    again.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_without_etcd_knows_the_members() {
    let Some(mut etcd) = TestEtcd::start().await else { return };
    let proxy = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let mut first = etcd.node("nn-1", Role::NetworkNode).await.unwrap();
    until("both are there", &mut first.membership, |m| m.nodes.len() == 2).await;
    let file = etcd.directory.join("nn-1/members.json");
    let kept = async {
        while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains("pn-1")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, kept).await.expect("the members are kept on disk");
    etcd.stop().await;
    drop(first);
    let options = ControlOptions { start_wait: Duration::from_millis(200), ..ControlOptions::default() };
    let mut again =
        etcd.node_with(record("nn-1", Role::NetworkNode), &etcd.section(), options).await.unwrap();
    let members = again.membership.borrow().clone();
    assert!(!members.synced && members.nodes.contains_key(&node_id("pn-1")), "{members:?}");
    etcd.restart().await;
    until("etcd's members are used", &mut again.membership, |m| m.synced).await;
    again.shutdown().await;
    proxy.shutdown().await;
}
