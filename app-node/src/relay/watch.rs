//! The agent's own links: one to each proxy worker that carries VIs of processes.
//!
//! A process that waits for data does not notice that its proxy's host has vanished, and no SAN reports it
//! within a second. The agent's link has the transport's heartbeat. It is a channel without listeners and
//! flows, of a process named `agent`, a name that no real process can have.

use std::collections::VecDeque;

use csp_transport::{
    Backoff, BackoffConfig, DeathCause, DownReason, Endpoint, EndpointConfig, Keys, LinkEvent, LinkId,
    PeerIdentity, ProcessId, Purpose, Token, TokenClaims,
};
use csp_types::{Instant, NodeId, Role};
use csp_vi::{Armed, Provider, ViError, Wake};

use super::RelayConfig;
use super::routes::{Route, Target};

/// Receive buffers of an own link: it carries heartbeats only.
const DEPTH: u32 = 8;
/// Lifetime of a new link's token, in seconds: the handshake takes milliseconds, but clocks differ.
const TOKEN_LIFETIME_S: u64 = 120;
/// The process name of the agent's links. Ids that it assigns to processes contain a hyphen.
const NAME: &[u8] = b"agent";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down,
    Connecting(LinkId),
    Up(LinkId),
}

#[derive(Debug)]
struct Watched {
    route: u32,
    target: Target,
    via: usize,
    state: State,
    backoff: Backoff,
    /// The same in all tokens of a route. It lets the proxy recognise that a new link replaces one that waits
    /// for its VI.
    nonce: u64,
}

pub(super) struct Watch {
    endpoints: Vec<Endpoint>,
    /// By endpoint: whether a link was ever wanted on it.
    used: Vec<bool>,
    list: Vec<Watched>,
    dead: VecDeque<u32>,
    keys: Keys,
    node: NodeId,
    nonce: u64,
}

impl Watch {
    pub(super) fn new(config: &RelayConfig, providers: Vec<Box<dyn Provider>>) -> Self {
        let process = ProcessId::parse(NAME).unwrap_or_default();
        let identity = PeerIdentity::process(config.node, process, config.incarnation);
        let endpoint = EndpointConfig {
            receive_depth: DEPTH,
            send_depth: DEPTH,
            message_len: config.vi.message_len,
            ..EndpointConfig::channel(identity, None)
        };
        Watch {
            used: vec![false; providers.len()],
            endpoints: providers.into_iter().map(|p| Endpoint::new(p, endpoint.clone())).collect(),
            list: Vec::new(),
            dead: VecDeque::new(),
            keys: config.keys.clone(),
            node: config.node,
            nonce: config.nonce,
        }
    }

    /// Watches the proxy worker of a route, which now carries a VI.
    pub(super) fn want(&mut self, route: &Route) {
        if self.list.iter().any(|watched| watched.route == route.number) {
            return;
        }
        self.nonce = self.nonce.wrapping_add(1);
        self.used[route.via] = true;
        self.list.push(Watched {
            route: route.number,
            target: route.target.clone(),
            via: route.via,
            state: State::Down,
            backoff: Backoff::new(BackoffConfig::default(), self.nonce),
            nonce: self.nonce,
        });
    }

    /// Stops watching a route.
    pub(super) fn remove(&mut self, now: Instant, route: u32) {
        let Some(at) = self.list.iter().position(|watched| watched.route == route) else { return };
        let gone = self.list.swap_remove(at);
        if let State::Connecting(link) | State::Up(link) = gone.state {
            self.endpoints[gone.via].close(now, link);
        }
    }

    /// Returns whether the link of a route is up.
    pub(super) fn is_up(&self, route: u32) -> bool {
        self.list.iter().any(|watched| watched.route == route && matches!(watched.state, State::Up(_)))
    }

    /// Returns the next route whose proxy worker has fallen silent.
    pub(super) fn poll_dead(&mut self) -> Option<u32> {
        self.dead.pop_front()
    }

    pub(super) fn turn(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut busy = self.dial(now, unix_now_s);
        for via in 0..self.endpoints.len() {
            if self.used[via] {
                busy |= self.endpoints[via].progress(now, unix_now_s);
                busy |= self.take(now, via);
            }
        }
        busy
    }

    fn take(&mut self, now: Instant, via: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoints[via].poll_event() {
            any = true;
            match event {
                LinkEvent::Up { link, peer, .. } => self.on_up(now, via, link, &peer),
                LinkEvent::Down { link, reason } => self.on_down(now, via, link, &reason),
            }
        }
        // No messages are expected; unexpected ones are received and discarded, which returns their credits.
        while self.endpoints[via].receive(now, &mut []).is_some() {
            any = true;
        }
        any
    }

    fn on_up(&mut self, now: Instant, via: usize, link: LinkId, peer: &PeerIdentity) {
        let Some(watched) = find(&mut self.list, via, link) else {
            return self.endpoints[via].close(now, link);
        };
        let (node, worker) = (watched.target.node, watched.target.worker);
        if (peer.node, peer.worker) != (node, worker) {
            tracing::warn!(proxy = %node, worker, found = %peer.node, "another node answers at the proxy's address");
            return self.endpoints[via].close(now, link);
        }
        watched.state = State::Up(link);
        watched.backoff.succeeded();
        tracing::info!(proxy = %node, worker, address = %watched.target.address, "proxy reached over the SAN");
    }

    fn on_down(&mut self, now: Instant, via: usize, link: LinkId, reason: &DownReason) {
        let Some(watched) = find(&mut self.list, via, link) else { return };
        let (node, worker) = (watched.target.node, watched.target.worker);
        if matches!(watched.state, State::Up(_)) {
            tracing::warn!(proxy = %node, worker, ?reason, "proxy lost");
            if *reason == DownReason::Died(DeathCause::Silent) {
                self.dead.push_back(watched.route);
            }
        }
        watched.state = State::Down;
        watched.backoff.failed(now);
    }

    fn dial(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut any = false;
        for at in 0..self.list.len() {
            if self.list[at].state != State::Down || !self.list[at].backoff.ready(now) {
                continue;
            }
            any = true;
            let token = self.issue(unix_now_s, self.list[at].nonce);
            let Watched { target, via, state, backoff, .. } = &mut self.list[at];
            let endpoint = &mut self.endpoints[*via];
            match endpoint.connect(now, &target.address, Purpose::Channel, 0, (0, 1), token.as_bytes()) {
                Ok(link) => *state = State::Connecting(link),
                Err(_) => drop(backoff.failed(now)),
            }
        }
        any
    }

    fn issue(&self, unix_now_s: u64, nonce: u64) -> Token {
        let claims = TokenClaims {
            role: Role::Process,
            node: self.node,
            process: ProcessId::parse(NAME).unwrap_or_default(),
            uid: None,
            grant: csp_types::Grant::NONE,
            not_before: unix_now_s,
            expires: unix_now_s.saturating_add(TOKEN_LIFETIME_S),
            nonce,
        };
        self.keys.issue(&claims)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let down = self.list.iter().filter(|watched| watched.state == State::Down);
        let dials = down.map(|watched| watched.backoff.next_try());
        dials.chain(self.endpoints.iter().filter_map(Endpoint::next_timeout)).min()
    }

    pub(super) fn arm(&mut self) -> Result<Armed, ViError> {
        for (endpoint, _) in self.endpoints.iter_mut().zip(&self.used).filter(|(_, used)| **used) {
            if endpoint.arm()? == Armed::Busy {
                return Ok(Armed::Busy);
            }
        }
        Ok(Armed::Armed)
    }

    pub(super) fn wake(&self, into: &mut Vec<Wake>) {
        self.endpoints.iter().for_each(|endpoint| endpoint.wake(into));
    }

    pub(super) fn wake_generation(&self) -> u64 {
        self.endpoints.iter().map(Endpoint::wake_generation).fold(0, u64::wrapping_add)
    }

    /// Closes all links.
    pub(super) fn close(&mut self, now: Instant) {
        while let Some(route) = self.list.first().map(|watched| watched.route) {
            self.remove(now, route);
        }
    }
}

fn find(list: &mut [Watched], via: usize, link: LinkId) -> Option<&mut Watched> {
    list.iter_mut().find(|watched| {
        let known = matches!(watched.state, State::Connecting(l) | State::Up(l) if l == link);
        watched.via == via && known
    })
}
