//! The message broker of a proxy worker: connections of ZeroMQ and length-prefixed peers, the channels that
//! they publish and subscribe to.
//!
//! ```text
//!  publisher's bytes ─▶ [inbound] ─ zmtp ─▶ message ─▶ MessagePlane: match, one copy, queues
//!                                                            │ next_flow, next_peer
//!  subscriber's end ◀── [outbound] ◀── headers and bodies ◀──┘
//! ```
//! A connection is served when bytes or room have come at its client's end, or when
//! [`MessageBroker::next_ready`] names it: because a message waits for it, a timer is due, or publishers may
//! go on.

mod batch;
mod channels;
mod connections;
mod contexts;
mod direct;
mod flows;
mod formats;
mod framing;
mod given;
mod inbound;
mod keys;
mod local;
mod numbering;
mod outbound;
mod paths;
mod peer;
mod placement;
mod policy;
mod requested;
mod requests;
mod sealed;
mod seen;
mod sending;
mod served;
mod spec;
mod stage_places;
mod unread;

use std::collections::HashMap;

use csp_messages::{
    ChannelError, ChannelId, ChannelStatus, MessagePlane, PathError, PlaneConfig, PlaneConfigError,
};
use csp_types::Owner;
use csp_zmtp::{Connection, Counters as ZmtpCounters};

use thiserror::Error;

use self::channels::{Bound, Channels};
use self::connections::Connections;
use self::contexts::Elsewhere;
use self::direct::Direct;
use self::inbound::UnknownCounters;
use self::keys::Entropy;
use self::paths::Paths;
use self::placement::Placement;
use self::requested::Requested;
use self::sending::Sending;
use self::unread::Unread;
use crate::streams::Streams;

pub use self::contexts::{ContextNotice, ContextSpec, ElsewhereSnapshot, PATIENCE, Presence, RETRY};
pub use self::flows::{FieldReader, FlowFields};
pub use self::formats::{ChannelFeed, ChannelFormats, FormatText};
pub use self::framing::{Header, PrefixedPort};
pub use self::keys::{ChannelKeys, Refusals, Rights};
pub use self::paths::{ChannelPath, ContextsSnapshot, PathStage};
pub use self::placement::{
    GATHER_TIME, MoveNotice, Moved, RECEIVERS_TIME, SENDERS_TIME, STABLE, STRANGER_TIME, View,
};
pub use self::policy::{ChannelPolicy, MessagesPolicy};
pub use self::requested::{
    Asked, AskedError, BroughtFormat, FormatAsked, HandlerAsked, HandlerBounds, HandlerJob, HandlerRules,
    MadeHandler, PlanJob, Planned, QueryAsked, QueryPlan, QueryPlanner, QueryRefused, RequestCounters,
    RequestNotice, RequestPlace, RequestSpec, RequestedSnapshot, Wanted,
};
pub use self::seen::{PeerName, PeerSnapshot, PeersPage, PeersQuery, TracedSnapshot};
pub use self::spec::ChannelSpec;
pub use self::stage_places::{AutoPlace, StagePlace};

/// Bounds of a worker's broker.
pub type MessagesConfig = PlaneConfig;

/// State of a channel at one worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelSnapshot {
    /// Its name.
    pub name: String,
    /// Connected peers that publish or push.
    pub senders: u64,
    /// Connected peers that subscribe or pull.
    pub receivers: u64,
    /// Copies that wait for receivers, and pushed messages that wait for one.
    pub waiting: u64,
    /// Connections of length-prefixed peers that were reset for a malformed header, or for the end of their
    /// stream within a message.
    pub malformed: u64,
    /// Messages that were refused while their peers stay connected: too many frames or bytes, too long a
    /// topic, or a peer that does not publish.
    pub refused: u64,
    /// Messages that match none of the channel's formats, if it has any.
    pub unknown_format: u64,
    /// Those of them that were dropped for that reason.
    pub unknown_dropped: u64,
    /// Memory, subscriptions and counters.
    pub status: ChannelStatus,
    /// The worker that owns the channel, as far as known.
    pub owner: Option<Owner>,
    /// Losses caused by moves of the channel away from this worker.
    pub moved: Moved,
}

/// Why a channel is not served.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SpecError {
    /// The worker's memory for messages.
    #[error("the memory for messages: {0}")]
    Plane(PlaneConfigError),
    /// The channel of this name.
    #[error("channel {0}: {1}")]
    Channel(String, ChannelError),
    /// A channel has keys, but the broker was not given random bytes: a mistake of the caller.
    #[error("channel {0}: there are no random bytes for its handshakes")]
    NoEntropy(String),
    /// The path of the channel of this name.
    #[error("the path of channel {0}: {1}")]
    Path(String, PathError),
}

/// The broker of one worker. Its memory for messages is allocated with the first channel.
#[derive(Debug)]
pub struct MessageBroker {
    config: MessagesConfig,
    plane: Option<MessagePlane>,
    channels: Channels,
    connections: Connections,
    sending: Sending,
    direct: Direct,
    zmtp: ZmtpCounters,
    refusals: Refusals,
    paths: Paths,
    /// Contexts that are other programs.
    elsewhere: Elsewhere,
    placement: Placement,
    /// Queries that programs have asked for.
    requested: Requested,
    /// Memory of answers that were not read.
    unread: Unread,
    entropy: Option<Entropy>,
    /// Channels between clients and servers of a pool.
    streams: Streams,
}

impl MessageBroker {
    /// A broker without channels.
    pub fn new(config: MessagesConfig) -> Self {
        MessageBroker {
            config,
            plane: None,
            channels: Channels::default(),
            connections: Connections::default(),
            sending: Sending::default(),
            direct: Direct::default(),
            zmtp: ZmtpCounters::default(),
            refusals: Refusals::default(),
            paths: Paths::default(),
            elsewhere: Elsewhere::default(),
            placement: Placement::default(),
            requested: Requested::default(),
            unread: Unread::default(),
            entropy: None,
            streams: Streams::default(),
        }
    }

    /// Seeds the generator of the random bytes for handshakes. `seed` comes from a cryptographic generator
    /// and is not used anywhere else.
    pub fn seed(&mut self, seed: [u8; 32]) {
        self.entropy = Some(Entropy::new(seed));
    }

    /// Replaces the channels. A channel that differs at most in its peers' rights keeps its connections and
    /// messages. The connections of all other channels, and of peers that have lost their rights, are closed.
    ///
    /// # Errors
    /// The first channel that cannot be served; the others are.
    fn set_channels(&mut self, mut specs: Vec<ChannelSpec>) -> Result<(), SpecError> {
        specs.extend(self.requested.specs().cloned());
        for number in self.channels.numbers() {
            let Some(bound) = self.channels.get_mut(number) else { continue };
            match specs.iter().find(|spec| spec.number == number) {
                Some(spec) if bound.spec == *spec => {}
                Some(spec) if bound.spec.can_become(spec) => {
                    bound.spec.keys.clone_from(&spec.keys);
                    bound.spec.formats.clone_from(&spec.formats);
                    bound.spec.drops_unknown = spec.drops_unknown;
                    self.enforce_rights(number);
                }
                _ => self.served().remove(number),
            }
        }
        let mut result = Ok(());
        for spec in specs {
            if !self.channels.contains(spec.number)
                && let Err(error) = self.served().add(spec)
                && result.is_ok()
            {
                result = Err(error);
            }
        }
        result
    }

    /// Disconnects the peers of a channel that use rights which they no longer have.
    fn enforce_rights(&mut self, number: u32) {
        let Some(keys) = self.channels.get(number).and_then(|bound| bound.spec.keys.clone()) else { return };
        let MessageBroker { connections, plane, refusals, .. } = self;
        let mut departed = Vec::new();
        connections.for_each_of(number, |peer| {
            let known = peer.connection.zmtp().and_then(Connection::peer);
            if known.is_none_or(|known| keys.check(known).is_ok()) || peer.connection.has_failed() {
                return false;
            }
            refusals.rights_removed += 1;
            if let (Some(plane), Some(id)) = (&mut *plane, peer.id) {
                plane.lost(id, peer.given.as_ref().map_or(0, given::Given::messages));
                plane.detach(id, |_| {});
            }
            departed.push(peer.ending);
            peer.orphan();
            peer.ended = true;
            true
        });
        let now = self.paths.now;
        let (placement, mut movable) = self.moves();
        departed.into_iter().for_each(|ending| placement.departed(now, (number, ending), &mut movable));
    }

    /// Returns the plane, once a channel was added.
    pub fn plane(&self) -> Option<&MessagePlane> {
        self.plane.as_ref()
    }

    /// Returns the names and ids of the channels.
    pub fn channels(&self) -> impl Iterator<Item = (&str, ChannelId)> {
        self.channels.iter().map(|bound| (bound.name(), bound.id))
    }

    /// Returns the state of each channel.
    pub fn snapshots(&self) -> Vec<ChannelSnapshot> {
        let streams = self.streams.snapshots();
        let Some(plane) = &self.plane else { return streams.collect() };
        let snapshot = |bound: &Bound| {
            let name = bound.spec.channel.name.clone();
            let status = plane.channel_status(bound.id)?;
            let waiting = status.backlog as u64;
            let (number, malformed, refused) = (bound.spec.number, bound.malformed, bound.refused);
            let UnknownCounters { arrived: unknown_format, dropped: unknown_dropped } = bound.unknown;
            let (owner, moved) = (self.placement.owner(number), self.placement.moved(number));
            let (senders, receivers) = (0, 0);
            Some((
                number,
                ChannelSnapshot {
                    name,
                    senders,
                    receivers,
                    waiting,
                    malformed,
                    refused,
                    unknown_format,
                    unknown_dropped,
                    status,
                    owner,
                    moved,
                },
            ))
        };
        let mut channels: HashMap<u32, ChannelSnapshot> = self.channels.iter().filter_map(snapshot).collect();
        for peer in self.connections.iter() {
            let Some(status) = peer.id.and_then(|id| plane.peer_status(id)) else { continue };
            let Some(channel) = channels.get_mut(&peer.number) else { continue };
            channel.senders += u64::from(status.role.sends());
            channel.receivers += u64::from(status.role.receives());
            channel.waiting += status.waiting as u64;
        }
        channels.into_values().chain(streams).collect()
    }

    /// Returns the length of the blocks in which a channel's memory is counted, in bytes.
    pub fn block_len(&self) -> u64 {
        self.config.pool.block_len.into()
    }

    /// Returns the counters of the framing.
    pub fn zmtp(&self) -> &ZmtpCounters {
        &self.zmtp
    }

    /// Returns the numbers of peers that the broker refused or disconnected, for reasons other than their
    /// framing.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Returns the memory in bytes that connections use for incomplete messages.
    pub fn incomplete_bytes(&self) -> usize {
        self.connections.kept()
    }

    /// Returns the memory in bytes of long answers that peers have not read.
    pub fn unread_bytes(&self) -> usize {
        self.unread.bytes()
    }

    /// Returns the number of connections.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }
}
