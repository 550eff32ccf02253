//! A peer that is built segment by segment and can send anything.

use std::net::SocketAddr;
use std::time::Duration;

use csp_tcp::{Arrival, Event, Stack, StackConfig, State};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Options, Repr, Segment};

use crate::common::{address, small_config};

/// A server, and one of its peers, selected by port.
pub struct Peer {
    pub stack: Stack,
    pub now: Instant,
    pub remote: SocketAddr,
    /// The peer's SND.NXT, RCV.NXT and window.
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    /// The last timestamp received.
    pub echo: u32,
    pub label: FlowLabel,
}

pub fn config() -> StackConfig {
    small_config(3)
}

impl Peer {
    pub fn new(config: StackConfig) -> Self {
        let mut stack = Stack::new(config);
        stack.listen(address("10.0.0.2:80"), 1).unwrap();
        let now = Instant::from_nanos(1_000_000_000_000);
        let remote = address("10.0.0.1:1000");
        Peer { stack, now, remote, seq: 100, ack: 0, window: 60_000, echo: 0, label: FlowLabel::NONE }
    }

    /// A peer with a connection, whose SYN had these options.
    pub fn established(config: StackConfig, options: Options) -> Self {
        let mut peer = Self::new(config);
        peer.open(options);
        peer
    }

    pub fn open(&mut self, options: Options) {
        self.seq = 100;
        self.send_with(Flags::SYN, options, &[]);
        let (header, _) = self.receive().unwrap();
        (self.seq, self.ack) = (101, header.seq.wrapping_add(1));
        self.send(Flags::ACK, &[]);
        self.now += Duration::from_millis(10);
        while let Some((label, event)) = self.stack.poll_event() {
            if let Event::Established { .. } = event {
                self.label = label;
            }
        }
        assert_eq!(self.state(), Some(State::Established));
        while self.receive().is_some() {}
    }

    pub fn repr(&self, flags: Flags, options: Options) -> Repr {
        let (seq, ack, window) = (self.seq, self.ack, self.window);
        Repr { source_port: self.remote.port(), destination_port: 80, seq, ack, flags, window, options }
    }

    pub fn send(&mut self, flags: Flags, payload: &[u8]) {
        self.send_with(flags, Options::default(), payload);
    }

    pub fn send_with(&mut self, flags: Flags, options: Options, payload: &[u8]) {
        self.arrive(self.repr(flags, options), payload);
    }

    pub fn arrive(&mut self, repr: Repr, payload: &[u8]) {
        let mut bytes = vec![0; HEADER_LEN_MAX];
        let len = repr.emit(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes.extend_from_slice(payload);
        let segment = Segment::parse(&bytes).unwrap();
        let tuple = Some(FourTuple { local: address("10.0.0.2:80"), remote: self.remote });
        let arrival =
            Arrival { label: FlowLabel::NONE, tuple, ingress: self.now, via: 1, ecn: 0, segment_size: 0 };
        let _ = self.stack.on_segment(self.now, arrival, &segment, segment.payload());
    }

    /// The next segment from the server, and the length of its payload.
    pub fn receive(&mut self) -> Option<(Repr, usize)> {
        loop {
            let transmit = self.stack.poll_transmit(self.now)?;
            if let Some(header) = transmit.header {
                self.echo = header.options.timestamps.map_or(self.echo, |timestamps| timestamps.value);
                return Some((header, transmit.payload_len));
            }
        }
    }

    /// Receives everything that the server sends now; returns the number of records and bytes.
    pub fn receive_all(&mut self) -> (usize, usize) {
        let (mut records, mut bytes) = (0, 0);
        while let Some((_, len)) = self.receive() {
            records += 1;
            bytes += len;
        }
        (records, bytes)
    }

    /// Runs timers for `time`; returns the number of records and bytes sent.
    pub fn wait(&mut self, time: Duration) -> (usize, usize) {
        let end = self.now + time;
        let (mut records, mut bytes) = self.receive_all();
        while let Some(at) = self.stack.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.stack.on_timeout(self.now);
            let (more, len) = self.receive_all();
            (records, bytes) = (records + more, bytes + len);
        }
        self.now = end;
        (records, bytes)
    }

    pub fn write(&mut self, len: usize) -> usize {
        self.stack.write(self.now, self.label, &vec![7; len])
    }

    pub fn state(&self) -> Option<State> {
        let of_peer = |info: &csp_tcp::ConnectionInfo| info.tuple.remote == self.remote;
        self.stack.connections().find(of_peer).map(|info| info.state)
    }

    pub fn info(&self) -> csp_tcp::ConnectionInfo {
        self.stack.info(self.label).unwrap()
    }
}
