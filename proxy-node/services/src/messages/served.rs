//! The broker's parts beside requests: channels begin and end with their paths, feeds and connections,
//! whether the policy says so or a program has asked.

use csp_handlers::{CONTEXTS_MAX, G_CONTEXTS_MAX};
use csp_messages::{ChannelStatus, Feed, MessagePlane};
use csp_types::{FlowLabel, Instant, Owner};
use csp_zmtp::sealed_len;
use serde_json::Value;

use super::channels::{Bound, Channels};
use super::connections::Connections;
use super::formats::ChannelFeed;
use super::paths::{ChannelPath, Paths};
use super::placement::Placement;
use super::sending::Sending;
use super::spec::ChannelSpec;
use super::unread::Unread;
use super::{MessageBroker, MessagesConfig, Requested, SpecError, contexts};

/// What a broker serves, without the requests of programs.
pub(super) struct Served<'a> {
    pub config: &'a MessagesConfig,
    plane: &'a mut Option<MessagePlane>,
    pub channels: &'a mut Channels,
    pub connections: &'a mut Connections,
    sending: &'a mut Sending,
    paths: &'a mut Paths,
    placement: &'a Placement,
    /// Memory of answers that were not read.
    pub unread: &'a mut Unread,
    has_entropy: bool,
}

impl MessageBroker {
    /// Returns the requests of programs, and the other parts.
    pub(super) fn parts(&mut self) -> (&mut Requested, Served<'_>) {
        let has_entropy = self.entropy.is_some();
        let MessageBroker {
            config,
            plane,
            channels,
            connections,
            sending,
            paths,
            placement,
            unread,
            requested,
            ..
        } = self;
        let served =
            Served { config, plane, channels, connections, sending, paths, placement, unread, has_entropy };
        (requested, served)
    }

    /// Returns the parts beside requests.
    pub(super) fn served(&mut self) -> Served<'_> {
        self.parts().1
    }
}

impl Served<'_> {
    /// Adds a channel.
    ///
    /// # Errors
    /// When it cannot be served.
    pub fn add(&mut self, spec: ChannelSpec) -> Result<(), SpecError> {
        if spec.keys.is_some() && !self.has_entropy {
            return Err(SpecError::NoEntropy(spec.channel.name));
        }
        let plane = self.plane_or_new()?;
        let name = || spec.channel.name.clone();
        let id =
            plane.add_channel(spec.channel.clone()).map_err(|error| SpecError::Channel(name(), error))?;
        plane.set_number(id, spec.number);
        if spec.derived && spec.channel.sequence {
            plane.number_rows(id);
        }
        let zmtp = spec.zmtp(self.config.subscriptions.topic_len_max as usize);
        if spec.keys.is_some() {
            self.sending.reserve_sealing(sealed_len(zmtp.message_len_max));
        }
        self.channels.insert(Bound::new(spec, id, zmtp));
        Ok(())
    }

    /// Returns the plane. The first channel allocates it.
    fn plane_or_new(&mut self) -> Result<&mut MessagePlane, SpecError> {
        let plane = match self.plane.take() {
            Some(plane) => plane,
            None => {
                self.sending.prepare();
                self.connections.prepare(self.config.peers_max);
                let mut config = *self.config;
                config.contexts.contexts_max = CONTEXTS_MAX + G_CONTEXTS_MAX;
                let mut plane = MessagePlane::new(config).map_err(SpecError::Plane)?;
                contexts::prepare(&mut plane);
                plane
            }
        };
        Ok(self.plane.insert(plane))
    }

    /// Removes a channel, and closes its connections.
    pub fn remove(&mut self, number: u32) {
        let Some(bound) = self.channels.remove(number) else { return };
        if let Some(plane) = &mut self.plane {
            plane.remove_channel(bound.id);
        }
        self.connections.for_each_of(number, |peer| {
            peer.orphan();
            peer.ended = true; // a channel of the same number may follow at once
            true
        });
    }

    /// Gives a channel these paths in place of those that it has. If one is refused, all former ones stay,
    /// with the parameters that were set before it was refused.
    ///
    /// # Errors
    /// The path that is refused.
    pub fn set_paths(&mut self, now: Instant, number: u32, wanted: &[&ChannelPath]) -> Result<(), SpecError> {
        self.paths.now = now;
        let Some(plane) = &mut self.plane else { return Ok(()) };
        self.paths.set(plane, self.channels, number, wanted)
    }

    /// Replaces the feeds of all channels.
    pub fn set_feeds(&mut self, feeds: &[ChannelFeed]) {
        let Some(plane) = &mut self.plane else { return };
        for bound in self.channels.iter() {
            let own = feeds.iter().filter(|feed| feed.from == bound.spec.number);
            let feed = |feed: &ChannelFeed| {
                let to = self.channels.get(feed.to)?.id;
                Some(Feed { format: feed.format, to, becomes: feed.becomes })
            };
            plane.set_feeds(bound.id, own.filter_map(feed).collect());
        }
    }

    /// Returns the worker that a channel has moved to.
    pub fn elsewhere(&self, number: u32) -> Option<Owner> {
        self.placement.elsewhere(number)
    }

    /// Returns the state of a channel.
    pub fn status(&self, number: u32) -> Option<ChannelStatus> {
        self.plane.as_ref()?.channel_status(self.channels.get(number)?.id)
    }

    /// Returns how many subscriptions of a channel are of prefixes of `topic`.
    pub fn subscriptions(&self, number: u32, topic: &str) -> usize {
        subscriptions(self.plane.as_ref(), self.channels, number, topic)
    }

    /// Answers a request whose answer was delayed, if its peer is still connected.
    pub fn answer(&mut self, label: FlowLabel, ticket: u64, answer: &Value) {
        let Some(mut visit) = self.connections.visit(label) else { return };
        if visit.peer.answer_later(ticket, answer, self.unread) {
            visit.make_ready();
        }
    }
}

/// Returns how many subscriptions of a channel are of prefixes of `topic`.
pub(super) fn subscriptions(
    plane: Option<&MessagePlane>,
    channels: &Channels,
    number: u32,
    topic: &str,
) -> usize {
    let known = plane.zip(channels.get(number));
    known.map_or(0, |(plane, bound)| plane.subscriptions_to(bound.id, topic.as_bytes()))
}
