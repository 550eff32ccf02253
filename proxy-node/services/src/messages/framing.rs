//! How a peer of a channel speaks: ZMTP, or messages behind a header with their length. And how messages are
//! written to it.
//!
//! ```text
//!                  on the connection          in the channel
//!  ZMTP            frames with headers        frames
//!  header kept     | header | body |          one frame: | header | body |
//!  header stripped | header | body |          one frame: | body |
//! ```
//! To a length-prefixed peer, the frames of a message from a ZeroMQ peer are one after the other. If headers
//! are kept, that message begins with a header, whose length field the proxy writes.

use csp_messages::{Delivery, MessageHandle, MessagePlane, Role};
use csp_types::Instant;
use csp_zmtp::{
    Connection, Counters, Cursor, FRAME_HEADER_LEN_MAX, FrameHeader, PREFIX_LEN_MAX, Prefix, PrefixReader,
};

use super::numbering;

/// Treatment of headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// They are part of the messages.
    Kept,
    /// Headers are removed and written again: the length, this encoding type if the header is a Simple Open
    /// Framing Header, and zeros in all other fields.
    Stripped {
        /// Encoding type, 2 bytes at offset 4.
        encoding: Option<u16>,
    },
}

/// A port of a channel whose peers send and receive messages behind a header with their length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixedPort {
    /// The port.
    pub port: u16,
    /// The header.
    pub prefix: Prefix,
    /// Treatment of the header of each message.
    pub header: Header,
    /// The role of the port's peers.
    pub role: Role,
}

/// The framing of a peer's connection.
#[derive(Debug)]
pub(super) enum Speech {
    Zmtp(Box<Connection>),
    Prefixed(Box<Prefixed>),
}

/// A length-prefixed peer.
#[derive(Debug)]
pub(super) struct Prefixed {
    reader: PrefixReader,
    port: PrefixedPort,
    /// Number of the channel's port, from 1.
    number: u8,
    failed: bool,
}

/// How messages are written to a peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Encoding {
    Zmtp,
    Prefixed(PrefixedPort, u8),
}

impl Speech {
    pub(super) fn prefixed(port: PrefixedPort, at: usize) -> Self {
        let reader = PrefixReader::new(port.prefix);
        Speech::Prefixed(Box::new(Prefixed { reader, port, number: at as u8 + 1, failed: false }))
    }

    /// Returns the connection of a ZeroMQ peer.
    pub(super) fn zmtp(&self) -> Option<&Connection> {
        match self {
            Speech::Zmtp(connection) => Some(connection),
            Speech::Prefixed(_) => None,
        }
    }

    pub(super) fn encoding(&self) -> Encoding {
        match self {
            Speech::Zmtp(_) => Encoding::Zmtp,
            Speech::Prefixed(peer) => Encoding::Prefixed(peer.port, peer.number),
        }
    }

    /// Returns the name of the peer's socket for display: its type under ZMTP, empty before the handshake.
    pub(super) fn socket(&self) -> &'static str {
        match self {
            Speech::Zmtp(connection) => connection.peer().map_or("", |known| known.socket_type.name()),
            Speech::Prefixed(_) => "TCP",
        }
    }

    /// Returns a stream position: nothing can be processed before at least the bytes up to it have arrived.
    pub(super) fn needed(&self) -> u64 {
        match self {
            Speech::Zmtp(connection) => connection.needed(),
            Speech::Prefixed(peer) => peer.reader.needed(),
        }
    }

    /// Returns the position up to which bytes are no longer needed.
    pub(super) fn released(&self) -> u64 {
        match self {
            Speech::Zmtp(connection) => connection.released(),
            Speech::Prefixed(peer) => peer.reader.released(),
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        match self {
            Speech::Zmtp(connection) => connection.failure().is_some(),
            Speech::Prefixed(peer) => peer.failed,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self {
            Speech::Zmtp(connection) => connection.next_timeout(),
            Speech::Prefixed(_) => None,
        }
    }

    /// Processes expired deadlines. A failure takes effect when the peer is served.
    pub(super) fn on_timeout(&mut self, now: Instant, counters: &mut Counters) {
        if let Speech::Zmtp(connection) = self {
            let _ = connection.on_timeout(now, counters);
        }
    }
}

impl Prefixed {
    /// Examines received bytes up to the end of the next message. Returns the message's position in the
    /// stream, and position and length of the part that is published. `None`: more bytes are needed, or the
    /// peer has failed.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut Cursor<'a, impl Iterator<Item = &'a [u8]>>,
        counters: &mut Counters,
    ) -> Option<(u64, (u64, usize))> {
        let header = self.port.header;
        match self.reader.next(input, counters) {
            Ok(message) => message.map(|message| {
                let header_len = message.header.len();
                let part = match header {
                    Header::Kept => (message.at, header_len + message.body_len),
                    Header::Stripped { .. } => (message.at + header_len as u64, message.body_len),
                };
                (message.at, part)
            }),
            Err(_) => {
                self.failed = true;
                None
            }
        }
    }
}

impl Encoding {
    /// Returns the number of the encoding. Peers of a channel with the same number are sent the same bytes
    /// for a message.
    pub(super) fn number(&self) -> u8 {
        match self {
            Encoding::Zmtp => 0,
            Encoding::Prefixed(_, number) => *number,
        }
    }

    /// Returns the length of a message with its headers; `None` if it cannot be written.
    pub(super) fn wire_len(&self, plane: &MessagePlane, delivery: &Delivery) -> Option<usize> {
        let header = |len: u32| FrameHeader::message(len as usize, false).as_bytes().len();
        match self {
            Encoding::Zmtp => {
                let numbers = if delivery.numbered { numbering::FRAME_LEN } else { 0 };
                let frames = plane.frame_lens(delivery.handle).map(|len| header(len) + len as usize);
                Some(numbers + frames.sum::<usize>())
            }
            Encoding::Prefixed(port, _) => {
                let (len, header_len) = (delivery.len as usize, port.prefix.description().header_len);
                let (total, body_len) = match port.header {
                    Header::Kept => (len, len.checked_sub(header_len)?),
                    Header::Stripped { .. } => (header_len + len, len),
                };
                port.prefix.write_length(body_len, &mut [0; PREFIX_LEN_MAX]).ok()?;
                Some(total)
            }
        }
    }

    /// Calls `write` for each header and each slice of a body, in order, until it returns false.
    /// [`wire_len`](Self::wire_len) has returned the length.
    pub(super) fn pieces(
        &self,
        plane: &MessagePlane,
        delivery: &Delivery,
        mut write: impl FnMut(&[u8]) -> bool,
    ) {
        match self {
            Encoding::Zmtp => zmtp_pieces(plane, delivery, write),
            Encoding::Prefixed(port, _) => {
                let (header, len, from) = port.header(plane, delivery.handle, delivery.len);
                if !write(&header[..len]) {
                    return;
                }
                for slice in plane.range(delivery.handle, from, delivery.len - from) {
                    if !write(slice) {
                        return;
                    }
                }
            }
        }
    }
}

fn zmtp_pieces(plane: &MessagePlane, delivery: &Delivery, mut write: impl FnMut(&[u8]) -> bool) {
    const { assert!(FRAME_HEADER_LEN_MAX < 16) };
    let mut at = 0;
    for (number, len) in plane.frame_lens(delivery.handle).enumerate() {
        let more = number + 1 < usize::from(delivery.frames) || delivery.numbered;
        if !write(FrameHeader::message(len as usize, more).as_bytes()) {
            return;
        }
        for slice in plane.range(delivery.handle, at, len) {
            if !write(slice) {
                return;
            }
        }
        at += len;
    }
    if delivery.numbered {
        write(&numbering::frame(delivery));
    }
}

impl PrefixedPort {
    /// Returns the header of a message whose length in the channel is `len` bytes, the header's length, and
    /// how many bytes of it the message contains already.
    fn header(
        &self,
        plane: &MessagePlane,
        handle: MessageHandle,
        len: u32,
    ) -> ([u8; PREFIX_LEN_MAX], usize, u32) {
        let mut header = [0; PREFIX_LEN_MAX];
        let header_len = self.prefix.description().header_len;
        let from = match self.header {
            Header::Kept => {
                let mut done = 0;
                for slice in plane.range(handle, 0, header_len as u32) {
                    header[done..done + slice.len()].copy_from_slice(slice);
                    done += slice.len();
                }
                header_len as u32
            }
            Header::Stripped { encoding } => {
                if let Some(encoding) = encoding {
                    header[4..6].copy_from_slice(&encoding.to_be_bytes());
                }
                0
            }
        };
        let _ = self.prefix.write_length((len - from) as usize, &mut header); // it fits: its length was asked for
        (header, header_len, from)
    }
}
