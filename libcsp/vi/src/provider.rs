//! The interface of a VI provider: verbs-like, so that RC queue pairs, UCP endpoints and shared-memory rings fit it.

use std::fmt;
use std::os::fd::RawFd;

use crate::region::{Memory, Piece, RegionId};

/// Bytes of private data that travel with a connection request or its answer. librdmacm gives 56 for RC.
pub const PRIVATE_DATA_LEN_MAX: usize = 56;

/// Names a VI within its provider. Never reused while the provider lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ViId(pub u64);

/// Names a pending connection request within its provider.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// Names a receive buffer of one VI while the caller holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// Where a provider listens or connects to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ViAddress {
    /// shm: the path of the Unix rendezvous socket.
    Path(std::path::PathBuf),
    /// ucx, verbs: a SAN address and port.
    Ip(std::net::SocketAddr),
    /// memory: a name in the fabric.
    Name(String),
}

impl fmt::Display for ViAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViAddress::Path(p) => write!(f, "{}", p.display()),
            ViAddress::Ip(a) => write!(f, "{a}"),
            ViAddress::Name(n) => f.write_str(n),
        }
    }
}

/// What a VI is made with. Both ends state their own; a provider refuses a peer whose `message_len` differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViConfig {
    /// Receive buffers that this end posts: how many messages may be on their way to it. 2 to 4096.
    pub receive_depth: u32,
    /// Sends that may be outstanding from this end. 2 to 4096.
    pub send_depth: u32,
    /// Largest message either way, in bytes. 1 to [`MESSAGE_LEN_MAX`].
    pub message_len: u32,
}

/// Largest [`ViConfig::message_len`] in bytes.
pub const MESSAGE_LEN_MAX: u32 = 1 << 20;

/// Most pieces of registered memory that one message is gathered from.
pub const PIECES_MAX: usize = 4;

/// Bounds of [`ViConfig::receive_depth`] and [`ViConfig::send_depth`].
pub const DEPTH_RANGE: std::ops::RangeInclusive<u32> = 2..=4096;

impl ViConfig {
    /// Whether every value is within its bounds.
    pub fn check(&self) -> Result<(), ViError> {
        if !DEPTH_RANGE.contains(&self.receive_depth) || !DEPTH_RANGE.contains(&self.send_depth) {
            return Err(ViError::Config("a queue depth is from 2 to 4096"));
        }
        if !(1..=MESSAGE_LEN_MAX).contains(&self.message_len) {
            return Err(ViError::Config("the message length is from 1 byte to 1 MiB"));
        }
        Ok(())
    }
}

/// Whether `data` can travel with a connection request or its answer.
pub(crate) fn check_private_data(data: &[u8]) -> Result<(), ViError> {
    if data.len() > PRIVATE_DATA_LEN_MAX {
        return Err(ViError::TooLong { len: data.len(), max: PRIVATE_DATA_LEN_MAX });
    }
    Ok(())
}

/// What a provider saw go wrong, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connection requests that were malformed, or came with the wrong descriptors.
    pub handshakes_malformed: u64,
    /// Connection requests dropped because their set-up took too long or too many were pending.
    pub handshakes_dropped: u64,
    /// VIs broken because the peer wrote nonsense into shared memory or messages.
    pub violations: u64,
}

/// What became of work that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A message of `len` bytes lies in `buffer` of `vi`; the caller holds the buffer until [`Provider::post_recv`].
    Received {
        /// The VI it arrived on.
        vi: ViId,
        /// The buffer that holds it.
        buffer: BufferId,
        /// Its length in bytes.
        len: u32,
        /// The sender's immediate data.
        immediate: u32,
    },
    /// A signalled send has left: its memory may be used again.
    Sent {
        /// The VI it was posted on.
        vi: ViId,
        /// The id given to [`Provider::post_send`].
        wr_id: u64,
    },
}

/// A peer asks for a VI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// To accept or reject it by.
    pub id: RequestId,
    /// What the peer sent along, at most [`PRIVATE_DATA_LEN_MAX`] bytes. Hostile until parsed.
    pub private_data: Vec<u8>,
    /// The user id of the peer process where the provider knows it (shm).
    pub peer_uid: Option<u32>,
    /// Which call of [`Provider::listen`] it came by, counted from 0, where the provider knows it (all but ucx).
    pub listener: Option<u32>,
}

/// What happened to connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a VI.
    Request(ConnectRequest),
    /// The VI can be posted to. Sent to both sides.
    Established {
        /// The VI.
        vi: ViId,
        /// What the accepting side sent along (empty on that side itself).
        private_data: Vec<u8>,
    },
    /// A VI that was connecting will not be: nobody there, rejected, or mismatched.
    Refused {
        /// The VI.
        vi: ViId,
        /// What was wrong.
        reason: ViError,
    },
    /// The peer disconnected or died. Messages that arrived before can still be polled (drain first, then
    /// [`Provider::disconnect`] gives back the VI's memory).
    Disconnected {
        /// The VI.
        vi: ViId,
        /// `true` where the peer called [`Provider::disconnect`]; `false` where it called [`Provider::abort`] or vanished.
        clean: bool,
    },
}

/// What [`Provider::arm`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// Armed: the descriptors of [`Provider::wake`] become readable at the next completion or event.
    Armed,
    /// Something is there already: poll again instead of blocking.
    Busy,
}

/// A descriptor to wait on (readable) after arming.
pub type Wake = RawFd;

/// Why an operation failed. Nothing of this is fatal for the provider: it concerns one VI or one call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViError {
    /// No VI, request or buffer of this id: it was never given out, or given back already.
    #[error("no such {0}")]
    Unknown(&'static str),
    /// The send queue, or the peer's posted receives, are full: try again after completions. Transports that count
    /// credits never see it.
    #[error("the send queue is full")]
    Full,
    /// The message is longer than the VI's `message_len`.
    #[error("a message of {len} bytes does not fit the VI's {max}")]
    TooLong {
        /// What was asked.
        len: usize,
        /// What the VI was made for.
        max: usize,
    },
    /// The VI is not connected (yet, or any more).
    #[error("the VI is not connected")]
    NotConnected,
    /// Nobody listens there.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// Where.
        address: String,
        /// The operating system's or library's words.
        reason: String,
    },
    /// The accepting side said no.
    #[error("the peer rejected the connection")]
    Rejected,
    /// The caller's own [`ViConfig`] is out of bounds.
    #[error("the VI's configuration is wrong: {0}")]
    Config(&'static str),
    /// The peer speaks another version or other sizes, or sent nonsense.
    #[error("the peer's set-up message is wrong: {0}")]
    Protocol(&'static str),
    /// A configured capacity is exhausted (VIs, requests, memory).
    #[error("no room for another {0}")]
    Exhausted(&'static str),
    /// The provider has no such operation.
    #[error("this provider cannot {0}")]
    Unsupported(&'static str),
    /// The operating system or library refused.
    #[error("{call}: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// Its words.
        reason: String,
    },
}

/// A source of Virtual Interfaces; one thread's own.
///
/// Life of a VI: [`connect`](Provider::connect) or [`accept`](Provider::accept) → [`Event::Established`] → sends and
/// receives → [`Event::Disconnected`] or a call of [`disconnect`](Provider::disconnect) or [`abort`](Provider::abort) →
/// gone. All receive buffers of a VI are posted when it is made; the provider owns and registers their memory.
///
/// Ordering: messages of one VI arrive in the order they were posted; VIs are independent of each other. No message of
/// a VI is given by [`poll`](Provider::poll) before its [`Event::Established`] was given by
/// [`poll_event`](Provider::poll_event), nor [`Event::Disconnected`] before its last message was given. Nothing can be
/// sent before [`Event::Established`] was given.
pub trait Provider: Send {
    /// The name used in configuration and metrics: `shm`, `ucx`, `memory`, `verbs`.
    fn name(&self) -> &'static str;

    /// Starts to listen. A second call listens at a second address.
    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError>;

    /// Starts to connect; [`Event::Established`] or [`Event::Refused`] follows. `private_data` holds at most
    /// [`PRIVATE_DATA_LEN_MAX`] bytes.
    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError>;

    /// Accepts a pending request; [`Event::Established`] follows, or [`Event::Disconnected`] where the peer vanished
    /// meanwhile. A differing `message_len` is refused to both sides: here as [`ViError::Protocol`], there as
    /// [`Event::Refused`].
    fn accept(&mut self, request: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError>;

    /// Rejects a pending request.
    fn reject(&mut self, request: RequestId) -> Result<(), ViError>;

    /// Sends one message: the `gather` parts one after another, with 32 bits of immediate data. The parts are copied
    /// or registered before the call returns, so that the caller may reuse them at once. With `signalled` a
    /// [`Completion::Sent`] follows.
    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError>;

    /// Registers memory, so that messages can leave it and arrive in it where they lie. The provider keeps it mapped
    /// until [`deregister`](Provider::deregister) and the last use.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        let _ = memory;
        Err(ViError::Unsupported("register memory"))
    }

    /// The caller posts nothing of `region` any more. What is posted already goes on.
    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        let _ = region;
        Err(ViError::Unknown("region"))
    }

    /// As [`post_send`](Provider::post_send), of `head`, which is copied, and then the `pieces`, which are not where the
    /// provider can help it: at most [`PIECES_MAX`], they must not change until [`Completion::Sent`], which always follows unless the VI ends
    /// first.
    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        let _ = (vi, wr_id, immediate, head, pieces);
        Err(ViError::Unsupported("send from registered memory"))
    }

    /// As [`connect`](Provider::connect), with the caller's receive buffers: `receive_depth` pieces of at least
    /// `message_len` bytes each. [`BufferId`] `n` is piece `n`. All are posted at first, in their order; messages arrive
    /// in the pieces in the order in which these were posted. `verbs` wants them evenly spaced in one region.
    fn connect_into(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        buffers: &[Piece],
    ) -> Result<ViId, ViError> {
        let _ = (address, config, private_data, buffers);
        Err(ViError::Unsupported("receive into the caller's memory"))
    }

    /// Gives a held receive buffer back to its VI's receive queue. Buffers may come back in any order.
    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError>;

    /// Copies from a held receive buffer, starting at `offset`, until `into` or the message ends; returns how many
    /// bytes. The peer may scribble over shared memory while it is read, hence copying before looking.
    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError>;

    /// The memory that received messages of a VI lie in, for a caller that reads them in place. It stays mapped as long
    /// as a clone of it does; the peer may scribble over it at any time.
    fn memory(&self, vi: ViId) -> Result<Memory, ViError> {
        let _ = vi;
        Err(ViError::Unsupported("read messages in place"))
    }

    /// Where the message in a held buffer starts in that [`memory`](Provider::memory), and its length in bytes.
    fn received_at(&self, vi: ViId, buffer: BufferId) -> Result<(usize, usize), ViError> {
        let _ = (vi, buffer);
        Err(ViError::Unsupported("read messages in place"))
    }

    /// The next completion, if any. Never blocks.
    fn poll(&mut self) -> Option<Completion>;

    /// The next connection event, if any. Never blocks.
    fn poll_event(&mut self) -> Option<Event>;

    /// Makes the descriptors of [`wake`](Provider::wake) become readable when there is something to poll.
    fn arm(&mut self) -> Result<Armed, ViError>;

    /// The descriptors to wait on after [`arm`](Provider::arm), appended to `into`. The set changes only when
    /// [`wake_generation`](Provider::wake_generation) does.
    fn wake(&self, into: &mut Vec<Wake>);

    /// Counts changes of the set of descriptors that [`wake`](Provider::wake) tells.
    fn wake_generation(&self) -> u64;

    /// Ends the VI cleanly after what was sent has been handed over, and gives back its memory. After
    /// [`Event::Disconnected`] or [`Event::Refused`] it only gives back the memory. No completion or event of this VI
    /// follows.
    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Ends the VI without the word of a clean end, and gives back its memory: the peer sees an unclean
    /// [`Event::Disconnected`], and may miss the end of what was sent. Otherwise as [`disconnect`](Provider::disconnect).
    fn abort(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Whether a VI can end though both of its ends live, because the way between them broke. On one host only the end of
    /// a peer ends a VI.
    fn can_break(&self) -> bool {
        false
    }

    /// Tells the messages posted last on a VI (immediate data and bytes), oldest first: all that the provider does not know to
    /// be in the peer's memory, and maybe some before them. For a caller that goes on over another VI when this one broke;
    /// before [`disconnect`](Provider::disconnect). Without those of [`post_send_from`](Provider::post_send_from), which
    /// lie in the caller's memory. Memory shared with the peer may be told as the peer changed it.
    fn unconfirmed(&self, vi: ViId, tell: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let _ = (vi, tell);
        Err(ViError::Unsupported("tell what was not confirmed"))
    }

    /// What went wrong so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// In a forked child: gives up all VIs without a word to the peers, for which they stay the parent's. Where a
    /// provider shares nothing with its parent's, it is merely dropped.
    fn abandon_after_fork(self: Box<Self>) {}

    /// Every descriptor that the provider owns now, appended to `into`: the application whose process it lives in must
    /// not close them. Nothing where it owns none beyond those of [`wake`](Provider::wake).
    fn descriptors(&self, into: &mut Vec<RawFd>) {
        self.wake(into);
    }
}
