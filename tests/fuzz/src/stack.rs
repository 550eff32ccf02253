//! The TCP engine with its state: any sequence of segments, calls and times on a small stack, and the
//! properties that hold after each step.
//!
//! Fields of segments are offsets from what the stack last sent to that peer, because random numbers would
//! nearly always fail the first check.

use core::net::SocketAddr;
use core::time::Duration;

use csp_tcp::{Arrival, CongestionControl, EcnMode, Event, PathError, Stack, StackConfig, State, SynCookies};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr, SackBlock, SackBlocks, Segment, Timestamps};

use crate::Target;

/// Segments, calls and times for a TCP stack.
pub static TCP_STACK: Target = Target::plain("tcp_stack", tcp_stack, Vec::new);
/// The options of a segment.
pub static TCP_OPTIONS: Target = Target::plain("tcp_options", tcp_options, Vec::new);

const PORTS: u8 = 4;
/// Every byte of the streams that peers send.
const STREAM: u8 = 0x5a;
const SEND_MAX: u32 = 8_192;
const RECEIVE_MAX: u32 = 16_384;

/// Reads decisions from the input; after its end all are 0.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn long(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    /// Returns a number that is usually close to `base`.
    fn near(&mut self, base: u32) -> u32 {
        match self.byte() {
            0..=99 => base,
            100..=159 => base.wrapping_add(u32::from(self.byte())),
            160..=199 => base.wrapping_sub(u32::from(self.byte())),
            200..=229 => base.wrapping_add(u32::from(self.word())),
            230..=249 => base.wrapping_sub(u32::from(self.word())),
            _ => self.long(),
        }
    }
}

/// The state of the connection as its peer last saw it.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The engine's next sequence number.
    end: u32,
    /// The sequence number that the engine expects next.
    ack: u32,
    timestamp: u32,
}

struct Run {
    stack: Stack,
    now: Instant,
    seen: [Seen; PORTS as usize],
    /// Labels of established connections.
    labels: Vec<FlowLabel>,
}

fn tuple(port: u8) -> FourTuple {
    let local = SocketAddr::from(([10, 0, 0, 2], 80));
    FourTuple { local, remote: SocketAddr::from(([10, 0, 0, 1], 1_000 + u16::from(port))) }
}

/// Returns a configuration with small tables, so that they fill and a run is short. A byte selects the other
/// settings.
fn config(choice: u8) -> StackConfig {
    let of_three = |step: u8| usize::from(choice / step % 3);
    StackConfig {
        connections: 6,
        half_open: 2,
        time_wait_entries: 2,
        blocks: 32,
        block_len: 512,
        range_sets: 4,
        records: 48,
        records_per_connection: 16,
        listeners: 2,
        receive_window_max: RECEIVE_MAX,
        send_buffer_max: SEND_MAX,
        replies: 8,
        cookie_replies: 8,
        path_entries: 4,
        keepalive_idle: Some(Duration::from_secs(30)),
        syn_cookies: [SynCookies::Auto, SynCookies::Always, SynCookies::Off][of_three(1)],
        ecn: [EcnMode::Passive, EcnMode::Active, EcnMode::Off][of_three(3)],
        pacing: (choice / 9).is_multiple_of(2),
        congestion: match choice / 18 % 2 {
            0 => CongestionControl::Cubic,
            _ => CongestionControl::NewReno,
        },
        ..StackConfig::default()
    }
}

impl Run {
    fn segment(&mut self, c: &mut Choices<'_>) {
        let port = c.byte() % PORTS;
        let (tuple, seen) = (tuple(port), self.seen[usize::from(port)]);
        let flags = match c.byte() {
            0..=119 => Flags::ACK,
            120..=149 => Flags::SYN,
            150..=169 => Flags::ACK | Flags::FIN,
            170..=184 => Flags::SYN | Flags::ACK,
            185..=194 => Flags::RST,
            _ => Flags(c.byte()),
        };
        let (seq, ack) = (c.near(seen.ack), c.near(seen.end));
        let kinds = c.byte();
        let mut sack = SackBlocks::EMPTY;
        for _ in 0..kinds & 3 {
            let start = c.near(ack);
            sack.push(SackBlock { start, end: c.near(start) });
        }
        let timestamps = Timestamps { value: c.near(self.now.as_millis_u32()), echo: c.near(seen.timestamp) };
        let options = Options {
            mss: (kinds & 4 != 0).then(|| c.word()),
            window_scale: (kinds & 8 != 0).then(|| c.byte() % 15),
            sack_permitted: kinds & 16 != 0,
            timestamps: (kinds & 32 != 0).then_some(timestamps),
            sack,
        };
        let (source_port, destination_port) = (tuple.remote.port(), tuple.local.port());
        let repr = Repr { source_port, destination_port, seq, ack, flags, window: c.word(), options };
        let mut bytes = vec![0; repr.header_len()];
        repr.emit(&mut bytes).expect("the buffer has the header's length");
        let payload = usize::from(c.word() % 3_000) * usize::from(kinds >> 7);
        bytes.resize(bytes.len() + payload, STREAM);
        self.arrive(c, tuple, &bytes);
    }

    fn arrive(&mut self, c: &mut Choices<'_>, tuple: FourTuple, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("what was emitted parses");
        let choice = c.byte();
        let label = match choice & 3 {
            0 if !self.labels.is_empty() => self.labels[usize::from(choice >> 2) % self.labels.len()],
            1 => FlowLabel::new(u32::from(choice >> 5), choice >> 2 & 7),
            _ => FlowLabel::NONE,
        };
        let known = (label.is_none() || choice & 4 != 0).then_some(tuple);
        let via = u32::from(choice & 1);
        let arrival =
            Arrival { label, tuple: known, ingress: self.now, via, ecn: choice & 3, segment_size: 0 };
        let _ = self.stack.on_segment(self.now, arrival, &segment, segment.payload());
    }

    fn call(&mut self, c: &mut Choices<'_>) {
        let kind = c.byte();
        let number = usize::from(c.byte());
        if kind % 8 == 7 {
            let port = number as u8 % PORTS;
            let (seq, mtu) = (c.near(self.seen[usize::from(port)].end), c.word());
            self.stack.on_path_error(self.now, &tuple(port), seq, PathError::PacketTooBig { mtu });
            return;
        }
        if kind % 8 == 6 {
            let FourTuple { local, remote } = tuple(number as u8 % PORTS);
            let tuple = FourTuple { local: SocketAddr::new(local.ip(), 81), remote };
            let _ = self.stack.connect(self.now, tuple, 0, 1);
            return;
        }
        let Some(label) = (!self.labels.is_empty()).then(|| self.labels[number % self.labels.len()]) else {
            return;
        };
        match kind % 8 {
            0 | 1 => {
                let len = usize::from(c.word() % 6_000);
                assert!(self.stack.write(self.now, label, &vec![1; len]) <= len);
            }
            2 => {
                let max = usize::from(c.word());
                let read = self.stack.read_with(self.now, label, max, |slice| {
                    assert!(slice.iter().all(|byte| *byte == STREAM), "a byte that no peer sent");
                    slice.len()
                });
                assert!(read <= max);
            }
            3 => self.stack.shutdown(self.now, label),
            4 => self.stack.close(self.now, label),
            _ => {
                self.stack.abort(self.now, label);
                self.labels.retain(|live| *live != label);
            }
        }
    }

    fn pass_time(&mut self, c: &mut Choices<'_>) {
        let exponent = c.byte() % 26;
        self.now += Duration::from_micros(1 << exponent);
        if self.stack.next_timeout().is_some_and(|at| at <= self.now) {
            self.stack.on_timeout(self.now);
        }
    }

    fn drain(&mut self) {
        while let Some((label, event)) = self.stack.poll_event() {
            match event {
                Event::Established { .. } => self.labels.push(label),
                Event::Closed | Event::Failed(_) | Event::Reset => self.labels.retain(|live| *live != label),
                _ => assert!(self.labels.contains(&label), "{event:?} of {label:?}, which is not live"),
            }
        }
        for count in 0.. {
            assert!(count < 1_000, "poll_transmit does not come to an end");
            let Some(transmit) = self.stack.poll_transmit(self.now) else { break };
            let len: usize = transmit.payload().map(<[u8]>::len).sum();
            assert_eq!(len, transmit.payload_len);
            assert!(len <= SEND_MAX as usize && (len == 0 || transmit.segment_size > 0));
            let Some(header) = transmit.header else { continue };
            let port = transmit.tuple.remote.port() - 1_000;
            let Some(seen) = self.seen.get_mut(usize::from(port)) else { continue };
            let length = len as u32 + u32::from(header.flags.syn()) + u32::from(header.flags.fin());
            seen.end = header.seq.wrapping_add(length);
            seen.ack = if header.flags.ack() { header.ack } else { seen.ack };
            seen.timestamp = header.options.timestamps.map_or(seen.timestamp, |timestamps| timestamps.value);
        }
    }

    fn check(&self) {
        for info in self.stack.connections() {
            assert!(info.send_queue <= SEND_MAX as usize, "{info:?}");
            assert!(info.receive_queue <= 2 * RECEIVE_MAX as usize, "{info:?}");
            let waits = matches!(info.state, State::SynSent | State::SynReceived);
            assert!((info.in_flight == 0 && !waits) || info.deadline.is_some(), "no timer: {info:?}");
            assert!(info.mss >= csp_tcp::MSS_MIN - 12, "{info:?}");
        }
        let o = self.stack.occupancy();
        for (used, all) in [
            o.connections,
            o.half_open,
            o.time_wait,
            o.blocks,
            o.range_sets,
            o.records,
            o.replies,
            o.cookie_replies,
            o.paths,
        ] {
            assert!(used <= all, "{o:?}");
        }
    }

    /// Aborts all connections, lets all peers be silent, and checks that every resource is released.
    fn end(mut self) {
        for label in std::mem::take(&mut self.labels) {
            self.stack.abort(self.now, label);
        }
        for count in 0.. {
            assert!(count < 20_000, "timers without end");
            self.drain();
            for label in std::mem::take(&mut self.labels) {
                self.stack.abort(self.now, label);
            }
            self.drain();
            let Some(at) = self.stack.next_timeout() else { break };
            self.now = self.now.max(at);
            self.stack.on_timeout(self.now);
        }
        let o = self.stack.occupancy();
        let left = [
            o.connections.0,
            o.half_open.0,
            o.time_wait.0,
            o.blocks.0,
            o.range_sets.0,
            o.replies.0,
            o.records.0,
        ];
        assert_eq!(left, [0; 7], "{:?}", self.stack.connections().collect::<Vec<_>>());
    }
}

/// Runs the engine with any sequence of segments, calls and times.
fn tcp_stack(bytes: &[u8]) {
    let mut c = Choices(bytes);
    let mut stack = Stack::new(config(c.byte()));
    stack.listen(tuple(0).local, 1).expect("an empty table takes a listener");
    let now = Instant::from_nanos(1 << 40);
    let mut run = Run { stack, now, seen: Default::default(), labels: Vec::new() };
    while !c.0.is_empty() {
        match c.byte() {
            0..=159 => run.segment(&mut c),
            160..=219 => run.call(&mut c),
            _ => run.pass_time(&mut c),
        }
        run.drain();
        run.check();
    }
    run.end();
}

/// Parses any options area as the engine does: in a SYN and in an acknowledgement.
fn tcp_options(bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len().min(40));
    let mut stack = Stack::new(config(0));
    stack.listen(tuple(0).local, 1).expect("an empty table takes a listener");
    let now = Instant::from_nanos(1 << 40);
    let mut run = Run { stack, now, seen: Default::default(), labels: Vec::new() };
    for (options, flags, len) in [(first, Flags::SYN, 0), (second, Flags::ACK, 0), (second, Flags::ACK, 100)]
    {
        let seen = run.seen[0];
        let repr = Repr {
            source_port: tuple(0).remote.port(),
            destination_port: 80,
            seq: if flags.syn() { 5 } else { seen.ack },
            ack: seen.end,
            flags,
            window: 5_000,
            options: Options::default(),
        };
        let mut bytes = vec![0; 20];
        repr.emit(&mut bytes).expect("the buffer has the header's length");
        let area = options.len().min(40) / 4 * 4;
        bytes.extend_from_slice(&options[..area]);
        bytes[12] = ((bytes.len() / 4) << 4) as u8;
        bytes.resize(bytes.len() + len, STREAM);
        run.arrive(&mut Choices(&[2]), tuple(0), &bytes);
        for label in run.labels.clone() {
            run.stack.write(now, label, &[1; 3_000]);
        }
        run.drain();
        run.check();
    }
    run.end();
}
