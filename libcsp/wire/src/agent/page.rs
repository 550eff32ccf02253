//! The process page: memory that the filter writes and the agent reads, so that a process's state can be
//! shown while it runs and after it has ended.
//!
//! ```text
//!     0 magic (8) | 8 version (4) | 12 reserved 0 (4) | 16 trace events written so far (8) | 24 .. 64 zeros
//!    64 counters: 64 numbers of 8 bytes, their order is the filter's and agent's common list
//!   576 sockets: 512 entries of 64 bytes
//! 33344 trace: 2048 entries of 40 bytes, a ring
//! ```
//! The writer is not trusted, and writes while the page is read. A reader copies the page, then checks each
//! entry. An entry that was being written is skipped or shows one wrong value at worst.

use core::net::SocketAddr;

use csp_types::{FlowLabel, Instant, TraceEvent, TraceKind};

use crate::WireError;
use crate::bytes::array_at;
use crate::channel::{ADDRESS_LEN, emit_address, parse_address};

/// First bytes of every page.
pub const MAGIC: [u8; 8] = *b"CSPpage2";
/// Number of counters in a page.
pub const COUNTERS: usize = 64;
/// Number of sockets in a page; further ones are not shown.
pub const SOCKETS: usize = 512;
/// Number of trace events in a page.
pub const TRACE_EVENTS: usize = 2048;
/// Bytes of a socket entry.
pub const SOCKET_LEN: usize = 64;
/// Bytes of a trace entry.
pub const TRACE_LEN: usize = 40;
/// Offset of the number of trace events.
pub const TRACE_NEXT_OFFSET: usize = 16;
const COUNTERS_OFFSET: usize = 64;
const SOCKETS_OFFSET: usize = COUNTERS_OFFSET + 8 * COUNTERS;
const TRACE_OFFSET: usize = SOCKETS_OFFSET + SOCKETS * SOCKET_LEN;
/// Bytes of a page.
pub const PAGE_LEN: usize = TRACE_OFFSET + TRACE_EVENTS * TRACE_LEN;

/// Names of the counters, in the order of the page. The first 20 are those of the transport
/// (`AppCounters::named`), the rest those of the filter.
pub const COUNTER_NAMES: [&str; 33] = [
    "links_up",
    "links_lost",
    "link_failures",
    "opens",
    "accepted",
    "refused",
    "pauses_ended",
    "gone_before_accept",
    "connects",
    "connect_failures",
    "closed",
    "resets",
    "bytes_read",
    "bytes_written",
    "write_blocked_window",
    "write_blocked_descriptors",
    "bytes_after_close",
    "listen_refused",
    "messages_unknown",
    "protocol_violations",
    "listeners_accelerated",
    "listeners_kernel",
    "connects_kernel",
    "inherited_connections_lost",
    "waits",
    "wakeups",
    "attaches",
    "attach_failures",
    "forks",
    "sockets_now",
    "flows_now",
    "descriptors_full",
    "connections_shared",
];
const _: () = assert!(COUNTER_NAMES.len() <= COUNTERS);

/// Returns the offset of counter `index`; that of the last counter if `index` is out of range.
pub const fn counter_offset(index: usize) -> usize {
    COUNTERS_OFFSET + 8 * (if index < COUNTERS { index } else { COUNTERS - 1 })
}

/// Returns the offset of socket entry `index`, modulo the table size.
pub const fn socket_offset(index: usize) -> usize {
    SOCKETS_OFFSET + (index % SOCKETS) * SOCKET_LEN
}

/// Returns the offset of trace event number `count`.
pub const fn trace_offset(count: u64) -> usize {
    TRACE_OFFSET + (count % TRACE_EVENTS as u64) as usize * TRACE_LEN
}

/// The header of a new page.
pub fn emit_header() -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&MAGIC);
    out[8] = 1;
    out
}

/// How a socket is carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SocketKind {
    /// A listener registered with proxies.
    Listener = 1,
    /// A connection over a channel.
    Connection = 2,
    /// A listener left to the kernel.
    KernelListener = 3,
    /// A connection left to the kernel.
    KernelConnection = 4,
}

/// Why the kernel carries a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The kernel does not carry it: it is accelerated.
    Accelerated = 0,
    /// Its port or destination is outside the rule.
    Rule = 1,
    /// A loopback address.
    Loopback = 2,
    /// The agent is not reachable or has refused the process.
    NoAgent = 3,
    /// No proxy was reachable.
    NoProxy = 4,
    /// A table was full.
    Full = 5,
    /// The connection is accelerated up to the agent, which relays it to the processes that share it.
    Shared = 6,
    /// The program uses a feature that accelerated sockets lack: a socket option, or SIGIO.
    Lacking = 7,
    /// A listener that was created outside the filter and passed to the program; other processes may share
    /// it.
    External = 8,
    /// An address of an interface of this host.
    Own = 9,
}

impl SocketKind {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => SocketKind::Listener,
            2 => SocketKind::Connection,
            3 => SocketKind::KernelListener,
            4 => SocketKind::KernelConnection,
            _ => return None,
        })
    }

    /// The name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            SocketKind::Listener => "listener",
            SocketKind::Connection => "connection",
            SocketKind::KernelListener => "kernel-listener",
            SocketKind::KernelConnection => "kernel-connection",
        }
    }
}

impl Reason {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Reason::Accelerated,
            1 => Reason::Rule,
            2 => Reason::Loopback,
            3 => Reason::NoAgent,
            4 => Reason::NoProxy,
            5 => Reason::Full,
            6 => Reason::Shared,
            7 => Reason::Lacking,
            8 => Reason::External,
            9 => Reason::Own,
            _ => return None,
        })
    }

    /// The name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Accelerated => "accelerated",
            Reason::Rule => "outside the rule",
            Reason::Loopback => "loopback",
            Reason::NoAgent => "no agent",
            Reason::NoProxy => "no proxy",
            Reason::Full => "table full",
            Reason::Shared => "shared, carried by the agent",
            Reason::Lacking => "asked for what accelerated sockets lack",
            Reason::External => "made outside the filter",
            Reason::Own => "an address of this host",
        }
    }
}

/// Connections that wait to be accepted at a listener.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AcceptQueue {
    /// How many wait.
    pub waiting: u32,
    /// How many may wait, as the program gave it to `listen`.
    pub backlog: u32,
}

/// A socket of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketEntry {
    /// How it is carried.
    pub kind: SocketKind,
    /// The reason.
    pub reason: Reason,
    /// Its descriptor when it was created.
    pub fd: u32,
    /// The flow; [`FlowLabel::NONE`] for listeners.
    pub label: FlowLabel,
    /// The process's end.
    pub local: SocketAddr,
    /// The other end; equals `local` for listeners.
    pub remote: SocketAddr,
    /// The last error of the connection, as errno; 0: none.
    pub error: u16,
    /// For a listener; zeros otherwise.
    pub queue: AcceptQueue,
    /// For [`Reason::Lacking`]: level and number of the option; `None`: SIGIO.
    pub option: Option<(u16, u16)>,
}

/// Offset of the error in socket entry `index`, 2 bytes.
pub const fn socket_error_offset(index: usize) -> usize {
    socket_offset(index) + 2
}

/// Offset of the label in socket entry `index`, 4 bytes.
pub const fn socket_label_offset(index: usize) -> usize {
    socket_offset(index) + 8
}

/// Offset of the process's address in socket entry `index`, in the format of [`emit_address`].
pub const fn socket_local_offset(index: usize) -> usize {
    socket_offset(index) + 16
}

/// Offset of the number of connections that wait at the listener in socket entry `index`, 4 bytes.
pub const fn socket_waiting_offset(index: usize) -> usize {
    socket_offset(index) + 12
}

impl SocketEntry {
    /// A socket without label, error and queue. For a listener, `remote` equals `local`.
    pub fn new(kind: SocketKind, reason: Reason, fd: u32, local: SocketAddr, remote: SocketAddr) -> Self {
        let label = FlowLabel::NONE;
        SocketEntry {
            kind,
            reason,
            fd,
            label,
            local,
            remote,
            error: 0,
            queue: AcceptQueue::default(),
            option: None,
        }
    }

    /// The entry as bytes; an all-zero entry is a free one.
    pub fn emit(&self) -> [u8; SOCKET_LEN] {
        let mut out = [0; SOCKET_LEN];
        out[0] = self.kind as u8;
        out[1] = self.reason as u8;
        out[2..4].copy_from_slice(&self.error.to_le_bytes());
        out[4..8].copy_from_slice(&self.fd.to_le_bytes());
        out[8..12].copy_from_slice(&self.label.to_wire().to_le_bytes());
        out[12..16].copy_from_slice(&self.queue.waiting.to_le_bytes());
        out[16..16 + ADDRESS_LEN].copy_from_slice(&emit_address(self.local));
        out[36..36 + ADDRESS_LEN].copy_from_slice(&emit_address(self.remote));
        out[56..60].copy_from_slice(&self.queue.backlog.to_le_bytes());
        // No level has an option 0.
        let (level, number) = self.option.unwrap_or((0, 0));
        out[60..62].copy_from_slice(&level.to_le_bytes());
        out[62..64].copy_from_slice(&number.to_le_bytes());
        out
    }

    fn parse(raw: &[u8; SOCKET_LEN]) -> Option<Self> {
        Some(SocketEntry {
            kind: SocketKind::from_u8(raw[0])?,
            reason: Reason::from_u8(raw[1])?,
            fd: number(raw, 4),
            label: FlowLabel::from_wire(number(raw, 8))?,
            local: parse_address(raw, 16).ok()?,
            remote: parse_address(raw, 36).ok()?,
            error: u16::from_le_bytes([raw[2], raw[3]]),
            queue: AcceptQueue { waiting: number(raw, 12), backlog: number(raw, 56) },
            option: Some((u16::from_le_bytes([raw[60], raw[61]]), u16::from_le_bytes([raw[62], raw[63]])))
                .filter(|(_, number)| *number != 0),
        })
    }
}

/// Four bytes of an entry.
fn number(raw: &[u8; SOCKET_LEN], at: usize) -> u32 {
    raw.get(at..).and_then(|tail| tail.first_chunk()).copied().map_or(0, u32::from_le_bytes)
}

/// A trace event as bytes. `count` is its number: how many events were written before it.
pub fn emit_trace(count: u64, event: &TraceEvent) -> [u8; TRACE_LEN] {
    let mut out = [0; TRACE_LEN];
    out[..8].copy_from_slice(&event.at.as_nanos().to_le_bytes());
    out[8..12].copy_from_slice(&event.label.to_wire().to_le_bytes());
    out[12] = event.kind as u8;
    out[14..16].copy_from_slice(&event.proxy.to_le_bytes());
    out[16..20].copy_from_slice(&event.len.to_le_bytes());
    out[24..32].copy_from_slice(&count.wrapping_add(1).to_le_bytes());
    out
}

fn parse_trace(raw: &[u8; TRACE_LEN]) -> Option<(u64, TraceEvent)> {
    let kind = match raw[12] {
        30 => TraceKind::AppOpen,
        31 => TraceKind::AppDataIn,
        32 => TraceKind::AppDataOut,
        33 => TraceKind::AppClose,
        34 => TraceKind::AppReset,
        35 => TraceKind::AppHandedOver,
        _ => return None,
    };
    let number = u64::from_le_bytes(*raw.get(24..)?.first_chunk()?).checked_sub(1)?;
    let event = TraceEvent {
        at: Instant::from_nanos(u64::from_le_bytes(*raw.first_chunk()?)),
        label: FlowLabel::from_wire(u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]))?,
        kind,
        proxy: u16::from_le_bytes([raw[14], raw[15]]),
        len: u32::from_le_bytes([raw[16], raw[17], raw[18], raw[19]]),
        ..TraceEvent::default()
    };
    Some((number, event))
}

/// A copy of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageView<'a> {
    bytes: &'a [u8],
}

impl<'a> PageView<'a> {
    /// Checks size, magic and version.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = array_at::<16>(bytes, 0, "process page header")?;
        if bytes.len() < PAGE_LEN {
            return Err(WireError::Truncated { what: "process page", offset: 0, needed: PAGE_LEN });
        }
        if header[..8] != MAGIC {
            return Err(WireError::Value { what: "process page magic", offset: 0 });
        }
        if header[8..12] != [1, 0, 0, 0] {
            return Err(WireError::Version { what: "process page", offset: 8, found: header[8].into() });
        }
        Ok(PageView { bytes })
    }

    /// Counter `index`.
    pub fn counter(&self, index: usize) -> u64 {
        array_at::<8>(self.bytes, counter_offset(index), "counter").map_or(0, |raw| u64::from_le_bytes(*raw))
    }

    /// The sockets, without ill-formed entries.
    pub fn sockets(&self) -> impl Iterator<Item = SocketEntry> + 'a {
        let bytes = self.bytes;
        (0..SOCKETS)
            .filter_map(move |i| SocketEntry::parse(array_at(bytes, socket_offset(i), "socket entry").ok()?))
    }

    /// The trace events still held, in slot order, each with its number; ill-formed ones and those whose
    /// number does not belong to the slot are left out.
    pub fn trace(&self) -> impl Iterator<Item = (u64, TraceEvent)> + 'a {
        let bytes = self.bytes;
        (0..TRACE_EVENTS as u64).filter_map(move |slot| {
            let found = parse_trace(array_at(bytes, trace_offset(slot), "trace entry").ok()?)?;
            (found.0 % TRACE_EVENTS as u64 == slot).then_some(found)
        })
    }
}
