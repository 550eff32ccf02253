//! Draining: taking a node out of service without losing connections.
//!
//! ```text
//!  manager ─put/delete─▶ /csp/v1/drain/<node> ─watch─▶ the node ─▶ `draining` in its registration
//!                                                                     │ membership
//!                                       network nodes, proxy nodes ◀──┘ choose others for new connections
//! ```
//! The key is the desired state and outlives the daemon: a node that restarts while it drains goes on
//! draining. The node alone writes its registration, which thereby acknowledges the request.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::follow::{Entry, Follower, KeyChange};

/// The value of a drain key, for people to read. Only the existence of the key matters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct DrainRecord {
    /// When draining was requested, in milliseconds of the Unix epoch.
    pub(crate) since_unix_ms: u64,
}

/// Follows the drain key of one node. The state is unknown (`None`) until etcd has answered, and is kept
/// while etcd is unreachable.
pub(crate) struct DrainFollower {
    key: String,
    sender: watch::Sender<Option<bool>>,
}

impl DrainFollower {
    pub(crate) fn new(key: String) -> (Self, watch::Receiver<Option<bool>>) {
        let (sender, receiver) = watch::channel(None);
        (DrainFollower { key, sender }, receiver)
    }

    fn set(&self, draining: bool) {
        self.sender.send_if_modified(|known| known.replace(draining) != Some(draining));
    }
}

impl Follower for DrainFollower {
    fn reset(&mut self, _: i64, entries: Vec<Entry>) {
        // The prefix also matches nodes whose names begin with this one's.
        self.set(entries.iter().any(|(key, _)| *key == self.key));
    }

    fn change(&mut self, _: i64, changes: Vec<KeyChange>) {
        for change in changes {
            match change {
                KeyChange::Put((key, _)) if key == self.key => self.set(true),
                KeyChange::Delete(key) if key == self.key => self.set(false),
                _ => {}
            }
        }
    }

    fn lost(&mut self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nodes_own_key_counts() {
        let (mut follower, draining) = DrainFollower::new("/csp/v1/drain/pn-1".to_owned());
        let entry = |key: &str| (key.to_owned(), Vec::new());
        assert_eq!(*draining.borrow(), None);
        follower.reset(1, vec![entry("/csp/v1/drain/pn-10")]);
        assert_eq!(*draining.borrow(), Some(false));
        follower.change(2, vec![KeyChange::Put(entry("/csp/v1/drain/pn-1"))]);
        follower.change(3, vec![KeyChange::Delete("/csp/v1/drain/pn-10".to_owned())]);
        follower.lost("etcd is away");
        assert_eq!(*draining.borrow(), Some(true));
        follower.change(4, vec![KeyChange::Delete("/csp/v1/drain/pn-1".to_owned())]);
        assert_eq!(*draining.borrow(), Some(false));
    }
}
