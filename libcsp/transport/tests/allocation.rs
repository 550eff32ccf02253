//! The data path does not allocate after start-up: allocations are counted over the shm provider.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use csp_support::allocation;
use csp_transport::token::{self, TokenClaims};
use csp_transport::{
    Channel, ChannelConfig, ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, PeerIdentity, ProcessId,
    Purpose,
};
use csp_types::{Duration, FlowLabel, Instant, Role};
use csp_vi::ViAddress;
use csp_vi::shm::ShmProvider;
use csp_wire::channel::{MessageHeader, MessageKind};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// One side with its channel over one link.
struct Side {
    endpoint: Endpoint,
    channel: Channel,
    link: LinkId,
    scratch: Vec<u8>,
    received: u64,
}

impl Side {
    fn new(mut endpoint: Endpoint) -> Side {
        let Some(LinkEvent::Up { link, .. }) = endpoint.poll_event() else { panic!("not up") };
        let mut channel = Channel::new(&endpoint, ChannelConfig::default());
        assert!(channel.add_link(link));
        let scratch = vec![0; endpoint.message_len()];
        Side { endpoint, channel, link, scratch, received: 0 }
    }

    /// One turn: sends a small control message and long DATA as far as credit allows, and receives all that
    /// has arrived.
    fn turn(&mut self, now: Instant, payload: &[u8]) {
        self.endpoint.progress(now, 1_000);
        while let Some(received) = self.endpoint.receive(now, &mut self.scratch) {
            self.received += received.len as u64;
        }
        let label = FlowLabel::new(1, 0);
        let credit = MessageHeader::of_flow(MessageKind::Credit, label, 1, 0);
        self.channel.send(now, &mut self.endpoint, self.link, &credit, &[]).unwrap();
        let data = MessageHeader::of_flow(MessageKind::Data, label, 0, 0);
        while self.channel.send(now, &mut self.endpoint, self.link, &data, &[payload]).is_ok() {}
        self.channel.flush(now, &mut self.endpoint);
    }
}

fn connected() -> (Side, Side) {
    let key = ClusterKey::from_bytes([7; 32]);
    let node = |name: &str| name.parse().unwrap();
    let process = ProcessId::parse(b"p").unwrap();
    let path = std::env::temp_dir().join(format!("csp-transport-allocation-{}.sock", std::process::id()));
    let address = ViAddress::Path(path);
    let provider = || Box::new(ShmProvider::new().unwrap());
    let proxy = PeerIdentity::daemon(Role::ProxyNode, node("pn-1"), 1, 0);
    let mut proxy = Endpoint::new(provider(), EndpointConfig::channel(proxy, Some(key.clone().into())));
    proxy.listen(&address).unwrap();
    let app = PeerIdentity::process(node("an-1"), process, 1);
    let mut app = Endpoint::new(provider(), EndpointConfig::channel(app, None));
    let claims = TokenClaims {
        role: Role::Process,
        node: node("an-1"),
        process,
        uid: None,
        grant: csp_types::Grant::all(),
        not_before: 0,
        expires: 2_000,
        nonce: 1,
    };
    let token = token::issue(&key.signing(&claims), &claims);
    let link = app.connect(Instant::ZERO, &address, Purpose::Channel, 0, (0, 1), token.as_bytes()).unwrap();
    while app.link(link).unwrap().up_since.is_none() {
        for side in [&mut app, &mut proxy] {
            side.progress(Instant::ZERO, 1_000);
            side.arm().unwrap();
        }
    }
    (Side::new(app), Side::new(proxy))
}

#[test]
fn messages_of_all_sizes_and_heartbeats_do_not_allocate() {
    let (mut app, mut proxy) = connected();
    let payload = vec![5; 8_000];
    let mut now = Instant::ZERO;
    let mut run = |turns: u64| {
        for turn in 0..turns {
            now += Duration::from_millis(1);
            let payload = &payload[..1 + (turn as usize * 97) % 8_000];
            app.turn(now, payload);
            proxy.turn(now, payload);
        }
        (app.received, allocation::count())
    };
    let (received_before, before) = run(100);
    let (received_after, after) = run(2_000);
    assert!(received_after - received_before > 10_000_000, "{received_after}");
    assert_eq!(after - before, 0);
}
