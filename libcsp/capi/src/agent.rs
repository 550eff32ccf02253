//! Attachment to the cluster: the socket to the host's agent. `csp_app::session` defines the exchange over
//! it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use csp_app::AppSide;
use csp_app::session::{Action, RECEIVED_LEN_MAX, Received, Rules, Session, SessionError};
use csp_types::{Duration, Instant, ProgramName};

use crate::error::{Error, Result};
use crate::page::{self, Page};
use crate::system::{errno, now, unix_seconds};

/// Shortest interval between publications of counters and trace to the agent.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// The attachment to the host's agent.
pub struct Agent {
    path: PathBuf,
    session: Session,
    /// `None` after a hang-up.
    socket: Option<OwnedFd>,
    page: Option<Page>,
    /// Buffer for messages of the agent.
    room: Vec<u8>,
    published_at: Instant,
    /// Number of changes of the socket.
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
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(if errno() == libc::EMFILE { Error::TOO_MANY } else { Error::IO });
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
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

/// Receives a datagram and at most one descriptor; returns the errno on failure.
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
    // SAFETY: the kernel filled the header in, and the macros stay within `control`. A received descriptor
    // belongs to this process, and nothing else owns it.
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

fn of_session(error: SessionError) -> Error {
    match error {
        SessionError::Refused(_) => Error::NOT_ADMITTED,
        SessionError::Answer(_) | SessionError::NoAnswer => Error::AGENT,
    }
}

/// Waits until the socket is readable or `left` has passed. A signal that the program handles may end the
/// wait early.
fn wait(socket: &OwnedFd, left: Option<Duration>) {
    let left = left.map_or(-1, |left| left.as_millis() as libc::c_int + 1);
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, readable and writable.
    unsafe { libc::poll(&raw mut one, 1, left) };
}

/// Performs the attachment: waits until the agent has admitted the process, or the time limit has passed.
fn converse(socket: &OwnedFd, session: &mut Session, room: &mut [u8]) -> Result<Option<Page>> {
    loop {
        let at = now();
        match session.poll(at, unix_seconds(), false) {
            Action::Send(message) => send(socket, message)?,
            Action::Receive => match receive(socket, room) {
                Ok((len, memory)) => {
                    let received = session.received(room.get(..len).unwrap_or(&[])).map_err(of_session)?;
                    if received == Received::Attached {
                        return Ok(memory.as_ref().and_then(page::map));
                    }
                }
                Err(libc::EAGAIN) => session.empty(),
                Err(_) => return Err(Error::AGENT),
            },
            Action::Connect | Action::HangUp => return Err(Error::AGENT),
            Action::Wait => {
                wait(socket, session.next_timeout().map(|until| until.saturating_since(at)));
                session.woken();
            }
        }
    }
}

impl Agent {
    /// Attaches as `program`. Takes up to two seconds.
    pub fn attach(path: &Path, program: &ProgramName) -> Result<Agent> {
        let mut session = Session::new(std::process::id(), *program);
        let mut room = vec![0; RECEIVED_LEN_MAX];
        let socket = connect(path)?;
        session.connected();
        let page = converse(&socket, &mut session, &mut room)?;
        let (path, socket) = (path.to_owned(), Some(socket));
        Ok(Agent { path, session, socket, page, room, published_at: Instant::ZERO, changes: 0 })
    }

    /// The session, which creates the application's end.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The rules that the agent announced.
    pub fn rules(&self) -> &Rules {
        self.session.rules()
    }

    /// The socket to wait on.
    pub fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Number of changes of [`fd`](Self::fd).
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Time at which [`serve`](Self::serve) must be called even if the socket is not readable.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.session.next_timeout()
    }

    /// Performs the actions of the session with the agent. `woken`: its socket may be readable.
    pub fn serve(&mut self, app: &mut AppSide, at: Instant, unix_s: u64, woken: bool) {
        if woken {
            self.session.woken();
        }
        loop {
            match self.session.poll(at, unix_s, app.token_refused()) {
                Action::Wait => break,
                Action::Connect => match connect(&self.path) {
                    Ok(socket) => {
                        self.set_socket(Some(socket));
                        self.session.connected();
                    }
                    Err(_) => self.session.hung_up(),
                },
                Action::HangUp => self.set_socket(None),
                Action::Send(message) => {
                    if self.socket.as_ref().is_none_or(|socket| send(socket, message).is_err()) {
                        self.session.send_failed();
                    }
                }
                Action::Receive => self.receive(),
            }
        }
        self.session.apply(app);
    }

    fn set_socket(&mut self, socket: Option<OwnedFd>) {
        if self.socket.is_some() || socket.is_some() {
            self.changes += 1;
        }
        self.socket = socket;
    }

    fn receive(&mut self) {
        let received = self.socket.as_ref().map(|socket| receive(socket, &mut self.room));
        match received {
            None | Some(Ok((0, _)) | Err(libc::ECONNRESET)) => self.session.hung_up(),
            Some(Err(_)) => self.session.empty(),
            Some(Ok((len, memory))) => {
                // After an error the session ends and is tried again later.
                if let Ok(Received::Attached) = self.session.received(self.room.get(..len).unwrap_or(&[])) {
                    self.page = memory.as_ref().and_then(page::map);
                }
            }
        }
    }

    /// Publishes counters and trace to the agent, at most once per interval.
    pub fn publish(&mut self, app: &mut AppSide, at: Instant) {
        if at < self.published_at + PUBLISH_EVERY {
            return;
        }
        self.published_at = at;
        let Some(page) = &mut self.page else { return };
        let flows = app.flow_count() as u64;
        // Counters that only the socket filter has stay 0: see COUNTER_NAMES.
        let own = [0, 0, 0, 0, 0, 0, 1, 0, 0, flows + app.listener_count() as u64, flows, 0];
        page.publish(app, own);
    }
}
