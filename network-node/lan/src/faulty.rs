//! A wrapper that loses, duplicates, reorders, corrupts and delays the frames that a port receives, by a seed
//! and virtual time.
//!
//! Faults apply to received frames, so both ends of a link are wrapped for faults in both directions.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_types::{Duration, Instant};
use csp_wire::offload::{Checksum, Frame, Gso};

use crate::port::{LanPort, LanReceiver, RECEIVE_BATCH_MAX, ReceiveCounters};

/// Rates of faults, per million frames. Each fault is drawn independently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultConfig {
    /// Frames that are lost.
    pub loss_ppm: u32,
    /// Frames that are received twice.
    pub duplicate_ppm: u32,
    /// Frames delayed by a further [`FaultConfig::reorder_delay`], so that later ones overtake them.
    pub reorder_ppm: u32,
    /// Frames with one bit flipped after the Ethernet header. ARP is excluded: it has no checksum to detect
    /// the error.
    pub corrupt_ppm: u32,
    /// Delay of every frame.
    pub delay: Duration,
    /// Further delay of a reordered frame.
    pub reorder_delay: Duration,
}

/// Counters of the faults applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounters {
    /// Frames lost.
    pub lost: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames delayed further.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
}

/// SplitMix64: good enough for faults, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn draw(&mut self, ppm: u32) -> bool {
        // Drawn even at 0 ppm, so that the rate of one fault does not change the others.
        self.next() % 1_000_000 < u64::from(ppm)
    }
}

struct Held {
    bytes: Vec<u8>,
    checksum: Checksum,
    gso: Option<Gso>,
}

struct State {
    config: FaultConfig,
    counters: FaultCounters,
    random: Random,
    now: Instant,
    /// By due time, then arrival, so that frames with equal delays keep their order.
    held: BTreeMap<(Instant, u64), Held>,
    arrivals: u64,
}

impl State {
    fn hold(&mut self, frame: Frame<'_>) {
        if self.random.draw(self.config.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        let copies = 1 + u64::from(self.random.draw(self.config.duplicate_ppm));
        self.counters.duplicated += copies - 1;
        for _ in 0..copies {
            let mut due = self.now + self.config.delay;
            if self.random.draw(self.config.reorder_ppm) {
                self.counters.reordered += 1;
                due += self.config.reorder_delay;
            }
            let mut bytes = frame.bytes.to_vec();
            let is_arp = bytes.get(12..14) == Some(&[0x08, 0x06]);
            if self.random.draw(self.config.corrupt_ppm) && bytes.len() > 14 && !is_arp {
                self.counters.corrupted += 1;
                let bit = self.random.next() as usize % ((bytes.len() - 14) * 8);
                bytes[14 + bit / 8] ^= 1 << (bit % 8);
            }
            self.arrivals += 1;
            self.held.insert((due, self.arrivals), Held { bytes, checksum: frame.checksum, gso: frame.gso });
        }
    }

    fn take_due(&mut self) -> Option<Held> {
        let entry = self.held.first_entry()?;
        if entry.key().0 <= self.now { Some(entry.remove()) } else { None }
    }
}

/// Controls a faulty port.
#[derive(Clone)]
pub struct FaultHandle(Arc<Mutex<State>>);

impl FaultHandle {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the port's time.
    pub fn set_now(&self, now: Instant) {
        self.lock().now = now;
    }

    /// Returns when the next delayed frame is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.lock().held.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns the faults applied so far.
    pub fn counters(&self) -> FaultCounters {
        self.lock().counters
    }
}

struct Receiver {
    inner: Box<dyn LanReceiver>,
    handle: FaultHandle,
}

impl LanReceiver for Receiver {
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        let handle = self.handle.clone();
        while self.inner.receive(&mut |frame| handle.lock().hold(frame)) == RECEIVE_BATCH_MAX {}
        for taken in 0..RECEIVE_BATCH_MAX {
            let Some(held) = self.handle.lock().take_due() else { return taken };
            each(Frame { bytes: &held.bytes, checksum: held.checksum, gso: held.gso });
        }
        RECEIVE_BATCH_MAX
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        self.inner.fds()
    }

    fn counters(&mut self) -> ReceiveCounters {
        self.inner.counters()
    }
}

/// Wraps `port`, whose received frames are subject to `config`. The same `seed` and frames give the same
/// faults.
pub fn wrap(port: LanPort, config: FaultConfig, seed: u64) -> (LanPort, FaultHandle) {
    let state = State {
        config,
        counters: FaultCounters::default(),
        random: Random(seed),
        now: Instant::ZERO,
        held: BTreeMap::new(),
        arrivals: 0,
    };
    let handle = FaultHandle(Arc::new(Mutex::new(state)));
    let receiver = Box::new(Receiver { inner: port.receiver, handle: handle.clone() });
    (LanPort { info: port.info, receiver, transmitter: port.transmitter }, handle)
}

#[cfg(test)]
mod tests {
    use csp_types::MacAddr;

    use super::*;
    use crate::memory;

    const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

    fn run(config: FaultConfig, seed: u64, frames: u32) -> (Vec<u32>, FaultCounters) {
        let (mut a, b) = memory::pair(frames as usize, 1500, MACS);
        let (mut b, handle) = wrap(b, config, seed);
        let mut got = Vec::new();
        for tag in 0..frames {
            handle.set_now(Instant::from_nanos(u64::from(tag) * 1_000));
            let header = [&MACS[1].0[..], &[0; 8]].concat();
            a.transmitter.transmit(&[&header, &tag.to_be_bytes()], None).unwrap();
            b.receiver.receive(&mut |f| got.push(u32::from_be_bytes(f.bytes[14..18].try_into().unwrap())));
        }
        while let Some(due) = handle.next_due() {
            handle.set_now(due);
            b.receiver.receive(&mut |f| got.push(u32::from_be_bytes(f.bytes[14..18].try_into().unwrap())));
        }
        (got, handle.counters())
    }

    #[test]
    fn faults_occur_at_their_rates_and_repeat_with_the_seed() {
        let config = FaultConfig {
            loss_ppm: 50_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 50_000,
            corrupt_ppm: 0,
            delay: Duration::from_micros(10),
            reorder_delay: Duration::from_micros(5),
        };
        let (got, counters) = run(config, 7, 2_000);
        assert_eq!(run(config, 7, 2_000), (got.clone(), counters));
        assert_ne!(run(config, 8, 2_000).0, got);
        assert_eq!(got.len() as u64, 2_000 - counters.lost + counters.duplicated);
        assert!((50..200).contains(&counters.lost), "{counters:?}");
        assert!(got.windows(2).any(|w| w[0] > w[1]), "nothing was reordered");
    }

    #[test]
    fn corruption_flips_one_bit_behind_the_ethernet_header() {
        let (got, counters) = run(FaultConfig { corrupt_ppm: 1_000_000, ..FaultConfig::default() }, 1, 100);
        assert_eq!(counters.corrupted, 100);
        assert!(got.iter().enumerate().all(|(sent, got)| (sent as u32 ^ got).count_ones() == 1));
    }

    #[test]
    fn without_faults_everything_arrives_in_order() {
        let (got, _) = run(FaultConfig { delay: Duration::from_millis(1), ..FaultConfig::default() }, 1, 300);
        assert_eq!(got, (0..300).collect::<Vec<_>>());
    }
}
