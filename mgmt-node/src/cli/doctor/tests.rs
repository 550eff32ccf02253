//! Every check on fabricated hosts: one on which all is well, and others with one thing wrong.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use csp_api::mgmt::{EtcdView, LeaderView, NodeState, NodeView, NodesView};

use super::host::{Calls, Space};
use super::programs::Part;
use super::*;

mod cluster;
mod local;
mod places;

/// A tree of files, removed at the end.
pub(in crate::cli) struct Tree(pub(in crate::cli) PathBuf);

impl Tree {
    pub(in crate::cli) fn new() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Tree(path)
    }

    pub(in crate::cli) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(in crate::cli) fn file(&self, path: &str, text: &str) -> &Tree {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        self.mode_of(&path, 0o600)
    }

    fn remove(&self, path: &str) -> &Tree {
        let path = self.path(path);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        self
    }

    fn mode(&self, path: &str, mode: u32) -> &Tree {
        self.mode_of(&self.path(path), mode)
    }

    fn mode_of(&self, path: &Path, mode: u32) -> &Tree {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    /// A process as /proc shows it.
    fn process(&self, pid: u32, comm: &str, exe: &str, memlock: &str) -> &Tree {
        self.file(&format!("/proc/{pid}/comm"), &format!("{comm}\n"));
        let limits =
            format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {memlock}  {memlock}  bytes\n");
        self.file(&format!("/proc/{pid}/limits"), &limits);
        symlink(exe, self.path(&format!("/proc/{pid}/exe"))).unwrap();
        self
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Programs with answers, by their command line or their name.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Fake {
    runs: BTreeMap<String, Ran>,
    space: Space,
    memlock: Option<Option<u64>>,
    refused: bool,
}

impl Fake {
    pub(in crate::cli) fn run_is(&mut self, command: &str, code: i32, out: &str) -> &mut Fake {
        let err = if code == 0 { String::new() } else { out.to_owned() };
        self.runs.insert(command.to_owned(), Ran { code, out: out.to_owned(), err });
        self
    }
}

impl Calls for Fake {
    fn run(&self, program: &str, arguments: &[&str], _: Part) -> Result<Ran, NotRun> {
        let whole = [&[program], arguments].concat().join(" ");
        let ran = self.runs.get(&whole).or_else(|| self.runs.get(program));
        ran.cloned().ok_or_else(|| NotRun::Missing(program.to_owned()))
    }

    fn space(&self, _: &Path) -> Result<Space, NotRun> {
        Ok(self.space)
    }

    fn memlock(&self) -> Option<Option<u64>> {
        self.memlock
    }

    fn connect(&self, _: &str) -> Option<Result<(), String>> {
        Some(if self.refused { Err("Connection refused".to_owned()) } else { Ok(()) })
    }
}

const INTERFACES: &str = r#"[
  {"ifname": "lo", "mtu": 65536, "flags": ["LOOPBACK", "UP", "LOWER_UP"], "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
  {"ifname": "lan0", "mtu": 1500, "flags": ["BROADCAST", "UP", "LOWER_UP"], "addr_info": []},
  {"ifname": "san0", "mtu": 9000, "flags": ["BROADCAST", "UP", "LOWER_UP"], "addr_info": [{"family": "inet", "local": "10.77.0.1", "prefixlen": 24}]},
  {}
]"#;

const FEATURES: &str = "Features for lan0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\n\
    tcp-segmentation-offload: on\ngeneric-segmentation-offload: on\ngeneric-receive-offload: on\nlarge-receive-offload: off\n";

const NETWORK_NODE: &str = "node: {id: nn-1, state_dir: /var/lib/csp/network-node, identity: /etc/csp/identity}\n\
    etcd: {endpoints: [\"https://10.77.0.4:2379\"]}\nadmin: {listen: \"10.77.0.1:9101\"}\nworkers: 2\ncpus: [0, 1]\n\
    lan: [{interface: lan0}]\nsan: {address: 10.77.0.1}\n";
const PROXY_NODE: &str = "node: {id: pn-1, state_dir: /var/lib/csp/proxy-node, identity: /etc/csp/identity-proxy}\n\
    etcd: {endpoints: [\"https://10.77.0.4:2379\"]}\nadmin: {listen: \"10.77.0.1:9102\"}\ncpus: [2]\nsan: {address: 10.77.0.1}\n";

/// A host with a network node and a proxy node that run, on which all is well, and its cluster.
pub(in crate::cli) struct World {
    pub(in crate::cli) tree: Tree,
    pub(in crate::cli) fake: Fake,
    pub(in crate::cli) cluster: Option<(Vec<NodeView>, Policy)>,
    etcd: EtcdView,
    clock_ahead_ms: (i64, i64),
    leader: bool,
    identity: Option<PathBuf>,
}

impl World {
    pub(in crate::cli) fn new() -> World {
        let tree = Tree::new();
        tree.file("/etc/csp/network-node.yaml", NETWORK_NODE).file("/etc/csp/proxy-node.yaml", PROXY_NODE);
        tree.file("/etc/csp/network-node.key", "1 node …").file("/etc/csp/proxy-node.key", "1 cluster …");
        tree.file("/etc/csp/curve/ticks.key_secret", "secret");
        for node in ["network-node", "proxy-node"] {
            tree.file(&format!("/var/lib/csp/{node}/policy.json"), "{\"generation\": 3}");
            tree.mode(&format!("/var/lib/csp/{node}"), 0o700);
        }
        tree.file("/proc/sys/kernel/osrelease", "6.1.0-30-amd64\n")
            .file("/proc/sys/kernel/hostname", "edge-1\n");
        let config: Vec<String> =
            ["PACKET", "BPF_SYSCALL", "XDP_SOCKETS", "TUN", "NET_CLS_BPF", "NET_ACT_MIRRED"]
                .map(|name| format!("CONFIG_{name}={}\n", if name == "TUN" { "m" } else { "y" }))
                .to_vec();
        tree.file("/boot/config-6.1.0-30-amd64", &config.concat())
            .file("/proc/sys/net/core/bpf_jit_enable", "1\n");
        tree.file("/proc/mounts", "proc /proc proc rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n");
        tree.file("/dev/net/tun", "").file("/dev/null", "");
        tree.file(
            "/proc/meminfo",
            "MemTotal: 1 kB\nHugePages_Total:  0\nHugePages_Free:  0\nHugepagesize:  2048 kB\n",
        );
        tree.file("/sys/devices/system/cpu/online", "0-3\n").file("/run/systemd/timesync/synchronized", "");
        tree.process(11, "csp-network-nod", "/usr/sbin/csp-network-node", "unlimited");
        tree.process(12, "csp-proxy-node", "/usr/sbin/csp-proxy-node", "unlimited");
        tree.file(
            "/proc/net/tcp",
            &listening(&["01004D0A:238D", "01004D0A:238E", "01004D0A:1BBC", "01004D0A:1CBC"]),
        );
        World {
            tree,
            fake: programs(),
            cluster: Some((cluster::nodes(), cluster::policy())),
            etcd: EtcdView { connected: true, private: false, silent_ms: 0 },
            clock_ahead_ms: (12, 501),
            leader: true,
            identity: None,
        }
    }

    pub(in crate::cli) fn seen(&self) -> Seen {
        let host = Host::with(&self.tree.0, self.fake.clone());
        let (daemons, broken) = configuration::read(&host);
        let leader =
            self.leader.then(|| LeaderView { id: "mn-1".into(), url: "https://10.77.0.4:9104".into() });
        let cluster = self.cluster.clone().map(|(nodes, policy)| Cluster {
            nodes: NodesView { nodes, leader, etcd: self.etcd.clone() },
            policy: Ok(policy),
            generation: 3,
            clock_ahead_ms: self.clock_ahead_ms,
        });
        let (server, no_cluster) = ("https://10.77.0.4:9104".to_owned(), "no answer".to_owned());
        let identity = self.identity.clone();
        Seen { host, daemons, broken, identity, server, server_given: true, cluster, no_cluster }
    }

    /// The findings of one check that are not `ok`, each as `level: found`.
    fn of(&self, name: &str) -> Vec<String> {
        let report = Report::of(&self.seen(), &[name.to_owned()]);
        assert!(!report.findings.is_empty(), "{name} says nothing");
        for finding in report.findings.iter().filter(|finding| finding.level > Level::Info) {
            assert!(
                !finding.why.is_empty() && !finding.remedy.is_empty(),
                "{finding:?} has no reason or remedy"
            );
        }
        let bad = report.findings.into_iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| format!("{}: {}", finding.level.as_str(), finding.found)).collect()
    }

    /// Asserts that a check finds exactly these, given by their beginnings.
    #[track_caller]
    fn finds(&self, name: &str, expected: &[&str]) {
        let found = self.of(name);
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, text)| found.starts_with(text));
        assert!(same, "{name}: {found:#?}\nexpected: {expected:#?}");
    }
}

/// A table of listening sockets as in /proc/net/tcp.
fn listening(at: &[&str]) -> String {
    let lines = at
        .iter()
        .map(|at| format!("   0: {} 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 1\n", native(at)));
    "  sl  local_address rem_address   st\n".to_owned() + &lines.collect::<String>()
}

/// Addresses are written in the byte order of the host; above they are little endian.
fn native(at: &str) -> String {
    let (address, port) = at.split_once(':').unwrap();
    let word = u32::from_str_radix(address, 16).unwrap();
    format!("{:08X}:{port}", u32::from_ne_bytes(word.to_le_bytes()))
}

fn programs() -> Fake {
    let space = Space { total: 100 << 30, free: 50 << 30, inodes: 1_000_000, inodes_free: 900_000 };
    let mut fake = Fake { runs: BTreeMap::new(), space, memlock: Some(Some(8 << 20)), refused: false };
    fake.run_is("ip", 0, INTERFACES).run_is("ethtool", 0, FEATURES).run_is("ping", 0, "");
    fake.run_is("nft", 0, "{\"nftables\": [{\"metainfo\": {}}]}");
    for program in ["csp-network-node", "csp-proxy-node"] {
        let version = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        fake.run_is(program, 0, "").run_is(&format!("{program} --version"), 0, &version);
    }
    fake
}

#[test]
fn a_host_as_it_should_be_has_nothing_but_its_certificates_to_find() {
    let world = World::new();
    for check in all().filter(|check| check.name != "certificates") {
        world.finds(check.name, &[]);
    }
}

#[test]
fn the_report_says_what_is_worst_and_shows_the_remedy() {
    let world = World::new();
    world.tree.mode("/etc/csp/proxy-node.key", 0o644);
    let report = Report::of(&world.seen(), &["keys".to_owned(), "kernel".to_owned()]);
    assert_eq!((report.worst, report.exit_code(), report.host.as_str()), (Level::Error, 2, "edge-1"));
    let text = render::table(&report, Paint::off());
    for words in [
        "ok     kernel  Linux 6.1.0-30-amd64",
        "error keys:",
        "  do:  chmod 600 /etc/csp/proxy-node.key",
        "edge-1: 1 error, 0 warnings",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["worst"], &json["findings"][0]["check"]), (&"error".into(), &"kernel".into()));
}

#[test]
fn text_of_files_and_peers_cannot_control_the_terminal() {
    let world = World::new();
    world.tree.file("/proc/sys/kernel/osrelease", "6.1\x1b[2J\x07");
    let text = render::table(&Report::of(&world.seen(), &["kernel".to_owned()]), Paint::off());
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text:?}");
}

#[test]
fn names_of_checks_differ_and_nothing_panics_where_nothing_is_there() {
    let names: std::collections::BTreeSet<&str> = all().map(|check| check.name).collect();
    assert_eq!(names.len(), all().count());
    let tree = Tree::new();
    let host = Host::new(&tree.0);
    let (daemons, broken) = configuration::read(&host);
    let empty = |server_given| Seen {
        host: Host::new(&tree.0),
        daemons: daemons.clone(),
        broken: broken.clone(),
        identity: None,
        server: String::new(),
        server_given,
        cluster: None,
        no_cluster: "no answer".to_owned(),
    };
    assert_eq!(Report::of(&empty(false), &[]).worst, Level::Info);
    assert_eq!(Report::of(&empty(true), &[]).exit_code(), 2, "a server that was named has to answer");
}
