//! What the election of addresses' owners needs of the tunnels: messages, voters, and whether there may be
//! connections that nobody can be asked for.

use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

use super::{Links, State, Tunnel};

/// After so many attempts, about half a minute of them, a registered proxy that cannot be reached does not
/// keep segments without a connection from being reset any more.
const DOUBTS_MAX: u32 = 30;

impl Links {
    /// Sends a message of the election through every tunnel whose proxy knows it. What finds no room is lost:
    /// the next one follows soon.
    pub(crate) fn send_election(&mut self, now: Instant, message: &[u8]) {
        let Links { tunnels, endpoints, .. } = self;
        for tunnel in tunnels.iter_mut().filter(|tunnel| tunnel.elects) {
            if let (State::Up(..), Some(batch)) = (tunnel.state, &mut tunnel.batch) {
                let record = Record::election(tunnel.spec.worker, message);
                let _ = batch.send(now, &mut endpoints[tunnel.spec.endpoint], &record, &[message]);
            }
        }
    }

    /// Returns the proxies whose votes count in an election: those that are registered or reached, and of
    /// three and more also those whose registration has lapsed and that are silent: they may be on the other
    /// side of a cut, with another network node. Of two, the other one alone decides then.
    pub(crate) fn voters(&self) -> Vec<NodeId> {
        let voters = |counts: &dyn Fn(&Tunnel) -> bool| {
            let mut voters: Vec<NodeId> = self.tunnels.iter().filter(|t| counts(t)).map(|t| t.node).collect();
            voters.sort_unstable();
            voters.dedup();
            voters
        };
        let stands = |t: &Tunnel| t.dial || matches!(t.state, State::Up(..));
        let all = voters(&|t| stands(t) || t.doubtful);
        if all.len() > 2 { all } else { voters(&stands) }
    }

    /// Returns whether there is no registered proxy that may have connections and cannot be asked for them. A
    /// peer that has hung up counts as dead once it cannot be dialled again.
    pub(crate) fn complete(&self) -> bool {
        let known = |t: &Tunnel| {
            let gone = !t.doubtful && !t.undialled;
            !t.dial || gone || t.failures >= DOUBTS_MAX || matches!(t.state, State::Up(..))
        };
        self.tunnels.iter().all(known)
    }
}
