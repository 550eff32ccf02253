//! ICMP of IPv4 (RFC 792, RFC 1191).

use crate::WireError;
use crate::bytes::{array_at, room};
use crate::checksum::checksum;

/// Length of the header before echo data or a quoted packet, in bytes.
pub const HEADER_LEN: usize = 8;
/// Most bytes of a packet that an error should quote: the whole error then fits 576 bytes (RFC 1812
/// §4.3.2.3).
pub const QUOTED_LEN_MAX: usize = 576 - 20 - HEADER_LEN;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const CODE_FRAGMENTATION_NEEDED: u8 = 4;
const UNREACHABLE_CODE_MAX: u8 = 15;

/// Why a destination is unreachable: every code except "fragmentation needed", which is a message of its own
/// here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnreachableCode(u8);

impl UnreachableCode {
    /// No route to the network.
    pub const NETWORK: UnreachableCode = UnreachableCode(0);
    /// The host is unreachable.
    pub const HOST: UnreachableCode = UnreachableCode(1);
    /// The host does not support the protocol.
    pub const PROTOCOL: UnreachableCode = UnreachableCode(2);
    /// The port is not listened on.
    pub const PORT: UnreachableCode = UnreachableCode(3);
    /// A filter forbids it (RFC 1812 §5.2.7.1).
    pub const PROHIBITED: UnreachableCode = UnreachableCode(13);

    /// The code with this number: 0 to 15 without 4.
    pub const fn from_u8(value: u8) -> Option<Self> {
        if value == CODE_FRAGMENTATION_NEEDED || value > UNREACHABLE_CODE_MAX {
            return None;
        }
        Some(UnreachableCode(value))
    }

    /// The number of the code.
    pub const fn to_u8(self) -> u8 {
        self.0
    }
}

/// An ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// An echo request.
    EchoRequest {
        /// Distinguishes the processes that send echo requests.
        identifier: u16,
        /// Distinguishes the requests of one process.
        sequence: u16,
        /// Data to return unchanged.
        data: &'a [u8],
    },
    /// Answer to `EchoRequest`.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// A packet could not be delivered.
    DestinationUnreachable {
        /// Why.
        code: UnreachableCode,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// A packet that must not be fragmented was too large.
    FragmentationNeeded {
        /// The next hop's MTU in bytes; 0 from routers older than RFC 1191.
        next_hop_mtu: u16,
        /// The start of that packet.
        quoted: &'a [u8],
    },
    /// A packet's time to live expired (code 0), or it was not reassembled in time (code 1).
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The start of that packet.
        quoted: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of an IPv4 packet and verifies its checksum.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let [kind, code, _, _, a, b, c, d] = *array_at::<HEADER_LEN>(bytes, 0, "icmp header")?;
        if checksum(bytes) != 0 {
            return Err(WireError::Checksum { what: "icmp checksum", offset: 2 });
        }
        let rest = &bytes[HEADER_LEN..];
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let undefined = WireError::Kind { what: "icmp code", offset: 1, found: code.into() };
        match (kind, code) {
            (ECHO_REQUEST, 0) => Ok(Message::EchoRequest { identifier: first, sequence: second, data: rest }),
            (ECHO_REPLY, 0) => Ok(Message::EchoReply { identifier: first, sequence: second, data: rest }),
            (DESTINATION_UNREACHABLE, CODE_FRAGMENTATION_NEEDED) => {
                Ok(Message::FragmentationNeeded { next_hop_mtu: second, quoted: rest })
            }
            (DESTINATION_UNREACHABLE, _) => {
                let code = UnreachableCode::from_u8(code).ok_or(undefined)?;
                Ok(Message::DestinationUnreachable { code, quoted: rest })
            }
            (TIME_EXCEEDED, 0 | 1) => Ok(Message::TimeExceeded { code, quoted: rest }),
            (ECHO_REQUEST | ECHO_REPLY | TIME_EXCEEDED, _) => Err(undefined),
            _ => Err(WireError::Unsupported { what: "icmp type", offset: 0 }),
        }
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.fields().3.len()
    }

    /// Always false: the encoding is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message with its checksum; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (kind, code, word, rest) = self.fields();
        let out = room(out, self.len(), "icmp message")?;
        out[0] = kind;
        out[1] = code;
        out[2..4].fill(0);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        out[HEADER_LEN..].copy_from_slice(rest);
        let field = checksum(out);
        out[2..4].copy_from_slice(&field.to_be_bytes());
        Ok(out.len())
    }

    /// Type, code, the header's second word, and what follows.
    fn fields(&self) -> (u8, u8, u32, &'a [u8]) {
        let echo_word = |identifier: u16, sequence: u16| u32::from(identifier) << 16 | u32::from(sequence);
        match *self {
            Message::EchoRequest { identifier, sequence, data } => {
                (ECHO_REQUEST, 0, echo_word(identifier, sequence), data)
            }
            Message::EchoReply { identifier, sequence, data } => {
                (ECHO_REPLY, 0, echo_word(identifier, sequence), data)
            }
            Message::DestinationUnreachable { code, quoted } => {
                (DESTINATION_UNREACHABLE, code.to_u8(), 0, quoted)
            }
            Message::FragmentationNeeded { next_hop_mtu, quoted } => {
                (DESTINATION_UNREACHABLE, CODE_FRAGMENTATION_NEEDED, next_hop_mtu.into(), quoted)
            }
            Message::TimeExceeded { code, quoted } => (TIME_EXCEEDED, code, 0, quoted),
        }
    }
}
