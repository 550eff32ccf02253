//! Packets at plug-in hosts (level 3): the part of each that stays here, and the permitted answers.
//!
//! ```text
//!   handed over ─▶ first | out | out | ... | next     numbered in sequence, answered in sequence
//!                   │ answer s: those before s are lost, s leaves, what follows stays
//!                   ▼
//!       PASS: routed   DROP   TRANSMIT: on a port   ENTER: on in this graph   ABSENT: the rule's fallback
//! ```
//! A host answers each packet once, with its rule, a frame of its length, and no fewer hops. Other answers
//! are counted by reason and dropped. When a host fails, its packets are lost, and its environment does not
//! run until the host is back.
//!
//! **A change of plug-ins** while hosts have packets holds back the packets that match rules afterwards,
//! until the packets that were at hosts before have returned. No packet then overtakes an earlier one of its
//! flow when its plug-in moves. The wait is bounded in time and bytes.

use std::collections::VecDeque;

use csp_classify::multifield::{Direction, Hit, InstanceId, RuleHandle};
use csp_plugins::{EnvironmentId, Fallback, HOPS_MAX, Metadata};
use csp_types::{Duration, Instant};
use csp_wire::offload::{Checksum, Gso, TxOffload};
use csp_wire::packets::{Head, Kind, MatchedRule};

use super::api::NetworkOutput;

/// Largest number of packets of one worker that a host holds.
const OUT_MAX: usize = 16_384;
/// Largest total length of frames held back after a change, in bytes.
const HELD_LEN_MAX: usize = 1 << 20;
/// Largest number of frames held back: as many of the shortest as fit.
const HELD_FRAMES_MAX: usize = HELD_LEN_MAX / 60;
/// Longest time that a frame is held back. A host normally answers within a thousandth of it.
const HOLD_MAX: Duration = Duration::from_millis(200);

/// Counters of packets for hosts. Each packet passed to a host is counted once as answered, lost or wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCounters {
    /// Packets passed to hosts.
    pub sent: u64,
    /// Of these, packets that they answered.
    pub answered: u64,
    /// Of these, packets that were at a host when it failed, or that it skipped.
    pub lost: u64,
    /// Packets dropped because the link to the host had no room, or the host held the largest number of
    /// packets.
    pub full: u64,
    /// Packets dropped because they are longer than a message, or because too many were held back.
    pub dropped: u64,
    /// Packets held back after a change of plug-ins.
    pub held: u64,
    /// Answers about packets that were answered, or lost, before.
    pub repeated: u64,
    /// Answers about packets that no host was given.
    pub unknown: u64,
    /// Answers with another rule than the packet's.
    pub wrong_rule: u64,
    /// Answers with an impossible number of hops, or more copies than plug-ins can make.
    pub wrong_hops: u64,
    /// Answers with a frame of another length.
    pub wrong_length: u64,
    /// Answers that pass the packet to an instance to which no instance of the host leads.
    pub wrong_instance: u64,
    /// Records of a kind that hosts do not send.
    pub wrong_kind: u64,
}

impl HostCounters {
    /// Returns the number of rejected records.
    pub fn refused(&self) -> u64 {
        self.violations().iter().map(|(_, count)| count).sum()
    }

    /// Returns the rejected records by reason.
    pub fn violations(&self) -> [(&'static str, u64); 7] {
        [
            ("repeated", self.repeated),
            ("unknown", self.unknown),
            ("rule", self.wrong_rule),
            ("hops", self.wrong_hops),
            ("length", self.wrong_length),
            ("instance", self.wrong_instance),
            ("kind", self.wrong_kind),
        ]
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &HostCounters) {
        for (sum, more) in [
            (&mut self.sent, other.sent),
            (&mut self.answered, other.answered),
            (&mut self.lost, other.lost),
            (&mut self.full, other.full),
            (&mut self.dropped, other.dropped),
            (&mut self.held, other.held),
            (&mut self.repeated, other.repeated),
            (&mut self.unknown, other.unknown),
            (&mut self.wrong_rule, other.wrong_rule),
            (&mut self.wrong_hops, other.wrong_hops),
            (&mut self.wrong_length, other.wrong_length),
            (&mut self.wrong_instance, other.wrong_instance),
            (&mut self.wrong_kind, other.wrong_kind),
        ] {
            *sum += more;
        }
    }
}

/// Offload properties of a frame, which are needed when its processing continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offload {
    /// It was received.
    Received(Checksum, Option<Gso>),
    /// It is transmitted.
    Transmitted(Option<TxOffload>),
}

/// The part of a packet that stays here while the packet is at a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    pub(super) rule: RuleHandle,
    pub(super) fallback: Fallback,
    pub(super) metadata: Metadata,
    pub(super) offload: Offload,
    len: u32,
    copies: u8,
    /// Number of plug-in changes before the packet was passed on.
    changes: u32,
}

#[derive(Default)]
struct Host {
    /// Sequence number of the oldest packet at the host.
    first: u32,
    out: VecDeque<Out>,
}

impl Host {
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.out.len() as u32)
    }

    /// Removes the packets before `until` and counts them as lost.
    fn lose(&mut self, count: usize) -> u64 {
        let count = count.min(self.out.len());
        self.out.drain(..count);
        self.first = self.first.wrapping_add(count as u32);
        count as u64
    }
}

/// A frame that is held back.
pub(super) struct HeldFrame {
    pub(super) hit: Hit,
    pub(super) metadata: Metadata,
    pub(super) offload: Offload,
    pub(super) len: usize,
}

/// Frames that are held back, in order.
#[derive(Default)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) frames: VecDeque<HeldFrame>,
    /// The hosts to wait for, each with the number of the first packet that need not have returned.
    until: Vec<(usize, u32)>,
    since: Option<Instant>,
}

/// The hosts of one worker, by environment.
pub(super) struct Hosts {
    hosts: Vec<Host>,
    pub(super) held: Held,
    pub(super) counters: HostCounters,
    /// Changes of plug-ins so far.
    changes: u32,
}

impl Hosts {
    pub(super) fn new(environments: usize) -> Self {
        let hosts = (0..environments).map(|_| Host::default()).collect();
        let until = Vec::with_capacity(environments);
        Hosts {
            hosts,
            held: Held { until, ..Held::default() },
            counters: HostCounters::default(),
            changes: 0,
        }
    }

    /// Reserves the memory for packets of a host.
    pub(super) fn prepare(&mut self, at: EnvironmentId) {
        if let Some(host) = self.hosts.get_mut(usize::from(at.0)) {
            host.out.reserve(OUT_MAX.saturating_sub(host.out.capacity()));
            let Held { bytes, frames, .. } = &mut self.held;
            bytes.reserve(HELD_LEN_MAX.saturating_sub(bytes.capacity()));
            frames.reserve(HELD_FRAMES_MAX.saturating_sub(frames.capacity()));
        }
    }

    /// Passes a packet to a host. Without room the packet is dropped: if it bypassed its plug-in, it could
    /// overtake earlier packets of its flow.
    pub(super) fn hand_over(
        &mut self,
        now: Instant,
        (at, instance): (EnvironmentId, InstanceId),
        (metadata, fallback, offload): (Metadata, Fallback, Offload),
        frame: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        let (Some(host), Some(rule)) = (self.hosts.get_mut(usize::from(at.0)), metadata.rule) else { return };
        let head = Head {
            hops: metadata.hops,
            egress: metadata.direction == Direction::Egress,
            instance: instance.0,
            rule: MatchedRule { slot: rule.slot, generation: rule.generation },
            interface: metadata.interface,
            coalesced: metadata.coalesced,
            partial: metadata.checksum_partial,
            ..Head::new(Kind::Packet, host.next())
        };
        if host.out.len() >= OUT_MAX || out.host(now, at, &head, frame).is_err() {
            self.counters.full += 1;
            return;
        }
        self.counters.sent += 1;
        let (len, copies, changes) = (frame.len() as u32, 0, self.changes);
        host.out.push_back(Out { rule, fallback, metadata, offload, len, copies, changes });
    }

    /// Returns the index of the packet that a record is about.
    fn find(&mut self, at: EnvironmentId, sequence: u32) -> Option<usize> {
        let host = self.hosts.get(usize::from(at.0))?;
        let place = sequence.wrapping_sub(host.first);
        if (place as usize) < host.out.len() {
            return Some(place as usize);
        }
        let before = place > u32::MAX / 2;
        *(if before { &mut self.counters.repeated } else { &mut self.counters.unknown }) += 1;
        None
    }

    /// Checks an answer with a frame of `len` bytes, and removes its packet; earlier packets are lost.
    pub(super) fn answered(&mut self, at: EnvironmentId, head: &Head, len: usize) -> Option<Out> {
        let place = self.find(at, head.sequence)?;
        let host = self.hosts.get_mut(usize::from(at.0))?;
        self.counters.lost += host.lose(place);
        let packet = host.out.pop_front()?;
        host.first = host.first.wrapping_add(1);
        let wrong = self.wrong(&packet, head, len);
        if let Some(counter) = wrong {
            *counter += 1;
            return None;
        }
        self.counters.answered += 1;
        Some(Out { metadata: Metadata { hops: head.hops, ..packet.metadata }, ..packet })
    }

    fn wrong(&mut self, packet: &Out, head: &Head, len: usize) -> Option<&mut u64> {
        if head.rule != (MatchedRule { slot: packet.rule.slot, generation: packet.rule.generation }) {
            return Some(&mut self.counters.wrong_rule);
        }
        if !(packet.metadata.hops..=HOPS_MAX).contains(&head.hops) {
            return Some(&mut self.counters.wrong_hops);
        }
        if head.kind != Kind::Drop && len != packet.len as usize {
            return Some(&mut self.counters.wrong_length);
        }
        None
    }

    /// Checks a copy of a packet at a host. Returns the part of the packet that stayed here.
    pub(super) fn copied(&mut self, at: EnvironmentId, head: &Head, len: usize) -> Option<Out> {
        let place = self.find(at, head.sequence)?;
        let packet = *self.hosts.get(usize::from(at.0))?.out.get(place)?;
        if let Some(counter) = self.wrong(&packet, head, len) {
            *counter += 1;
            return None;
        }
        if packet.copies >= HOPS_MAX {
            self.counters.wrong_hops += 1;
            return None;
        }
        let out = &mut self.hosts.get_mut(usize::from(at.0))?.out;
        out.get_mut(place)?.copies += 1;
        Some(packet)
    }

    /// Records that a host has failed: its packets are lost.
    pub(super) fn gone(&mut self, at: EnvironmentId) {
        if let Some(host) = self.hosts.get_mut(usize::from(at.0)) {
            self.counters.lost += host.lose(usize::MAX);
        }
    }

    /// Records a change of plug-ins: packets at hosts return before further packets are processed.
    pub(super) fn changed(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        let Hosts { hosts, held, .. } = self;
        held.until.clear();
        let out = hosts.iter().enumerate().filter(|(_, host)| !host.out.is_empty());
        held.until.extend(out.map(|(at, host)| (at, host.next())));
    }

    /// Returns whether a packet was passed on before the last change: instances to which its host leads may
    /// have been removed.
    pub(super) const fn is_outdated(&self, packet: &Out) -> bool {
        packet.changes != self.changes
    }

    /// Returns whether packets are held back.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.held.until.is_empty() || !self.held.frames.is_empty()
    }

    /// Holds a frame back.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        hit: Hit,
        (metadata, offload): (Metadata, Offload),
        frame: &[u8],
    ) {
        let Held { bytes, frames, since, .. } = &mut self.held;
        if bytes.len() + frame.len() > HELD_LEN_MAX || frames.len() >= HELD_FRAMES_MAX {
            self.counters.dropped += 1;
            return;
        }
        since.get_or_insert(now);
        bytes.extend_from_slice(frame);
        frames.push_back(HeldFrame { hit, metadata, offload, len: frame.len() });
        self.counters.held += 1;
    }

    /// Returns whether held packets may continue: all earlier packets have returned, or the time limit has
    /// passed and they count as lost.
    pub(super) fn may_resume(&mut self, now: Instant) -> bool {
        let Hosts { hosts, held, counters, .. } = self;
        let late = held.since.is_some_and(|since| now.saturating_since(since) >= HOLD_MAX);
        held.until.retain(|(at, until)| {
            let Some(host) = hosts.get_mut(*at) else { return false };
            let left = until.wrapping_sub(host.first);
            let is_out = left != 0 && left <= host.out.len() as u32;
            if is_out && late {
                counters.lost += host.lose(left as usize);
            }
            is_out && !late
        });
        held.until.is_empty()
    }

    /// Returns the latest time at which packets that are held back continue.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.held.since.map(|since| since + HOLD_MAX)
    }

    /// Removes the packets that are held back, for processing. The caller returns the buffer, which is
    /// reused.
    pub(super) fn take_held(&mut self) -> Held {
        core::mem::take(&mut self.held)
    }

    /// Returns the buffer of [`take_held`](Self::take_held), to be reused.
    pub(super) fn reuse(&mut self, mut held: Held) {
        held.bytes.clear();
        held.frames.clear();
        held.since = None;
        self.held = held;
    }

    /// Returns the number of packets at hosts.
    pub(super) fn out(&self) -> usize {
        self.hosts.iter().map(|host| host.out.len()).sum()
    }
}
