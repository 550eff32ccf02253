//! Up to where outlets of events have sent them: written by the management node that leads, read by its
//! successor.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use crate::client::EtcdClient;
use crate::error::ControlError;
use crate::keys;

impl EtcdClient {
    /// Returns the cursor up to which the outlet of this name has sent events; `None` if it has never sent
    /// any.
    pub async fn outlet_place(&self, name: &str) -> Result<Option<String>, ControlError> {
        let response = self.get(&keys::event_outlet(name), None).await?;
        Ok(response.kvs().first().map(|pair| String::from_utf8_lossy(pair.value()).into_owned()))
    }

    /// Writes it, if the leader's key still has the create revision `fence`. Returns whether it has.
    pub async fn set_outlet_place(
        &self,
        name: &str,
        cursor: String,
        fence: i64,
    ) -> Result<bool, ControlError> {
        let leads = Compare::create_revision(keys::LEADER, CompareOp::Equal, fence);
        let put = TxnOp::put(keys::event_outlet(name), cursor, None);
        Ok(self.txn(Txn::new().when([leads]).and_then([put])).await?.succeeded())
    }
}
