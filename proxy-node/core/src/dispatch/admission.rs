//! Rights of processes: the grants that their agents have signed, as contained in their tokens.

use std::net::SocketAddr;

use csp_types::{Grant, NodeId};

use super::pool::{Claim, Pools};
use crate::reason;

/// A process with a channel to this worker.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its node.
    pub node: NodeId,
    /// Its name on that node.
    pub name: String,
    /// The user that it runs as; `None` for connections of the agent itself.
    pub uid: Option<u32>,
    /// The addresses at which it may listen, and to which it may connect.
    pub grant: Grant,
}

/// The superuser. It may listen anywhere, also beside other users, and open as many connections as there is
/// room for.
pub(super) const ROOT: u32 = 0;

impl Process {
    /// Returns the claim by which the process may listen on `port`; else the reason code of REFUSED.
    pub(super) fn may_listen(&self, port: u16, pools: &Pools) -> Result<Claim, u32> {
        let held = self.grant.holders(port).map(Some);
        let own = self.grant.listens(port).then_some(self.uid);
        let (joins, shared) = (self.uid == Some(ROOT), self.grant.is_shared());
        let mut claims = held.chain(own).map(|uid| Claim { uid, joins, shared }).peekable();
        if claims.peek().is_none() {
            return Err(reason::PERMISSION_DENIED);
        }
        claims.find(|claim| pools.admits(self.node, port, claim)).ok_or(reason::ADDRESS_IN_USE)
    }

    /// Checks that the process may connect to `remote`; else returns the reason code of REFUSED.
    pub(super) fn may_connect(&self, remote: SocketAddr) -> Result<(), u32> {
        match self.grant.connects(remote.ip(), remote.port()) {
            true => Ok(()),
            false => Err(reason::PERMISSION_DENIED),
        }
    }
}

#[cfg(test)]
mod tests {
    use csp_types::grant::{Held, Ports, Target};

    use super::*;
    use crate::ChannelId;

    fn process(uid: u32, grant: Grant) -> Process {
        Process { node: "an-1".parse().unwrap(), name: "p".to_owned(), uid: Some(uid), grant }
    }

    #[test]
    fn a_process_listens_where_its_grant_says_and_no_other_user_listens() {
        let own = Grant::new([Ports::UNPRIVILEGED], []);
        let mut pools = Pools::new();
        let owner = process(1000, own);
        for port in [8080, 9090] {
            let claim = owner.may_listen(port, &pools).unwrap();
            let member = pools
                .listen(owner.node, SocketAddr::from(([0, 0, 0, 0], port)), ChannelId(port.into()), 1)
                .unwrap();
            pools.claim(member, claim);
        }
        let inherited = Held { port: 8080, uid: 1000 };
        for (uid, grant, port, expected) in [
            (1000, own, 8080, Ok(Some(1000))),
            (1000, own, 80, Err(reason::PERMISSION_DENIED)),
            (65534, own, 8080, Err(reason::ADDRESS_IN_USE)),
            (65534, own, 8081, Ok(Some(65534))),
            (65534, Grant::NONE, 8081, Err(reason::PERMISSION_DENIED)),
            // A process that inherited the listener, and one with a socket of its own at another address.
            (65534, own.holding([inherited]), 8080, Ok(Some(1000))),
            (65534, own.holding([inherited]), 9090, Err(reason::ADDRESS_IN_USE)),
            (65534, own.holding([Held { uid: 65534, ..inherited }]), 8080, Err(reason::ADDRESS_IN_USE)),
            (65534, Grant::NONE.holding([Held { port: 80, uid: 0 }]), 80, Ok(Some(0))),
            (0, Grant::all(), 8080, Ok(Some(0))),
        ] {
            let found = process(uid, grant).may_listen(port, &pools).map(|claim| claim.uid);
            assert_eq!(found, expected, "user {uid} on port {port} with {grant:?}");
        }
    }

    #[test]
    fn a_process_connects_where_its_grant_says() {
        let to = Target { network: "10.0.0.0/8".parse().unwrap(), ports: Ports { first: 443, last: 443 } };
        let process = process(33, Grant::new([], [to]));
        assert_eq!(process.may_connect("10.1.2.3:443".parse().unwrap()), Ok(()));
        for denied in ["10.1.2.3:80", "192.0.2.1:443", "[2001:db8::1]:443"] {
            assert_eq!(process.may_connect(denied.parse().unwrap()), Err(reason::PERMISSION_DENIED));
        }
    }
}
