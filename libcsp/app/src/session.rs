//! The session of a process with its host's agent, which vouches for it: attachment, rules, proxies, tokens.
//!
//! The shell owns the socket. It calls [`Session::poll`] until that returns [`Action::Wait`], does each action, and reports
//! what came of it; what arrives goes through [`Session::received`] whole. No shell looks into a message.
//!
//! ```text
//!                Connect, connected()        Send(ATTACH)           ATTACHED
//!   ┌▶ Lost ────────────────────▶ Connected ─────────────▶ Attaching ────────▶ Attached
//!   │   ▲                              │                        │                  │
//!   │   └── HangUp ── Broken ◀─────────┴── refused, wrong, late ┴─── hung_up() ────┘
//!   └ after RETRY_EVERY
//! ```
//! A process that attaches again names its former id, and keeps its links and sockets.

use core::net::IpAddr;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use csp_transport::{Endpoint, EndpointConfig, PeerIdentity, ProcessId, Token};
use csp_types::{Duration, Instant, NodeId, ProgramName};
use csp_vi::{Provider, ViAddress};
use csp_wire::agent::{
    self as wire, AgentMessage, Attach, Attached, Destination, Left, Proxies, leads_through,
};
use csp_wire::channel::Ticket;

use crate::{AppConfig, AppSide, LeftFlow, ProxyTarget};

#[cfg(test)]
mod tests;

/// How long the agent may take to answer ATTACH.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The socket of a process that does not sleep is looked at no more often: messages are rare, and a look is a system call.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// A lost agent is tried again after this time.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// A new token is asked for so many seconds before the old one expires.
const RENEW_BEFORE_S: u64 = 300;
/// A request for a token that was not answered is repeated after this time.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Longest message that a process sends.
const SENT_LEN_MAX: usize = 512;
/// Room that the shell has for a message of the agent, in bytes.
pub const RECEIVED_LEN_MAX: usize = wire::MESSAGE_LEN_MAX;

/// What the shell does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Connect to the agent's socket; then [`connected`](Session::connected) or [`hung_up`](Session::hung_up).
    Connect,
    /// Send this datagram; where that fails, [`send_failed`](Session::send_failed).
    Send(&'a [u8]),
    /// Receive a datagram without waiting; then [`received`](Session::received), [`empty`](Session::empty) or
    /// [`hung_up`](Session::hung_up).
    Receive,
    /// Close the socket.
    HangUp,
    /// Nothing, until [`next_timeout`](Session::next_timeout) or until the socket is readable ([`woken`](Session::woken)).
    Wait,
}

/// What a message was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The agent vouches for the process (again). The descriptor that came with the message is the process page.
    Attached,
    /// Anything else. A descriptor that came with it is to be closed.
    Other,
}

/// Why there is no session.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// The agent's reason, in words.
    #[error("the agent refused this process: {0}")]
    Refused(String),
    /// The agent's answer breaks the protocol.
    #[error("the agent's answer is wrong: {0}")]
    Answer(&'static str),
    /// No answer within two seconds.
    #[error("the agent did not answer within {} ms", ANSWER_TIMEOUT.as_millis())]
    NoAnswer,
}

/// Which sockets of the process may leave the kernel.
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

/// A proxy worker as the agent named it.
struct ProxyEntry {
    node: NodeId,
    worker: u8,
    path: Vec<u8>,
    /// Where it takes verbs of the process itself.
    direct: Option<core::net::SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No socket, since this time; `None`: there was none yet.
    Lost(Option<Instant>),
    /// The shell connects, or has connected: ATTACH comes first.
    Connected,
    /// ATTACH was sent; the answer must be there by this time.
    Attaching(Instant),
    Attached,
    /// The socket is of no use any more, and still open.
    Broken,
}

/// The session.
pub struct Session {
    pid: u32,
    program: ProgramName,
    state: State,
    /// Named by the agent at the first attachment, and kept.
    identity: Option<(NodeId, ProcessId)>,
    rules: Rules,
    proxies: Vec<ProxyEntry>,
    /// Proxies are reached by their direct addresses, where they have one.
    direct: bool,
    token: Option<Token>,
    /// Seconds of Unix time.
    expires: u64,
    renew_not_before: Instant,
    /// What the application's end does not have yet.
    proxies_changed: bool,
    token_changed: bool,
    /// The socket may have messages: it is emptied.
    draining: bool,
    polled_at: Instant,
    sent: Box<[u8; SENT_LEN_MAX]>,
}

impl Session {
    /// A session of process `pid`, which runs `program`; it begins with [`Action::Connect`].
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

    /// What to do next. `token_refused`: a proxy refused the token ([`AppSide::token_refused`]).
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

    /// The shell has connected to the agent's socket.
    pub fn connected(&mut self) {
        self.state = State::Connected;
        self.draining = false;
    }

    /// The agent's end of the socket is closed, or the socket could not be connected.
    pub fn hung_up(&mut self) {
        self.state = State::Broken;
        self.draining = false;
    }

    /// The message of the last [`Action::Send`] could not be sent.
    pub fn send_failed(&mut self) {
        // RENEW is repeated in time.
        if self.state != State::Attached {
            self.hung_up();
        }
    }

    /// The socket has no message.
    pub fn empty(&mut self) {
        self.draining = false;
    }

    /// The socket is readable, or may be: the next [`poll`](Self::poll) asks for what it has.
    pub fn woken(&mut self) {
        self.draining = matches!(self.state, State::Attaching(_) | State::Attached);
    }

    /// When to call [`poll`](Self::poll) though nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Lost(since) => since.map(|since| since + RETRY_EVERY),
            State::Attaching(until) => Some(until),
            State::Connected | State::Attached | State::Broken => None,
        }
    }

    /// Takes a message of the agent. An error ends the attachment: the next action is [`Action::HangUp`].
    pub fn received(&mut self, datagram: &[u8]) -> Result<Received, SessionError> {
        let message = AgentMessage::parse(datagram);
        if let State::Attaching(_) = self.state {
            let answer = self.answer(message);
            if answer.is_err() {
                self.hung_up();
            }
            return answer;
        }
        // What an attached process does not know is passed by.
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
            // Links and sockets are those of the process that it was.
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
        };
        self.proxies = proxies.iter().map(entry).collect();
        self.proxies_changed = true;
    }

    fn set_token(&mut self, token: Token, expires: u64) {
        (self.token, self.expires) = (Some(token), expires);
        self.token_changed = true;
        self.renew_not_before = Instant::ZERO;
    }

    /// Whether the agent vouches for the process now.
    pub fn is_attached(&self) -> bool {
        self.state == State::Attached
    }

    /// What is accelerated.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether a proxy takes verbs of the process itself.
    pub fn offers_direct(&self) -> bool {
        self.proxies.iter().any(|proxy| proxy.direct.is_some())
    }

    /// From now on proxies are reached by their direct addresses, where they have one: the process has verbs of its own.
    pub fn use_direct(&mut self) {
        self.direct = true;
        self.proxies_changed = true;
    }

    /// The application's end of an attached process, over `provider`; `None` before the first attachment. `incarnation` is
    /// random.
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

    /// Gives the application's end the proxies and the token that came since the last call.
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
            ProxyTarget { node: proxy.node, worker: proxy.worker, address }
        };
        self.proxies.iter().map(target).collect()
    }

    /// The message that gives a connection to the agent's custody, which `ticket` entitles it to; `None`: the agent is lost, or
    /// the connection is over at its proxy.
    pub fn leave(&mut self, flow: &LeftFlow, ticket: Ticket) -> Option<&[u8]> {
        let (node, worker, label) = flow.held?;
        if !self.is_attached() {
            return None;
        }
        let left = Left { node, worker, label, ticket, local: flow.local, remote: flow.remote };
        let len = wire::emit_left(&mut self.sent[..], &left).ok()?;
        self.sent.get(..len)
    }
}
