//! Finds a tunnel in the list of a worker in constant time, by its proxy worker or by its link.

use csp_transport::LinkId;
use csp_types::limits::PROXY_WORKERS_MAX;

use crate::core::ProxyId;

/// No index: lists are never that long.
const NONE: u32 = u32::MAX;

/// Indices of tunnels, by the proxy worker at their other end and by their link. Rebuilt when the list
/// changes. An index is a hint, which the caller checks against the list.
pub(super) struct Places {
    /// Indexed by proxy and worker, [`PROXY_WORKERS_MAX`] entries for each proxy.
    workers: Box<[u32]>,
    /// Indexed by endpoint and the link's slot in it. Grows when a link is dialled.
    links: Vec<Vec<u32>>,
}

fn of_worker(proxy: ProxyId, worker: u8) -> usize {
    usize::from(proxy.0) * PROXY_WORKERS_MAX + usize::from(worker)
}

impl Places {
    pub(super) fn new(proxies_max: usize, endpoints: usize) -> Self {
        let workers = vec![NONE; proxies_max * PROXY_WORKERS_MAX].into_boxed_slice();
        Places { workers, links: vec![Vec::new(); endpoints] }
    }

    pub(super) fn clear(&mut self) {
        self.workers.fill(NONE);
        self.links.iter_mut().for_each(|links| links.fill(NONE));
    }

    /// Records the index of the tunnel to a proxy's worker. Of two tunnels to one worker the first is kept.
    pub(super) fn set_worker(&mut self, proxy: ProxyId, worker: u8, at: usize) {
        if let Some(place) = self.workers.get_mut(of_worker(proxy, worker)).filter(|place| **place == NONE) {
            *place = at as u32;
        }
    }

    /// Records the index of the tunnel of a link.
    pub(super) fn set_link(&mut self, endpoint: usize, link: LinkId, at: usize) {
        let Some(links) = self.links.get_mut(endpoint) else { return };
        if links.len() <= link.index() {
            links.resize(link.index() + 1, NONE);
        }
        links[link.index()] = at as u32;
    }

    /// Returns the possible index of the tunnel to a proxy's worker.
    pub(super) fn of_worker(&self, proxy: ProxyId, worker: u8) -> Option<usize> {
        self.workers.get(of_worker(proxy, worker)).map(|place| *place as usize)
    }

    /// Returns the possible index of the tunnel of a link.
    pub(super) fn of_link(&self, endpoint: usize, link: LinkId) -> Option<usize> {
        self.links.get(endpoint)?.get(link.index()).map(|place| *place as usize)
    }
}
