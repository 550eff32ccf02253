//! What certificates can do in etcd, and that renewed ones are used.

use std::collections::BTreeSet;

use csp_authority::{Authority, Timestamp};
use csp_identity::{Credentials, IdentityRole};

use super::pki::Pki;
use super::*;
use crate::{keys, users};

/// An etcd with TLS, and a client for each of a few certificates.
struct Secured {
    etcd: TestEtcd,
    pki: Pki,
}

impl Secured {
    async fn start() -> Option<Secured> {
        let mut etcd = TestEtcd::start().await?;
        etcd.stop().await;
        let pki = Pki::create(&etcd.directory);
        let credentials = pki.issue(IdentityRole::MgmtNode, "mn-1");
        let folder = pki.0.join("issued/mgmt-node/mn-1");
        etcd.options.identity = Some((folder, credentials));
        etcd.restart().await;
        Some(Secured { etcd, pki })
    }

    fn access(&self, credentials: Credentials) -> EtcdAccess {
        EtcdAccess { section: self.etcd.section().section, credentials: Some(credentials) }
    }

    async fn client(&self, role: IdentityRole, id: &str) -> EtcdClient {
        EtcdClient::connect(&self.access(self.pki.issue(role, id))).await.unwrap()
    }
}

fn nodes(of: &[(Role, &str)]) -> BTreeSet<(Role, csp_types::NodeId)> {
    of.iter().map(|(role, id)| (*role, node_id(id))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_certificate_of_an_application_node_writes_its_own_keys_only() {
    let Some(secured) = Secured::start().await else { return };
    let root = secured.client(IdentityRole::EtcdRoot, "root").await;
    let all = nodes(&[(Role::MgmtNode, "mn-1"), (Role::AppNode, "an-1"), (Role::ProxyNode, "pn-1")]);
    assert!(!users::is_enforced(&root).await.unwrap(), "everybody may write everything");
    assert!(!users::set_up(&root, &all).await.unwrap().is_empty());
    assert_eq!(users::set_up(&root, &all).await.unwrap(), [], "a second time changes nothing");

    let manager = secured.client(IdentityRole::MgmtNode, "mn-1").await;
    manager.put(keys::ACTIVE, "1".to_owned()).await.unwrap();
    assert!(users::is_enforced(&manager).await.unwrap());
    let proxy = secured.access(secured.pki.issue(IdentityRole::ProxyNode, "pn-1"));
    let options = ControlOptions { start_wait: PATIENCE, ..ControlOptions::default() };
    let mut plane =
        secured.etcd.node_with(record("pn-1", Role::ProxyNode), &proxy, options.clone()).await.unwrap();
    until("pn-1 is registered", &mut plane.membership, |members| members.nodes.len() == 1).await;

    let stolen = secured.client(IdentityRole::AppNode, "an-1").await;
    stolen.get(keys::ACTIVE, None).await.unwrap();
    stolen.put(&keys::node(Role::AppNode, &node_id("an-1")), "x".to_owned()).await.unwrap();
    stolen.put(&keys::ack(&node_id("an-1")), "x".to_owned()).await.unwrap();
    for key in [
        keys::node(Role::ProxyNode, &node_id("an-1")),
        keys::node(Role::ProxyNode, &node_id("pn-1")),
        keys::node(Role::AppNode, &node_id("an-2")),
        keys::ack(&node_id("pn-1")),
        keys::ACTIVE.to_owned(),
        keys::generation(2),
        keys::LEADER.to_owned(),
        keys::drain(&node_id("an-1")),
        "/other".to_owned(),
    ] {
        let refused = stolen.put(&key, "x".to_owned()).await.unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{key}: {refused}");
    }
    let lease = manager.get(&keys::node(Role::ProxyNode, &node_id("pn-1")), None).await.unwrap();
    let lease = lease.kvs()[0].lease();
    stolen.raw().lease_client().revoke(lease).await.unwrap_err();
    stolen.raw().auth_client().user_add("mine", "x", None).await.unwrap_err();

    let viewer = secured.client(IdentityRole::Viewer, "alice").await;
    viewer.get(keys::ACTIVE, None).await.unwrap_err();
    let bare = EtcdAccess { section: secured.etcd.section().section, credentials: None };
    EtcdClient::connect(&bare).await.unwrap().health().await.unwrap_err();

    users::set_up(&root, &nodes(&[(Role::MgmtNode, "mn-1"), (Role::ProxyNode, "pn-1")])).await.unwrap();
    stolen.get(keys::ACTIVE, None).await.unwrap_err();
    manager.health().await.unwrap();
    plane.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_and_a_new_authority_are_used_without_a_restart() {
    let Some(mut secured) = Secured::start().await else { return };
    let credentials = secured.pki.issue(IdentityRole::ProxyNode, "pn-1");
    let client = EtcdClient::connect(&secured.access(credentials.clone())).await.unwrap();
    client.health().await.unwrap();
    let old = credentials.state().holder.serial;
    // The authority is replaced; etcd serves by the new one.
    let now = Timestamp::now();
    let mut authority = Authority::open(&secured.pki.0, now).unwrap();
    authority.rotate_start(Duration::from_secs(24 * 3600), now).unwrap();
    authority.rotate_switch(now).unwrap();
    drop(authority);
    secured.pki.issue(IdentityRole::MgmtNode, "mn-1");
    secured.pki.issue(IdentityRole::ProxyNode, "pn-1");
    assert!(credentials.check(), "{:?}", credentials.state().problem);
    assert_ne!(credentials.state().holder.serial, old);
    Authority::open(&secured.pki.0, now).unwrap().rotate_finish(now).unwrap();
    assert!(credentials.check(), "{:?}", credentials.state().problem);
    if let Some((_, own)) = &secured.etcd.options.identity {
        own.check();
    }
    secured.etcd.stop().await;
    secured.etcd.restart().await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = client.health().await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
