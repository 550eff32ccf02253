//! An application process: it accepts connections in the manner of its kind, reads a request, serves for a
//! time, and sends the request back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use csp_app::{AppConfig, AppError, AppSide, FlowId, Handle, ListenerId, PAUSE_MAX, ProxyTarget, Readiness};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, PeerIdentity, ProcessId, TokenClaims, token};
use csp_types::{Duration, Instant, NodeId, Role};
use csp_vi::Provider;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::crowd::REQUEST_LEN;
use super::scenario::{Kind, ServerPlan, service_time};

/// The longest transit time of a message to the proxy and of one back, and a turn.
const WITHDRAWAL_MAX: Duration = Duration::from_millis(2 * 2 + 1);

/// A connection being served.
struct Talk {
    until: Instant,
    request: Vec<u8>,
    finished: bool,
}

/// A process.
pub(crate) struct Server {
    pub name: String,
    pub plan: ServerPlan,
    side: AppSide,
    listener: Option<ListenerId>,
    random: ChaCha8Rng,
    talks: BTreeMap<FlowId, Talk>,
    /// When the service of each connection ends.
    due: BTreeSet<(Instant, FlowId)>,
    /// When it polls the listener again.
    returns: Option<Instant>,
    /// Until then it does not read its channel.
    computes_until: Option<Instant>,
    /// Since when it has read its channel without polling the listener.
    away_since: Option<Instant>,
    polls: bool,
    /// Offers that it refused although the proxy must have known that it does not poll the listener.
    pub late_offers: u64,
    /// Connections waited at the listener although a pause had lasted.
    pub kept: bool,
    /// Since when it does nothing but wait for connections.
    pub idle_since: Option<Instant>,
    /// Clients that it accepted, in order.
    pub accepted: Vec<SocketAddr>,
    /// It is to close its listener and exit.
    pub closes: bool,
}

fn endpoint(provider: Box<dyn Provider>, node: NodeId, process: ProcessId, nonce: u64) -> Endpoint {
    let identity = PeerIdentity {
        role: Role::Process,
        process,
        uid: None,
        ..PeerIdentity::daemon(Role::Process, node, nonce, 0)
    };
    Endpoint::new(provider, EndpointConfig::channel(identity, None))
}

impl Server {
    /// Creates a process on `node` that listens at `port`.
    pub(crate) fn new(
        provider: Box<dyn Provider>,
        key: &ClusterKey,
        (node, port): (NodeId, u16),
        (number, seed): (u64, u64),
        plan: ServerPlan,
        proxy: &ProxyTarget,
    ) -> Self {
        let name = server_name(number);
        let process = ProcessId::parse(name.as_bytes()).unwrap_or(ProcessId::NONE);
        let claims = TokenClaims {
            role: Role::Process,
            node,
            process,
            uid: None,
            grant: csp_types::Grant::all(),
            not_before: 0,
            expires: 1 << 40,
            nonce: number,
        };
        let config = AppConfig {
            flows_max: plan.flows_max,
            accept_window: plan.accept_window,
            pool: plan.links,
            trace_capacity: 16,
            seed: number,
            ..AppConfig::default()
        };
        let endpoint = endpoint(provider, node, process, number);
        let mut side = AppSide::new(endpoint, config, token::issue(&key.signing(&claims), &claims));
        side.set_proxies(std::slice::from_ref(proxy));
        let listener =
            side.listen(([0, 0, 0, 0], port).into(), plan.backlog).expect("an empty table has room");
        side.set_interest(listener, true).expect("the listener is there");
        Server {
            name,
            plan,
            side,
            listener: Some(listener),
            random: ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ number),
            talks: BTreeMap::new(),
            due: BTreeSet::new(),
            returns: None,
            computes_until: None,
            away_since: None,
            polls: true,
            late_offers: 0,
            kept: false,
            idle_since: None,
            accepted: Vec::new(),
            closes: false,
        }
    }

    /// Performs what is possible; returns whether anything was done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        if self.computes_until.is_some_and(|until| until > now) {
            return false;
        }
        let mut any = self.computes_until.take().is_some();
        any |= self.progress(now);
        while let Some(handle) = self.side.poll_ready() {
            any = true;
            if let Handle::Flow(id) = handle {
                self.serve(now, id);
            }
        }
        while let Some(&(_, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            any = true;
            self.due.pop_first();
            self.serve(now, id);
        }
        if self.closes
            && let Some(listener) = self.listener.take()
        {
            any = true;
            self.side.close_listener(listener).expect("the listener is there");
        }
        let before = self.accepted.len();
        if let Some(listener) = self.listener {
            any |= self.accept_some(now, listener);
        }
        let idle = self.is_idle();
        let since = self.idle_since.filter(|_| self.accepted.len() == before).unwrap_or(now);
        self.idle_since = idle.then_some(since);
        any
    }

    /// Runs the channel, and counts offers that the proxy made to a listener which is not polled. The proxy
    /// knows that after the pause has lasted and the withdrawal of the credit has arrived; its last offer is
    /// handed back meanwhile.
    fn progress(&mut self, now: Instant) -> bool {
        let refused = self.side.counters().refused;
        let any = self.side.progress(now, 1);
        if self.polls || self.listener.is_none() {
            return any;
        }
        let since = *self.away_since.get_or_insert(now);
        if now - since > PAUSE_MAX {
            self.kept |= self.listener.is_some_and(|listener| self.side.accept_queue_len(listener) > 0);
        }
        if now - since > PAUSE_MAX + WITHDRAWAL_MAX {
            self.late_offers += self.side.counters().refused - refused;
        }
        any
    }

    fn accept_some(&mut self, now: Instant, listener: ListenerId) -> bool {
        let before = self.accepted.len();
        match self.plan.kind {
            Kind::Toggling { every, away, progresses } => {
                if self.returns.is_some_and(|at| at > now) {
                    return false;
                }
                let returned = self.returns.take().is_some();
                while self.accept_up_to(now, listener, every as usize) {
                    self.set_interest(listener, false);
                    if !away.is_zero() {
                        self.returns = Some(now + away);
                        break;
                    }
                    if progresses {
                        self.progress(now);
                    }
                    self.set_interest(listener, true);
                }
                return returned || self.accepted.len() > before;
            }
            Kind::Limited { slots } => {
                let free = slots.saturating_sub(self.talks.len());
                if self.accept_up_to(now, listener, free) {
                    self.set_interest(listener, false);
                }
            }
            Kind::Prefork { computes, stops_polling } if self.talks.is_empty() => {
                if self.accept_up_to(now, listener, 1) {
                    if stops_polling {
                        self.set_interest(listener, false);
                    }
                    if self.random.random_range(0..8) < computes {
                        self.computes_until = self.due.first().map(|(at, _)| *at);
                    }
                }
            }
            Kind::Prefork { .. } => {}
        }
        self.accepted.len() > before
    }

    /// Accepts until it has `most` connections, or none waits; returns whether it has `most`.
    fn accept_up_to(&mut self, now: Instant, listener: ListenerId, most: usize) -> bool {
        if most > 0 {
            self.set_interest(listener, true);
        }
        for _ in 0..most {
            let readable = self.side.readiness(Handle::Listener(listener)).contains(Readiness::READABLE);
            if !readable && !self.plan.until_empty {
                return false;
            }
            let Ok(accepted) = self.side.accept(listener) else { return false };
            self.accepted.push(accepted.remote);
            let until = now + service_time(&mut self.random, self.plan.serves_max);
            self.due.insert((until, accepted.flow));
            self.talks.insert(accepted.flow, Talk { until, request: Vec::new(), finished: false });
        }
        true
    }

    fn set_interest(&mut self, listener: ListenerId, interested: bool) {
        self.polls = interested;
        self.away_since = None;
        self.side.set_interest(listener, interested).expect("the listener is there");
    }

    /// Reads what has arrived; after the service time, and if the request is complete, replies and closes.
    fn serve(&mut self, now: Instant, id: FlowId) {
        let Some(talk) = self.talks.get_mut(&id) else { return };
        let mut chunk = [0; REQUEST_LEN];
        let over = loop {
            match self.side.read(now, id, &mut chunk, false) {
                Ok(0) => break true,
                Ok(n) => talk.request.extend_from_slice(&chunk[..n]),
                Err(AppError::WouldBlock) => break false,
                Err(_) => break true,
            }
        };
        talk.finished |= over;
        let complete = talk.request.len() == REQUEST_LEN;
        if complete && !talk.finished && talk.until <= now {
            let request = std::mem::take(&mut talk.request);
            match self.side.write(now, id, &[&request]) {
                Ok(n) => talk.finished = n == REQUEST_LEN,
                Err(AppError::WouldBlock) => talk.request = request,
                Err(_) => talk.finished = true,
            }
        }
        if talk.finished {
            let until = talk.until;
            self.talks.remove(&id);
            self.due.remove(&(until, id));
            let _ = self.side.close(now, id, false); // a broken flow is closed like any other
        }
    }

    fn is_idle(&self) -> bool {
        let free = match self.plan.kind {
            Kind::Toggling { .. } => self.returns.is_none(),
            Kind::Limited { slots } => self.talks.len() < slots,
            Kind::Prefork { .. } => self.talks.is_empty(),
        };
        free && self.computes_until.is_none()
            && self.side.channels_up() == 1
            && self.side.flow_count() < self.plan.flows_max
            && self.listener.is_some_and(|listener| self.side.accept_queue_len(listener) == 0)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.computes_until.is_some() {
            return self.computes_until;
        }
        let due = self.due.first().map(|(at, _)| *at);
        [due, self.returns, self.side.next_timeout()].into_iter().flatten().min()
    }

    /// Returns whether it listens and its proxy is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.listener.is_some() && self.side.channels_up() == 1
    }

    /// Returns whether it has closed its listener and all accepted connections have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.listener.is_none() && self.side.flow_count() == 0
    }

    /// Returns the range of its accept credit at a proxy while it waits for connections: more than half of
    /// the window, and at most all of it; less if its table of flows is smaller.
    pub(crate) fn credit_range(&self) -> (u64, u64) {
        let window = u64::from(self.plan.accept_window.min(self.plan.backlog));
        ((window / 2 + 1).min(self.plan.flows_max as u64), window)
    }

    pub(crate) fn side(&self) -> &AppSide {
        &self.side
    }
}

/// Returns the name of the process with this number, also on the fabric.
pub(crate) fn server_name(number: u64) -> String {
    format!("process-{number}")
}
