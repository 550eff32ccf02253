//! The system calls of the provider: sockets that do not block, and the epoll set that watches them.
#![allow(clippy::disallowed_types, reason = "the sockets of the provider are here")]

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::outgoing::{PARTS_MAX, Part};
use crate::sockaddr::socket_address;
use crate::{ViAddress, ViError};

/// Bytes that the kernel may hold unsent, so that what is urgent does not wait behind much.
const UNSENT_MAX: libc::c_int = 128 * 1024;

/// Milliseconds after which the kernel gives a connection up whose peer acknowledges nothing: the time after
/// which the transport gives a daemon up.
const USER_TIMEOUT_MS: libc::c_int = 800;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_option(fd: &impl AsFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (fd, len) = (fd.as_fd().as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the option is an int, and `value` is a local one that outlives the call.
    checked(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) }).map(drop)
}

pub(super) fn failed(call: &'static str, error: &io::Error) -> ViError {
    ViError::System { call, reason: error.to_string() }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(super) struct Listener(TcpListener);

/// Listens at `address`.
pub(super) fn listen(address: SocketAddr) -> Result<Listener, ViError> {
    let unreachable = |error: io::Error| ViError::Unreachable {
        address: ViAddress::Ip(address).to_string(),
        reason: error.to_string(),
    };
    let listener = TcpListener::bind(address).map_err(unreachable)?;
    listener.set_nonblocking(true).map_err(unreachable)?;
    Ok(Listener(listener))
}

impl Listener {
    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Accepts a connection. `Err`: there is none (EAGAIN), or it cannot be had now.
    pub(super) fn accept(&self) -> io::Result<Connection> {
        let (stream, _) = self.0.accept()?;
        stream.set_nonblocking(true)?;
        Connection::of(stream)
    }

    #[cfg(test)]
    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

/// A connection that does not block.
#[derive(Debug)]
pub(super) struct Connection(TcpStream);

/// What the kernel did with a request to move bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// It moved this many.
    Bytes(usize),
    /// It can move none now.
    None,
    /// The connection is over.
    Over,
}

fn moved(mut call: impl FnMut() -> isize) -> Moved {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Moved::Bytes(count),
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Moved::None,
                _ => return Moved::Over,
            },
        }
    }
}

impl Connection {
    /// Starts to connect, from this address of the host if one is given.
    pub(super) fn start(to: SocketAddr, from: Option<std::net::IpAddr>) -> io::Result<Self> {
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointer; its result is checked.
        let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let connection = Connection::of(TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) }))?;
        if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            // The port is chosen when the other end is known, so that one port serves many peers (ip(7)).
            set_option(&connection.0, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
            let (address, len) = socket_address(SocketAddr::new(from, 0));
            // SAFETY: `address` is a local socket address of `len` bytes that outlives the call.
            checked(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        }
        let (address, len) = socket_address(to);
        // SAFETY: `address` is a local socket address of `len` bytes that outlives the call.
        match checked(unsafe { libc::connect(fd, (&raw const address).cast(), len) }) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(connection),
        }
    }

    fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_MAX)?;
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, USER_TIMEOUT_MS)?;
        Ok(Connection(stream))
    }

    /// Whether the connection that was started is established.
    pub(super) fn outcome(&self) -> io::Result<bool> {
        match self.0.take_error()? {
            Some(error) => Err(error),
            None => Ok(self.0.peer_addr().is_ok()),
        }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends the first bytes of `parts`.
    ///
    /// # Safety
    /// Each part names memory that stays mapped during the call.
    pub(super) unsafe fn send(&self, parts: &[Part]) -> Moved {
        let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
        for (place, (at, len)) in iov.iter_mut().zip(parts) {
            *place = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: *len };
        }
        // SAFETY: all-zero bytes are a valid message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), parts.len().min(PARTS_MAX));
        // SAFETY: header and list are locals that outlive the call, which reads memory that is mapped by the
        // caller's contract.
        moved(|| unsafe { libc::sendmsg(self.raw(), &raw const message, libc::MSG_NOSIGNAL) })
    }

    /// Receives bytes: first into `place`, if there is one, then into `rest`.
    ///
    /// # Safety
    /// `place` names memory that stays mapped and writable during the call, and is no part of `rest`.
    pub(super) unsafe fn receive(&self, place: Option<(*mut u8, usize)>, rest: &mut [u8]) -> Moved {
        let rest = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let first = place.map_or(rest, |(at, len)| libc::iovec { iov_base: at.cast(), iov_len: len });
        let iov = [first, rest];
        let count = 1 + libc::c_int::from(place.is_some());
        // SAFETY: the list is a local that outlives the call, which writes to `rest` and, by the caller's
        // contract, to memory that is mapped and writable.
        moved(|| unsafe { libc::readv(self.raw(), iov.as_ptr(), count) })
    }

    /// Whether the peer has ended the connection or sent something.
    pub(super) fn is_disturbed(&self) -> bool {
        !matches!(self.0.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends the end of the stream, after the bytes sent before.
    pub(super) fn shut(&self) {
        // Fails if the peer has ended the connection already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// Events fetched from the kernel by one call.
pub(super) const EVENTS: usize = 64;

/// An edge that the kernel reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub token: u64,
    pub writable: bool,
    pub readable: bool,
    /// The stream has ended, or the connection has failed.
    pub hung_up: bool,
}

/// The epoll set of a provider, edge-triggered: each socket is watched in both directions for as long as it
/// is open.
#[derive(Debug)]
pub(super) struct Watched(OwnedFd);

impl Watched {
    pub(super) fn new() -> Result<Self, ViError> {
        // SAFETY: epoll_create1 takes no pointer; its result is checked.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        fd.map(|fd| Watched(unsafe { OwnedFd::from_raw_fd(fd) })).map_err(|e| failed("epoll_create1", &e))
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Watches a socket.
    pub(super) fn add(&self, socket: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token)
    }

    /// Watches a socket on behalf of another object; what the kernel has for it is reported again.
    pub(super) fn rename(&self, socket: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token)
    }

    fn control(&self, operation: libc::c_int, socket: RawFd, token: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` is a local that outlives the call.
        checked(unsafe { libc::epoll_ctl(self.raw(), operation, socket, &raw mut event) }).map(drop)
    }

    /// Returns what has happened since the last call, without waiting.
    pub(super) fn edges(&self) -> impl Iterator<Item = Edge> + use<> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: `events` is a local array of EVENTS writable entries that outlives the call.
        let count = unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), EVENTS as libc::c_int, 0) };
        events.into_iter().take(usize::try_from(count).unwrap_or(0)).map(|event| {
            let bits = event.events as libc::c_int;
            let hung_up = bits & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0;
            let (writable, readable) = (bits & libc::EPOLLOUT != 0, bits & libc::EPOLLIN != 0);
            Edge { token: event.u64, writable, readable: readable || hung_up, hung_up }
        })
    }
}
