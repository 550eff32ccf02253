//! A channel with everything that follows for it from the policy: the origin of its messages, its place, and
//! what programs may ask of it.

use std::borrow::Cow;
use std::collections::HashMap;

use csp_policy::{Channel, Query};
use csp_types::PlacementKey;

use crate::Planned;
use crate::catalogue::PlannedQuery;
use crate::formats::KnownFormat;

/// A channel of a policy.
#[derive(Clone, Debug)]
pub struct PlannedChannel<'a> {
    /// The channel. That of a query has the name, the address and the bounds of the query.
    pub channel: Cow<'a, Channel>,
    /// The origin of its messages.
    pub origin: Origin<'a>,
    /// Decides which worker it lives at.
    pub place: PlacementKey,
    /// The channels at which subscribers of requested queries connect.
    pub requested: Vec<Channel>,
}

/// The origin of the messages of a channel.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// Its publishers. Messages pass the paths of the channel.
    Publishers {
        /// The formats of the channel.
        formats: &'a [KnownFormat],
    },
    /// Outputs of the paths of another channel.
    Outputs {
        /// That channel.
        of: &'a Channel,
        /// Its formats.
        formats: &'a [KnownFormat],
    },
    /// A query.
    Query {
        /// The query.
        query: &'a Query,
        /// Its plan. A valid policy has the plan of each query.
        plan: Option<&'a PlannedQuery>,
    },
}

impl Planned {
    /// Returns the channels of the policy in its order, then those of its queries.
    pub fn channels(&self) -> Vec<PlannedChannel<'_>> {
        let (policy, catalogue) = (&**self.policy(), &**self.catalogue());
        let places = policy.placements();
        let mut requested = vec![Vec::new(); policy.channels.len()];
        for (at, place) in policy.requested_channels() {
            requested[at].push(place);
        }
        let mut sources: HashMap<&str, usize> = HashMap::new();
        for (at, channel) in policy.channels.iter().enumerate() {
            for outlet in channel.outlets() {
                sources.entry(outlet).or_insert(at);
            }
        }
        let formats = |at: usize| catalogue.channels.get(at).map_or(&[][..], Vec::as_slice);
        let place = |channel: &Channel| places.get(&channel.name).copied().unwrap_or(channel.placement());
        let own = policy.channels.iter().zip(requested).enumerate().map(|(at, (channel, requested))| {
            let origin = match sources.get(channel.name.as_str()) {
                Some(of) => Origin::Outputs { of: &policy.channels[*of], formats: formats(*of) },
                None => Origin::Publishers { formats: formats(at) },
            };
            PlannedChannel { channel: Cow::Borrowed(channel), origin, place: place(channel), requested }
        });
        let of_queries = policy.queries.iter().enumerate().map(|(at, query)| {
            let channel = query.channel();
            let (place, origin) = (place(&channel), Origin::Query { query, plan: catalogue.planned(at) });
            PlannedChannel { channel: Cow::Owned(channel), origin, place, requested: Vec::new() }
        });
        own.chain(of_queries).collect()
    }
}
