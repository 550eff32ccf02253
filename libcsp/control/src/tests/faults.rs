//! Watches that break: a cut network, compaction, an etcd that does not start.

use etcd_client::WatchOptions;

use super::network::Network;
use super::*;
use crate::etcd_process::EtcdProcessError;
use crate::follow::{Entry, Follower, KeyChange, watch_until_lost};
use crate::membership::MemberState;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_cut_off_catches_up_after_history_was_compacted() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let network = Network::to(etcd.options.client).await;
    let section = network.section();
    let mut cut_off =
        etcd.node_with(record("nn-1", Role::NetworkNode), &section, ControlOptions::default()).await.unwrap();
    let leaver = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    until("pn-1 is there", &mut cut_off.membership, |membership| membership.nodes.len() == 2).await;
    network.cut();
    let cut = |status: &ControlStatus| !status.membership_synced && !status.policy_synced;
    assert!(until("the cut shows", &mut cut_off.status, cut).await.stale_since.is_some());
    // Meanwhile: one goes, one comes, a policy is published, and history is thrown away.
    let client = leaver.client();
    leaver.shutdown().await;
    let _newcomer = etcd.node("pn-2", Role::ProxyNode).await.unwrap();
    let manager = crate::PolicyManager::new(client.clone());
    let generation = manager.publish(&csp_policy::Policy::empty(), None).await.unwrap();
    manager.activate(generation, 0).await.unwrap();
    compact(&client).await;
    network.mend();
    let membership = until("pn-2 shows", &mut cut_off.membership, |membership| {
        membership.synced && membership.nodes.contains_key(&node_id("pn-2"))
    })
    .await;
    // Its farewell was not seen, so nobody may say that it left on purpose.
    assert_eq!(membership.nodes[&node_id("pn-1")].state, MemberState::LeaseExpired);
    let active = until("the policy shows", &mut cut_off.policy, Option::is_some).await.unwrap();
    assert_eq!(active.generation, generation);
}

#[derive(Default)]
struct Recorder(Vec<String>);

impl Follower for Recorder {
    fn reset(&mut self, _: i64, entries: Vec<Entry>) {
        self.0.push(format!("reset {}", entries.len()));
    }
    fn change(&mut self, _: i64, changes: Vec<KeyChange>) {
        self.0.push(format!("change {}", changes.len()));
    }
    fn lost(&mut self, reason: &str) {
        self.0.push(reason.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_a_compacted_revision_ends_with_that_reason() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let client = EtcdClient::connect(&etcd.section()).await.unwrap();
    for n in 0..5 {
        client.put("/csp/v1/nodes/x", n.to_string()).await.unwrap();
    }
    let revision = compact(&client).await;
    let options = WatchOptions::new().with_prefix().with_start_revision(2);
    let mut stream = client.inner.watch_client().watch("/csp/v1/nodes/", Some(options)).await.unwrap();
    let mut recorder = Recorder::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let lost = watch_until_lost(&mut stream, &mut recorder, &mut ticks, |_| {});
    let error = tokio::time::timeout(PATIENCE, lost).await.unwrap();
    let expected = format!("etcd: the watch fell behind: revisions before {revision} are compacted");
    assert_eq!(error.to_string(), expected);
    assert_eq!(recorder.0, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_cannot_start_tells_why() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let options = EtcdProcessOptions {
        data_dir: etcd.directory.join("second"),
        log_file: etcd.directory.join("second.log"),
        peer: free_address(),
        ..etcd.options.clone()
    };
    let error = EtcdProcess::start(options.clone()).await.unwrap_err().to_string();
    let address = options.client;
    assert_eq!(
        error,
        format!("private etcd: cannot listen on {address}: Address already in use (os error 98)")
    );
    // Its data directory is no directory.
    let data_dir = etcd.directory.join("file");
    std::fs::write(&data_dir, "").unwrap();
    let error = EtcdProcess::start(EtcdProcessOptions { data_dir, ..options }).await.unwrap_err();
    assert!(matches!(error, EtcdProcessError::File { .. }), "{error}");
    // etcd itself gives up: the end of its log is told.
    let damaged = etcd.directory.join("damaged");
    std::fs::create_dir_all(damaged.join("member/snap")).unwrap();
    std::fs::write(damaged.join("member/snap/db"), "no database").unwrap();
    let options = EtcdProcessOptions {
        data_dir: damaged,
        log_file: etcd.directory.join("damaged.log"),
        client: free_address(),
        peer: free_address(),
        ..etcd.options.clone()
    };
    let error = EtcdProcess::start(options).await.unwrap_err();
    assert!(matches!(error, EtcdProcessError::Ended { .. }), "{error}");
    let options = EtcdProcessOptions { binary: PathBuf::from("/nonexistent/etcd"), ..etcd.options.clone() };
    let error = EtcdProcess::start(options).await.unwrap_err().to_string();
    assert!(error.contains("/nonexistent/etcd") && error.contains("etcd-server"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is the process that the next test kills"]
async fn a_parent_to_be_killed() {
    let etcd = TestEtcd::start().await.unwrap();
    println!("{PARENT_MARK}{} {}", etcd.process.as_ref().unwrap().pid(), etcd.directory.display());
    std::future::pending().await
}

const PARENT_MARK: &str = "etcd runs: ";

#[test]
fn a_private_etcd_dies_with_its_parent() {
    if !csp_support::installed(ETCD, "etcd-server") {
        return;
    }
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", "tests::faults::a_parent_to_be_killed"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(parent.stdout.take().unwrap()));
    let told =
        lines.map(Result::unwrap).find_map(|line| line.split_once(PARENT_MARK).map(|told| told.1.to_owned()));
    let told = told.expect("the parent tells etcd's process id");
    let (pid, directory) = told.split_once(' ').unwrap();
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    let etcd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let mut ended = [rustix::event::PollFd::new(&etcd, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let count = rustix::event::poll(&mut ended, Some(&patience)).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert_eq!(count, 1, "etcd lives on after its parent was killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_id_is_found_out_after_a_start_without_etcd() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let _first = etcd.node("pn-1", Role::ProxyNode).await.unwrap();
    let network = Network::to(etcd.options.client).await;
    network.cut();
    let section = network.section();
    let options = ControlOptions { start_wait: Duration::from_millis(100), ..ControlOptions::default() };
    let second = etcd.node_with(record("pn-1", Role::ProxyNode), &section, options).await.unwrap();
    assert!(!second.status.borrow().registered);
    network.mend();
    let error = tokio::time::timeout(PATIENCE, second.failed()).await.unwrap();
    assert_eq!(error.exit_code(), 73, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_hangs_is_noticed_and_taken_up_again() {
    let Some(etcd) = TestEtcd::start().await else { return };
    let mut node = etcd.node("nn-1", Role::NetworkNode).await.unwrap();
    let pid = rustix::process::Pid::from_raw(etcd.process.as_ref().unwrap().pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let hanging = |status: &crate::ControlStatus| !status.registered && !status.synced();
    until("the hang shows", &mut node.status, hanging).await;
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    until("all is well again", &mut node.status, |status| status.registered && status.synced()).await;
}
