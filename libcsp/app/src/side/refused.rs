//! Listeners that a proxy refused because the port belongs to another user's process. They are announced
//! again until the port is free, since the proxy may not have noticed yet that the other process has exited.

use csp_types::{Duration, Instant};

use super::slots::ListenerId;
use super::{AppSide, errno};

/// Time after which a refused listener is announced again.
pub const LISTEN_AGAIN: Duration = Duration::from_millis(250);

/// A listener to announce again: the time, the channel, the listener.
pub(super) type Retry = (Instant, usize, ListenerId);

impl AppSide {
    /// Handles a proxy's refusal of a listener.
    pub(super) fn on_listen_refused(&mut self, channel: usize, id: ListenerId, reason: u32) {
        self.counters.listen_refused += 1;
        let known = self.listen_again.iter().any(|(_, at, listener)| (*at, *listener) == (channel, id));
        if reason == errno::EADDRINUSE as u32 && !known && self.listeners.get(id.0).is_some() {
            self.listen_again.push((self.now + LISTEN_AGAIN, channel, id));
        }
    }

    /// Announces the listeners that are due again.
    pub(super) fn announce_refused(&mut self) {
        while let Some(at) = self.listen_again.iter().position(|(due, ..)| *due <= self.now) {
            let (_, channel, id) = self.listen_again.swap_remove(at);
            let Some(offer) = self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(channel)) else {
                continue;
            };
            offer.granted = 0; // the proxy accepted no credit for a listener that it refused
            if self.channels.get(channel).is_some_and(|channel| channel.is_up()) {
                self.send_listen(channel, id);
                self.grant(channel, id);
            }
        }
    }

    /// Removes the pending announcements of a channel to which all listeners are about to be announced.
    pub(super) fn clear_refused(&mut self, channel: usize) {
        self.listen_again.retain(|(_, at, _)| *at != channel);
    }
}
