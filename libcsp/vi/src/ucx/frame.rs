//! The formats of the provider's active messages.
//!
//! ```text
//! header   0 u8 kind   1 reserved (3)   4 u32 VI of the receiver   8 u32 its key   12 u32 immediate   16 u32 posted
//! set-up   0 u32 magic "CSPU"   4 u8 version   5 u8 length of private data   6 reserved (2)   8 u32 VI of the sender
//!         12 u32 its key   16 u32 receive depth   20 u32 send depth   24 u32 message length   28 private data
//! ```
//! Little-endian. `posted` is the number of receives that the sender of the header has posted in total,
//! modulo 2³². UCX identifies the sender of a message only by numbers that the sender chooses, so each VI has
//! a random key that only its peer gets.

use crate::{PRIVATE_DATA_LEN_MAX, ViConfig, ViError};

pub(super) const HEADER_LEN: usize = 20;
const SETUP_LEN: usize = 28;
/// Length of the longest set-up body, in bytes.
pub(super) const SETUP_LEN_MAX: usize = SETUP_LEN + PRIVATE_DATA_LEN_MAX;

const MAGIC: [u8; 4] = *b"CSPU";
const VERSION: u8 = 1;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A message of the caller.
    Data,
    /// Carries only the header's `posted`.
    Credit,
    /// Requests a VI; the body is a set-up.
    Request,
    /// Accepts the request; the body is a set-up.
    Accept,
    /// Rejects the request. Immediate 2: the message lengths differ.
    Reject,
    /// The last message of an end that closes the VI.
    Close,
    /// Acknowledges `Close`: all messages before it have arrived.
    CloseAck,
}

/// The immediate data of a [`Kind::Reject`] because the message lengths differ.
pub(super) const REJECT_MISMATCH: u32 = 2;

/// The header of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub kind: Kind,
    pub vi: u32,
    pub key: u32,
    pub immediate: u32,
    pub posted: u32,
}

fn word(bytes: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*bytes)
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Header> {
        let (words, rest) = bytes.as_chunks::<4>();
        let ([kind, vi, key, immediate, posted], []) = (words, rest) else { return None };
        let kind = match kind[0] {
            1 => Kind::Data,
            2 => Kind::Credit,
            3 => Kind::Request,
            4 => Kind::Accept,
            5 => Kind::Reject,
            6 => Kind::Close,
            7 => Kind::CloseAck,
            _ => return None,
        };
        Some(Header { kind, vi: word(vi), key: word(key), immediate: word(immediate), posted: word(posted) })
    }

    pub(super) fn write(&self, into: &mut [u8; HEADER_LEN]) {
        let kind = match self.kind {
            Kind::Data => 1,
            Kind::Credit => 2,
            Kind::Request => 3,
            Kind::Accept => 4,
            Kind::Reject => 5,
            Kind::Close => 6,
            Kind::CloseAck => 7,
        };
        let words = [kind, self.vi, self.key, self.immediate, self.posted];
        for (place, word) in into.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
    }
}

/// Describes the sender's end of a VI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub vi: u32,
    pub key: u32,
    pub config: ViConfig,
    pub private_data: Vec<u8>,
}

impl Setup {
    pub(super) fn parse(bytes: &[u8]) -> Result<Setup, ViError> {
        let (header, private_data) =
            bytes.split_first_chunk::<SETUP_LEN>().ok_or(ViError::Protocol("it is too short"))?;
        let (words, _) = header.as_chunks::<4>();
        let [magic, about, vi, key, receive_depth, send_depth, message_len] = words else {
            return Err(ViError::Protocol("it is too short"));
        };
        if *magic != MAGIC || about[0] != VERSION {
            return Err(ViError::Protocol("its magic or version is wrong"));
        }
        if private_data.len() != usize::from(about[1]) || private_data.len() > PRIVATE_DATA_LEN_MAX {
            return Err(ViError::Protocol("its length is wrong"));
        }
        let config = ViConfig {
            receive_depth: word(receive_depth),
            send_depth: word(send_depth),
            message_len: word(message_len),
        };
        config.check().map_err(|_| ViError::Protocol("its sizes are out of bounds"))?;
        Ok(Setup { vi: word(vi), key: word(key), config, private_data: private_data.to_vec() })
    }

    /// Writes the set-up and returns its length.
    pub(super) fn write(&self, into: &mut [u8; SETUP_LEN_MAX]) -> usize {
        let private_len = self.private_data.len().min(PRIVATE_DATA_LEN_MAX);
        let about = u32::from_le_bytes([VERSION, private_len as u8, 0, 0]);
        let config = self.config;
        let words = [
            u32::from_le_bytes(MAGIC),
            about,
            self.vi,
            self.key,
            config.receive_depth,
            config.send_depth,
            config.message_len,
        ];
        for (place, word) in into.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        into[SETUP_LEN..][..private_len].copy_from_slice(&self.private_data[..private_len]);
        SETUP_LEN + private_len
    }
}

/// A header whose receiver and counts are set later.
pub(super) fn plain(kind: Kind, immediate: u32) -> Header {
    Header { kind, vi: 0, key: 0, immediate, posted: 0 }
}

/// Returns whether a message's header, and its set-up if it has one, are well-formed. For fuzzing.
pub fn is_well_formed(header: &[u8], body: &[u8]) -> bool {
    match Header::parse(header) {
        Some(header) if matches!(header.kind, Kind::Request | Kind::Accept) => Setup::parse(body).is_ok(),
        other => other.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_setups_are_read_as_written_and_cuts_are_refused() {
        let kinds = [
            Kind::Data,
            Kind::Credit,
            Kind::Request,
            Kind::Accept,
            Kind::Reject,
            Kind::Close,
            Kind::CloseAck,
        ];
        for kind in kinds {
            let header = Header { kind, vi: 1 << 20, key: 0xdead_beef, immediate: 7, posted: u32::MAX };
            let mut bytes = [0; HEADER_LEN];
            header.write(&mut bytes);
            assert_eq!(Header::parse(&bytes), Some(header));
            assert!((0..HEADER_LEN).all(|cut| Header::parse(&bytes[..cut]).is_none()));
        }
        let config = ViConfig { receive_depth: 8, send_depth: 9, message_len: 4096 };
        let setup = Setup { vi: 3, key: 4, config, private_data: vec![5; PRIVATE_DATA_LEN_MAX] };
        let mut bytes = [0; SETUP_LEN_MAX];
        let len = setup.write(&mut bytes);
        assert_eq!(Setup::parse(&bytes[..len]), Ok(setup));
        assert!((0..len).all(|cut| Setup::parse(&bytes[..cut]).is_err()));
        for at in 0..SETUP_LEN {
            let mut wrong = bytes;
            wrong[at] ^= 0xff;
            if let Ok(setup) = Setup::parse(&wrong[..len]) {
                assert_eq!(setup.config.check(), Ok(()));
            }
        }
    }
}
