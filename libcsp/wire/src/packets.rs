//! Records between a network node's worker and a plug-in host: packets for plug-ins of level 3, and what
//! becomes of them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! |    version    |     kind      |     hops      |     flags     |  0
//! +---------------+---------------+---------------+---------------+
//! |                           sequence                            |  4
//! +---------------------------------------------------------------+
//! |                      instance, by number                      |  8
//! +---------------------------------------------------------------+
//! |                             rule                              | 12
//! +-------------------------------+-------------------------------+
//! |      the rule's generation    |           interface           | 16
//! +-------------------------------+-------------------------------+
//! |       coalesced packets       |           reserved            | 20
//! +-------------------------------+-------------------------------+
//! |                        payload length                         | 24
//! +---------------------------------------------------------------+
//! |          payload, padded with zeros to a multiple of 4        | 28
//! ```
//! Integers are little-endian. The numbers of instances and rules, and the interface, are those of the
//! network node. A worker numbers its packets for one host in sequence; the host answers them in this
//! sequence, each once. Flags: 1 egress, 2 the text goes on, 4 the transport checksum is partial.
//!
//! | to the host | payload | | from the host | payload |
//! |---|---|---|---|---|
//! | PACKET | frame | | PASS, TRANSMIT, ENTER, ABSENT | the frame, as long as it was given |
//! | CONFIGURE | text, in pieces | | DROP | – |
//! | CALL | text, in pieces | | COPY | a frame, before the answer about its packet |
//! | | | | CONFIGURED | empty, or why not |
//! | | | | COUNTS | counters of instances |
//! | | | | ANSWER | the answer of a CALL, in pieces |

use crate::WireError;
use crate::bytes::{array_at, check_padding, slice_at};

/// Length of a record's header in bytes.
pub const HEADER_LEN: usize = 28;
/// The version in every record.
pub const VERSION: u8 = 1;
/// Records are padded to a multiple of this many bytes.
pub const ALIGNMENT: usize = 4;
/// Length of an instance's counters in COUNTS.
pub const COUNT_LEN: usize = 28;

const EGRESS: u8 = 1;
const MORE: u8 = 2;
const PARTIAL: u8 = 4;
const FLAGS: u8 = EGRESS | MORE | PARTIAL;
const PAYLOAD_LEN_AT: usize = 24;

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A packet for the instance.
    Packet = 1,
    /// A piece of the instances that the host runs for this worker; `sequence` is the generation.
    Configure = 2,
    /// A piece of a call of the instance's operation; `sequence` is the call's number.
    Call = 3,
    /// The packet has left the graph: it is routed.
    Pass = 16,
    /// The instance has dropped the packet.
    Drop = 17,
    /// The packet is transmitted on the interface.
    Transmit = 18,
    /// The packet continues at the instance, which runs elsewhere.
    Enter = 19,
    /// The host does not have the instance: the rule's fallback applies.
    Absent = 20,
    /// A copy of the packet is transmitted on the interface.
    Copy = 21,
    /// The instances of the generation run, or the reason why not.
    Configured = 22,
    /// Counters of instances.
    Counts = 23,
    /// A piece of the answer of the call with this number.
    Answer = 24,
}

impl Kind {
    /// The kind with this wire number.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Kind::Packet,
            2 => Kind::Configure,
            3 => Kind::Call,
            16 => Kind::Pass,
            17 => Kind::Drop,
            18 => Kind::Transmit,
            19 => Kind::Enter,
            20 => Kind::Absent,
            21 => Kind::Copy,
            22 => Kind::Configured,
            23 => Kind::Counts,
            24 => Kind::Answer,
            _ => return None,
        })
    }

    /// Returns whether hosts send it; network nodes send all other kinds.
    pub const fn is_of_host(self) -> bool {
        self as u8 >= Kind::Pass as u8
    }

    /// Whether the payload is a frame, which is never empty.
    const fn has_frame(self) -> bool {
        matches!(self, Kind::Packet | Kind::Pass | Kind::Transmit | Kind::Enter | Kind::Absent | Kind::Copy)
    }
}

/// A rule of the classifier, identified like a `RuleHandle`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MatchedRule {
    /// Its slot in the classifier's table.
    pub slot: u32,
    /// Number of times that the slot was reused.
    pub generation: u16,
}

/// A record without its payload. Fields that a kind does not use are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The kind.
    pub kind: Kind,
    /// Plug-ins that have processed the packet.
    pub hops: u8,
    /// The packet is transmitted to the LAN; otherwise it was received from there.
    pub egress: bool,
    /// Whether the text continues in the next record of this kind and sequence number.
    pub more: bool,
    /// The packet's transport checksum is partial: the device that transmits it completes it.
    pub partial: bool,
    /// Number of the packet, the generation or the call.
    pub sequence: u32,
    /// The instance.
    pub instance: u32,
    /// The rule that matched.
    pub rule: MatchedRule,
    /// The interface.
    pub interface: u16,
    /// Packets that the frame represents.
    pub coalesced: u16,
}

impl Head {
    /// A record of this kind with all else 0.
    pub const fn new(kind: Kind, sequence: u32) -> Self {
        let (hops, egress, more, partial, instance) = (0, false, false, false, 0);
        Head {
            kind,
            hops,
            egress,
            more,
            partial,
            sequence,
            instance,
            rule: MatchedRule { slot: 0, generation: 0 },
            interface: 0,
            coalesced: 0,
        }
    }

    /// Parses the record at the start of `bytes`. Also returns the length of its payload, which starts at
    /// [`HEADER_LEN`], and the length of the whole record.
    ///
    /// # Errors
    /// The field that is wrong, with its offset.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize, usize), WireError> {
        let raw = array_at::<HEADER_LEN>(bytes, 0, "packet record header")?;
        if raw[0] != VERSION {
            let found = raw[0].into();
            return Err(WireError::Version { what: "packet record version", offset: 0, found });
        }
        let kind = Kind::from_u8(raw[1]).ok_or(WireError::Kind {
            what: "packet record kind",
            offset: 1,
            found: raw[1].into(),
        })?;
        if raw[3] & !FLAGS != 0 {
            return Err(WireError::Reserved { what: "packet record flags", offset: 3 });
        }
        if raw[22..24] != [0, 0] {
            return Err(WireError::Reserved { what: "packet record", offset: 22 });
        }
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let payload_len = word(PAYLOAD_LEN_AT) as usize;
        let payload = slice_at(bytes, HEADER_LEN, payload_len, "packet record payload")?;
        if kind.has_frame() && payload.is_empty() || kind == Kind::Drop && !payload.is_empty() {
            let found = payload_len;
            return Err(WireError::Length {
                what: "packet record payload length",
                offset: PAYLOAD_LEN_AT,
                found,
            });
        }
        let payload_end = HEADER_LEN + payload_len;
        let end = padded_len(payload_end);
        let padding = slice_at(bytes, payload_end, end - payload_end, "packet record padding")?;
        check_padding(padding, payload_end, "packet record padding")?;
        let head = Head {
            kind,
            hops: raw[2],
            egress: raw[3] & EGRESS != 0,
            more: raw[3] & MORE != 0,
            partial: raw[3] & PARTIAL != 0,
            sequence: word(4),
            instance: word(8),
            rule: MatchedRule { slot: word(12), generation: half(16) },
            interface: half(18),
            coalesced: half(20),
        };
        Ok((head, payload_len, end))
    }

    /// The header of a record with a payload of `payload_len` bytes.
    pub fn emit(&self, payload_len: u32) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2] = self.hops;
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        out[3] = flag(self.egress, EGRESS) | flag(self.more, MORE) | flag(self.partial, PARTIAL);
        out[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        out[8..12].copy_from_slice(&self.instance.to_le_bytes());
        out[12..16].copy_from_slice(&self.rule.slot.to_le_bytes());
        out[16..18].copy_from_slice(&self.rule.generation.to_le_bytes());
        out[18..20].copy_from_slice(&self.interface.to_le_bytes());
        out[20..22].copy_from_slice(&self.coalesced.to_le_bytes());
        out[24..28].copy_from_slice(&payload_len.to_le_bytes());
        out
    }
}

/// `len` rounded up to the record alignment.
pub const fn padded_len(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Counters of an instance on a host, since the host created it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// The instance.
    pub instance: u32,
    /// Packets that it processed.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that it dropped.
    pub dropped: u64,
}

impl Count {
    /// Returns the counters in a COUNTS payload. Trailing bytes that are not a whole entry are ignored.
    pub fn parse_all(payload: &[u8]) -> impl Iterator<Item = Count> + '_ {
        let (all, _) = payload.as_chunks::<COUNT_LEN>();
        all.iter().map(|raw| {
            let long = |at: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&raw[at..at + 8]);
                u64::from_le_bytes(bytes)
            };
            let instance = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
            Count { instance, packets: long(4), bytes: long(12), dropped: long(20) }
        })
    }

    /// The counters as bytes.
    pub fn emit(&self) -> [u8; COUNT_LEN] {
        let mut out = [0; COUNT_LEN];
        out[..4].copy_from_slice(&self.instance.to_le_bytes());
        out[4..12].copy_from_slice(&self.packets.to_le_bytes());
        out[12..20].copy_from_slice(&self.bytes.to_le_bytes());
        out[20..28].copy_from_slice(&self.dropped.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(head: &Head, payload: &[u8]) -> Vec<u8> {
        let mut bytes = head.emit(payload.len() as u32).to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(padded_len(bytes.len()), 0);
        bytes
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let head = Head {
            hops: 3,
            egress: true,
            more: true,
            partial: true,
            instance: 0x0102_0304,
            rule: MatchedRule { slot: 77, generation: 0x0506 },
            interface: 0x0708,
            coalesced: 44,
            ..Head::new(Kind::Packet, 0xfffe_fdfc)
        };
        for len in 1..9 {
            let bytes = record(&head, &vec![7; len]);
            assert_eq!(Head::parse(&bytes), Ok((head, len, bytes.len())));
            for cut in 0..bytes.len() {
                assert!(matches!(Head::parse(&bytes[..cut]), Err(WireError::Truncated { .. })), "{cut}");
            }
        }
        let count = Count { instance: 9, packets: 1, bytes: 1 << 40, dropped: u64::MAX };
        let both = [count.emit(), Count::default().emit()].concat();
        assert_eq!(Count::parse_all(&both).collect::<Vec<_>>(), [count, Count::default()]);
    }

    #[test]
    fn what_no_peer_writes_is_refused() {
        let bytes = record(&Head::new(Kind::Packet, 1), b"frame");
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Head::parse(&bytes).unwrap_err()
        };
        assert!(matches!(with(0, 2), WireError::Version { .. }));
        assert!(matches!(with(1, 4), WireError::Kind { .. }));
        assert!(matches!(with(3, 8), WireError::Reserved { .. }));
        assert!(matches!(with(22, 1), WireError::Reserved { .. }));
        assert!(matches!(with(33, 1), WireError::Reserved { .. }), "padding");
        assert!(matches!(with(27, 0xff), WireError::Truncated { .. }), "a length beyond all");
        assert!(matches!(
            Head::parse(&record(&Head::new(Kind::Pass, 1), b"")),
            Err(WireError::Length { .. })
        ));
        assert!(Head::parse(&record(&Head::new(Kind::Drop, 1), b"x")).is_err());
        for kind in 0..=u8::MAX {
            assert!(Kind::from_u8(kind).is_none_or(|known| known as u8 == kind));
        }
    }
}
