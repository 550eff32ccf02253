//! Finds a forwarding by the id of one of its VIs.

use csp_vi::ViId;

/// A sorted list: there are few VIs, and the path of messages needs neither hashing nor allocation.
#[derive(Debug)]
pub(super) struct Index(Vec<(ViId, u32)>);

impl Index {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Index(Vec::with_capacity(capacity))
    }

    pub(super) fn insert(&mut self, vi: ViId, at: u32) {
        let place = self.0.partition_point(|&(known, _)| known < vi);
        self.0.insert(place, (vi, at));
    }

    pub(super) fn remove(&mut self, vi: ViId) {
        if let Ok(place) = self.0.binary_search_by_key(&vi, |&(known, _)| known) {
            self.0.remove(place);
        }
    }

    pub(super) fn find(&self, vi: ViId) -> Option<u32> {
        let place = self.0.binary_search_by_key(&vi, |&(known, _)| known).ok()?;
        self.0.get(place).map(|&(_, at)| at)
    }
}
