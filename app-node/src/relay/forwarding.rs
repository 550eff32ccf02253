//! One process's VI and the VI over the SAN that carries its messages.
//!
//! ```text
//! Accepted ──the process's VI is open──▶ Connecting ──the SAN VI is open──▶ Open
//!     │                                      │                               │ process gone: what it sent is
//!     └──────────── process gone ────────────┴───────────────────────────────┤ forwarded, then the SAN VI ends
//!                                                                            │ cleanly
//!                                                                            │ SAN VI gone: its messages are in the
//!                                                                            │ process's ring, then its VI ends as
//!                                                                            │ cleanly as that did
//!                                                                            ▼ anything else: both end uncleanly
//!                                                                          gone
//! ```

use std::collections::VecDeque;

use csp_types::Instant;
use csp_vi::{Memory, RegionId, ViId};

/// A message of a process that waits to be forwarded. It stays in the process's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    /// The ring's buffer, to be released when the message has left.
    pub buffer: u32,
    /// Its position in the region.
    pub offset: usize,
    pub len: usize,
    pub immediate: u32,
}

/// State of the SAN's VI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum San {
    /// Not requested yet.
    None,
    /// Requested; dropped at this time if not open by then.
    Connecting(ViId, Instant),
    Open(ViId),
}

#[derive(Debug)]
pub(super) struct Forwarding {
    /// The route's number.
    pub route: u32,
    /// The user that the process runs as.
    pub uid: Option<u32>,
    /// `None` after the process's VI has ended.
    pub app: Option<ViId>,
    /// Index of the SAN's provider.
    pub via: usize,
    pub san: San,
    /// The process's memory, and its registration with that provider.
    pub region: Option<RegionId>,
    pub memory: Option<Memory>,
    /// Messages that the SAN has not accepted, oldest first; at most as many as the ring has buffers.
    pub waiting: VecDeque<Waiting>,
    /// HELLO, the only message that the relay examines, was forwarded.
    pub greeted: bool,
    /// The forwarding is in the list of those to be tried again.
    pub stuck: bool,
    /// A message of the process was not forwarded; the forwarding can no longer end cleanly.
    pub lost: bool,
}

/// How a forwarding ends, as both of its ends observe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The process or the proxy ended it, and everything sent before was forwarded.
    Clean,
    /// Any other end.
    Broken,
}

impl Forwarding {
    pub(super) fn new(route: u32, via: usize, uid: Option<u32>, app: ViId, depth: u32) -> Self {
        Forwarding {
            route,
            uid,
            app: Some(app),
            via,
            san: San::None,
            region: None,
            memory: None,
            waiting: VecDeque::with_capacity(depth as usize),
            greeted: false,
            stuck: false,
            lost: false,
        }
    }

    /// Returns the VI over the SAN if it is open.
    pub(super) fn san_open(&self) -> Option<ViId> {
        match self.san {
            San::Open(vi) => Some(vi),
            San::None | San::Connecting(..) => None,
        }
    }

    /// Returns the VI over the SAN in any state.
    pub(super) fn san_vi(&self) -> Option<ViId> {
        match self.san {
            San::Open(vi) | San::Connecting(vi, _) => Some(vi),
            San::None => None,
        }
    }
}

/// Forwardings by number; all entries are allocated at the start.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Option<Forwarding>>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        let numbers = 0..u32::try_from(capacity).unwrap_or(u32::MAX);
        Table { places: numbers.clone().map(|_| None).collect(), free: numbers.rev().collect() }
    }

    pub(super) fn insert(&mut self, forwarding: Forwarding) -> Option<u32> {
        let at = self.free.pop()?;
        *self.places.get_mut(at as usize)? = Some(forwarding);
        Some(at)
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<Forwarding> {
        let taken = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(taken)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Forwarding> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Forwarding)> {
        self.places.iter().enumerate().filter_map(|(at, place)| Some((at as u32, place.as_ref()?)))
    }

    /// Returns the number of VIs that processes of a user have here.
    pub(super) fn held_by(&self, uid: Option<u32>) -> usize {
        self.iter().filter(|(_, forwarding)| forwarding.uid == uid).count()
    }

    /// Returns whether any VI is forwarded on the route of this number.
    pub(super) fn carries(&self, route: u32) -> bool {
        self.iter().any(|(_, forwarding)| forwarding.route == route)
    }

    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
