//! One direction of the link between two hosts, with its faults.

use csp_types::{Duration, Instant};

use crate::packet::{CE, NOT_ECT, Packet};
use crate::random::Random;

/// Gilbert-Elliott model: losses occur in bursts. The state changes with packets, and a burst ends after a
/// pause.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    pub begin: f64,
    pub end: f64,
    pub loss: f64,
}

/// Pause after which a burst has ended.
const BURST_SILENCE: Duration = Duration::from_millis(20);

/// A bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    pub bytes_per_second: u64,
    /// Capacity of its queue in bytes; packets beyond it are dropped.
    pub queue: u64,
    /// Queue length in bytes from which on ECN-capable packets are marked.
    pub mark: u64,
}

/// Parameters of a direction, drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct LinkPlan {
    pub delay: Duration,
    /// Random delay of each packet that preserves their order.
    pub jitter: Duration,
    pub loss: f64,
    pub bursts: Option<Bursts>,
    pub duplication: f64,
    /// Probability that a copy of a packet arrives much later.
    pub ghosts: f64,
    /// Probability that a packet is delayed …
    pub reordering: f64,
    /// … by up to this.
    pub hold: Duration,
    pub corruption: f64,
    pub bottleneck: Option<Bottleneck>,
    /// MTU changes: time since the start, and the new MTU in bytes.
    pub mtus: Vec<(Duration, usize)>,
    /// Whether packets that do not fit are reported by ICMP.
    pub icmp: bool,
    /// Outages: packets sent from … to … (since the start) are lost.
    pub outages: Vec<(Duration, Duration)>,
}

impl LinkPlan {
    /// Whether every packet arrives, in order, and after the same time.
    pub fn is_clean(&self) -> bool {
        self.is_lossless()
            && self.jitter == Duration::ZERO
            && self.reordering == 0.0
            && self.duplication == 0.0
    }

    /// Whether every packet arrives at least once.
    pub fn is_lossless(&self) -> bool {
        self.loss == 0.0
            && self.bursts.is_none()
            && self.corruption == 0.0
            && self.bottleneck.is_none()
            && self.mtus.is_empty()
            && self.outages.is_empty()
    }
}

/// The fate of a packet on the link.
#[derive(Debug, PartialEq)]
pub enum Fate {
    Lost(&'static str),
    /// It does not fit; with the MTU if that is reported to the sender.
    TooBig(Option<usize>),
    /// It arrives at this time (and a copy at that time).
    Arrives(Instant, Option<Instant>),
}

pub struct Link {
    pub plan: LinkPlan,
    random: Random,
    start: Instant,
    in_burst: bool,
    last_sent: Instant,
    /// When the bottleneck will have sent its queue.
    busy_until: Instant,
    last_arrival: Instant,
    pub packets: u64,
    pub lost: u64,
    pub marked: u64,
}

impl Link {
    pub fn new(plan: LinkPlan, seed: u64, start: Instant) -> Link {
        Link {
            plan,
            random: Random(seed),
            start,
            in_burst: false,
            last_sent: start,
            busy_until: start,
            last_arrival: start,
            packets: 0,
            lost: 0,
            marked: 0,
        }
    }

    /// The MTU at `now`.
    pub fn mtu(&self, now: Instant) -> usize {
        let elapsed = now - self.start;
        let mut changes = self.plan.mtus.iter().rev();
        changes.find(|(from, _)| *from <= elapsed).map_or(usize::MAX, |(_, mtu)| *mtu)
    }

    /// Sends a packet, which may be marked.
    pub fn carry(&mut self, now: Instant, packet: &mut Packet) -> Fate {
        self.packets += 1;
        // RFC 8200 §5: every link carries IPv6 packets of 1280 bytes.
        let least = if packet.tuple.local.is_ipv4() { 0 } else { 1_280 };
        let mtu = self.mtu(now).max(least);
        if packet.ip_len() > mtu {
            self.lost += 1;
            return Fate::TooBig(self.plan.icmp.then_some(mtu));
        }
        if let Some(why) = self.loses(now, packet) {
            self.lost += 1;
            return Fate::Lost(why);
        }
        let Some(leaves) = self.pass_bottleneck(now, packet) else {
            self.lost += 1;
            return Fate::Lost("queue full");
        };
        let arrives = self.arrival(leaves);
        let twice = self.random.chance(self.plan.duplication);
        let again = twice.then(|| arrives + Duration::from_micros(self.random.below(3_000)));
        let ghost = self.plan.ghosts > 0.0 && self.random.chance(self.plan.ghosts);
        let again = again.or(ghost.then(|| arrives + Duration::from_millis(10 + self.random.below(8_000))));
        Fate::Arrives(arrives, again)
    }

    fn loses(&mut self, now: Instant, packet: &Packet) -> Option<&'static str> {
        let elapsed = now - self.start;
        let silence = now - self.last_sent;
        self.last_sent = now;
        if self.plan.outages.iter().any(|(from, to)| (*from..*to).contains(&elapsed)) {
            return Some("outage");
        }
        if let Some(bursts) = self.plan.bursts {
            let stays = silence < BURST_SILENCE;
            self.in_burst = match self.in_burst {
                true => stays && !self.random.chance(bursts.end),
                false => self.random.chance(bursts.begin),
            };
            if self.in_burst && self.random.chance(bursts.loss) {
                return Some("burst");
            }
        }
        if self.random.chance(self.plan.loss) {
            return Some("lost");
        }
        if self.random.chance(self.plan.corruption) {
            assert!(packet.is_caught_with_wrong_bit(self.random.next()), "a checksum let a wrong bit pass");
            return Some("corrupted");
        }
        None
    }

    /// When the packet leaves the bottleneck; `None` if its queue is full.
    fn pass_bottleneck(&mut self, now: Instant, packet: &mut Packet) -> Option<Instant> {
        let Some(Bottleneck { bytes_per_second, queue, mark }) = self.plan.bottleneck else {
            return Some(now);
        };
        let begins = self.busy_until.max(now);
        let waiting = (begins - now).as_nanos() as u64 * bytes_per_second / 1_000_000_000;
        if waiting > queue {
            return None;
        }
        if waiting > mark && packet.ecn != NOT_ECT {
            self.marked += u64::from(packet.ecn != CE);
            packet.ecn = CE;
        }
        let nanos = packet.ip_len() as u64 * 1_000_000_000 / bytes_per_second;
        self.busy_until = begins + Duration::from_nanos(nanos);
        Some(self.busy_until)
    }

    fn arrival(&mut self, leaves: Instant) -> Instant {
        let jitter = Duration::from_nanos(self.random.below(self.plan.jitter.as_nanos() as u64 + 1));
        let arrives = leaves + self.plan.delay + jitter;
        if self.plan.reordering > 0.0 && self.random.chance(self.plan.reordering) {
            return arrives + Duration::from_nanos(self.random.below(self.plan.hold.as_nanos() as u64 + 1));
        }
        self.last_arrival = self.last_arrival.max(arrives);
        self.last_arrival
    }
}
