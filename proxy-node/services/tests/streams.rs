//! A channel with a pool: a TCP client's messages pass to a server process and its answers come back, whatever the cut of both streams
//! and however slow either end; and what ends both.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_messages::HashKey;
use csp_proxy_core::{
    BacklogLimits, Blocked, ChannelId, CoreConfig, HairpinConfig, Lane, PoolServer, Process, ProxyCore,
    ProxyOutput, ServiceSpec, ServiceTcp, Verdict,
};
use csp_services::{ChannelSnapshot, MessageBroker, MessagesConfig, StreamSpec};
use csp_tcp::StackConfig;
use csp_types::{FlowLabel, Grant, Instant};
use csp_wire::channel::{CLOSE_UNREAD, ListenPayload, Message, MessageHeader, MessageKind, OpenPayload};
use csp_wire::tcp::{Flags as TcpFlags, Options, Repr, Segment};
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{Ecn, ipv4};
use csp_zmtp::Prefix;

const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 9000;
const SERVER: u32 = 8001;
const MESSAGE_LEN_MAX: usize = 300_000;

/// Records what the core sends: segments to clients, and messages to the server's process.
#[derive(Default)]
struct Out {
    segments: VecDeque<(u16, TcpFlags, u32, u32, u16, Vec<u8>)>,
    messages: VecDeque<(MessageHeader, Vec<u8>)>,
    /// DATA messages that the process's lane still accepts.
    descriptors: usize,
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
    fn network_node(&self, _: IpAddr) -> Option<u32> {
        Some(1)
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
struct Client {
    port: u16,
    seq: u32,
    ack: u32,
    /// The end of the proxy's window.
    most: u32,
    received: Vec<u8>,
    /// It acknowledges nothing at present.
    stalled: bool,
    fin: bool,
    rst: bool,
}

/// The server's end of the connection.
#[derive(Default)]
struct Server {
    label: Option<FlowLabel>,
    received: Vec<u8>,
    /// Bytes that it may send.
    window: usize,
    finished: bool,
    reset: bool,
}

struct World {
    core: ProxyCore<MessageBroker>,
    out: Out,
    now: Instant,
    client: Client,
    server: Server,
}

/// A message with the Simple Open Framing Header.
fn sofh(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 6).to_be_bytes()[..], &[0xeb, 0x50], body].concat()
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Messages of together some 200 KiB.
    fn messages(&mut self) -> (usize, Vec<u8>) {
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
    fn new(room: u32) -> Self {
        let mut world = World::without_client();
        world.connect(1000);
        world.accept(room);
        world
    }

    fn without_client() -> Self {
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
        let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 16, hairpin };
        let mut broker = MessageBroker::new(MessagesConfig::new(HashKey([1, 2])));
        let ports = vec![(PORT, Prefix::sofh(MESSAGE_LEN_MAX).unwrap())];
        broker.set_streams(vec![StreamSpec { number: 3, name: "orders".to_owned(), ports }]);
        let mut world = World {
            core: ProxyCore::with_local_services(config, broker),
            out: Out { descriptors: usize::MAX, ..Out::default() },
            now: Instant::from_nanos(1_000_000_000),
            client: Client::default(),
            server: Server::default(),
        };
        let node = "an-1".parse().unwrap();
        let spec = ServiceSpec {
            name: "orders".to_owned(),
            address: (VIP, PORT).into(),
            pool: vec![PoolServer { node, port: SERVER as u16 }],
            local: None,
            between: Some(3),
            tcp: ServiceTcp { pacing: Some(false), ..ServiceTcp::default() },
            backlog: BacklogLimits::default(),
        };
        world.core.set_policy(world.now, vec![spec], Vec::new(), &mut world.out);
        let process = Process { node, name: "p".to_owned(), uid: None, grant: Grant::all() };
        assert!(world.core.channel_up(ChannelId(SERVER), process));
        let listen = ListenPayload { address: SocketAddr::from(([0, 0, 0, 0], SERVER as u16)) }.emit();
        world.send(MessageHeader::new(MessageKind::Listen, 7, 64, listen.len() as u32), &listen);
        world.send(MessageHeader::new(MessageKind::AcceptCredit, 7, 64, 0), &[]);
        world
    }

    fn connect(&mut self, port: u16) {
        self.client = Client { port, seq: 100, ..Client::default() };
        self.segment(TcpFlags::SYN, &[]);
        self.client.seq = 101;
        self.segment(TcpFlags::ACK, &[]);
    }

    fn accept(&mut self, room: u32) {
        let label = self.server.label.expect("it was offered");
        self.send(MessageHeader::of_flow(MessageKind::Accepted, label, room, 0), &[]);
        self.settle();
    }

    fn send(&mut self, header: MessageHeader, payload: &[u8]) {
        let from = (ChannelId(SERVER), Lane(SERVER));
        let verdict = self.core.on_message(self.now, from, &Message { header, payload }, None, &mut self.out);
        assert_eq!(verdict, Verdict::Fine);
        self.core.drive(self.now, &mut self.out);
        self.settle();
    }

    fn segment(&mut self, flags: TcpFlags, payload: &[u8]) {
        let (source_port, seq, ack) = (self.client.port, self.client.seq, self.client.ack);
        let options = Options::default();
        let tcp = Repr { source_port, destination_port: PORT, seq, ack, flags, window: 60_000, options };
        let mut packet = vec![0; 20 + tcp.header_len()];
        let ip = ipv4::Repr {
            source: CLIENT,
            destination: VIP,
            protocol: 6,
            ttl: 64,
            dscp: 0,
            ecn: Ecn::NotEct,
            identification: 0,
            dont_fragment: true,
            payload_len: (tcp.header_len() + payload.len()) as u16,
        };
        ip.emit(&mut packet).unwrap();
        tcp.emit(&mut packet[20..]).unwrap();
        packet.extend_from_slice(payload);
        let record = Record {
            kind: RecordKind::Segment,
            label: FlowLabel::NONE,
            worker: 0,
            flags: Flags::NONE,
            ecn: Ecn::NotEct,
            age: Age::ZERO,
            coalesced: 0,
            segment_size: 0,
            payload: &packet,
        };
        self.core.on_record(self.now, 1, &record, None, &mut self.out);
        self.core.drive(self.now, &mut self.out);
        self.settle();
    }

    /// Lets client and process take what was sent to them.
    fn settle(&mut self) {
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

    fn pass(&mut self, time: Duration) {
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
    fn client_sends(&mut self, bytes: &[u8]) -> usize {
        let room = self.client.most.wrapping_sub(self.client.seq) as i32;
        let len = bytes.len().min(1_400).min(room.max(0) as usize);
        if len > 0 {
            self.segment(TcpFlags::ACK, &bytes[..len]);
            self.client.seq = self.client.seq.wrapping_add(len as u32);
        }
        len
    }

    fn client_sends_all(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = self.client_sends(rest);
            assert!(len > 0, "the window is closed");
            rest = &rest[len..];
        }
    }

    fn client_finishes(&mut self) {
        self.segment(TcpFlags::ACK | TcpFlags::FIN, &[]);
        self.client.seq = self.client.seq.wrapping_add(1);
    }

    /// The server sends as much of `bytes` as its window holds; returns how much.
    fn server_sends(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.server.window);
        if len > 0 {
            self.server.window -= len;
            let header = self.of_flow(MessageKind::Data, len as u32);
            self.send(header, &bytes[..len]);
        }
        len
    }

    fn of_flow(&self, kind: MessageKind, payload_len: u32) -> MessageHeader {
        MessageHeader::of_flow(kind, self.server.label.unwrap(), 0, payload_len)
    }

    fn server_says(&mut self, kind: MessageKind) {
        let header = self.of_flow(kind, 0);
        self.send(header, &[]);
    }

    /// The server has room for so many bytes more.
    fn server_reads(&mut self, len: u32) {
        let header = MessageHeader { argument: len, ..self.of_flow(MessageKind::Credit, 0) };
        self.send(header, &[]);
    }

    fn channel(&self) -> ChannelSnapshot {
        self.core.local().snapshots().remove(0)
    }

    fn assert_nothing_is_left(&self) {
        assert_eq!((self.channel().senders, self.core.budget_reserved()), (0, 0));
    }
}

/// Both directions at once, cut and delayed at random; returns the number of times that a direction was blocked.
fn exchange(seed: u64) -> usize {
    let mut random = Random(seed);
    let (mut w, mut blocked) = (World::new(5_000), 0);
    let ((there, to_server), (back, to_client)) = (random.messages(), random.messages());
    let (mut sent, mut answered, mut read) = (0, 0, 5_000);
    for round in 0.. {
        assert!(round < 200_000, "seed {seed} comes to no end: {sent} and {answered} bytes were sent");
        match random.below(7) {
            0 | 1 => {
                let most = 1 + random.below(1_400);
                let more = &to_server[sent..to_server.len().min(sent + most)];
                let len = w.client_sends(more);
                blocked += usize::from(len == 0 && !more.is_empty());
                sent += len;
            }
            2 | 3 => {
                let most = 1 + random.below(9_000);
                let more = &to_client[answered..to_client.len().min(answered + most)];
                let len = w.server_sends(more);
                blocked += usize::from(len == 0 && !more.is_empty());
                answered += len;
            }
            4 => {
                let most = 1 + random.below(1_200);
                w.server_reads(most as u32);
                read += most;
            }
            5 => w.out.descriptors = random.below(3),
            _ => {
                w.client.stalled = random.below(8) > 0;
                if !w.client.stalled {
                    w.segment(TcpFlags::ACK, &[]);
                }
            }
        }
        w.pass(Duration::from_millis(1));
        assert!(w.server.received.len() <= read, "seed {seed}: beyond the room of the server");
        assert!(to_server.starts_with(&w.server.received) && to_client.starts_with(&w.client.received));
        if w.server.received.len() == to_server.len() && w.client.received.len() == to_client.len() {
            break;
        }
    }
    let channel = w.channel();
    assert_eq!(channel.status.counters.published, (there + back) as u64, "seed {seed}");
    let bytes = (to_server.len() + to_client.len()) as u64;
    assert_eq!((channel.status.counters.bytes_published, channel.malformed), (bytes, 0), "seed {seed}");
    // The client ends its stream, and still receives.
    (w.out.descriptors, w.client.stalled) = (usize::MAX, false);
    w.client_finishes();
    assert!(w.server.finished && !w.client.fin, "seed {seed}");
    let last = sofh(b"last");
    w.server_sends(&last);
    w.server_says(MessageKind::Close);
    w.pass(Duration::from_secs(1));
    assert!(w.client.fin && !w.client.rst && w.client.received.ends_with(&last), "seed {seed}");
    w.assert_nothing_is_left();
    blocked
}

#[test]
fn messages_pass_both_ways_whole_and_in_order_whatever_the_cut() {
    let seeds = std::env::var("CSP_SEED").ok().map(|seed| seed.parse().unwrap());
    let blocked: usize = match seeds {
        Some(seed) => exchange(seed),
        None => (1..=30).map(exchange).sum(),
    };
    assert!(blocked > 100, "backpressure was at work {blocked} times");
}

#[test]
fn a_server_that_does_not_read_closes_the_client_s_window_and_nothing_is_lost() {
    let mut w = World::new(100);
    let all: Vec<u8> = (0..3_000u32).flat_map(|n| sofh(&[n as u8; 500])).collect();
    let mut sent = 0;
    loop {
        let len = w.client_sends(&all[sent..]);
        w.pass(Duration::from_millis(50));
        if len == 0 {
            break;
        }
        sent += len;
    }
    assert!(sent < all.len() && w.server.received == all[..100], "{sent} bytes wait at the proxy");
    while sent < all.len() {
        w.server_reads(50_000);
        w.pass(Duration::from_millis(50));
        while sent < all.len() {
            let len = w.client_sends(&all[sent..]);
            if len == 0 {
                break;
            }
            sent += len;
        }
    }
    w.server_reads(2_000_000);
    assert!(w.server.received == all);
    assert_eq!(w.channel().status.counters.published, 3_000);
}

#[test]
fn bytes_that_a_client_sends_before_a_server_accepts_wait_for_it() {
    let mut w = World::without_client();
    w.connect(1000);
    let two = [sofh(b"one"), sofh(b"two")].concat();
    w.client_sends_all(&two);
    assert!(w.server.received.is_empty());
    w.accept(1 << 16);
    assert_eq!(w.server.received, two);
}

#[test]
fn a_client_s_malformed_length_resets_both_ends_after_what_was_right() {
    for nonsense in [&[0, 0, 0, 5, 1, 1, 9, 9][..], &[0xff, 0, 0, 0, 1, 1]] {
        let mut w = World::new(1 << 16);
        w.client_sends_all(&sofh(b"right"));
        w.client_sends_all(&[&sofh(b"right too")[..], nonsense].concat());
        assert!(w.client.rst && w.server.reset, "{nonsense:?}");
        assert_eq!(w.server.received, [sofh(b"right"), sofh(b"right too")].concat(), "{nonsense:?}");
        assert_eq!((w.channel().malformed, w.channel().status.counters.published), (1, 2));
        w.assert_nothing_is_left();
        // The process serves the next client.
        w.server = Server::default();
        w.connect(1001);
        w.accept(1 << 16);
        w.client_sends_all(&sofh(b"next"));
        assert_eq!(w.server.received, sofh(b"next"));
    }
}

#[test]
fn a_server_s_malformed_length_resets_both_ends() {
    let mut w = World::new(1 << 16);
    w.server_sends(&sofh(b"right"));
    assert_eq!(w.client.received, sofh(b"right"));
    w.server_sends(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 1, 2, 3]);
    assert!(w.client.rst && w.server.reset);
    assert_eq!((w.client.received.len(), w.channel().malformed), (sofh(b"right").len(), 1));
    w.assert_nothing_is_left();
}

#[test]
fn a_stream_that_ends_within_a_message_resets_both_ends() {
    let part = &sofh(b"whole")[..8];
    let mut w = World::new(1 << 16);
    w.client_sends_all(part);
    w.client_finishes();
    assert!(w.client.rst && w.server.reset && !w.server.finished);
    assert_eq!(w.channel().malformed, 1);
    w.assert_nothing_is_left();
    // Also one whose other direction has ended before.
    let mut w = World::new(1 << 16);
    w.server_says(MessageKind::Shutdown);
    w.client_sends_all(part);
    w.client_finishes();
    assert!(w.client.fin && w.server.reset && !w.server.finished && w.channel().malformed == 1);
    w.pass(Duration::from_secs(1));
    w.assert_nothing_is_left();
    // A server that shuts its stream down is notified; one that has closed it is not.
    for (kind, notified) in [(MessageKind::Shutdown, true), (MessageKind::Close, false)] {
        let mut w = World::new(1 << 16);
        w.server_sends(part);
        w.server_says(kind);
        assert!(w.client.rst && !w.client.fin, "{kind:?}");
        assert_eq!((w.server.reset, w.channel().malformed), (notified, 1), "{kind:?}");
        w.assert_nothing_is_left();
    }
}

#[test]
fn a_server_that_ends_between_messages_ends_the_stream_and_still_receives() {
    let mut w = World::new(1 << 16);
    w.server_sends(&sofh(b"goodbye"));
    w.server_says(MessageKind::Shutdown);
    assert!(w.client.fin && !w.client.rst && w.client.received == sofh(b"goodbye"));
    w.client_sends_all(&sofh(b"thanks"));
    w.client_finishes();
    assert!(w.server.finished && w.server.received == sofh(b"thanks"));
    w.pass(Duration::from_secs(1));
    w.assert_nothing_is_left();
    assert_eq!(w.channel().malformed, 0);
}

#[test]
fn a_reset_of_either_end_reaches_the_other() {
    let mut w = World::new(1 << 16);
    w.client_sends_all(&sofh(b"one"));
    w.segment(TcpFlags::RST, &[]);
    assert!(w.server.reset);
    w.assert_nothing_is_left();
    let mut w = World::new(1 << 16);
    w.client_sends_all(&sofh(b"unread"));
    let header = MessageHeader { flags: CLOSE_UNREAD, ..w.of_flow(MessageKind::Close, 0) };
    w.send(header, &[]);
    assert!(w.client.rst);
    w.assert_nothing_is_left();
    let mut w = World::new(1 << 16);
    w.core.channel_down(w.now, ChannelId(SERVER), false, &mut w.out);
    w.settle();
    assert!(w.client.rst, "the link to the process was lost");
    w.assert_nothing_is_left();
}

#[test]
fn a_channel_that_the_policy_removes_goes_with_its_last_connection() {
    let mut w = World::new(1 << 16);
    w.core.local_mut().set_streams(Vec::new());
    assert!(w.core.local().snapshots().is_empty());
    w.client_sends_all(&sofh(b"still served"));
    assert_eq!(w.server.received, sofh(b"still served"));
    w.server_says(MessageKind::Close);
    w.connect(1001);
    assert!(w.client.rst, "a new connection is refused: the worker does not know the channel");
}
