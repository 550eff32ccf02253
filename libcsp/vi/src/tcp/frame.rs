//! The format of the stream of one VI: frames, each a header and a body.
//!
//! ```text
//! header   0 u8 kind   1 u8 flags   2 reserved (2)   4 u32 length of the body   8 u32 immediate
//!         12 u32 posted   16 u32 received
//! set-up   0 u32 magic "CSPT"   4 u8 version   5 reserved (3)   8 u32 receive depth   12 u32 send depth
//!         16 u32 message length   20 private data, until the end of the body
//! ```
//! Little-endian. `posted` and `received` are the receives that the sender of the header has posted, and the
//! messages that are whole in its memory, in total, modulo 2³². The first frame of each side is a set-up:
//! the connector's [`Kind::Request`], answered by [`Kind::Accept`] or [`Kind::Reject`].

use crate::{MESSAGE_LEN_MAX, PRIVATE_DATA_LEN_MAX, ViConfig, ViError};

pub(super) const HEADER_LEN: usize = 20;
const SETUP_LEN: usize = 20;
/// Length of the longest set-up body, in bytes.
pub(super) const SETUP_LEN_MAX: usize = SETUP_LEN + PRIVATE_DATA_LEN_MAX;

const MAGIC: [u8; 4] = *b"CSPT";
const VERSION: u8 = 1;

/// The sender wants to know soon when the message has arrived.
const CONFIRM: u8 = 1;

/// The immediate data of a [`Kind::Reject`] because the message lengths differ.
pub(super) const REJECT_MISMATCH: u32 = 2;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A message of the caller.
    Data,
    /// Carries only the header's counts.
    Counts,
    /// Requests a VI; the body is a set-up.
    Request,
    /// Accepts the request; the body is a set-up.
    Accept,
    /// Rejects the request. Immediate [`REJECT_MISMATCH`]: the message lengths differ.
    Reject,
    /// The last frame of an end that closes the VI.
    Close,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub kind: Kind,
    /// The message is to be confirmed soon.
    pub confirm: bool,
    /// Length of the body, in bytes: at most [`MESSAGE_LEN_MAX`] for a message, [`SETUP_LEN_MAX`] for a
    /// set-up, else 0.
    pub len: usize,
    pub immediate: u32,
    pub posted: u32,
    pub received: u32,
}

fn word(bytes: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*bytes)
}

impl Header {
    /// A header without counts.
    pub(super) fn new(kind: Kind, len: usize, immediate: u32) -> Self {
        Header { kind, confirm: false, len, immediate, posted: 0, received: 0 }
    }

    /// `None`: an unknown kind or flag, or a body that the kind does not have.
    pub(super) fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Header> {
        let (words, _) = bytes.as_chunks::<4>();
        let [about, len, immediate, posted, received] = words else { return None };
        let (kind, len_max) = match about[0] {
            1 => (Kind::Data, MESSAGE_LEN_MAX as usize),
            2 => (Kind::Counts, 0),
            3 => (Kind::Request, SETUP_LEN_MAX),
            4 => (Kind::Accept, SETUP_LEN_MAX),
            5 => (Kind::Reject, 0),
            6 => (Kind::Close, 0),
            _ => return None,
        };
        let len = word(len) as usize;
        if len > len_max || about[1] & !CONFIRM != 0 || about[2..] != [0, 0] {
            return None;
        }
        let confirm = about[1] & CONFIRM != 0;
        let [immediate, posted, received] = [immediate, posted, received].map(word);
        Some(Header { kind, confirm, len, immediate, posted, received })
    }

    pub(super) fn write(&self) -> [u8; HEADER_LEN] {
        let kind = match self.kind {
            Kind::Data => 1,
            Kind::Counts => 2,
            Kind::Request => 3,
            Kind::Accept => 4,
            Kind::Reject => 5,
            Kind::Close => 6,
        };
        let about = u32::from_le_bytes([kind, u8::from(self.confirm) * CONFIRM, 0, 0]);
        let words = [about, self.len as u32, self.immediate, self.posted, self.received];
        let mut bytes = [0; HEADER_LEN];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }
}

/// Describes the sender's end of a VI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub config: ViConfig,
    pub private_data: Vec<u8>,
}

impl Setup {
    pub(super) fn parse(bytes: &[u8]) -> Result<Setup, ViError> {
        let too_short = ViError::Protocol("it is too short");
        let Some((header, private_data)) = bytes.split_first_chunk::<SETUP_LEN>() else {
            return Err(too_short);
        };
        let (words, _) = header.as_chunks::<4>();
        let [magic, about, receive_depth, send_depth, message_len] = words else { return Err(too_short) };
        if *magic != MAGIC || about[0] != VERSION {
            return Err(ViError::Protocol("its magic or version is wrong"));
        }
        if private_data.len() > PRIVATE_DATA_LEN_MAX {
            return Err(ViError::Protocol("its length is wrong"));
        }
        let [receive_depth, send_depth, message_len] = [receive_depth, send_depth, message_len].map(word);
        let config = ViConfig { receive_depth, send_depth, message_len };
        config.check().map_err(|_| ViError::Protocol("its sizes are out of bounds"))?;
        Ok(Setup { config, private_data: private_data.to_vec() })
    }

    pub(super) fn write(config: &ViConfig, private_data: &[u8]) -> Vec<u8> {
        let about = u32::from_le_bytes([VERSION, 0, 0, 0]);
        let words =
            [u32::from_le_bytes(MAGIC), about, config.receive_depth, config.send_depth, config.message_len];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(private_data.iter().take(PRIVATE_DATA_LEN_MAX));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written_and_others_are_refused() {
        let all = [Kind::Data, Kind::Counts, Kind::Request, Kind::Accept, Kind::Reject, Kind::Close];
        for kind in all {
            let header =
                Header { kind, confirm: true, len: 0, immediate: 7, posted: u32::MAX, received: 1 << 31 };
            assert_eq!(Header::parse(&header.write()), Some(header));
        }
        let bytes = Header::new(Kind::Data, MESSAGE_LEN_MAX as usize, 0).write();
        assert!(Header::parse(&bytes).is_some());
        for (at, value) in [(0, 0), (0, 7), (0, 2), (1, 2), (2, 1), (3, 1), (4, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Header::parse(&wrong), None, "byte {at}: {value}");
        }
    }

    #[test]
    fn setups_are_read_as_written_and_cuts_are_refused() {
        let config = ViConfig { receive_depth: 8, send_depth: 9, message_len: 4096 };
        let bytes = Setup::write(&config, &[5; PRIVATE_DATA_LEN_MAX]);
        assert_eq!(bytes.len(), SETUP_LEN_MAX);
        let setup = Setup { config, private_data: vec![5; PRIVATE_DATA_LEN_MAX] };
        assert_eq!(Setup::parse(&bytes), Ok(setup));
        assert!((0..SETUP_LEN).all(|cut| Setup::parse(&bytes[..cut]).is_err()));
        for at in 0..SETUP_LEN {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0xff;
            if let Ok(setup) = Setup::parse(&wrong) {
                assert_eq!(setup.config.check(), Ok(()));
            }
        }
        assert!(Setup::parse(&[&bytes[..], &[0]].concat()).is_err(), "longer than any private data");
    }
}
