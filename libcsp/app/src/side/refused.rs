//! Listeners that a proxy refused since another user's process has the port: asked for again until it is free, as the
//! proxy may not have noticed yet that the other one has exited.

use csp_types::{Duration, Instant};

use super::slots::ListenerId;
use super::{AppSide, errno};

/// Time after which a refused listener is announced again.
pub const LISTEN_AGAIN: Duration = Duration::from_millis(250);

/// A listener to announce again: when, to which channel.
pub(super) type Again = (Instant, usize, ListenerId);

impl AppSide {
    /// A proxy refused a listener for this reason.
    pub(super) fn on_listen_refused(&mut self, channel: usize, id: ListenerId, reason: u32) {
        self.counters.listen_refused += 1;
        let known = self.listen_again.iter().any(|(_, at, listener)| (*at, *listener) == (channel, id));
        if reason == errno::EADDRINUSE as u32 && !known && self.listeners.get(id.0).is_some() {
            self.listen_again.push((self.now + LISTEN_AGAIN, channel, id));
        }
    }

    /// Announces again what is due.
    pub(super) fn announce_refused(&mut self) {
        while let Some(at) = self.listen_again.iter().position(|(due, ..)| *due <= self.now) {
            let (_, channel, id) = self.listen_again.swap_remove(at);
            let Some(offer) = self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(channel)) else {
                continue;
            };
            offer.granted = 0; // the proxy took no credit for a listener that it refused
            if self.channels.get(channel).is_some_and(|channel| channel.is_up()) {
                self.send_listen(channel, id);
                self.grant(channel, id);
            }
        }
    }

    /// All listeners are announced to a channel: nothing is to be announced again.
    pub(super) fn clear_refused(&mut self, channel: usize) {
        self.listen_again.retain(|(_, at, _)| *at != channel);
    }
}
