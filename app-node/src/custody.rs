//! Connections in the agent's custody: those that several processes share, or that a program without the
//! filter holds.
//!
//! A process that forks, executes another program or passes a descriptor on leaves its connections at their
//! proxy and sends the agent one end of a Unix socket pair. All processes that hold the other end share the
//! connection, as they would share a kernel socket. The agent takes the connection over from the proxy and
//! carries its bytes:
//!
//! ```text
//!  program ◀─ Unix socket ─▶ connection ◀─ AppSide ─▶ proxy
//! ```
//! Owns these connections, and one application side with links of its own. Does not handle the control plane,
//! nor connections that processes serve themselves.

mod connection;
mod options;
mod thread;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use csp_app::{AppConfig, AppError, AppSide, FlowId, Handle, ProxyTarget};
use csp_daemon::clock;
use csp_telemetry::{Place, Shares};
use csp_transport::token::{Token, TokenClaims};
use csp_transport::{Endpoint, EndpointConfig, Keys, PeerIdentity, ProcessId};
use csp_types::spin::SpinSetting;
use csp_types::{Duration, FlowLabel, Instant, NodeId, Role};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, ViAddress, ViError, Wake};
use csp_wire::agent::{CarriedOption, Left};
use rustix::event::epoll;

use connection::{Connection, Fate};
use options::Options;
pub use thread::{Custodian, Published};

/// How long a connection waits for a link to its proxy. The proxy waits longer.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// Lifetime of tokens, and how long before its expiry a token is renewed, in seconds.
const TOKEN_LIFETIME_S: u64 = 1800;
const TOKEN_RENEWED_S: u64 = 600;
/// Largest number of connections.
const CONNECTIONS_MAX: usize = 16_384;
/// Largest number of connections that wait for the custody, or for a link to their proxy: of all users, and
/// of one. A process may leave connections at proxies that do not exist; they wait for [`LINK_TIMEOUT`].
const WAITING_MAX: usize = 4096;
const WAITING_OF_USER_MAX: usize = WAITING_MAX / 2;
/// Largest number of socket events per call.
const EVENTS_MAX: usize = 256;
/// Largest number of bytes moved by one call.
const CHUNK: usize = 64 * 1024;

/// Configuration of the custody.
pub struct CustodyOptions {
    /// This node.
    pub node: NodeId,
    /// The keys that sign its token: this node's.
    pub keys: Keys,
    /// Random: identifies this start, and seeds what must differ between starts.
    pub seed: u64,
}

/// A connection that a process left, with the agent's end of its Unix socket pair.
#[derive(Debug)]
pub struct LeftConnection {
    /// The connection's proxy, label, ticket and addresses.
    pub left: Left,
    /// The user of the process that left it.
    pub uid: u32,
    /// The agent's end of the pair; programs hold the other one.
    pub socket: OwnedFd,
}

/// A connection that waits for a link to its proxy.
struct Waiting {
    /// When it arrived.
    since: Instant,
    connection: LeftConnection,
    /// Its entry among the waiting connections.
    place: Place<u32>,
}

/// Counters of the custody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Connections taken over.
    pub taken: u64,
    /// Connections that could not be taken over: no link to their proxy, no room, or unknown to the proxy.
    pub lost: u64,
    /// Bytes from clients to programs.
    pub bytes_in: u64,
    /// Bytes from programs to clients.
    pub bytes_out: u64,
}

/// The connections, and the application side that they share.
pub struct Custody {
    side: AppSide,
    options: CustodyOptions,
    token_expires: u64,
    targets: Vec<ProxyTarget>,
    connections: HashMap<FlowId, Connection>,
    /// Connections that wait for a link to their proxy.
    waiting: Vec<Waiting>,
    /// Their options that processes set.
    carried_options: Options,
    /// Number of connections of each user, waiting ones included.
    of_user: HashMap<u32, usize>,
    /// The epoll set of the programs' sockets.
    sockets: OwnedFd,
    chunk: Vec<u8>,
    counters: Counters,
}

impl Custody {
    /// Creates a custody without connections. It opens no link before the first connection arrives.
    pub fn new(options: CustodyOptions, unix_s: u64) -> io::Result<Self> {
        let process = ProcessId::parse(format!("custody.{:08x}", options.seed as u32).as_bytes())
            .unwrap_or(ProcessId::NONE);
        let identity = PeerIdentity::process(options.node, process, options.seed);
        let config = AppConfig {
            flows_max: CONNECTIONS_MAX,
            listeners_max: 1,
            pool: 1,
            seed: options.seed,
            ..AppConfig::default()
        };
        let provider = ShmProvider::new().map_err(io::Error::other)?;
        let endpoint_config =
            EndpointConfig { links_max: config.links_max(), ..EndpointConfig::channel(identity, None) };
        let endpoint = Endpoint::new(Box::new(provider), endpoint_config);
        let (token, token_expires) = issue(&options, process, unix_s);
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Custody {
            side: AppSide::new(endpoint, config, token),
            options,
            token_expires,
            targets: Vec::new(),
            connections: HashMap::new(),
            waiting: Vec::new(),
            carried_options: Options::default(),
            of_user: HashMap::new(),
            sockets,
            chunk: vec![0; CHUNK],
            counters: Counters::default(),
        })
    }

    /// Replaces the list of proxies that processes of this host can reach.
    pub fn set_proxies(&mut self, proxies: impl Iterator<Item = (NodeId, u8, PathBuf)>) {
        self.targets = proxies
            // The custody opens no connections: it continues those that programs left.
            .map(|(node, worker, path)| {
                let address = ViAddress::Path(path);
                ProxyTarget { node, worker, address, draining: false }
            })
            .collect();
        if self.is_used() {
            self.side.set_proxies(&self.targets);
        }
    }

    fn is_used(&self) -> bool {
        self.side.channels().next().is_some()
    }

    /// Takes a connection into custody. It is lost if its user has as many connections as there are free
    /// entries: a single user thus gets at most half.
    pub fn take(&mut self, now: Instant, connection: LeftConnection, place: Place<u32>) {
        let free = CONNECTIONS_MAX.saturating_sub(self.connections.len() + self.waiting.len());
        let own = self.of_user.get(&connection.uid).copied().unwrap_or(0);
        if own > free {
            self.counters.lost += 1;
            return;
        }
        self.of_user.insert(connection.uid, own + 1);
        if !self.is_used() {
            self.side.set_proxies(&self.targets);
        }
        self.waiting.push(Waiting { since: now, connection, place });
    }

    /// Moves all bytes that can be moved. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        if unix_s + TOKEN_RENEWED_S >= self.token_expires || self.side.token_refused() {
            let (token, expires) = issue(&self.options, self.process(), unix_s);
            (self.token_expires, _) = (expires, self.side.set_token(token));
        }
        let mut any = self.side.progress(now, unix_s);
        any |= self.take_waiting(now);
        while let Some(handle) = self.side.poll_ready() {
            if let Handle::Flow(flow) = handle {
                self.serve(now, flow, false);
            }
            any = true;
        }
        any | self.serve_sockets(now)
    }

    fn process(&self) -> ProcessId {
        self.side.endpoint().identity().process
    }

    /// Takes over connections that waited for a link. Those that waited too long are lost; their programs
    /// read the end of the stream.
    fn take_waiting(&mut self, now: Instant) -> bool {
        let before = self.waiting.len();
        for Waiting { since, connection, place } in std::mem::take(&mut self.waiting) {
            let left = &connection.left;
            let (proxy, ends) = ((&left.node, left.worker), (left.local, left.remote));
            match self.side.take_over(now, proxy, left.label, left.ticket, ends) {
                Ok(flow) => {
                    self.connections
                        .insert(flow, Connection::new(connection.socket, connection.uid, left.ticket));
                    self.carried_options.taken(&mut self.side, now, left.ticket, flow);
                    self.counters.taken += 1;
                }
                Err(AppError::NoProxy) if now.saturating_since(since) < LINK_TIMEOUT => {
                    self.waiting.push(Waiting { since, connection, place });
                }
                Err(_) => {
                    self.counters.lost += 1;
                    self.release_share(connection.uid);
                }
            }
        }
        self.waiting.len() != before
    }

    /// Releases the share of one connection of this user.
    fn release_share(&mut self, uid: u32) {
        match self.of_user.get_mut(&uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(self.of_user.remove(&uid)),
        }
    }

    fn serve_sockets(&mut self, now: Instant) -> bool {
        if self.connections.is_empty() {
            return false;
        }
        let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.sockets, &mut room, Some(&none)) else { return false };
        for event in events.iter() {
            let (flags, data) = (event.flags, event.data);
            let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            if let Some(flow) = u32::try_from(data.u64()).ok().and_then(FlowId::from_wire) {
                self.serve(now, flow, hung_up);
            }
        }
        !events.is_empty()
    }

    fn serve(&mut self, now: Instant, flow: FlowId, hung_up: bool) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        let fate = connection.serve(&mut self.side, now, flow, hung_up, &mut self.chunk);
        let moved = std::mem::take(&mut connection.moved);
        self.counters.bytes_in += moved.0;
        self.counters.bytes_out += moved.1;
        if fate == Fate::Continue {
            connection.watch(&self.sockets, flow);
            return;
        }
        // The proxy assigns the label when it hands the connection over.
        if self.side.label(flow) == FlowLabel::NONE {
            self.counters.lost += 1;
        }
        let _ = self.side.close(now, flow, fate == Fate::Reset); // a broken flow is closed like any other
        if let Some(over) = self.connections.remove(&flow) {
            self.carried_options.ended(over.ticket);
            self.release_share(over.uid);
        }
    }

    /// Sets an option of a connection.
    pub fn set_option(&mut self, now: Instant, option: CarriedOption) {
        self.carried_options.set(&mut self.side, now, option);
    }

    /// Returns when to call [`turn`](Self::turn) next if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.since + LINK_TIMEOUT);
        self.side.next_timeout().filter(|_| self.is_used()).into_iter().chain(waiting).min()
    }

    /// Arms the wake descriptors before the thread sleeps.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        self.side.arm()
    }

    /// Appends the descriptors that wake the thread: links, and the programs' sockets.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.side.wake(into);
        into.push(self.sockets.as_raw_fd());
    }

    /// Returns a number that changes with the set of [`wake`](Self::wake).
    pub fn wake_generation(&self) -> u64 {
        self.side.wake_generation()
    }

    /// Returns the counters, and the number of connections.
    pub fn counters(&self) -> (Counters, usize) {
        (self.counters, self.connections.len() + self.waiting.len())
    }
}

fn issue(options: &CustodyOptions, process: ProcessId, unix_s: u64) -> (Token, u64) {
    let expires = unix_s + TOKEN_LIFETIME_S;
    let claims = TokenClaims {
        role: Role::Process,
        node: options.node,
        process,
        uid: None,
        grant: csp_types::Grant::NONE,
        not_before: unix_s,
        expires,
        nonce: rand::random(),
    };
    (options.keys.issue(&claims), expires)
}

/// Returns the entries of waiting connections. Each is released when its connection is taken over or lost, so
/// that the connections of a user that are still in the queue of commands count as well.
fn waiting_places() -> Shares<u32> {
    Shares::new(WAITING_OF_USER_MAX, WAITING_MAX)
}

/// Starts the custody of a node in a thread of its own. `spin` sets how long the thread polls before it
/// sleeps.
pub fn start(options: CustodyOptions, spin: SpinSetting) -> io::Result<Custodian> {
    Custodian::start(Custody::new(options, clock::unix_now_s())?, spin)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::unix::net::UnixStream;

    use csp_types::FlowLabel;
    use csp_wire::channel::{ChannelOption, Ticket};

    use super::*;

    fn custody() -> Custody {
        let node = "an-1".parse().unwrap();
        Custody::new(
            CustodyOptions { node, keys: csp_transport::ClusterKey::from_bytes([7; 32]).into(), seed: 1 },
            1_000,
        )
        .unwrap()
    }

    /// A connection that a process of this user claims to have left at a proxy that does not exist.
    fn connection(uid: u32) -> LeftConnection {
        let end = SocketAddr::from(([10, 0, 0, 1], 80));
        let (label, ticket) = (FlowLabel::new(1, 0), Ticket([1; 16]));
        let node = "no-such-proxy".parse().unwrap();
        let left = Left { node, worker: 0, label, ticket, local: end, remote: end };
        LeftConnection { left, uid, socket: UnixStream::pair().unwrap().0.into() }
    }

    #[test]
    fn connections_that_one_user_leaves_nowhere_do_not_keep_out_others() {
        let (mut custody, places, now) = (custody(), waiting_places(), Instant::from_nanos(1));
        // One descriptor each: the share is taken with places alone, and used by a few connections.
        let mut taken: Vec<_> = (0..WAITING_MAX).filter_map(|_| places.enter(65534)).collect();
        assert_eq!(taken.len(), WAITING_OF_USER_MAX, "a user gets half of the places");
        for place in taken.split_off(WAITING_OF_USER_MAX - 8) {
            custody.take(now, connection(65534), place);
        }
        custody.turn(now, 1_000);
        assert!(places.enter(65534).is_none(), "they wait for their proxy, and keep their places");
        custody.take(now, connection(1000), places.enter(1000).expect("a place for another user"));
        assert_eq!(custody.counters().1, 9);
        // Their proxy is given up, and the places are free.
        let later = now + LINK_TIMEOUT;
        assert_eq!(custody.next_timeout(), Some(later));
        custody.turn(later, 1_000);
        assert_eq!((custody.counters().1, custody.counters().0.lost), (0, 9));
        assert!((0..8).map(|_| places.enter(65534)).collect::<Vec<_>>().iter().all(Option::is_some));
        assert!(custody.of_user.is_empty());
    }

    #[test]
    fn options_of_connections_that_never_come_are_bounded() {
        let (mut custody, now) = (custody(), Instant::from_nanos(1));
        for n in 0..5_000u64 {
            let mut ticket = [0; 16];
            ticket[..8].copy_from_slice(&n.to_le_bytes());
            let (ticket, option) = (Ticket(ticket), ChannelOption::NoDelay);
            custody.set_option(now, CarriedOption { ticket, option, value: 1 });
        }
        assert_eq!(custody.carried_options.waiting(), 1024);
    }
}
