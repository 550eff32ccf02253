//! What happens on connections to members.

use crate::error::{Cause, Reason};

/// What has happened on a connection to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientEvent<'a> {
    /// A response has begun, final or interim (1xx).
    Response {
        /// The stream.
        stream: u32,
        /// The head as one of HTTP/1.1, with the framing that HTTP/1.1 would have: to be read by
        /// [`csp_http::head::HeadReader`], as the head of another member.
        head: &'a [u8],
        /// Whether it is interim: others follow.
        interim: bool,
        /// Whether the response has no body: no `End` follows.
        end: bool,
    },
    /// Payload has come after there was none: [`ClientConnection::data`](crate::ClientConnection::data).
    Readable {
        /// The stream.
        stream: u32,
    },
    /// The response has ended, and all payload was released.
    End {
        /// The stream.
        stream: u32,
        /// The trailer section as text of HTTP/1.1 with its empty line; empty if there is none.
        trailers: &'a [u8],
    },
    /// There is room again after `send` took less than it was given, or the buffer was more than half full.
    Room {
        /// The stream.
        stream: u32,
    },
    /// The stream was reset or is lost with the connection, and is released.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason; `None`: the connection was lost.
        reason: Option<Reason>,
        /// By the member; otherwise for a fault of the member, or with the connection.
        by_peer: bool,
        /// The member has said that it has not processed the request (REFUSED_STREAM, or a number above that
        /// of GOAWAY): any request may be sent again (RFC 9113 §8.7).
        unprocessed: bool,
    },
    /// The response was received to its end, and the stream is released. What was not sent of the request is
    /// dropped.
    Done {
        /// The stream.
        stream: u32,
    },
    /// The member has sent GOAWAY: no further stream can be opened, and the connection ends with those that
    /// are open.
    GoneAway,
    /// The connection has ended. Streams whose response is complete can still be read; the others have had a
    /// `Reset`.
    Closed {
        /// Why.
        cause: Cause,
    },
}

/// An event that waits for the caller. Of each stream there is one of a kind at most, but for interim
/// responses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Queued {
    Interim(u32),
    Response(u32),
    Readable(u32),
    End(u32),
    Room(u32),
    Reset { stream: u32, reason: Option<Reason>, by_peer: bool, unprocessed: bool },
    Done(u32),
    GoneAway,
    Closed(Cause),
}

impl Queued {
    /// Returns the stream that the event is of.
    pub(super) fn stream(self) -> Option<u32> {
        match self {
            Queued::Interim(id)
            | Queued::Response(id)
            | Queued::Readable(id)
            | Queued::End(id)
            | Queued::Room(id)
            | Queued::Done(id)
            | Queued::Reset { stream: id, .. } => Some(id),
            Queued::GoneAway | Queued::Closed(_) => None,
        }
    }
}
