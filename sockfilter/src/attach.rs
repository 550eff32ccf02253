//! Becoming part of the cluster: the agent's socket, and the application end that its answer makes possible.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use csp_app::{AppConfig, AppSide, ProxyTarget};
use csp_transport::{Endpoint, EndpointConfig, PeerIdentity, ProcessId, Token};
use csp_vi::{ViAddress, Wake};
use csp_wire::agent::{self, AgentMessage, Attach, Attached, Destination, leads_through};
use libc::c_int;

use crate::bootstrap;
use crate::page::Page;
use crate::sys::{self, Errno, syscall};

mod lent;

pub use lent::Owner;

/// How long the agent may take to answer, in nanoseconds.
const ANSWER_TIMEOUT_NS: u64 = 2_000_000_000;

/// Where descriptors of the provider are numbered from, limits permitting.
const DESCRIPTOR_FLOOR: c_int = 700;

/// So many seconds before a token's end a new one is asked for.
const RENEW_BEFORE_S: u64 = 300;

/// Why there is no attachment.
#[derive(Debug)]
pub enum AttachError {
    /// The agent's socket cannot be reached.
    NoAgent(Errno),
    /// It did not answer, or with nonsense.
    BadAnswer(&'static str),
    /// It does not want this process.
    Refused(String),
    /// The process lacks something.
    Local(String),
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::NoAgent(errno) => {
                write!(f, "no agent at {} (error {errno})", bootstrap::agent_path().display())
            }
            AttachError::BadAnswer(what) => write!(f, "the agent's answer is wrong: {what}"),
            AttachError::Refused(why) => write!(f, "the agent refused this process: {why}"),
            AttachError::Local(why) => f.write_str(why),
        }
    }
}

/// What the agent allows.
#[derive(Debug, Default)]
pub struct Rules {
    listen_all: bool,
    listen_ports: Vec<u16>,
    connect: Vec<Destination>,
    loopback: bool,
}

impl Rules {
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

/// A process's place in the cluster.
pub struct Link {
    /// Its sockets.
    pub app: AppSide,
    /// The provider below.
    pub provider: Owner,
    /// What is accelerated.
    pub rules: Rules,
    /// What the agent sees; `None` where it could not be mapped.
    pub page: Option<Page>,
    /// The agent's socket; `None` once it hung up.
    pub agent: Option<c_int>,
    /// It has something to say: a sleeper was woken by its socket.
    pub agent_spoke: bool,
    expires: u64,
    renewing: bool,
    heard_at: u64,
    process: ProcessId,
    /// What [`wake`](Self::wake) told last, and of which generation that is.
    wake: Option<(u64, Wake)>,
    /// Room for what the agent says: the stacks of the program's threads may be small.
    heard: Vec<u8>,
}

/// The agent's socket is looked at no more often than this while the process does not sleep, in nanoseconds: its news
/// are rare, and a look costs a system call. A lost agent is tried again after the longer time.
const HEAR_EVERY_NS: u64 = 50_000_000;
const REATTACH_EVERY_NS: u64 = 1_000_000_000;
/// How long a returned agent may take to answer: the program waits meanwhile.
const REATTACH_TIMEOUT_NS: u64 = 200_000_000;

/// Attaches to the agent.
pub fn attach() -> Result<Link, AttachError> {
    let socket = connect_agent().map_err(AttachError::NoAgent)?;
    let made = converse(socket, &[], ANSWER_TIMEOUT_NS, |attached, page| link(socket, attached, page));
    if made.is_err() {
        sys::close(socket);
    }
    made
}

fn connect_agent() -> Result<c_int, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let socket = unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) }? as c_int;
    let socket = sys::move_high(socket);
    let mut address = [0u8; 110];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let path = bootstrap::agent_path();
    let path = path.as_os_str().as_bytes();
    let room = &mut address[2..];
    let len = path.len().min(room.len() - 1);
    room[..len].copy_from_slice(&path[..len]);
    // SAFETY: the address has so many readable bytes.
    match unsafe { syscall!(libc::SYS_connect, socket, address.as_ptr(), 2 + len + 1) } {
        Ok(_) => Ok(socket),
        Err(errno) => {
            sys::close(socket);
            Err(errno)
        }
    }
}

/// Says ATTACH, and hands what comes back to `then`.
fn converse<T>(
    socket: c_int,
    former: &[u8],
    timeout_ns: u64,
    then: impl FnOnce(&Attached<'_>, Option<Page>) -> Result<T, AttachError>,
) -> Result<T, AttachError> {
    let mut buffer = vec![0; agent::MESSAGE_LEN_MAX];
    let attach = Attach { pid: sys::getpid() as u32, program: bootstrap::program_name(), former };
    let len = agent::emit_attach(&mut buffer, &attach).map_err(|_| AttachError::BadAnswer("program name"))?;
    // SAFETY: `len` bytes of the buffer are readable.
    unsafe { syscall!(libc::SYS_sendto, socket, buffer.as_ptr(), len, libc::MSG_NOSIGNAL, 0, 0) }
        .map_err(AttachError::NoAgent)?;
    let mut wait = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
    // A signal that the program handles must not end the attachment half-way: the deadline bounds the repeats.
    let deadline = sys::monotonic_nanos() + timeout_ns;
    loop {
        let left = deadline.saturating_sub(sys::monotonic_nanos());
        // SAFETY: no mask.
        match unsafe { sys::ppoll(&mut wait, Some(left), core::ptr::null()) } {
            Ok(0) => return Err(AttachError::BadAnswer("none came in time")),
            Ok(_) => break,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(AttachError::NoAgent(errno)),
        }
    }
    let (len, memory) = receive(socket, &mut buffer).map_err(AttachError::NoAgent)?;
    let page = memory.and_then(|fd| {
        let page = Page::map(fd);
        sys::close(fd);
        page
    });
    match AgentMessage::parse(buffer.get(..len).unwrap_or(&[])) {
        Ok(AgentMessage::Attached(attached)) => then(&attached, page),
        Ok(AgentMessage::Refused(why)) => {
            Err(AttachError::Refused(String::from_utf8_lossy(why).into_owned()))
        }
        Ok(_) => Err(AttachError::BadAnswer("another kind of message")),
        Err(error) => Err(AttachError::BadAnswer(error.what())),
    }
}

/// Receives a datagram and at most one descriptor.
fn receive(socket: c_int, buffer: &mut [u8]) -> Result<(usize, Option<c_int>), Errno> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header and what it points to are writable and outlive the call.
    let len = unsafe { syscall!(libc::SYS_recvmsg, socket, &raw mut message, flags) }?;
    // SAFETY: the kernel filled the header in; the macros stay within `control`.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_descriptor = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len >= libc::CMSG_LEN(4) as usize;
        is_descriptor.then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
    };
    Ok((len, descriptor))
}

fn link(socket: c_int, attached: &Attached<'_>, page: Option<Page>) -> Result<Link, AttachError> {
    let process = ProcessId::parse(attached.process).ok_or(AttachError::BadAnswer("process id"))?;
    let token = Token::from_bytes(attached.token).ok_or(AttachError::BadAnswer("token"))?;
    let identity = PeerIdentity::process(attached.node, process, sys::random());
    let provider = Owner::new(DESCRIPTOR_FLOOR).map_err(|e| AttachError::Local(e.to_string()))?;
    let app_config = AppConfig { pool: bootstrap::pool(), seed: sys::random(), ..AppConfig::default() };
    let config =
        EndpointConfig { links_max: app_config.links_max(), ..EndpointConfig::channel(identity, None) };
    let endpoint = Endpoint::new(Box::new(provider.lend()), config);
    let mut app = AppSide::new(endpoint, app_config, token);
    app.set_proxies(&targets(attached.proxies));
    let (expires, agent, rules) = (attached.expires, Some(socket), rules(attached));
    Ok(Link {
        app,
        provider,
        rules,
        page,
        agent,
        agent_spoke: false,
        expires,
        renewing: false,
        heard_at: sys::monotonic_nanos(),
        process,
        wake: None,
        heard: vec![0; agent::MESSAGE_LEN_MAX],
    })
}

fn rules(attached: &Attached<'_>) -> Rules {
    Rules {
        listen_all: attached.listen.all,
        listen_ports: attached.listen.ports().collect(),
        connect: attached.connect.destinations().collect(),
        loopback: attached.loopback,
    }
}

fn targets(proxies: agent::Proxies<'_>) -> Vec<ProxyTarget> {
    let path = |bytes: &[u8]| ViAddress::Path(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
    proxies.iter().map(|p| ProxyTarget { node: p.node, worker: p.worker, address: path(p.path) }).collect()
}

impl Link {
    /// The provider's descriptor that wakes who sleeps; asked for again only where it may be another.
    pub fn wake(&mut self) -> Option<Wake> {
        let generation = self.app.wake_generation();
        if let Some((_, known)) = self.wake.filter(|(of, _)| *of == generation) {
            return Some(known);
        }
        let mut wakes = Vec::new();
        self.app.wake(&mut wakes);
        let wake = wakes.first().copied()?;
        self.wake = Some((generation, wake));
        Some(wake)
    }

    /// Takes in what the agent told since last asked, and asks for a new token where one is needed. `now` is of
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub fn hear_agent(&mut self, now: u64, unix_now_s: u64) {
        let every = if self.agent.is_some() { HEAR_EVERY_NS } else { REATTACH_EVERY_NS };
        if !std::mem::take(&mut self.agent_spoke) && now.saturating_sub(self.heard_at) < every {
            return;
        }
        self.heard_at = now;
        let Some(socket) = self.agent else { return self.reattach() };
        let mut heard = std::mem::take(&mut self.heard);
        loop {
            match receive(socket, &mut heard) {
                Ok((0, _)) | Err(libc::ECONNRESET) => {
                    sys::close(socket);
                    crate::fdtable::clear(socket);
                    self.agent = None;
                    break;
                }
                Ok((len, stray)) => {
                    stray.into_iter().for_each(sys::close);
                    self.told(heard.get(..len).unwrap_or(&[]));
                }
                Err(_) => break,
            }
        }
        self.heard = heard;
        if self.agent.is_some() {
            self.renew(socket, unix_now_s);
        }
    }

    fn renew(&mut self, socket: c_int, unix_now_s: u64) {
        let due = unix_now_s + RENEW_BEFORE_S >= self.expires || self.app.token_refused();
        if due && !self.renewing {
            self.renewing = true;
            let mut buffer = [0; agent::HEADER_LEN];
            let len = agent::emit_renew(&mut buffer).unwrap_or(0);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: `len` bytes of the buffer are readable.
            let _ = unsafe { syscall!(libc::SYS_sendto, socket, buffer.as_ptr(), len, flags, 0, 0) };
        }
    }

    /// When a lost agent is tried again, in nanoseconds of CLOCK_MONOTONIC.
    pub fn reattach_at(&self) -> Option<u64> {
        self.agent.is_none().then(|| self.heard_at + REATTACH_EVERY_NS)
    }

    /// An agent that was lost may be back: the process keeps its identity, links and sockets, and gets a new token, page
    /// and proxies.
    fn reattach(&mut self) {
        let Ok(socket) = connect_agent() else { return };
        let former = self.process;
        let done = converse(socket, former.as_str().as_bytes(), REATTACH_TIMEOUT_NS, |attached, page| {
            if attached.process != former.as_str().as_bytes() {
                return Err(AttachError::BadAnswer("another process id"));
            }
            let token = Token::from_bytes(attached.token).ok_or(AttachError::BadAnswer("token"))?;
            self.app.set_token(token);
            self.app.set_proxies(&targets(attached.proxies));
            self.rules = rules(attached);
            self.expires = attached.expires;
            self.page = page;
            Ok(())
        });
        match done {
            Ok(()) => self.agent = Some(socket),
            Err(_) => sys::close(socket),
        }
    }

    fn told(&mut self, datagram: &[u8]) {
        match AgentMessage::parse(datagram) {
            Ok(AgentMessage::Proxies(proxies, connect)) => {
                self.app.set_proxies(&targets(proxies));
                self.rules.connect = connect.destinations().collect();
            }
            Ok(AgentMessage::Token(token, expires)) => {
                if let Some(token) = Token::from_bytes(token) {
                    self.app.set_token(token);
                    self.expires = expires;
                    self.renewing = false;
                }
            }
            _ => {}
        }
    }
}
