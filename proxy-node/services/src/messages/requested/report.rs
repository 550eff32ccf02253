//! State of requests for display: counters, running queries and handlers, and events for the log.

use std::net::SocketAddr;

use csp_types::{Duration, Instant};

use super::{Live, NOTICES_MAX, Requested};
use crate::messages::MessageBroker;
use crate::messages::served::subscriptions;

/// Outcomes of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounters {
    /// Requests that have begun a query.
    pub granted: u64,
    /// Requests for a query that ran already.
    pub shared: u64,
    /// Formats that publishers have brought.
    pub formats: u64,
    /// Requests that have begun a handler of the program's own.
    pub handlers: u64,
    /// Requests that have changed the code or the parameters of one.
    pub swapped: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Those of them that were refused because there was no room or no time to plan them.
    pub busy: u64,
    /// Nanoseconds that planning has taken.
    pub planning_ns: u64,
    /// Queries and handlers that ended without subscribers.
    pub expired: u64,
    /// Queries and handlers that ended because their requester released them.
    pub released: u64,
    /// Queries and handlers that ended because a new policy had no place for them or did not permit them.
    pub withdrawn: u64,
}

/// A query that was asked for, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedSnapshot {
    /// The channel that was asked.
    pub of: String,
    /// The first requester: a public key, or an address.
    pub by: String,
    /// Number of its requesters.
    pub requesters: u64,
    /// The text of a query; for a translation or a handler, its description.
    pub sql: String,
    /// Rows are JSON.
    pub json: bool,
    /// Where subscribers connect.
    pub address: SocketAddr,
    /// The topic of its rows.
    pub topic: String,
    /// How long it runs without subscribers.
    pub lease: Duration,
    /// When it ends; `None` while it has subscribers.
    pub ends: Option<Instant>,
}

/// An event for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestNotice {
    /// A query begins.
    Granted {
        /// Its channel.
        channel: String,
        /// The requester.
        by: String,
        /// The text.
        sql: String,
    },
    /// A handler that a program has brought begins, or replaces another one.
    Supplied {
        /// Its channel.
        channel: String,
        /// The client that brought the handler.
        by: String,
        /// The requester's name for it.
        name: String,
        /// The SHA-256 of its module.
        module: String,
    },
    /// A query or handler has ended.
    Released {
        /// Its channel.
        channel: String,
        /// The requester.
        by: String,
        /// Why.
        why: String,
        /// Messages that it has read.
        read: u64,
    },
}

impl Requested {
    pub(super) fn notify(&mut self, notice: RequestNotice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }
}

impl MessageBroker {
    /// Returns the queries that programs have asked for, by the names of their channels.
    pub fn requested(&self) -> Vec<(String, RequestedSnapshot)> {
        let of = |live: &Live| {
            let (plane, number) = (self.plane.as_ref(), live.number());
            let subscriptions = subscriptions(plane, &self.channels, number, &live.topic);
            let snapshot = RequestedSnapshot {
                of: self.channels.name(live.of),
                by: live.by.to_string(),
                requesters: live.holders.len() as u64,
                sql: live.runs.to_string(),
                json: live.json,
                address: live.place.address,
                topic: live.topic.clone(),
                lease: live.lease,
                ends: (subscriptions == 0).then(|| live.seen + live.lease),
            };
            (live.name().to_owned(), snapshot)
        };
        self.requested.live.iter().map(of).collect()
    }

    /// Returns the outcomes of requests for queries.
    pub fn request_counters(&self) -> RequestCounters {
        RequestCounters { planning_ns: self.requested.plans.spent, ..self.requested.counters }
    }

    /// Returns the next event of queries on request for the log, if any.
    pub fn poll_request_notice(&mut self) -> Option<RequestNotice> {
        self.requested.notices.pop_front()
    }
}
