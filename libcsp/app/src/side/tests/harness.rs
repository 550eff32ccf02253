//! An application end and a scripted proxy on one memory fabric.

use csp_types::{Duration, FlowLabel, Instant, Role};
use csp_vi::ViAddress;
use csp_vi::memory::{InFlight, MemoryFabric};
use csp_wire::channel::{Message, MessageHeader, MessageKind, Messages, OpenPayload};

use crate::{AppConfig, AppSide, FlowId, ListenerId, ProxyTarget};
use csp_transport::token::{self, TokenClaims};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, PeerIdentity, ProcessId};

/// Both directions' byte window.
pub const WINDOW: u32 = 64 * 1024;
const UNIX: u64 = 1_800_000_000;

/// A channel message: kind, label or id, argument, payload.
pub type Sent = (MessageKind, u32, u32, Vec<u8>);

pub struct Proxy {
    endpoint: Endpoint,
    /// The links that are up, in the order in which they came up.
    pub links: Vec<LinkId>,
    /// The link on which messages are sent.
    pub link: Option<LinkId>,
    /// The link on which the last message arrived.
    pub last_received_on: Option<LinkId>,
    now: Instant,
    sent: Vec<Sent>,
    pub last_flags: u8,
}

pub struct World {
    pub fabric: MemoryFabric,
    pub proxy: Proxy,
    pub app: AppSide,
    pub now: Instant,
}

fn key() -> ClusterKey {
    ClusterKey::from_bytes([3; 32])
}

fn small(config: EndpointConfig) -> EndpointConfig {
    EndpointConfig { receive_depth: 16, send_depth: 16, ..config }
}

impl Proxy {
    fn new(fabric: &MemoryFabric) -> Self {
        Self::named(fabric, "pn-1")
    }

    /// A proxy of this name, which listens at `NAME.w0`.
    pub fn named(fabric: &MemoryFabric, name: &str) -> Self {
        let identity = PeerIdentity::daemon(Role::ProxyNode, name.parse().unwrap(), 1, 0);
        let provider = Box::new(fabric.provider(name));
        let mut endpoint =
            Endpoint::new(provider, small(EndpointConfig::channel(identity, Some(key().into()))));
        endpoint.listen(&ViAddress::Name(format!("{name}.w0"))).unwrap();
        let (links, link, last_received_on) = (Vec::new(), None, None);
        Proxy { endpoint, links, link, last_received_on, now: fabric.now(), sent: Vec::new(), last_flags: 0 }
    }

    /// Kills the proxy and starts it anew.
    pub fn restart(&mut self, fabric: &MemoryFabric) {
        fabric.kill_node("pn-1", InFlight::Delivered);
        *self = Proxy::new(fabric);
    }

    pub fn turn(&mut self, now: Instant) {
        self.now = now;
        self.endpoint.progress(now, UNIX);
        let mut body = vec![0; self.endpoint.message_len()];
        loop {
            match self.endpoint.poll_event() {
                Some(LinkEvent::Up { link, .. }) => {
                    self.links.push(link);
                    self.link = Some(link);
                }
                Some(LinkEvent::Down { link, .. }) => {
                    self.links.retain(|known| *known != link);
                    self.link = self.links.last().copied();
                }
                None => {}
            }
            let Some(received) = self.endpoint.receive(now, &mut body) else { break };
            self.last_received_on = Some(received.link);
            for message in Messages::new(&body[..received.len]) {
                let Message { header, payload } = message.unwrap();
                self.last_flags = header.flags;
                self.sent.push((header.kind, header.id, header.argument, payload.to_vec()));
            }
        }
    }

    /// Breaks a link.
    pub fn drop_link(&mut self, link: LinkId) {
        self.endpoint.fail(self.now, link);
    }

    /// The messages that the application sent since the last call.
    pub fn take(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    pub fn send(&mut self, kind: MessageKind, id: u32, argument: u32, payload: &[u8]) {
        let header = MessageHeader::new(kind, id, argument, payload.len() as u32);
        self.send_header(header, payload);
    }

    pub fn send_header(&mut self, header: MessageHeader, payload: &[u8]) {
        let Some(link) = self.link else { return };
        let header = header.emit();
        let padding = vec![0; payload.len().next_multiple_of(8) - payload.len()];
        let gather = [&header[..], payload, &padding];
        self.endpoint.send(self.now, link, csp_transport::MessageKind::Channel, 0, &gather).unwrap();
    }

    pub fn data(&mut self, label: FlowLabel, bytes: &[u8]) {
        self.send(MessageKind::Data, label.to_wire(), 0, bytes);
    }

    pub fn open(&mut self, _now: &Instant, label: FlowLabel, listener: ListenerId) {
        self.send(MessageKind::Open, label.to_wire(), listener.to_wire(), &open_payload());
    }
}

pub fn open_payload() -> [u8; OpenPayload::LEN] {
    let local = "10.76.0.100:80".parse().unwrap();
    OpenPayload { local, remote: "10.76.0.1:40000".parse().unwrap(), window: WINDOW }.emit()
}

impl World {
    /// A process with one proxy, whose link is up.
    pub fn new() -> Self {
        Self::with_pool(1)
    }

    /// The same with a pool of this many links.
    pub fn with_pool(pool: u8) -> Self {
        Self::with(AppConfig { receive_window: WINDOW, pool, ..AppConfig::default() })
    }

    /// The same with a table for this many flows.
    pub fn with_flows(flows_max: usize) -> Self {
        Self::with(AppConfig { receive_window: WINDOW, pool: 1, flows_max, ..AppConfig::default() })
    }

    fn with(config: AppConfig) -> Self {
        let fabric = MemoryFabric::new();
        let process = ProcessId::parse(b"test.1").unwrap();
        let node = "an-1".parse().unwrap();
        let identity = PeerIdentity::process(node, process, 1);
        let endpoint =
            Endpoint::new(Box::new(fabric.provider("app")), small(EndpointConfig::channel(identity, None)));
        let claims = TokenClaims {
            role: Role::Process,
            node,
            process,
            uid: None,
            grant: csp_types::Grant::all(),
            not_before: UNIX,
            expires: UNIX + 3600,
            nonce: 1,
        };
        let mut app = AppSide::new(endpoint, config, token::issue(&key().signing(&claims), &claims));
        let address = ViAddress::Name("pn-1.w0".into());
        app.set_proxies(&[ProxyTarget {
            node: "pn-1".parse().unwrap(),
            worker: 0,
            address,
            draining: false,
        }]);
        let proxy = Proxy::new(&fabric);
        let mut world = World { proxy, app, now: fabric.now(), fabric };
        world.run();
        world
    }

    pub fn fabric_now(&self) -> Instant {
        self.fabric.now()
    }

    /// A process that waits for connections, `backlog` at once.
    pub fn listening(&mut self, backlog: u32) -> ListenerId {
        let listener = self.app.listen("0.0.0.0:80".parse().unwrap(), backlog).unwrap();
        self.app.set_interest(listener, true).unwrap();
        self.run();
        self.proxy.take();
        listener
    }

    /// A process with one accepted connection of label 1.
    pub fn with_flow() -> (Self, FlowId) {
        let mut world = World::new();
        let listener = world.listening(4);
        world.proxy.open(&world.now, FlowLabel::new(1, 0), listener);
        let flow = world.accept(listener);
        world.proxy.take();
        (world, flow)
    }

    pub fn accept(&mut self, listener: ListenerId) -> FlowId {
        self.run();
        let accepted = self.app.accept(listener).unwrap();
        self.run();
        accepted.flow
    }

    /// Lets everything in transit arrive.
    pub fn run(&mut self) {
        self.run_for(5);
    }

    /// Lets `ms` milliseconds pass.
    pub fn run_for(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += Duration::from_millis(1);
            self.fabric.advance(self.now);
            self.app.progress(self.now, UNIX);
            self.proxy.turn(self.now);
        }
    }
}
