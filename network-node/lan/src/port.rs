//! The interface of a LAN port: its two halves, its properties and its counters.

use std::os::fd::RawFd;

use csp_types::MacAddr;
use csp_wire::offload::{Frame, TxOffload};

/// Largest number of frames that one [`LanReceiver::receive`] takes from a descriptor.
pub const RECEIVE_BATCH_MAX: usize = 64;

/// Largest number of parts of a frame: the headers, and the payload of a segment.
pub const FRAME_PARTS_MAX: usize = csp_types::limits::SEGMENT_PARTS_MAX + 3;

/// Number of calls of [`LanReceiver::receive`] with frames of the worker's own after which the frames shared
/// by all workers are received as well ([`crate::steering::is_shared`]).
pub(crate) const SHARED_EVERY: u32 = 16;

/// Why a frame was dropped instead of transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransmitError {
    /// The transmit queue is full.
    #[error("the transmit queue is full")]
    Full,
    /// The frame is longer than the port's limit, or has more parts than [`LanTransmitter::transmit`]
    /// accepts.
    #[error("the frame is too long or has too many parts")]
    TooLong,
    /// The device is down or refused the frame.
    #[error("the device refused the frame (errno {0})")]
    Device(i32),
}

/// Name and properties of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Name of the interface.
    pub name: String,
    /// Ethernet address of the interface.
    pub mac: MacAddr,
    /// Largest IP packet of one segment, in bytes.
    pub mtu: u16,
}

/// Counters of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveCounters {
    /// Frames received.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames dropped because they were longer than a receive buffer.
    pub truncated: u64,
    /// Frames dropped because their offload header was invalid.
    pub bad_offload: u64,
    /// Failed receive calls, except those without a frame to receive.
    pub errors: u64,
    /// Frames that the kernel dropped because the receive queue was full.
    pub overrun: u64,
}

/// Counters of a transmitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransmitCounters {
    /// Frames passed to the device.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames dropped because the device's queue was full.
    pub full: u64,
    /// Frames dropped because they were too long or had too many parts.
    pub too_long: u64,
    /// Frames that the device refused.
    pub errors: u64,
}

/// The receiving half of a port.
pub trait LanReceiver: Send {
    /// Calls `each` for the frames that have arrived, at most [`RECEIVE_BATCH_MAX`] from each descriptor.
    /// Returns the number of frames read from the device, including dropped ones; more may be waiting unless
    /// it is 0. Never blocks.
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize;

    /// Returns the descriptors to wait for: one of them is readable while there are frames to receive. None
    /// if the port cannot be waited for.
    fn fds(&self) -> [Option<RawFd>; 2];

    /// Returns the counters.
    fn counters(&mut self) -> ReceiveCounters;
}

/// The transmitting half of a port.
pub trait LanTransmitter: Send {
    /// Queues one frame, given as at most [`FRAME_PARTS_MAX`] parts in sequence. The parts are copied (or
    /// sent) before the call returns. On an error the frame is dropped and counted.
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError>;

    /// Passes all queued frames to the device. Never blocks.
    fn flush(&mut self);

    /// Returns the counters.
    fn counters(&self) -> TransmitCounters;
}

/// A LAN port: its properties and its halves.
pub struct LanPort {
    /// Name, Ethernet address and MTU.
    pub info: PortInfo,
    /// The receiving half.
    pub receiver: Box<dyn LanReceiver>,
    /// The transmitting half.
    pub transmitter: Box<dyn LanTransmitter>,
}
