//! Many connections between two stacks over a faulty link, in virtual time, from a seed.
//!
//! `CSP_SEED=n` replays one seed, `CSP_SEEDS=n` runs the first n. What must hold: every byte arrives once and in order
//! or the connection fails with a reason; a timer runs while something waits to be acknowledged; when all is over,
//! every table is empty.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{LinkFaults, Net, Random, client_tuple, seeds, small_config, stream_byte};
use csp_tcp::{Counters, Event, FailReason, StackConfig};
use csp_types::{FlowLabel, FourTuple};

/// How an application ends its side.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    /// FIN when all is written, then reads on.
    Shutdown,
    /// As `Shutdown`, but only after the peer's FIN.
    ShutdownLast,
    /// Gone once everything is written, whether or not the peer still sends.
    Close,
    /// RST at some moment.
    Abort,
}

/// An application at one end of a connection.
struct Application {
    label: Option<FlowLabel>,
    key: u64,
    to_write: u64,
    written: u64,
    /// Whether `write` took less than it was given and `Writable` has not come yet.
    blocked: bool,
    received: u64,
    peer_finished: bool,
    finished: bool,
    outcome: Option<Event>,
    manner: Manner,
    /// Probability of reading at an opportunity.
    diligence: f64,
}

/// What one end sends is what the other must receive.
struct Conversation {
    tuple: FourTuple,
    ends: [Application; 2],
}

struct Simulation {
    net: Net,
    conversations: Vec<Conversation>,
    random: Random,
    seed: u64,
    /// Whether network nodes are replaced now and then.
    restarts: bool,
}

fn link(random: &mut Random) -> LinkFaults {
    let delay = Duration::from_micros(random.pick(&[50, 500, 5_000, 25_000, 80_000]));
    LinkFaults {
        delay,
        jitter: Duration::from_micros(random.pick(&[0, 0, 10, 300, 3_000])),
        loss: random.pick(&[0.0, 0.0, 0.001, 0.01, 0.05, 0.1]),
        duplication: random.pick(&[0.0, 0.0, 0.02]),
        reordering: random.pick(&[0.0, 0.0, 0.05]),
    }
}

fn config(random: &mut Random, seed: u64) -> StackConfig {
    StackConfig {
        blocks: random.pick(&[1024, 1024, 120]),
        block_len: random.pick(&[512, 4096]),
        range_sets: random.pick(&[64, 64, 2]),
        receive_window_max: random.pick(&[4_000, 65_535, 300_000, 1 << 20]),
        send_buffer_max: random.pick(&[5_000, 65_536, 1 << 20]),
        mss_v4: random.pick(&[1_460, 1_460, 500]),
        nagle: random.chance(0.2),
        ..small_config(seed)
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5151_5151);
        let configs = [config(&mut random, seed), config(&mut random, seed + 1)];
        let [client, server] = configs;
        let mut net = Net::new(seed, client, server);
        net.faults = [link(&mut random), link(&mut random)];
        net.whole_records = random.chance(0.3);
        net.strip = (random.chance(0.25), random.chance(0.25), random.chance(0.25));
        let conversations = (0..1 + random.below(5)).map(|n| conversation(&mut random, n as u16)).collect();
        let restarts = random.chance(0.3);
        Simulation { net, conversations, random, seed, restarts }
    }

    fn run(&mut self) {
        for conversation in &mut self.conversations {
            let stack = &mut self.net.hosts[0].stack;
            conversation.ends[0].label = Some(stack.connect(self.net.now, conversation.tuple, 7, 1).unwrap());
        }
        let faults = self.net.faults;
        let blackout = self.random.chance(0.2).then(|| self.random.below(2_000));
        let start = self.net.now;
        let mut steps = 0u64;
        while self.conversations.iter().any(|c| !c.is_over()) {
            steps += 1;
            assert!(steps < 3_000_000, "no end in sight at {:?}: {:#?}", self.net.now, self.stuck());
            self.act();
            self.net.flush();
            self.check_timers();
            let elapsed = (self.net.now - start).as_millis() as u64;
            if let Some(from) = blackout {
                let dark = (from..from + 1_500).contains(&elapsed);
                self.net.faults = faults.map(|f| LinkFaults { loss: if dark { 1.0 } else { f.loss }, ..f });
            }
            if self.restarts && self.random.chance(0.001) {
                let side = self.random.below(2) as usize;
                self.net.replace_node(side);
            }
            // Applications look in now and then; when they only wait, so does time.
            let look = self.net.now + Duration::from_millis(if elapsed < 60_000 { 5 } else { 60_000 });
            self.net.step(look);
        }
        self.settle();
    }

    fn stuck(&self) -> Vec<String> {
        let all = self.net.hosts.iter().flat_map(|host| host.stack.connections());
        all.map(|info| format!("{info:?}")).collect()
    }

    /// Applications take events, read and write.
    fn act(&mut self) {
        for side in 0..2 {
            while let Some((label, event)) = self.net.hosts[side].stack.poll_event() {
                self.on_event(side, label, event);
            }
            for conversation in &mut self.conversations {
                let (near, far) = conversation.near_and_far(side);
                near.act(&mut self.net, side, far, &mut self.random, self.seed);
            }
        }
    }

    fn on_event(&mut self, side: usize, label: FlowLabel, event: Event) {
        if let Event::Established { passive, tuple, .. } = event {
            assert_eq!(passive, side == 1);
            let tuple = if passive { FourTuple { local: tuple.remote, remote: tuple.local } } else { tuple };
            let conversation = self.conversations.iter_mut().find(|c| c.tuple == tuple).unwrap();
            let end = &mut conversation.ends[side];
            if passive {
                assert_eq!(end.label.replace(label), None, "seed {}: accepted twice", self.seed);
            }
            return;
        }
        let conversation = self.conversations.iter_mut().find(|c| c.ends[side].label == Some(label)).unwrap();
        let (end, far) = conversation.near_and_far(side);
        assert!(end.outcome.is_none(), "seed {}: {event:?} after the last event", self.seed);
        match event {
            Event::PeerFinished => {
                assert!(!end.peer_finished);
                end.peer_finished = true;
                assert_eq!(far.written, far.to_write, "FIN before everything was written");
            }
            Event::Writable => end.blocked = false,
            Event::Closed | Event::Failed(_) => end.outcome = Some(event),
            Event::Readable | Event::Established { .. } => {}
        }
    }

    fn check_timers(&self) {
        for host in &self.net.hosts {
            for info in host.stack.connections() {
                if info.in_flight > 0 || info.send_queue > 0 {
                    let deadline = info.deadline;
                    let deadline =
                        deadline.unwrap_or_else(|| panic!("seed {}: no timer: {info:?}", self.seed));
                    let told = host.stack.next_timeout().unwrap();
                    assert!(told.as_nanos() <= deadline.as_nanos().max(self.net.now.as_nanos()) + (2 << 20));
                }
            }
        }
    }

    /// Lets TIME-WAIT and whatever nobody told the end of run out; then nothing may be left.
    fn settle(&mut self) {
        for conversation in &self.conversations {
            conversation.check(self.seed);
        }
        let limit = self.net.now + Duration::from_secs(12 * 3600);
        loop {
            self.act();
            self.net.flush();
            if !self.net.step(limit) {
                break;
            }
        }
        for (side, host) in self.net.hosts.iter().enumerate() {
            let o = host.stack.occupancy();
            let left =
                [o.connections.0, o.half_open.0, o.time_wait.0, o.blocks.0, o.range_sets.0, o.replies.0];
            assert_eq!(left, [0; 6], "seed {}: side {side} is not empty", self.seed);
            assert!(host.known.is_empty(), "seed {}: the network node was not told of an end", self.seed);
            assert_eq!(host.stack.next_timeout(), None, "seed {}", self.seed);
        }
    }
}

fn conversation(random: &mut Random, n: u16) -> Conversation {
    let mut end = || Application {
        label: None,
        key: random.next(),
        to_write: random.pick(&[0, 1, 100, 5_000, 60_000, 400_000]) + random.below(3_000),
        written: 0,
        blocked: false,
        received: 0,
        peer_finished: false,
        finished: false,
        outcome: None,
        manner: random.pick(&[
            Manner::Shutdown,
            Manner::Shutdown,
            Manner::Shutdown,
            Manner::ShutdownLast,
            Manner::Close,
            Manner::Abort,
        ]),
        diligence: random.pick(&[1.0, 1.0, 0.3, 0.02]),
    };
    let mut ends = [end(), end()];
    if ends[0].manner == Manner::ShutdownLast && ends[1].manner == Manner::ShutdownLast {
        ends[0].manner = Manner::Shutdown; // or both wait for ever
    }
    Conversation { tuple: client_tuple(1_000 + n), ends }
}

impl Conversation {
    fn near_and_far(&mut self, side: usize) -> (&mut Application, &Application) {
        let [client, server] = &mut self.ends;
        if side == 0 { (client, server) } else { (server, client) }
    }

    fn is_over(&self) -> bool {
        let [client, server] = &self.ends;
        // A server that never learned of the connection has nothing to end.
        client.outcome.is_some() && (server.label.is_none() || server.outcome.is_some())
    }

    /// Where nobody ended the connection by force, both ends got everything.
    fn check(&self, seed: u64) {
        let forced = self.ends.iter().any(|end| matches!(end.manner, Manner::Close | Manner::Abort));
        for (side, end) in self.ends.iter().enumerate() {
            let other = &self.ends[1 - side];
            if !forced {
                assert_eq!(end.outcome, Some(Event::Closed), "seed {seed}: side {side}");
                assert_eq!(end.received, other.to_write, "seed {seed}: side {side}");
            }
            if end.outcome == Some(Event::Closed)
                && end.manner != Manner::Abort
                && end.manner != Manner::Close
            {
                assert_eq!(end.received, other.to_write, "seed {seed}: closed without everything");
            }
            // Close delivers what was written, unless data came the other way.
            if end.manner == Manner::Close
                && end.outcome == Some(Event::Closed)
                && other.manner == Manner::Shutdown
            {
                assert_eq!(
                    other.received, end.to_write,
                    "seed {seed}: what was written before close is lost"
                );
            }
            assert!(end.outcome != Some(Event::Failed(FailReason::Refused)), "seed {seed}");
        }
    }
}

impl Application {
    fn act(&mut self, net: &mut Net, side: usize, far: &Application, random: &mut Random, seed: u64) {
        let Some(label) = self.label.filter(|_| self.outcome.is_none()) else { return };
        let (stack, now) = (&mut net.hosts[side].stack, net.now);
        if self.manner == Manner::Abort && random.chance(0.002) {
            stack.abort(now, label);
            self.outcome = Some(Event::Closed);
            return;
        }
        if random.chance(self.diligence) {
            let mut wanted = 1 + random.below(30_000) as usize;
            let (mut received, key) = (self.received, far.key);
            stack.read_with(now, label, wanted, |slice| {
                let take = slice.len().min(wanted).min(1 + random.below(5_000) as usize);
                for &byte in &slice[..take] {
                    assert_eq!(byte, stream_byte(key, received), "seed {seed}: byte {received} differs");
                    received += 1;
                }
                wanted -= take;
                take
            });
            self.received = received;
        }
        if self.written < self.to_write && !self.blocked {
            let n = (self.to_write - self.written).min(1 + random.below(40_000));
            let data: Vec<u8> =
                (self.written..self.written + n).map(|at| stream_byte(self.key, at)).collect();
            let taken = stack.write(now, label, &data);
            self.written += taken as u64;
            self.blocked = taken < data.len();
        }
        let may_finish = match self.manner {
            Manner::ShutdownLast => self.peer_finished,
            Manner::Close => random.chance(0.3),
            _ => true,
        };
        if self.written == self.to_write && !self.finished && may_finish {
            self.finished = true;
            match self.manner {
                Manner::Close => stack.close(now, label),
                _ => stack.shutdown(now, label),
            }
        }
    }
}

/// What the seeds must have met at least once, or they prove less than they seem to.
fn rare_things(counters: &Counters) -> [(&'static str, u64); 13] {
    [
        ("fast_recoveries", counters.fast_recoveries),
        ("retransmission_timeouts", counters.retransmission_timeouts),
        ("tail_loss_probes", counters.tail_loss_probes),
        ("window_probes", counters.window_probes),
        ("spurious_recoveries", counters.spurious_recoveries),
        ("syn_retransmitted", counters.syn_retransmitted),
        ("duplicate_bytes_received", counters.duplicate_bytes_received),
        ("out_of_order_bytes_received", counters.out_of_order_bytes_received),
        ("out_of_order_bytes_dropped", counters.out_of_order_bytes_dropped),
        ("time_wait_entered", counters.time_wait_entered),
        ("failed_reset", counters.failed_reset),
        ("failed_data_after_close", counters.failed_data_after_close),
        ("dropped_time_wait", counters.dropped_time_wait),
    ]
}

#[test]
fn connections_over_a_faulty_link() {
    let seeds = seeds(if cfg!(debug_assertions) { 200 } else { 1_000 });
    let all = seeds.end - seeds.start >= 200;
    let mut met = rare_things(&Counters::default());
    for seed in seeds {
        println!("CSP_SEED={seed}");
        let mut simulation = Simulation::new(seed);
        simulation.run();
        for host in &simulation.net.hosts {
            for (total, (_, count)) in met.iter_mut().zip(rare_things(host.stack.counters())) {
                total.1 += count;
            }
        }
    }
    println!("{met:?}");
    assert!(!all || met.iter().all(|(_, count)| *count > 0), "never met: {met:?}");
}
