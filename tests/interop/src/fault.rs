//! One direction of the link: a bottleneck with a drop-tail queue, then a wire that delays, loses and
//! reorders packets.
//!
//! Without I/O: the caller passes packets and the time, and gets packets when they are due. The same seed and
//! arrivals give the same faults. Each packet draws the same number of random values, so that the rate of one
//! fault does not change the others.

use std::collections::BTreeMap;

use csp_support::Random;
use csp_types::{Duration, Instant};

/// Configuration of a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultConfig {
    /// Rate of the bottleneck in bits per second; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Bytes that may wait for the bottleneck; further packets are dropped.
    pub queue_len: u64,
    /// Delay of the wire.
    pub delay: Duration,
    /// Packets lost on the wire, per million.
    pub loss_ppm: u32,
    /// Packets delayed further, per million.
    pub reorder_ppm: u32,
    /// Range of the further delay, uniformly distributed.
    pub hold: (Duration, Duration),
}

impl FaultConfig {
    /// A wire without faults.
    pub const CLEAN: FaultConfig = FaultConfig {
        rate_bps: None,
        queue_len: u64::MAX,
        delay: Duration::ZERO,
        loss_ppm: 0,
        reorder_ppm: 0,
        hold: (Duration::ZERO, Duration::ZERO),
    };
}

/// Counters of a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct FaultCounters {
    /// Packets offered.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub queue_drops: u64,
    /// Packets lost on the wire.
    pub lost: u64,
    /// Packets delayed further.
    pub held: u64,
}

/// Whether a fault of this probability strikes.
fn strikes(random: &mut Random, ppm: u32) -> bool {
    random.below(1_000_000) < u64::from(ppm)
}

/// One direction with packets of type `P`.
#[derive(Debug)]
pub struct Direction<P> {
    config: FaultConfig,
    counters: FaultCounters,
    random: Random,
    /// Time at which the bottleneck has sent all its packets.
    busy_until: Instant,
    /// By due time, then arrival, so that packets with equal times keep their order.
    on_wire: BTreeMap<(Instant, u64), P>,
    arrivals: u64,
}

impl<P> Direction<P> {
    /// Creates a direction without packets.
    pub fn new(config: FaultConfig, seed: u64) -> Self {
        Direction {
            config,
            counters: FaultCounters::default(),
            random: Random::new(seed),
            busy_until: Instant::ZERO,
            on_wire: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Offers a packet of `len` bytes. `spared` packets are neither lost nor delayed further.
    pub fn offer(&mut self, now: Instant, packet: P, len: usize, spared: bool) {
        self.counters.packets += 1;
        let (lost, held) = (
            strikes(&mut self.random, self.config.loss_ppm),
            strikes(&mut self.random, self.config.reorder_ppm),
        );
        let fraction = self.random.number() % 1024;
        let start = self.busy_until.max(now);
        let mut sent = start;
        if let Some(rate) = self.config.rate_bps {
            let waiting = (start - now).as_nanos() as u64 / 1_000 * rate / 8_000_000;
            if waiting + len as u64 > self.config.queue_len {
                self.counters.queue_drops += 1;
                return;
            }
            sent = start + Duration::from_nanos(len as u64 * 8 * 1_000_000_000 / rate.max(1));
        }
        self.busy_until = sent;
        let mut due = sent + self.config.delay;
        if lost && !spared {
            self.counters.lost += 1;
            return;
        }
        if held && !spared {
            self.counters.held += 1;
            let (least, most) = self.config.hold;
            due += least + (most - least) * fraction as u32 / 1024;
        }
        self.arrivals += 1;
        self.on_wire.insert((due, self.arrivals), packet);
    }

    /// Returns the next packet that is due by `now`, with its due time.
    pub fn take_due(&mut self, now: Instant) -> Option<(Instant, P)> {
        let entry = self.on_wire.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let ((due, _), packet) = entry.remove_entry();
        Some((due, packet))
    }

    /// Returns when the next packet is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.on_wire.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns the counters.
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn drain(direction: &mut Direction<u32>) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| direction.take_due(Instant::FAR_FUTURE))
            .map(|(due, packet)| (due.as_nanos() / 1_000, packet))
            .collect()
    }

    #[test]
    fn the_bottleneck_spaces_packets_and_drops_beyond_its_queue() {
        let config = FaultConfig {
            rate_bps: Some(8_000_000), // a byte per microsecond
            queue_len: 2_500,
            delay: MS,
            ..FaultConfig::CLEAN
        };
        let mut direction = Direction::new(config, 1);
        for tag in 0..4 {
            direction.offer(at(0), tag, 1_000, false);
        }
        assert_eq!(direction.counters().queue_drops, 2);
        direction.offer(at(1_500), 9, 1_000, false);
        assert_eq!(drain(&mut direction), [(2_000, 0), (3_000, 1), (4_000, 9)]);
    }

    #[test]
    fn loss_and_reordering_occur_at_their_rates_and_repeat_with_the_seed() {
        let config = FaultConfig {
            loss_ppm: 50_000,
            reorder_ppm: 50_000,
            hold: (MS, 3 * MS),
            delay: MS,
            ..FaultConfig::CLEAN
        };
        let run = |seed| {
            let mut direction = Direction::new(config, seed);
            for tag in 0..10_000 {
                direction.offer(at(u64::from(tag) * 100), tag, 1_000, false);
            }
            (direction.counters(), drain(&mut direction))
        };
        let (counters, got) = run(7);
        assert_eq!(run(7), (counters, got.clone()));
        assert_ne!(run(8).1, got);
        assert!((400..600).contains(&counters.lost) && (380..600).contains(&counters.held), "{counters:?}");
        assert_eq!(got.len() as u64, 10_000 - counters.lost);
        let late = got.iter().map(|(due, tag)| due - u64::from(*tag) * 100);
        assert!(late.clone().all(|l| (1_000..4_000).contains(&l)));
        assert_eq!(late.filter(|l| *l >= 2_000).count() as u64, counters.held);
    }

    #[test]
    fn spared_packets_only_wait() {
        let config = FaultConfig { loss_ppm: 1_000_000, delay: MS, ..FaultConfig::CLEAN };
        let mut direction = Direction::new(config, 1);
        direction.offer(at(0), 1, 60, true);
        direction.offer(at(0), 2, 60, false);
        assert_eq!(drain(&mut direction), [(1_000, 1)]);
    }
}
