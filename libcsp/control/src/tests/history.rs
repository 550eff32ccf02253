//! What etcd forgets: compacted revisions, an older state, everything, and another etcd in its place.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc;

use etcd_client::GetOptions;

use super::network::Network;
use super::*;
use crate::follow::{Entry, Follower, History, KeyChange, follow};
use crate::membership::MemberState;
use crate::policy_store::AckState;
use crate::status::StatusCell;

/// What a follower was given, with everything that is wrong about it.
#[derive(Debug, Default)]
struct Record {
    numbers: BTreeMap<String, u64>,
    revision: i64,
    resets: usize,
    changes: usize,
    lost: Vec<String>,
    wrong: Vec<String>,
}

/// Follows keys whose values count up by one, and waits at the key `gate` until the test opens it.
struct Slow {
    record: Arc<Mutex<Record>>,
    gate: mpsc::Receiver<()>,
}

const LOAD: &str = "/csp/v1/load/";

fn number((key, value): &Entry) -> (String, u64) {
    let text = String::from_utf8_lossy(value);
    (key.clone(), text.split(' ').next().unwrap().parse().unwrap())
}

impl Follower for Slow {
    fn reset(&mut self, revision: i64, entries: Vec<Entry>) {
        let mut record = self.record.lock().unwrap();
        record.resets += 1;
        record.numbers = entries.iter().map(number).collect();
        record.revision = revision;
    }

    fn change(&mut self, revision: i64, changes: Vec<KeyChange>) {
        for change in changes {
            let KeyChange::Put(entry) = change else { continue };
            let (key, number) = number(&entry);
            if key.ends_with("gate") {
                // Else tasks that this one has woken, such as that of its connection, would wait with it.
                tokio::task::block_in_place(|| self.gate.recv().unwrap());
            }
            let mut record = self.record.lock().unwrap();
            let expected = record.numbers.get(&key).map_or(0, |number| number + 1);
            if number != expected || revision < record.revision {
                let wrong = format!("{key}: {number} at {revision}, expected {expected}");
                record.wrong.push(wrong);
            }
            record.numbers.insert(key, number);
            record.revision = revision;
            record.changes += 1;
        }
    }

    fn lost(&mut self, reason: &str) {
        self.record.lock().unwrap().lost.push(reason.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_too_slow_for_etcds_history_reads_all_again_without_gap_or_repetition() {
    let Some(etcd) = EtcdCluster::start(1, &["--unsafe-no-fsync"]) else { return };
    let section = section_of(&etcd);
    // The follower has a connection of its own: what it does not read fills the window that all requests of a
    // connection share.
    let [client, reader] = [(); 2].map(|()| EtcdClient::connect(&section));
    let (client, reader) = (client.await.unwrap(), reader.await.unwrap());
    let record: Arc<Mutex<Record>> = Arc::default();
    let (open, gate) = mpsc::channel();
    let follower = Slow { record: Arc::clone(&record), gate };
    let follower = follow(reader, LOAD, follower, History::new(StatusCell::new().0));
    let follower = tokio::spawn(follower);
    let eventually = async |what: &str, condition: &dyn Fn(&Record) -> bool| {
        let waiting = async {
            while !condition(&record.lock().unwrap()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let ended = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(ended.is_ok(), "waited in vain until {what}: {:?}", record.lock().unwrap().lost);
    };
    eventually("it follows", &|record| record.resets == 1).await;
    client.put(&format!("{LOAD}gate"), "0".to_owned()).await.unwrap();
    // More than connection and etcd keep for a watch: 1,024 answers and 5 MiB.
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..200 {
                    let value = format!("{n} {}", "x".repeat(8 << 10));
                    client.put(&format!("{LOAD}{writer}"), value).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    compact(&client).await;
    open.send(()).unwrap();
    eventually("it reads again", &|record| record.resets == 2).await;
    client.put(&format!("{LOAD}end"), "0".to_owned()).await.unwrap();
    eventually("it follows again", &|record| record.numbers.contains_key(&format!("{LOAD}end"))).await;
    follower.abort();
    let record = record.lock().unwrap();
    assert_eq!(record.wrong, Vec::<String>::new());
    assert!(record.lost.iter().any(|reason| reason.contains("are compacted")), "{:?}", record.lost);
    assert!(record.changes < 3200, "everything came through the watch");
    assert!((0..16).all(|writer| record.numbers[&format!("{LOAD}{writer}")] == 199), "{:?}", record.numbers);
}

/// Two nodes with generations 1 and 2 in force one after the other.
async fn two_nodes(etcd: &EtcdCluster) -> (FakeDaemon, FakeDaemon) {
    let nn = FakeDaemon::run(node_on(etcd, "nn-1", Role::NetworkNode).await, None);
    let pn = FakeDaemon::run(node_on(etcd, "pn-1", Role::ProxyNode).await, None);
    nn.members("pn-1 is there", |members| members.nodes.contains_key(&node_id("pn-1"))).await;
    let manager = manager_on(etcd).await;
    for (generation, port) in [(1, 80), (2, 81)] {
        assert_eq!(manager.apply(&web(port), None, PATIENCE).await.unwrap().generation, generation);
    }
    (nn, pn)
}

fn port_of(node: &FakeDaemon) -> u16 {
    node.plane.policy.borrow().as_ref().unwrap().policy.services[0].port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_forgot_everything_takes_no_policy_away() {
    let Some(mut etcd) = EtcdCluster::start(1, &[]) else { return };
    let (nn, pn) = two_nodes(&etcd).await;
    etcd.kill(0);
    etcd.wipe(0);
    for node in [&nn, &pn] {
        node.status("the loss shows", |status| !status.synced()).await;
    }
    // The same addresses and token: the new etcd has the old one's cluster id.
    etcd.restart(0);
    for node in [&nn, &pn] {
        let found =
            |status: &ControlStatus| status.registered && status.synced() && status.history_losses > 0;
        let status = node.status("it has found the new etcd", found).await;
        let problem = "etcd holds no policy in force; generation 2 stays in use";
        assert!(status.policy_problem.starts_with(problem), "{status:?}");
        assert_eq!((status.active_generation, status.history_losses), (2, 1));
        assert_eq!(port_of(node), 81);
    }
    nn.members("pn-1 is registered there", |members| {
        members.synced && members.nodes[&node_id("pn-1")].state == MemberState::Live
    })
    .await;
    let kept = stored(&etcd.directory().join("pn-1")).unwrap();
    assert_eq!((kept.generation, kept.hash), (2, web(81).hash()));

    // A node that starts now goes on with the policy that it had.
    drop(pn);
    let pn = FakeDaemon::run(node_on(&etcd, "pn-1", Role::ProxyNode).await, None);
    pn.has(2).await;
    let status = pn.status("it misses the policy", |status| !status.policy_problem.is_empty()).await;
    assert!(status.synced(), "{status:?}");

    // Numbering starts over, and the nodes follow, also where a number has been in force with another policy.
    let manager = manager_on(&etcd).await;
    for (generation, port) in [(1, 82), (2, 83)] {
        let outcome = manager.apply(&web(port), None, PATIENCE).await.unwrap();
        assert_eq!(
            (outcome.generation, outcome.nodes.as_slice()),
            (generation, ["nn-1".to_owned(), "pn-1".to_owned()].as_slice())
        );
        for node in [&nn, &pn] {
            let status = node.status("no problem is left", |status| status.policy_problem.is_empty()).await;
            assert_eq!((status.active_generation, port_of(node)), (generation, port));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_restored_from_a_backup_is_followed() {
    let Some(mut etcd) = EtcdCluster::start(1, &[]) else { return };
    let (nn, pn) = two_nodes(&etcd).await;
    etcd.stop(0);
    etcd.back_up(0, "backup");
    etcd.restart(0);
    let manager = manager_on(&etcd).await;
    for node in [&nn, &pn] {
        node.status("it is registered again", |status| status.registered && status.synced()).await;
    }
    for (generation, port) in [(3, 82), (4, 83)] {
        assert_eq!(manager.apply(&web(port), None, PATIENCE).await.unwrap().generation, generation);
    }
    etcd.kill(0);
    for node in [&nn, &pn] {
        node.status("the loss shows", |status| !status.synced()).await;
    }
    etcd.put_back(0, "backup");
    etcd.restart(0);
    for node in [&nn, &pn] {
        let back =
            |status: &ControlStatus| status.registered && status.synced() && status.active_generation == 2;
        let status = node.status("the policy of the backup is in force", back).await;
        assert_eq!((status.history_losses, status.policy_problem.as_str(), port_of(node)), (1, "", 81));
    }
    // The acknowledgement in the backup is not the present one.
    let acked = async {
        loop {
            let acks = manager.acks().await.unwrap();
            if acks.values().filter(|ack| (ack.active, ack.state) == (2, AckState::Active)).count() == 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, acked).await.expect("both nodes acknowledge generation 2");
    let outcome = manager.apply(&web(90), None, PATIENCE).await.unwrap();
    assert_eq!((outcome.generation, outcome.nodes.len()), (3, 2));
    assert_eq!((port_of(&nn), port_of(&pn)), (90, 90));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_in_another_cluster_of_etcd_needs_no_ceremony() {
    let Some(old) = EtcdCluster::start(1, &[]) else { return };
    let Some(new) = EtcdCluster::start(1, &[]) else { return };
    let network = Network::to(old.addresses()[0]).await;
    let state = old.directory().join("pn-1");
    let options = ControlOptions { start_wait: PATIENCE, ..ControlOptions::default() };
    let started =
        ControlPlane::start(record("pn-1", Role::ProxyNode), &network.section(), &state, options).await;
    let pn = FakeDaemon::run(started.unwrap(), None);
    manager_on(&old).await.apply(&web(80), None, PATIENCE).await.unwrap();
    pn.has(1).await;
    let mut policies = pn.plane.policy.clone();
    policies.mark_unchanged();

    // The policy comes over as from a backup; registrations do not.
    let from = EtcdClient::connect(&section_of(&old)).await.unwrap();
    let to = EtcdClient::connect(&section_of(&new)).await.unwrap();
    let all = from.get(crate::keys::POLICY, Some(GetOptions::new().with_prefix())).await.unwrap();
    for pair in all.kvs() {
        to.put(pair.key_str().unwrap(), pair.value_str().unwrap().to_owned()).await.unwrap();
    }
    network.cut();
    pn.status("the cut shows", |status| !status.synced()).await;
    network.lead_to(new.addresses()[0]);
    let found = |status: &ControlStatus| status.registered && status.synced() && status.history_losses == 1;
    let status = pn.status("it has found the other cluster", found).await;
    assert_eq!((status.policy_problem.as_str(), status.active_generation), ("", 1));
    assert!(!policies.has_changed().unwrap(), "the same policy is not applied again");
    let key = crate::keys::node(Role::ProxyNode, &node_id("pn-1"));
    let registered = async {
        while to.get(&key, None).await.unwrap().kvs().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, registered).await.expect("it is registered in the other cluster");
    let outcome = manager_on(&new).await.apply(&web(81), Some(1), PATIENCE).await.unwrap();
    assert_eq!((outcome.generation, outcome.nodes.as_slice()), (2, ["pn-1".to_owned()].as_slice()));
}
