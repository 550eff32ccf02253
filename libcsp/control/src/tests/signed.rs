//! Somebody who can write etcd, and has no management node's key, against nodes with identities.

use csp_identity::{Credentials, IdentityRole};

use super::pki::Pki;
use super::*;
use crate::policy_store::AckState;
use crate::signatures::{Verifier, sign_activation, sign_generation};
use crate::{Activation, GenerationRecord, ManagerError, NodeAck, Signer, keys, lkg};

/// An etcd whose permissions count for nothing: without TLS, so that everybody writes everything.
struct Open {
    etcd: TestEtcd,
    pki: Pki,
    client: EtcdClient,
}

impl Open {
    async fn start() -> Option<Open> {
        let etcd = TestEtcd::start().await?;
        let pki = Pki::create(&etcd.directory);
        let client = EtcdClient::connect(&etcd.section()).await.unwrap();
        Some(Open { etcd, pki, client })
    }

    /// A management node's manager, with a state directory of its own.
    fn manager(&self, credentials: &Credentials) -> (PolicyManager, Arc<Signer>) {
        let id = credentials.state().holder.identity.id;
        let state = self.etcd.directory.join(id.as_str());
        let signer = Signer::open(credentials.clone(), &state, &id).unwrap();
        (PolicyManager::new(self.client.clone()).signed(signer.clone()), signer)
    }

    fn issue_manager(&self, id: &str) -> Credentials {
        self.pki.issue(IdentityRole::MgmtNode, id)
    }

    async fn node(&self, id: &str, role: Role) -> (FakeDaemon, Credentials) {
        let identity = IdentityRole::of_node(role).unwrap();
        let credentials = self.pki.issue(identity, id);
        let access = EtcdAccess { credentials: Some(credentials.clone()), ..self.etcd.section() };
        let options = ControlOptions { start_wait: PATIENCE, ..ControlOptions::default() };
        let plane = self.etcd.node_with(record(id, role), &access, options).await.unwrap();
        (FakeDaemon::run(plane, Some(666)), credentials)
    }

    async fn put(&self, key: &str, value: impl serde::Serialize) {
        self.client.put(key, serde_json::to_string(&value).unwrap()).await.unwrap();
    }

    async fn value(&self, key: &str) -> Option<String> {
        let response = self.client.get(key, None).await.unwrap();
        response.kvs().first().map(|pair| pair.value_str().unwrap().to_owned())
    }

    async fn activation(&self) -> Activation {
        serde_json::from_str(&self.value(keys::ACTIVE_SIGNED).await.unwrap()).unwrap()
    }

    /// Waits until a node's acknowledgement fulfils `condition`.
    async fn ack(&self, what: &str, node: &str, condition: impl Fn(&NodeAck) -> bool) -> NodeAck {
        let manager = PolicyManager::new(self.client.clone());
        let found = async {
            loop {
                let acks = manager.acks().await.unwrap();
                if let Some(ack) = acks.get(&node_id(node)).filter(|ack| condition(ack)) {
                    return ack.clone();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
    }
}

fn port(node: &FakeDaemon) -> u16 {
    node.plane.policy.borrow().as_ref().unwrap().policy.services[0].port
}

fn forged(generation: u64, port: u16) -> GenerationRecord {
    GenerationRecord::new(generation, web(port))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_somebody_writes_into_etcd_is_not_followed_and_nodes_say_why() {
    let Some(open) = Open::start().await else { return };
    let manager_1 = open.issue_manager("mn-1");
    let (manager, signer) = open.manager(&manager_1);
    let (pn, _) = open.node("pn-1", Role::ProxyNode).await;
    let (nn, _) = open.node("nn-1", Role::NetworkNode).await;
    nn.members("pn-1 is there", |members| members.nodes.contains_key(&node_id("pn-1"))).await;
    assert_eq!(manager.apply(&web(80), None, PATIENCE).await.unwrap().nodes, ["nn-1", "pn-1"]);
    let old = open.activation().await;
    assert_eq!(manager.apply(&web(81), None, PATIENCE).await.unwrap().generation, 2);
    manager.keep_signed(true).await.unwrap();
    assert_eq!(manager.doubt().await.unwrap(), None);

    // A generation without a signature, put in force.
    open.put(&keys::generation(3), forged(3, 90)).await;
    open.put(keys::ACTIVE, 3).await;
    for node in ["pn-1", "nn-1"] {
        let ack = open.ack("it is refused", node, |ack| ack.generation == 3).await;
        assert_eq!((ack.state, ack.active), (AckState::Refused, 2));
        assert!(ack.error.contains("generation 3 is not signed"), "{}", ack.error);
    }
    // And signed by a node of this cluster.
    let thief = open.pki.issue(IdentityRole::AppNode, "an-1");
    let mut theft = forged(3, 90);
    theft.signature = Some(sign_generation(&thief, &theft).unwrap());
    open.put(&keys::generation(3), &theft).await;
    open.put(keys::ACTIVE_SIGNED, sign_activation(&thief, (3, &theft.hash), u64::MAX).unwrap()).await;
    for node in [&pn, &nn] {
        let says = |status: &ControlStatus| status.policy_problem.contains("an-1 is no management node");
        let status = node.status("it says why", says).await;
        assert_eq!((status.active_generation, port(node)), (2, 81));
    }
    // What was in force before, as it was signed then.
    open.put(keys::ACTIVE_SIGNED, &old).await;
    open.put(keys::ACTIVE, 1).await;
    for node in [&pn, &nn] {
        let status = node
            .status("it says why", |status| status.policy_problem.contains("an old one was put back"))
            .await;
        assert_eq!((status.active_generation, port(node)), (2, 81));
    }
    let ack = open.ack("it is refused", "pn-1", |ack| ack.generation == 1).await;
    assert!(ack.error.contains("it is not taken for the one in force: its activation"), "{}", ack.error);

    // The management node signs nothing of that, and says so.
    manager.keep_signed(true).await.unwrap();
    assert_eq!(open.activation().await, old);
    assert!(signer.problem().contains("an old one was put back"), "{}", signer.problem());
    assert!(manager.doubt().await.unwrap().is_some());
    open.put(keys::ACTIVE, 3).await;
    let error = manager.activate(3, 3).await.unwrap_err();
    assert!(
        matches!(&error, ManagerError::NotSigned { reason, .. } if reason.contains("no management node")),
        "{error}"
    );

    // Nor after a restart.
    drop(pn);
    let (pn, _) = open.node("pn-1", Role::ProxyNode).await;
    pn.status("it serves", |status| status.active_generation == 2).await;
    assert_eq!(port(&pn), 81);
    let (manager, signer) = open.manager(&manager_1);
    manager.keep_signed(true).await.unwrap();
    assert!(!signer.problem().is_empty());

    // Publishing a policy ends it.
    let outcome = manager.apply(&web(82), None, PATIENCE).await.unwrap();
    assert_eq!(
        (outcome.generation, outcome.nodes.as_slice()),
        (4, ["nn-1".to_owned(), "pn-1".to_owned()].as_slice())
    );
    for node in [&pn, &nn] {
        node.status("no problem is left", |status| status.policy_problem.is_empty()).await;
        assert_eq!(port(node), 82);
    }
    // A deleted signature is made again.
    open.client.inner.kv_client().delete(keys::ACTIVE_SIGNED, None).await.unwrap();
    pn.status("it says so", |status| status.policy_problem.contains("no management node has signed that"))
        .await;
    manager.keep_signed(true).await.unwrap();
    pn.status("it is signed", |status| status.policy_problem.is_empty()).await;
    assert_eq!((port(&pn), signer.problem()), (82, String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_a_renewed_certificate_and_a_new_authority_sign_what_is_in_force_anew() {
    let Some(open) = Open::start().await else { return };
    let first = open.issue_manager("mn-1");
    let (manager, _) = open.manager(&first);
    let (pn, node) = open.node("pn-1", Role::ProxyNode).await;
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    manager.apply(&web(81), None, PATIENCE).await.unwrap();
    let mut last = open.activation().await;
    let kept = |sequence: u64| {
        let state = open.etcd.directory.join("pn-1");
        let verifier = Verifier::new(Some(node.clone()));
        async move {
            let stored = async {
                while lkg::load(&state, &verifier).and_then(|kept| kept.activation).map(|kept| kept.sequence)
                    != Some(sequence)
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(PATIENCE, stored).await.expect("the disk gets the new signature");
        }
    };
    let anew = async |manager: &PolicyManager, last: &Activation| {
        manager.keep_signed(false).await.unwrap();
        assert_eq!(open.activation().await, *last, "a management node that does not lead signs nothing");
        manager.keep_signed(true).await.unwrap();
        let now = open.activation().await;
        assert!(now.sequence > last.sequence && now.signature.certificate != last.signature.certificate);
        assert_eq!((now.generation, &now.hash), (2, &web(81).hash()));
        manager.keep_signed(true).await.unwrap();
        assert_eq!(open.activation().await, now, "once is enough");
        now
    };
    kept(last.sequence).await;
    // Another leader.
    let second = open.issue_manager("mn-2");
    let (leader, signer) = open.manager(&second);
    last = anew(&leader, &last).await;
    kept(last.sequence).await;
    // The same one with another certificate.
    open.issue_manager("mn-2");
    assert!(second.check());
    last = anew(&leader, &last).await;
    // And with one of another authority, which the node does not know at once.
    open.pki.rotate();
    open.issue_manager("mn-2");
    assert!(second.check());
    last = anew(&leader, &last).await;
    pn.status("it does not know the authority", |status| status.policy_problem.contains("not accepted"))
        .await;
    assert!(node.check());
    pn.status("it knows the authority", |status| status.policy_problem.is_empty()).await;
    kept(last.sequence).await;
    // The signer is revoked: another management node that remembers signs anew.
    let third = open.issue_manager("mn-3");
    let (other, other_signer) = open.manager(&third);
    other.keep_signed(false).await.unwrap();
    open.pki.revoke(IdentityRole::MgmtNode, "mn-2");
    assert!(third.check() && node.check());
    pn.status("its signer is revoked", |status| status.policy_problem.contains("revoked")).await;
    other.keep_signed(false).await.unwrap();
    assert!(other_signer.problem().contains("revoked"), "{}", other_signer.problem());
    last = anew(&other, &last).await;
    pn.status("it is signed anew", |status| status.policy_problem.is_empty()).await;
    kept(last.sequence).await;
    assert_eq!((pn.plane.status.borrow().active_generation, signer.problem()), (2, String::new()));
    // What the node refuses to apply is taken back, by a generation that a revoked management node published.
    let error = other.apply(&web(666), None, PATIENCE).await.unwrap_err();
    assert!(matches!(error, ManagerError::RolledBack { generation: 3, .. }), "{error}");
    pn.status("it is back", |status| status.policy_problem.is_empty() && status.active_generation == 2).await;
    assert_eq!((open.activation().await.generation, port(&pn)), (2, 81));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_from_before_signatures_gets_them_from_its_first_upgraded_leader() {
    let Some(open) = Open::start().await else { return };
    let old = PolicyManager::new(open.client.clone());
    assert_eq!(old.publish(&web(80), None).await.unwrap(), 1);
    old.activate(1, 0).await.unwrap();
    let (pn, _) = open.node("pn-1", Role::ProxyNode).await;
    pn.status("it takes nothing", |status| status.policy_problem.contains("no policy is in use")).await;
    // A new management node does not sign what it finds.
    let (manager, signer) = open.manager(&open.issue_manager("mn-1"));
    manager.keep_signed(true).await.unwrap();
    assert!(signer.problem().contains("no management node has signed that"), "{}", signer.problem());
    assert_eq!(open.value(keys::ACTIVE_SIGNED).await, None);
    // One that was there before signatures does, while it leads.
    let state = open.etcd.directory.join("mn-2");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("mn-2.incarnation"), "7").unwrap();
    let (upgraded, signer) = open.manager(&open.issue_manager("mn-2"));
    upgraded.keep_signed(false).await.unwrap();
    assert!(!signer.problem().is_empty());
    upgraded.keep_signed(true).await.unwrap();
    let served = pn.has(1).await;
    assert_eq!((served.policy.services[0].port, signer.problem()), (80, String::new()));
    // Where nothing was in force, there is nothing to sign later either.
    let state = open.etcd.directory.join("mn-3");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("mn-3.incarnation"), "7").unwrap();
    open.client.inner.kv_client().delete(keys::ACTIVE, None).await.unwrap();
    let mn_3 = open.issue_manager("mn-3");
    open.manager(&mn_3).0.keep_signed(true).await.unwrap();
    // Once: what somebody else puts in force later is not signed.
    open.put(&keys::generation(2), forged(2, 90)).await;
    open.put(keys::ACTIVE, 2).await;
    open.client.inner.kv_client().delete(keys::ACTIVE_SIGNED, None).await.unwrap();
    for manager in [&upgraded, &open.manager(&open.issue_manager("mn-2")).0, &open.manager(&mn_3).0] {
        manager.keep_signed(true).await.unwrap();
        assert_eq!(open.value(keys::ACTIVE_SIGNED).await, None);
    }
    assert_eq!(port(&pn), 80);
}
