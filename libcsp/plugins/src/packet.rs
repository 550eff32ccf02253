//! A packet as plug-ins see it: the bytes of its frame, the positions of its headers, and metadata of the
//! node.

use csp_classify::multifield::{Direction, Fields, InstanceId, NoFields, Parsed, RuleHandle, parse_ethernet};

pub use csp_types::options::Fallback;

/// Length of an Ethernet header without VLAN tags: the shortest frame.
const ETHERNET_LEN: usize = 14;

/// The target of a rule: an instance, and the fallback. The classifier stores both as one number, whose
/// highest bit is the fallback.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    /// The instance; below 2³¹.
    pub instance: InstanceId,
    /// Fate of the packet while the instance's environment does not run.
    pub fallback: Fallback,
}

const DROP: u32 = 1 << 31;

impl Binding {
    /// Encodes the binding as the classifier stores it.
    pub fn encode(self) -> InstanceId {
        let bit = if self.fallback == Fallback::Drop { DROP } else { 0 };
        InstanceId(self.instance.0 & !DROP | bit)
    }

    /// Decodes the number that the classifier stores.
    pub fn decode(number: InstanceId) -> Self {
        let fallback = if number.0 & DROP != 0 { Fallback::Drop } else { Fallback::Pass };
        Binding { instance: InstanceId(number.0 & !DROP), fallback }
    }
}

/// Metadata of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The interface on which it was received or is to be sent.
    pub interface: u16,
    /// Whether it was received or is to be sent there.
    pub direction: Direction,
    /// The rule that matched. A packet with a rule is not classified again.
    pub rule: Option<RuleHandle>,
    /// Number of plug-ins that have processed it.
    pub hops: u8,
    /// Number of packets that it represents; more than 1 if the port has coalesced them.
    pub coalesced: u16,
    /// Whether the transport checksum field holds only the sum of the pseudo header; the transmitting device
    /// completes it.
    pub checksum_partial: bool,
    /// Whether plug-ins may change the frame's length. Not allowed for coalesced packets, with a partial
    /// checksum, or on level 3.
    pub resizable: bool,
}

impl Metadata {
    /// A packet that was just received or is about to be sent, before classification.
    pub const fn new(interface: u16, direction: Direction) -> Self {
        let (checksum_partial, resizable) = (false, false);
        Metadata { interface, direction, rule: None, hops: 0, coalesced: 1, checksum_partial, resizable }
    }
}

/// A frame with its metadata. Plug-ins change bytes in place; the length changes only by
/// [`rewrite`](Packet::rewrite).
#[derive(Debug)]
pub struct Packet<'a> {
    /// The frame, followed by the space into which it may grow.
    room: &'a mut [u8],
    len: usize,
    parsed: Result<Parsed, NoFields>,
    /// What the node knows beside the bytes.
    pub metadata: Metadata,
}

impl<'a> Packet<'a> {
    /// Parses a frame, from its Ethernet header on.
    pub fn new(bytes: &'a mut [u8], metadata: Metadata) -> Self {
        let len = bytes.len();
        Packet::with_room(bytes, len, metadata)
    }

    /// Parses a frame of `len` bytes that may grow into the rest of `room`.
    pub fn with_room(room: &'a mut [u8], len: usize, metadata: Metadata) -> Self {
        let len = len.min(room.len());
        let parsed = parse_ethernet(&room[..len], metadata.interface, metadata.direction);
        Packet { room, len, parsed, metadata }
    }

    /// Returns the frame.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// Returns the largest length to which the frame can grow, in bytes.
    pub fn room(&self) -> usize {
        if self.metadata.resizable { self.room.len() } else { self.len }
    }

    /// Replaces the start of the frame, sets the frame's length, and parses it again. Returns false, and
    /// changes nothing, if the length may not change, if it is shorter than an Ethernet header or exceeds the
    /// space, or if the length changes and `start` does not cover the whole frame.
    pub fn rewrite(&mut self, start: &[u8], len: usize) -> bool {
        if len != self.len {
            let fits = (ETHERNET_LEN..=self.room.len()).contains(&len) && start.len() >= len;
            if !self.metadata.resizable || !fits {
                return false;
            }
        }
        let count = start.len().min(len);
        self.room[..count].copy_from_slice(&start[..count]);
        self.len = len;
        self.parsed = parse_ethernet(&self.room[..len], self.metadata.interface, self.metadata.direction);
        true
    }

    /// Returns where the headers are; an error if the frame is not IP, or malformed.
    pub fn parsed(&self) -> Result<&Parsed, NoFields> {
        self.parsed.as_ref().map_err(|error| *error)
    }

    /// Returns the fields that rules compare.
    pub fn fields(&self) -> Option<&Fields> {
        self.parsed.as_ref().ok().map(|parsed| &parsed.fields)
    }

    /// Returns the packet's length by its IP header, or the frame's length if it is not IP.
    pub fn ip_len(&self) -> usize {
        self.parsed.as_ref().map_or(self.len, |parsed| parsed.end - parsed.ip)
    }

    /// Changes the IP header in place and parses the frame again. `change` receives the bytes up to the
    /// transport header.
    pub fn change_ip_header(&mut self, change: impl FnOnce(&mut [u8])) {
        if let Ok(parsed) = &self.parsed
            && let Some(header) = self.room.get_mut(parsed.ip..parsed.transport)
        {
            change(header);
            let bytes = &self.room[..self.len];
            self.parsed = parse_ethernet(bytes, self.metadata.interface, self.metadata.direction);
        }
    }
}
