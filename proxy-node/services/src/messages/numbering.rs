//! The last frame that a channel with `sequence` adds to each message: 16 bytes, both numbers big-endian.
//!
//! ```text
//!  | sequence number of the message in its channel | when it arrived, in nanoseconds |
//!  0                                               8                                16
//! ```
//! The time is that of the proxy worker's monotonic clock: times of two messages of one worker can be
//! subtracted.

use csp_messages::Delivery;
use csp_zmtp::FrameHeader;

/// Length of the frame's body in bytes.
pub(super) const NUMBERS_LEN: usize = 16;
/// Length of the frame with its header in bytes.
pub(super) const FRAME_LEN: usize = 2 + NUMBERS_LEN;

/// Returns the body of a message's last frame.
pub(super) fn numbers(delivery: &Delivery) -> [u8; NUMBERS_LEN] {
    let mut bytes = [0; NUMBERS_LEN];
    bytes[..8].copy_from_slice(&delivery.sequence.to_be_bytes());
    bytes[8..].copy_from_slice(&delivery.arrived.as_nanos().to_be_bytes());
    bytes
}

/// Returns the frame with its header.
pub(super) fn frame(delivery: &Delivery) -> [u8; FRAME_LEN] {
    let mut bytes = [0; FRAME_LEN];
    bytes[..2].copy_from_slice(FrameHeader::message(NUMBERS_LEN, false).as_bytes());
    bytes[2..].copy_from_slice(&numbers(delivery));
    bytes
}
