//! The session of a process with its host's agent: attachment, rules, proxies, tokens.
//!
//! The shell owns the socket. It calls [`Session::poll`] until that returns [`Action::Wait`], performs each
//! action and reports its result. Each datagram received is passed whole to [`Session::received`]. No shell
//! parses a message.
//!
//! ```text
//!                Connect, connected()        Send(ATTACH)           ATTACHED
//!   ┌▶ Lost ────────────────────▶ Connected ─────────────▶ Attaching ────────▶ Attached
//!   │   ▲                              │                        │                  │
//!   │   └── HangUp ── Broken ◀─────────┴── refused, wrong, late ┴─── hung_up() ────┘
//!   └ after RETRY_EVERY
//! ```
//! A process that attaches again states its former id, and keeps its links and sockets.

use core::net::IpAddr;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use csp_transport::{Endpoint, EndpointConfig, PeerIdentity, ProcessId, Token};
use csp_types::{Duration, Instant, NodeId, ProgramName};
use csp_vi::{Provider, ViAddress};
use csp_wire::agent::{
    self as wire, AgentMessage, Attach, Attached, CarriedOption, Destination, Left, Proxies, leads_through,
};
use csp_wire::channel::Ticket;

use crate::{AppConfig, AppSide, LeftFlow, ProxyTarget};

#[cfg(test)]
mod tests;

/// Time limit for the agent's answer to ATTACH.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a process that does not sleep polls the socket: messages are rare, and each poll is a
/// system call.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Delay before a lost agent is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// A new token is requested this many seconds before the old one expires.
const RENEW_BEFORE_S: u64 = 300;
/// Interval at which an unanswered request for a token is repeated.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Longest message that a process sends.
const SENT_LEN_MAX: usize = 512;
/// Size of the buffer for a message that sets an option, in bytes.
pub const OPTION_LEN_MAX: usize = 64;
/// Size of the buffer that the shell provides for a message of the agent, in bytes.
pub const RECEIVED_LEN_MAX: usize = wire::MESSAGE_LEN_MAX;

/// The shell's next action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Connect to the agent's socket, then call [`connected`](Session::connected) or
    /// [`hung_up`](Session::hung_up).
    Connect,
    /// Send this datagram. If that fails, call [`send_failed`](Session::send_failed).
    Send(&'a [u8]),
    /// Receive a datagram without waiting, then call [`received`](Session::received),
    /// [`empty`](Session::empty) or [`hung_up`](Session::hung_up).
    Receive,
    /// Close the socket.
    HangUp,
    /// Wait until [`next_timeout`](Session::next_timeout) or until the socket is readable
    /// ([`woken`](Session::woken)).
    Wait,
}

/// The kind of a received message, as far as it concerns the shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The process is attached (again). The descriptor received with the message is the process page.
    Attached,
    /// Any other message. A descriptor received with it must be closed.
    Other,
}

/// Why an attachment failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// The agent refused, with this reason.
    #[error("the agent refused this process: {0}")]
    Refused(String),
    /// The agent's answer violates the protocol.
    #[error("the agent's answer is wrong: {0}")]
    Answer(&'static str),
    /// No answer within two seconds.
    #[error("the agent did not answer within {} ms", ANSWER_TIMEOUT.as_millis())]
    NoAnswer,
}

/// The rules that decide which sockets of the process are accelerated.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    listen_all: bool,
    listen_ports: Vec<u16>,
    connect: Vec<Destination>,
    loopback: bool,
}

impl Rules {
    fn of(attached: &Attached<'_>) -> Self {
        Rules {
            listen_all: attached.listen.all,
            listen_ports: attached.listen.ports().collect(),
            connect: attached.connect.destinations().collect(),
            loopback: attached.loopback,
        }
    }

    /// Whether a listener on `port` is accelerated.
    pub fn listens(&self, port: u16) -> bool {
        self.listen_all || self.listen_ports.contains(&port)
    }

    /// Whether loopback addresses are accelerated.
    pub fn loopback(&self) -> bool {
        self.loopback
    }

    /// Whether connections to `ip` go through the cluster.
    pub fn connects(&self, ip: IpAddr) -> bool {
        (self.loopback && ip.is_loopback()) || leads_through(self.connect.iter().copied(), ip)
    }
}

/// A proxy worker, as announced by the agent.
struct ProxyEntry {
    node: NodeId,
    worker: u8,
    path: Vec<u8>,
    /// Its address for a process that uses its own verbs.
    direct: Option<core::net::SocketAddr>,
    draining: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No socket since this time; `None`: none was opened yet.
    Lost(Option<Instant>),
    /// The socket is connected; ATTACH is to be sent first.
    Connected,
    /// ATTACH was sent; the answer is due by this time.
    Attaching(Instant),
    Attached,
    /// The socket is unusable and not closed yet.
    Broken,
}

/// The session.
pub struct Session {
    pid: u32,
    program: ProgramName,
    state: State,
    /// Assigned by the agent at the first attachment, and kept.
    identity: Option<(NodeId, ProcessId)>,
    rules: Rules,
    proxies: Vec<ProxyEntry>,
    /// Whether proxies are reached by their direct addresses, if they have one.
    direct: bool,
    token: Option<Token>,
    /// Seconds of Unix time.
    expires: u64,
    renew_not_before: Instant,
    /// Whether proxies or token changed since [`apply`](Session::apply).
    proxies_changed: bool,
    token_changed: bool,
    /// The socket may have messages: they are received until it is empty.
    draining: bool,
    polled_at: Instant,
    sent: Box<[u8; SENT_LEN_MAX]>,
}

impl Session {
    /// Creates a session of process `pid`, which runs `program`. Its first action is [`Action::Connect`].
    pub fn new(pid: u32, program: ProgramName) -> Self {
        Session {
            pid,
            program,
            state: State::Lost(None),
            identity: None,
            rules: Rules::default(),
            proxies: Vec::new(),
            direct: false,
            token: None,
            expires: 0,
            renew_not_before: Instant::ZERO,
            proxies_changed: false,
            token_changed: false,
            draining: false,
            polled_at: Instant::ZERO,
            sent: Box::new([0; SENT_LEN_MAX]),
        }
    }

    /// Returns the next action. `token_refused`: a proxy refused the token ([`AppSide::token_refused`]).
    pub fn poll(&mut self, now: Instant, unix_s: u64, token_refused: bool) -> Action<'_> {
        match self.state {
            State::Lost(since) if since.is_none_or(|since| now >= since + RETRY_EVERY) => Action::Connect,
            State::Lost(_) => Action::Wait,
            State::Broken => {
                self.state = State::Lost(Some(now));
                Action::HangUp
            }
            State::Connected => {
                self.state = State::Attaching(now + ANSWER_TIMEOUT);
                let Session { pid, program, .. } = *self;
                let former = self.identity.map_or(ProcessId::NONE, |(_, process)| process);
                let attach = Attach { pid, program, former: former.as_str().as_bytes() };
                let len = wire::emit_attach(&mut self.sent[..], &attach);
                self.send(len)
            }
            State::Attaching(until) if now >= until && !self.draining => {
                self.state = State::Lost(Some(now));
                Action::HangUp
            }
            State::Attaching(_) | State::Attached => self.poll_socket(now, unix_s, token_refused),
        }
    }

    fn poll_socket(&mut self, now: Instant, unix_s: u64, token_refused: bool) -> Action<'_> {
        self.draining |= now >= self.polled_at + POLL_EVERY;
        if self.draining {
            self.polled_at = now;
            return Action::Receive;
        }
        let due = unix_s + RENEW_BEFORE_S >= self.expires || token_refused;
        if self.state == State::Attached && due && now >= self.renew_not_before {
            self.renew_not_before = now + RENEW_EVERY;
            let len = wire::emit_renew(&mut self.sent[..]);
            return self.send(len);
        }
        Action::Wait
    }

    fn send(&self, len: Result<usize, csp_wire::WireError>) -> Action<'_> {
        debug_assert!(len.is_ok(), "what a process sends has a bound");
        len.ok().and_then(|len| self.sent.get(..len)).map_or(Action::Wait, Action::Send)
    }

    /// Reports that the shell has connected to the agent's socket.
    pub fn connected(&mut self) {
        self.state = State::Connected;
        self.draining = false;
    }

    /// Reports that the agent closed its end of the socket, or that the socket could not be connected.
    pub fn hung_up(&mut self) {
        self.state = State::Broken;
        self.draining = false;
    }

    /// Reports that the message of the last [`Action::Send`] could not be sent.
    pub fn send_failed(&mut self) {
        // RENEW is repeated after its interval.
        if self.state != State::Attached {
            self.hung_up();
        }
    }

    /// Reports that the socket has no message.
    pub fn empty(&mut self) {
        self.draining = false;
    }

    /// Reports that the socket may be readable: the next [`poll`](Self::poll) receives from it.
    pub fn woken(&mut self) {
        self.draining = matches!(self.state, State::Attaching(_) | State::Attached);
    }

    /// Time at which [`poll`](Self::poll) must be called even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Lost(since) => since.map(|since| since + RETRY_EVERY),
            State::Attaching(until) => Some(until),
            State::Connected | State::Attached | State::Broken => None,
        }
    }

    /// Processes a message of the agent. An error ends the attachment: the next action is [`Action::HangUp`].
    pub fn received(&mut self, datagram: &[u8]) -> Result<Received, SessionError> {
        let message = AgentMessage::parse(datagram);
        if let State::Attaching(_) = self.state {
            let answer = self.answer(message);
            if answer.is_err() {
                self.hung_up();
            }
            return answer;
        }
        // An attached process ignores messages that it does not know.
        match message {
            Ok(AgentMessage::Proxies(proxies, connect)) => {
                self.set_proxies(proxies);
                self.rules.connect = connect.destinations().collect();
            }
            Ok(AgentMessage::Token(token, expires)) => {
                if let Some(token) = Token::from_bytes(token) {
                    self.set_token(token, expires);
                }
            }
            _ => {}
        }
        Ok(Received::Other)
    }

    fn answer(
        &mut self,
        message: Result<AgentMessage<'_>, csp_wire::WireError>,
    ) -> Result<Received, SessionError> {
        let attached = match message {
            Ok(AgentMessage::Attached(attached)) => attached,
            Ok(AgentMessage::Refused(why)) => {
                return Err(SessionError::Refused(String::from_utf8_lossy(why).into_owned()));
            }
            Ok(_) => return Err(SessionError::Answer("another kind of message")),
            Err(error) => return Err(SessionError::Answer(error.what())),
        };
        let process = ProcessId::parse(attached.process).filter(|id| !id.is_empty());
        let process = process.ok_or(SessionError::Answer("process id"))?;
        let token = Token::from_bytes(attached.token).ok_or(SessionError::Answer("token"))?;
        let identity = (attached.node, process);
        if *self.identity.get_or_insert(identity) != identity {
            // Links and sockets belong to the former process id.
            return Err(SessionError::Answer("another process id"));
        }
        self.rules = Rules::of(&attached);
        self.set_proxies(attached.proxies);
        self.set_token(token, attached.expires);
        self.state = State::Attached;
        Ok(Received::Attached)
    }

    fn set_proxies(&mut self, proxies: Proxies<'_>) {
        let entry = |p: wire::Proxy<'_>| ProxyEntry {
            node: p.node,
            worker: p.worker,
            path: p.path.to_owned(),
            direct: p.direct,
            draining: p.draining,
        };
        self.proxies = proxies.iter().map(entry).collect();
        self.proxies_changed = true;
    }

    fn set_token(&mut self, token: Token, expires: u64) {
        (self.token, self.expires) = (Some(token), expires);
        self.token_changed = true;
        self.renew_not_before = Instant::ZERO;
    }

    /// Whether the process is attached.
    pub fn is_attached(&self) -> bool {
        self.state == State::Attached
    }

    /// The rules that decide which sockets are accelerated.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether a proxy announced a direct address, for a process with its own verbs.
    pub fn offers_direct(&self) -> bool {
        self.proxies.iter().any(|proxy| proxy.direct.is_some())
    }

    /// Uses the direct addresses of proxies from now on, if they have one: the process has its own verbs.
    pub fn use_direct(&mut self) {
        self.direct = true;
        self.proxies_changed = true;
    }

    /// Creates the application's end of an attached process over `provider`. Returns `None` before the first
    /// attachment. `incarnation` is random.
    pub fn open(
        &mut self,
        provider: Box<dyn Provider>,
        config: AppConfig,
        incarnation: u64,
    ) -> Option<AppSide> {
        let ((node, process), token) = (self.identity?, self.token?);
        let identity = PeerIdentity::process(node, process, incarnation);
        let links =
            EndpointConfig { links_max: config.links_max(), ..EndpointConfig::channel(identity, None) };
        let mut app = AppSide::new(Endpoint::new(provider, links), config, token);
        self.apply(&mut app);
        Some(app)
    }

    /// Passes proxies and token to the application's end if they changed since the last call.
    pub fn apply(&mut self, app: &mut AppSide) {
        if std::mem::take(&mut self.proxies_changed) {
            app.set_proxies(&self.targets());
        }
        if let Some(token) = self.token.filter(|_| std::mem::take(&mut self.token_changed)) {
            app.set_token(token);
        }
    }

    fn targets(&self) -> Vec<ProxyTarget> {
        let target = |proxy: &ProxyEntry| {
            let path = || ViAddress::Path(OsString::from_vec(proxy.path.clone()).into());
            let address = proxy.direct.filter(|_| self.direct).map_or_else(path, ViAddress::Ip);
            ProxyTarget { node: proxy.node, worker: proxy.worker, address, draining: proxy.draining }
        };
        self.proxies.iter().map(target).collect()
    }

    /// Composes the message that passes a connection to the agent's custody, for which `ticket` is the
    /// authorisation. Returns `None` if the agent is lost, or the connection has ended at its proxy.
    pub fn leave(&mut self, flow: &LeftFlow, ticket: Ticket) -> Option<&[u8]> {
        let (node, worker, label) = flow.held?;
        if !self.is_attached() {
            return None;
        }
        let left = Left { node, worker, label, ticket, local: flow.local, remote: flow.remote };
        let len = wire::emit_left(&mut self.sent[..], &left).ok()?;
        self.sent.get(..len)
    }

    /// Composes in `buffer` the message that sets an option of a connection in the agent's custody. A process
    /// needs no session to send it.
    pub fn option<'a>(buffer: &'a mut [u8; OPTION_LEN_MAX], option: &CarriedOption) -> &'a [u8] {
        let len = wire::emit_option(&mut buffer[..], option).unwrap_or(0);
        buffer.get(..len).unwrap_or(&[])
    }
}
