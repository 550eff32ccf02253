//! Slots for unauthenticated peers ("strangers": no token verified yet), and each user's share of the links of
//! processes.

use csp_types::Role;
use csp_wire::link::{Hello, RefusalCode};

use super::Endpoint;
use super::handshake::{Refusal, RefusalReason, refusal};
use super::link::State;
use crate::event::LinkId;
use crate::token::TokenClaims;

/// The superuser, whose processes may hold all links.
const ROOT: u32 = 0;

impl Endpoint {
    /// Frees a slot for a peer that is not authenticated yet. Such peers hold at most half of the slots, and those of
    /// one user at most half of that half, if the provider knows users. Beyond its limit a user's oldest
    /// unauthenticated peer is evicted; beyond the total limit, the oldest one of the user with the most. So peers that
    /// only connect cannot lock out others. Returns `false` if links that are up hold all slots.
    pub(super) fn make_room_for_stranger(&mut self, user: Option<u32>) -> bool {
        let half = self.table.capacity().div_ceil(2);
        let strangers = |endpoint: &Self, of: Option<Option<u32>>| -> Vec<LinkId> {
            let links = endpoint.table.iter().filter(|(_, link)| link.state == State::AwaitHello);
            let links = links.filter(|(_, link)| of.is_none_or(|user| link.peer_uid == user));
            let mut found: Vec<_> = links.map(|(id, link)| (link.handshake_until, id)).collect();
            found.sort_by_key(|(until, _)| *until);
            found.into_iter().map(|(_, id)| id).collect()
        };
        let (all, own) = (strangers(self, None), strangers(self, Some(user)));
        let own_max = if user.is_some() { half.div_ceil(2) } else { half };
        let evicted = if own.len() >= own_max {
            own.first().copied()
        } else if all.len() >= half || (self.table.available() == 0 && !all.is_empty()) {
            let user_of = |id: LinkId| self.table.get(id).and_then(|link| link.peer_uid);
            let most =
                all.iter().map(|id| user_of(*id)).max_by_key(|user| strangers(self, Some(*user)).len());
            most.and_then(|user| strangers(self, Some(user)).first().copied())
        } else {
            None
        };
        if let Some(link) = evicted.and_then(|id| self.table.remove(id)) {
            self.counters.strangers_evicted += 1;
            // Fails only if the VI has ended already.
            let _ = self.provider.disconnect(link.vi);
        }
        self.table.available() > 0
    }

    /// Checks the user's share: the processes of a user may open another link only while they hold no more links than
    /// are free. A single user therefore holds at most half of the links.
    pub(super) fn check_share(
        &self,
        id: LinkId,
        hello: &Hello<'_>,
        claims: &TokenClaims,
    ) -> Result<(), Refusal> {
        let uid = claims.uid.or_else(|| self.table.get(id)?.peer_uid);
        let Some(uid) = uid.filter(|uid| *uid != ROOT && hello.role == Role::Process) else { return Ok(()) };
        let its = |peer: &crate::identity::PeerIdentity| peer.uid == Some(uid) && peer.node == claims.node;
        let held = self.table.iter().filter(|(_, link)| link.peer.as_ref().is_some_and(its)).count();
        if held <= self.table.available() {
            return Ok(());
        }
        Err(refusal(
            RefusalCode::Full,
            RefusalReason::Share,
            "this user's processes have their share of links",
        ))
    }
}
