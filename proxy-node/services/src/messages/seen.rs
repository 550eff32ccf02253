//! State of the broker for display: peers with their subscriptions, and traced messages.

use std::net::SocketAddr;

use csp_messages::{PeerId, PeerStatus, TraceError, TraceId, TraceRequest, TracedMessage};
use csp_types::{FlowLabel, Instant};

use super::MessageBroker;
use super::peer::Peer;

/// Selects peers, and bounds the answer.
#[derive(Clone, Copy, Debug)]
pub struct PeersQuery<'a> {
    /// Peers of this channel; `None`: of all.
    pub channel: Option<&'a str>,
    /// 0, or [`PeersPage::cursor`] of the page before.
    pub cursor: u32,
    /// Number of slots of peers that are examined.
    pub slots_max: u32,
    /// Largest number of peers that are described; further ones are counted.
    pub peers_max: usize,
    /// Prefixes of a peer.
    pub prefixes_max: u32,
    /// Largest number of bytes of all prefixes of the page. Longer ones are left out.
    pub prefix_bytes_max: usize,
}

/// Some of a broker's peers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeersPage {
    /// The first peers found.
    pub peers: Vec<PeerSnapshot>,
    /// Peers found beyond these.
    pub more: u64,
    /// Where the next page begins; `None` if this is the last.
    pub cursor: Option<u32>,
}

/// A peer of a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerSnapshot {
    /// Its channel.
    pub channel: String,
    /// Name of the peer.
    pub name: PeerName,
    /// When it connected.
    pub since: Instant,
    /// Its state in the channel.
    pub status: PeerStatus,
    /// Prefixes that it subscribes to, not all if [`PeerStatus::subscriptions`] is larger.
    pub prefixes: Vec<Vec<u8>>,
}

/// Identity of a peer, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerName {
    /// Its connection.
    pub label: FlowLabel,
    /// Its address.
    pub client: SocketAddr,
    /// Its socket type, such as `PUB`; empty if it is not known yet. `TCP`: the peer sends and receives
    /// length-prefixed messages.
    pub socket: &'static str,
}

/// A message with the names of its peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedSnapshot {
    /// The message.
    pub message: TracedMessage,
    /// The peer that sent it, if it is known.
    pub publisher: Option<PeerName>,
    /// The receivers of the message's copies, in their order.
    pub receivers: Vec<Option<PeerName>>,
}

impl MessageBroker {
    /// Returns peers with their subscriptions. The query bounds the work.
    pub fn peers(&self, query: PeersQuery<'_>) -> PeersPage {
        let mut page = PeersPage::default();
        let Some(plane) = &self.plane else { return page };
        let channel = match query.channel.map(|name| plane.channel_named(name)) {
            Some(None) => return page,
            Some(known) => known,
            None => None,
        };
        let mut bytes_left = query.prefix_bytes_max;
        page.cursor = plane.peers_of(channel, query.cursor, query.slots_max, |id| {
            if page.peers.len() >= query.peers_max {
                page.more += 1;
            } else {
                page.peers.extend(self.describe(id, &query, &mut bytes_left));
            }
        });
        page
    }

    fn describe(&self, id: PeerId, query: &PeersQuery<'_>, bytes_left: &mut usize) -> Option<PeerSnapshot> {
        let (plane, peer) = (self.plane.as_ref()?, self.connections.of(id)?);
        let status = plane.peer_status(id)?;
        let mut prefixes = Vec::new();
        plane.prefixes_of(id, query.prefixes_max, |prefix| {
            if prefix.len() <= *bytes_left {
                *bytes_left -= prefix.len();
                prefixes.push(prefix.to_vec());
            }
        });
        let channel = self.channels.get(peer.number)?.spec.channel.name.clone();
        Some(PeerSnapshot { channel, name: name_of(peer), since: peer.arrived, status, prefixes })
    }

    /// Arms a trace of the next messages of the channel of this name.
    ///
    /// # Errors
    /// When there is no such channel, the topic is too long, or too many traces are armed.
    pub fn arm_trace(
        &mut self,
        now: Instant,
        channel: &str,
        request: TraceRequest<'_>,
    ) -> Result<TraceId, TraceError> {
        let plane = self.plane.as_mut().ok_or(TraceError::UnknownChannel)?;
        let channel = plane.channel_named(channel).ok_or(TraceError::UnknownChannel)?;
        if !plane.is_tracing() {
            self.connections.clear_departed();
        }
        plane.arm_trace(now, channel, request)
    }

    /// Returns the number of messages of a trace, and whether the outcome of all of them is known; `None` if
    /// the trace has ended.
    pub fn trace_progress(&self, id: TraceId) -> Option<(usize, bool)> {
        let messages = self.plane.as_ref()?.traced(id)?;
        Some(
            messages
                .fold((0, true), |(count, settled), message| (count + 1, settled && message.is_settled())),
        )
    }

    /// Returns the messages of a trace in the order of arrival; `None` if the trace has ended.
    pub fn traced(&self, id: TraceId) -> Option<Vec<TracedSnapshot>> {
        let messages = self.plane.as_ref()?.traced(id)?;
        let describe = |message: &TracedMessage| TracedSnapshot {
            publisher: self.connections.name(message.publisher),
            receivers: message.copies.iter().map(|copy| self.connections.name(copy.peer)).collect(),
            message: message.clone(),
        };
        Some(messages.map(describe).collect())
    }

    /// Ends a trace.
    pub fn end_trace(&mut self, id: TraceId) {
        let Some(plane) = &mut self.plane else { return };
        plane.end_trace(id);
        if !plane.is_tracing() {
            self.connections.clear_departed();
        }
    }
}

/// Returns the name of a connection.
pub(super) fn name_of(peer: &Peer) -> PeerName {
    let socket = peer.connection.socket();
    PeerName { label: peer.label, client: peer.client, socket }
}
