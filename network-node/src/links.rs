//! The worker's ways out: tunnels to every worker of every proxy, and the LAN ports' transmitting halves.
//!
//! A tunnel that is wanted and not there is dialled, with back-off. What a proxy is and where it is dialled comes from
//! outside ([`ProxySpec`]); whether it lives is decided by its links alone.

use std::collections::VecDeque;

use csp_lan::{LanTransmitter, TxOffload};
use csp_transport::{
    Backoff, BackoffConfig, ClusterKey, DownReason, Endpoint, LinkId, PeerIdentity, ProcessId, Purpose,
    Token, TokenClaims, TunnelBatch, token,
};
use csp_types::{Instant, NodeId, Role};
use csp_vi::ViAddress;
use csp_wire::tunnel::Record;

use crate::core::{NetworkOutput, PortId, ProxyId, TunnelFull};

/// Notices that wait to be told; the oldest are forgotten.
const NOTICES_MAX: usize = 64;
/// How long the token of a new link is good, in seconds: the handshake takes milliseconds, clocks differ.
const TOKEN_LIFETIME_S: u64 = 120;
const WORKERS_MAX: usize = csp_types::limits::PROXY_WORKERS_MAX;

/// Where a proxy's worker is dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialSpec {
    /// The proxy's worker.
    pub worker: u8,
    /// Which of our endpoints (by place) reaches it.
    pub endpoint: usize,
    /// Where it listens.
    pub address: ViAddress,
}

/// A proxy as the membership tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxySpec {
    /// Its node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: u64,
    /// Whether it may be dialled: its registration stands. A tunnel that is up stays up without.
    pub dial: bool,
    /// Its workers.
    pub workers: Vec<DialSpec>,
}

/// Makes the tokens that prove who we are.
#[derive(Clone, Debug)]
pub struct TokenSource {
    /// The cluster's key.
    pub key: ClusterKey,
    /// This node.
    pub node: NodeId,
    /// First of the numbers that make tokens different; random.
    pub nonce: u64,
}

impl TokenSource {
    fn issue(&mut self, unix_now_s: u64) -> Token {
        self.nonce = self.nonce.wrapping_add(1);
        let claims = TokenClaims {
            role: Role::NetworkNode,
            node: self.node,
            process: ProcessId::NONE,
            uid: None,
            grant: csp_types::Grant::NONE,
            not_before: unix_now_s,
            expires: unix_now_s.saturating_add(TOKEN_LIFETIME_S),
            nonce: self.nonce,
        };
        token::issue(&self.key, &claims)
    }
}

/// Something an operator wants to read in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkNotice {
    /// A tunnel is up.
    Up {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// Where it was dialled.
        address: String,
    },
    /// A tunnel that was up is down.
    Lost {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// Why.
        reason: String,
    },
    /// A tunnel could not be set up; it is tried again.
    Failed {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// Why.
        reason: String,
    },
}

/// A tunnel as the admin endpoint shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelInfo {
    /// The proxy.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// Where it is dialled.
    pub address: String,
    /// The provider's name.
    pub provider: &'static str,
    /// Whether it is up.
    pub up: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down,
    Connecting(LinkId),
    /// With the incarnation that answered.
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
    /// Made at the first connection, pointed elsewhere at later ones.
    batch: Option<TunnelBatch>,
    /// Said once for each series of failures.
    failure_reported: bool,
    /// Whether it was up once, or failed once: before that nobody knows whether its proxy is there.
    tried: bool,
    /// It was up and broke, and was not tried again yet: its proxy may well live.
    broken: bool,
}

/// What a link event means for the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    Up(ProxyId, NodeId, u8),
    /// The tunnel broke; whether its proxy lives is known when it was dialled again.
    Broken(ProxyId, u8),
    Down(ProxyId, u8),
}

pub(crate) struct Links {
    pub(crate) now: Instant,
    pub(crate) endpoints: Vec<Endpoint>,
    /// By endpoint: whether a tunnel was ever wanted on it. One that is not in use is not looked at: a library's
    /// progress costs system calls.
    used: Vec<bool>,
    pub(crate) transmitters: Vec<Box<dyn LanTransmitter>>,
    tokens: TokenSource,
    worker: u8,
    proxies_max: usize,
    slots: Vec<Option<NodeId>>,
    tunnels: Vec<Tunnel>,
    notices: VecDeque<LinkNotice>,
    /// Proxy workers whose broken tunnels could not be made again.
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
            now: Instant::ZERO,
            used: vec![false; endpoints.len()],
            endpoints,
            transmitters,
            tokens,
            worker,
            proxies_max,
            slots: vec![None; proxies_max],
            tunnels: Vec::new(),
            notices: VecDeque::with_capacity(NOTICES_MAX),
            given_up: Vec::new(),
        }
    }

    /// Takes the proxies there are now. What is not in the list any more is closed, and so is what has another
    /// address now; the rest stays as it is. Returns the proxy workers that are down by it.
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
        for proxy in proxies {
            self.add_missing(proxy);
        }
        downs
    }

    /// Brings the tunnel in step with what is said of its proxy; `false` where it is not wanted any more.
    fn keep(&mut self, at: usize, proxies: &[ProxySpec]) -> bool {
        let tunnel = &mut self.tunnels[at];
        let Some(proxy) = proxies.iter().find(|p| p.node == tunnel.node) else { return false };
        if !proxy.workers.contains(&tunnel.spec) {
            return false;
        }
        if tunnel.incarnation != proxy.incarnation {
            // A new life: try at once, unless it is already the one we are connected to.
            tunnel.incarnation = proxy.incarnation;
            tunnel.backoff.succeeded();
            if matches!(tunnel.state, State::Up(_, known) if known != proxy.incarnation) {
                return false;
            }
        }
        tunnel.dial = proxy.dial;
        true
    }

    fn add_missing(&mut self, proxy: &ProxySpec) {
        let Some(id) = self.slot_of(proxy.node) else { return };
        for spec in &proxy.workers {
            let known = self.tunnels.iter().any(|t| t.node == proxy.node && t.spec == *spec);
            let possible = spec.endpoint < self.endpoints.len() && usize::from(spec.worker) < WORKERS_MAX;
            if known || !possible {
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
                failure_reported: false,
                tried: false,
                broken: false,
            });
        }
    }

    /// The slot of a proxy's node, taking a free one for a new node. `None`: more proxies than there are slots.
    fn slot_of(&mut self, node: NodeId) -> Option<ProxyId> {
        let known = self.slots.iter().position(|s| *s == Some(node));
        let at = known.or_else(|| self.slots.iter().position(Option::is_none))?;
        self.slots[at] = Some(node);
        Some(ProxyId(at as u16))
    }

    /// Dials what is wanted, not there, and due.
    pub(crate) fn dial(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut any = false;
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
                Ok(link) => tunnel.state = State::Connecting(link),
                Err(error) => self.failed(at, &error.to_string()),
            }
        }
        any
    }

    /// The next proxy worker whose broken tunnel could not be made again.
    pub(crate) fn poll_given_up(&mut self) -> Option<Transition> {
        self.given_up.pop()
    }

    /// Whether every proxy that is wanted was reached or found missing, so that the choice among them can be trusted.
    pub(crate) fn settled(&self) -> bool {
        self.tunnels.iter().all(|t| t.tried || !t.dial)
    }

    /// A link's handshake is over.
    pub(crate) fn link_up(
        &mut self,
        endpoint: usize,
        link: LinkId,
        peer: &PeerIdentity,
    ) -> Option<Transition> {
        let now = self.now;
        let Some(at) = self.place_of(endpoint, link) else {
            self.endpoints[endpoint].close(now, link);
            return None;
        };
        let tunnel = &mut self.tunnels[at];
        let (node, worker) = (tunnel.node, tunnel.spec.worker);
        if (peer.role, peer.node, peer.worker) != (Role::ProxyNode, node, worker) {
            self.endpoints[endpoint].close(now, link);
            self.failed(at, &format!("{} {} worker {} answers there", peer.role, peer.node, peer.worker));
            return None;
        }
        tunnel.state = State::Up(link, peer.incarnation);
        tunnel.backoff.succeeded();
        (tunnel.failure_reported, tunnel.tried, tunnel.broken) = (false, true, false);
        match &mut tunnel.batch {
            Some(batch) => batch.reset(link),
            empty => *empty = Some(TunnelBatch::new(&self.endpoints[endpoint], link)),
        }
        let (proxy, address) = (tunnel.proxy, tunnel.spec.address.to_string());
        self.notice(LinkNotice::Up { node, worker, address });
        Some(Transition::Up(proxy, node, worker))
    }

    /// A link is gone.
    pub(crate) fn link_down(
        &mut self,
        endpoint: usize,
        link: LinkId,
        reason: &DownReason,
    ) -> Option<Transition> {
        let at = self.place_of(endpoint, link)?;
        let was_up = matches!(self.tunnels[at].state, State::Up(..));
        let (proxy, node, worker) =
            (self.tunnels[at].proxy, self.tunnels[at].node, self.tunnels[at].spec.worker);
        if !was_up {
            self.failed(at, &describe(reason));
            return None;
        }
        self.tunnels[at].state = State::Down;
        self.tunnels[at].backoff.failed(self.now);
        self.notice(LinkNotice::Lost { node, worker, reason: describe(reason) });
        if matches!(reason, DownReason::Closed) {
            return Some(Transition::Down(proxy, worker));
        }
        self.tunnels[at].broken = true;
        Some(Transition::Broken(proxy, worker))
    }

    fn failed(&mut self, at: usize, reason: &str) {
        let now = self.now;
        let tunnel = &mut self.tunnels[at];
        (tunnel.state, tunnel.tried) = (State::Down, true);
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
        self.notices.pop_front()
    }

    fn place_of(&self, endpoint: usize, link: LinkId) -> Option<usize> {
        let is = |t: &Tunnel| match t.state {
            State::Connecting(l) | State::Up(l, _) => l == link && t.spec.endpoint == endpoint,
            State::Down => false,
        };
        self.tunnels.iter().position(is)
    }

    /// The proxy worker at the other end of a link that is up.
    pub(crate) fn proxy_of(&self, endpoint: usize, link: LinkId) -> Option<(ProxyId, u8)> {
        let tunnel = &self.tunnels[self.place_of(endpoint, link)?];
        matches!(tunnel.state, State::Up(..)).then_some((tunnel.proxy, tunnel.spec.worker))
    }

    /// Sends what waits: records as far as there is credit, and frames.
    pub(crate) fn flush(&mut self) {
        for tunnel in &mut self.tunnels {
            if let (State::Up(..), Some(batch)) = (tunnel.state, &mut tunnel.batch) {
                // Without credit it stays; the peer's credits wake us.
                let _ = batch.flush(self.now, &mut self.endpoints[tunnel.spec.endpoint]);
            }
        }
        self.transmitters.iter_mut().for_each(|t| t.flush());
    }

    /// When the next tunnel is to be dialled.
    pub(crate) fn next_dial(&self) -> Option<Instant> {
        let waiting = self.tunnels.iter().filter(|t| t.state == State::Down && t.dial);
        waiting.map(|t| t.backoff.next_try()).min()
    }

    /// The endpoints in use, by place.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + use<> {
        let used: u64 = self.used.iter().take(64).enumerate().map(|(at, used)| u64::from(*used) << at).sum();
        (0..64).filter(move |at| used >> at & 1 == 1)
    }

    /// Closes all links cleanly.
    pub(crate) fn close(&mut self, now: Instant) {
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
            provider: provider_name(&t.spec.address),
            up: matches!(t.state, State::Up(..)),
        })
    }

    /// The node in a proxy's slot.
    pub(crate) fn node_of(&self, proxy: ProxyId) -> Option<NodeId> {
        self.slots.get(usize::from(proxy.0)).copied().flatten()
    }

    pub(crate) fn proxies_max(&self) -> usize {
        self.proxies_max
    }
}

fn provider_name(address: &ViAddress) -> &'static str {
    match address {
        ViAddress::Path(_) => "shm",
        ViAddress::Ip(_) => "ucx",
        ViAddress::Name(_) => "memory",
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

impl NetworkOutput for Links {
    fn tunnel(&mut self, proxy: ProxyId, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), TunnelFull> {
        let is = |t: &&mut Tunnel| t.proxy == proxy && t.spec.worker == record.worker;
        let tunnel = self.tunnels.iter_mut().find(is).ok_or(TunnelFull)?;
        let (State::Up(..), Some(batch)) = (tunnel.state, &mut tunnel.batch) else { return Err(TunnelFull) };
        let endpoint = &mut self.endpoints[tunnel.spec.endpoint];
        batch.send(self.now, endpoint, record, parts).map_err(|_| TunnelFull)
    }

    fn lan(&mut self, port: PortId, parts: &[&[u8]], offload: Option<TxOffload>) {
        if let Some(transmitter) = self.transmitters.get_mut(usize::from(port.0)) {
            // A port that cannot take the frame has counted it.
            let _ = transmitter.transmit(parts, offload);
        }
    }
}
