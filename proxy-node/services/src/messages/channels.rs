//! The channels that a worker serves: found by the policy's number, and by the plane's id.

use std::collections::HashMap;
use std::sync::Arc;

use csp_messages::{ChannelId, MessagePlane, PeerId};
use csp_types::Instant;
use csp_zmtp::{Config as ZmtpConfig, Connection};

use super::direct::RECEIVERS_MAX;
use super::inbound::UnknownCounters;
use super::keys::Entropy;
use super::spec::ChannelSpec;

/// A channel that is served.
#[derive(Debug)]
pub(super) struct Bound {
    pub spec: ChannelSpec,
    pub id: ChannelId,
    zmtp: Arc<ZmtpConfig>,
    /// Connections reset because their peers sent malformed data.
    pub malformed: u64,
    /// Messages that were refused while their peers stay.
    pub refused: u64,
    pub unknown: UnknownCounters,
    /// Receivers that may be idle when a publisher is served.
    pub near: Vec<PeerId>,
}

impl Bound {
    /// A channel that the plane has as `id`.
    pub fn new(spec: ChannelSpec, id: ChannelId, zmtp: ZmtpConfig) -> Self {
        let unknown = UnknownCounters::default();
        let near = Vec::with_capacity(RECEIVERS_MAX);
        Bound { spec, id, zmtp: Arc::new(zmtp), malformed: 0, refused: 0, unknown, near }
    }

    /// Begins the connection of a ZeroMQ peer.
    pub fn begin(&self, entropy: &mut Option<Entropy>, now: Instant) -> Option<Connection> {
        let config = self.zmtp.clone();
        let Some(keys) = &self.spec.keys else { return Some(Connection::null(config, now)) };
        let begin = if keys.require { Connection::curve } else { Connection::curve_or_null };
        // Without random bytes such a channel is not added.
        entropy.as_mut().map(|entropy| begin(config, keys.server.clone(), &entropy.draw(), now))
    }

    /// Returns the channel's name.
    pub fn name(&self) -> &str {
        &self.spec.channel.name
    }
}

/// The channels of a worker.
#[derive(Debug, Default)]
pub(super) struct Channels(HashMap<u32, Bound>);

impl Channels {
    #[inline]
    pub fn get(&self, number: u32) -> Option<&Bound> {
        self.0.get(&number)
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Bound> {
        self.0.get_mut(&number)
    }

    /// Returns the channel of an id of the plane.
    pub fn of(&self, plane: &MessagePlane, id: ChannelId) -> Option<&Bound> {
        self.get(plane.number_of(id)?)
    }

    /// Returns the name of a channel; empty if it is not served.
    pub fn name(&self, number: u32) -> String {
        self.get(number).map_or_else(String::new, |bound| bound.name().to_owned())
    }

    pub fn contains(&self, number: u32) -> bool {
        self.0.contains_key(&number)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Bound> {
        self.0.values()
    }

    /// Returns the numbers of all channels.
    pub fn numbers(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    pub fn insert(&mut self, bound: Bound) {
        self.0.insert(bound.spec.number, bound);
    }

    pub fn remove(&mut self, number: u32) -> Option<Bound> {
        self.0.remove(&number)
    }
}
