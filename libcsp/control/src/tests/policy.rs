//! Policy distribution: staging, activation, refusal, roll-back, fencing, last-known-good.

use super::*;
use crate::manager::ManagerError;
use crate::policy_store::{AckState, PolicySource};

async fn manager(etcd: &TestEtcd) -> PolicyManager {
    PolicyManager::new(crate::EtcdClient::connect(&etcd.section()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_staged_by_all_nodes_then_activated_and_can_be_rolled_back() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let nn = FakeDaemon::run(etcd.node("nn-1", Role::NetworkNode).await.unwrap(), None);
    let pn = FakeDaemon::run(etcd.node("pn-1", Role::ProxyNode).await.unwrap(), None);
    let manager = manager(&etcd).await;
    let outcome = manager.apply(&web(80), Some(0), PATIENCE).await.unwrap();
    assert_eq!((outcome.generation, outcome.previous), (1, 0));
    assert_eq!(outcome.nodes, ["nn-1", "pn-1"]);
    assert_eq!(nn.has(1).await.source, PolicySource::Etcd);
    let outcome = manager.apply(&web(81), None, PATIENCE).await.unwrap();
    assert_eq!((outcome.generation, outcome.previous), (2, 1));
    assert_eq!(pn.has(2).await.policy.services[0].port, 81);
    let acks = manager.acks().await.unwrap();
    let ack = &acks[&node_id("pn-1")];
    assert_eq!((ack.generation, ack.state, ack.active), (2, AckState::Active, 2));
    assert_eq!(ack.hash, web(81).hash());

    // What was in force can be put back.
    manager.activate(1, 2).await.unwrap();
    assert_eq!(pn.has(1).await.policy.services[0].port, 80);
    let history = manager.history(10).await.unwrap();
    let lines: Vec<_> = history.iter().map(|line| (line.generation, line.active, line.previous)).collect();
    assert_eq!(lines, [(2, false, Some(1)), (1, true, None)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_refusal_keeps_the_old_policy_in_force() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let check: crate::PolicyCheck = Arc::new(|policy| {
        let bad = policy.services.iter().any(|service| service.port == 81);
        if bad { Err("port 81 is in use here".to_owned()) } else { Ok(()) }
    });
    let options = ControlOptions { check, ..ControlOptions::default() };
    let strict = etcd.node_with(record("pn-1", Role::ProxyNode), &etcd.section(), options).await.unwrap();
    let pn = FakeDaemon::run(strict, None);
    let nn = FakeDaemon::run(etcd.node("nn-1", Role::NetworkNode).await.unwrap(), None);
    let manager = manager(&etcd).await;
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    let error = manager.apply(&web(81), None, PATIENCE).await.unwrap_err();
    assert_eq!(error.to_string(), "generation 2 was not activated: pn-1 refused: port 81 is in use here");
    assert_eq!(manager.active().await.unwrap(), 1);
    assert_eq!(nn.has(1).await.generation, 1);
    // The next good one goes through.
    assert_eq!(manager.apply(&web(82), Some(1), PATIENCE).await.unwrap().generation, 3);
    assert_eq!(pn.has(3).await.generation, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fails_to_apply_has_the_generation_taken_back_everywhere() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let nn = FakeDaemon::run(etcd.node("nn-1", Role::NetworkNode).await.unwrap(), None);
    let pn = FakeDaemon::run(etcd.node("pn-1", Role::ProxyNode).await.unwrap(), Some(81));
    let manager = manager(&etcd).await;
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    let error = manager.apply(&web(81), None, PATIENCE).await.unwrap_err();
    assert_eq!(error.to_string(), "generation 2 was taken back: pn-1 refused: cannot apply this port");
    assert_eq!(manager.active().await.unwrap(), 1);
    let mut told = nn.plane.policy.clone();
    let back = |told: &Option<ActivePolicy>| told.as_ref().is_some_and(|active| active.generation == 1);
    until("nn-1 is told to go back", &mut told, back).await;
    nn.has(1).await;
    pn.has(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_node_that_does_not_answer_keeps_the_old_policy_in_force() {
    let Some(etcd) = TestEtcd::start().await else { return };
    // It is registered but does not follow the policy.
    let options = ControlOptions { follow_policy: false, ..ControlOptions::default() };
    let mute = etcd.node_with(record("pn-1", Role::ProxyNode), &etcd.section(), options).await.unwrap();
    let manager = manager(&etcd).await;
    let error = manager.apply(&web(80), None, Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.to_string(), "generation 1 was not activated: no answer from pn-1");
    assert_eq!(manager.active().await.unwrap(), 0);
    // A node that has left is not waited for.
    mute.shutdown().await;
    assert_eq!(manager.apply(&web(80), None, PATIENCE).await.unwrap().generation, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_fenced_on_what_they_were_made_from() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let manager = manager(&etcd).await;
    assert_eq!(manager.apply(&web(80), None, PATIENCE).await.unwrap().generation, 1);
    let error = manager.publish(&web(81), Some(0)).await.unwrap_err();
    assert!(matches!(error, ManagerError::Conflict { expected: 0, found: 1 }), "{error}");
    // Two that publish at the same time get two numbers; only one of them activates.
    let (policy_81, policy_82) = (web(81), web(82));
    let both = tokio::join!(manager.publish(&policy_81, Some(1)), manager.publish(&policy_82, Some(1)));
    let mut numbers = [both.0.unwrap(), both.1.unwrap()];
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
    manager.activate(3, 1).await.unwrap();
    let error = manager.activate(2, 1).await.unwrap_err();
    assert!(matches!(error, ManagerError::Conflict { expected: 1, found: 3 }), "{error}");
    assert!(matches!(manager.activate(9, 3).await, Err(ManagerError::NoGeneration(9))));
    assert!(matches!(manager.generation(9).await, Err(ManagerError::NoGeneration(9))));
    assert_eq!(manager.generation(1).await.unwrap().policy, web(80));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_serves_on_its_last_known_good_policy_while_etcd_is_away() {
    let Some(mut etcd) = TestEtcd::start().await else { return };
    let manager = manager(&etcd).await;
    let pn = FakeDaemon::run(etcd.node("pn-1", Role::ProxyNode).await.unwrap(), None);
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    pn.has(1).await;
    drop(pn);
    etcd.stop().await;
    let options = ControlOptions { start_wait: Duration::from_millis(100), ..ControlOptions::default() };
    let plane = etcd.node_with(record("pn-1", Role::ProxyNode), &etcd.section(), options).await.unwrap();
    assert!(!plane.status.borrow().registered);
    let pn = FakeDaemon::run(plane, None);
    let served = pn.has(1).await;
    assert_eq!((served.source, served.policy.services[0].port), (PolicySource::LastKnownGood, 80));
    etcd.restart().await;
    let mut status = pn.plane.status.clone();
    until("it is registered", &mut status, |status| status.registered && status.synced()).await;
    assert_eq!(pn.plane.policy.borrow().clone().unwrap().source, PolicySource::Etcd);
    assert_eq!(manager.apply(&web(81), Some(1), PATIENCE).await.unwrap().nodes, ["pn-1"]);
}
