//! One connection of a peer.

use std::net::{Ipv4Addr, SocketAddr};

use csp_messages::{Delivery, PeerId};
use csp_proxy_core::service::ClientEnd;
use csp_quality::Run;
use csp_types::{FlowLabel, Instant};

use super::framing::Speech;
use super::given::Given;
use super::placement::Ending;
use super::requests::Requests;

/// The number of no channel.
const NO_CHANNEL: u32 = u32::MAX;

/// A connection, and its role in its channel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) label: FlowLabel,
    /// The policy's number of the channel.
    pub(super) number: u32,
    /// Its address.
    pub(super) client: SocketAddr,
    /// The channel's address to which the peer has connected.
    pub(super) server: SocketAddr,
    /// The data item that its messages form, if there are information flows.
    pub(super) run: Option<Box<Run>>,
    pub(super) connection: Speech,
    /// Its part in the channel, after the handshake.
    pub(super) id: Option<PeerId>,
    /// The peer publishes: a subscription to all messages must be sent to it.
    pub(super) asks_for_all: bool,
    /// Bytes of its stream that have been consumed.
    pub(super) consumed: u64,
    /// The last of these bytes, if they belong to an incomplete message.
    pub(super) kept: Vec<u8>,
    /// The frames of the message for which the peer is held back, by position and length; empty if it is not
    /// held back.
    pub(super) held: Vec<(u64, usize)>,
    /// Where that message starts in the stream.
    pub(super) unpublished: Option<u64>,
    /// The message that is being written, and how many of its bytes were written; under CURVE, how many of
    /// its frames.
    pub(super) writing: Option<(Delivery, usize)>,
    /// Messages that have been written as a whole.
    pub(super) delivered: u64,
    /// The messages that a puller has not acknowledged.
    pub(super) given: Option<Given>,
    /// The requests of a REQ or DEALER peer.
    pub(super) requests: Option<Requests>,
    /// Bytes of the connection itself, such as a greeting, for which there was no room; under CURVE also the
    /// rest of a sealed frame.
    pub(super) own: Vec<u8>,
    /// Bytes of long answers among them.
    pub(super) unread: usize,
    /// It is about to be served.
    pub(super) queued: bool,
    /// It is in the list of connections that are ready.
    pub(super) listed: bool,
    /// Bytes of its stream that have arrived.
    pub(super) received: u64,
    /// The peer must be disconnected.
    pub(super) ended: bool,
    pub(super) deadline: Option<Instant>,
    /// When it was established.
    pub(super) arrived: Instant,
    /// The stage of the connection's end, if the connection moves.
    pub(super) ending: Ending,
}

impl Peer {
    pub(super) fn new(label: FlowLabel, number: u32, connection: Speech) -> Self {
        Peer {
            label,
            number,
            client: (Ipv4Addr::UNSPECIFIED, 0).into(),
            server: (Ipv4Addr::UNSPECIFIED, 0).into(),
            run: None,
            connection,
            id: None,
            asks_for_all: false,
            consumed: 0,
            kept: Vec::new(),
            held: Vec::new(),
            unpublished: None,
            writing: None,
            delivered: 0,
            given: None,
            requests: None,
            own: Vec::new(),
            unread: 0,
            queued: false,
            listed: false,
            received: 0,
            ended: false,
            deadline: None,
            arrived: Instant::ZERO,
            ending: Ending::Stays,
        }
    }

    /// Returns whether a part of a message has arrived on a connection with `readable` bytes that were not
    /// consumed.
    pub(super) fn has_rest(&self, readable: usize) -> bool {
        readable > 0 || !self.kept.is_empty()
    }

    /// Called before messages are written: removes the messages that a puller has acknowledged. Returns the
    /// number of messages delivered so far and of unacknowledged bytes, for
    /// [`after_visit`](Self::after_visit).
    pub(super) fn before_visit(&mut self, client: &impl ClientEnd) -> (u64, u32) {
        let Some(given) = &mut self.given else { return (0, 0) };
        let unacknowledged = client.unacknowledged();
        given.acknowledged(unacknowledged);
        (self.delivered, unacknowledged)
    }

    /// After messages were written: records those of a puller.
    pub(super) fn after_visit(&mut self, (delivered, unacknowledged): (u64, u32), client: &impl ClientEnd) {
        if let Some(given) = &mut self.given {
            given.visited(self.delivered - delivered, unacknowledged, client.unacknowledged());
        }
    }

    /// Detaches the peer from a channel that was removed. A channel that is added later with the same number
    /// is a different one.
    pub(super) fn orphan(&mut self) {
        self.number = NO_CHANNEL;
        (self.id, self.writing) = (None, None);
        self.held.clear();
    }
}
