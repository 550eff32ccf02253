//! Packet plug-ins: modules of the packet ABI, version 1 (`docs/plugins.md`).
//!
//! ```ignore
//! #[derive(Default)]
//! struct NoMulticast;
//!
//! impl csp_guest::packet::Filter for NoMulticast {
//!     fn on_packet(&mut self, packet: &mut csp_guest::packet::Packet) -> csp_guest::packet::Verdict {
//!         match packet.bytes().first() {
//!             Some(first) if first & 1 == 1 => csp_guest::packet::Verdict::Drop,
//!             _ => csp_guest::packet::Verdict::Next(0),
//!         }
//!     }
//! }
//!
//! csp_guest::export_packet!(NoMulticast, buffer: 256, outputs: 1);
//! ```

use core::cell::UnsafeCell;
use core::ops::Range;

use crate::Parameters;

/// Bytes of [`Head`].
pub const HEAD_LEN: usize = 40;

/// What is done with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes to what is connected to this output; without a connection it is routed.
    Next(u8),
    /// It is dropped.
    Drop,
    /// It is transmitted on this interface (the port's place in the node's configuration), and not routed.
    Transmit(u16),
}

impl Verdict {
    /// Returns the number of the ABI.
    #[must_use]
    pub const fn code(self, changed: bool) -> i32 {
        let (kind, number) = match self {
            Verdict::Next(output) => (0, output as u32),
            Verdict::Drop => (1, 0),
            Verdict::Transmit(interface) => (2, interface as u32),
        };
        let changed = if changed { 1 << 8 } else { 0 };
        (kind | changed | number << 16).cast_signed()
    }
}

/// What the host knows of a packet: `struct csp_packet` of the ABI. Places are bytes from the start of the
/// frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Length of the frame in bytes.
    pub len: u32,
    /// Bytes of it that are in the buffer.
    pub captured: u32,
    /// Time of the call, in nanoseconds of the host's monotonic clock.
    pub now: u64,
    /// Start of the IP header. 0, as the next two, if the frame is no IP packet, or malformed.
    pub ip: u32,
    /// Start of the header of the layer above; of a later fragment, of what follows the IP header.
    pub transport: u32,
    /// End of the packet by its IP header.
    pub end: u32,
    /// The interface.
    pub interface: u16,
    /// Packets that the frame represents: more than 1 if the device has coalesced them.
    pub coalesced: u16,
    /// 4, 6, or 0.
    pub version: u8,
    /// Protocol of the layer above.
    pub protocol: u8,
    /// 1: it is transmitted to the LAN; 0: it was received from there.
    pub egress: u8,
    /// Bit 0: the transport checksum is partial; bit 1: the length may change; bit 2: it is a later fragment.
    pub flags: u8,
    /// Longest length that it may get.
    pub room: u32,
}

/// A packet.
#[derive(Debug)]
pub struct Packet {
    head: &'static mut Head,
    frame: &'static mut [u8],
    changed: bool,
}

impl Packet {
    /// Returns what the host knows of it.
    #[must_use]
    pub fn head(&self) -> &Head {
        self.head
    }

    /// Returns the frame from its Ethernet header on, as far as it fits the buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.frame.get(..self.head.captured.min(self.head.len) as usize).unwrap_or(&[])
    }

    /// Returns the frame to be changed: it is copied back. Checksums are the caller's; see
    /// [`store`](Self::store).
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        self.frame.get_mut(..self.head.captured.min(self.head.len) as usize).unwrap_or(&mut [])
    }

    /// Changes the frame's length; what is new holds what the buffer held. Returns false if it may not have
    /// this length.
    pub fn resize(&mut self, len: usize) -> bool {
        let may = self.head.flags & 2 != 0 && self.head.captured == self.head.len;
        if !may || len < 14 || len > self.head.room as usize || len > self.frame.len() {
            return false;
        }
        (self.head.len, self.head.captured) = (len as u32, len as u32);
        self.changed = true;
        true
    }

    /// Returns where the payload of a TCP or UDP packet lies, as far as it is in the buffer.
    #[must_use]
    pub fn payload(&self) -> Option<Range<usize>> {
        let Head { transport, end, version, protocol, flags, .. } = *self.head;
        if version == 0 || flags & 4 != 0 {
            return None;
        }
        let (transport, bytes) = (transport as usize, self.bytes());
        let header = match protocol {
            6 => usize::from(*bytes.get(transport + 12)? >> 4) * 4,
            17 => 8,
            _ => return None,
        };
        let end = (end as usize).min(bytes.len());
        let start = transport.checked_add(header).filter(|start| header >= 8 && *start <= end)?;
        Some(start..end)
    }

    /// Changes a byte behind the start of the transport header, and the transport checksum with it (RFC
    /// 1624). A checksum that the device completes, and that of UDP over IPv4 which is absent, stay. Returns
    /// false, and changes nothing, if there is no such byte.
    pub fn store(&mut self, at: usize, byte: u8) -> bool {
        let Head { transport, version, protocol, flags, .. } = *self.head;
        let transport = transport as usize;
        if version == 0 || at < transport {
            return false;
        }
        let bytes = self.bytes_mut();
        let Some(slot) = bytes.get_mut(at) else { return false };
        let old = core::mem::replace(slot, byte);
        let field = match protocol {
            6 => transport + 16,
            17 => transport + 6,
            58 => transport + 2,
            _ => return true,
        };
        if flags & 5 != 0 {
            return true;
        }
        let Some(&[high, low]) = bytes.get(field..field + 2).and_then(|sum| sum.as_array::<2>()) else {
            return true;
        };
        let sum = u16::from_be_bytes([high, low]);
        if protocol == 17 && sum == 0 {
            return true;
        }
        let word =
            |byte: u8| if (at - transport).is_multiple_of(2) { u16::from(byte) << 8 } else { byte.into() };
        let mut sum = update(sum, word(old), word(byte));
        if protocol == 17 && sum == 0 {
            sum = 0xffff;
        }
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        true
    }
}

/// Returns a checksum after one of the words that it covers has changed (RFC 1624, equation 3).
#[must_use]
pub const fn update(sum: u16, old: u16, new: u16) -> u16 {
    let mut wide = !sum as u32 + !old as u32 + new as u32;
    wide = (wide & 0xffff) + (wide >> 16);
    wide = (wide & 0xffff) + (wide >> 16);
    !(wide as u16)
}

/// Code that processes packets.
pub trait Filter: Default {
    /// Sets parameters.
    ///
    /// # Errors
    /// Why they are refused; the former ones stay in force.
    fn configure(&mut self, parameters: &Parameters) -> Result<(), &'static str> {
        if parameters.len() == 0 { Ok(()) } else { Err("the module has no parameters") }
    }

    /// Processes a packet.
    fn on_packet(&mut self, packet: &mut Packet) -> Verdict;
}

/// The buffer into which the host writes a [`Head`] and the frame.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct PacketBuffer<const N: usize> {
    head: UnsafeCell<Head>,
    frame: UnsafeCell<[u8; N]>,
}

// SAFETY: a module has one thread, and the host writes only before a call.
unsafe impl<const N: usize> Sync for PacketBuffer<N> {}

impl<const N: usize> PacketBuffer<N> {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        let head = Head {
            len: 0,
            captured: 0,
            now: 0,
            ip: 0,
            transport: 0,
            end: 0,
            interface: 0,
            coalesced: 0,
            version: 0,
            protocol: 0,
            egress: 0,
            flags: 0,
            room: 0,
        };
        PacketBuffer { head: UnsafeCell::new(head), frame: UnsafeCell::new([0; N]) }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.head.get() as usize
    }

    /// Has a filter process the packet in the buffer. Returns the number of the ABI. Only `export_packet!`
    /// calls this, once in the exported function, which the host does not enter while it runs.
    pub fn process(&'static self, filter: &mut impl Filter) -> i32 {
        // SAFETY: no other reference to the buffer lives: see above.
        let (head, frame) = unsafe { (&mut *self.head.get(), &mut *self.frame.get()) };
        let mut packet = Packet { head, frame, changed: false };
        filter.on_packet(&mut packet).code(packet.changed)
    }
}

impl<const N: usize> Default for PacketBuffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The declaration of the packet ABI.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PacketDeclaration {
    /// Bytes of the declaration.
    pub size: u32,
    /// Outputs, 1 to 8.
    pub outputs: u32,
    /// Address of the buffer.
    pub buffer: usize,
    /// Bytes of the buffer, head included.
    pub buffer_len: u32,
    /// 0.
    pub reserved: [u32; 2],
}

/// Exports a filter: its type, the longest start of a frame that it looks at in bytes, and its number of
/// outputs.
#[macro_export]
macro_rules! export_packet {
    ($filter:ty, buffer: $len:expr, outputs: $outputs:expr) => {
        static FILTER: $crate::Cell<$filter> = $crate::Cell::new();
        static BUFFER: $crate::packet::PacketBuffer<{ $len }> = $crate::packet::PacketBuffer::new();
        static DECLARED: $crate::Cell<Option<$crate::packet::PacketDeclaration>> = $crate::Cell::new();

        #[unsafe(no_mangle)]
        extern "C" fn csp_packet_abi() -> i32 {
            1
        }

        #[unsafe(no_mangle)]
        extern "C" fn csp_packet_declaration() -> usize {
            DECLARED.with(|slot| {
                let declared = $crate::packet::PacketDeclaration {
                    size: 24,
                    outputs: $outputs,
                    buffer: BUFFER.address(),
                    buffer_len: ($len + $crate::packet::HEAD_LEN) as u32,
                    reserved: [0; 2],
                };
                core::ptr::from_ref(slot.insert(declared)) as usize
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn configure(len: u32) -> i32 {
            let parameters = $crate::Parameters::new(len);
            $crate::configured(FILTER.with(|filter| $crate::packet::Filter::configure(filter, &parameters)))
        }

        #[unsafe(no_mangle)]
        extern "C" fn on_packet() -> i32 {
            FILTER.with(|filter| BUFFER.process(filter))
        }
    };
}
