//! Where channels and queries live: together if one is made of the other.

use std::collections::HashMap;

use csp_types::PlacementKey;

use crate::Policy;

impl Policy {
    /// Returns what decides where each channel and query lives, by name. A query lives where its channels do,
    /// and so do channels that are joined.
    pub fn placements(&self) -> HashMap<String, PlacementKey> {
        let ends = self.channels.iter().map(|c| (c.name.as_str(), c.vip, c.port));
        let ends: Vec<_> =
            ends.chain(self.queries.iter().map(|q| (q.name.as_str(), q.vip, q.port))).collect();
        // The group of each: an index that all of its members share.
        let mut groups: Vec<usize> = (0..ends.len()).collect();
        for (index, query) in self.queries.iter().enumerate() {
            let own = self.channels.len() + index;
            for source in query.reads() {
                let Some(at) = ends.iter().position(|(name, ..)| *name == source) else { continue };
                let (from, to) = (groups[own], groups[at]);
                groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
        // Channels that outputs of a path lead to live where the path runs.
        for (own, channel) in self.channels.iter().enumerate() {
            for name in channel.outlets() {
                let Some(at) = ends.iter().position(|(known, ..)| *known == name) else { continue };
                let (from, to) = (groups[at], groups[own]);
                groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
        // What requested queries of a channel may read lives with it.
        for (own, channel) in self.channels.iter().enumerate() {
            for name in channel.requests.iter().flat_map(|requests| &requests.with) {
                let Some(at) = ends.iter().position(|(known, ..)| known == name) else { continue };
                let (from, to) = (groups[at], groups[own]);
                groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
        // The key is that of the channel whose name is least, so that the order in the policy does not count;
        // a query has a channel in its group, whose key counts.
        let key = |group: usize| {
            let members = (0..ends.len()).filter(|at| groups[*at] == group);
            let first = members.min_by_key(|at| (*at >= self.channels.len(), ends[*at].0));
            let (_, vip, port) = ends[first.unwrap_or(group)];
            PlacementKey::of_address((vip, port).into())
        };
        let mut keys: HashMap<String, PlacementKey> =
            ends.iter().zip(&groups).map(|((name, ..), group)| ((*name).to_owned(), key(*group))).collect();
        for (at, place) in self.requested_channels() {
            keys.insert(place.name, key(groups[at]));
        }
        keys
    }
}
