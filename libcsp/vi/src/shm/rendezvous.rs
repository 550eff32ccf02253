//! The packets on the rendezvous socket that set up a VI.
//!
//! ```text
//!  0 u32 magic "CSPV"   4 u8 version   5 u8 kind   6 u8 length of private data   7 u8 reason (kind 3)
//!  8 u32 receive depth 12 u32 send depth 16 u32 message length                  20 private data
//! ```
//! Little-endian. A connector sends a request. The listener answers with an acceptance, which carries the
//! descriptor of the memory, or a rejection. Afterwards a packet of any content is a wake: the receiver polls
//! its ring.

use crate::{PRIVATE_DATA_LEN_MAX, ViConfig, ViError};

const MAGIC: [u8; 4] = *b"CSPV";
/// Version of the packets and of the memory layout.
const VERSION: u8 = 2;
const HEADER_LEN: usize = 20;

/// Length of the longest packet, in bytes.
pub const PACKET_LEN_MAX: usize = HEADER_LEN + PRIVATE_DATA_LEN_MAX;

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A connector requests a VI.
    Request,
    /// The listener has created the VI; the descriptor of its memory is attached.
    Accept,
    /// The listener rejects the request.
    Reject,
    /// The listener rejects the request because the message lengths differ.
    Mismatch,
}

/// One packet of the rendezvous socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The kind.
    pub kind: Kind,
    /// The sender's own configuration, checked to be within bounds.
    pub config: ViConfig,
    /// At most [`PRIVATE_DATA_LEN_MAX`] bytes.
    pub private_data: Vec<u8>,
}

impl Packet {
    /// Parses a packet from an untrusted process.
    pub fn parse(bytes: &[u8]) -> Result<Packet, ViError> {
        let (header, private_data) =
            bytes.split_first_chunk::<HEADER_LEN>().ok_or(ViError::Protocol("it is too short"))?;
        let [m0, m1, m2, m3, version, kind, private_len, reason, config @ ..] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(ViError::Protocol("it is not a rendezvous packet"));
        }
        if version != VERSION {
            return Err(ViError::Protocol("its version is not supported"));
        }
        if private_data.len() != usize::from(private_len) || private_data.len() > PRIVATE_DATA_LEN_MAX {
            return Err(ViError::Protocol("its length is wrong"));
        }
        let kind = match (kind, reason) {
            (1, 0) => Kind::Request,
            (2, 0) => Kind::Accept,
            (3, 1) => Kind::Reject,
            (3, 2) => Kind::Mismatch,
            _ => return Err(ViError::Protocol("its kind is unknown")),
        };
        let word = |i: usize| {
            u32::from_le_bytes([config[i * 4], config[i * 4 + 1], config[i * 4 + 2], config[i * 4 + 3]])
        };
        let config = ViConfig { receive_depth: word(0), send_depth: word(1), message_len: word(2) };
        config.check().map_err(|_| ViError::Protocol("its sizes are out of bounds"))?;
        Ok(Packet { kind, config, private_data: private_data.to_vec() })
    }

    /// Writes the packet and returns its length.
    pub(super) fn write(&self, into: &mut [u8; PACKET_LEN_MAX]) -> usize {
        let private_len = self.private_data.len().min(PRIVATE_DATA_LEN_MAX);
        let (kind, reason) = match self.kind {
            Kind::Request => (1, 0),
            Kind::Accept => (2, 0),
            Kind::Reject => (3, 1),
            Kind::Mismatch => (3, 2),
        };
        into[..4].copy_from_slice(&MAGIC);
        into[4..8].copy_from_slice(&[VERSION, kind, private_len as u8, reason]);
        let words = [self.config.receive_depth, self.config.send_depth, self.config.message_len];
        for (place, word) in into[8..HEADER_LEN].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        into[HEADER_LEN..][..private_len].copy_from_slice(&self.private_data[..private_len]);
        HEADER_LEN + private_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        let config = ViConfig { receive_depth: 8, send_depth: 9, message_len: 4096 };
        Packet { kind: Kind::Request, config, private_data: b"who".to_vec() }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = [0; PACKET_LEN_MAX];
        for kind in [Kind::Request, Kind::Accept, Kind::Reject, Kind::Mismatch] {
            let packet = Packet { kind, ..packet() };
            let len = packet.write(&mut bytes);
            assert_eq!(Packet::parse(&bytes[..len]), Ok(packet));
        }
    }

    #[test]
    fn every_cut_and_every_wrong_byte_of_the_header_is_refused_or_within_bounds() {
        let mut bytes = [0; PACKET_LEN_MAX];
        let len = packet().write(&mut bytes);
        for cut in 0..len {
            assert!(Packet::parse(&bytes[..cut]).is_err());
        }
        assert!(Packet::parse(&bytes[..len + 1]).is_err());
        for (at, value) in (0..HEADER_LEN).flat_map(|at| (0..=255).map(move |value| (at, value))) {
            let mut wrong = bytes;
            wrong[at] = value;
            if let Ok(packet) = Packet::parse(&wrong[..len]) {
                assert_eq!(packet.config.check(), Ok(()));
                assert!(at >= 5 || wrong == bytes);
            }
        }
    }
}
