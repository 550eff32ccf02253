//! One end of a measured connection: messages with a tag of 32 bits, over a provider or a socket.

use anyhow::Result;

/// How an end waits for the next message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Waiting {
    /// The thread polls.
    Poll,
    /// The thread sleeps in the kernel until a message arrives.
    Block,
}

impl Waiting {
    /// Returns the word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Poll => "poll",
            Waiting::Block => "block",
        }
    }
}

/// Longest message, in bytes.
pub const MESSAGE_LEN_MAX: usize = 64 * 1024;

/// A connected end.
pub trait End {
    /// Sends one message of at most [`MESSAGE_LEN_MAX`] bytes; waits while the peer has no room.
    fn send(&mut self, tag: u32, bytes: &[u8]) -> Result<()>;

    /// Receives the next message into `into`; returns its length and tag. `None` after the peer has ended.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<(usize, u32)>>;

    /// Sets how [`receive`](End::receive) waits from now on.
    fn set_waiting(&mut self, waiting: Waiting) -> Result<()>;
}

/// What a message requests of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Reply with this number of bytes.
    Reply(u32),
    /// Receive it without a reply.
    Take,
    /// Reply with the processor time used so far: 8 bytes, nanoseconds, little-endian.
    Usage,
    /// Wait in this way from now on, without a reply.
    Wait(Waiting),
}

const OP_BITS: u32 = 28;

impl Request {
    /// Returns the request as a message's tag.
    pub fn tag(self) -> u32 {
        match self {
            Request::Reply(len) => len,
            Request::Take => 1 << OP_BITS,
            Request::Usage => 2 << OP_BITS,
            Request::Wait(Waiting::Poll) => 3 << OP_BITS,
            Request::Wait(Waiting::Block) => 3 << OP_BITS | 1,
        }
    }

    /// Parses a tag received from a peer.
    pub fn from_tag(tag: u32) -> Option<Request> {
        let value = tag & ((1 << OP_BITS) - 1);
        match (tag >> OP_BITS, value) {
            (0, len) if len as usize <= MESSAGE_LEN_MAX => Some(Request::Reply(len)),
            (1, 0) => Some(Request::Take),
            (2, 0) => Some(Request::Usage),
            (3, 0) => Some(Request::Wait(Waiting::Poll)),
            (3, 1) => Some(Request::Wait(Waiting::Block)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_written_and_others_refused() {
        let all = [
            Request::Reply(0),
            Request::Reply(65_536),
            Request::Take,
            Request::Usage,
            Request::Wait(Waiting::Poll),
            Request::Wait(Waiting::Block),
        ];
        for request in all {
            assert_eq!(Request::from_tag(request.tag()), Some(request));
        }
        for tag in [65_537, 1 << OP_BITS | 1, 3 << OP_BITS | 2, 4 << OP_BITS, u32::MAX] {
            assert_eq!(Request::from_tag(tag), None);
        }
    }
}
