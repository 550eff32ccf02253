//! Emission of the messages.

use core::net::SocketAddr;

use csp_types::NodeId;

use super::{
    Attach, CarriedOption, DESTINATIONS_MAX, Destination, EXCEPT, HEADER_LEN, LIST_MAX, Left,
    MESSAGE_LEN_MAX, PROXY_DIRECT, PROXY_DRAINING, Proxy, VERSION,
};
use crate::WireError;
use crate::bytes::Writer;
use crate::channel::emit_address;

/// Writes one message into a caller's buffer, field by field.
struct Emitter<'a> {
    out: Writer<'a>,
}

impl<'a> Emitter<'a> {
    fn new(buffer: &'a mut [u8], kind: u8) -> Result<Self, WireError> {
        let len = buffer.len().min(MESSAGE_LEN_MAX);
        let mut out = Writer::new(buffer.get_mut(..len).unwrap_or(&mut []));
        out.put(&[VERSION, kind, 0, 0, 0, 0, 0, 0], "agent message header")?;
        Ok(Emitter { out })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.out.put(bytes, "agent message")
    }

    fn short(&mut self, text: &[u8], what: &'static str) -> Result<(), WireError> {
        let len = u8::try_from(text.len()).map_err(|_| WireError::TooLarge { what })?;
        self.put(&[len])?;
        self.put(text)
    }

    fn long(&mut self, text: &[u8], what: &'static str) -> Result<(), WireError> {
        let len = u16::try_from(text.len()).map_err(|_| WireError::TooLarge { what })?;
        self.put(&len.to_le_bytes())?;
        self.put(text)
    }

    fn count(&mut self, count: usize, most: usize, what: &'static str) -> Result<(), WireError> {
        if count > most {
            return Err(WireError::TooLarge { what });
        }
        self.put(&[count as u8])
    }

    fn listen(&mut self, ports: Option<&[u16]>) -> Result<(), WireError> {
        self.put(&[u8::from(ports.is_none())])?;
        let ports = ports.unwrap_or(&[]);
        self.count(ports.len(), LIST_MAX, "ports")?;
        ports.iter().try_for_each(|p| self.put(&p.to_le_bytes()))
    }

    fn connect(&mut self, destinations: &[Destination]) -> Result<(), WireError> {
        self.count(destinations.len(), DESTINATIONS_MAX, "destinations")?;
        destinations.iter().try_for_each(|d| {
            let bits = u16::from(d.prefix.length()) | if d.except { EXCEPT } else { 0 };
            self.put(&emit_address(SocketAddr::new(d.prefix.address(), bits)))
        })
    }

    fn proxies(&mut self, proxies: &[Proxy<'_>]) -> Result<(), WireError> {
        self.count(proxies.len(), LIST_MAX, "proxies")?;
        proxies.iter().try_for_each(|p| {
            self.short(p.node.as_str().as_bytes(), "node id")?;
            self.put(&[p.worker])?;
            self.short(p.path, "proxy socket path")?;
            let direct = if p.direct.is_some() { PROXY_DIRECT } else { 0 };
            self.put(&[direct | if p.draining { PROXY_DRAINING } else { 0 }])?;
            p.direct.map_or(Ok(()), |address| self.put(&emit_address(address)))
        })
    }
}

/// Fills in the length. Returns the length of the whole message.
fn finish(buffer: &mut [u8], len: usize) -> Result<usize, WireError> {
    let field = crate::bytes::room(buffer, HEADER_LEN, "agent message header")?;
    if let Some(field) = field.get_mut(4..8) {
        field.copy_from_slice(&((len - HEADER_LEN) as u32).to_le_bytes());
    }
    Ok(len)
}

macro_rules! emit {
    ($buffer:ident, $kind:literal, |$e:ident| $fields:expr) => {{
        let len = {
            let mut $e = Emitter::new($buffer, $kind)?;
            $fields;
            $e.out.len()
        };
        finish($buffer, len)
    }};
}

/// Writes ATTACH; returns its length.
pub fn emit_attach(buffer: &mut [u8], message: &Attach<'_>) -> Result<usize, WireError> {
    emit!(buffer, 1, |e| {
        e.put(&message.pid.to_le_bytes())?;
        e.short(message.program.as_bytes(), "program name")?;
        e.short(message.former, "process id")?;
    })
}

/// Input of [`emit_attached`]: like [`Attached`](super::Attached), with the lists in the agent's form.
#[derive(Clone, Copy, Debug)]
pub struct AttachedRepr<'a> {
    /// The agent's node.
    pub node: NodeId,
    /// The process's name.
    pub process: &'a [u8],
    /// The token.
    pub token: &'a [u8],
    /// Expiry of the token, in seconds of Unix time.
    pub expires: u64,
    /// Accelerated ports; `None`: all.
    pub listen: Option<&'a [u16]>,
    /// Accelerated destinations.
    pub connect: &'a [Destination],
    /// Whether loopback addresses are accelerated.
    pub loopback: bool,
    /// The proxies.
    pub proxies: &'a [Proxy<'a>],
}

/// Writes ATTACHED; returns its length.
pub fn emit_attached(buffer: &mut [u8], message: &AttachedRepr<'_>) -> Result<usize, WireError> {
    emit!(buffer, 2, |e| {
        e.short(message.node.as_str().as_bytes(), "node id")?;
        e.short(message.process, "process id")?;
        e.long(message.token, "token")?;
        e.put(&message.expires.to_le_bytes())?;
        e.listen(message.listen)?;
        e.connect(message.connect)?;
        e.put(&[u8::from(message.loopback)])?;
        e.proxies(message.proxies)?;
    })
}

/// Writes REFUSED; returns its length.
pub fn emit_refused(buffer: &mut [u8], reason: &str) -> Result<usize, WireError> {
    emit!(buffer, 3, |e| e.long(reason.as_bytes(), "reason")?)
}

/// Writes PROXIES; returns its length.
pub fn emit_proxies(
    buffer: &mut [u8],
    proxies: &[Proxy<'_>],
    connect: &[Destination],
) -> Result<usize, WireError> {
    emit!(buffer, 4, |e| {
        e.proxies(proxies)?;
        e.connect(connect)?;
    })
}

/// Writes RENEW; returns its length.
pub fn emit_renew(buffer: &mut [u8]) -> Result<usize, WireError> {
    emit!(buffer, 5, |e| e.put(&[])?)
}

/// Writes TOKEN; returns its length.
pub fn emit_token(buffer: &mut [u8], token: &[u8], expires: u64) -> Result<usize, WireError> {
    emit!(buffer, 6, |e| {
        e.long(token, "token")?;
        e.put(&expires.to_le_bytes())?;
    })
}

/// Writes LEFT; returns its length.
pub fn emit_left(buffer: &mut [u8], message: &Left) -> Result<usize, WireError> {
    emit!(buffer, 7, |e| {
        e.short(message.node.as_str().as_bytes(), "node id")?;
        e.put(&[message.worker])?;
        e.put(&message.label.to_wire().to_le_bytes())?;
        e.put(&message.ticket.0)?;
        e.put(&emit_address(message.local))?;
        e.put(&emit_address(message.remote))?;
    })
}

/// Writes OPTION; returns its length.
pub fn emit_option(buffer: &mut [u8], message: &CarriedOption) -> Result<usize, WireError> {
    emit!(buffer, 8, |e| {
        e.put(&message.ticket.0)?;
        e.put(&(message.option as u32).to_le_bytes())?;
        e.put(&message.value.to_le_bytes())?;
    })
}
