//! The interface of a VI provider. It follows the verbs API, so that RC queue pairs, UCP endpoints and
//! shared-memory rings can implement it.

use std::fmt;
use std::os::fd::RawFd;

use crate::place::Place;
use crate::region::{Memory, Piece, RegionId};

/// Largest private data of a connection request or its answer, in bytes. librdmacm offers 56 for RC.
pub const PRIVATE_DATA_LEN_MAX: usize = 56;

/// Identifies a VI within its provider. Never reused while the provider exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ViId(pub u64);

/// Identifies a pending connection request within its provider.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// Identifies a receive buffer of one VI while the caller holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// The address that a provider listens at or connects to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ViAddress {
    /// shm: the path of the Unix rendezvous socket.
    Path(std::path::PathBuf),
    /// tcp, ucx, verbs: a SAN address and port.
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

impl ViAddress {
    /// Returns the address and port, for the provider of this name.
    pub(crate) fn ip(&self, provider: &str) -> Result<std::net::SocketAddr, ViError> {
        match self {
            ViAddress::Ip(address) => Ok(*address),
            other => Err(other.unreachable(format!("the {provider} provider needs an IP address and port"))),
        }
    }

    /// Returns the error that nobody is reached here.
    pub(crate) fn unreachable(&self, reason: String) -> ViError {
        ViError::Unreachable { address: self.to_string(), reason }
    }
}

/// The parameters of one end of a VI. Each end states its own; a connection fails if the two `message_len`
/// differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViConfig {
    /// Receive buffers that this end posts: the bound of messages in flight to it. 2 to 4096.
    pub receive_depth: u32,
    /// Bound of outstanding sends of this end. 2 to 4096.
    pub send_depth: u32,
    /// Largest message in either direction, in bytes. 1 to [`MESSAGE_LEN_MAX`].
    pub message_len: u32,
}

/// Largest value of [`ViConfig::message_len`], in bytes.
pub const MESSAGE_LEN_MAX: u32 = 1 << 20;

/// Largest number of pieces of registered memory in one message.
pub const PIECES_MAX: usize = 4;

/// Bounds of [`ViConfig::receive_depth`] and [`ViConfig::send_depth`].
pub const DEPTH_RANGE: std::ops::RangeInclusive<u32> = 2..=4096;

impl ViConfig {
    /// Returns an error if a value is out of its bounds.
    pub fn check(&self) -> Result<(), ViError> {
        if !DEPTH_RANGE.contains(&self.receive_depth) || !DEPTH_RANGE.contains(&self.send_depth) {
            return Err(ViError::Config("receive_depth and send_depth must be from 2 to 4096"));
        }
        if !(1..=MESSAGE_LEN_MAX).contains(&self.message_len) {
            return Err(ViError::Config("message_len must be from 1 to 1048576 bytes"));
        }
        Ok(())
    }
}

/// Returns an error if `data` is too long for a connection request or its answer.
pub(crate) fn check_private_data(data: &[u8]) -> Result<(), ViError> {
    if data.len() > PRIVATE_DATA_LEN_MAX {
        return Err(ViError::TooLong { len: data.len(), max: PRIVATE_DATA_LEN_MAX });
    }
    Ok(())
}

/// Faults that a provider has counted since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connection requests that were malformed or carried unexpected descriptors.
    pub handshakes_malformed: u64,
    /// Connection requests dropped because their set-up timed out or too many were pending.
    pub handshakes_dropped: u64,
    /// VIs broken because the peer wrote invalid values to shared memory or sent invalid messages.
    pub violations: u64,
}

/// The outcome of posted work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A message of `len` bytes is in `buffer` of `vi`. The caller holds the buffer until it calls
    /// [`Provider::post_recv`].
    Received {
        /// The VI it arrived on.
        vi: ViId,
        /// The buffer that holds it.
        buffer: BufferId,
        /// The length of the message in bytes.
        len: u32,
        /// The sender's immediate data.
        immediate: u32,
    },
    /// A signalled send is complete: its memory may be reused.
    Sent {
        /// The VI it was posted on.
        vi: ViId,
        /// The id given to [`Provider::post_send`].
        wr_id: u64,
    },
}

/// A peer's request for a VI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// Names the request in [`Provider::accept`] and [`Provider::reject`].
    pub id: RequestId,
    /// The peer's private data, at most [`PRIVATE_DATA_LEN_MAX`] bytes. Hostile until parsed.
    pub private_data: Vec<u8>,
    /// User id of the peer process, if the provider knows it (shm).
    pub peer_uid: Option<u32>,
    /// The call of [`Provider::listen`] whose address the peer connected to, counted from 0, if the provider
    /// knows it (all but ucx).
    pub listener: Option<u32>,
}

/// A connection event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer requests a VI.
    Request(ConnectRequest),
    /// The VI is connected and accepts sends. Reported on both sides.
    Established {
        /// The VI.
        vi: ViId,
        /// The private data of the accepting side (empty on that side itself).
        private_data: Vec<u8>,
    },
    /// A connecting VI failed: no listener, rejected, or different configuration.
    Refused {
        /// The VI.
        vi: ViId,
        /// The cause.
        reason: ViError,
    },
    /// The peer disconnected or died. Reported after the last message of the VI was polled.
    /// [`Provider::disconnect`] then releases the VI's memory.
    Disconnected {
        /// The VI.
        vi: ViId,
        /// `true` if the peer called [`Provider::disconnect`]; `false` if it called [`Provider::abort`] or
        /// vanished.
        clean: bool,
    },
}

/// The result of [`Provider::arm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// Armed: the descriptors of [`Provider::wake`] become readable at the next completion or event.
    Armed,
    /// A completion or event is already pending: poll instead of blocking.
    Busy,
}

/// A descriptor that becomes readable after arming.
pub type Wake = RawFd;

/// Why an operation failed. Each error concerns one VI or one call; the provider remains usable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViError {
    /// No VI, request or buffer has this id: it was never issued, or has been released.
    #[error("no such {0}")]
    Unknown(&'static str),
    /// The send queue, or the peer's queue of posted receives, is full: retry after completions. A transport
    /// that counts credits never gets this error.
    #[error("the send queue or the peer's receive queue is full")]
    Full,
    /// The message is longer than the VI's `message_len`, or private data longer than
    /// [`PRIVATE_DATA_LEN_MAX`].
    #[error("a message of {len} bytes is longer than the limit of {max}")]
    TooLong {
        /// The length of the message in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The VI is not connected: not yet, or not any more.
    #[error("the VI is not connected")]
    NotConnected,
    /// The address cannot be reached, or has no listener.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The address.
        address: String,
        /// The text of the operating system or library.
        reason: String,
    },
    /// The accepting side rejected the request.
    #[error("the peer rejected the connection")]
    Rejected,
    /// The caller's own [`ViConfig`], or a piece of memory, is not valid.
    #[error("invalid argument: {0}")]
    Config(&'static str),
    /// The peer's set-up message has another version, different sizes or is malformed.
    #[error("invalid set-up message from the peer: {0}")]
    Protocol(&'static str),
    /// A configured capacity is exhausted (VIs, requests, memory).
    #[error("no room for another {0}")]
    Exhausted(&'static str),
    /// The provider does not implement the operation.
    #[error("this provider cannot {0}")]
    Unsupported(&'static str),
    /// A call to the operating system or a library failed.
    #[error("{call}: {reason}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// Its error text.
        reason: String,
    },
}

/// A source of Virtual Interfaces, used by one thread.
///
/// Life of a VI: [`connect`](Provider::connect) or [`accept`](Provider::accept) → [`Event::Established`] →
/// sends and receives → [`Event::Disconnected`], or a call of [`disconnect`](Provider::disconnect) or
/// [`abort`](Provider::abort) → released. All receive buffers of a VI are posted when it is created; the
/// provider owns and registers their memory.
///
/// Ordering: messages of one VI arrive in the order in which they were posted; VIs are independent of each
/// other. [`poll`](Provider::poll) returns no message of a VI before [`poll_event`](Provider::poll_event) has
/// returned its [`Event::Established`]; [`Event::Disconnected`] is returned only after the last message.
/// Sends fail before [`Event::Established`] has been returned.
pub trait Provider: Send {
    /// The name used in configuration and metrics: `shm`, `tcp`, `ucx`, `memory`, `verbs`.
    fn name(&self) -> &'static str;

    /// Starts to listen at `address`. Further calls add addresses.
    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError>;

    /// Starts to connect; [`Event::Established`] or [`Event::Refused`] follows. `private_data` holds at most
    /// [`PRIVATE_DATA_LEN_MAX`] bytes.
    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError>;

    /// Accepts a pending request. [`Event::Established`] follows, or [`Event::Disconnected`] if the peer has
    /// vanished. A different `message_len` fails on both sides: here with [`ViError::Protocol`], at the peer
    /// with [`Event::Refused`].
    fn accept(&mut self, request: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError>;

    /// Rejects a pending request.
    fn reject(&mut self, request: RequestId) -> Result<(), ViError>;

    /// Sends one message: the parts of `gather` in sequence, with 32 bits of immediate data. The parts are
    /// copied before the call returns, so the caller may reuse them at once. A `signalled` send is followed
    /// by [`Completion::Sent`].
    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError>;

    /// Whether [`post_send_filled`](Provider::post_send_filled) works.
    fn can_fill(&self) -> bool {
        false
    }

    /// As [`post_send`](Provider::post_send), unsignalled, with a message that `fill` writes where it leaves
    /// from: `fill` is called once with a place of `room` bytes, unless the call fails before, and returns
    /// the length of the message; 0: nothing is sent. Returns that length.
    fn post_send_filled(
        &mut self,
        vi: ViId,
        immediate: u32,
        room: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, ViError> {
        let _ = (vi, immediate, room, fill);
        Err(ViError::Unsupported("have messages filled in place"))
    }

    /// Registers memory, so that messages can be sent from it and received into it in place. The provider
    /// keeps it mapped until [`deregister`](Provider::deregister) was called and the last use has ended.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        let _ = memory;
        Err(ViError::Unsupported("register memory"))
    }

    /// Ends the registration of `region` for new work. Work already posted completes.
    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        let _ = region;
        Err(ViError::Unknown("region"))
    }

    /// As [`post_send`](Provider::post_send), with a message made of `head`, which is copied, and at most
    /// [`PIECES_MAX`] `pieces`, which the provider sends in place where it can. The pieces must not change
    /// until [`Completion::Sent`], which always follows unless the VI ends first.
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

    /// As [`connect`](Provider::connect), with the caller's receive buffers: `receive_depth` pieces of at
    /// least `message_len` bytes each. [`BufferId`] `n` is piece `n`. Initially all are posted, in their
    /// order; messages arrive in the pieces in the order in which the pieces were posted. `verbs` requires
    /// pieces evenly spaced in one region.
    fn connect_into(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        buffers: &[Piece],
    ) -> Result<ViId, ViError> {
        let _ = (address, config, private_data, buffers);
        Err(ViError::Unsupported("receive into memory of the caller"))
    }

    /// Returns a held receive buffer to its VI's receive queue. Buffers may be returned in any order.
    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError>;

    /// Copies from a held receive buffer, from `offset` until `into` is full or the message ends. Returns the
    /// number of bytes. The peer may change shared memory during the call: validate the copy, not the
    /// original.
    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError>;

    /// Returns the memory that holds the received messages of a VI, for a caller that reads them in place. It
    /// stays mapped while a clone of the handle exists. The peer may change it at any time.
    fn memory(&self, vi: ViId) -> Result<Memory, ViError> {
        let _ = vi;
        Err(ViError::Unsupported("read messages in place"))
    }

    /// Returns where the message in a held buffer starts in that [`memory`](Provider::memory), and its
    /// length, in bytes.
    fn received_at(&self, vi: ViId, buffer: BufferId) -> Result<(usize, usize), ViError> {
        let _ = (vi, buffer);
        Err(ViError::Unsupported("read messages in place"))
    }

    /// Returns the next completion, if any. Never blocks.
    fn poll(&mut self) -> Option<Completion>;

    /// Returns the next connection event, if any. Never blocks.
    fn poll_event(&mut self) -> Option<Event>;

    /// Arms the descriptors of [`wake`](Provider::wake): they become readable at the next completion or
    /// event.
    fn arm(&mut self) -> Result<Armed, ViError>;

    /// Appends the descriptors to wait on after [`arm`](Provider::arm) to `into`. The set changes only when
    /// [`wake_generation`](Provider::wake_generation) does.
    fn wake(&self, into: &mut Vec<Wake>);

    /// Counts the changes of the set of descriptors that [`wake`](Provider::wake) returns.
    fn wake_generation(&self) -> u64;

    /// Ends the VI cleanly, after the messages sent on it, and releases its memory. After
    /// [`Event::Disconnected`] or [`Event::Refused`] it only releases the memory. No completion or event of
    /// this VI follows.
    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Ends the VI without a clean end and releases its memory: the peer gets an unclean
    /// [`Event::Disconnected`], and may lose the last messages sent. Otherwise as
    /// [`disconnect`](Provider::disconnect).
    fn abort(&mut self, vi: ViId) -> Result<(), ViError>;

    /// Returns how many bytes of a VI's next message have arrived, if the provider receives messages in parts
    /// and the message is not whole yet. A peer whose bytes arrive is alive.
    fn incomplete(&self, vi: ViId) -> usize {
        let _ = vi;
        0
    }

    /// Returns whether a VI can end while both of its ends live, because the network between them failed. On
    /// one host a VI ends only when an end does.
    fn can_break(&self) -> bool {
        false
    }

    /// Calls `visit` with the immediate data and the bytes of the last messages posted on a VI, oldest first:
    /// every message that the provider does not know to be in the peer's memory, and possibly some before
    /// them. For a caller that continues over another VI after this one broke; it is called before
    /// [`disconnect`](Provider::disconnect). Messages of [`post_send_from`](Provider::post_send_from) are
    /// left out, since they are in the caller's memory. Bytes in memory shared with the peer may have been
    /// changed by the peer.
    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let _ = (vi, visit);
        Err(ViError::Unsupported("list unconfirmed messages"))
    }

    /// Returns the faults counted so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// In a forked child: releases the child's copies of all VIs without notifying the peers, for which the
    /// VIs remain the parent's. The default drops the provider, which suits one that shares nothing with the
    /// parent's.
    fn abandon_after_fork(self: Box<Self>) {}

    /// Appends every descriptor that the provider owns now to `into`: the application that hosts the provider
    /// must not close them. The default appends those of [`wake`](Provider::wake).
    fn descriptors(&self, into: &mut Vec<RawFd>) {
        self.wake(into);
    }
}
