//! The way to each server: the port, the Ethernet address of the server or of the router in front of it, and
//! in whose name the LAN is asked.

use std::net::IpAddr;

use csp_types::{Duration, Encapsulation, Instant, MacAddr, Prefix};

use super::super::api::{NetworkOutput, PortId};
use super::super::neighbour::{Lookup, Request};
use super::super::node::NetworkCore;
use super::{ForwardCounts, PoolServer};

/// How long a server's Ethernet address is used before the neighbour cache is asked again, and how long after
/// it was not known.
const HOP_KNOWN_FOR: Duration = Duration::from_secs(1);
const HOP_ASKED_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long a server's Ethernet address may be unknown until its flows go elsewhere: that of three requests.
const HOP_LOST_AFTER: Duration = Duration::from_secs(3);
/// How often servers whose Ethernet address is not known are looked for, and how many at once.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOKED_FOR_MAX: usize = 64;

/// The way to a server, and its counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) id: u32,
    pub(super) address: IpAddr,
    tunnel: Option<Encapsulation>,
    /// The neighbour that packets are sent to: the server, or a router.
    next: IpAddr,
    /// The egress address in whose name the LAN is asked, which a tunnel's packets have as their source.
    source: Option<IpAddr>,
    port: PortId,
    /// Of `next`.
    pub(super) mac: Option<MacAddr>,
    /// When the neighbour cache is asked again.
    renew_at: Instant,
    /// It is behind a router, and no tunnel leads there.
    pub(super) far: bool,
    /// Since when the Ethernet address is not known.
    unknown_since: Option<Instant>,
    pub(super) counts: ForwardCounts,
}

/// The outer addresses of a tunnel's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub(super) encapsulation: Encapsulation,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

impl Hop {
    /// Returns the way to a server, with what is known of it from another set of pools.
    pub(super) fn of(server: &PoolServer, known: Option<&Hop>) -> Self {
        let PoolServer { id, address, tunnel, .. } = *server;
        match known {
            // Egress addresses may have moved, or be gone.
            Some(hop) if (hop.address, hop.tunnel) == (address, tunnel) => {
                Hop { renew_at: Instant::ZERO, ..*hop }
            }
            known => Hop {
                id,
                address,
                tunnel,
                next: address,
                source: None,
                port: PortId(0),
                mac: None,
                renew_at: Instant::ZERO,
                far: false,
                unknown_since: None,
                counts: known.map_or(ForwardCounts::default(), |hop| hop.counts),
            },
        }
    }

    /// Returns whether packets would be lost on the way to the server. A router that is silent is no reason
    /// for another server, which is behind it, too.
    pub(super) fn is_lost(&self, now: Instant) -> bool {
        let silent = self.unknown_since.is_some_and(|since| now >= since + HOP_LOST_AFTER);
        self.far || silent && self.next == self.address
    }

    /// Notes that a neighbour has answered.
    pub(super) fn on_neighbour(&mut self, address: IpAddr) {
        if self.next == address {
            (self.renew_at, self.unknown_since) = (Instant::ZERO, None);
        }
    }

    /// Returns the outer addresses; `None` if packets go to the server as they are.
    #[inline]
    pub(super) fn outer(&self) -> Option<Outer> {
        let (encapsulation, source) = self.tunnel.zip(self.source)?;
        Some(Outer { encapsulation, source, destination: self.address })
    }
}

impl NetworkCore {
    /// Returns the port and Ethernet address by which a server is reached.
    #[inline]
    pub(super) fn way_to_server(
        &mut self,
        now: Instant,
        place: usize,
        out: &mut impl NetworkOutput,
    ) -> Option<(PortId, MacAddr)> {
        let hop = self.forwarding.hops.get(place)?;
        match hop.mac {
            _ if now >= hop.renew_at => self.renew_way(now, place, out),
            mac => Some((hop.port, mac?)),
        }
    }

    /// Asks the neighbour cache for a server's Ethernet address, or the router's in front of it. The LAN is
    /// asked in the name of an egress address: the server has the service's address itself, and ignores
    /// requests that seem to come from it.
    #[inline(never)]
    fn renew_way(
        &mut self,
        now: Instant,
        place: usize,
        out: &mut impl NetworkOutput,
    ) -> Option<(PortId, MacAddr)> {
        let hop = self.forwarding.hops.get(place)?;
        let (address, is_tunnelled) = (hop.address, hop.tunnel.is_some());
        let way = match is_tunnelled {
            true => Some(self.next_hop(address)),
            false => self.port_on_link(address).map(|port| (port, address)),
        };
        let source = way.and_then(|_| self.asker(address));
        let request =
            way.zip(source).map(|((port, address), requester)| Request { port, address, requester });
        let mac = request.and_then(|request| self.neighbour(now, &request, out));
        let hop = self.forwarding.hops.get_mut(place)?;
        (hop.mac, hop.far, hop.source) = (mac, way.is_none(), source);
        (hop.port, hop.next) = way.unwrap_or((hop.port, address));
        hop.renew_at = now + if mac.is_some() { HOP_KNOWN_FOR } else { HOP_ASKED_AGAIN_AFTER };
        hop.unknown_since = if mac.is_some() { None } else { hop.unknown_since.or(Some(now)) };
        let unknown = mac.is_none() && !hop.far;
        if unknown && self.forwarding.look_at.is_none() {
            self.forwarding.look_at = Some(now + LOOK_INTERVAL);
        }
        let hop = self.forwarding.hops.get(place)?;
        Some((hop.port, mac?))
    }

    /// Looks for servers whose Ethernet address is not known: no packet does, once their flows go elsewhere.
    pub(in super::super) fn look_for_servers(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        if self.forwarding.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.forwarding.look_at = None;
        let count = self.forwarding.hops.len();
        let mut asked = 0;
        for step in 0..count {
            let place = (self.forwarding.look_from + step) % count;
            let hop = &self.forwarding.hops[place];
            if hop.mac.is_some() || hop.far {
                continue;
            }
            if asked == LOOKED_FOR_MAX {
                self.forwarding.look_from = place;
                self.forwarding.look_at = Some(now + LOOK_INTERVAL);
                break;
            }
            asked += 1;
            let _ = self.renew_way(now, place, out);
        }
    }

    /// Returns the egress address in whose name the LAN is asked for an address: one that this node answers
    /// for, if there is one.
    fn asker(&self, address: IpAddr) -> Option<IpAddr> {
        let askers = || self.forwarding.askers.iter().filter(|asker| asker.is_ipv4() == address.is_ipv4());
        askers().find(|asker| self.answers_for(**asker)).or_else(|| askers().next()).copied()
    }

    /// Returns the port on whose link an address is; `None` if it is behind a router.
    fn port_on_link(&self, address: IpAddr) -> Option<PortId> {
        let on_link = |networks: &[Prefix]| networks.iter().any(|network| network.contains(address));
        let ports = || (0..self.port_count()).map(|port| PortId(port as u16));
        let named = ports().find(|port| on_link(self.on_link(*port)));
        named.or_else(|| ports().find(|port| self.on_link(*port).is_empty()))
    }

    /// Returns a neighbour's Ethernet address, if it is known; asks for it, if need be.
    fn neighbour(
        &mut self,
        now: Instant,
        request: &Request,
        out: &mut impl NetworkOutput,
    ) -> Option<MacAddr> {
        match self.neighbours.look_up(now, *request) {
            Lookup::Known(mac) => Some(mac),
            Lookup::Renew(request, mac) => {
                self.ask(&request, out);
                Some(mac)
            }
            Lookup::Ask(request) => {
                self.ask(&request, out);
                None
            }
            Lookup::Asking | Lookup::Full => None,
        }
    }
}
