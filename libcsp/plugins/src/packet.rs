//! A packet as plug-ins see it: the bytes of its frame, where its headers are, and what the node knows about it.

use csp_classify::multifield::{Direction, Fields, InstanceId, NoFields, Parsed, RuleHandle, parse_ethernet};

/// Length of an Ethernet header without VLAN tags: the shortest frame.
const ETHERNET_LEN: usize = 14;

/// What happens to a rule's packets while the environment of its instance does not run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fallback {
    /// They are routed as if no rule had matched.
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}

/// What a rule is bound to: an instance, and the fallback. The classifier keeps both as one number, of which the highest
/// bit is the fallback.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    /// The instance; below 2³¹.
    pub instance: InstanceId,
    /// What happens without it.
    pub fallback: Fallback,
}

const DROP: u32 = 1 << 31;

impl Binding {
    /// The number that the classifier keeps.
    pub fn encode(self) -> InstanceId {
        let bit = if self.fallback == Fallback::Drop { DROP } else { 0 };
        InstanceId(self.instance.0 & !DROP | bit)
    }

    /// What the classifier's number means.
    pub fn decode(number: InstanceId) -> Self {
        let fallback = if number.0 & DROP != 0 { Fallback::Drop } else { Fallback::Pass };
        Binding { instance: InstanceId(number.0 & !DROP), fallback }
    }
}

/// What the node knows of a packet beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The interface at which it is processed.
    pub interface: u16,
    /// Its direction there.
    pub direction: Direction,
    /// The rule that matched. A packet that has one is not classified again.
    pub rule: Option<RuleHandle>,
    /// Plug-ins that have processed it.
    pub hops: u8,
    /// Packets that it represents: more than 1 if the port has coalesced them.
    pub coalesced: u16,
    /// Whether the transport checksum field holds the sum of the pseudo header only: the device that transmits the packet completes it.
    pub checksum_partial: bool,
    /// Whether plug-ins may change the frame's length: not of coalesced packets, not with a partial checksum, not at level 3.
    pub resizable: bool,
}

impl Metadata {
    /// A packet that was just received or is about to be sent, before classification.
    pub const fn new(interface: u16, direction: Direction) -> Self {
        let (checksum_partial, resizable) = (false, false);
        Metadata { interface, direction, rule: None, hops: 0, coalesced: 1, checksum_partial, resizable }
    }
}

/// A frame with its metadata. Plug-ins change bytes in place; the length changes only by [`rewrite`](Packet::rewrite).
#[derive(Debug)]
pub struct Packet<'a> {
    /// The frame, and behind it the room in which it may grow.
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

    /// Returns the longest length that the frame may get.
    pub fn room(&self) -> usize {
        if self.metadata.resizable { self.room.len() } else { self.len }
    }

    /// Replaces the start of the frame, gives it a length, and parses it again. Returns false, and changes nothing, if the length may not
    /// change, is shorter than an Ethernet header, has no room, or if `start` ends before a frame of another length does.
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

    /// Changes the IP header, given from its first byte to the transport header, and parses the frame again.
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
