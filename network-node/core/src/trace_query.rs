//! Trace queries: the recorded events of one flow, including those before its label was bound and after it
//! ended.

use std::collections::BTreeMap;

use csp_types::{FlowLabel, TraceEvent, TraceKind};

use super::node::NetworkCore;

/// Mask of SYN and ACK: a SYN without ACK opens another connection with the same 4-tuple (RFC 9293 §3.1: ACK
/// 0x10, SYN 0x02).
const SYN_ACK_MASK: u8 = 0x12;
const SYN: u8 = 0x02;

impl NetworkCore {
    /// Returns the events of the last flow that had `label`, oldest first; for each proxy, since labels of
    /// different proxies may be equal. Includes events of its tuple that have no label (the SYN, the last
    /// ACK), with label and proxy filled in. Allocates: not for the data path.
    pub fn flow_trace(&self, label: FlowLabel) -> Vec<TraceEvent> {
        let bound = self.trace.iter().filter(|e| e.kind == TraceKind::LabelBound && e.label == label);
        let last: BTreeMap<u16, u32> = bound.map(|e| (e.proxy, e.aux)).collect();
        if last.is_empty() {
            return self.trace.iter().filter(|e| e.label == label).copied().collect();
        }
        let mut events: Vec<TraceEvent> =
            last.into_iter().flat_map(|(proxy, hash)| self.trace_of(label, proxy, hash)).collect();
        events.sort_by_key(|e| e.at);
        events
    }

    /// Returns the events of the flow to which `proxy` assigned `label` last; `hash` is that of its tuple.
    fn trace_of(&self, label: FlowLabel, proxy: u16, hash: u32) -> Vec<TraceEvent> {
        let (mut before, mut events) = (Vec::new(), Vec::new());
        // The flow that an event without a label belongs to: the one bound last, until a SYN begins another.
        let mut current = None;
        for event in self.trace.iter().filter(|e| e.aux == hash) {
            if event.kind == TraceKind::LabelBound {
                current = Some((event.proxy, event.label));
                if current == Some((proxy, label)) {
                    // An earlier flow of the same tuple may have had the same label; only the last one is
                    // returned.
                    events.clear();
                    events.append(&mut before);
                }
                before.clear();
            }
            if event.label.is_none() && event.tcp_flags & SYN_ACK_MASK == SYN {
                current = None;
            }
            match current {
                None => before.push(*event),
                Some(owner) if owner == (proxy, label) => events.push(*event),
                Some(_) => {}
            }
        }
        events.iter_mut().for_each(|e| (e.label, e.proxy) = (label, proxy));
        events
    }
}
