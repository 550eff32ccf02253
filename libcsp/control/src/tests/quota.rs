//! An etcd whose database is full.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};

use super::*;
use crate::registration::LEASE_TTL;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_refuses_changes_in_words_and_all_goes_on_once_there_is_room() {
    let Some(etcd) = EtcdCluster::start(1, &["--quota-backend-bytes", "2097152"]) else { return };
    let nn = FakeDaemon::run(node_on(&etcd, "nn-1", Role::NetworkNode).await, None);
    let manager = manager_on(&etcd).await;
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    let client = EtcdClient::connect(&section_of(&etcd)).await.unwrap();
    let fill = "x".repeat(100 << 10);
    let full = loop {
        if let Err(error) = client.put("/fill", fill.clone()).await {
            break error.to_string();
        }
    };
    for words in ["etcd's database is full", "nodes go on", "etcdctl defrag", "etcdctl alarm disarm"] {
        assert!(full.contains(words), "{full}");
    }
    assert_eq!(manager.publish(&web(81), None).await.unwrap_err().to_string(), full);

    // A node that starts now cannot register, says why, and serves.
    let options = ControlOptions { start_wait: Duration::from_millis(200), ..ControlOptions::default() };
    let state = etcd.directory().join("pn-1");
    let pn = ControlPlane::start(record("pn-1", Role::ProxyNode), &section_of(&etcd), &state, options).await;
    let pn = FakeDaemon::run(pn.unwrap(), None);
    pn.has(1).await;
    let status = pn.status("it says why", |status| !status.registration_problem.is_empty()).await;
    assert_eq!((status.registered, status.registration_problem), (false, full));
    // The other one's lease is renewed.
    tokio::time::sleep(LEASE_TTL + Duration::from_secs(1)).await;
    let status = nn.plane.status.borrow().clone();
    assert!(status.registered && status.synced(), "{status:?}");

    client.inner.kv_client().delete("/fill", None).await.unwrap();
    compact(&client).await;
    let mut maintenance = client.inner.maintenance_client();
    maintenance.defragment().await.unwrap();
    let alarms = maintenance.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.unwrap();
    for alarm in alarms.alarms() {
        let mut options = AlarmOptions::new();
        options.with_member(alarm.member_id());
        maintenance.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await.unwrap();
    }
    pn.status("it is registered", |status| status.registered && status.synced()).await;
    let outcome = manager.apply(&web(81), Some(1), PATIENCE).await.unwrap();
    assert_eq!(outcome.nodes, ["nn-1", "pn-1"]);
}
