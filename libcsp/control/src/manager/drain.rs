//! Draining nodes, and taking them back into service.

use csp_types::NodeId;
use etcd_client::TxnOp;

use super::{ManagerError, PolicyManager, json};
use crate::drain::DrainRecord;
use crate::keys;
use crate::registry::unix_now_ms;

impl PolicyManager {
    /// Requests that `node` drains (`true`) or serves again (`false`). Idempotent. The node follows within
    /// milliseconds and then shows `draining` in its registration.
    pub async fn set_draining(&self, node: &NodeId, draining: bool) -> Result<(), ManagerError> {
        let key = keys::drain(node);
        let change = match draining {
            true => TxnOp::put(key, json(&DrainRecord { since_unix_ms: unix_now_ms() }), None),
            false => TxnOp::delete(key, None),
        };
        self.fenced_txn([change]).await
    }
}
