//! Slots for unauthenticated peers ("strangers": no token and proof verified yet, or not confirmed), and each user's share of the links of
//! processes.

use std::collections::BTreeMap;

use csp_types::{Instant, Role};
use csp_wire::link::{Hello, RefusalCode};

use super::Endpoint;
use super::admission::{Refusal, RefusalReason, refusal};
use super::link::State;
use crate::event::LinkId;
use crate::token::TokenClaims;

/// The superuser, whose processes may hold all links.
const ROOT: u32 = 0;

/// The unauthenticated peers of one user.
struct Strangers {
    count: usize,
    /// The one whose handshake began first, by the time at which it must be complete.
    oldest: (Instant, LinkId),
}

impl Endpoint {
    /// Frees a slot for a peer that is not authenticated yet. Such peers hold at most half of the slots, and those of
    /// one user at most half of that half, if the provider knows users. Beyond its limit a user's oldest
    /// unauthenticated peer is evicted; beyond the total limit, the oldest one of the user with the most. So peers that
    /// only connect cannot lock out others. Returns `false` if links that are up hold all slots.
    pub(super) fn make_room_for_stranger(&mut self, user: Option<u32>) -> bool {
        let half = self.table.capacity().div_ceil(2);
        let own_max = if user.is_some() { half.div_ceil(2) } else { half };
        let by_user = self.strangers();
        let all: usize = by_user.values().map(|strangers| strangers.count).sum();
        let own = by_user.get(&user).filter(|own| own.count >= own_max);
        let full = all >= half || self.table.available() == 0;
        let from = own.or_else(|| by_user.values().max_by_key(|strangers| strangers.count).filter(|_| full));
        let evicted = from.map(|strangers| strangers.oldest.1);
        if let Some(link) = evicted.and_then(|id| self.table.remove(id)) {
            self.counters.strangers_evicted += 1;
            // Fails only if the VI has ended already.
            let _ = self.provider.disconnect(link.vi);
        }
        self.table.available() > 0
    }

    /// The unauthenticated peers of each user.
    fn strangers(&self) -> BTreeMap<Option<u32>, Strangers> {
        let mut by_user: BTreeMap<Option<u32>, Strangers> = BTreeMap::new();
        let strange =
            |link: &super::link::Link| matches!(link.state, State::AwaitHello | State::AwaitConfirm);
        for (id, link) in self.table.iter().filter(|(_, link)| strange(link)) {
            let one = Strangers { count: 0, oldest: (link.handshake_until, id) };
            let its = by_user.entry(link.peer_uid).or_insert(one);
            its.count += 1;
            if link.handshake_until < its.oldest.0 {
                its.oldest = (link.handshake_until, id);
            }
        }
        by_user
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
