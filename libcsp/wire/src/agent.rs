//! Messages between an application process and its host's agent, one per SEQPACKET datagram.
//!
//! ```text
//!  0 version (1) | 1 kind | 2 reserved 0 (2) | 4 body length (4)
//!  8 body
//! process ── ATTACH ──▶ agent        the process's identity
//! process ◀── ATTACHED or REFUSED    identity, token, rules, proxies; with it one descriptor: the process page
//! process ◀── PROXIES                whenever the proxies change
//! process ── RENEW ──▶ agent, TOKEN back
//! process ── LEFT ──▶ agent          hands over a connection; with it one descriptor: the peer of a Unix socket
//! process ── OPTION ─▶ agent         sets an option of a connection in custody; also as the only message of a socket
//! ```
//! Integers are little-endian; texts are preceded by their length. The process page is in [`page`].

use core::net::{IpAddr, SocketAddr};

use csp_types::{FlowLabel, NodeId, Prefix, ProgramName, longest_match};

use crate::WireError;
use crate::bytes::{array_at, slice_at};
use crate::channel::{ADDRESS_LEN, ChannelOption, TICKET_LEN, Ticket, parse_address};

mod emit;
pub mod page;
#[cfg(test)]
mod tests;

pub use emit::{
    AttachedRepr, emit_attach, emit_attached, emit_left, emit_option, emit_proxies, emit_refused, emit_renew,
    emit_token,
};

/// The version of the protocol.
pub const VERSION: u8 = 4;
/// Length of a message's header in bytes.
pub const HEADER_LEN: usize = 8;
/// Longest message in bytes, header included.
pub const MESSAGE_LEN_MAX: usize = 16 * 1024;
/// Longest id of a process, in bytes.
pub const PROCESS_LEN_MAX: usize = 63;
/// Most ports, and most proxies, that one message may list.
pub const LIST_MAX: usize = 64;
/// Most destinations that one message may list, exceptions included.
pub const DESTINATIONS_MAX: usize = 128;
/// Longest path of a proxy's socket, in bytes.
pub const PATH_LEN_MAX: usize = 107;

/// Ports whose listeners are accelerated, as configured at the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenRule<'a> {
    /// All ports; the list is then empty.
    pub all: bool,
    ports: &'a [u8],
}

impl<'a> ListenRule<'a> {
    /// Whether a listener on `port` is accelerated.
    pub fn covers(&self, port: u16) -> bool {
        self.all || self.ports().any(|p| p == port)
    }

    /// The listed ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> + 'a {
        self.ports.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]))
    }
}

/// A destination network that is reached through the cluster, or an exception within a larger one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The network.
    pub prefix: Prefix,
    /// The network is an exception: it is not reached through the cluster.
    pub except: bool,
}

/// Whether a connection to `ip` goes through the cluster ([`longest_match`]).
pub fn leads_through(destinations: impl Iterator<Item = Destination>, ip: IpAddr) -> bool {
    longest_match(destinations.map(|d| (d.prefix, d.except, ())), ip).is_some()
}

/// One record of the destinations list: an address, whose port field holds the prefix length, plus [`EXCEPT`]
/// for an exception.
const PREFIX_LEN: usize = ADDRESS_LEN;
const EXCEPT: u16 = 0x8000;

/// Destinations that connect through the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectRule<'a> {
    records: &'a [u8],
}

impl<'a> ConnectRule<'a> {
    /// Whether a connection to `ip` goes through the cluster.
    pub fn covers(&self, ip: IpAddr) -> bool {
        leads_through(self.destinations(), ip)
    }

    /// The listed networks.
    pub fn destinations(&self) -> impl Iterator<Item = Destination> + 'a {
        // Every record was validated when the message was parsed.
        self.records.chunks_exact(PREFIX_LEN).filter_map(|record| destination(record, 0).ok())
    }
}

fn destination(records: &[u8], at: usize) -> Result<Destination, WireError> {
    let record = parse_address(records, at)?;
    let wrong = WireError::Value { what: "network", offset: at };
    let length = u8::try_from(record.port() & !EXCEPT).map_err(|_| wrong)?;
    let prefix = Prefix::new(record.ip(), length).map_err(|_| wrong)?;
    Ok(Destination { prefix, except: record.port() & EXCEPT != 0 })
}

/// A worker of a proxy, and the Unix socket on which it accepts channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proxy<'a> {
    /// The node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// Path of the socket.
    pub path: &'a [u8],
    /// Address at which it accepts verbs connections directly from the process, if the operator permits
    /// processes to own queue pairs.
    pub direct: Option<SocketAddr>,
    /// Whether it drains: it gets no new connections while another proxy is available.
    pub draining: bool,
}

/// Bit of a proxy's flags: an address for direct verbs connections follows.
const PROXY_DIRECT: u8 = 1;
/// Bit of a proxy's flags: [`Proxy::draining`]. Programs that do not know the bit ignore the list and keep
/// the former one.
const PROXY_DRAINING: u8 = 2;

/// The list of proxies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proxies<'a> {
    count: u8,
    bytes: &'a [u8],
}

impl<'a> Proxies<'a> {
    /// Number of proxies.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The proxies.
    pub fn iter(&self) -> impl Iterator<Item = Proxy<'a>> + use<'a> {
        // The whole list was validated when the message was parsed.
        let mut reader = Reader { bytes: self.bytes, at: 0 };
        (0..self.count).map_while(move |_| reader.proxy().ok())
    }
}

/// The first message of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attach<'a> {
    /// The process id; where the socket's credentials differ, the agent uses those.
    pub pid: u32,
    /// The full name of the program.
    pub program: ProgramName,
    /// The id that a previous agent assigned to this process and that it asks to keep; empty at the first
    /// attachment.
    pub former: &'a [u8],
}

/// The agent's reply if it admits the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached<'a> {
    /// The agent's node.
    pub node: NodeId,
    /// The process's name on that node.
    pub process: &'a [u8],
    /// The token that proves the identity to proxies.
    pub token: &'a [u8],
    /// Expiry of the token, in seconds of Unix time.
    pub expires: u64,
    /// The accelerated ports.
    pub listen: ListenRule<'a>,
    /// The accelerated destinations.
    pub connect: ConnectRule<'a>,
    /// Whether listeners on loopback addresses and connections to them are accelerated as well.
    pub loopback: bool,
    /// The current proxies.
    pub proxies: Proxies<'a>,
}

/// A message, parsed and checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentMessage<'a> {
    /// Process to agent.
    Attach(Attach<'a>),
    /// Agent to process.
    Attached(Attached<'a>),
    /// Agent to process: the reason of the refusal, as text. The agent closes the socket.
    Refused(&'a [u8]),
    /// Agent to process: the current proxies and destinations.
    Proxies(Proxies<'a>, ConnectRule<'a>),
    /// Process to agent: a request for a new token.
    Renew,
    /// Agent to process: a token, and when it expires in seconds of Unix time.
    Token(&'a [u8], u64),
    /// Process to agent.
    Left(Left),
    /// Process to agent.
    Option(CarriedOption),
}

/// An option for a connection in the agent's custody, set by a process that shares the connection. The ticket
/// with which the connection was handed over is the authorisation: every sharing process can read it from the
/// connection's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CarriedOption {
    /// The connection's ticket.
    pub ticket: Ticket,
    /// The option.
    pub option: ChannelOption,
    /// Its value, in the option's unit.
    pub value: u64,
}

/// A connection that the process has handed over at its proxy. The agent continues it over the Unix socket
/// attached to the message, which several processes can share and which programs without the filter can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// The proxy.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// The connection's label there.
    pub label: FlowLabel,
    /// The ticket for the connection.
    pub ticket: Ticket,
    /// The address on the cluster's side.
    pub local: SocketAddr,
    /// The client's address.
    pub remote: SocketAddr,
}

impl<'a> AgentMessage<'a> {
    /// Parses a datagram.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, WireError> {
        let header = array_at::<HEADER_LEN>(datagram, 0, "agent message header")?;
        if header[0] != VERSION {
            let found = header[0].into();
            return Err(WireError::Version { what: "agent message version", offset: 0, found });
        }
        if header[2..4] != [0, 0] {
            return Err(WireError::Reserved { what: "agent message reserved bytes", offset: 2 });
        }
        let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if datagram.len() != HEADER_LEN + len || datagram.len() > MESSAGE_LEN_MAX {
            return Err(WireError::Length { what: "agent message length", offset: 4, found: len });
        }
        let mut r = Reader { bytes: datagram, at: HEADER_LEN };
        let message = match header[1] {
            1 => AgentMessage::Attach(Attach {
                pid: r.u32()?,
                program: r.program()?,
                former: r.graphic("process id")?,
            }),
            2 => AgentMessage::Attached(Attached {
                node: r.node()?,
                process: r.graphic("process id")?,
                token: r.long("token")?,
                expires: r.u64()?,
                listen: r.listen_rule()?,
                connect: r.connect_rule()?,
                loopback: r.flag("loopback rule")?,
                proxies: r.proxies()?,
            }),
            3 => AgentMessage::Refused(r.long("reason")?),
            4 => AgentMessage::Proxies(r.proxies()?, r.connect_rule()?),
            5 => AgentMessage::Renew,
            6 => AgentMessage::Token(r.long("token")?, r.u64()?),
            7 => AgentMessage::Left(Left {
                node: r.node()?,
                worker: r.u8()?,
                label: r.label()?,
                ticket: Ticket(*r.array::<TICKET_LEN>()?),
                local: r.address()?,
                remote: r.address()?,
            }),
            8 => AgentMessage::Option(CarriedOption {
                ticket: Ticket(*r.array::<TICKET_LEN>()?),
                option: r.option()?,
                value: r.u64()?,
            }),
            found => {
                let found = found.into();
                return Err(WireError::Kind { what: "agent message kind", offset: 1, found });
            }
        };
        if r.at != datagram.len() {
            return Err(WireError::Length {
                what: "agent message body",
                offset: r.at,
                found: datagram.len(),
            });
        }
        Ok(message)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let found = array_at::<N>(self.bytes, self.at, "agent message field")?;
        self.at += N;
        Ok(found)
    }

    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let found = slice_at(self.bytes, self.at, len, what)?;
        self.at += len;
        Ok(found)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    fn option(&mut self) -> Result<ChannelOption, WireError> {
        let (offset, number) = (self.at, self.u32()?);
        let found = || WireError::Kind { what: "connection option", offset, found: number };
        ChannelOption::from_u32(number).ok_or_else(found)
    }

    fn long(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let len = self.u16()?;
        self.take(len.into(), what)
    }

    fn graphic(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let offset = self.at;
        let len = usize::from(self.u8()?);
        let text = self.take(len, what)?;
        if len > PROCESS_LEN_MAX || !text.iter().all(u8::is_ascii_graphic) {
            return Err(WireError::Value { what, offset });
        }
        Ok(text)
    }

    fn program(&mut self) -> Result<ProgramName, WireError> {
        let offset = self.at;
        let len = self.u8()?;
        let name = self.take(len.into(), "program name")?;
        ProgramName::parse(name).map_err(|_| WireError::Value { what: "program name", offset })
    }

    fn node(&mut self) -> Result<NodeId, WireError> {
        let offset = self.at;
        let len = self.u8()?;
        let text = self.take(len.into(), "node id")?;
        NodeId::parse(text).map_err(|_| WireError::Value { what: "node id", offset })
    }

    fn label(&mut self) -> Result<FlowLabel, WireError> {
        let offset = self.at;
        let label = FlowLabel::from_wire(self.u32()?).filter(|label| !label.is_none());
        label.ok_or(WireError::Value { what: "label", offset })
    }

    fn address(&mut self) -> Result<SocketAddr, WireError> {
        let offset = self.at;
        parse_address(self.take(ADDRESS_LEN, "address")?, 0).map_err(|e| e.shifted(offset))
    }

    fn count(&mut self, most: usize, what: &'static str) -> Result<u8, WireError> {
        let offset = self.at;
        let count = self.u8()?;
        if usize::from(count) > most {
            return Err(WireError::Length { what, offset, found: count.into() });
        }
        Ok(count)
    }

    fn listen_rule(&mut self) -> Result<ListenRule<'a>, WireError> {
        let offset = self.at;
        let all = self.u8()?;
        let count = self.count(LIST_MAX, "ports")?;
        if all > 1 || (all == 1 && count > 0) {
            return Err(WireError::Value { what: "listen rule", offset });
        }
        Ok(ListenRule { all: all == 1, ports: self.take(2 * usize::from(count), "ports")? })
    }

    fn connect_rule(&mut self) -> Result<ConnectRule<'a>, WireError> {
        let count = self.count(DESTINATIONS_MAX, "destinations")?;
        let offset = self.at;
        let records = self.take(PREFIX_LEN * usize::from(count), "destinations")?;
        for at in (0..records.len()).step_by(PREFIX_LEN) {
            destination(records, at).map_err(|e| e.shifted(offset))?;
        }
        Ok(ConnectRule { records })
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Value { what, offset: self.at - 1 }),
        }
    }

    fn proxy(&mut self) -> Result<Proxy<'a>, WireError> {
        let (node, worker, len) = (self.node()?, self.u8()?, self.u8()?);
        let offset = self.at;
        let path = self.take(len.into(), "proxy socket path")?;
        if path.is_empty() || path.len() > PATH_LEN_MAX || path.contains(&0) {
            return Err(WireError::Value { what: "proxy socket path", offset });
        }
        let flags = self.u8()?;
        if flags & !(PROXY_DIRECT | PROXY_DRAINING) != 0 {
            return Err(WireError::Value { what: "proxy flags", offset: self.at - 1 });
        }
        let direct = if flags & PROXY_DIRECT != 0 { Some(self.address()?) } else { None };
        Ok(Proxy { node, worker, path, direct, draining: flags & PROXY_DRAINING != 0 })
    }

    fn proxies(&mut self) -> Result<Proxies<'a>, WireError> {
        let count = self.count(LIST_MAX, "proxies")?;
        let start = self.at;
        for _ in 0..count {
            self.proxy()?;
        }
        Ok(Proxies { count, bytes: slice_at(self.bytes, start, self.at - start, "proxies")? })
    }
}
