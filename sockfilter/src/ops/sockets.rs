//! socket, listen, accept, connect, shutdown.

use csp_app::{Accepted, AppError, AppSide, Directions, FlowId, Handle, ListenerId, Readiness};
use csp_wire::agent::page::{self, Reason, SocketEntry, SocketKind};
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::sync::Arc;

use super::lacking::Unaccelerated;
use super::{PASS, c_int_result, descriptors, now, streams};
use crate::description::{DescriptionId, Kind, ListenState};
use crate::engine::{ENGINE, Engine, errno_of};
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno, syscall};
use crate::wait::{Attempt, Deadline, blocking};
use crate::{address, bootstrap, lock, real, wait};

/// Time limits for the first connect or listen to wait for a link to a proxy, in nanoseconds.
const LINK_WAIT_NS: u64 = 1_000_000_000;
pub(super) const LISTEN_LINK_WAIT_NS: u64 = 200_000_000;

/// Records a new kernel socket as a candidate if it is TCP.
pub fn created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let stream = kind & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if fd < 0 || lock::inside() || !bootstrap::is_on() || !bootstrap::owns_tables() {
        return;
    }
    if fdtable::entry(fd) != Entry::Kernel {
        ENGINE.with(|engine| engine.drop_descriptor(fd));
    }
    if !stream || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return;
    }
    ENGINE.with(|engine| match engine.descriptions.insert(Kind::Candidate, domain) {
        Some(index) if fdtable::set_candidate(fd, index) => {}
        Some(index) => {
            engine.descriptions.remove(index);
        }
        None => engine.counters.descriptors_full += 1,
    });
}

fn socket_option<T: Default>(fd: c_int, name: c_int) -> T {
    option_value(fd, libc::SOL_SOCKET, name)
}

/// The placeholder's value of an option; the default value if the kernel has none.
pub fn option_value<T: Default>(fd: c_int, level: c_int, name: c_int) -> T {
    let mut value = T::default();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` writable bytes, and every bit pattern of the types used here is valid.
    let _ = unsafe { syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len) };
    value
}

/// Seconds and microseconds of a socket's time-out, in the kernel's form.
pub type KernelTime = [i64; 2];

/// Nanoseconds of a time-out; zero means none.
pub fn nanos_of(time: KernelTime) -> Option<u64> {
    let nanos =
        (time[0].max(0) as u64).saturating_mul(1_000_000_000).saturating_add(time[1].max(0) as u64 * 1000);
    (nanos > 0).then_some(nanos)
}

impl Engine {
    /// Makes a candidate accelerated. Options that the program has set on it are read from the kernel.
    pub(super) fn accelerate(&mut self, index: usize, fd: c_int, kind: Kind) {
        // SAFETY: no pointers.
        let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFL) }.unwrap_or(0);
        if let Some(d) = self.descriptions.get_mut(index) {
            d.kind = kind;
            d.nonblocking = flags & libc::O_NONBLOCK as usize != 0;
            d.receive_timeout = nanos_of(socket_option(fd, libc::SO_RCVTIMEO));
            d.send_timeout = nanos_of(socket_option(fd, libc::SO_SNDTIMEO));
            d.linger_zero = socket_option::<[i32; 2]>(fd, libc::SO_LINGER) == [1, 0];
        }
        fdtable::promote(index);
        self.move_memberships(index);
    }

    /// Leaves a candidate to the kernel: calls on its descriptors are passed on from now on. Its descriptors
    /// must leave the table, since closing a socket that the kernel has connected may wait for its peer
    /// (SO_LINGER).
    pub(super) fn leave_to_kernel(&mut self, fd: c_int, index: usize, entry: SocketEntry) {
        if self.descriptions.get(index).is_some_and(|d| d.references > 1) {
            (0..=fdtable::highest()).filter(|other| *other != fd).for_each(|other| {
                self.release_descriptor(other, index);
            });
        }
        self.release_descriptor(fd, index);
        self.show_kernel_socket(fd, entry);
    }

    /// Shows a kernel socket in the page's second half, until another one replaces it.
    pub(super) fn show_kernel_socket(&mut self, fd: c_int, entry: SocketEntry) {
        self.show_socket(page::SOCKETS / 2 + fd as usize % (page::SOCKETS / 2), Some(entry));
    }

    /// Waits for the first link, at most for `limit_ns`.
    pub(super) fn await_link(&mut self, limit_ns: u64) -> bool {
        let deadline = Deadline::after(Some(limit_ns));
        loop {
            self.progress();
            if self.link.as_ref().is_some_and(|l| l.app.channels_up() > 0) {
                return true;
            }
            if deadline.is_over() || self.link.is_none() {
                return false;
            }
            let Ok(wake) = self.arm(None) else { continue };
            let sleep_ns = wait::sooner(deadline.left(), self.next_timeout()).map(|ns| ns.min(20_000_000));
            let mut fds = wait::pollfds(wake);
            // SAFETY: no mask.
            let _ = unsafe { sys::ppoll(&mut fds, sleep_ns, core::ptr::null()) };
        }
    }

    /// Loopback addresses stay in the kernel unless the agent's rule includes them; also without an agent,
    /// even in strict mode.
    pub(super) fn check_loopback(&mut self, address: SocketAddr) -> Result<(), Reason> {
        let accelerated =
            |engine: &mut Engine| engine.attached().is_ok_and(|link| link.session.rules().loopback());
        if address.ip().to_canonical().is_loopback() && !accelerated(self) {
            return Err(Reason::Loopback);
        }
        Ok(())
    }
}

/// Attaches to the agent before the process changes its root directory, since the agent's socket may be
/// unreachable afterwards.
pub fn before_chroot() {
    if fdtable::highest() <= 0 || lock::inside() || !bootstrap::is_on() || !bootstrap::owns_tables() {
        return;
    }
    ENGINE.with(|engine| {
        if engine.attached().is_ok() {
            engine.await_link(LISTEN_LINK_WAIT_NS);
        }
    });
}

/// Whether strict mode refuses a socket for this reason.
pub(super) fn refused_in_strict_mode(reason: Reason) -> bool {
    use Reason::{External, Full, Lacking, NoAgent, NoProxy};
    bootstrap::is_strict() && matches!(reason, NoAgent | NoProxy | Full | Lacking | External)
}

/// accept4() on an accelerated listener.
///
/// # Safety
/// As accept4: `name` and `len` null, or writable for the lengths that they state.
pub unsafe fn accept(fd: c_int, name: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let accepted = accept_one(fd, flags).and_then(|(new, family, remote)| {
        if name.is_null() {
            return Ok(new as usize);
        }
        // SAFETY: by the caller's contract `name` is writable for `*len` bytes.
        let named = unsafe { address::write(remote, family, name, len) };
        // As in the kernel, the connection is lost if its name cannot be stored.
        named.map(|()| new as usize).inspect_err(|_| _ = descriptors::close(new))
    });
    c_int_result(accepted)
}

fn accept_one(fd: c_int, flags: c_int) -> Result<(c_int, c_int, SocketAddr), Errno> {
    if lock::inside() {
        return Err(libc::EAGAIN);
    }
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(libc::EINVAL);
    }
    let (id, deadline) = ENGINE.with(|engine| {
        let id = engine.of_fd(fd).ok_or(libc::EBADF)?;
        let d = engine.descriptions.get(id.index).ok_or(libc::EBADF)?;
        let wait = if d.nonblocking { Some(0) } else { d.receive_timeout };
        Ok::<_, Errno>((id, Deadline::after(wait)))
    })?;
    blocking(id, deadline, |engine| accept_attempt(engine, id, flags))
}

fn accept_attempt(
    engine: &mut Engine,
    id: DescriptionId,
    flags: c_int,
) -> Attempt<(c_int, c_int, SocketAddr)> {
    let Some(Kind::Listener(ListenState { v6_only, .. })) =
        engine.descriptions.get(id.index).map(|d| &d.kind)
    else {
        return Attempt::Done(Err(libc::EINVAL));
    };
    let v6_only = *v6_only;
    let Some(listener) = engine.show_interest(id.index) else { return Attempt::Done(Err(libc::ENETDOWN)) };
    let Some(link) = &engine.link else { return Attempt::Done(Err(libc::ENETDOWN)) };
    if link.app.accept_queue_len(listener) == 0 {
        return Attempt::WouldBlock;
    }
    let Some(of) = engine.descriptions.get(id.index) else { return Attempt::Done(Err(libc::EBADF)) };
    let (family, linger, options) = (of.family, of.linger_zero, of.options.clone());
    let (timeouts, zero_copy) = ((of.receive_timeout, of.send_timeout), of.zero_copy.inherited());
    // The placeholder is unbound, so that I/O that bypasses the filter fails.
    // SAFETY: no pointers.
    let fd = match unsafe { syscall!(libc::SYS_socket, family, libc::SOCK_STREAM | flags, 0) } {
        Ok(fd) => fd as c_int,
        Err(errno) => return Attempt::Done(Err(errno)),
    };
    engine.catch_up();
    match adopt(engine, listener, fd, (family, v6_only)) {
        Ok((index, flow, remote)) => {
            engine.forward_options(fd, flow, &options);
            if let Some(d) = engine.descriptions.get_mut(index) {
                d.nonblocking = flags & libc::SOCK_NONBLOCK != 0;
                d.linger_zero = linger;
                d.inherited = options;
                d.zero_copy = zero_copy;
                (d.receive_timeout, d.send_timeout) = timeouts;
            }
            Attempt::Done(Ok((fd, family, remote)))
        }
        Err(AppError::WouldBlock) => {
            sys::close(fd);
            Attempt::WouldBlock
        }
        Err(error) => {
            sys::close(fd);
            Attempt::Done(Err(errno_of(error)))
        }
    }
}

/// Accepts the next connection of a client that the listener serves; others are reset, as the kernel refuses
/// them.
fn accept_wanted(app: &mut AppSide, listener: ListenerId, v6_only: bool) -> Result<Accepted, AppError> {
    loop {
        let accepted = app.accept(listener)?;
        if !(v6_only && accepted.remote.ip().to_canonical().is_ipv4()) {
            return Ok(accepted);
        }
        let _ = app.close(now(), accepted.flow, true);
    }
}

/// Accepts the next connection and makes `fd` refer to it.
fn adopt(
    engine: &mut Engine,
    listener: ListenerId,
    fd: c_int,
    (family, v6_only): (c_int, bool),
) -> Result<(usize, FlowId, SocketAddr), AppError> {
    if fd as usize >= fdtable::DESCRIPTORS_MAX {
        return Err(AppError::Full("descriptor"));
    }
    let index = engine.descriptions.insert(Kind::Lost, family).ok_or(AppError::Full("description"))?;
    let accepted = match engine.link.as_mut().map(|l| accept_wanted(&mut l.app, listener, v6_only)) {
        Some(Ok(accepted)) => accepted,
        other => {
            engine.descriptions.remove(index);
            return Err(other.and_then(Result::err).unwrap_or(AppError::NoProxy));
        }
    };
    if let Some(d) = engine.descriptions.get_mut(index) {
        d.kind = Kind::Flow(accepted.flow);
    }
    engine.own(Handle::Flow(accepted.flow), index);
    engine.drop_descriptor(fd);
    fdtable::set(fd, index);
    engine.show_flow(index, fd, accepted.local, accepted.remote);
    Ok((index, accepted.flow, accepted.remote))
}

/// connect(), which does not wait if `at_once` is set; `None` means that the kernel has to do it.
///
/// # Safety
/// As connect: `name` has `len` readable bytes.
pub unsafe fn connect(
    fd: c_int,
    name: *const sockaddr,
    len: socklen_t,
    at_once: bool,
) -> Option<Result<usize, Errno>> {
    if lock::inside() {
        return None;
    }
    match fdtable::entry(fd) {
        Entry::Candidate(index) => {
            // SAFETY: by the caller's contract `name` is readable for `len` bytes.
            let remote = unsafe { address::parse(name, len) }?;
            let started = start_connecting(fd, index, address::canonical(remote), at_once)?;
            started.iter().for_each(|_| streams::connected(fd));
            Some(started)
        }
        Entry::Ours(index) => ENGINE.with(|engine| {
            if engine.is_epoll(index) {
                return None;
            }
            let id = engine.descriptions.id(index)?;
            let flow = match engine.flow(id) {
                Ok(flow) => flow,
                Err(libc::ENOTCONN) => return Some(Err(libc::EISCONN)),
                Err(errno) => return Some(Err(errno)),
            };
            engine.progress();
            let connecting = engine.descriptions.get(index)?.connecting;
            if !connecting {
                return Some(Err(libc::EISCONN));
            }
            let app = &mut engine.link.as_mut()?.app;
            let over = app.readiness(Handle::Flow(flow)).contains(Readiness::HANG_UP);
            Some(match (app.take_error(flow), app.addresses(flow)) {
                (Some(errno), _) => engine.unconnect(index, errno),
                (None, Some((.., true))) => engine.now_connected(index),
                _ if over => engine.unconnect(index, libc::ECONNABORTED),
                _ => Err(libc::EALREADY),
            })
        }),
        Entry::Carried(index) => Some(ENGINE.with(|engine| {
            let connecting = engine.descriptions.get(index).is_some_and(|d| d.connecting);
            if connecting { engine.now_connected(index) } else { Err(libc::EISCONN) }
        })),
        _ => None,
    }
}

fn start_connecting(
    fd: c_int,
    index: usize,
    remote: SocketAddr,
    at_once: bool,
) -> Option<Result<usize, Errno>> {
    let started = ENGINE.with(|engine| {
        let why = match engine.try_connect(index, fd, remote) {
            Ok(id) => {
                let d = engine.descriptions.get(index)?;
                return Some(Ok((id, d.nonblocking, d.send_timeout)));
            }
            Err(why) => why,
        };
        let local = SocketAddr::from(([0, 0, 0, 0], 0));
        let entry = why.entry(SocketKind::KernelConnection, fd, local, remote);
        if refused_in_strict_mode(why.reason) {
            engine.show_kernel_socket(fd, entry);
            return Some(Err(libc::ENETUNREACH));
        }
        engine.counters.connects_kernel += 1;
        engine.leave_to_kernel(fd, index, entry);
        None
    })?;
    let (id, nonblocking, timeout) = match started {
        Ok(started) => started,
        Err(errno) => return Some(Err(errno)),
    };
    if nonblocking || at_once {
        return Some(Err(libc::EINPROGRESS));
    }
    let waited = blocking(id, Deadline::after(timeout), |engine| {
        let flow = match engine.flow(id) {
            Ok(flow) => flow,
            // It was established, and another thread forked before this one was woken.
            Err(PASS) => return Attempt::Done(engine.now_connected(id.index)),
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Some(link) = &mut engine.link else { return Attempt::Done(Err(libc::ENETDOWN)) };
        match (link.app.take_error(flow), link.app.addresses(flow)) {
            (Some(errno), _) => Attempt::Done(engine.unconnect(id.index, errno)),
            (None, Some((.., true))) => Attempt::Done(engine.now_connected(id.index)),
            _ => Attempt::WouldBlock,
        }
    });
    Some(waited.map_err(|errno| if errno == libc::EAGAIN { libc::EINPROGRESS } else { errno }))
}

impl Engine {
    fn now_connected(&mut self, index: usize) -> Result<usize, Errno> {
        if let Some(d) = self.descriptions.get_mut(index) {
            d.connecting = false;
        }
        Ok(0)
    }

    /// Ends a failed connection: the socket may connect again, or listen. A socket that is in epoll sets
    /// remains as it is.
    fn unconnect(&mut self, index: usize, errno: Errno) -> Result<usize, Errno> {
        let Some(d) = self.descriptions.get_mut(index) else { return Err(errno) };
        d.connecting = false;
        if !d.sets.is_empty() {
            return Err(errno);
        }
        if let (Kind::Flow(flow), Some(link)) =
            (std::mem::replace(&mut d.kind, Kind::Candidate), &mut self.link)
        {
            let _ = link.app.close(now(), flow, false);
        }
        fdtable::demote(index);
        self.show_ours(index, None);
        Err(errno)
    }

    fn try_connect(
        &mut self,
        index: usize,
        fd: c_int,
        remote: SocketAddr,
    ) -> Result<DescriptionId, Unaccelerated> {
        let remote = address::reachable(remote);
        self.check_loopback(remote)?;
        if !self.attached()?.session.rules().connects(remote.ip()) {
            return Err(Reason::Rule.into());
        }
        if address::is_own(remote) && !self.attached()?.session.rules().loopback() {
            return Err(Reason::Own.into());
        }
        self.check_lacking(index, fd)?;
        if !self.await_link(LINK_WAIT_NS) {
            return Err(Reason::NoProxy.into());
        }
        let local = address::bound(fd).ok().filter(|a| a.port() != 0).map(address::canonical);
        let link = self.link.as_mut().ok_or(Reason::NoAgent)?;
        let flow = link.app.connect(now(), remote, local).map_err(|_| Reason::NoProxy)?;
        self.accelerate(index, fd, Kind::Flow(flow));
        let options = self.descriptions.get_mut(index).map(|d| {
            d.connecting = true;
            Arc::clone(&d.options)
        });
        self.forward_options(fd, flow, &options.unwrap_or_default());
        self.own(Handle::Flow(flow), index);
        self.show_flow(index, fd, local.unwrap_or(remote), remote);
        self.descriptions.id(index).ok_or(Reason::Full.into())
    }
}

impl Engine {
    /// Ends a listener that is shut down for reading; threads that sleep in accept() wake up.
    fn shut_listener(&mut self, index: usize, directions: Directions) -> Result<c_int, Errno> {
        let d = self.descriptions.get_mut(index).ok_or(libc::EBADF)?;
        let Kind::Listener(state) = d.kind else { return Err(libc::ENOTCONN) };
        if !directions.read {
            return Ok(0);
        }
        d.kind = Kind::Candidate;
        if let (Some(id), Some(link)) = (state.id, &mut self.link) {
            let _ = link.app.close_listener(id);
        }
        fdtable::demote(index);
        self.on_change(index);
        self.show_ours(index, None);
        Ok(0)
    }
}

/// shutdown() on an accelerated socket.
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(directions) = (match how {
        libc::SHUT_RD => Some(Directions { read: true, write: false }),
        libc::SHUT_WR => Some(Directions { read: false, write: true }),
        libc::SHUT_RDWR => Some(Directions { read: true, write: true }),
        _ => None,
    }) else {
        return c_int_result(Err(libc::EINVAL));
    };
    if lock::inside() {
        return c_int_result(Err(libc::EAGAIN));
    }
    let done = ENGINE.with(|engine| {
        let id = engine.of_fd(fd).ok_or(libc::EBADF)?;
        if engine.is_epoll(id.index) {
            return Ok(None);
        }
        let flow = match engine.flow(id) {
            Ok(flow) => flow,
            Err(libc::ENOTCONN) => return engine.shut_listener(id.index, directions).map(Some),
            Err(errno) => return Err(errno),
        };
        let link = engine.link.as_mut().ok_or(libc::ENOTCONN)?;
        link.app.shutdown(now(), flow, directions).map_err(errno_of)?;
        if let (true, Some(d)) = (directions.write, engine.descriptions.get_mut(id.index)) {
            d.write_ended = true;
        }
        engine.notify_changed();
        Ok(Some(0))
    });
    match done {
        // SAFETY: the call takes no pointers; for an epoll descriptor it fails with ENOTSOCK.
        Ok(None) => unsafe { real::shutdown(fd, how) },
        Ok(Some(value)) => value,
        Err(errno) => c_int_result(Err(errno)),
    }
}
