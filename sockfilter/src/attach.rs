//! Attachment to the cluster: the agent's socket, and the application end that its answer permits.
//! `csp_app::session` defines the exchange over the socket.

use std::os::unix::ffi::OsStrExt;

use csp_app::session::{Action, OPTION_LEN_MAX, RECEIVED_LEN_MAX, Received, Session, SessionError};
use csp_app::{AppConfig, AppSide};
use csp_types::Instant;
use csp_vi::Wake;
use csp_wire::agent::CarriedOption;
use libc::c_int;

use crate::page::{self, Page};
use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, fdtable};

mod lent;

pub use lent::Owner;

/// Lowest number of the provider's descriptors, if the limit of open files permits.
const DESCRIPTOR_FLOOR: c_int = 700;

/// Time limit for the agent to read an option of a process without a session, in nanoseconds.
const OPTION_READ_NS: u64 = 100_000_000;

/// Why there is no attachment.
#[derive(Debug)]
pub enum AttachError {
    /// The agent's socket cannot be reached.
    NoAgent(Errno),
    /// The agent did not admit this process, or not in time.
    Session(SessionError),
    /// A local resource is missing.
    Local(String),
}

impl From<SessionError> for AttachError {
    fn from(error: SessionError) -> Self {
        AttachError::Session(error)
    }
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::NoAgent(errno) => {
                write!(f, "no agent at {} (error {errno})", bootstrap::agent_path().display())
            }
            AttachError::Session(error) => error.fmt(f),
            AttachError::Local(why) => f.write_str(why),
        }
    }
}

/// The attachment of this process to the cluster: its sockets, provider, session and page.
pub struct Link {
    /// The application's end, with its sockets.
    pub app: AppSide,
    /// The provider used by the application's end.
    pub provider: Owner,
    /// The session with the agent.
    pub session: Session,
    /// The process page; `None` if it could not be mapped.
    pub page: Option<Page>,
    /// The agent's socket; `None` after a hang-up.
    pub agent: Option<c_int>,
    /// The last result of [`wake`](Self::wake), with its generation.
    wake: Option<(u64, Wake)>,
    /// Buffer for messages of the agent. It is on the heap, since the stacks of the program's threads may be
    /// small.
    room: Vec<u8>,
}

/// Attaches to the agent.
pub fn attach() -> Result<Link, AttachError> {
    let mut session = Session::new(sys::getpid() as u32, bootstrap::program_name());
    let mut room = vec![0; RECEIVED_LEN_MAX];
    let socket = connect_agent().map_err(AttachError::NoAgent)?;
    session.connected();
    let made = converse(socket, &mut session, &mut room).and_then(|page| {
        let (provider, app) = open(&mut session)?;
        Ok(Link { app, provider, session, page, agent: Some(socket), wake: None, room })
    });
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
    // SAFETY: the address has 2 + len + 1 readable bytes.
    match unsafe { syscall!(libc::SYS_connect, socket, address.as_ptr(), 2 + len + 1) } {
        Ok(_) => Ok(socket),
        Err(errno) => {
            sys::close(socket);
            Err(errno)
        }
    }
}

/// Sets an option of a connection in the agent's custody. A process without a session, such as a child that
/// only uses inherited descriptors, sends the option over a temporary socket and waits until the agent has
/// read it, so that options take effect in the order in which they are set. Without an agent the call has no
/// effect.
pub fn set_carried_option(session: Option<c_int>, option: &CarriedOption) {
    let mut room = [0; OPTION_LEN_MAX];
    let message = Session::option(&mut room, option);
    if session.is_some_and(|socket| send(socket, message).is_ok()) {
        return;
    }
    let Ok(socket) = connect_agent() else { return };
    if send(socket, message).is_ok() {
        let mut closed = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
        // SAFETY: no mask.
        let _ = unsafe { sys::ppoll(&mut closed, Some(OPTION_READ_NS), core::ptr::null()) };
    }
    sys::close(socket);
}

/// Performs the attachment: waits until the agent has admitted the process. Signals that the program handles
/// do not end the wait; the session's time limit does.
fn converse(socket: c_int, session: &mut Session, room: &mut [u8]) -> Result<Option<Page>, AttachError> {
    loop {
        let now = Instant::from_nanos(sys::monotonic_nanos());
        match session.poll(now, sys::unix_seconds(), false) {
            Action::Send(message) => send(socket, message).map_err(AttachError::NoAgent)?,
            Action::Receive => match receive(socket, room) {
                Ok((len, memory)) => {
                    let page = map(memory);
                    if session.received(room.get(..len).unwrap_or(&[]))? == Received::Attached {
                        return Ok(page);
                    }
                }
                Err(libc::EAGAIN) => session.empty(),
                Err(errno) => return Err(AttachError::NoAgent(errno)),
            },
            Action::Connect | Action::HangUp => return Err(SessionError::NoAnswer.into()),
            Action::Wait => {
                let left = session.next_timeout().map(|at| at.as_nanos().saturating_sub(now.as_nanos()));
                let mut wait = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
                // SAFETY: no mask.
                match unsafe { sys::ppoll(&mut wait, left, core::ptr::null()) } {
                    Ok(_) | Err(libc::EINTR) => session.woken(),
                    Err(errno) => return Err(AttachError::NoAgent(errno)),
                }
            }
        }
    }
}

/// Maps the page in the memory received from the agent.
fn map(memory: Option<c_int>) -> Option<Page> {
    let memory = memory?;
    let page = page::map(memory);
    sys::close(memory);
    page
}

/// Sends a datagram without waiting.
fn send(socket: c_int, message: &[u8]) -> Result<(), Errno> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message is readable.
    unsafe { syscall!(libc::SYS_sendto, socket, message.as_ptr(), message.len(), flags, 0, 0) }.map(drop)
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

/// Creates the application's end of an attached process, over a provider of its own.
fn open(session: &mut Session) -> Result<(Owner, AppSide), AttachError> {
    let provider = Owner::new(DESCRIPTOR_FLOOR).map_err(|e| AttachError::Local(e.to_string()))?;
    let config = AppConfig { pool: bootstrap::pool(), seed: sys::random(), ..AppConfig::default() };
    let app = session.open(Box::new(provider.lend()), config, sys::random());
    app.map(|app| (provider, app)).ok_or(AttachError::Session(SessionError::NoAnswer))
}

impl Link {
    /// The provider's descriptor that wakes sleeping threads; queried again only if its generation changed.
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

    /// Performs the actions of the session with the agent. Returns whether the process was attached again
    /// after the agent was lost; it then has a new page.
    pub fn serve_agent(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut attached = false;
        loop {
            match self.session.poll(now, unix_now_s, self.app.token_refused()) {
                Action::Wait => break,
                Action::Connect => match connect_agent() {
                    Ok(socket) => {
                        self.agent = Some(socket);
                        self.session.connected();
                    }
                    Err(_) => self.session.hung_up(),
                },
                Action::HangUp => {
                    if let Some(socket) = self.agent.take() {
                        sys::close(socket);
                        fdtable::clear(socket);
                    }
                }
                Action::Send(message) => {
                    if self.agent.is_none_or(|socket| send(socket, message).is_err()) {
                        self.session.send_failed();
                    }
                }
                Action::Receive => attached |= self.receive(),
            }
        }
        self.session.apply(&mut self.app);
        attached
    }

    fn receive(&mut self) -> bool {
        let received = self.agent.map(|socket| receive(socket, &mut self.room));
        match received {
            None | Some(Ok((0, _)) | Err(libc::ECONNRESET)) => self.session.hung_up(),
            Some(Err(_)) => self.session.empty(),
            Some(Ok((len, memory))) => {
                // After an error the session ends and is tried again later.
                if let Ok(Received::Attached) = self.session.received(self.room.get(..len).unwrap_or(&[])) {
                    self.page = map(memory);
                    return true;
                }
                memory.into_iter().for_each(sys::close);
            }
        }
        false
    }
}
