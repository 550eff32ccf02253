//! What a policy says of messages, put into force as a whole.

use csp_types::{Instant, PlacementKey};

use super::contexts::ContextSpec;
use super::formats::ChannelFeed;
use super::paths::ChannelPath;
use super::requested::RequestSpec;
use super::spec::ChannelSpec;
use super::{MessageBroker, SpecError};
use crate::streams::StreamSpec;

/// What a policy says of one channel whose messages end at the broker.
#[derive(Clone, Debug)]
pub struct ChannelPolicy {
    /// The channel, its peers and its formats.
    pub spec: ChannelSpec,
    /// Its paths: one for the messages of all formats, or one for each of some formats.
    pub paths: Vec<ChannelPath>,
    /// The messages of other channels that it receives.
    pub feeds: Vec<ChannelFeed>,
    /// What programs may ask of it.
    pub requests: Option<RequestSpec>,
    /// Decides which worker the channel and its requested channels live at; `None`: this worker.
    pub place: Option<PlacementKey>,
}

impl From<ChannelSpec> for ChannelPolicy {
    /// A channel without paths, feeds and requests, which lives at this worker.
    fn from(spec: ChannelSpec) -> Self {
        ChannelPolicy { spec, paths: Vec::new(), feeds: Vec::new(), requests: None, place: None }
    }
}

/// What a policy says of messages.
#[derive(Clone, Debug, Default)]
pub struct MessagesPolicy {
    /// The channels whose messages end at the broker.
    pub channels: Vec<ChannelPolicy>,
    /// Numbers of the channels that this proxy cannot serve, with the keys that decide where they live:
    /// programs of the cluster are sent to their owners.
    pub unserved: Vec<(u32, PlacementKey)>,
    /// The channels between clients and servers of a pool.
    pub streams: Vec<StreamSpec>,
    /// Contexts that are programs of the cluster.
    pub contexts: Vec<ContextSpec>,
}

impl MessagesPolicy {
    /// Returns the paths of all channels.
    pub fn paths(&self) -> impl Iterator<Item = &ChannelPath> {
        self.channels.iter().flat_map(|channel| &channel.paths)
    }
}

impl MessageBroker {
    /// Puts a policy into force. A channel that differs at most in the rights of its peers keeps its
    /// connections and messages; a path that stays the same, or differs only in parameters, keeps its
    /// messages in place. The connections of all other channels, and of peers that have lost their rights,
    /// are closed. Requested queries that the policy does not permit end. A channel whose new path is not
    /// valid keeps its former path; without one it is no longer served.
    ///
    /// # Errors
    /// The first channel or path that cannot be served. Everything else is in force.
    pub fn apply(&mut self, now: Instant, policy: &MessagesPolicy) -> Result<(), SpecError> {
        let MessagesPolicy { channels, unserved, streams, contexts } = policy;
        self.streams.set_channels(streams.clone());
        // The channels, paths and feeds of requests that remain are set with those of the policy.
        self.set_requests(channels.iter().filter_map(|channel| channel.requests.clone()).collect());
        let served = self.set_channels(channels.iter().map(|channel| channel.spec.clone()).collect());
        self.elsewhere.set(now, contexts);
        let paths: Vec<ChannelPath> = policy.paths().cloned().collect();
        let served = served.and(self.set_paths(now, &paths));
        let feeds: Vec<ChannelFeed> = channels.iter().flat_map(|channel| &channel.feeds).copied().collect();
        self.set_feeds(&feeds);
        self.set_places(now, channels.iter().flat_map(ChannelPolicy::places).chain(unserved.iter().copied()));
        served
    }
}

impl ChannelPolicy {
    /// Returns the keys of the channel and of its requested channels, by number.
    fn places(&self) -> impl Iterator<Item = (u32, PlacementKey)> {
        let requested = self.requests.iter().flat_map(|requests| &requests.places);
        let numbers = std::iter::once(self.spec.number).chain(requested.map(|place| place.spec.number));
        numbers.filter_map(|number| Some((number, self.place?)))
    }
}
