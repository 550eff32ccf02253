//! What streams and channels have in common: the queue of buffers to send, and what the program was told.

use crate::pool::NONE;

/// Buffers that one connection may have queued to send.
pub const QUEUE_MAX: u32 = 256;
/// Buffers with received data that the program may hold of one connection; more is not read until some come back.
pub const LENT_MAX: u32 = 16;

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// A stream that waits for a proxy.
    Waiting,
    /// A stream.
    Stream(csp_app::FlowId),
    /// A channel: a link of one of the channels' sets.
    Channel {
        /// Which set.
        set: usize,
        /// Which link.
        link: csp_transport::LinkId,
    },
    /// What it was is gone; the program has not ended it yet.
    Gone,
}

/// A stream or a channel.
#[derive(Debug)]
pub struct Connection {
    /// What carries it.
    pub transport: Transport,
    /// The program's pointer, given back with each event.
    pub user: usize,
    /// The first and the last buffer to send, or [`NONE`].
    pub head: u32,
    /// See `head`.
    pub tail: u32,
    /// How many there are.
    pub queued: u32,
    /// Buffers with received data that the program holds.
    pub lent: u32,
    /// It is established.
    pub open: bool,
    /// The program was told that no more comes.
    pub end_reported: bool,
    /// It has something to read and found no buffer; it stands in the list of those.
    pub starved: bool,
    /// Its queue waits for credit; it stands in the list of those.
    pub blocked: bool,
    /// The program wants its sending direction ended when the queue is empty.
    pub shutdown: bool,
    /// The sending direction was ended.
    pub write_ended: bool,
    /// The program ended it: it goes when the queue is empty.
    pub ended: bool,
    /// Messages are lent where they arrive.
    pub in_place: bool,
    /// The user of the process at the other end of a channel.
    pub peer_user: Option<u32>,
    /// The two ends of a stream, as text.
    pub ends: Option<(std::net::SocketAddr, std::net::SocketAddr)>,
}

impl Connection {
    /// A connection with nothing queued.
    pub fn new(transport: Transport, user: usize) -> Self {
        Connection {
            transport,
            user,
            head: NONE,
            tail: NONE,
            queued: 0,
            lent: 0,
            open: false,
            end_reported: false,
            starved: false,
            blocked: false,
            shutdown: false,
            write_ended: false,
            ended: false,
            in_place: false,
            peer_user: None,
            ends: None,
        }
    }
}

/// What a listener listens for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Streams.
    Stream(csp_app::ListenerId),
    /// Channels: one of the channels' sets.
    Channel(usize),
}

/// A listener.
#[derive(Debug)]
pub struct Listener {
    /// For what.
    pub source: Source,
    /// The program's pointer.
    pub user: usize,
    /// No connection is taken while the table is full.
    pub paused: bool,
}

/// A message that the program holds where it arrived.
#[derive(Debug)]
pub struct Lent {
    /// Which of the channels' sets it came by, and which use of that place.
    pub set: (usize, u64),
    /// The message.
    pub message: csp_transport::InPlace,
    /// What it lies in; stays mapped with this, whatever becomes of the channel.
    pub memory: csp_vi::Memory,
}
