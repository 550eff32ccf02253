//! The harness: a TCP client without loss, a server process, and the core between them.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_messages::HashKey;
use csp_proxy_core::{
    Blocked, ChannelId, CoreConfig, HairpinConfig, Lane, PoolServer, Process, ProxyCore, ProxyOutput,
    ServiceSpec, ServiceTcp, Verdict, Way,
};
use csp_services::{ChannelSnapshot, MessageBroker, MessagesConfig, MessagesPolicy, StreamSpec};
use csp_support::packets;
use csp_tcp::StackConfig;
use csp_types::{FlowLabel, FourTuple, Grant, Instant};
use csp_wire::channel::{ListenPayload, Message, MessageHeader, MessageKind, OpenPayload};
use csp_wire::tcp::{Flags as TcpFlags, Options, Repr, Segment};
use csp_wire::tunnel::{Flags, Record};
use csp_zmtp::Prefix;

pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const PORT: u16 = 9000;
pub(crate) const SERVER: u32 = 8001;
pub(crate) const MESSAGE_LEN_MAX: usize = 300_000;

/// Records what the core sends: segments to clients, and messages to the server's process.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) segments: VecDeque<(u16, TcpFlags, u32, u32, u16, Vec<u8>)>,
    pub(crate) messages: VecDeque<(MessageHeader, Vec<u8>)>,
    /// DATA messages that the process's lane still accepts.
    pub(crate) descriptors: usize,
}

impl ProxyOutput for Out {
    fn tunnel_ready(&self, _: u32) -> bool {
        true
    }
    fn tunnel(&mut self, _: Instant, _: u32, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Blocked> {
        let bytes = parts.concat();
        let skip = if record.flags.contains(Flags::COMPACTED) { 0 } else { 20 };
        if let Some(s) = bytes.get(skip..).and_then(|tcp| Segment::parse(tcp).ok()) {
            let to = s.destination_port();
            self.segments.push_back((to, s.flags(), s.seq(), s.ack(), s.window(), s.payload().to_vec()));
        }
        Ok(())
    }
    fn network_node(&self, _: &FourTuple) -> Option<Way> {
        Some(Way { via: 1, is_far: false })
    }
    fn channel(
        &mut self,
        _: Instant,
        _: Lane,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), Blocked> {
        if header.kind == MessageKind::Data {
            self.descriptors = self.descriptors.checked_sub(1).ok_or(Blocked::NoCredit)?;
        }
        self.messages.push_back((header, parts.concat()));
        Ok(())
    }
    fn lane_ready(&self, _: Lane) -> bool {
        self.descriptors > 0
    }
    fn lane(&self, channel: ChannelId, _: u32) -> Option<Lane> {
        Some(Lane(channel.0))
    }
}

/// A client of the kernel, without loss.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// The end of the proxy's window.
    pub(crate) most: u32,
    pub(crate) received: Vec<u8>,
    /// It acknowledges nothing at present.
    pub(crate) stalled: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
}

/// The server's end of the connection.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) label: Option<FlowLabel>,
    pub(crate) received: Vec<u8>,
    /// Bytes that it may send.
    pub(crate) window: usize,
    pub(crate) finished: bool,
    pub(crate) reset: bool,
}

pub(crate) struct World {
    pub(crate) core: ProxyCore<MessageBroker>,
    pub(crate) out: Out,
    pub(crate) now: Instant,
    pub(crate) client: Client,
    pub(crate) server: Server,
}

/// A message with the Simple Open Framing Header.
pub(crate) fn sofh(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 6).to_be_bytes()[..], &[0xeb, 0x50], body].concat()
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Messages of together some 200 KiB.
    pub(crate) fn messages(&mut self) -> (usize, Vec<u8>) {
        let (mut all, mut count) = (Vec::new(), 0);
        while all.len() < 200_000 {
            let most = [2, 600, 5_000, 120_000][self.below(4)];
            let (len, fill) = (self.below(most), self.below(256));
            all.extend(sofh(&vec![fill as u8; len]));
            count += 1;
        }
        (count, all)
    }
}

impl World {
    /// A world with a client that is connected; the server has accepted it with room for so many bytes.
    pub(crate) fn new(room: u32) -> Self {
        let mut world = World::without_client();
        world.connect(1000);
        world.accept(room);
        world
    }

    pub(crate) fn without_client() -> Self {
        let tcp = StackConfig {
            connections: 64,
            blocks: 4096,
            pacing: false,
            receive_window_max: 1 << 15,
            receive_window_initial: 1 << 14,
            send_buffer_max: 1 << 16,
            ..StackConfig::default()
        };
        let hairpin = HairpinConfig { first_label_index: 10_000, pairs: 2 };
        let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 16, hairpin, upstreams: 0 };
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let ports = vec![(PORT, Prefix::sofh(MESSAGE_LEN_MAX).unwrap())];
        let streams = vec![StreamSpec { number: 3, name: "orders".to_owned(), ports }];
        let policy = MessagesPolicy { streams, ..MessagesPolicy::default() };
        broker.apply(Instant::from_nanos(1_000_000_000), &policy).unwrap();
        let mut world = World {
            core: ProxyCore::with_local_services(config, broker),
            out: Out { descriptors: usize::MAX, ..Out::default() },
            now: Instant::from_nanos(1_000_000_000),
            client: Client::default(),
            server: Server::default(),
        };
        let node = "an-1".parse().unwrap();
        let spec = ServiceSpec {
            pool: vec![PoolServer::of_node(node, SERVER as u16)],
            between: Some(3),
            tcp: ServiceTcp { pacing: Some(false), ..ServiceTcp::default() },
            ..ServiceSpec::new("orders".to_owned(), (VIP, PORT).into())
        };
        world.core.set_policy(world.now, vec![spec], Vec::new(), &mut world.out);
        let process = Process { node, name: "p".to_owned(), uid: None, grant: Grant::all() };
        assert!(world.core.channel_up(ChannelId(SERVER), process));
        let listen = ListenPayload { address: SocketAddr::from(([0, 0, 0, 0], SERVER as u16)) }.emit();
        world.send(MessageHeader::new(MessageKind::Listen, 7, 64, listen.len() as u32), &listen);
        world.send(MessageHeader::new(MessageKind::AcceptCredit, 7, 64, 0), &[]);
        world
    }

    pub(crate) fn connect(&mut self, port: u16) {
        self.client = Client { port, seq: 100, ..Client::default() };
        self.segment(TcpFlags::SYN, &[]);
        self.client.seq = 101;
        self.segment(TcpFlags::ACK, &[]);
    }

    pub(crate) fn accept(&mut self, room: u32) {
        let label = self.server.label.expect("it was offered");
        self.send(MessageHeader::of_flow(MessageKind::Accepted, label, room, 0), &[]);
        self.settle();
    }

    pub(crate) fn send(&mut self, header: MessageHeader, payload: &[u8]) {
        let from = (ChannelId(SERVER), Lane(SERVER));
        let verdict = self.core.on_message(self.now, from, &Message { header, payload }, None, &mut self.out);
        assert_eq!(verdict, Verdict::Fine);
        self.core.drive(self.now, &mut self.out);
        self.settle();
    }

    pub(crate) fn segment(&mut self, flags: TcpFlags, payload: &[u8]) {
        let (source_port, seq, ack) = (self.client.port, self.client.seq, self.client.ack);
        let options = Options::default();
        let tcp = Repr { source_port, destination_port: PORT, seq, ack, flags, window: 60_000, options };
        let packet = packets::tcp_packet(CLIENT, VIP, &tcp, payload);
        let record = packets::record(Flags::NONE, &packet);
        self.core.on_record(self.now, 1, &record, None, &mut self.out);
        self.core.drive(self.now, &mut self.out);
        self.settle();
    }

    /// Lets client and process take what was sent to them.
    pub(crate) fn settle(&mut self) {
        while let Some((header, payload)) = self.out.messages.pop_front() {
            let server = &mut self.server;
            match header.kind {
                MessageKind::Open => {
                    server.label = header.label();
                    server.window = OpenPayload::parse(&payload).unwrap().window as usize;
                }
                MessageKind::Data => server.received.extend(payload),
                MessageKind::Credit => server.window += header.argument as usize,
                MessageKind::Shutdown | MessageKind::Close => server.finished = true,
                MessageKind::Reset => server.reset = true,
                _ => {}
            }
        }
        let mut acknowledges = false;
        while let Some((to, flags, seq, ack, window, payload)) = self.out.segments.pop_front() {
            let client = &mut self.client;
            if to != client.port {
                continue;
            }
            client.rst |= flags.rst();
            if flags.rst() {
                continue;
            }
            client.most = ack.wrapping_add(u32::from(window));
            if flags.syn() {
                client.ack = seq.wrapping_add(1);
                continue;
            }
            let known = client.ack.wrapping_sub(seq) as usize; // sent again
            if let Some(fresh) = payload.get(known..) {
                client.received.extend_from_slice(fresh);
                client.ack = client.ack.wrapping_add(fresh.len() as u32);
                if flags.fin() && !client.fin {
                    client.fin = true;
                    client.ack = client.ack.wrapping_add(1);
                }
            }
            acknowledges |= !payload.is_empty() || flags.fin();
        }
        if acknowledges && !self.client.stalled {
            self.segment(TcpFlags::ACK, &[]);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.core.next_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.core.on_timeout(self.now, &mut self.out);
            self.core.drive(self.now, &mut self.out);
            self.settle();
        }
        self.now = until;
    }

    /// The client sends as much of `bytes` as one segment and the proxy's window hold; returns how much.
    pub(crate) fn client_sends(&mut self, bytes: &[u8]) -> usize {
        let room = self.client.most.wrapping_sub(self.client.seq) as i32;
        let len = bytes.len().min(1_400).min(room.max(0) as usize);
        if len > 0 {
            self.segment(TcpFlags::ACK, &bytes[..len]);
            self.client.seq = self.client.seq.wrapping_add(len as u32);
        }
        len
    }

    pub(crate) fn client_sends_all(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = self.client_sends(rest);
            assert!(len > 0, "the window is closed");
            rest = &rest[len..];
        }
    }

    pub(crate) fn client_finishes(&mut self) {
        self.segment(TcpFlags::ACK | TcpFlags::FIN, &[]);
        self.client.seq = self.client.seq.wrapping_add(1);
    }

    /// The server sends as much of `bytes` as its window holds; returns how much.
    pub(crate) fn server_sends(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.server.window);
        if len > 0 {
            self.server.window -= len;
            let header = self.of_flow(MessageKind::Data, len as u32);
            self.send(header, &bytes[..len]);
        }
        len
    }

    pub(crate) fn of_flow(&self, kind: MessageKind, payload_len: u32) -> MessageHeader {
        MessageHeader::of_flow(kind, self.server.label.unwrap(), 0, payload_len)
    }

    pub(crate) fn server_says(&mut self, kind: MessageKind) {
        let header = self.of_flow(kind, 0);
        self.send(header, &[]);
    }

    /// The server has room for so many bytes more.
    pub(crate) fn server_reads(&mut self, len: u32) {
        let header = MessageHeader { argument: len, ..self.of_flow(MessageKind::Credit, 0) };
        self.send(header, &[]);
    }

    pub(crate) fn channel(&self) -> ChannelSnapshot {
        self.core.local().snapshots().remove(0)
    }

    pub(crate) fn assert_nothing_is_left(&self) {
        assert_eq!((self.channel().senders, self.core.budget_reserved()), (0, 0));
    }
}
