//! Where tunnels are in the list of a worker, found in constant time by what a record or a link event names.

use csp_transport::LinkId;

use crate::core::ProxyId;

/// A place that is not taken.
const NONE: u32 = u32::MAX;

/// Places of tunnels, by the proxy worker at their other end and by their link. Rebuilt when the list changes; grows
/// only then, and when a link is dialled.
pub(super) struct Places {
    /// By proxy, then by its worker.
    workers: Vec<Vec<u32>>,
    /// By endpoint, then by the link's slot in it. A slot may be taken by a later link: the tunnel has the last word.
    links: Vec<Vec<u32>>,
}

impl Places {
    pub(super) fn new(proxies_max: usize, endpoints: usize) -> Self {
        Places { workers: vec![Vec::new(); proxies_max], links: vec![Vec::new(); endpoints] }
    }

    pub(super) fn clear(&mut self) {
        self.workers.iter_mut().chain(&mut self.links).for_each(|places| places.fill(NONE));
    }

    /// Records where the tunnel to a proxy's worker is. The first of two tunnels to one worker counts.
    pub(super) fn set_worker(&mut self, proxy: ProxyId, worker: u8, at: usize) {
        let Some(workers) = self.workers.get_mut(usize::from(proxy.0)) else { return };
        let place = place_mut(workers, worker.into());
        if *place == NONE {
            *place = at as u32;
        }
    }

    /// Records where the tunnel of a link is.
    pub(super) fn set_link(&mut self, endpoint: usize, link: LinkId, at: usize) {
        if let Some(links) = self.links.get_mut(endpoint) {
            *place_mut(links, link.index()) = at as u32;
        }
    }

    pub(super) fn of_worker(&self, proxy: ProxyId, worker: u8) -> Option<usize> {
        place(self.workers.get(usize::from(proxy.0))?, worker.into())
    }

    pub(super) fn of_link(&self, endpoint: usize, link: LinkId) -> Option<usize> {
        place(self.links.get(endpoint)?, link.index())
    }
}

fn place(places: &[u32], at: usize) -> Option<usize> {
    places.get(at).filter(|place| **place != NONE).map(|place| *place as usize)
}

fn place_mut(places: &mut Vec<u32>, at: usize) -> &mut u32 {
    if places.len() <= at {
        places.resize(at + 1, NONE);
    }
    &mut places[at]
}
