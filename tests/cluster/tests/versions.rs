//! Programs of two builds together: each kind of another build in turn, and all but one. `CSP_OLD` names the
//! folder of the other build's programs (`make test-versions`).
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use csp_cluster::testing::{self, SERVING_DEADLINE, pattern};
use csp_cluster::{Cluster, Far, Options, San, VIP, wait_until};

/// What is of the other build together: `csp-run` starts programs with the filter that stands beside it.
const KINDS: [&[&str]; 4] =
    [&["csp-network-node"], &["csp-proxy-node"], &["csp-app-node"], &["csp-run", "libcsp_sockfilter.so"]];

/// Makes a folder with `programs` of the folder `old`, and all others of this build.
fn mixed(old: &Path, programs: &[&str], into: &Path) {
    let _ = fs::remove_dir_all(into);
    fs::create_dir_all(into).unwrap();
    let own = testing::binaries().unwrap();
    for entry in fs::read_dir(&own).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let is_old = programs.iter().any(|program| *program == name);
        if path.is_file() && !is_old {
            symlink(&path, into.join(&name)).unwrap();
        }
    }
    for program in programs {
        symlink(old.join(program), into.join(program)).unwrap();
    }
}

fn works_together(binaries: PathBuf, tag: String) {
    let san = San::Apart(Far::Tcp);
    let mut cluster = Cluster::lay_out(Options { binaries, san, edge: false, tag }).unwrap();
    cluster.serve().unwrap();
    let body = cluster.scratch().join("body");
    fs::write(&body, pattern(1 << 20)).unwrap();
    let (from, url) = (format!("@{}", body.display()), format!("http://{VIP}:8080/"));
    let put = ["-sSf", "-m", "30", "-X", "PUT", "-H", "Expect:", "--data-binary", &from, &url];
    let sum = cluster.client.run("sha256sum", &[&body.to_string_lossy()]).unwrap();
    assert_eq!(cluster.client.run("curl", &put).unwrap().trim(), sum.split_whitespace().next().unwrap());
    wait_until("all nodes are ready", SERVING_DEADLINE, || {
        let nodes = cluster.cspctl(&["nodes"]).ok()?;
        ["nn-1", "pn-1", "an-1", "mn-1"]
            .iter()
            .all(|id| nodes.lines().any(|line| line.contains(id) && line.contains("ready")))
            .then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", cluster.cspctl(&["nodes"])));
    // A policy of this build that says nothing that the other one does not know.
    let demo = fs::read_to_string(cluster.scratch().join("demo.yaml")).unwrap();
    let changed = cluster.scratch().join("changed.yaml");
    fs::write(&changed, demo.replacen("pool:", "backlog: {connections: 100}\n    pool:", 1)).unwrap();
    cluster.cspctl(&["policy", "apply", &changed.to_string_lossy()]).unwrap();
    cluster.wait_served().unwrap();
    cluster.cspctl(&["drain", "--force", "pn-1"]).unwrap();
    cluster.cspctl(&["resume", "pn-1"]).unwrap();
    cluster.wait_served().unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

#[test]
#[ignore = "needs programs of another build: make test-versions"]
fn programs_of_two_builds_work_together() {
    let old = PathBuf::from(std::env::var_os("CSP_OLD").expect("CSP_OLD is the folder of the other build"));
    let has = |programs: &[&str]| programs.iter().all(|program| old.join(program).is_file());
    let there: Vec<&[&str]> = KINDS.into_iter().filter(|programs| has(programs)).collect();
    assert!(!there.is_empty(), "{} has none of {KINDS:?}", old.display());
    let all = there.concat();
    let but = |kept: &[&str]| all.iter().copied().filter(|program| !kept.contains(program)).collect();
    let single = there.iter().map(|programs| programs.to_vec());
    let mixes: Vec<Vec<&str>> =
        single.chain(there.iter().map(|kept| but(kept))).chain([all.clone()]).collect();
    for (number, programs) in mixes.iter().enumerate() {
        println!("of the other build: {}", programs.join(", "));
        let tag = format!("old{number}x{}", std::process::id());
        let folder = std::env::temp_dir().join(format!("programs-{tag}"));
        mixed(&old, programs, &folder);
        works_together(folder.clone(), tag);
        fs::remove_dir_all(folder).unwrap();
    }
}
