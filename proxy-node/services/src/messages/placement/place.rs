//! The state of one channel's placement, and of the connections that move away.

use csp_types::{Instant, Owner, PlacementKey, owner_of};

use super::{NEW_TIME, STABLE, STRANGER_TIME};

/// The proxy workers that may own channels, by the registrations of proxies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// This worker.
    pub here: Owner,
    /// All workers that accept new connections, this one included.
    pub workers: Vec<Owner>,
}

/// Events of a channel that moved, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveNotice {
    /// Connections are being ended.
    Began {
        /// The channel.
        channel: String,
        /// This worker.
        from: Owner,
        /// The owner by the view.
        to: Owner,
        /// How many connections.
        connections: u64,
    },
    /// All of them have ended.
    Done {
        /// The channel.
        channel: String,
        /// This worker.
        from: Owner,
        /// The owner by the view.
        to: Owner,
        /// How many connections.
        connections: u64,
        /// Messages lost by the move.
        lost: u64,
    },
}

/// The stage of the end of a connection that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in super::super) enum Ending {
    /// It stays.
    #[default]
    Stays,
    /// A receiver that stays until no sender is left.
    Waits,
    /// A receiver: messages that wait for it are sent, then FIN.
    Drains,
    /// FIN must be sent; the worker continues to read.
    Finish { sender: bool },
    /// FIN was sent; the stream is read until the peer's FIN.
    Finished { sender: bool },
    /// Its time is over.
    Over,
}

impl Ending {
    pub(super) fn is_sender(self) -> bool {
        matches!(self, Ending::Finish { sender: true } | Ending::Finished { sender: true })
    }
}

/// Connections that are being ended.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) to: Owner,
    /// Senders that have not ended.
    pub(super) senders: u64,
    /// All that have not ended.
    pub(super) left: u64,
    pub(super) connections: u64,
    pub(super) lost: u64,
    /// When senders are closed; `None`: none is left.
    pub(super) senders_until: Option<Instant>,
    /// When receivers are closed.
    pub(super) receivers_until: Instant,
}

/// Totals of a channel's moves away from this worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Connections ended.
    pub connections: u64,
    /// Messages lost.
    pub lost: u64,
}

/// Where a channel lives.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) key: PlacementKey,
    /// The owner according to the view; `None` if the view has no workers.
    pub(super) owner: Option<Owner>,
    /// Since when the view has named it.
    pub(super) since: Instant,
    /// Peers that arrived while the view named another owner are not closed before this time.
    pub(super) strangers_from: Instant,
    pub(super) doublings: u32,
    pub(super) moving: Option<Move>,
    pub(super) totals: Moved,
    /// Until when this worker counts as the channel's new owner: peers arrive from the former one.
    pub(super) new_until: Option<Instant>,
    /// When publishers that waited for subscribers were last released.
    pub(super) released: Option<Instant>,
}

impl Place {
    pub(super) fn new(key: PlacementKey, now: Instant) -> Self {
        Place {
            key,
            owner: None,
            since: now,
            strangers_from: now + STRANGER_TIME,
            doublings: 0,
            moving: None,
            totals: Moved::default(),
            new_until: None,
            released: None,
        }
    }

    /// Looks up the owner in a view; `young`: the worker started recently.
    pub(super) fn look_up(&mut self, now: Instant, view: &View, young: bool) {
        let owner = owner_of(self.key, view.workers.iter().copied());
        if owner == self.owner {
            return;
        }
        let came_here = owner == Some(view.here) && (self.owner.is_some() || young);
        self.new_until = came_here.then_some(now + NEW_TIME);
        (self.owner, self.since, self.released) = (owner, now, None);
        (self.strangers_from, self.doublings) = (now + STRANGER_TIME, 0);
    }

    pub(super) fn is_new(&self, now: Instant) -> bool {
        self.new_until.is_some_and(|until| now < until)
    }

    /// Returns when a connection that arrived at `arrived` must be closed.
    pub(super) fn due(&self, arrived: Instant) -> Instant {
        match arrived <= self.since {
            true => self.since + STABLE,
            false => self.strangers_from.max(arrived + STRANGER_TIME),
        }
    }
}
