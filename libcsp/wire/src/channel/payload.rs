//! Payloads of channel messages with a fixed format: addresses, windows, option values.
//!
//! A socket address occupies 20 bytes: family 4 or 6, a zero, the port (little-endian), 4 or 16 address
//! bytes, zeros.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_types::FlowLabel;

use crate::WireError;
use crate::bytes::{array_at, check_padding, room};

/// Bytes of a socket address.
pub const ADDRESS_LEN: usize = 20;

/// Writes a socket address. Flow information and scope of IPv6 addresses are not carried.
pub fn emit_address(address: SocketAddr) -> [u8; ADDRESS_LEN] {
    let mut out = [0; ADDRESS_LEN];
    out[2..4].copy_from_slice(&address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            out[0] = 4;
            out[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out[0] = 6;
            out[4..20].copy_from_slice(&ip.octets());
        }
    }
    out
}

/// Reads the socket address at `offset`.
pub fn parse_address(bytes: &[u8], offset: usize) -> Result<SocketAddr, WireError> {
    let raw = array_at::<ADDRESS_LEN>(bytes, offset, "socket address")?;
    let ip = match raw[0] {
        4 => {
            check_padding(&raw[8..], offset + 8, "socket address padding")?;
            IpAddr::V4(Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7]))
        }
        6 => IpAddr::V6(Ipv6Addr::from(*array_at::<16>(raw, 4, "socket address")?)),
        found => return Err(WireError::Kind { what: "socket address family", offset, found: found.into() }),
    };
    if raw[1] != 0 {
        return Err(WireError::Reserved { what: "socket address reserved byte", offset: offset + 1 });
    }
    Ok(SocketAddr::new(ip, u16::from_le_bytes([raw[2], raw[3]])))
}

/// Parses two addresses of one family at the start of `payload`.
fn parse_pair(payload: &[u8]) -> Result<(SocketAddr, SocketAddr), WireError> {
    let (first, second) = (parse_address(payload, 0)?, parse_address(payload, ADDRESS_LEN)?);
    if first.is_ipv4() != second.is_ipv4() {
        return Err(WireError::Value { what: "socket address family", offset: ADDRESS_LEN });
    }
    Ok((first, second))
}

fn check_len(payload: &[u8], expected: usize, what: &'static str) -> Result<(), WireError> {
    if payload.len() != expected {
        return Err(WireError::Length { what, offset: 0, found: payload.len() });
    }
    Ok(())
}

/// Payload of LISTEN: where the application listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenPayload {
    /// The address given to `bind`; an unspecified address means all addresses.
    pub address: SocketAddr,
}

impl ListenPayload {
    /// Bytes of the payload.
    pub const LEN: usize = ADDRESS_LEN;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "listen payload")?;
        Ok(ListenPayload { address: parse_address(payload, 0)? })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        emit_address(self.address)
    }
}

/// Payload of OPEN: the connection's addresses, and how much the application may send before it receives
/// credit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenPayload {
    /// The address on the cluster's side: that of the service.
    pub local: SocketAddr,
    /// The client's address.
    pub remote: SocketAddr,
    /// Bytes that the application may have in flight towards the proxy.
    pub window: u32,
}

/// Payload of CONNECTED; the format is that of OPEN.
pub type ConnectedPayload = OpenPayload;

impl OpenPayload {
    /// Bytes of the payload.
    pub const LEN: usize = 2 * ADDRESS_LEN + 4;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "open payload")?;
        let (local, remote) = parse_pair(payload)?;
        let window = u32::from_le_bytes(*array_at(payload, 2 * ADDRESS_LEN, "open window")?);
        Ok(OpenPayload { local, remote, window })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..ADDRESS_LEN].copy_from_slice(&emit_address(self.local));
        out[ADDRESS_LEN..2 * ADDRESS_LEN].copy_from_slice(&emit_address(self.remote));
        out[2 * ADDRESS_LEN..].copy_from_slice(&self.window.to_le_bytes());
        out
    }
}

/// Payload of CONNECT: the destination, and the source if the application has bound one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectPayload {
    /// The destination.
    pub remote: SocketAddr,
    /// The source that the application has bound.
    pub local: Option<SocketAddr>,
}

impl ConnectPayload {
    /// Bytes of the longest payload.
    pub const LEN_MAX: usize = 2 * ADDRESS_LEN;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        if payload.len() == ADDRESS_LEN {
            return Ok(ConnectPayload { remote: parse_address(payload, 0)?, local: None });
        }
        check_len(payload, Self::LEN_MAX, "connect payload")?;
        let (remote, local) = parse_pair(payload)?;
        Ok(ConnectPayload { remote, local: Some(local) })
    }

    /// Bytes [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        if self.local.is_some() { Self::LEN_MAX } else { ADDRESS_LEN }
    }

    /// Always false: the encoding is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the payload; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.len();
        let (remote, local) = room(out, len, "connect payload")?.split_at_mut(ADDRESS_LEN);
        remote.copy_from_slice(&emit_address(self.remote));
        if let Some(address) = self.local {
            local.copy_from_slice(&emit_address(address));
        }
        Ok(len)
    }
}

/// The argument of OPTION: which option of a connection the application sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ChannelOption {
    /// TCP_NODELAY: 0 enables Nagle's algorithm (RFC 9293 §3.7.4).
    NoDelay = 1,
    /// Idle time in milliseconds after which keepalive probes are sent (RFC 9293 §3.8.4); 0: never.
    KeepaliveIdle = 2,
    /// User timeout: milliseconds that data may stay unacknowledged (RFC 5482); 0: as configured.
    UserTimeout = 3,
    /// Milliseconds between two keepalive probes; 0 leaves the setting unchanged.
    KeepaliveInterval = 4,
    /// Number of keepalive probes that may stay unanswered; 1 to 255.
    KeepaliveCount = 5,
}

impl ChannelOption {
    /// The option with this number.
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            1 => ChannelOption::NoDelay,
            2 => ChannelOption::KeepaliveIdle,
            3 => ChannelOption::UserTimeout,
            4 => ChannelOption::KeepaliveInterval,
            5 => ChannelOption::KeepaliveCount,
            _ => return None,
        })
    }
}

/// Payload of the answer to INFO: figures of the client's TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InfoPayload {
    /// The state, in Linux' numbers (TCP_ESTABLISHED is 1).
    pub state: u32,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub rtt_us: u32,
    /// Retransmission timeout in microseconds.
    pub rto_us: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// The client's window in bytes.
    pub send_window: u32,
    /// Retransmissions so far.
    pub retransmits: u32,
    /// Bytes written and not acknowledged.
    pub send_queue: u32,
    /// Latest delivery rate in bytes per second.
    pub delivery_rate: u64,
}

impl InfoPayload {
    /// Bytes of the payload.
    pub const LEN: usize = 48;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "info payload")?;
        let word = |at: usize| Ok(u32::from_le_bytes(*array_at(payload, 4 * at, "info payload")?));
        Ok(InfoPayload {
            state: word(0)?,
            rtt_us: word(1)?,
            rto_us: word(2)?,
            mss: word(3)?,
            cwnd: word(4)?,
            ssthresh: word(5)?,
            in_flight: word(6)?,
            send_window: word(7)?,
            retransmits: word(8)?,
            send_queue: word(9)?,
            delivery_rate: u64::from_le_bytes(*array_at(payload, 40, "info payload")?),
        })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let words = [
            self.state,
            self.rtt_us,
            self.rto_us,
            self.mss,
            self.cwnd,
            self.ssthresh,
            self.in_flight,
            self.send_window,
            self.retransmits,
            self.send_queue,
        ];
        let mut out = [0; Self::LEN];
        for (to, word) in out.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out[40..].copy_from_slice(&self.delivery_rate.to_le_bytes());
        out
    }
}

/// Payload of OPTION: the option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionPayload {
    /// The value, whose meaning depends on the option.
    pub value: u64,
}

impl OptionPayload {
    /// Bytes of the payload.
    pub const LEN: usize = 8;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "option payload")?;
        Ok(OptionPayload { value: u64::from_le_bytes(*array_at(payload, 0, "option payload")?) })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        self.value.to_le_bytes()
    }
}

/// Bytes of a [`Ticket`].
pub const TICKET_LEN: usize = 16;

/// Proof of the right to take over a connection: random bits that its former owner has chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub [u8; TICKET_LEN]);

impl Ticket {
    /// Reads the payload of HAND_OVER.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, TICKET_LEN, "ticket")?;
        Ok(Ticket(*array_at(payload, 0, "ticket")?))
    }
}

/// The ticket is not shown: a reader of the log could take over the connection.
impl core::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// Payload of TAKE_OVER: the connection, and its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakeOverPayload {
    /// The connection.
    pub label: FlowLabel,
    /// The ticket that its former owner has sent to the proxy.
    pub ticket: Ticket,
}

impl TakeOverPayload {
    /// Bytes of the payload.
    pub const LEN: usize = 4 + TICKET_LEN;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "take over payload")?;
        let label = FlowLabel::from_wire(u32::from_le_bytes(*array_at(payload, 0, "take over label")?))
            .filter(|label| !label.is_none())
            .ok_or(WireError::Value { what: "take over label", offset: 0 })?;
        Ok(TakeOverPayload { label, ticket: Ticket(*array_at(payload, 4, "take over ticket")?) })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.label.to_wire().to_le_bytes());
        out[4..].copy_from_slice(&self.ticket.0);
        out
    }
}

/// Payload of TAKEN_OVER: that of OPEN, and how much of the window is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenOverPayload {
    /// The connection's addresses, and the window for bytes towards the proxy.
    pub open: OpenPayload,
    /// Bytes of that window which the former owner used and for which no credit was returned yet.
    pub in_flight: u32,
    /// The former owner has sent SHUTDOWN.
    pub shut: bool,
}

impl TakenOverPayload {
    /// Bytes of the payload.
    pub const LEN: usize = OpenPayload::LEN + 8;

    /// Parses the payload.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        check_len(payload, Self::LEN, "taken over payload")?;
        let (open, rest) = payload.split_at(OpenPayload::LEN);
        let open = OpenPayload::parse(open)?;
        let in_flight = u32::from_le_bytes(*array_at(rest, 0, "taken over bytes in flight")?);
        if in_flight > open.window {
            return Err(WireError::Value { what: "taken over bytes in flight", offset: OpenPayload::LEN });
        }
        let shut = match u32::from_le_bytes(*array_at(rest, 4, "taken over state")?) {
            0 => false,
            1 => true,
            _ => return Err(WireError::Value { what: "taken over state", offset: OpenPayload::LEN + 4 }),
        };
        Ok(TakenOverPayload { open, in_flight, shut })
    }

    /// The payload as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..OpenPayload::LEN].copy_from_slice(&self.open.emit());
        out[OpenPayload::LEN..OpenPayload::LEN + 4].copy_from_slice(&self.in_flight.to_le_bytes());
        out[OpenPayload::LEN + 4] = u8::from(self.shut);
        out
    }
}
