//! getsockopt, setsockopt, ioctl, F_SETFL: the placeholder keeps the values; the filter records those that
//! concern it. TCP_CORK, which servers set and clear with every answer, the filter keeps itself.

use std::sync::Arc;

use csp_app::{FlowId, Handle, Readiness};
use csp_wire::channel::ChannelOption;
use libc::{c_int, c_void, socklen_t};

use super::sockets::{KernelTime, nanos_of};
use crate::description::{Description, Kind, OPTION_LEN_MAX, SetOption};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::memory::is_unmappable;
use crate::sys::{Errno, syscall};
use crate::{bootstrap, lock};

/// Runs `f` on the description of a descriptor.
fn with_description<R>(fd: c_int, f: impl FnOnce(&mut Engine, usize) -> Option<R>) -> Option<R> {
    if lock::inside() {
        return None;
    }
    ENGINE.with(|engine| {
        let id = engine.of_fd(fd)?;
        f(engine, id.index)
    })
}

/// Returns the int that getsockopt returns for an accelerated socket if the placeholder has no correct value.
pub fn socket_state(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let is_own = match level {
        libc::SOL_SOCKET => matches!(name, libc::SO_ERROR | libc::SO_ACCEPTCONN | libc::SO_REUSEADDR),
        libc::IPPROTO_TCP => name == libc::TCP_CORK,
        _ => false,
    };
    if !is_own {
        return None;
    }
    with_description(fd, |engine, index| {
        let d = engine.descriptions.get(index)?;
        match (&d.kind, name) {
            (Kind::Listener(_), libc::SO_ACCEPTCONN) => Some(1),
            // The placeholder of a listener no longer has the option, because of `listen::hold`.
            (Kind::Listener(_), libc::SO_REUSEADDR) => {
                let set = d.options.iter().rev().find(|o| (o.level, o.name) == (level, name));
                set.map(|o| c_int::from(o.value.iter().take(o.len.into()).any(|b| *b != 0)))
            }
            (Kind::Flow(flow), libc::TCP_CORK) if level == libc::IPPROTO_TCP => {
                Some(engine.link.as_ref()?.app.is_corked(*flow).into())
            }
            (_, _) if level != libc::SOL_SOCKET => None,
            (Kind::Flow(flow), libc::SO_ERROR) => {
                let flow = *flow;
                engine.progress();
                Some(engine.link.as_mut()?.app.take_error(flow).unwrap_or(0))
            }
            _ => None,
        }
    })
}

/// Whether an accelerated descriptor is a socket, not an epoll set.
pub fn is_socket(fd: c_int) -> bool {
    with_description(fd, |engine, index| Some(!engine.is_epoll(index))).unwrap_or(false)
}

/// Whether a descriptor is an accelerated connection.
pub fn is_connection(fd: c_int) -> bool {
    let is = |engine: &mut Engine, index| Some(matches!(engine.descriptions.get(index)?.kind, Kind::Flow(_)));
    with_description(fd, is).unwrap_or(false)
}

/// The state that TCP_INFO reports for an accelerated socket, in Linux's numbers.
pub fn tcp_state(fd: c_int) -> Option<u8> {
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const FIN_WAIT2: u8 = 5;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    const LISTEN: u8 = 10;
    with_description(fd, |engine, index| {
        engine.progress();
        let d = engine.descriptions.get(index)?;
        let flow = match d.kind {
            Kind::Flow(flow) => flow,
            Kind::Listener(_) => return Some(LISTEN),
            _ => return None,
        };
        let app = &engine.link.as_ref()?.app;
        let ready = app.readiness(Handle::Flow(flow));
        let (.., connected) = app.addresses(flow)?;
        Some(match (ready.contains(Readiness::PEER_SHUTDOWN), d.write_ended) {
            (true, true) => CLOSE,
            (true, false) if !connected => CLOSE,
            (true, false) => CLOSE_WAIT,
            (false, _) if !connected => SYN_SENT,
            (false, true) => FIN_WAIT2,
            (false, false) => ESTABLISHED,
        })
    })
}

/// Largest number of options kept for one socket.
const OPTIONS_MAX: usize = 64;

/// An option as the program set it; `None` if it is too long to be kept.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub(super) unsafe fn copied(
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Option<SetOption> {
    if value.is_null() || len as usize > OPTION_LEN_MAX {
        return None;
    }
    let mut option = SetOption { level, name, value: [0; OPTION_LEN_MAX], len: len as u8 };
    // SAFETY: by the caller's contract `value` is readable for `len` bytes; the length was checked.
    unsafe { core::ptr::copy_nonoverlapping(value.cast(), option.value.as_mut_ptr(), len as usize) };
    Some(option)
}

/// Stores an option, replacing its former value.
pub(super) fn put(options: &mut Vec<SetOption>, option: SetOption) {
    options.retain(|o| (o.level, o.name) != (option.level, option.name));
    if options.len() < OPTIONS_MAX {
        options.push(option);
    }
}

/// Records an option that the program set on a socket that may become accelerated, or is a listener:
/// connections that it accepts inherit it.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub unsafe fn note_inherited(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) {
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    let Some(option) = (unsafe { copied(level, name, value, len) }) else { return };
    if lock::inside() {
        return;
    }
    ENGINE.with(|engine| {
        let (Entry::Ours(index) | Entry::Candidate(index)) = fdtable::entry(fd) else { return };
        let Some(d) = engine.descriptions.get_mut(index) else { return };
        if matches!(d.kind, Kind::Candidate | Kind::Listener(_)) {
            put(Arc::make_mut(&mut d.options), option);
        }
    });
}

/// Applies inherited options to the placeholder of an accepted connection, when the program first queries it.
pub fn inherit(fd: c_int) {
    let inherited = with_description(fd, |engine, index| {
        let d = engine.descriptions.get_mut(index)?;
        (!d.inherited.is_empty()).then(|| std::mem::take(&mut d.inherited))
    });
    apply(fd, inherited.as_ref().map_or(&[], |list| list.as_slice()));
}

/// Sets options on a kernel socket; options that the kernel refuses are skipped.
pub fn apply(fd: c_int, options: &[SetOption]) {
    for o in options {
        // SAFETY: the option's value has `len` readable bytes.
        let _ = unsafe { syscall!(libc::SYS_setsockopt, fd, o.level, o.name, o.value.as_ptr(), o.len) };
    }
}

/// Writes an int option as getsockopt does.
///
/// # Safety
/// `value` must have `*len` writable bytes, `len` be readable and writable.
pub unsafe fn write_int(number: c_int, value: *mut c_void, len: *mut socklen_t) {
    // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length; at
    // most `*len` bytes are written.
    unsafe {
        let room = (*len as usize).min(size_of::<c_int>());
        core::ptr::copy_nonoverlapping((&raw const number).cast::<u8>(), value.cast::<u8>(), room);
        *len = room as socklen_t;
    }
}

/// SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW, of the same form on this architecture.
const RCVTIMEO_NEW: c_int = 66;
const SNDTIMEO_NEW: c_int = 67;

/// Handles a socket option that the program set and the kernel accepted.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub unsafe fn option_set(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) {
    if value.is_null() {
        return;
    }
    forward_option(fd, level, name);
    if level != libc::SOL_SOCKET {
        return;
    }
    match name {
        libc::SO_LINGER if len as usize >= size_of::<[i32; 2]>() => {
            // SAFETY: the length was checked.
            let linger = unsafe { value.cast::<[i32; 2]>().read_unaligned() };
            note(fd, |d| d.linger_zero = linger[0] != 0 && linger[1] == 0);
        }
        libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | RCVTIMEO_NEW | SNDTIMEO_NEW
            if len as usize >= size_of::<KernelTime>() =>
        {
            // SAFETY: the length was checked.
            let time = nanos_of(unsafe { value.cast::<KernelTime>().read_unaligned() });
            let receive = matches!(name, libc::SO_RCVTIMEO | RCVTIMEO_NEW);
            note(fd, |d| if receive { d.receive_timeout = time } else { d.send_timeout = time });
        }
        _ => {}
    }
}

/// Sets TCP_CORK of an accelerated connection, whose placeholder does not have it. `None`: the descriptor is
/// no such connection, or the kernel has to say what is wrong with the value.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub unsafe fn set_cork(fd: c_int, value: *const c_void, len: socklen_t) -> Option<Result<usize, Errno>> {
    if !fdtable::is_ours(fd) || is_unmappable(value) || (len as usize) < size_of::<c_int>() {
        return None;
    }
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    let corked = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
    with_description(fd, |engine, index| {
        let Kind::Flow(flow) = engine.descriptions.get(index)?.kind else { return None };
        engine.link.as_mut()?.app.set_corked(super::now(), flow, corked);
        engine.publish();
        Some(Ok(0))
    })
}

/// Forwards an option that concerns the client's TCP connection to the proxy; the placeholder has its value.
fn forward_option(fd: c_int, level: c_int, name: c_int) {
    let int = |level, name| super::sockets::option_value::<c_int>(fd, level, name);
    let Some((option, value)) = forwarded(level, name, int) else { return };
    with_description(fd, |engine, index| {
        let Kind::Flow(flow) = engine.descriptions.get(index)?.kind else { return None };
        // Fails for a connection that has ended, which does not need it.
        engine.link.as_mut()?.app.set_option(super::now(), flow, option, value).ok()
    });
}

/// The form in which an option is forwarded to the proxy; `value` returns the socket's options.
pub(super) fn forwarded(
    level: c_int,
    name: c_int,
    value: impl Fn(c_int, c_int) -> c_int,
) -> Option<(ChannelOption, u64)> {
    let int = |level, name| value(level, name).max(0) as u64;
    let own = || int(level, name);
    Some(match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => (ChannelOption::NoDelay, own()),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => (ChannelOption::UserTimeout, own()),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => (ChannelOption::KeepaliveInterval, own() * 1000),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => (ChannelOption::KeepaliveCount, own()),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) | (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let on = int(libc::SOL_SOCKET, libc::SO_KEEPALIVE);
            if on == 0 && level == libc::IPPROTO_TCP {
                return None;
            }
            (ChannelOption::KeepaliveIdle, on * 1000 * int(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE))
        }
        _ => return None,
    })
}

impl Engine {
    /// Forwards to the proxy the options of a new connection that were set before: on its listener, or on it
    /// before connect().
    pub(super) fn forward_options(&mut self, fd: c_int, flow: FlowId, options: &[SetOption]) {
        let value = |level, name| {
            let set = options.iter().find(|o| (o.level, o.name) == (level, name));
            let int = set.and_then(|o| o.value.first_chunk()).map(|bytes| c_int::from_ne_bytes(*bytes));
            int.unwrap_or_else(|| super::sockets::option_value(fd, level, name))
        };
        for o in options {
            let (Some((option, value)), Some(link)) = (forwarded(o.level, o.name, value), &mut self.link)
            else {
                continue;
            };
            let _ = link.app.set_option(super::now(), flow, option, value);
        }
    }
}

fn note(fd: c_int, f: impl FnOnce(&mut Description)) {
    with_description(fd, |engine, index| engine.descriptions.get_mut(index).map(f));
}

/// Changes the flags of an accelerated descriptor, or of its description. `kernel` is called with the lock
/// held, since another thread may be about to fork and to replace the placeholder by a socket with the same
/// flags. `nonblocking` returns the new O_NONBLOCK, if it is among the changed flags. `None`: the descriptor
/// is not accelerated.
pub fn flags_set(
    fd: c_int,
    nonblocking: impl FnOnce() -> Option<bool>,
    kernel: impl FnOnce() -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    if lock::inside() || !fdtable::is_ours(fd) || !bootstrap::owns_tables() {
        return None;
    }
    Some(ENGINE.with(|engine| {
        let done = kernel()?;
        if let (Some(nonblocking), Some(id)) = (nonblocking(), engine.of_fd(fd))
            && let Some(d) = engine.descriptions.get_mut(id.index)
        {
            d.nonblocking = nonblocking;
        }
        Ok(done)
    }))
}

/// The result of FIONREAD and TIOCOUTQ for an accelerated connection.
pub fn queued(fd: c_int, request: libc::c_ulong) -> Option<Result<c_int, Errno>> {
    with_description(fd, |engine, index| {
        let flow = match engine.descriptions.get(index)?.kind {
            Kind::Flow(flow) => flow,
            Kind::Listener(_) => return Some(Err(libc::EINVAL)),
            _ => return None,
        };
        engine.progress();
        let app = &engine.link.as_ref()?.app;
        match request {
            libc::FIONREAD => Some(Ok(c_int::try_from(app.unread(flow)).unwrap_or(c_int::MAX))),
            libc::TIOCOUTQ => Some(Ok(c_int::try_from(app.in_flight(flow)).unwrap_or(c_int::MAX))),
            _ => None,
        }
    })
}
