//! The formats of the provider's own messages: the hello in the connection request, and control messages.
//!
//! ```text
//! hello    0 u32 magic "CSPV"   4 u8 version   5 reserved (3)   8 u32 receive depth  12 u32 send depth  16 u32 message length
//! control  0 u8 kind   1 u8 length of private data   2 reserved (2)   4 u32 reason
//! set-up   control, then   8 u32 receive depth  12 u32 send depth  16 u32 message length  20 u32 eager length
//!         24 u64 address of slot 0  32 u32 stride  36 u32 key of the slots  40 u64 address of the grants ring
//!         48 u32 its key  52 reserved (4)  56 private data
//! ```
//! Little-endian. Control messages are sends without immediate data; all messages of the caller have
//! immediate data.

use crate::{PRIVATE_DATA_LEN_MAX, ViConfig, ViError};

pub(super) const HELLO_LEN: usize = 20;
const MAGIC: [u8; 4] = *b"CSPV";
const VERSION: u8 = 1;

const CONTROL_LEN: usize = 8;
const SETUP_LEN: usize = 56;
/// Length of the longest control message, in bytes.
pub(super) const CONTROL_LEN_MAX: usize = SETUP_LEN + PRIVATE_DATA_LEN_MAX;

/// Reason of a rejection because the message lengths differ.
pub(super) const REJECT_MISMATCH: u32 = 2;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn config_at(bytes: &[u8], at: usize) -> Result<ViConfig, ViError> {
    let config = ViConfig {
        receive_depth: word(bytes, at),
        send_depth: word(bytes, at + 4),
        message_len: word(bytes, at + 8),
    };
    config.check().map_err(|_| ViError::Protocol("its sizes are out of bounds"))?;
    Ok(config)
}

fn put_config(config: &ViConfig, into: &mut [u8]) {
    let words = [config.receive_depth, config.send_depth, config.message_len];
    for (place, word) in into.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

/// Returns the hello of a connector with `config`.
pub(super) fn hello(config: &ViConfig) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    put_config(config, &mut bytes[8..]);
    bytes
}

/// Parses a hello, which the connection manager may have padded.
pub(super) fn parse_hello(bytes: &[u8]) -> Result<ViConfig, ViError> {
    let bytes = bytes.get(..HELLO_LEN).ok_or(ViError::Protocol("it is too short"))?;
    if bytes[..4] != MAGIC || bytes[4] != VERSION {
        return Err(ViError::Protocol("its magic or version is wrong"));
    }
    config_at(bytes, 8)
}

/// Addresses, keys and sizes of the memory in which the sender of a set-up receives messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub config: ViConfig,
    /// Messages up to this length are sent; longer ones are written into their slot. In bytes.
    pub eager_len: u32,
    pub slots: u64,
    pub stride: u32,
    pub slots_key: u32,
    pub grants: u64,
    pub grants_key: u32,
    pub private_data: Vec<u8>,
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Control {
    /// Requests a VI.
    Request(Setup),
    /// Accepts the request.
    Accept(Setup),
    /// Rejects the request, with a reason.
    Reject(u32),
    /// The last message of an end that closes the VI.
    Close,
    /// Acknowledges `Close`: all messages before it have arrived.
    CloseAck,
}

impl Control {
    /// Parses a control message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Control, ViError> {
        let Some((&[kind, private_len, ..], _)) = bytes.split_first_chunk::<CONTROL_LEN>() else {
            return Err(ViError::Protocol("it is too short"));
        };
        match (kind, bytes.len()) {
            (1 | 2, _) => {
                let setup = Setup::parse(bytes, usize::from(private_len))?;
                Ok(if kind == 1 { Control::Request(setup) } else { Control::Accept(setup) })
            }
            (3, CONTROL_LEN) => Ok(Control::Reject(word(bytes, 4))),
            (4, CONTROL_LEN) => Ok(Control::Close),
            (5, CONTROL_LEN) => Ok(Control::CloseAck),
            _ => Err(ViError::Protocol("its kind or length is wrong")),
        }
    }

    /// Writes the message and returns its length.
    pub(super) fn write(&self, into: &mut [u8; CONTROL_LEN_MAX]) -> usize {
        let (kind, reason, setup) = match self {
            Control::Request(setup) => (1, 0, Some(setup)),
            Control::Accept(setup) => (2, 0, Some(setup)),
            Control::Reject(reason) => (3, *reason, None),
            Control::Close => (4, 0, None),
            Control::CloseAck => (5, 0, None),
        };
        into[..CONTROL_LEN].copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        into[4..8].copy_from_slice(&u32::to_le_bytes(reason));
        setup.map_or(CONTROL_LEN, |setup| setup.write(into))
    }
}

impl Setup {
    fn parse(bytes: &[u8], private_len: usize) -> Result<Setup, ViError> {
        let (_, private_data) =
            bytes.split_at_checked(SETUP_LEN).ok_or(ViError::Protocol("it is too short"))?;
        if private_data.len() != private_len || private_len > PRIVATE_DATA_LEN_MAX {
            return Err(ViError::Protocol("its length is wrong"));
        }
        let setup = Setup {
            config: config_at(bytes, 8)?,
            eager_len: word(bytes, 20),
            slots: long(bytes, 24),
            stride: word(bytes, 32),
            slots_key: word(bytes, 36),
            grants: long(bytes, 40),
            grants_key: word(bytes, 48),
            private_data: private_data.to_vec(),
        };
        // Only the peer's device interprets the addresses, but sums with them must not overflow here.
        let slots_len = u64::from(setup.stride) * u64::from(setup.config.receive_depth);
        let grants_len = 8 * super::grants::RING_LEN as u64;
        if setup.slots.checked_add(slots_len).is_none() || setup.grants.checked_add(grants_len).is_none() {
            return Err(ViError::Protocol("its addresses are out of bounds"));
        }
        Ok(setup)
    }

    fn write(&self, into: &mut [u8; CONTROL_LEN_MAX]) -> usize {
        let private_len = self.private_data.len().min(PRIVATE_DATA_LEN_MAX);
        into[1] = private_len as u8;
        put_config(&self.config, &mut into[8..20]);
        into[20..24].copy_from_slice(&self.eager_len.to_le_bytes());
        into[24..32].copy_from_slice(&self.slots.to_le_bytes());
        into[32..36].copy_from_slice(&self.stride.to_le_bytes());
        into[36..40].copy_from_slice(&self.slots_key.to_le_bytes());
        into[40..48].copy_from_slice(&self.grants.to_le_bytes());
        into[48..52].copy_from_slice(&self.grants_key.to_le_bytes());
        into[52..SETUP_LEN].fill(0);
        into[SETUP_LEN..][..private_len].copy_from_slice(&self.private_data[..private_len]);
        SETUP_LEN + private_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ViConfig = ViConfig { receive_depth: 8, send_depth: 9, message_len: 4096 };

    fn setup(private_len: usize) -> Setup {
        Setup {
            config: CONFIG,
            eager_len: 512,
            slots: 0x7f00_1234_5678,
            stride: 4096,
            slots_key: 0xdead_beef,
            grants: 0x7f00_0000_0008,
            grants_key: 1,
            private_data: vec![5; private_len],
        }
    }

    #[test]
    fn control_messages_are_read_as_written_and_cuts_are_refused() {
        for message in [
            Control::Request(setup(0)),
            Control::Accept(setup(PRIVATE_DATA_LEN_MAX)),
            Control::Reject(REJECT_MISMATCH),
            Control::Close,
            Control::CloseAck,
        ] {
            let mut bytes = [0xff; CONTROL_LEN_MAX];
            let len = message.write(&mut bytes);
            assert_eq!(Control::parse(&bytes[..len]), Ok(message));
            assert!((0..len).all(|cut| Control::parse(&bytes[..cut]).is_err()));
        }
    }

    #[test]
    fn whatever_a_setup_says_is_within_bounds() {
        let mut bytes = [0; CONTROL_LEN_MAX];
        let len = Control::Request(setup(3)).write(&mut bytes);
        for at in 0..len {
            let mut wrong = bytes;
            wrong[at] ^= 0xff;
            if let Ok(Control::Request(setup)) = Control::parse(&wrong[..len]) {
                assert_eq!(setup.config.check(), Ok(()));
            }
        }
        let high = Setup { slots: u64::MAX - 4096, ..setup(0) };
        let len = Control::Request(high).write(&mut bytes);
        assert!(matches!(Control::parse(&bytes[..len]), Err(ViError::Protocol(_))));
    }

    #[test]
    fn a_padded_hello_is_read_and_a_foreign_one_refused() {
        let mut padded = [0; 56];
        padded[..HELLO_LEN].copy_from_slice(&hello(&CONFIG));
        assert_eq!(parse_hello(&padded), Ok(CONFIG));
        for at in [0, 4, 11] {
            let mut wrong = padded;
            wrong[at] ^= 0x80;
            assert!(parse_hello(&wrong).is_err(), "{at}");
        }
        assert!(parse_hello(&padded[..HELLO_LEN - 1]).is_err());
    }
}
