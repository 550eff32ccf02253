//! Becoming part of the cluster: the socket of the host's agent, who vouches for this process and tells of proxies.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use csp_app::{AppSide, ProxyTarget};
use csp_transport::{ProcessId, Token};
use csp_types::{Duration, Instant, NodeId, ProgramName};
use csp_vi::{Provider, ProviderKind, ViAddress};
use csp_wire::agent::{self as wire, AgentMessage, Attach, Attached, Destination, Proxies, leads_through};

use crate::error::{Error, Result};
use crate::page::Page;
use crate::system::{errno, now};

/// How long the agent may take to answer when the program first needs it, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 2_000;
/// The same of an agent that came back: the program's events wait meanwhile.
const REATTACH_TIMEOUT_MS: u64 = 200;
/// The socket is looked at no more often: news are rare, and a look is a system call.
const HEAR_EVERY: Duration = Duration::from_millis(50);
/// A lost agent is tried again after this time.
const REATTACH_EVERY: Duration = Duration::from_secs(1);
/// So many seconds before a token's end a new one is asked for.
const RENEW_BEFORE_S: u64 = 300;
/// Counters and trace are shown to the agent no more often.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// What the agent allows.
#[derive(Debug, Default)]
struct Rules {
    listen_all: bool,
    listen_ports: Vec<u16>,
    connect: Vec<Destination>,
}

/// What the agent told at attachment.
pub struct Welcome {
    /// The agent's node.
    pub node: NodeId,
    /// This process's name on it.
    pub process: ProcessId,
    /// What proves both.
    pub token: Token,
    /// The proxies there are.
    pub proxies: Vec<ProxyTarget>,
    /// What reaches those whose address is no path.
    pub far: Option<Box<dyn Provider>>,
}

/// The attachment to the host's agent.
pub struct Agent {
    path: PathBuf,
    program: ProgramName,
    /// `None` once it hung up.
    socket: Option<OwnedFd>,
    process: ProcessId,
    /// Proxies are reached by verbs of this process's own, where they may be.
    direct: bool,
    rules: Rules,
    page: Option<Page>,
    expires: u64,
    renewing: bool,
    heard_at: Instant,
    /// Room for what the agent says.
    heard: Vec<u8>,
    published_at: Instant,
    /// Counts changes of the socket.
    changes: u64,
}

fn connect(path: &Path) -> Result<OwnedFd> {
    // SAFETY: sockaddr_un is plain bytes; zero is a value of it.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(Error::INVALID);
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(if errno() == libc::EMFILE { Error::TOO_MANY } else { Error::IO });
    }
    // SAFETY: the kernel gave this descriptor just now.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` has `len` readable bytes.
    let connected = unsafe { libc::connect(fd, (&raw const address).cast(), len) } == 0;
    if connected { Ok(socket) } else { Err(Error::AGENT) }
}

fn send(socket: &OwnedFd, message: &[u8]) -> Result<()> {
    let (bytes, len) = (message.as_ptr().cast(), message.len());
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message has `len` readable bytes.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes, len, flags) };
    if sent < 0 { Err(Error::AGENT) } else { Ok(()) }
}

/// Receives a datagram and at most one descriptor; the errno where there is none.
fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> std::result::Result<(usize, Option<OwnedFd>), libc::c_int> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header and what it points to are writable and outlive the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        return Err(errno());
    }
    // SAFETY: the kernel filled the header in; the macros stay within `control`. A descriptor that came is ours.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_descriptor = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as usize >= libc::CMSG_LEN(4) as usize;
        is_descriptor.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    };
    Ok((len as usize, descriptor))
}

/// Waits until the socket is readable, through signals that the program handles.
fn await_answer(socket: &OwnedFd, timeout_ms: u64) -> Result<()> {
    let until = now() + Duration::from_millis(timeout_ms);
    loop {
        let left = until.saturating_since(now()).as_millis() as libc::c_int;
        let mut one = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, readable and writable.
        match unsafe { libc::poll(&raw mut one, 1, left) } {
            0 => return Err(Error::AGENT),
            n if n > 0 => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(Error::IO),
        }
    }
}

/// Says ATTACH, and hands what comes back to `then`.
fn converse<T>(
    socket: &OwnedFd,
    program: &ProgramName,
    former: &[u8],
    timeout_ms: u64,
    then: impl FnOnce(&Attached<'_>, Option<Page>) -> Result<T>,
) -> Result<T> {
    let mut buffer = vec![0; wire::MESSAGE_LEN_MAX];
    let attach = Attach { pid: std::process::id(), program: *program, former };
    let len = wire::emit_attach(&mut buffer, &attach).map_err(|_| Error::INVALID)?;
    send(socket, buffer.get(..len).unwrap_or(&[]))?;
    await_answer(socket, timeout_ms)?;
    let (len, memory) = receive(socket, &mut buffer).map_err(|_| Error::AGENT)?;
    let page = memory.as_ref().and_then(Page::map);
    match AgentMessage::parse(buffer.get(..len).unwrap_or(&[])) {
        Ok(AgentMessage::Attached(attached)) => then(&attached, page),
        Ok(AgentMessage::Refused(_)) => Err(Error::NOT_ADMITTED),
        Ok(_) | Err(_) => Err(Error::AGENT),
    }
}

fn rules(attached: &Attached<'_>) -> Rules {
    Rules {
        listen_all: attached.listen.all,
        listen_ports: attached.listen.ports().collect(),
        connect: attached.connect.destinations().collect(),
    }
}

/// With `direct` by verbs where that is allowed, else through a Unix socket.
fn targets(proxies: Proxies<'_>, direct: bool) -> Vec<ProxyTarget> {
    let target = |p: wire::Proxy<'_>| {
        let path = || ViAddress::Path(PathBuf::from(OsStr::from_bytes(p.path)));
        let address = p.direct.filter(|_| direct).map_or_else(path, ViAddress::Ip);
        ProxyTarget { node: p.node, worker: p.worker, address }
    };
    proxies.iter().map(target).collect()
}

/// Verbs of this process's own, if a proxy is reached by them and the host has them. Without, the agent forwards.
fn open_far(proxies: Proxies<'_>) -> Option<Box<dyn Provider>> {
    let wanted = proxies.iter().any(|proxy| proxy.direct.is_some());
    wanted.then(|| ProviderKind::Verbs.open().ok()).flatten()
}

impl Agent {
    /// Attaches as `program`; takes up to [`ANSWER_TIMEOUT_MS`].
    pub fn attach(path: &Path, program: &ProgramName) -> Result<(Agent, Welcome)> {
        let socket = connect(path)?;
        let told = converse(&socket, program, &[], ANSWER_TIMEOUT_MS, |attached, page| {
            let process = ProcessId::parse(attached.process).ok_or(Error::AGENT)?;
            let token = Token::from_bytes(attached.token).ok_or(Error::AGENT)?;
            let far = open_far(attached.proxies);
            let proxies = targets(attached.proxies, far.is_some());
            let welcome = Welcome { node: attached.node, process, token, proxies, far };
            Ok((welcome, rules(attached), attached.expires, page))
        })?;
        let (welcome, rules, expires, page) = told;
        let (path, program, process) = (path.to_owned(), *program, welcome.process);
        let agent = Agent {
            path,
            program,
            socket: Some(socket),
            process,
            direct: welcome.far.is_some(),
            rules,
            page,
            expires,
            renewing: false,
            heard_at: now(),
            heard: vec![0; wire::MESSAGE_LEN_MAX],
            published_at: Instant::ZERO,
            changes: 0,
        };
        Ok((agent, welcome))
    }

    /// Whether this process may listen on `port`.
    pub fn allows_listening(&self, port: u16) -> bool {
        self.rules.listen_all || self.rules.listen_ports.contains(&port)
    }

    /// Whether connections to `ip` lead through the cluster.
    pub fn leads_to(&self, ip: IpAddr) -> bool {
        leads_through(self.rules.connect.iter().copied(), ip)
    }

    /// The socket to wait on.
    pub fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Counts changes of [`fd`](Self::fd).
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When to be called though the socket is silent: a lost agent is tried again.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.socket.is_none().then(|| self.heard_at + REATTACH_EVERY)
    }

    /// Takes in what the agent told, at `woken` or when the last look is long enough ago, and asks for a new token
    /// where one is needed.
    pub fn hear(&mut self, app: &mut AppSide, at: Instant, unix_s: u64, woken: bool) {
        let every = if self.socket.is_some() { HEAR_EVERY } else { REATTACH_EVERY };
        let woken = woken && self.socket.is_some();
        if !woken && at < self.heard_at + every {
            return;
        }
        self.heard_at = at;
        let Some(socket) = &self.socket else { return self.reattach(app) };
        loop {
            match receive(socket, &mut self.heard) {
                Ok((0, _)) | Err(libc::ECONNRESET) => {
                    self.socket = None;
                    self.changes += 1;
                    return;
                }
                Ok((len, _)) => match AgentMessage::parse(self.heard.get(..len).unwrap_or(&[])) {
                    Ok(AgentMessage::Proxies(proxies, connect)) => {
                        app.set_proxies(&targets(proxies, self.direct));
                        self.rules.connect = connect.destinations().collect();
                    }
                    Ok(AgentMessage::Token(token, expires)) => {
                        if let Some(token) = Token::from_bytes(token) {
                            app.set_token(token);
                            (self.expires, self.renewing) = (expires, false);
                        }
                    }
                    _ => {}
                },
                Err(_) => break,
            }
        }
        if (unix_s + RENEW_BEFORE_S >= self.expires || app.token_refused()) && !self.renewing {
            let mut buffer = [0; wire::HEADER_LEN];
            let len = wire::emit_renew(&mut buffer).unwrap_or(0);
            self.renewing = send(socket, buffer.get(..len).unwrap_or(&[])).is_ok();
        }
    }

    /// The agent may be back: the process keeps its name, links and connections, and gets a new token and page.
    fn reattach(&mut self, app: &mut AppSide) {
        let Ok(socket) = connect(&self.path) else { return };
        let (former, direct) = (self.process, self.direct);
        let Agent { rules: own_rules, expires, page: own_page, .. } = self;
        let done =
            converse(&socket, &self.program, former.as_str().as_bytes(), REATTACH_TIMEOUT_MS, |a, page| {
                let token = Token::from_bytes(a.token).ok_or(Error::AGENT)?;
                if a.process != former.as_str().as_bytes() {
                    return Err(Error::AGENT);
                }
                app.set_token(token);
                app.set_proxies(&targets(a.proxies, direct));
                (*own_rules, *expires, *own_page) = (rules(a), a.expires, page);
                Ok(())
            });
        if done.is_ok() {
            (self.socket, self.renewing) = (Some(socket), false);
            self.changes += 1;
        }
    }

    /// Shows counters and trace to the agent, every now and then.
    pub fn publish(&mut self, app: &mut AppSide, at: Instant) {
        if at < self.published_at + PUBLISH_EVERY {
            return;
        }
        self.published_at = at;
        let Some(page) = &mut self.page else { return };
        while let Some(event) = app.poll_trace() {
            page.trace(&event);
        }
        let flows = app.flow_count() as u64;
        // What only the socket filter counts stays 0: see COUNTER_NAMES.
        let own = [0, 0, 0, 0, 0, 0, 1, 0, 0, flows + app.listener_count() as u64, flows, 0];
        page.counters(app.counters().named().into_iter().map(|(_, n)| n).chain(own));
    }
}
