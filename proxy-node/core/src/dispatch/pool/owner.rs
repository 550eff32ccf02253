//! Whose a port is. While any process listens at (node, port), processes of other users may not, unless they hold the
//! kernel's socket of that port, or the policy has both sides share it.

use csp_types::NodeId;

use super::{Member, MemberId, Pools};

/// In whose name a process listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The user; `None` where the process has none, as in the simulation.
    pub uid: Option<u32>,
    /// It may listen where another user does: it holds a kernel socket that is bound there, or is root.
    pub joins: bool,
    /// It shares the port with users who share it as well.
    pub shared: bool,
}

impl Member {
    /// Whether a process with this claim may listen here too.
    fn admits(&self, claim: &Claim) -> bool {
        let owner = self.owner.filter(|_| self.listeners > 0);
        owner.is_none_or(|owner| owner.uid == claim.uid || claim.joins || (owner.shared && claim.shared))
    }
}

impl Pools {
    /// Whether a process with this claim may listen at (`node`, `port`).
    pub fn admits(&self, node: NodeId, port: u16, claim: &Claim) -> bool {
        let member = self.by_address.get(&(node, port)).and_then(|id| self.get(*id));
        member.is_none_or(|member| member.admits(claim))
    }

    /// A process with this claim listens at the member; the first one owns the port until nobody listens there.
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
        // One that joined keeps the owner's place.
        let joined = pools.listen(node, any(80), ChannelId(2), 1).unwrap();
        pools.claim(joined, Claim { joins: true, ..user(65534) });
        pools.remove_channel(Instant::ZERO, ChannelId(1));
        assert!(pools.admits(node, 80, &user(33)) && !pools.admits(node, 80, &user(65534)));
        pools.remove_channel(Instant::ZERO, ChannelId(2));
        assert!(pools.admits(node, 80, &user(65534)), "nobody listens any more");
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
