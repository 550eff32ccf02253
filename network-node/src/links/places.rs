//! Where tunnels are in the list of a worker, found in constant time by what a record or a link event names.

use csp_transport::LinkId;
use csp_types::limits::PROXY_WORKERS_MAX;

use crate::core::ProxyId;

/// No place: no list is that long.
const NONE: u32 = u32::MAX;

/// Places of tunnels, by the proxy worker at their other end and by their link. Set anew when the list changes. A place
/// is a hint: the caller checks it against the list.
pub(super) struct Places {
    /// By proxy and its worker, [`PROXY_WORKERS_MAX`] for each proxy.
    workers: Box<[u32]>,
    /// By endpoint, then by the link's slot in it. Grows when a link is dialled.
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

    /// Records where the tunnel to a proxy's worker is. The first of two tunnels to one worker counts.
    pub(super) fn set_worker(&mut self, proxy: ProxyId, worker: u8, at: usize) {
        if let Some(place) = self.workers.get_mut(of_worker(proxy, worker)).filter(|place| **place == NONE) {
            *place = at as u32;
        }
    }

    /// Records where the tunnel of a link is.
    pub(super) fn set_link(&mut self, endpoint: usize, link: LinkId, at: usize) {
        let Some(links) = self.links.get_mut(endpoint) else { return };
        if links.len() <= link.index() {
            links.resize(link.index() + 1, NONE);
        }
        links[link.index()] = at as u32;
    }

    /// Returns where the tunnel to a proxy's worker may be.
    pub(super) fn of_worker(&self, proxy: ProxyId, worker: u8) -> Option<usize> {
        self.workers.get(of_worker(proxy, worker)).map(|place| *place as usize)
    }

    /// Returns where the tunnel of a link may be.
    pub(super) fn of_link(&self, endpoint: usize, link: LinkId) -> Option<usize> {
        self.links.get(endpoint)?.get(link.index()).map(|place| *place as usize)
    }
}
