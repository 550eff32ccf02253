//! The outputs of a worker: tunnels to every worker of every proxy, and the transmitting halves of the LAN
//! ports.
//!
//! A tunnel that should exist and is down is dialled, with back-off. The addresses of proxies come from the
//! membership ([`ProxySpec`]); whether a proxy is alive is decided by its links alone.

mod election;
mod hosts;
mod output;
mod places;
mod spec;

use std::collections::VecDeque;
use std::sync::Arc;

use csp_lan::LanTransmitter;
use csp_transport::{
    Adjacency, AdjacentInbox, Backoff, BackoffConfig, DeathCause, DownReason, Endpoint, LinkId, PeerIdentity,
    Purpose, TunnelBatch,
};
use csp_types::{Instant, NodeId, Role};
use csp_wire::tunnel::ELECTION_SINCE;

use crate::core::ProxyId;
use hosts::Hosts;
use places::Places;

pub(crate) use hosts::HostTransition;
pub use hosts::{Answered, HostInstances, HostSpec};
pub use spec::{DialSpec, LinkNotice, ProxySpec, TokenSource, TunnelInfo};

/// Notices that wait to be logged; beyond this number the oldest are dropped.
const NOTICES_MAX: usize = 64;

/// Largest number of messages, 2 MiB in total, that wait for credit in one tunnel. Segments are not lost
/// while a proxy worker is busy for some milliseconds, and the clients' windows bound their number. Other
/// tunnels are not delayed.
const QUEUE_MESSAGES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down,
    Connecting(LinkId),
    /// The link, and the incarnation of the proxy that answered.
    Up(LinkId, u64),
}

struct Tunnel {
    proxy: ProxyId,
    node: NodeId,
    incarnation: u64,
    dial: bool,
    spec: DialSpec,
    state: State,
    backoff: Backoff,
    /// Created with the first connection. Later connections replace its link.
    batch: Option<TunnelBatch>,
    /// While it is up, of the proxy's worker in this worker's thread: where its records are left.
    inbox: Option<Arc<dyn AdjacentInbox>>,
    /// Whether the current series of failures has been reported.
    failure_reported: bool,
    /// Whether it was up, or failed, at least once. Before that it is not known whether its proxy is
    /// reachable.
    tried: bool,
    /// Whether it was up, broke, and was not dialled again since: its proxy may be alive.
    broken: bool,
    /// Whether it was up, ended, and was not dialled again since: its proxy may have ended it because this
    /// node was stopped, or cut off.
    undialled: bool,
    /// Whether its proxy may be alive and have connections although the tunnel is down: it was never up, or
    /// its peer became silent. A peer that has hung up is dead.
    doubtful: bool,
    /// How often it could not be set up since it was up.
    failures: u32,
    /// Whether its proxy knows [`csp_wire::tunnel::RecordKind::Election`].
    elects: bool,
}

/// A change of the core's view that a link event causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    Up(ProxyId, NodeId, u8),
    /// The tunnel broke. The next dial will show whether its proxy is alive.
    Broken(ProxyId, u8),
    Down(ProxyId, u8),
}

/// All links and ports of one worker. Time is an argument of every call that needs it.
pub(crate) struct Links {
    pub(crate) endpoints: Vec<Endpoint>,
    /// For each endpoint, whether a tunnel has ever used it. Unused endpoints are not polled, because a
    /// library's progress function makes system calls.
    used: Vec<bool>,
    pub(crate) transmitters: Vec<Box<dyn LanTransmitter>>,
    /// For each port: the transmitter that passes its frames to the host's kernel.
    pub(crate) kernels: Vec<Option<Box<dyn LanTransmitter>>>,
    tokens: TokenSource,
    worker: u8,
    /// The node itself and a proxy, if their workers share threads.
    pub(crate) adjacency: Option<Arc<Adjacency>>,
    slots: Vec<Option<NodeId>>,
    /// Listed proxies without a free slot.
    without_slot: Vec<NodeId>,
    tunnels: Vec<Tunnel>,
    places: Places,
    pub(crate) hosts: Hosts,
    notices: VecDeque<LinkNotice>,
    /// Proxy workers whose broken tunnels could not be set up again.
    given_up: Vec<Transition>,
}

impl Links {
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        transmitters: Vec<Box<dyn LanTransmitter>>,
        tokens: TokenSource,
        worker: u8,
        proxies_max: usize,
    ) -> Self {
        Links {
            used: vec![false; endpoints.len()],
            places: Places::new(proxies_max, endpoints.len()),
            endpoints,
            kernels: transmitters.iter().map(|_| None).collect(),
            transmitters,
            tokens,
            worker,
            adjacency: None,
            slots: vec![None; proxies_max],
            without_slot: Vec::new(),
            tunnels: Vec::new(),
            hosts: Hosts::default(),
            notices: VecDeque::with_capacity(NOTICES_MAX),
            given_up: Vec::new(),
        }
    }

    /// Replaces the list of proxies. Tunnels to proxies no longer listed, or listed with another address, are
    /// closed; all others are unchanged. Returns the proxy workers that are down as a result.
    pub(crate) fn set_proxies(&mut self, now: Instant, proxies: &[ProxySpec]) -> Vec<Transition> {
        let mut downs = Vec::new();
        let mut at = 0;
        while at < self.tunnels.len() {
            if self.keep(at, proxies) {
                at += 1;
                continue;
            }
            let gone = self.tunnels.swap_remove(at);
            if let State::Connecting(link) | State::Up(link, _) = gone.state {
                self.endpoints[gone.spec.endpoint].close(now, link);
            }
            if matches!(gone.state, State::Up(..)) || gone.broken {
                downs.push(Transition::Down(gone.proxy, gone.spec.worker));
            }
        }
        for slot in &mut self.slots {
            slot.take_if(|node| !proxies.iter().any(|p| p.node == *node));
        }
        self.without_slot.retain(|node| proxies.iter().any(|p| p.node == *node));
        for proxy in proxies {
            self.add_missing(proxy);
        }
        self.index();
        downs
    }

    /// Updates a tunnel from the list of proxies; `false` if it should no longer exist.
    fn keep(&mut self, at: usize, proxies: &[ProxySpec]) -> bool {
        let tunnel = &mut self.tunnels[at];
        let Some(proxy) = proxies.iter().find(|p| p.node == tunnel.node) else { return false };
        if !proxy.workers.contains(&tunnel.spec) {
            return false;
        }
        if tunnel.incarnation != proxy.incarnation {
            // A new incarnation: dial at once, unless the tunnel is already connected to it.
            tunnel.incarnation = proxy.incarnation;
            tunnel.backoff.succeeded();
            if matches!(tunnel.state, State::Up(_, known) if known != proxy.incarnation) {
                return false;
            }
        }
        tunnel.dial = proxy.dial;
        true
    }

    /// Replaces the plug-in hosts. Returns those that no longer run.
    pub(crate) fn set_hosts(&mut self, now: Instant, specs: &[HostSpec]) -> Vec<HostTransition> {
        specs.iter().for_each(|spec| self.used[spec.dial.endpoint] = true);
        self.hosts.set(now, specs, &mut self.endpoints)
    }

    /// Rebuilds the index of tunnels by proxy worker and by link.
    fn index(&mut self) {
        self.places.clear();
        for (at, tunnel) in self.tunnels.iter().enumerate() {
            self.places.set_worker(tunnel.proxy, tunnel.spec.worker, at);
            if let State::Connecting(link) | State::Up(link, _) = tunnel.state {
                self.places.set_link(tunnel.spec.endpoint, link, at);
            }
        }
    }

    fn add_missing(&mut self, proxy: &ProxySpec) {
        let Some(id) = self.slot_of(proxy.node) else {
            if !self.without_slot.contains(&proxy.node) {
                self.without_slot.push(proxy.node);
                self.notice(LinkNotice::NoSlot { node: proxy.node });
            }
            return;
        };
        self.without_slot.retain(|node| *node != proxy.node);
        for spec in &proxy.workers {
            let known = self.tunnels.iter().any(|t| t.node == proxy.node && t.spec == *spec);
            if known {
                continue;
            }
            self.used[spec.endpoint] = true;
            let seed = self.tokens.nonce ^ u64::from(id.0) << 8 ^ u64::from(spec.worker);
            self.tunnels.push(Tunnel {
                proxy: id,
                node: proxy.node,
                incarnation: proxy.incarnation,
                dial: proxy.dial,
                spec: spec.clone(),
                state: State::Down,
                backoff: Backoff::new(BackoffConfig::default(), seed),
                batch: None,
                inbox: None,
                failure_reported: false,
                tried: false,
                broken: false,
                undialled: false,
                doubtful: true,
                failures: 0,
                elects: false,
            });
        }
    }

    /// Returns the slot of a proxy's node, assigning a free one to a new node. `None` if there are more
    /// proxies than slots.
    fn slot_of(&mut self, node: NodeId) -> Option<ProxyId> {
        if let Some(known) = self.id_of(node) {
            return Some(known);
        }
        let at = self.slots.iter().position(Option::is_none)?;
        self.slots[at] = Some(node);
        Some(ProxyId(at as u16))
    }

    /// Dials every tunnel that should exist, is down, and is due. Returns whether there was any.
    pub(crate) fn dial(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let Links { hosts, endpoints, tokens, .. } = self;
        let mut any = hosts.dial(now, unix_now_s, self.worker, tokens, endpoints);
        for at in 0..self.tunnels.len() {
            let tunnel = &mut self.tunnels[at];
            if tunnel.state != State::Down || !tunnel.dial || !tunnel.backoff.ready(now) {
                continue;
            }
            any = true;
            let token = self.tokens.issue(unix_now_s);
            let endpoint = &mut self.endpoints[tunnel.spec.endpoint];
            let address = &tunnel.spec.address;
            match endpoint.connect(now, address, Purpose::Tunnel, self.worker, (0, 1), token.as_bytes()) {
                Ok(link) => {
                    tunnel.state = State::Connecting(link);
                    self.places.set_link(tunnel.spec.endpoint, link, at);
                }
                Err(error) => self.failed(now, at, &error.to_string()),
            }
        }
        any
    }

    /// Returns the next proxy worker whose broken tunnel could not be set up again.
    pub(crate) fn poll_given_up(&mut self) -> Option<Transition> {
        self.given_up.pop()
    }

    /// Returns whether every listed proxy was reached or failed at least once, so that the choice among them
    /// is reliable.
    pub(crate) fn settled(&self) -> bool {
        self.tunnels.iter().all(|t| t.tried || !t.dial)
    }

    /// Processes the end of a link's handshake.
    pub(crate) fn link_up(
        &mut self,
        now: Instant,
        endpoint: usize,
        link: LinkId,
        peer: &PeerIdentity,
    ) -> Option<Transition> {
        let Some(at) = self.place_of(endpoint, link) else {
            self.endpoints[endpoint].close(now, link);
            return None;
        };
        let tunnel = &mut self.tunnels[at];
        let (node, worker) = (tunnel.node, tunnel.spec.worker);
        if (peer.role, peer.node, peer.worker) != (Role::ProxyNode, node, worker) {
            self.endpoints[endpoint].close(now, link);
            let reason = format!("{} {} worker {} answers there", peer.role, peer.node, peer.worker);
            self.failed(now, at, &reason);
            return None;
        }
        tunnel.state = State::Up(link, peer.incarnation);
        tunnel.backoff.succeeded();
        (tunnel.failure_reported, tunnel.tried, tunnel.broken) = (false, true, false);
        (tunnel.undialled, tunnel.doubtful, tunnel.failures) = (false, false, 0);
        let version = self.endpoints[endpoint].link(link).map_or(0, |info| info.version);
        tunnel.elects = version >= ELECTION_SINCE;
        let shared = self.adjacency.as_ref().filter(|both| (both.proxy_node, self.worker) == (node, worker));
        tunnel.inbox = shared.and_then(|both| both.inbox(worker));
        match &mut tunnel.batch {
            Some(batch) => batch.reset(link),
            empty => *empty = Some(TunnelBatch::with_queue(&self.endpoints[endpoint], link, QUEUE_MESSAGES)),
        }
        let (proxy, address) = (tunnel.proxy, tunnel.spec.address.to_string());
        self.notice(LinkNotice::Up { node, worker, address });
        Some(Transition::Up(proxy, node, worker))
    }

    /// Processes the end of a link.
    pub(crate) fn link_down(
        &mut self,
        now: Instant,
        endpoint: usize,
        link: LinkId,
        reason: &DownReason,
    ) -> Option<Transition> {
        let at = self.place_of(endpoint, link)?;
        let was_up = matches!(self.tunnels[at].state, State::Up(..));
        let (proxy, node, worker) =
            (self.tunnels[at].proxy, self.tunnels[at].node, self.tunnels[at].spec.worker);
        if !was_up {
            self.failed(now, at, &describe(reason));
            return None;
        }
        self.tunnels[at].state = State::Down;
        (self.tunnels[at].inbox, self.tunnels[at].undialled) = (None, true);
        self.tunnels[at].doubtful =
            !matches!(reason, DownReason::Closed | DownReason::Died(DeathCause::HangUp));
        self.tunnels[at].backoff.failed(now);
        self.notice(LinkNotice::Lost { node, worker, reason: describe(reason) });
        if matches!(reason, DownReason::Closed) {
            return Some(Transition::Down(proxy, worker));
        }
        self.tunnels[at].broken = true;
        Some(Transition::Broken(proxy, worker))
    }

    fn failed(&mut self, now: Instant, at: usize, reason: &str) {
        let tunnel = &mut self.tunnels[at];
        (tunnel.state, tunnel.tried, tunnel.undialled) = (State::Down, true, false);
        tunnel.failures = tunnel.failures.saturating_add(1);
        tunnel.backoff.failed(now);
        if std::mem::replace(&mut tunnel.broken, false) {
            self.given_up.push(Transition::Down(tunnel.proxy, tunnel.spec.worker));
        }
        let (node, worker) = (tunnel.node, tunnel.spec.worker);
        if !std::mem::replace(&mut tunnel.failure_reported, true) {
            self.notice(LinkNotice::Failed { node, worker, reason: reason.to_owned() });
        }
    }

    fn notice(&mut self, notice: LinkNotice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    pub(crate) fn poll_notice(&mut self) -> Option<LinkNotice> {
        self.notices.extend(self.hosts.take_notices());
        self.notices.pop_front()
    }

    /// Returns the index of the tunnel of a link; `None` for a link that its tunnel has replaced or given up.
    fn place_of(&self, endpoint: usize, link: LinkId) -> Option<usize> {
        let at = self.places.of_link(endpoint, link)?;
        let tunnel = self.tunnels.get(at)?;
        let current = match tunnel.state {
            State::Connecting(l) | State::Up(l, _) => l == link && tunnel.spec.endpoint == endpoint,
            State::Down => false,
        };
        current.then_some(at)
    }

    /// Returns a proxy if the tunnel to its worker of this worker's number is up.
    pub(crate) fn adjacent(&self, proxy: NodeId) -> Option<ProxyId> {
        let id = self.id_of(proxy)?;
        let tunnel = self.tunnels.get(self.places.of_worker(id, self.worker)?)?;
        matches!(tunnel.state, State::Up(..)).then_some(id)
    }

    /// Returns the proxy worker at the other end of a link that is up.
    pub(crate) fn proxy_of(&self, endpoint: usize, link: LinkId) -> Option<(ProxyId, u8)> {
        let tunnel = &self.tunnels[self.place_of(endpoint, link)?];
        matches!(tunnel.state, State::Up(..)).then_some((tunnel.proxy, tunnel.spec.worker))
    }

    /// Sends queued records as far as there is credit, and queued frames.
    pub(crate) fn flush(&mut self, now: Instant) {
        for tunnel in &mut self.tunnels {
            if let (State::Up(..), Some(batch)) = (tunnel.state, &mut tunnel.batch) {
                // Without credit the batch is kept; the peer's next credits wake this thread.
                let _ = batch.flush(now, &mut self.endpoints[tunnel.spec.endpoint]);
            }
        }
        self.hosts.flush(now, &mut self.endpoints);
        self.transmitters.iter_mut().for_each(|t| t.flush());
    }

    /// Returns when the next tunnel is to be dialled.
    pub(crate) fn next_dial(&self) -> Option<Instant> {
        let waiting = self.tunnels.iter().filter(|t| t.state == State::Down && t.dial);
        waiting.map(|t| t.backoff.next_try()).chain(self.hosts.next_dial()).min()
    }

    /// Returns whether an endpoint is in use, by its index.
    pub(crate) fn is_used(&self, endpoint: usize) -> bool {
        self.used.get(endpoint).is_some_and(|used| *used)
    }

    /// Returns the endpoints in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().zip(&self.used).filter_map(|(endpoint, used)| used.then_some(endpoint))
    }

    /// Returns the endpoints in use, mutable.
    pub(crate) fn used_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        self.endpoints.iter_mut().zip(&self.used).filter_map(|(endpoint, used)| used.then_some(endpoint))
    }

    /// Closes all links cleanly.
    pub(crate) fn close(&mut self, now: Instant) {
        self.hosts.close(now, &mut self.endpoints);
        for tunnel in &mut self.tunnels {
            tunnel.dial = false;
            if let State::Connecting(link) | State::Up(link, _) = tunnel.state {
                self.endpoints[tunnel.spec.endpoint].close(now, link);
            }
        }
    }

    pub(crate) fn tunnels(&self) -> impl Iterator<Item = TunnelInfo> + '_ {
        self.tunnels.iter().map(|t| TunnelInfo {
            node: t.node,
            worker: t.spec.worker,
            address: t.spec.address.to_string(),
            provider: self.endpoints[t.spec.endpoint].provider_name(),
            up: matches!(t.state, State::Up(..)),
        })
    }

    /// Returns the slot of a proxy's node.
    pub(crate) fn id_of(&self, node: NodeId) -> Option<ProxyId> {
        self.slots.iter().position(|s| *s == Some(node)).map(|at| ProxyId(at as u16))
    }

    /// Returns the node in a proxy's slot.
    pub(crate) fn node_of(&self, proxy: ProxyId) -> Option<NodeId> {
        self.slots.get(usize::from(proxy.0)).copied().flatten()
    }

    pub(crate) fn proxies_max(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of proxies with a slot, and the number of listed proxies without one.
    pub(crate) fn proxies(&self) -> (usize, usize) {
        (self.slots.iter().flatten().count(), self.without_slot.len())
    }
}

fn describe(reason: &DownReason) -> String {
    match reason {
        DownReason::Closed => "closed".to_owned(),
        DownReason::Died(cause) => format!("died: {cause:?}"),
        DownReason::Refused { code, text } => format!("refused ({code:?}): {text}"),
        DownReason::Unreachable { why } => format!("unreachable: {why}"),
    }
}
