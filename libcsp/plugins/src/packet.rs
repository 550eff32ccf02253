//! A packet as plug-ins see it: the bytes of its frame, where its headers are, and what the node knows about it.

use csp_classify::multifield::{Direction, Fields, InstanceId, NoFields, Parsed, RuleHandle, parse_ethernet};

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
}

impl Metadata {
    /// A packet that was just received or is about to be sent, before classification.
    pub const fn new(interface: u16, direction: Direction) -> Self {
        Metadata { interface, direction, rule: None, hops: 0, coalesced: 1 }
    }

    /// Returns whether the classifier looks at the packet: once only.
    pub const fn is_unclassified(&self) -> bool {
        self.rule.is_none()
    }
}

/// A frame with its metadata. Plug-ins change bytes in place; the length stays.
#[derive(Debug)]
pub struct Packet<'a> {
    bytes: &'a mut [u8],
    parsed: Result<Parsed, NoFields>,
    /// What the node knows beside the bytes.
    pub metadata: Metadata,
}

impl<'a> Packet<'a> {
    /// Parses a frame, from its Ethernet header on.
    pub fn new(bytes: &'a mut [u8], metadata: Metadata) -> Self {
        let parsed = parse_ethernet(bytes, metadata.interface, metadata.direction);
        Packet { bytes, parsed, metadata }
    }

    /// Returns the frame.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
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
        self.parsed.as_ref().map_or(self.bytes.len(), |parsed| parsed.end - parsed.ip)
    }

    /// Changes the IP header, given from its first byte to the transport header, and parses the frame again.
    pub fn change_ip_header(&mut self, change: impl FnOnce(&mut [u8])) {
        if let Ok(parsed) = &self.parsed
            && let Some(header) = self.bytes.get_mut(parsed.ip..parsed.transport)
        {
            change(header);
            self.parsed = parse_ethernet(self.bytes, self.metadata.interface, self.metadata.direction);
        }
    }
}
