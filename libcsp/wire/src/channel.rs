//! Messages between proxy and application: header, payloads, and an iterator over a body.
//!
//! ```text
//!  0 type | 1 flags | 2 reserved 0 (2) | 4 label or id (4) | 8 payload length (4) | 12 argument (4)
//! 16 payload, padded with zeros to 8
//! ```
//! Integers are little-endian. The transport checks the order of messages.

use csp_types::FlowLabel;

use crate::WireError;
use crate::bytes::{Writer, array_at, check_padding, slice_at};

mod close;
mod payload;
mod redirect;

pub use close::{bytes_read, close_argument};
pub use payload::{
    ADDRESS_LEN, ChannelOption, ConnectPayload, ConnectedPayload, InfoPayload, ListenPayload, OpenPayload,
    OptionPayload, TICKET_LEN, TakeOverPayload, TakenOverPayload, Ticket, emit_address, parse_address,
};
pub use redirect::Redirect;

/// Length of a message's header in bytes.
pub const MESSAGE_HEADER_LEN: usize = 16;
/// Messages are padded to a multiple of this many bytes.
pub const ALIGNMENT: usize = 8;
/// Flag of CLOSE: received data was discarded unread.
pub const CLOSE_UNREAD: u8 = 1;
/// Flag of CONNECT: the connection is to go through a network node, because the process has no link to the
/// proxy worker that the answer to its last CONNECT named ([`Redirect`]).
pub const CONNECT_BY_LAN: u8 = 1;
/// Flag of CREDIT: the window grows by the argument in bytes; no data was consumed.
pub const CREDIT_WIDER: u8 = 1;

/// The type of a message. In brackets: the contents of `id` and `argument`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// The application listens (listener id, backlog); [`ListenPayload`].
    Listen = 1,
    /// The application stops listening (listener id).
    Unlisten = 2,
    /// From the application: number of further connections that it accepts (listener id, number); 0 withdraws
    /// all credit that the proxy has not used. The proxy answers a withdrawal with the number of credits
    /// withdrawn (listener id, number).
    AcceptCredit = 3,
    /// A connection for a listener (label, listener id); [`OpenPayload`].
    Open = 4,
    /// The application accepts the connection (label, receive window in bytes).
    Accepted = 5,
    /// The connection is refused, or LISTEN, CONNECT or TAKE_OVER failed (label or id, reason). The reason of
    /// a CONNECT that another proxy worker serves is a [`Redirect`].
    Refused = 6,
    /// Bytes of the stream (label).
    Data = 7,
    /// Bytes were consumed (label, number since the last CREDIT); flag [`CREDIT_WIDER`].
    Credit = 8,
    /// The sender has no more data to send (label).
    Shutdown = 9,
    /// The connection was reset (label, reason).
    Reset = 10,
    /// The sender releases the flow (label); flag [`CLOSE_UNREAD`].
    Close = 11,
    /// The application opens a connection (request id, receive window in bytes); [`ConnectPayload`]; flag
    /// [`CONNECT_BY_LAN`].
    Connect = 12,
    /// The connection is open (label, request id); [`ConnectedPayload`].
    Connected = 13,
    /// A socket option (label, a [`ChannelOption`]); [`OptionPayload`].
    Option = 14,
    /// Reserved.
    Ping = 15,
    /// Reserved.
    Pong = 16,
    /// The application hands over the connection to the process that presents the ticket (label); the payload
    /// is a [`Ticket`].
    HandOver = 17,
    /// The proxy sends nothing more of the connection to its former owner (label).
    HandedOver = 18,
    /// The application takes over a connection that another process handed over (request id, receive window
    /// in bytes); [`TakeOverPayload`]. Answered by TAKEN_OVER or REFUSED.
    TakeOver = 19,
    /// The connection is taken over (label, request id); [`TakenOverPayload`].
    TakenOver = 20,
    /// Asks for the state of the connection (label). The answer has an [`InfoPayload`].
    Info = 21,
}

impl MessageKind {
    /// The kind with this wire number.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => MessageKind::Listen,
            2 => MessageKind::Unlisten,
            3 => MessageKind::AcceptCredit,
            4 => MessageKind::Open,
            5 => MessageKind::Accepted,
            6 => MessageKind::Refused,
            7 => MessageKind::Data,
            8 => MessageKind::Credit,
            9 => MessageKind::Shutdown,
            10 => MessageKind::Reset,
            11 => MessageKind::Close,
            12 => MessageKind::Connect,
            13 => MessageKind::Connected,
            14 => MessageKind::Option,
            15 => MessageKind::Ping,
            16 => MessageKind::Pong,
            17 => MessageKind::HandOver,
            18 => MessageKind::HandedOver,
            19 => MessageKind::TakeOver,
            20 => MessageKind::TakenOver,
            21 => MessageKind::Info,
            _ => return None,
        })
    }

    /// Whether `id` is always a flow label (that of REFUSED may be another id).
    pub const fn is_of_flow(self) -> bool {
        use MessageKind::*;
        matches!(
            self,
            Open | Accepted
                | Data
                | Credit
                | Shutdown
                | Reset
                | Close
                | Connected
                | Option
                | HandOver
                | HandedOver
                | TakenOver
                | Info
        )
    }

    /// Whether a payload of `len` bytes can belong to such a message.
    const fn allows_payload_len(self, len: usize) -> bool {
        match self {
            MessageKind::Listen => len == ListenPayload::LEN,
            MessageKind::Open => len == OpenPayload::LEN,
            MessageKind::Data => len > 0,
            MessageKind::Connect => len == ADDRESS_LEN || len == 2 * ADDRESS_LEN,
            MessageKind::Connected => len == ConnectedPayload::LEN,
            MessageKind::Option => len == OptionPayload::LEN,
            MessageKind::HandOver => len == TICKET_LEN,
            MessageKind::TakeOver => len == TakeOverPayload::LEN,
            MessageKind::TakenOver => len == TakenOverPayload::LEN,
            MessageKind::Info => len == 0 || len == InfoPayload::LEN,
            _ => len == 0,
        }
    }

    const fn allowed_flags(self) -> u8 {
        match self {
            MessageKind::Close => CLOSE_UNREAD,
            MessageKind::Connect => CONNECT_BY_LAN,
            MessageKind::Credit => CREDIT_WIDER,
            _ => 0,
        }
    }
}

/// The header in front of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageHeader {
    /// The type of the message.
    pub kind: MessageKind,
    /// Flags of the kind; 0 for all but CLOSE, CONNECT and CREDIT.
    pub flags: u8,
    /// Flow label, listener id or request id, depending on the kind.
    pub id: u32,
    /// Bytes of payload, without padding.
    pub payload_len: u32,
    /// The kind's argument; 0 where it has none.
    pub argument: u32,
}

impl MessageHeader {
    /// A header of a message without flags.
    pub const fn new(kind: MessageKind, id: u32, argument: u32, payload_len: u32) -> Self {
        MessageHeader { kind, flags: 0, id, payload_len, argument }
    }

    /// A header of a flow's message without flags.
    pub const fn of_flow(kind: MessageKind, label: FlowLabel, argument: u32, payload_len: u32) -> Self {
        MessageHeader::new(kind, label.to_wire(), argument, payload_len)
    }

    /// The flow that `id` names; `None` if spare bits are set or it is [`FlowLabel::NONE`]. Never `None` in a
    /// parsed message whose kind [is of a flow](MessageKind::is_of_flow).
    pub fn label(&self) -> Option<FlowLabel> {
        FlowLabel::from_wire(self.id).filter(|label| !label.is_none())
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; MESSAGE_HEADER_LEN] {
        let mut out = [0; MESSAGE_HEADER_LEN];
        out[0] = self.kind as u8;
        out[1] = self.flags;
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.argument.to_le_bytes());
        out
    }

    /// Parses the header at the start of `bytes`. Does not check that the payload is complete.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let raw = array_at::<MESSAGE_HEADER_LEN>(bytes, 0, "channel message header")?;
        let kind = MessageKind::from_u8(raw[0]).ok_or(WireError::Kind {
            what: "channel message type",
            offset: 0,
            found: raw[0].into(),
        })?;
        if raw[1] & !kind.allowed_flags() != 0 {
            return Err(WireError::Reserved { what: "channel message flags", offset: 1 });
        }
        if raw[2..4] != [0, 0] {
            return Err(WireError::Reserved { what: "channel message reserved bytes", offset: 2 });
        }
        let header = MessageHeader {
            kind,
            flags: raw[1],
            id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            payload_len: u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]),
            argument: u32::from_le_bytes([raw[12], raw[13], raw[14], raw[15]]),
        };
        if kind.is_of_flow() && header.label().is_none() {
            return Err(WireError::Value { what: "channel message label", offset: 4 });
        }
        let found = header.payload_len as usize;
        if !kind.allows_payload_len(found) {
            return Err(WireError::Length { what: "channel message payload length", offset: 8, found });
        }
        Ok(header)
    }
}

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its header.
    pub header: MessageHeader,
    /// Its payload, `header.payload_len` bytes.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parses the message at the start of `bytes`; returns also its length in bytes, padding included.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), WireError> {
        let header = MessageHeader::parse(bytes)?;
        let payload_len = header.payload_len as usize;
        let payload = slice_at(bytes, MESSAGE_HEADER_LEN, payload_len, "channel message payload")?;
        let payload_end = MESSAGE_HEADER_LEN + payload_len;
        let end = padded_len(payload_end);
        let padding = slice_at(bytes, payload_end, end - payload_end, "channel message padding")?;
        check_padding(padding, payload_end, "channel message padding")?;
        Ok((Message { header, payload }, end))
    }

    /// Length of the message in bytes, header and padding included.
    pub fn len(&self) -> usize {
        padded_len(MESSAGE_HEADER_LEN + self.payload.len())
    }

    /// Always false: every message has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes header, payload and padding; returns their length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        self.emit_to(&mut writer)?;
        Ok(writer.len())
    }

    /// Appends header, payload and padding. Appends nothing if they do not fit. The payload length written is
    /// that of `payload`, whatever the header contains.
    pub fn emit_to(&self, writer: &mut Writer<'_>) -> Result<(), WireError> {
        let too_large = WireError::TooLarge { what: "channel message payload" };
        let payload_len = u32::try_from(self.payload.len()).map_err(|_| too_large)?;
        let out = writer.take(self.len(), "channel message")?;
        let (header, rest) = out.split_at_mut(MESSAGE_HEADER_LEN);
        let (payload, padding) = rest.split_at_mut(self.payload.len());
        header.copy_from_slice(&MessageHeader { payload_len, ..self.header }.emit());
        payload.copy_from_slice(self.payload);
        padding.fill(0);
        Ok(())
    }
}

/// `len` rounded up to the message alignment.
pub const fn padded_len(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Iterator over the messages of a body, in order. It ends after the first error, whose offset counts from
/// the start of the body.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Messages<'a> {
    /// The messages in `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Messages { body, at: 0 }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        match Message::parse(rest) {
            Ok((message, len)) => {
                self.at += len;
                Some(Ok(message))
            }
            Err(error) => {
                let error = error.shifted(self.at);
                self.at = self.body.len();
                Some(Err(error))
            }
        }
    }
}
