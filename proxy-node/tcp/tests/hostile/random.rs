//! Segments that no honest peer sends, in every state of a connection: no panic, bounded memory, and other
//! connections are not affected. `CSP_SEED` replays one seed, `CSP_SEEDS` sets how many are run.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Random, address, client_tuple, seeds, small_config};
use csp_tcp::{Arrival, Event, Stack, StackConfig, State};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Options, Repr, SackBlock, SackBlocks, Segment, Timestamps};

/// A server under attack. The attacker receives everything that the server sends, as a peer does.
struct Attack {
    stack: Stack,
    random: Random,
    now: Instant,
    /// Live labels, from their first event to their last.
    labels: Vec<FlowLabel>,
    /// The last header the server sent to each port.
    seen: Vec<(FourTuple, Repr)>,
    states: BTreeSet<String>,
}

fn config() -> StackConfig {
    StackConfig {
        connections: 24,
        half_open: 8,
        time_wait_entries: 8,
        blocks: 64,
        block_len: 512,
        range_sets: 8,
        receive_window_max: 20_000,
        send_buffer_max: 10_000,
        replies: 16,
        ..small_config(1)
    }
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut stack = Stack::new(config());
        stack.listen(address("10.0.0.2:80"), 1).unwrap();
        let random = Random(seed);
        Attack {
            stack,
            random,
            now: Instant::from_nanos(1 << 40),
            labels: Vec::new(),
            seen: Vec::new(),
            states: BTreeSet::new(),
        }
    }

    /// A number near a significant one, or a random one.
    fn number(&mut self, near: &[u32]) -> u32 {
        let step = self.random.pick(&[0, 0, 0, 1, 2, 1448, 20_000, 65_535, 1 << 20, 1 << 30, 1 << 31]);
        match self.random.below(8) {
            0 => self.random.next() as u32,
            1 => self.random.pick(near).wrapping_sub(step),
            _ => self.random.pick(near).wrapping_add(step),
        }
    }

    fn tuple(&mut self) -> FourTuple {
        let tuple = client_tuple(1000 + self.random.below(12) as u16);
        FourTuple { local: tuple.remote, remote: tuple.local }
    }

    fn segment(&mut self) {
        let tuple = self.tuple();
        let answer = self.seen.iter().find(|(t, _)| *t == tuple).map(|(_, repr)| *repr).unwrap_or_default();
        let info = self.stack.connections().find(|info| info.tuple == tuple);
        let flight = info.map_or(0, |info| info.in_flight);
        let mut sack = SackBlocks::EMPTY;
        for _ in 0..self.random.below(5) {
            let start = self.number(&[answer.seq, answer.seq.wrapping_sub(flight)]);
            let end = self.number(&[start, answer.seq]);
            sack.push(SackBlock { start, end });
        }
        let timestamps = Timestamps { value: self.number(&[1]), echo: self.random.next() as u32 };
        let all = self.random.next() as u8;
        let repr = Repr {
            source_port: tuple.remote.port(),
            destination_port: tuple.local.port(),
            seq: self.number(&[answer.ack]),
            ack: self.number(&[answer.seq, answer.seq.wrapping_add(1)]),
            flags: match self.random.below(12) {
                0 => Flags(all),
                1 | 2 => Flags::SYN,
                3 => Flags::ACK | Flags::FIN,
                4 if self.random.chance(0.2) => Flags::RST,
                5 if self.random.chance(0.2) => Flags::SYN | Flags::ACK,
                _ => Flags::ACK,
            },
            window: self.random.pick(&[0, 1, 100, 65_535, answer.window]),
            options: Options {
                mss: self.random.chance(0.3).then(|| self.random.next() as u16),
                window_scale: self.random.chance(0.3).then(|| self.random.below(15) as u8),
                sack_permitted: self.random.chance(0.5),
                timestamps: self.random.chance(0.3).then_some(timestamps),
                sack,
            },
        };
        let mut bytes = vec![0; HEADER_LEN_MAX];
        let len = repr.emit(&mut bytes).unwrap();
        bytes.truncate(len);
        let payload = self.random.pick(&[0, 0, 0, 1, 500, 1448, 1448, 30_000]);
        bytes.resize(len + payload, 0x55);
        if self.random.chance(0.05) {
            let at = self.random.below(len as u64) as usize;
            bytes[at] = all;
        }
        self.arrive(tuple, &bytes);
    }

    fn arrive(&mut self, tuple: FourTuple, bytes: &[u8]) {
        let Ok(segment) = Segment::parse(bytes) else { return };
        let label = match self.random.below(10) {
            0 => FlowLabel::from_wire(self.random.next() as u32 & 0x3fff_ffff).unwrap_or_default(),
            1 => FlowLabel::new(self.random.below(30) as u32, self.random.below(3) as u8),
            2 if !self.labels.is_empty() => self.random.pick(&self.labels),
            _ => FlowLabel::NONE,
        };
        let known = label.is_none() || self.random.chance(0.3);
        let ingress = Instant::from_nanos(self.random.pick(&[0, self.now.as_nanos(), u64::MAX]));
        let arrival = Arrival {
            label,
            tuple: known.then_some(tuple),
            ingress,
            via: self.random.below(3) as u32,
            ecn: 3,
            segment_size: 0,
        };
        let _ = self.stack.on_segment(self.now, arrival, &segment, segment.payload());
    }

    /// The server's applications: random calls, also with stale labels.
    fn application(&mut self) {
        while let Some((label, event)) = self.stack.poll_event() {
            match event {
                Event::Established { .. } => self.labels.push(label),
                Event::Closed | Event::Failed(_) | Event::Reset => self.labels.retain(|l| *l != label),
                _ => assert!(self.labels.contains(&label), "{event:?} of a stale label"),
            }
        }
        if self.labels.is_empty() {
            return;
        }
        let mut label = self.random.pick(&self.labels);
        if self.random.chance(0.1) {
            label = FlowLabel::new(label.index() as u32, label.generation().wrapping_sub(1)); // a stale one
        }
        match self.random.below(40) {
            0 => self.stack.shutdown(self.now, label),
            1 => self.stack.close(self.now, label),
            2 if self.random.chance(0.3) => {
                self.stack.abort(self.now, label);
                self.labels.retain(|l| *l != label);
            }
            3..12 => {
                let max = self.random.below(20_000) as usize;
                self.stack.read_with(self.now, label, max, |slice| slice.len());
            }
            _ => {
                let len = self.random.below(3_000) as usize;
                self.stack.write(self.now, label, &[0xaa; 3_000][..len]);
            }
        }
    }

    fn transmit(&mut self) {
        let mut count = 0;
        while let Some(transmit) = self.stack.poll_transmit(self.now) {
            count += 1;
            assert!(count < 10_000, "poll_transmit never returns None");
            let len: usize = transmit.payload().map(<[u8]>::len).sum();
            assert_eq!(len, transmit.payload_len);
            let Some(header) = transmit.header else { continue };
            let tuple = transmit.tuple;
            self.seen.retain(|(t, _)| *t != tuple);
            let seq = header.seq.wrapping_add(len as u32);
            self.seen.push((tuple, Repr { seq, ..header }));
        }
    }

    fn check(&mut self) {
        for info in self.stack.connections() {
            self.states.insert(format!("{:?}", info.state));
            assert!(info.receive_queue <= 20_000 + 65_536 && info.send_queue <= 10_000, "{info:?}");
            assert!(info.in_flight == 0 || info.deadline.is_some(), "{info:?}");
            assert!(info.mss >= 40, "{info:?}");
        }
        let o = self.stack.occupancy();
        for (used, all) in [o.connections, o.half_open, o.time_wait, o.blocks, o.range_sets, o.replies] {
            assert!(used <= all, "{o:?}");
        }
    }

    fn run(&mut self) {
        for _ in 0..1_500 {
            for _ in 0..self.random.below(4) {
                self.segment();
            }
            self.application();
            self.transmit();
            self.check();
            self.now += Duration::from_micros(self.random.pick(&[1, 100, 5_000, 300_000]));
            if self.stack.next_timeout().is_some_and(|at| at <= self.now) {
                self.stack.on_timeout(self.now);
            }
        }
        // Applications close and peers fall silent: everything is released.
        for label in std::mem::take(&mut self.labels) {
            self.stack.close(self.now, label);
        }
        let limit = self.now + Duration::from_secs(24 * 3600);
        while let Some(at) = self.stack.next_timeout()
            && at < limit
        {
            self.now = at.max(self.now);
            self.stack.on_timeout(self.now);
            self.transmit();
            while let Some((label, event)) = self.stack.poll_event() {
                if let Event::Established { .. } = event {
                    self.stack.abort(self.now, label);
                }
            }
            self.transmit();
        }
        let o = self.stack.occupancy();
        let left = [o.connections.0, o.half_open.0, o.time_wait.0, o.blocks.0, o.range_sets.0, o.replies.0];
        assert_eq!(left, [0; 6], "{:?}", self.stack.connections().collect::<Vec<_>>());
    }
}

#[test]
fn random_segments_do_no_harm() {
    let seeds = seeds(if cfg!(debug_assertions) { 60 } else { 400 });
    let all = seeds.end - seeds.start >= 60;
    let mut states = BTreeSet::new();
    for seed in seeds {
        println!("CSP_SEED={seed}");
        let mut attack = Attack::new(seed);
        attack.run();
        states.append(&mut attack.states);
    }
    let every = [
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
    ];
    assert!(!all || every.iter().all(|state| states.contains(&format!("{state:?}"))), "only {states:?}");
}
