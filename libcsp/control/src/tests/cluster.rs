//! Three members of etcd, of which some end.

use super::*;
use crate::membership::MemberState;
use crate::policy_store::PolicySource;

/// Returns the number of the member that leads, as member `witness` reports it.
async fn leader(etcd: &EtcdCluster, witness: usize) -> usize {
    let endpoints = etcd.endpoints();
    let status = async |at: usize| {
        let client = etcd_client::Client::connect([&endpoints[at]], None).await.unwrap();
        client.maintenance_client().status().await
    };
    let leads = status(witness).await.unwrap().leader();
    for at in 0..endpoints.len() {
        if status(at).await.is_ok_and(|status| status.header().unwrap().member_id() == leads) {
            return at;
        }
    }
    panic!("no member has the leader's id {leads:x}")
}

/// Publishes and activates a policy, again until etcd takes it: an answer may be lost with a member.
async fn publish(manager: &PolicyManager, policy: &Policy) -> u64 {
    let publishing = async {
        loop {
            let published = async {
                let generation = manager.publish(policy, None).await?;
                manager.activate(generation, manager.active().await?).await.map(|()| generation)
            };
            match published.await {
                Ok(generation) => return generation,
                Err(error) => tracing::info!(%error, "publishing again"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, publishing).await.expect("the policy is published")
}

fn is_well(status: &ControlStatus) -> bool {
    status.registered && status.synced() && status.stale_since.is_none()
}

fn live(membership: &Membership, id: &str) -> bool {
    membership.synced
        && membership.nodes.get(&node_id(id)).is_some_and(|member| member.state == MemberState::Live)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_etcd_that_end_one_by_one_are_not_missed() {
    let Some(mut etcd) = EtcdCluster::start(3, &[]) else { return };
    let nn = FakeDaemon::run(node_on(&etcd, "nn-1", Role::NetworkNode).await, None);
    let pn = FakeDaemon::run(node_on(&etcd, "pn-1", Role::ProxyNode).await, None);
    let manager = manager_on(&etcd).await;
    nn.members("pn-1 is there", |members| live(members, "pn-1")).await;
    let incarnation = |members: &Membership| members.nodes[&node_id("pn-1")].record.incarnation;
    let before = incarnation(&nn.plane.membership.borrow());

    for port in [81, 82, 83] {
        let gone = match port {
            81 => 0,
            // Twice the leader, without a farewell.
            _ => leader(&etcd, 0).await,
        };
        if port == 81 {
            etcd.stop(gone)
        } else {
            etcd.kill(gone)
        }
        let generation = publish(&manager, &web(port)).await;
        for node in [&nn, &pn] {
            assert_eq!(node.has(generation).await.policy.services[0].port, port);
            node.status("it follows and is registered", is_well).await;
        }
        let members = nn.members("pn-1 is registered", |members| live(members, "pn-1")).await;
        assert_eq!(incarnation(&members), before);
        etcd.restart(gone);
    }
    assert_eq!(nn.plane.status.borrow().history_losses, 0, "another member is the same history");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nodes_go_on_and_with_one_they_catch_up() {
    let Some(mut etcd) = EtcdCluster::start(3, &[]) else { return };
    let nn = FakeDaemon::run(node_on(&etcd, "nn-1", Role::NetworkNode).await, None);
    let pn = FakeDaemon::run(node_on(&etcd, "pn-1", Role::ProxyNode).await, None);
    let manager = manager_on(&etcd).await;
    let first = publish(&manager, &web(80)).await;
    nn.has(first).await;
    nn.members("pn-1 is there", |members| live(members, "pn-1")).await;

    etcd.kill(0);
    etcd.kill(1);
    let stale = |status: &ControlStatus| !status.membership_synced && !status.policy_synced;
    for node in [&nn, &pn] {
        let status = node.status("the loss shows", stale).await;
        assert!(status.stale_since.is_some() && !status.sync_problem.is_empty(), "{status:?}");
    }
    pn.status("its lease is not renewed", |status| !status.registered).await;
    let members = nn.plane.membership.borrow().clone();
    assert_eq!(members.nodes[&node_id("pn-1")].state, MemberState::Live, "etcd's absence expires nobody");
    assert!(manager.publish(&web(81), None).await.is_err(), "one of three takes no change");
    assert_eq!(nn.plane.policy.borrow().as_ref().unwrap().source, PolicySource::Etcd);

    etcd.spawn(0);
    etcd.restart(1);
    for node in [&nn, &pn] {
        node.status("it follows and is registered again", is_well).await;
    }
    nn.members("pn-1 is registered again", |members| live(members, "pn-1")).await;
    let second = publish(&manager, &web(81)).await;
    assert!(second > first);
    for node in [&nn, &pn] {
        node.has(second).await;
        assert_eq!(node.plane.status.borrow().history_losses, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_members_that_serve() {
    let Some(mut etcd) = EtcdCluster::start(3, &[]) else { return };
    let client = EtcdClient::connect(&section_of(&etcd)).await.unwrap();
    for gone in [0, 1] {
        etcd.kill(gone);
        // Requests fail until the member is missed, and not any more afterwards.
        let in_a_row = async {
            let mut in_a_row = 0;
            while in_a_row < 100 {
                in_a_row = if client.get("x", None).await.is_ok() { in_a_row + 1 } else { 0 };
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, in_a_row).await.expect("a hundred answers in a row");
        etcd.restart(gone);
    }
}
