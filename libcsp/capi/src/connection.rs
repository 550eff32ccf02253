//! State that streams and channels share: the queue of buffers to send, and the events already reported.

use crate::pool::NONE;

/// Buffers that one connection may have queued to send.
pub const QUEUE_MAX: u32 = 256;
/// Buffers with received data of one connection that the program may hold. No more is read until it returns
/// some.
pub const LENT_MAX: u32 = 16;

/// The carrier of a connection.
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
    /// The carrier has ended; the program has not ended the connection yet.
    Gone,
}

/// A stream or a channel.
#[derive(Debug)]
pub struct Connection {
    /// The carrier.
    pub transport: Transport,
    /// The program's pointer, passed with each event.
    pub user: usize,
    /// The first and the last buffer to send, or [`NONE`].
    pub head: u32,
    /// See `head`.
    pub tail: u32,
    /// Number of queued buffers.
    pub queued: u32,
    /// Number of buffers with received data that the program holds.
    pub lent: u32,
    /// Whether it is established.
    pub open: bool,
    /// The end of the stream, or of the connection, has been reported to the program.
    pub end_reported: bool,
    /// It has data to read and found no free buffer; it is in the list of such connections.
    pub starved: bool,
    /// Its queue waits for credit; it is in the list of such connections.
    pub blocked: bool,
    /// The sending direction is to be ended when the queue is empty.
    pub shutdown: bool,
    /// The sending direction was ended.
    pub write_ended: bool,
    /// The program ended it: it is removed when the queue is empty.
    pub ended: bool,
    /// Messages are lent in place, without copying.
    pub in_place: bool,
    /// The user of the process at the other end of a channel.
    pub peer_user: Option<u32>,
    /// The addresses of the two ends of a stream.
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

/// The kind of connections that a listener accepts.
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
    /// The kind of its connections.
    pub source: Source,
    /// The program's pointer.
    pub user: usize,
    /// No connection is accepted while the table is full.
    pub paused: bool,
}

/// A message that the program holds in place.
#[derive(Debug)]
pub struct Lent {
    /// The set of channels by which it arrived: its place, and the serial number of the set there.
    pub set: (usize, u64),
    /// The message.
    pub message: csp_transport::InPlace,
    /// The memory that holds it. It stays mapped with this value, even after the channel has ended.
    pub memory: csp_vi::Memory,
}
