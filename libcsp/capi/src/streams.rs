//! Streams: connections through the proxies.
//!
//! Received data is copied once from the stream's queue into a buffer of the pool; sent data once from the
//! buffer into the ring that the proxy reads.

use std::net::SocketAddr;

use csp_app::{AppConfig, AppError, AppSide, Directions, FlowId, Handle, ListenerId, Readiness};
use csp_types::{Duration, Instant, ProgramName};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, Pair, Provider, ProviderKind, Wake};

use crate::agent::Agent;
use crate::connection::{Connection, Listener, Source, Transport};
use crate::core::{Core, EventType};
use crate::error::{Error, Result, of_errno};
use crate::handle::Key;
use crate::system::random;

/// Time for which a connection waits for the first proxy's link.
const PROXY_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection requested before any proxy's link was up.
struct Waiting {
    key: Key,
    remote: SocketAddr,
    until: Instant,
}

/// The streams of a context.
pub struct Streams {
    app: AppSide,
    agent: Agent,
    flow_owners: Vec<Option<Key>>,
    listener_owners: Vec<Option<Key>>,
    waiting: Vec<Waiting>,
    /// Whether a listener accepts no connections because the table was full.
    any_paused: bool,
}

fn own(owners: &mut Vec<Option<Key>>, at: usize, key: Option<Key>) {
    if owners.len() <= at {
        owners.resize(at + 1, None);
    }
    if let Some(owner) = owners.get_mut(at) {
        *owner = key;
    }
}

impl Streams {
    /// Attaches to the agent, for `connections_max` streams at once.
    pub fn attach(path: &std::path::Path, program: &ProgramName, connections_max: usize) -> Result<Streams> {
        let mut agent = Agent::attach(path, program)?;
        // Streams that the program has ended may still wait for the proxy's last message.
        let flows_max = connections_max.saturating_mul(2);
        let config = AppConfig { seed: random(), flows_max, ..AppConfig::default() };
        let near: Box<dyn Provider> = Box::new(ShmProvider::new()?);
        // Uses verbs of this process if a proxy can be reached by them and the host provides them. Otherwise
        // the agent forwards.
        let far = agent.session().offers_direct().then(|| ProviderKind::Verbs.open().ok()).flatten();
        let provider = match far {
            Some(far) => {
                agent.session().use_direct();
                Box::new(Pair::new(near, far))
            }
            None => near,
        };
        let app = agent.session().open(provider, config, random()).ok_or(Error::AGENT)?;
        let (flow_owners, listener_owners) = (Vec::new(), Vec::new());
        Ok(Streams { app, agent, flow_owners, listener_owners, waiting: Vec::new(), any_paused: false })
    }

    /// Listens for streams.
    pub fn listen(&mut self, core: &mut Core, address: SocketAddr, backlog: u32, user: usize) -> Result<Key> {
        if !self.agent.rules().listens(address.port()) {
            return Err(Error::ACCESS);
        }
        if !core.listeners.has_room() {
            return Err(Error::TOO_MANY);
        }
        let id = self.app.listen(address, backlog)?;
        self.app.set_interest(id, true)?;
        let listener = Listener { source: Source::Stream(id), user, paused: false };
        let key = core.listeners.insert(listener).ok_or(Error::TOO_MANY)?;
        own(&mut self.listener_owners, id.index(), Some(key));
        Ok(key)
    }

    /// Ends a listener; connections that it had not accepted go to other processes.
    pub fn end_listener(&mut self, id: ListenerId) {
        own(&mut self.listener_owners, id.index(), None);
        // Fails only if it was closed before.
        let _ = self.app.close_listener(id);
    }

    /// Starts a connection.
    pub fn connect(&mut self, core: &mut Core, now: Instant, remote: SocketAddr, user: usize) -> Result<Key> {
        if !self.agent.rules().connects(remote.ip()) {
            return Err(Error::UNREACHABLE);
        }
        let connection = Connection::new(Transport::Waiting, user);
        let key = core.connections.insert(connection).ok_or(Error::TOO_MANY)?;
        self.waiting.push(Waiting { key, remote, until: now + PROXY_TIMEOUT });
        self.start_waiting(core, now);
        Ok(key)
    }

    fn start_waiting(&mut self, core: &mut Core, now: Instant) {
        let mut at = 0;
        while let Some(Waiting { key, remote, until }) = self.waiting.get(at) {
            let (key, remote, late) = (*key, *remote, now >= *until);
            if core.connection(key).is_err() {
                self.waiting.swap_remove(at);
                continue;
            }
            let asked = self.app.connect(now, remote, None);
            match asked {
                Err(AppError::NoProxy) if !late => {
                    at += 1;
                    continue;
                }
                Ok(flow) => {
                    if let Ok(connection) = core.connection(key) {
                        connection.transport = Transport::Stream(flow);
                    }
                    own(&mut self.flow_owners, flow.index(), Some(key));
                }
                Err(error) => self.lose(core, key, Some(error.into())),
            }
            self.waiting.swap_remove(at);
        }
    }

    /// Performs all pending work. `woken`: the descriptors were armed and may have become readable.
    pub fn progress(&mut self, core: &mut Core, now: Instant, unix_s: u64, woken: bool) {
        self.agent.serve(&mut self.app, now, unix_s, woken);
        self.app.progress(now, unix_s);
        if !self.waiting.is_empty() {
            self.start_waiting(core, now);
        }
        while let Some(handle) = self.app.poll_ready() {
            match handle {
                Handle::Listener(id) => self.accept_all(core, now, id),
                Handle::Flow(id) => {
                    let owner = self.flow_owners.get(id.index()).copied().flatten();
                    if let Some(key) = owner.filter(|key| is_flow(core, *key, id)) {
                        self.on_ready(core, now, key, id);
                    }
                }
            }
        }
        self.agent.publish(&mut self.app, now);
    }

    fn accept_all(&mut self, core: &mut Core, now: Instant, id: ListenerId) {
        let Some(listener) = self.listener_owners.get(id.index()).copied().flatten() else { return };
        loop {
            if !core.connections.has_room() {
                // Other processes accept what this one cannot; see `resume`.
                let _ = self.app.set_interest(id, false);
                if let Some(listener) = core.listeners.get_mut(listener) {
                    listener.paused = true;
                    self.any_paused = true;
                }
                return;
            }
            let Ok(accepted) = self.app.accept(id) else { return };
            let mut connection = Connection::new(Transport::Stream(accepted.flow), 0);
            connection.open = true;
            connection.ends = Some((accepted.local, accepted.remote));
            let Some(key) = core.connections.insert(connection) else { return };
            own(&mut self.flow_owners, accepted.flow.index(), Some(key));
            core.report_accepted(listener, key);
            self.read_some(core, now, key, accepted.flow);
        }
    }

    /// Resumes accepting after a connection has ended.
    fn resume(&mut self, core: &mut Core) {
        if !std::mem::take(&mut self.any_paused) {
            return;
        }
        let keys: Vec<Key> = core.listeners.keys().collect();
        for key in keys {
            let Some(listener) = core.listeners.get_mut(key).filter(|l| l.paused) else { continue };
            listener.paused = false;
            if let Source::Stream(id) = listener.source {
                // Fails only if it was closed meanwhile.
                let _ = self.app.set_interest(id, true);
            }
        }
    }

    fn on_ready(&mut self, core: &mut Core, now: Instant, key: Key, id: FlowId) {
        let Some(connection) = core.connections.get_mut(key) else { return };
        if !connection.open {
            if self.app.readiness(Handle::Flow(id)).contains(Readiness::ERROR) {
                let error = self.app.take_error(id).map_or(Error::REFUSED, of_errno);
                return self.lose(core, key, Some(error));
            }
            let Some((local, remote, true)) = self.app.addresses(id) else { return };
            connection.open = true;
            connection.ends = Some((local, remote));
            core.report(EventType::Connected, key, None);
        }
        self.read_some(core, now, key, id);
        self.write_some(core, now, key);
        // No read reports the error of a connection that breaks after the peer's last byte, so it is reported
        // here.
        let over =
            core.connections.get(key).is_some_and(|c| c.end_reported && c.transport == Transport::Stream(id));
        if over && let Some(error) = self.app.take_error(id) {
            self.lose(core, key, Some(of_errno(error)));
        }
    }

    /// Reads as far as there are buffers.
    fn read_some(&mut self, core: &mut Core, now: Instant, key: Key, id: FlowId) {
        while let Some(connection) = core.connections.get(key).filter(|c| !c.end_reported && c.open) {
            debug_assert_eq!(connection.transport, Transport::Stream(id));
            if self.app.unread(id) == 0 {
                return self.check_end(core, now, key, id);
            }
            if !core.may_receive(key) {
                return;
            }
            match self.app.read(now, id, core.pool.incoming_bytes(), false) {
                Ok(length) if length > 0 => core.received(key, length, 0),
                _ => return,
            }
        }
    }

    /// Checks, when there is nothing to read, whether the stream has ended or broken.
    fn check_end(&mut self, core: &mut Core, now: Instant, key: Key, id: FlowId) {
        match self.app.read(now, id, &mut [0], true) {
            Ok(0) => {
                if let Some(connection) = core.connections.get_mut(key) {
                    connection.end_reported = true;
                }
                core.report(EventType::End, key, None);
            }
            Err(AppError::Broken(number)) => self.lose(core, key, Some(of_errno(number))),
            _ => {}
        }
    }

    /// Writes as far as credit allows, then ends what is to be ended.
    pub fn write_some(&mut self, core: &mut Core, now: Instant, key: Key) {
        let Some(connection) = core.connections.get(key).filter(|c| c.open) else { return };
        let Transport::Stream(id) = connection.transport else { return };
        while let Some(connection) = core.connections.get(key).filter(|c| c.queued > 0) {
            let index = connection.head;
            match self.app.write(now, id, &[core.pool.outgoing_bytes(index)]) {
                Ok(count) => {
                    let Some(work) = core.pool.work(index) else { return };
                    work.sent += count as u32;
                    if work.sent < work.length {
                        return;
                    }
                    core.complete(key, None);
                }
                Err(AppError::WouldBlock) => return,
                Err(AppError::Broken(number)) => return self.lose(core, key, Some(of_errno(number))),
                Err(error) => core.fail_queue(key, error.into()),
            }
        }
        let Some(connection) = core.connections.get_mut(key) else { return };
        if connection.ended {
            return self.close(core, now, key, false);
        }
        if connection.shutdown && !std::mem::replace(&mut connection.write_ended, true) {
            // Fails only if the connection broke, which its events report.
            let _ = self.app.shutdown(now, id, Directions { read: false, write: true });
        }
    }

    /// Serves a connection that had no buffer for its data.
    pub fn serve_starved(&mut self, core: &mut Core, now: Instant, key: Key) {
        if let Some(&Connection { transport: Transport::Stream(id), .. }) = core.connections.get(key) {
            self.read_some(core, now, key, id);
        }
    }

    /// Ends a connection for this reason; its handle remains until the program ends it.
    fn lose(&mut self, core: &mut Core, key: Key, error: Option<Error>) {
        core.fail_queue(key, error.unwrap_or(Error::PIPE));
        let Some(connection) = core.connections.get_mut(key) else { return };
        let transport = std::mem::replace(&mut connection.transport, Transport::Gone);
        connection.end_reported = true;
        if connection.ended {
            core.connections.remove(key);
        } else {
            core.report(EventType::Closed, key, error);
        }
        if let Transport::Stream(id) = transport {
            own(&mut self.flow_owners, id.index(), None);
            // It is broken already, so nothing is sent.
            let _ = self.app.close(crate::system::now(), id, false);
        }
        self.resume(core);
    }

    /// Ends a connection. With `reset` the peer receives a reset, and queued buffers are not sent.
    pub fn close(&mut self, core: &mut Core, now: Instant, key: Key, reset: bool) {
        core.fail_queue(key, Error::CANCELED);
        if let Some(Connection { transport: Transport::Stream(id), .. }) = core.connections.remove(key) {
            own(&mut self.flow_owners, id.index(), None);
            // Fails only if it has ended already.
            let _ = self.app.close(now, id, reset);
        }
        self.resume(core);
    }

    /// Time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|w| w.until);
        let others = self.app.next_timeout().into_iter().chain(self.agent.next_timeout());
        waiting.chain(others).min()
    }

    /// Arms the descriptors.
    pub fn arm(&mut self) -> Armed {
        // A provider that cannot be armed must be polled.
        self.app.arm().unwrap_or(Armed::Busy)
    }

    /// The descriptors to wait on, appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.app.wake(into);
        into.extend(self.agent.fd());
    }

    /// Generation of the set that [`wake`](Self::wake) returns.
    pub fn wake_generation(&self) -> u64 {
        self.app.wake_generation() + self.agent.changes()
    }

    /// Abandons all streams in a forked child; nothing is sent to any peer.
    pub fn abandon_after_fork(self) {
        self.app.into_endpoint().abandon_after_fork();
    }
}

fn is_flow(core: &Core, key: Key, id: FlowId) -> bool {
    core.connections.get(key).is_some_and(|c| c.transport == Transport::Stream(id))
}
