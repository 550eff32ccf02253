//! Errors of calls, and reasons why streams and connections end.

pub use h2::Reason;

use crate::budget::Flood;

/// Why something cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// There is no such stream: it is done, or was reset. An event says so or has said so.
    #[error("there is no such stream")]
    NoStream,
    /// The call does not fit what was sent before, such as a second final response.
    #[error("the call does not fit what was sent on the stream before")]
    State,
    /// A head or trailer section that HTTP/2 cannot carry.
    #[error("the head cannot be sent by HTTP/2")]
    Head,
    /// 101 to a request that opens no WebSocket.
    #[error("101 to a request that opens no WebSocket")]
    Switched,
    /// 2xx other than 101 to a request that opens a WebSocket: the client would take it as accepted.
    #[error("the member has answered a WebSocket handshake with success, and has not switched")]
    NotSwitched,
    /// The peer permits no further stream now, or has said that it will end the connection.
    #[error("no further stream can be opened now")]
    Full,
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// In order: all streams are done, or the peer has closed between frames.
    Finished,
    /// The peer has sent GOAWAY with this reason.
    Peer(Reason),
    /// The peer was at fault: GOAWAY with this reason was sent.
    Fault(Reason),
    /// The peer has exhausted a budget: GOAWAY with ENHANCE_YOUR_CALM was sent.
    Flood(Flood),
    /// The bytes ended within a frame or within streams.
    Lost,
}

impl Cause {
    /// Returns the cause that an error of h2 names.
    pub(crate) fn of(error: &h2::Error) -> Cause {
        match error.reason() {
            Some(reason) if error.is_remote() => Cause::Peer(reason),
            Some(reason) => Cause::Fault(reason),
            None => Cause::Lost,
        }
    }
}
