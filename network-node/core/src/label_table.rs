//! Maps a proxy's labels to flows: one array for each proxy, indexed by the label's index.
//!
//! The arrays cover the whole index space, so that any label that a proxy assigns has an entry. The kernel
//! allocates memory only for pages that are touched. The generation is compared with that of the flow, which
//! stores the whole label.

use csp_types::{FlowLabel, INDEX_BITS};

use super::api::ProxyId;
use super::flow_table::FlowIndex;

const LABELS_PER_PROXY: usize = 1 << INDEX_BITS;

pub(super) struct LabelTable {
    /// One array for each proxy. An entry is a flow's index plus 1, or 0 if the label is not bound.
    proxies: Vec<Box<[u32]>>,
    bound: usize,
}

impl LabelTable {
    pub(super) fn new(proxies_max: usize) -> Self {
        LabelTable { proxies: (0..proxies_max).map(|_| Box::default()).collect(), bound: 0 }
    }

    /// Allocates the array of a proxy whose slot is used for the first time.
    pub(super) fn prepare(&mut self, proxy: ProxyId) {
        if let Some(table) = self.proxies.get_mut(usize::from(proxy.0))
            && table.is_empty()
        {
            *table = vec![0; LABELS_PER_PROXY].into_boxed_slice();
        }
    }

    pub(super) fn get(&self, proxy: ProxyId, label: FlowLabel) -> Option<FlowIndex> {
        let entry = *self.proxies.get(usize::from(proxy.0))?.get(label.index())?;
        entry.checked_sub(1).map(FlowIndex)
    }

    /// Binds the label's slot to `flow`. Returns the flow that it was bound to before, whose label is now
    /// invalid.
    pub(super) fn set(&mut self, proxy: ProxyId, label: FlowLabel, flow: FlowIndex) -> Option<FlowIndex> {
        let entry = self.proxies.get_mut(usize::from(proxy.0))?.get_mut(label.index())?;
        let before = std::mem::replace(entry, flow.0 + 1);
        self.bound += usize::from(before == 0);
        before.checked_sub(1).map(FlowIndex)
    }

    /// Releases the label's slot if it is bound to `flow`.
    pub(super) fn clear(&mut self, proxy: ProxyId, label: FlowLabel, flow: FlowIndex) {
        let table = self.proxies.get_mut(usize::from(proxy.0));
        if let Some(entry) = table.and_then(|t| t.get_mut(label.index()))
            && *entry == flow.0 + 1
        {
            *entry = 0;
            self.bound -= 1;
        }
    }

    /// Returns the number of bound labels.
    pub(super) fn len(&self) -> usize {
        self.bound
    }
}
