//! The reachable proxies, and the selection of a proxy worker for a new flow: by Maglev's table, or for
//! message channels their owner.

use csp_classify::{ChannelIndex, Maglev};
use csp_types::{FourTuple, NodeId, Owner, PlacementKey, owner_of};

use super::api::ProxyId;
use super::flow_table::tuple_hash;

/// Equal on every network node, so that all make the same choice and a flow that moves between network nodes
/// keeps its proxy.
const CHOICE_KEY: (u64, u64) = (0x6373_7020_6e6e, 0x6368_6f69_6365);
const WORKERS_MAX: usize = csp_types::limits::PROXY_WORKERS_MAX;

struct Slot {
    node: Option<NodeId>,
    /// [`NodeId::tag`] of the node, kept while the node is down.
    tag: u16,
    up: [bool; WORKERS_MAX],
    /// Whether none of its workers is chosen for new flows.
    draining: bool,
}

pub(super) struct Proxies {
    slots: Vec<Slot>,
    order: Vec<u16>,
    /// Every worker that is up, those of draining proxies first.
    up: Vec<(ProxyId, u8)>,
    table: Maglev<(ProxyId, u8)>,
    /// The worker that new flows go to instead of the table's choice, and its place while it takes any.
    own: Option<(NodeId, u8)>,
    own_place: Option<(ProxyId, u8)>,
    /// Addresses of channels, each with the worker that owns them.
    channels: Vec<(PlacementKey, Option<(ProxyId, u8)>)>,
    /// Counts changes of the order in which workers are asked.
    generation: u16,
}

impl Proxies {
    pub(super) fn new(proxies_max: usize, own: Option<(NodeId, u8)>) -> Self {
        let proxies_max = proxies_max.min(usize::from(u16::MAX));
        Proxies {
            slots: (0..proxies_max)
                .map(|_| Slot { node: None, tag: 0, up: [false; WORKERS_MAX], draining: false })
                .collect(),
            order: Vec::with_capacity(proxies_max),
            up: Vec::new(),
            table: Maglev::new(),
            own,
            own_place: None,
            channels: Vec::new(),
            generation: 0,
        }
    }

    /// Returns the node in this slot, if it has a worker that is up.
    pub(super) fn node(&self, proxy: ProxyId) -> Option<NodeId> {
        self.slots.get(usize::from(proxy.0)).and_then(|s| s.node)
    }

    /// Returns the tag of the node that is or was the last in this slot; 0 if there was none.
    pub(super) fn tag(&self, proxy: ProxyId) -> u16 {
        self.slots.get(usize::from(proxy.0)).map_or(0, |s| s.tag)
    }

    pub(super) fn set_up(&mut self, proxy: ProxyId, node: NodeId, worker: u8) {
        if let Some(slot) = self.slots.get_mut(usize::from(proxy.0)) {
            (slot.node, slot.tag) = (Some(node), node.tag());
            slot.up[usize::from(worker)] = true;
            self.rebuild();
        }
    }

    pub(super) fn set_down(&mut self, proxy: ProxyId, worker: u8) {
        if let Some(slot) = self.slots.get_mut(usize::from(proxy.0)) {
            slot.up[usize::from(worker)] = false;
            if !slot.up.contains(&true) {
                slot.node = None;
            }
            self.rebuild();
        }
    }

    pub(super) fn set_draining(&mut self, proxy: ProxyId, draining: bool) {
        if let Some(slot) = self.slots.get_mut(usize::from(proxy.0))
            && std::mem::replace(&mut slot.draining, draining) != draining
        {
            self.rebuild();
        }
    }

    pub(super) fn is_up(&self, proxy: ProxyId, worker: u8) -> bool {
        self.slots.get(usize::from(proxy.0)).is_some_and(|s| s.up[usize::from(worker)])
    }

    /// Replaces the addresses of channels; [`ChannelIndex`] is the position in this list.
    pub(super) fn set_channels(&mut self, keys: impl Iterator<Item = PlacementKey>) {
        self.channels.clear();
        self.channels.extend(keys.map(|key| (key, None)));
        self.place_channels();
    }

    /// Chooses the proxy worker for a new flow: the owner of the channel if the flow is for one, else the
    /// node's own while it takes flows, else by Maglev's table.
    pub(super) fn choose(&self, tuple: &FourTuple, channel: Option<ChannelIndex>) -> Option<(ProxyId, u8)> {
        match channel {
            Some(channel) => self.channels.get(usize::from(channel.0))?.1,
            None => self.own_place.or_else(|| self.table.choose(tuple_hash(tuple, CHOICE_KEY))),
        }
    }

    /// Returns the proxy worker to ask after `n` others when the proxy of a connection is searched for. The
    /// first is the worker that a new flow would go to. All other workers that are up follow, those of
    /// draining proxies first.
    pub(super) fn candidate(
        &self,
        tuple: &FourTuple,
        channel: Option<ChannelIndex>,
        n: u16,
    ) -> Option<(ProxyId, u8)> {
        let first = self.choose(tuple, channel);
        let others = self.up.iter().copied().filter(|worker| Some(*worker) != first);
        first.into_iter().chain(others).nth(n.into())
    }

    /// Returns a number that is another one after each change of [`Self::candidate`]'s order.
    pub(super) const fn generation(&self) -> u16 {
        self.generation
    }

    fn rebuild(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        let Proxies { slots, order, up, table, .. } = self;
        up.clear();
        for draining in [true, false] {
            for (at, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.draining == draining) {
                let workers = (0..=u8::MAX).filter(|worker| slot.up[usize::from(*worker)]);
                up.extend(workers.map(|worker| (ProxyId(at as u16), worker)));
            }
        }
        order.clear();
        let chosen = |slot: &Slot| slot.node.is_some() && !slot.draining;
        order.extend((0..slots.len() as u16).filter(|at| chosen(&slots[usize::from(*at)])));
        // Ordered by name, which is the same on every network node, unlike the order of slots.
        order.sort_unstable_by_key(|at| slots[usize::from(*at)].node);
        let workers = order.iter().flat_map(|at| {
            let slot = &slots[usize::from(*at)];
            let up = (0..=u8::MAX).filter(|worker| slot.up[usize::from(*worker)]);
            let name = slot.node.as_ref().map_or("", NodeId::as_str).as_bytes();
            up.map(move |worker| (name, worker, (ProxyId(*at), worker)))
        });
        table.rebuild(workers);
        self.own_place = self.own.and_then(|(node, worker)| {
            let takes =
                |slot: &Slot| slot.node == Some(node) && slot.up[usize::from(worker)] && !slot.draining;
            Some((ProxyId(self.slots.iter().position(takes)? as u16), worker))
        });
        self.place_channels();
    }

    /// Determines the owners of channels among the workers that accept new flows.
    fn place_channels(&mut self) {
        let Proxies { slots, up, channels, .. } = self;
        let open = up.iter().filter_map(|(proxy, worker)| {
            let slot = slots.get(usize::from(proxy.0)).filter(|slot| !slot.draining)?;
            Some(Owner { proxy: slot.node?, worker: *worker })
        });
        for (key, place) in channels {
            *place = owner_of(*key, open.clone()).and_then(|owner| {
                let at = slots.iter().position(|slot| slot.node == Some(owner.proxy))?;
                Some((ProxyId(at as u16), owner.worker))
            });
        }
    }
}
