//! Workers of network nodes and their tunnels, found in constant time by what the TCP engine stores and by
//! the link of a message.

use csp_transport::{LinkId, TunnelBatch};
use csp_types::NodeId;

/// Bits of a `via` that hold the slot; the others number the workers that were ever added, from 1.
const SLOT_BITS: u32 = 10;
/// Largest number of workers of network nodes, those included whose tunnel is down.
const NETWORK_WORKERS_MAX: usize = 1 << SLOT_BITS;
/// No `via`: the first number is 1.
const NONE: u32 = 0;

/// A worker of a network node, with the number that the TCP engine stores (`via`; never reused). It outlives
/// its tunnel: the LAN delivers a client's segments to the same worker before and after a loss.
#[derive(Debug)]
pub(super) struct NetworkWorker {
    pub(super) via: u32,
    pub(super) node: NodeId,
    /// The worker's number in its node.
    pub(super) worker: u8,
    /// `None` while the tunnel is down.
    pub(super) tunnel: Option<Tunnel>,
}

#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) endpoint: usize,
    pub(super) link: LinkId,
    pub(super) batch: TunnelBatch,
    /// The network node's worker runs in this worker's thread.
    pub(super) adjacent: bool,
}

impl NetworkWorker {
    pub(super) fn is_up(&self) -> bool {
        self.tunnel.is_some()
    }

    fn has(&self, endpoint: usize, link: LinkId) -> bool {
        self.tunnel.as_ref().is_some_and(|t| (t.endpoint, t.link) == (endpoint, link))
    }
}

/// The workers of network nodes. Grows when one is added or connects.
#[derive(Debug)]
pub(super) struct NetworkWorkers {
    slots: Vec<Option<NetworkWorker>>,
    added: u32,
    /// `via` by endpoint, then by the link's slot in it. A hint: the worker's tunnel may have another link by
    /// now.
    links: Vec<Vec<u32>>,
}

impl NetworkWorkers {
    pub(super) fn new(endpoints: usize) -> Self {
        NetworkWorkers { slots: Vec::new(), added: 0, links: vec![Vec::new(); endpoints] }
    }

    /// Sets the tunnel of a network node's worker. Returns the worker's `via` and the tunnel that it had
    /// before; `None` if the worker is new and [`NETWORK_WORKERS_MAX`] others are known.
    pub(super) fn connect(
        &mut self,
        node: NodeId,
        worker: u8,
        tunnel: Tunnel,
    ) -> Option<(u32, Option<Tunnel>)> {
        let (endpoint, link) = (tunnel.endpoint, tunnel.link);
        let known = self.slots.iter_mut().flatten().find(|w| (w.node, w.worker) == (node, worker));
        let (via, before) = match known {
            Some(known) => (known.via, known.tunnel.replace(tunnel)),
            None => (self.add(node, worker, tunnel)?, None),
        };
        let links = self.links.get_mut(endpoint)?;
        if links.len() <= link.index() {
            links.resize(link.index() + 1, NONE);
        }
        links[link.index()] = via;
        Some((via, before))
    }

    fn add(&mut self, node: NodeId, worker: u8, tunnel: Tunnel) -> Option<u32> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        if slot == NETWORK_WORKERS_MAX {
            return None;
        }
        // Numbers repeat after 4 million additions, when no connection can be left of the first.
        self.added = self.added % (u32::MAX >> SLOT_BITS) + 1;
        let via = self.added << SLOT_BITS | slot as u32;
        let new = Some(NetworkWorker { via, node, worker, tunnel: Some(tunnel) });
        match free {
            Some(slot) => self.slots[slot] = new,
            None => self.slots.push(new),
        }
        Some(via)
    }

    /// Forgets a worker.
    pub(super) fn remove(&mut self, via: u32) {
        if let Some(slot) = self.slots.get_mut(slot(via)) {
            slot.take_if(|w| w.via == via);
        }
    }

    pub(super) fn get(&self, via: u32) -> Option<&NetworkWorker> {
        self.slots.get(slot(via))?.as_ref().filter(|w| w.via == via)
    }

    pub(super) fn get_mut(&mut self, via: u32) -> Option<&mut NetworkWorker> {
        self.slots.get_mut(slot(via))?.as_mut().filter(|w| w.via == via)
    }

    /// Returns the `via` of the worker whose tunnel has this link.
    pub(super) fn of_link(&self, endpoint: usize, link: LinkId) -> Option<u32> {
        let via = *self.links.get(endpoint)?.get(link.index())?;
        self.get(via).filter(|w| w.has(endpoint, link)).map(|w| w.via)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NetworkWorker> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NetworkWorker> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn tunnels_mut(&mut self) -> impl Iterator<Item = &mut Tunnel> {
        self.slots.iter_mut().flatten().filter_map(|w| w.tunnel.as_mut())
    }
}

fn slot(via: u32) -> usize {
    via as usize & (NETWORK_WORKERS_MAX - 1)
}
