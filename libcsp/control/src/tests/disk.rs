//! A full disk below the state directory.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;

use super::*;

/// Names the directory of the small file system to [`on_a_small_disk`].
const DIRECTORY: &str = "CSP_TEST_SMALL_DISK";

/// Takes all the room that is left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for len in [4096, 1] {
        let error = loop {
            if let Err(error) = file.write_all(&vec![b'x'; len]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in a mount namespace that the next test makes"]
async fn on_a_small_disk() {
    let disk = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    let (state, filler) = (disk.join("pn-1"), disk.join("filler"));
    let etcd = EtcdCluster::start(1, &[]).expect("etcd");
    let section = section_of(&etcd);
    let plane =
        ControlPlane::start(record("pn-1", Role::ProxyNode), &section, &state, ControlOptions::default());
    let pn = FakeDaemon::run(plane.await.unwrap(), None);
    let manager = manager_on(&etcd).await;
    manager.apply(&web(80), None, PATIENCE).await.unwrap();
    pn.has(1).await;
    pn.status("nothing is wrong", |status| status.state_problem.is_empty()).await;
    let kept = async |generation: u64, member: &str| {
        let members = || fs::read_to_string(state.join("members.json")).unwrap_or_default();
        while stored(&state).is_none_or(|record| record.generation != generation)
            || !members().contains(member)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, kept(1, "pn-1")).await.expect("both files are written");

    fill(&filler);
    let nn = node_on(&etcd, "nn-1", Role::NetworkNode).await;
    manager.publish(&web(81), None).await.unwrap();
    manager.activate(2, 1).await.unwrap();
    assert_eq!(pn.has(2).await.policy.services[0].port, 81, "the new policy is in use");
    let both = |status: &ControlStatus| {
        let problem = &status.state_problem;
        problem.contains("policy.json: No space left") && problem.contains("members.json: No space left")
    };
    let status = pn.status("both files are complained about", both).await;
    assert!(status.registered && status.synced(), "{status:?}");
    assert_eq!(stored(&state).unwrap().generation, 1, "the old file is whole");
    assert!(!fs::read_to_string(state.join("members.json")).unwrap().contains("nn-1"));

    fs::remove_file(&filler).unwrap();
    pn.status("all is written", |status| status.state_problem.is_empty()).await;
    tokio::time::timeout(PATIENCE, kept(2, "nn-1")).await.expect("both files are new");
    nn.shutdown().await;
}

#[test]
fn a_full_disk_keeps_the_old_files_and_stops_nothing() {
    if !csp_support::is_root("a file system of its own")
        || !csp_support::installed(ETCD, "etcd-server")
        || !csp_support::installed("unshare", "util-linux")
    {
        return;
    }
    let disk = std::env::temp_dir().join(format!("csp-small-disk-{}", std::process::id()));
    fs::create_dir_all(&disk).unwrap();
    // The mount goes with the processes of its namespace.
    let script = "mount -t tmpfs -o size=256k csp-test \"$CSP_TEST_SMALL_DISK\" && exec \"$@\"";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", "tests::disk::on_a_small_disk"])
        .env(DIRECTORY, &disk)
        .output()
        .unwrap();
    fs::remove_dir(&disk).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}\n{}", text(&ran.stdout), text(&ran.stderr));
    assert!(text(&ran.stdout).contains("1 passed"), "{}", text(&ran.stdout));
}
