//! What happens on connections of clients.

use crate::error::{Cause, Reason};
use crate::malformed::Malformed;

/// What has happened on a connection of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A request has begun.
    Request {
        /// The stream.
        stream: u32,
        /// The head as one of HTTP/1.1, with the framing that HTTP/1.1 would have: to be read by
        /// [`csp_http::head::HeadReader`], as the head of another client.
        head: &'a [u8],
        /// Whether the request has no body: no `End` follows.
        end: bool,
        /// Whether it opens a WebSocket (RFC 8441): then the head asks for an upgrade, 101 is sent as 200,
        /// and bytes in both directions belong to the WebSocket.
        websocket: bool,
    },
    /// A request is malformed. The remedy says whether the caller answers it.
    Refused {
        /// The stream.
        stream: u32,
        /// What is wrong.
        fault: Malformed,
    },
    /// Payload has come after there was none: [`ServerConnection::data`](crate::ServerConnection::data).
    Readable {
        /// The stream.
        stream: u32,
    },
    /// The request has ended, and all payload was released.
    End {
        /// The stream.
        stream: u32,
        /// The trailer section as text of HTTP/1.1 with its empty line; empty if there is none. For
        /// [`csp_http::body::trailer_fields`].
        trailers: &'a [u8],
    },
    /// There is room again after `send` took less than it was given, or the buffer was more than half full.
    Room {
        /// The stream.
        stream: u32,
    },
    /// The stream was reset, and is released. What its member does for it is to be cancelled.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason.
        reason: Reason,
        /// By the client; otherwise for a fault of the client.
        by_peer: bool,
    },
    /// The response is in the output wholly, and the stream is released.
    Done {
        /// The stream.
        stream: u32,
    },
    /// The connection has ended, and with it all streams that are not done. What is left of the output is
    /// still to be sent, then the caller closes.
    Closed {
        /// Why.
        cause: Cause,
    },
}

/// An event that waits for the caller. Of each stream there is one of a kind at most.
#[derive(Clone, Copy, Debug)]
pub(super) enum Queued {
    Request(u32),
    Readable(u32),
    End(u32),
    Room(u32),
    Reset(u32, Reason, bool),
    Done(u32),
    Closed(Cause),
}

impl Queued {
    /// Returns the stream that the event is of.
    pub(super) fn stream(self) -> Option<u32> {
        match self {
            Queued::Request(id)
            | Queued::Readable(id)
            | Queued::End(id)
            | Queued::Room(id)
            | Queued::Done(id)
            | Queued::Reset(id, ..) => Some(id),
            Queued::Closed(_) => None,
        }
    }
}
