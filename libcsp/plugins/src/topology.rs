//! Detection of cycles among connections.

use std::collections::{BTreeMap, BTreeSet};

use csp_classify::multifield::InstanceId;

use crate::command::Port;

/// Connections of outputs.
pub(crate) type Connections = BTreeMap<Port, InstanceId>;

/// Returns the path of connections from `from` to `to`, both included; `None` if there is none.
pub(crate) fn path(connections: &Connections, from: InstanceId, to: InstanceId) -> Option<Vec<InstanceId>> {
    let mut before: BTreeMap<InstanceId, InstanceId> = BTreeMap::new();
    let mut seen = BTreeSet::from([from]);
    let mut waiting = vec![from];
    while let Some(at) = waiting.pop() {
        if at == to {
            let mut path: Vec<InstanceId> =
                core::iter::successors(Some(to), |at| before.get(at).copied()).collect();
            path.reverse();
            return Some(path);
        }
        let outputs = Port { instance: at, output: 0 }..=Port { instance: at, output: u8::MAX };
        for (_, &next) in connections.range(outputs) {
            if seen.insert(next) {
                before.insert(next, at);
                waiting.push(next);
            }
        }
    }
    None
}
