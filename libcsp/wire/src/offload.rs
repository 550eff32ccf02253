//! Ethernet frames with the state of their offloads: what a LAN port has verified of a received frame, and
//! what it has to complete in a transmitted one.
//!
//! The fields are those of the virtio-net header (virtio 1.2 §5.1.6); its byte format belongs to the port.

/// The protocols of a frame that represents several segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// Segmentation offload: the frame represents several TCP segments, coalesced (received) or to be cut
/// (transmitted).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// The protocols of its headers.
    pub kind: GsoKind,
    /// TCP payload of each segment but the last, in bytes; greater than 0.
    pub segment_size: u16,
    /// The TCP header has CWR, which belongs to the first segment only (RFC 3168 §6.1.2).
    pub cwr: bool,
}

/// The state of a received frame's transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Not verified. The receiver must verify it before it relies on the frame.
    Unchecked,
    /// The device verified it.
    Verified,
    /// The frame was never on a wire: the checksum field holds only the sum of the pseudo header (virtio 1.2
    /// §5.1.6.2).
    Partial {
        /// First byte covered by the checksum, from the start of the frame.
        start: u16,
        /// Position of the checksum field, from `start`.
        offset: u16,
    },
}

/// A received frame, contiguous in the port's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The frame from the Ethernet header on, without frame check sequence. Hostile.
    pub bytes: &'a [u8],
    /// The state of the transport checksum, as reported by the device.
    pub checksum: Checksum,
    /// Set if the frame represents several segments.
    pub gso: Option<Gso>,
}

impl<'a> Frame<'a> {
    /// Creates a frame without offload information.
    pub const fn plain(bytes: &'a [u8]) -> Self {
        Frame { bytes, checksum: Checksum::Unchecked, gso: None }
    }
}

/// Work left to the device (or the kernel) when it transmits a frame: completing the transport checksum,
/// whose field holds the folded sum of the pseudo header, not inverted; and cutting the frame into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxOffload {
    /// First byte covered by the checksum (the start of the transport header), from the start of the frame.
    pub checksum_start: u16,
    /// Position of the checksum field, from `checksum_start`.
    pub checksum_offset: u16,
    /// How to cut the frame; `None` if it is one segment.
    pub gso: Option<Gso>,
    /// Length of all headers up to and including TCP, in bytes.
    pub header_len: u16,
}
