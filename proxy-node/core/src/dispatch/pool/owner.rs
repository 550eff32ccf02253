//! Ownership of ports. While any process listens at (node, port), processes of other users may not listen
//! there, unless they hold the kernel's socket of that port, or the policy lets both users share it.

use csp_types::NodeId;

use super::{Member, MemberId, Pools};
use crate::dispatch::services::ServerHost;

/// The user on whose behalf a process listens, and its rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The user; `None` if the process has none, as in the simulation.
    pub uid: Option<u32>,
    /// The process may listen at another user's port: it holds a kernel socket bound to the port, or is root.
    pub joins: bool,
    /// The process shares the port with other users whose claim is shared as well.
    pub shared: bool,
}

impl Member {
    /// Returns whether a process with this claim may listen here too.
    fn admits(&self, claim: &Claim) -> bool {
        let owner = self.owner.filter(|_| self.listeners > 0);
        owner.is_none_or(|owner| owner.uid == claim.uid || claim.joins || (owner.shared && claim.shared))
    }
}

impl Pools {
    /// Returns whether a process with this claim may listen at (`node`, `port`).
    pub fn admits(&self, node: NodeId, port: u16, claim: &Claim) -> bool {
        let member = self.by_address.get(&(ServerHost::Node(node), port)).and_then(|id| self.get(*id));
        member.is_none_or(|member| member.admits(claim))
    }

    /// Records that a process with this claim listens at the member. The first one owns the port until no
    /// process listens.
    pub fn claim(&mut self, member: MemberId, claim: Claim) {
        if let Some(member) = self.get_mut(member).filter(|member| member.listeners == 1) {
            member.owner = Some(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use csp_types::Instant;

    use super::*;
    use crate::ChannelId;

    fn any(port: u16) -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0], port))
    }

    fn user(uid: u32) -> Claim {
        Claim { uid: Some(uid), joins: false, shared: false }
    }

    #[test]
    fn a_port_is_one_user_s_while_somebody_listens() {
        let (mut pools, node) = (Pools::new(), "an-1".parse().unwrap());
        let member = pools.listen(node, any(80), ChannelId(1), 1).unwrap();
        pools.claim(member, user(33));
        for (claim, admitted) in [
            (user(33), true),
            (user(65534), false),
            (Claim { uid: None, ..user(0) }, false),
            (Claim { shared: true, ..user(65534) }, false),
            (Claim { joins: true, ..user(65534) }, true),
        ] {
            assert_eq!(pools.admits(node, 80, &claim), admitted, "{claim:?}");
        }
        assert!(pools.admits(node, 81, &user(65534)), "another port");
        assert!(pools.admits("an-2".parse().unwrap(), 80, &user(65534)), "another node");
        // A process that joined keeps the port for the owner.
        let joined = pools.listen(node, any(80), ChannelId(2), 1).unwrap();
        pools.claim(joined, Claim { joins: true, ..user(65534) });
        pools.remove_channel(Instant::ZERO, ChannelId(1));
        assert!(pools.admits(node, 80, &user(33)) && !pools.admits(node, 80, &user(65534)));
        pools.remove_channel(Instant::ZERO, ChannelId(2));
        assert!(pools.admits(node, 80, &user(65534)), "no process listens any more");
    }

    #[test]
    fn users_who_share_a_port_listen_there_together() {
        let (mut pools, node) = (Pools::new(), "an-1".parse().unwrap());
        let member = pools.listen(node, any(80), ChannelId(1), 1).unwrap();
        pools.claim(member, Claim { shared: true, ..user(33) });
        assert!(
            pools.admits(node, 80, &Claim { shared: true, ..user(34) }) && !pools.admits(node, 80, &user(34))
        );
    }
}
