//! `csp-context packets` itself: a network node's link over shared memory, instances, a packet and its
//! answer, the end by SIGTERM; wrong keys and command lines.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs the real program; a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant as Clock};

use csp_transport::{
    ClusterKey, DownReason, Endpoint, EndpointConfig, LinkEvent, LinkId, PacketBatch, PeerIdentity,
    ProcessId, Purpose, TokenClaims, token,
};
use csp_types::{Grant, Instant, Role};
use csp_vi::{ProviderKind, ViAddress};
use csp_wire::packets::{HEADER_LEN, Head, Kind, MatchedRule};

const DEADLINE: Duration = Duration::from_secs(30);

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("csp-packets-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let key = folder.join("cluster.key");
    let cluster = csp_transport::KeySet::from(ClusterKey::from_bytes([7; 32]));
    let own = cluster.derive(Role::AppNode, "an-1".parse().unwrap(), &["nn-1".parse().unwrap()]);
    fs::write(&key, own.to_text()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

fn start(folder: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csp-context"));
    command.args(["packets", "--node", "an-1", "--cluster-key-file"]).arg(folder.join("cluster.key"));
    command.arg("--shm").arg(folder.join("h0.sock")).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A network node's worker.
struct Node {
    endpoint: Endpoint,
    begin: Clock,
    link: Option<LinkId>,
    down: Option<DownReason>,
    got: Vec<(Head, Vec<u8>)>,
}

impl Node {
    fn now(&self) -> Instant {
        Instant::from_nanos(1 + self.begin.elapsed().as_nanos() as u64)
    }

    fn connect(folder: &Path, key: u8) -> Self {
        let node = "nn-1".parse().unwrap();
        let identity = PeerIdentity::daemon(Role::NetworkNode, node, 1, 0);
        let endpoint =
            Endpoint::new(ProviderKind::Shm.open().unwrap(), EndpointConfig::tunnel(identity, None));
        let mut own = Node { endpoint, begin: Clock::now(), link: None, down: None, got: Vec::new() };
        let not_before = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let claims = TokenClaims {
            role: Role::NetworkNode,
            node,
            process: ProcessId::NONE,
            uid: None,
            grant: Grant::NONE,
            not_before,
            expires: not_before + 100,
            nonce: 1,
        };
        let token = token::issue(
            &ClusterKey::from_bytes([key; 32]).signing(&claims).link("an-1".parse().unwrap()),
            &claims,
        );
        let address = ViAddress::Path(folder.join("h0.sock"));
        let end = Clock::now() + DEADLINE;
        while own.link.is_none() && !matches!(own.down, Some(DownReason::Refused { .. })) {
            own.down = None;
            let now = own.now();
            if own.endpoint.connect(now, &address, Purpose::Packets, 0, (0, 1), token.as_bytes()).is_ok() {
                own.wait(|own| own.link.is_some() || own.down.is_some());
            }
            assert!(Clock::now() < end, "{:?}", own.down);
            std::thread::sleep(Duration::from_millis(5));
        }
        own
    }

    fn wait(&mut self, done: impl Fn(&Self) -> bool) {
        let (end, mut scratch) = (Clock::now() + DEADLINE, vec![0; self.endpoint.message_len()]);
        while !done(self) {
            let now = self.now();
            let _ = self.endpoint.arm();
            self.endpoint.progress(now, 0);
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    LinkEvent::Up { link, .. } => self.link = Some(link),
                    LinkEvent::Down { reason, .. } => (self.link, self.down) = (None, Some(reason)),
                }
            }
            while let Some(received) = self.endpoint.receive(now, &mut scratch) {
                let mut rest = &scratch[..received.len];
                while !rest.is_empty() {
                    let (head, len, total) = Head::parse(rest).unwrap();
                    self.got.push((head, rest[HEADER_LEN..HEADER_LEN + len].to_vec()));
                    rest = &rest[total..];
                }
            }
            assert!(Clock::now() < end, "{:?} {:?}", self.down, self.got);
            std::thread::yield_now();
        }
    }

    fn say(&mut self, head: &Head, payload: &[u8]) {
        let now = self.now();
        let mut batch = PacketBatch::new(&self.endpoint, self.link.unwrap(), 1);
        batch.push(now, &mut self.endpoint, head, payload).unwrap();
        batch.flush(now, &mut self.endpoint).unwrap();
    }

    fn answer(&mut self, kind: Kind) -> (Head, Vec<u8>) {
        self.wait(|own| own.got.iter().any(|(head, _)| head.kind == kind));
        self.got.iter().find(|(head, _)| head.kind == kind).unwrap().clone()
    }
}

#[test]
fn a_network_node_gets_its_packets_back_until_the_host_ends() {
    let folder = scratch("serves");
    let mut host = start(&folder);
    let mut node = Node::connect(&folder, 7);
    node.say(&Head::new(Kind::Configure, 1), b"instance 5 count counter\nset field source\n");
    assert_eq!(node.answer(Kind::Configured).1, b"");
    // What is no IP packet is counted as other, and passes.
    let rule = MatchedRule { slot: 3, generation: 4 };
    let packet = Head { instance: 5, rule, ..Head::new(Kind::Packet, 9) };
    node.say(&packet, &[7; 60]);
    let (head, frame) = node.answer(Kind::Pass);
    assert_eq!((head.sequence, head.rule, head.hops, frame), (9, rule, 1, vec![7; 60]));
    node.say(&Head { instance: 6, ..packet }, &[7; 60]);
    assert_eq!(node.answer(Kind::Absent).0.instance, 6);
    node.say(&Head { instance: 5, ..Head::new(Kind::Call, 2) }, b"read\n");
    assert!(node.answer(Kind::Answer).1.starts_with(b"rows\n"));
    assert!(Command::new("kill").arg(host.id().to_string()).status().unwrap().success());
    node.wait(|own| own.down.is_some());
    assert_eq!(node.down, Some(DownReason::Closed), "the network node falls back at once");
    assert!(host.wait().unwrap().success());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn another_clusters_node_and_wrong_command_lines_are_refused() {
    let folder = scratch("refuses");
    let mut host = start(&folder);
    let stranger = Node::connect(&folder, 8);
    assert!(matches!(stranger.down, Some(DownReason::Refused { .. })), "{:?}", stranger.down);
    host.kill().unwrap();
    host.wait().unwrap();
    let code = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_csp-context"));
        command.arg("packets").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().code()
    };
    let key = folder.join("cluster.key").to_string_lossy().into_owned();
    assert_eq!(code(&["--node", "an-1", "--cluster-key-file", &key]), Some(64), "no address");
    assert_eq!(
        code(&["--node", "an-1", "--cluster-key-file", "/none", "--shm", "/tmp/x"]),
        Some(78),
        "no key"
    );
    let nowhere = folder.join("none/h0.sock").to_string_lossy().into_owned();
    assert_eq!(code(&["--node", "an-1", "--cluster-key-file", &key, "--shm", &nowhere]), Some(69));
    fs::remove_dir_all(folder).unwrap();
}
