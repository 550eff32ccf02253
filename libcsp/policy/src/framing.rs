//! The ports of a channel: how their peers separate messages, and what they may do there.

use std::collections::HashSet;

use csp_config::{Problems, number, port};
use csp_types::options::{ByteOrder, FullQueue};
use serde::{Deserialize, Deserializer, Serialize};

use super::channels::{Channel, Pattern};
use super::check::check_count;
use super::{Backlog, POOL_MAX, PoolMember, Protocol, Server, ServerOptions, Service, Via};

/// Most ports of a channel.
pub const CHANNEL_PORTS_MAX: usize = 8;
/// Longest header of a length-prefixed message, in bytes.
pub const HEADER_LEN_MAX: usize = 64;
/// Length of the Simple Open Framing Header in bytes.
pub const SOFH_LEN: usize = 6;
/// Encoding type of new Simple Open Framing Headers if the policy names none: SBE 1.0, little-endian.
pub const SOFH_ENCODING: u16 = 0xeb50;

/// How the peers of a port separate messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// They are ZeroMQ sockets.
    #[default]
    Zmtp,
    /// By the Simple Open Framing Header of FIX: the length, header included, in 4 bytes; the encoding type
    /// in 2; big-endian.
    Sofh,
    /// By a header with the length of the message in it.
    Length(LengthHeader),
}

/// A header of fixed length with the length of the message in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthHeader {
    /// Offset of the length field from the start of the header, in bytes.
    #[serde(default, deserialize_with = "header_offset")]
    pub offset: u8,
    /// Bytes of the length field: 1, 2, 4 or 8.
    #[serde(deserialize_with = "header_len")]
    pub bytes: u8,
    /// Its byte order.
    #[serde(default)]
    pub order: ByteOrder,
    /// Length of the header in bytes; absent: it ends with the length field.
    #[serde(default, deserialize_with = "some_header_len", skip_serializing_if = "Option::is_none")]
    pub header: Option<u8>,
    /// What the length counts.
    #[serde(default)]
    pub counts: LengthCounts,
}

/// What a length field counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LengthCounts {
    /// What follows the header.
    #[default]
    Body,
    /// What follows the length field: the rest of the header, and what follows the header.
    Rest,
    /// Everything, the header too.
    Message,
}

impl LengthHeader {
    /// Length of the header in bytes.
    pub fn header_len(&self) -> usize {
        self.header.map_or_else(|| self.field_end(), usize::from)
    }

    /// Offset of the first byte that the length counts.
    pub fn counted_from(&self) -> usize {
        match self.counts {
            LengthCounts::Body => self.header_len(),
            LengthCounts::Rest => self.field_end(),
            LengthCounts::Message => 0,
        }
    }

    fn field_end(&self) -> usize {
        usize::from(self.offset) + usize::from(self.bytes)
    }
}

/// What clients of a length-prefixed port do. ZeroMQ peers say it by the type of their socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clients {
    /// They publish, and receive all messages of the channel, their own too.
    Both,
    /// They publish or push.
    Publish,
    /// They receive: all messages of the channel, or as many as they pull.
    Subscribe,
}

/// What becomes of the headers of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Headers {
    /// They are part of the messages, which reach other length-prefixed peers byte for byte.
    #[default]
    Keep,
    /// The channel has the messages without them, for ZeroMQ peers; length-prefixed peers get new ones.
    Strip,
}

/// A port of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelPort {
    /// The port.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// How peers separate messages.
    #[serde(default)]
    pub framing: Framing,
    /// What they do; absent: both, where messages are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Clients>,
    /// What becomes of headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header: Headers,
    /// Encoding type of new Simple Open Framing Headers.
    #[serde(default, deserialize_with = "some_encoding", skip_serializing_if = "Option::is_none")]
    pub encoding: Option<u16>,
}

impl ChannelPort {
    /// Length of the header of its messages in bytes; `None` with ZMTP.
    pub fn header_len(&self) -> Option<usize> {
        match self.framing {
            Framing::Zmtp => None,
            Framing::Sofh => Some(SOFH_LEN),
            Framing::Length(header) => Some(header.header_len()),
        }
    }

    fn check(&self, channel: &Channel, at: &str, problems: &mut Problems) {
        let zmtp = self.framing == Framing::Zmtp;
        if let (true, Some(_)) = (zmtp, self.clients) {
            let message =
                "ZeroMQ peers say by the type of their socket what they do; allowed with sofh and length";
            problems.add_unless(&[&format!("{at}.framing")], format!("{at}.clients"), message);
        }
        if zmtp && self.header != Headers::Keep {
            let message = "messages of ZeroMQ peers have no such header; allowed with sofh and length";
            problems.add_unless(&[&format!("{at}.framing")], format!("{at}.header"), message);
        }
        if self.encoding.is_some() && !(self.framing == Framing::Sofh && self.header == Headers::Strip) {
            let message = "new headers have it where header is strip and framing is sofh; elsewhere it is the publisher's";
            let depends_on = [format!("{at}.framing"), format!("{at}.header")];
            problems.add_unless(
                &depends_on.each_ref().map(String::as_str),
                format!("{at}.encoding"),
                message,
            );
        }
        if !zmtp && channel.pattern == Pattern::Push && matches!(self.clients, None | Some(Clients::Both)) {
            let message = "with pattern push, clients of a length-prefixed port either push or pull; allowed are publish, subscribe";
            problems.add_unless(&[&format!("{at}.framing")], format!("{at}.clients"), message);
        }
        if let Framing::Length(header) = self.framing {
            header.check(&format!("{at}.framing.length"), problems);
        }
    }
}

impl LengthHeader {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !matches!(self.bytes, 1 | 2 | 4 | 8) {
            let message = format!("{} is no width of a length field; allowed are 1, 2, 4, 8", self.bytes);
            problems.add(format!("{at}.bytes"), message);
        }
        let (end, header_len) = (self.field_end(), self.header_len());
        if header_len < end || header_len > HEADER_LEN_MAX {
            let field = if self.header.is_some() { "header" } else { "offset" };
            let message = format!(
                "a header of {header_len} bytes; allowed are {end}, where the length field ends, to {HEADER_LEN_MAX}"
            );
            let depends_on = [format!("{at}.offset"), format!("{at}.bytes")];
            problems.add_unless(&depends_on.each_ref().map(String::as_str), format!("{at}.{field}"), message);
        }
    }
}

impl Channel {
    /// Every port, the first one first.
    pub fn ports(&self) -> impl Iterator<Item = ChannelPort> + '_ {
        let Channel { port, framing, clients, header, encoding, .. } = *self;
        std::iter::once(ChannelPort { port, framing, clients, header, encoding })
            .chain(self.listen.iter().copied())
    }

    /// The name of the service at one of its ports, under which proxies report it. That of a further port is
    /// the name of no service and no channel.
    pub fn service_name(&self, port: u16) -> String {
        if port == self.port { self.name.clone() } else { format!("{}:{port}", self.name) }
    }

    /// The services that a channel with a pool is, one for each port; none without a pool.
    pub fn pool_services(&self) -> impl Iterator<Item = Service> + '_ {
        self.ports().filter(|_| !self.pool.is_empty()).map(|port| Service {
            name: self.service_name(port.port),
            vip: self.vip,
            port: port.port,
            protocol: Protocol::Tcp,
            via: Via::Proxy,
            pool: self.pool.iter().copied().map(Server::from).collect(),
            accept_proxy_from: Vec::new(),
            sni: Vec::new(),
            tls: None,
            http: None,
            servers: ServerOptions::default(),
            tcp: self.tcp,
            backlog: Backlog::default(),
        })
    }

    /// Notes what makes its ports and its pool invalid.
    pub(super) fn check_ports(&self, at: &str, problems: &mut Problems) {
        check_count(&format!("{at}.listen"), self.listen.len(), 0, CHANNEL_PORTS_MAX - 1, problems);
        for (index, port) in self.ports().enumerate() {
            let at = match index.checked_sub(1) {
                None => at.to_owned(),
                Some(index) => format!("{at}.listen[{index}]"),
            };
            port.check(self, &at, problems);
            if !self.pool.is_empty() {
                self.check_port_of_pool(&port, &at, problems);
            }
        }
        check_count(&format!("{at}.pool"), self.pool.len(), 0, POOL_MAX, problems);
        let mut members: HashSet<&PoolMember> = HashSet::new();
        for (index, member) in self.pool.iter().enumerate() {
            if !members.insert(member) {
                let message = format!("{} port {} is in this pool already", member.node, member.port);
                problems.add(format!("{at}.pool[{index}]"), message);
            }
        }
        if !self.pool.is_empty()
            && (self.pattern, self.queue.full) != (Pattern::Publish, FullQueue::DropNewest)
        {
            let message = "a channel with a pool passes each client's messages to one server and drops none; pattern and queue do not apply";
            problems.add(format!("{at}.pool"), message);
        }
    }

    fn check_port_of_pool(&self, port: &ChannelPort, at: &str, problems: &mut Problems) {
        if port.framing == Framing::Zmtp {
            let message = "a channel with a pool passes messages to servers that know no ZeroMQ; allowed are sofh, length";
            problems.add(format!("{at}.framing"), message);
        }
        if port.clients.is_some() {
            let message = "clients of a channel with a pool send to a server and receive its answers; clients does not apply";
            problems.add(format!("{at}.clients"), message);
        }
        if port.header == Headers::Strip {
            let message = "messages reach the servers of a pool as they are; allowed is keep";
            problems.add(format!("{at}.header"), message);
        }
    }
}

/// Whether a value is the default one: it is left out of the canonical form.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A member of a pool that channels name too.
pub(super) fn members(channels: &[Channel]) -> impl Iterator<Item = &PoolMember> {
    channels.iter().flat_map(|channel| &channel.pool)
}

fn header_offset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 0, HEADER_LEN_MAX as u64 - 1, "an offset in bytes")? as u8)
}

fn header_len<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 1, HEADER_LEN_MAX as u64, "a number of bytes")? as u8)
}

fn some_header_len<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    header_len(deserializer).map(Some)
}

/// Reads the encoding type of new headers.
pub(super) fn some_encoding<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    Ok(Some(number(deserializer, 0, u16::MAX.into(), "an encoding type")? as u16))
}

#[cfg(test)]
mod tests;
