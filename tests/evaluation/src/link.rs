//! Links, and how a fabric divides messages into packets.

use serde::Serialize;

use crate::{NANOSECOND, Picoseconds};

/// A kind of link: rate, packets, delays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fabric {
    /// Short name.
    pub name: &'static str,
    /// Bits of data a second, after the coding of the line.
    pub bits_per_second: u64,
    /// Bytes of a message that a packet carries at most.
    pub payload: u32,
    /// Bytes of headers of a packet.
    pub header: u32,
    /// Shortest packet, bytes.
    pub shortest: u32,
    /// Bytes of time on the line that belong to no packet: preamble, check sequence, gap between frames.
    pub gap: u32,
    /// Delay of the cable, nanoseconds.
    pub cable_ns: u32,
    /// Delay of the switch, nanoseconds, beside receiving a whole packet first.
    pub switch_ns: u32,
}

/// 100 m at 5 ns/m, as the paper's links.
const CABLE_NS: u32 = 500;

impl Fabric {
    /// Ethernet with frames of 1,514 bytes on a line of this many bits of data a second.
    pub const fn ethernet(bits_per_second: u64) -> Self {
        Fabric {
            name: "ethernet",
            bits_per_second,
            payload: 1500,
            header: 14,
            shortest: 60,
            gap: 24,
            cable_ns: CABLE_NS,
            switch_ns: 1000,
        }
    }

    /// InfiniBand with packets of 282 bytes: 256 of data, 26 of headers (LRH, BTH, both CRCs).
    pub const fn infiniband(bits_per_second: u64) -> Self {
        Fabric {
            name: "infiniband",
            bits_per_second,
            payload: 256,
            header: 26,
            shortest: 26,
            gap: 0,
            cable_ns: CABLE_NS,
            switch_ns: 200,
        }
    }

    /// The paper's Ethernet SAN: a line of 1.25 Gb/s, coded 8b/10b.
    pub const PAPER_ETHERNET: Fabric = Fabric::ethernet(1_000_000_000);
    /// The paper's InfiniBand SAN: a line of 2.5 Gb/s, coded 8b/10b.
    pub const PAPER_INFINIBAND: Fabric = Fabric::infiniband(2_000_000_000);

    /// Divides a message into packets.
    pub fn divide(&self, bytes: u32) -> Shape {
        let packets = bytes.div_ceil(self.payload).max(1);
        let of = |payload: u32| (payload + self.header).max(self.shortest) + self.gap;
        let last = of(bytes - (packets - 1) * self.payload);
        let full = of(self.payload);
        Shape {
            packets,
            first: if packets == 1 { last } else { full },
            last,
            wire: (packets - 1) * full + last,
        }
    }

    /// Time that bytes take on the line.
    pub fn time(&self, bytes: u32) -> Picoseconds {
        (f64::from(bytes) * (8e12 / self.bits_per_second as f64)).round() as Picoseconds
    }
}

/// A message as packets; bytes include what each packet takes on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of packets.
    pub packets: u32,
    /// Bytes of the first packet.
    pub first: u32,
    /// Bytes of the last packet.
    pub last: u32,
    /// Bytes of all packets.
    pub wire: u32,
}

/// When the first and the last packet of a message are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The first packet has arrived.
    pub head: Picoseconds,
    /// The last packet has arrived.
    pub tail: Picoseconds,
}

impl Train {
    /// A message that is there as a whole.
    pub const fn whole(at: Picoseconds) -> Self {
        Train { head: at, tail: at }
    }
}

/// One direction of a link. Messages pass one after the other; packets of one message follow each other
/// as they arrive, so that a message crosses a switch packet by packet and not as a whole.
#[derive(Clone, Debug)]
pub struct Link {
    fabric: Fabric,
    free: Picoseconds,
    counters: LinkCounters,
}

/// What a link has carried.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounters {
    /// Messages.
    pub messages: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of time on the line.
    pub wire_bytes: u64,
    /// Time that the line was taken, picoseconds.
    pub busy: u64,
}

impl Link {
    /// A link that carries nothing yet.
    pub fn new(fabric: &Fabric) -> Self {
        Link { fabric: fabric.clone(), free: 0, counters: LinkCounters::default() }
    }

    /// Carries a message whose packets are there as `ready` says; returns when they arrive at the other
    /// end.
    pub fn carry(&mut self, ready: Train, bytes: u32) -> Train {
        let shape = self.fabric.divide(bytes);
        let taken = self.fabric.time(shape.wire);
        let start = self.free.max(ready.head);
        let end = (start + taken).max(ready.tail + self.fabric.time(shape.last));
        self.free = end;
        self.counters.messages += 1;
        self.counters.packets += u64::from(shape.packets);
        self.counters.wire_bytes += u64::from(shape.wire);
        self.counters.busy += taken;
        let cable = (f64::from(self.fabric.cable_ns) * NANOSECOND) as Picoseconds;
        Train { head: start + self.fabric.time(shape.first) + cable, tail: end + cable }
    }

    /// Returns what the link has carried.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Share of the time up to `now` that the line is taken; what is queued counts.
    pub fn utilisation(&self, now: Picoseconds) -> f64 {
        self.counters.busy as f64 / now.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Fabric, Link, Shape, Train};

    #[test]
    fn messages_are_divided_as_the_paper_says() {
        let ethernet = Fabric::PAPER_ETHERNET;
        assert_eq!(ethernet.divide(1500), Shape { packets: 1, first: 1538, last: 1538, wire: 1538 });
        assert_eq!(ethernet.divide(1501), Shape { packets: 2, first: 1538, last: 84, wire: 1622 });
        assert_eq!(ethernet.divide(40), Shape { packets: 1, first: 84, last: 84, wire: 84 });
        let infiniband = Fabric::PAPER_INFINIBAND;
        assert_eq!(infiniband.divide(256), Shape { packets: 1, first: 282, last: 282, wire: 282 });
        assert_eq!(infiniband.divide(1500), Shape { packets: 6, first: 282, last: 246, wire: 1656 });
        assert_eq!(infiniband.divide(0), Shape { packets: 1, first: 26, last: 26, wire: 26 });
    }

    #[test]
    fn packets_of_a_message_cross_a_switch_one_by_one() {
        let fabric = Fabric { cable_ns: 0, ..Fabric::PAPER_INFINIBAND };
        let (mut up, mut down) = (Link::new(&fabric), Link::new(&fabric));
        let arrived = up.carry(Train::whole(0), 2560);
        let packet = fabric.time(282);
        assert_eq!(arrived, Train { head: packet, tail: 10 * packet });
        // One packet later than on the first link, not ten.
        assert_eq!(down.carry(arrived, 2560).tail, 11 * packet);
        assert_eq!(down.counters().packets, 10);
    }

    #[test]
    fn a_slower_link_is_taken_for_as_long_as_it_needs() {
        let slow = Fabric { bits_per_second: 500_000_000, cable_ns: 0, ..Fabric::PAPER_INFINIBAND };
        let mut link = Link::new(&slow);
        let packet = slow.time(282);
        assert_eq!(link.carry(Train { head: 0, tail: 10 }, 512).tail, 2 * packet);
        assert_eq!(link.carry(Train::whole(0), 256).head, 3 * packet);
    }
}
