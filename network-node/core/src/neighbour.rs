//! The neighbour cache for connections that applications open and for servers that packets are forwarded to:
//! resolves IP addresses on a LAN port by ARP or ND, and holds the first segments until the reply arrives. An
//! address that was known serves while it is asked for again. Replies to clients don't use the cache: they go
//! to the Ethernet address from which the client sent.

use std::net::IpAddr;

use csp_types::{Duration, FourTuple, Instant, MacAddr};
use csp_wire::Ecn;

use super::api::PortId;

/// Largest number of segments that wait for neighbours, and the largest length of each, in bytes: a SYN with
/// all its options fits.
const WAITING_MAX: usize = 64;
const WAITING_LEN_MAX: usize = 128;
/// Requests sent before a neighbour counts as unreachable, and the interval between them (RFC 4861 §10).
const REQUESTS_MAX: u8 = 3;
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// How long a resolved address stays valid without another reply. Then it is asked for when it is needed.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// A request to send for the Ethernet address of `address`, with `requester` as its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) port: PortId,
    pub(super) address: IpAddr,
    pub(super) requester: IpAddr,
}

/// Result of a lookup in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    /// The neighbour's Ethernet address.
    Known(MacAddr),
    /// As `Known`, but it was confirmed long ago: the caller has to send this request now.
    Renew(Request, MacAddr),
    /// A request was sent and has not been answered.
    Asking,
    /// The caller has to send this request now.
    Ask(Request),
    /// All entries of the cache have unanswered requests.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: Request,
    mac: Option<MacAddr>,
    /// Requests that have not been answered; 0: none is outstanding.
    requests: u8,
    /// When a request was not answered, or the address is no longer confirmed.
    deadline: Instant,
}

/// A segment that waits for its neighbour's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) port: PortId,
    next_hop: IpAddr,
    pub(super) tuple: FourTuple,
    pub(super) ecn: Ecn,
    len: usize,
    bytes: [u8; WAITING_LEN_MAX],
}

impl Waiting {
    /// TCP header and data.
    pub(super) fn segment(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

pub(super) struct Neighbours {
    entries: Vec<Entry>,
    entries_max: usize,
    waiting: Vec<Waiting>,
}

impl Neighbours {
    pub(super) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.max(1);
        Neighbours {
            entries: Vec::with_capacity(entries_max),
            entries_max,
            waiting: Vec::with_capacity(WAITING_MAX),
        }
    }

    /// Looks up the address that `request` names. If it is unknown, the caller has to send the request.
    pub(super) fn look_up(&mut self, now: Instant, request: Request) -> Lookup {
        if let Some(entry) = self.entry_mut(request.port, request.address) {
            let Some(mac) = entry.mac else { return Lookup::Asking };
            if entry.requests > 0 || entry.deadline > now {
                return Lookup::Known(mac);
            }
            *entry = Entry { request, mac: Some(mac), requests: 1, deadline: now + REQUEST_INTERVAL };
            return Lookup::Renew(request, mac);
        }
        if self.entries.len() == self.entries_max && !self.make_room() {
            return Lookup::Full;
        }
        self.entries.push(Entry { request, mac: None, requests: 1, deadline: now + REQUEST_INTERVAL });
        Lookup::Ask(request)
    }

    /// Updates the cache's entry for `address`, if it has one, with `mac`. Returns whether it has one.
    pub(super) fn learn(&mut self, now: Instant, port: PortId, address: IpAddr, mac: MacAddr) -> bool {
        let Some(entry) = self.entry_mut(port, address) else { return false };
        (entry.mac, entry.requests, entry.deadline) = (Some(mac), 0, now + KNOWN_FOR);
        true
    }

    /// Queues a segment until its neighbour answers; `false` if it is too long or the queue is full.
    pub(super) fn wait(&mut self, request: Request, tuple: FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
        let mut bytes = [0; WAITING_LEN_MAX];
        let Some(room) = bytes.get_mut(..segment.len()) else { return false };
        if self.waiting.len() == WAITING_MAX {
            return false;
        }
        room.copy_from_slice(segment);
        let (port, next_hop, len) = (request.port, request.address, segment.len());
        self.waiting.push(Waiting { port, next_hop, tuple, ecn, len, bytes });
        true
    }

    /// Removes and returns the next segment that waits for this neighbour, in order of arrival.
    pub(super) fn take_waiting(&mut self, port: PortId, next_hop: IpAddr) -> Option<Waiting> {
        let at = self.waiting.iter().position(|w| w.port == port && w.next_hop == next_hop)?;
        Some(self.waiting.remove(at))
    }

    /// Returns the next request to repeat. The entry of a neighbour that did not answer the last one is
    /// removed, and the segments that wait for it are dropped; `dropped` is increased by their number.
    pub(super) fn due(&mut self, now: Instant, dropped: &mut u64) -> Option<Request> {
        while let Some(at) = self.entries.iter().position(|e| e.requests > 0 && e.deadline <= now) {
            let entry = &mut self.entries[at];
            if entry.requests < REQUESTS_MAX {
                entry.requests += 1;
                entry.deadline = now + REQUEST_INTERVAL;
                return Some(entry.request);
            }
            let Request { port, address, .. } = entry.request;
            self.entries.swap_remove(at);
            while self.take_waiting(port, address).is_some() {
                *dropped += 1;
            }
        }
        None
    }

    /// Returns when to call [`due`](Self::due) next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.entries.iter().filter(|e| e.requests > 0).map(|e| e.deadline).min()
    }

    fn entry_mut(&mut self, port: PortId, address: IpAddr) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.request.port == port && e.request.address == address)
    }

    /// Evicts the resolved neighbour whose confirmation is the oldest. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let known = self.entries.iter().enumerate().filter(|(_, e)| e.mac.is_some());
        let Some((at, _)) = known.min_by_key(|(_, e)| e.deadline) else { return false };
        self.entries.swap_remove(at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn request(last: u8) -> Request {
        Request {
            port: PortId(0),
            address: IpAddr::from([10, 0, 0, last]),
            requester: IpAddr::from([10, 0, 0, 100]),
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn tuple() -> FourTuple {
        FourTuple { local: "10.0.0.100:1".parse().unwrap(), remote: "10.0.0.1:2".parse().unwrap() }
    }

    #[test]
    fn a_neighbour_is_asked_for_then_known_for_a_while() {
        let mut cache = Neighbours::new(4);
        assert_eq!(cache.look_up(at(0), request(1)), Lookup::Ask(request(1)));
        assert_eq!(cache.look_up(at(0), request(1)), Lookup::Asking);
        assert!(cache.learn(at(1), PortId(0), request(1).address, MAC));
        assert_eq!(cache.look_up(at(60), request(1)), Lookup::Known(MAC));
        assert_eq!(cache.look_up(at(61), request(1)), Lookup::Renew(request(1), MAC));
        assert_eq!(cache.look_up(at(61), request(1)), Lookup::Known(MAC), "it serves meanwhile");
        assert!(!cache.learn(at(61), PortId(0), request(2).address, MAC), "no request was sent for it");
    }

    #[test]
    fn a_silent_neighbour_is_asked_thrice_and_what_waits_for_it_dropped() {
        let (mut cache, mut dropped) = (Neighbours::new(4), 0);
        cache.look_up(at(0), request(1));
        assert!(cache.wait(request(1), tuple(), Ecn::NotEct, &[0; 60]));
        assert!(!cache.wait(request(1), tuple(), Ecn::NotEct, &[0; 200]), "too long to wait");
        for second in [1, 2] {
            assert_eq!(cache.next_deadline(), Some(at(second)));
            assert_eq!(cache.due(at(second), &mut dropped), Some(request(1)));
            assert_eq!(cache.due(at(second), &mut dropped), None);
        }
        assert_eq!((cache.due(at(3), &mut dropped), dropped), (None, 1));
        assert_eq!(cache.next_deadline(), None);
    }

    #[test]
    fn a_known_neighbour_that_is_silent_is_forgotten_after_three_requests() {
        let (mut cache, mut dropped) = (Neighbours::new(4), 0);
        cache.look_up(at(0), request(1));
        cache.learn(at(0), PortId(0), request(1).address, MAC);
        assert_eq!(cache.next_deadline(), None, "it is not asked for while nobody needs it");
        assert_eq!(cache.look_up(at(100), request(1)), Lookup::Renew(request(1), MAC));
        assert_eq!(cache.due(at(101), &mut dropped), Some(request(1)));
        assert_eq!(cache.due(at(102), &mut dropped), Some(request(1)));
        assert_eq!(cache.look_up(at(102), request(1)), Lookup::Known(MAC));
        assert_eq!(cache.due(at(103), &mut dropped), None);
        assert_eq!(cache.look_up(at(103), request(1)), Lookup::Ask(request(1)));
    }

    #[test]
    fn a_full_cache_evicts_known_neighbours_not_pending_requests() {
        let mut cache = Neighbours::new(2);
        cache.look_up(at(0), request(1));
        cache.look_up(at(0), request(2));
        assert_eq!(cache.look_up(at(0), request(3)), Lookup::Full);
        cache.learn(at(0), PortId(0), request(1).address, MAC);
        assert_eq!(cache.look_up(at(0), request(3)), Lookup::Ask(request(3)));
        assert_eq!(cache.look_up(at(0), request(2)), Lookup::Asking);
    }
}
