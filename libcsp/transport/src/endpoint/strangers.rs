//! Slots for unauthenticated peers ("strangers": no token and proof verified yet, or not confirmed), and each
//! user's share of the links of processes.

use std::collections::BTreeMap;

use csp_types::{Instant, Role};

use super::Endpoint;
use super::link::{Link, State};
use crate::event::LinkId;
use crate::identity::PeerIdentity;

/// The superuser, whose processes may hold all links.
const ROOT: u32 = 0;

/// The unauthenticated peers of one user.
struct Strangers {
    count: usize,
    /// The one whose handshake began first, by the time at which it must be complete.
    oldest: (Instant, LinkId),
}

impl Endpoint {
    /// Frees a slot for a peer that is not authenticated yet. Such peers hold at most half of the slots, and
    /// those of one user at most half of that half, if the provider knows users. Beyond its limit a user's
    /// oldest unauthenticated peer is evicted; beyond the total limit, the oldest one of the user with the
    /// most. So peers that only connect cannot lock out others. Returns `false` if links that are up hold all
    /// slots.
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
        for (id, link) in self.table.iter().filter(|(_, link)| is_strange(link)) {
            let one = Strangers { count: 0, oldest: (link.handshake_until, id) };
            let its = by_user.entry(link.peer_uid).or_insert(one);
            its.count += 1;
            if link.handshake_until < its.oldest.0 {
                its.oldest = (link.handshake_until, id);
            }
        }
        by_user
    }

    /// Whether the share of the peer's user leaves room for one more link, which is in the handshake: the
    /// processes of a user may open another link only while they hold no more links than are free. A single
    /// user therefore holds at most half of the links. The slots of unauthenticated peers are free, since
    /// these give way.
    pub(super) fn is_within_share(&self, peer: &PeerIdentity) -> bool {
        let Some(uid) = peer.uid.filter(|uid| *uid != ROOT && peer.role == Role::Process) else {
            return true;
        };
        let its = |held: &PeerIdentity| held.uid == Some(uid) && held.node == peer.node;
        let (mut held, mut taken) = (0, 1);
        for (_, link) in self.table.iter().filter(|(_, link)| !is_strange(link)) {
            taken += 1;
            held += usize::from(link.peer.as_ref().is_some_and(its));
        }
        held + taken <= self.table.capacity()
    }
}

/// Whether the peer of a link is not authenticated yet.
fn is_strange(link: &Link) -> bool {
    matches!(link.state, State::AwaitHello | State::AwaitConfirm)
}
