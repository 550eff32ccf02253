//! Unauthenticated and dishonest peers at a proxy's SAN sockets: refused, counted by reason, and without
//! effect on others.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::process::Command;
use std::time::{Duration, SystemTime};

use csp_cluster::{Cluster, Tier, testing, wait_until};
use csp_transport::token::{self, TokenClaims};
use csp_transport::{
    ClusterKey, DownReason, Endpoint, EndpointConfig, KeySet, LinkEvent, LinkId, MessageKind, PeerIdentity,
    ProcessId, Purpose, RefusalCode,
};
use csp_types::{Instant, NodeId, Role};
use csp_vi::shm::ShmProvider;
use csp_vi::{Event, Provider, ViAddress, ViConfig};

const DEADLINE: Duration = Duration::from_secs(30);

/// Connects to a SEQPACKET Unix socket, sends for each argument that many random bytes, or nothing, and
/// closes it.
const STRANGER: &str = "
import random, socket, sys
rng = random.Random(20261121)
for length in [0, 1, 19, 20, 21, 64, 200] * 20:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    if length:
        s.send(rng.randbytes(length))
    s.close()
";

/// The identity that a dishonest peer claims, and its proof.
struct Lie {
    node: &'static str,
    role: Role,
    purpose: Purpose,
    token: Vec<u8>,
}

struct Liar<'a> {
    cluster: &'a Cluster,
    /// The keys of the application node an-1, which were stolen.
    keys: KeySet,
    began: std::time::Instant,
}

impl<'a> Liar<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let text = std::fs::read_to_string(cluster.scratch().join("an-1.key")).unwrap();
        let keys = KeySet::parse(&text).unwrap();
        Liar { cluster, keys, began: std::time::Instant::now() }
    }

    fn address(&self, purpose: Purpose) -> ViAddress {
        let name = if purpose == Purpose::Channel { "channel" } else { "tunnel" };
        ViAddress::Path(self.cluster.scratch().join(format!("run/pn-1.w0.{name}.sock")))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn claims(&self, role: Role, age_s: u64) -> TokenClaims {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let (node, nonce) = (NodeId::parse(b"an-1").unwrap(), self.began.elapsed().as_nanos() as u64);
        let process =
            if role == Role::Process { ProcessId::parse(b"liar").unwrap() } else { ProcessId::NONE };
        TokenClaims {
            role,
            node,
            process,
            uid: None,
            grant: csp_types::Grant::all(),
            not_before: now - age_s,
            expires: now - age_s + 3600,
            nonce,
        }
    }

    fn token(&self, claims: &TokenClaims) -> Vec<u8> {
        let token = self.keys.issue(claims, None);
        assert!(!token.as_bytes().is_empty(), "it signs for its own processes");
        token.as_bytes().to_vec()
    }

    /// Connects with this identity and returns the result.
    fn connect(&self, lie: &Lie) -> (Endpoint, LinkId, LinkEvent) {
        let claims = self.claims(lie.role, 0);
        let node = lie.node.parse().unwrap();
        let identity = PeerIdentity { process: claims.process, ..PeerIdentity::daemon(lie.role, node, 1, 0) };
        let config = match lie.purpose {
            Purpose::Channel => EndpointConfig::channel(identity, None),
            Purpose::Tunnel | Purpose::Packets => EndpointConfig::tunnel(identity, None),
            Purpose::Message => EndpointConfig::message(identity, None),
        };
        let mut endpoint = Endpoint::new(Box::new(ShmProvider::new().unwrap()), config);
        let address = self.address(lie.purpose);
        let link = endpoint.connect(self.now(), &address, lie.purpose, 0, (0, 1), &lie.token).unwrap();
        let event = self.next_event(&mut endpoint);
        (endpoint, link, event)
    }

    fn next_event(&self, endpoint: &mut Endpoint) -> LinkEvent {
        let mut scratch = vec![0; endpoint.message_len()];
        wait_until("an answer to a HELLO or a message", DEADLINE, || {
            let _ = endpoint.arm();
            endpoint.progress(self.now(), 0);
            while endpoint.receive(self.now(), &mut scratch).is_some() {}
            endpoint.poll_event()
        })
        .unwrap()
    }

    /// Checks that the identity is refused with `code`, and a drop of `reason` is counted.
    fn refused(&self, lie: &Lie, code: RefusalCode, reason: &str) {
        let before = drops(self.cluster, reason);
        let (_, _, event) = self.connect(lie);
        let LinkEvent::Down { reason: DownReason::Refused { code: received, .. }, .. } = &event else {
            panic!("{reason}: {event:?}");
        };
        assert_eq!(*received, code, "{event:?}");
        counted(self.cluster, reason, before);
    }

    /// A channel that came up with a valid token sends `body`: it must be cut off, and a drop of `reason`
    /// counted.
    fn cut_off(&self, body: &[u8], reason: &str) {
        let before = drops(self.cluster, reason);
        let token = self.token(&self.claims(Role::Process, 0));
        let lie = Lie { node: "an-1", role: Role::Process, purpose: Purpose::Channel, token };
        let (mut endpoint, link, event) = self.connect(&lie);
        assert!(matches!(event, LinkEvent::Up { .. }), "a good token: {event:?}");
        endpoint.send(self.now(), link, MessageKind::Channel, 0, &[body]).unwrap();
        let event = self.next_event(&mut endpoint);
        assert!(matches!(event, LinkEvent::Down { .. }), "{reason}: {event:?}");
        counted(self.cluster, reason, before);
    }
}

fn drops(cluster: &Cluster, reason: &str) -> f64 {
    cluster.metric(Tier::ProxyNode, "csp_drops_total", &format!("reason=\"{reason}\"")).unwrap()
}

fn counted(cluster: &Cluster, reason: &str, before: f64) {
    let more = || (drops(cluster, reason) > before).then_some(());
    wait_until(&format!("a drop counted as {reason}"), DEADLINE, more).unwrap();
    cluster.wait_answer("1KiB").map_err(|error| error.context(format!("after {reason}"))).unwrap();
}

/// A connection without a request; then a VI whose first message is no HELLO.
fn strangers(cluster: &Cluster, liar: &Liar<'_>) {
    for purpose in [Purpose::Channel, Purpose::Tunnel] {
        let ViAddress::Path(path) = liar.address(purpose) else { unreachable!() };
        let before = drops(cluster, "san_handshake_malformed");
        let output = Command::new("/usr/bin/python3").args(["-c", STRANGER]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        counted(cluster, "san_handshake_malformed", before);
    }
    let before = drops(cluster, "san_hello_failed");
    let mut provider = ShmProvider::new().unwrap();
    let message_len = csp_types::limits::CHANNEL_MESSAGE_LEN_MAX as u32;
    let config = ViConfig { receive_depth: 8, send_depth: 8, message_len };
    let address = liar.address(Purpose::Channel);
    let (vi, _) = provider.connect_wait(&address, config, b"", 30_000).unwrap();
    provider.post_send(vi, 0, 0, &[&[0xa5; 300]], false).unwrap();
    wait_until("the proxy to hang up", DEADLINE, || {
        let _ = provider.arm(); // without it the provider polls its sockets only at intervals
        provider.poll();
        provider.poll_event().filter(|event| matches!(event, Event::Disconnected { .. }))
    })
    .unwrap();
    counted(cluster, "san_hello_failed", before);
}

fn liars(liar: &Liar<'_>) {
    let good = liar.claims(Role::Process, 0);
    let channel =
        |token: Vec<u8>| Lie { node: "an-1", role: Role::Process, purpose: Purpose::Channel, token };
    let forged = token::issue(&ClusterKey::from_bytes([7; 32]).signing(&good), &good).as_bytes().to_vec();
    liar.refused(&channel(forged), RefusalCode::BadToken, "san_bad_token");
    liar.refused(&channel(b"let me in".to_vec()), RefusalCode::BadToken, "san_bad_token");
    liar.refused(&channel(Vec::new()), RefusalCode::BadToken, "san_bad_token");
    let old = liar.token(&liar.claims(Role::Process, 14_400));
    liar.refused(&channel(old), RefusalCode::ExpiredToken, "san_token_expired");
    // A token that was seen on the SAN, without its secret.
    let seen = liar.token(&good);
    let without = [&seen[..seen.len() - 32], &[7; 32]].concat();
    liar.refused(&channel(without), RefusalCode::BadToken, "san_bad_token");
    // A valid token of a process does not authenticate a network node.
    let token = liar.token(&good);
    let tunnel = Lie { node: "an-1", role: Role::NetworkNode, purpose: Purpose::Tunnel, token };
    liar.refused(&tunnel, RefusalCode::BadToken, "san_identity");
}

/// The keys of an application node sign for no other node: not as one, and not as a network node.
fn impostors(liar: &Liar<'_>) {
    let hex = std::fs::read_to_string(liar.cluster.scratch().join("an-1.key")).unwrap();
    let hex = hex.lines().find(|line| line.contains(" node ")).unwrap().rsplit(' ').next().unwrap();
    let own = ClusterKey::from_hex(hex).unwrap();
    for (node, role, purpose) in [
        ("an-2", Role::Process, Purpose::Channel),
        ("nn-1", Role::NetworkNode, Purpose::Tunnel),
        ("an-1", Role::NetworkNode, Purpose::Tunnel),
    ] {
        let claims = TokenClaims { node: node.parse().unwrap(), ..liar.claims(role, 0) };
        assert!(liar.keys.issue(&claims, None).as_bytes().is_empty(), "{node} {role}");
        // Its key as it is, and as a key from which others are derived.
        let bytes =
            hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16));
        let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().unwrap();
        let key = csp_transport::NodeKey::from_bytes(bytes.try_into().unwrap());
        for token in [token::issue(&key, &claims), token::issue(&own.signing(&claims), &claims)] {
            let lie = Lie { node, role, purpose, token: token.as_bytes().to_vec() };
            liar.refused(&lie, RefusalCode::BadToken, "san_bad_token");
        }
    }
}

#[test]
fn strangers_and_liars_on_the_san_are_refused_and_counted() {
    let Some(mut cluster) = testing::lay_out("san") else { return };
    cluster.serve().unwrap();
    let liar = Liar::new(&cluster);
    strangers(&cluster, &liar);
    liars(&liar);
    impostors(&liar);
    liar.cut_off(&[0xa5; 64], "message_malformed");
    // DATA (type 7) with a length of 4 GiB that the message does not contain.
    liar.cut_off(&[7, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0], "message_malformed");
    for tier in Tier::ALL {
        cluster.wait_ready(tier).unwrap();
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
