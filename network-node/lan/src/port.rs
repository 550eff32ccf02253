//! What every LAN port looks like: frames with their offload state, and the two halves of a port.

use std::os::fd::RawFd;

use csp_types::MacAddr;

/// Most frames that one [`LanReceiver::receive`] hands out.
pub const RECEIVE_BATCH_MAX: usize = 64;

/// Which headers a frame that stands for several segments has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// The frame stands for several TCP segments (received: coalesced; to be transmitted: to be cut).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// The headers it has.
    pub kind: GsoKind,
    /// TCP payload of each segment but the last, in bytes; not 0.
    pub segment_size: u16,
    /// The TCP header has CWR, which is the first segment's alone (RFC 3168 §6.1.2).
    pub cwr: bool,
}

/// What is known of a received frame's transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Nothing: whoever relies on the frame has to verify it.
    Unchecked,
    /// The device verified it.
    Verified,
    /// The frame never was on a wire; the checksum field holds the pseudo header's sum only (virtio 1.2 §5.1.6.2).
    Partial {
        /// Where summing would start, in bytes from the frame's first.
        start: u16,
        /// Where the sum would be stored, in bytes from `start`.
        offset: u16,
    },
}

/// A received frame, contiguous in the port's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header on, without frame check sequence. Hostile.
    pub bytes: &'a [u8],
    /// What the device says of the transport checksum.
    pub checksum: Checksum,
    /// Set where the frame stands for several segments.
    pub gso: Option<Gso>,
}

impl<'a> Frame<'a> {
    /// A frame of which the device says nothing.
    pub const fn plain(bytes: &'a [u8]) -> Self {
        Frame { bytes, checksum: Checksum::Unchecked, gso: None }
    }
}

/// Work left to the device (or the kernel) for a frame to be transmitted: finishing its transport checksum, whose field
/// holds the pseudo header's folded sum, not inverted; and cutting it into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxOffload {
    /// Where summing starts (the transport header), in bytes from the frame's first.
    pub checksum_start: u16,
    /// Where the sum is stored, in bytes from `checksum_start`.
    pub checksum_offset: u16,
    /// How to cut it; `None` where it is one segment.
    pub gso: Option<Gso>,
    /// Length of all headers including TCP's, in bytes.
    pub header_len: u16,
}

/// Why a frame was not transmitted. It is gone: LANs lose frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransmitError {
    /// The device's queue is full.
    #[error("the transmit queue is full")]
    Full,
    /// Longer than the port can take, or with more parts than [`LanTransmitter::transmit`] takes.
    #[error("the frame is too long")]
    TooLong,
    /// The device is down or refused the frame.
    #[error("the device refused the frame (errno {0})")]
    Device(i32),
}

/// What a port is called and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// The interface's name.
    pub name: String,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Largest IP packet of one segment, in bytes.
    pub mtu: u16,
}

/// What a receiver counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveCounters {
    /// Frames handed out.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames longer than a receive buffer, dropped.
    pub truncated: u64,
    /// Frames with an offload header that makes no sense, dropped.
    pub bad_offload: u64,
    /// Receive calls that failed for another reason than "nothing there".
    pub errors: u64,
    /// Frames the kernel dropped because its queue to us was full.
    pub overrun: u64,
}

/// What a transmitter counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransmitCounters {
    /// Frames handed to the device.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames dropped because the device's queue was full.
    pub full: u64,
    /// Frames dropped because they were too long.
    pub too_long: u64,
    /// Frames the device refused.
    pub errors: u64,
}

/// The receiving half of a port.
pub trait LanReceiver: Send {
    /// Hands each frame that is there to `each`, at most [`RECEIVE_BATCH_MAX`]; returns how many were taken off the
    /// device (more may wait when it is the maximum). Never blocks.
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize;

    /// Becomes readable when there is something to receive; `None` where the port cannot be waited for.
    fn fd(&self) -> Option<RawFd>;

    /// What was counted so far.
    fn counters(&mut self) -> ReceiveCounters;
}

/// The transmitting half of a port.
pub trait LanTransmitter: Send {
    /// Queues one frame, given as at most 8 parts one after another. The parts are copied (or sent) before the call
    /// returns. An error means that this frame is dropped, and counted.
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError>;

    /// Hands everything queued to the device. Never blocks.
    fn flush(&mut self);

    /// What was counted so far.
    fn counters(&self) -> TransmitCounters;
}

/// A LAN port: its halves and what it is.
pub struct LanPort {
    /// Name, address, MTU.
    pub info: PortInfo,
    /// The half that receives.
    pub receiver: Box<dyn LanReceiver>,
    /// The half that transmits.
    pub transmitter: Box<dyn LanTransmitter>,
}
