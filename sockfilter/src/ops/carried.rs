//! Options of connections that the agent carries. A Unix socket has no TCP options, so their values are kept
//! here, and a temporary TCP socket provides the kernel's answers.

use std::sync::Arc;

use csp_wire::agent::CarriedOption;
use libc::{c_int, c_void, socklen_t};

use super::lacking::Scratch;
use super::{options, sockets, zerocopy};
use crate::attach;
use crate::description::{Kind, OPTION_LEN_MAX, SetOption};
use crate::engine::ENGINE;
use crate::inherit::Mark;
use crate::lock;
use crate::sys::{Errno, syscall};

/// Called after SO_KEEPALIVE was set on the Unix socket of a connection.
pub fn keepalive_set(fd: c_int, index: usize) {
    if let Ok(scratch) = known(index).and_then(|(family, options)| scratch(family, &options)) {
        forward(fd, index, (libc::SOL_SOCKET, libc::SO_KEEPALIVE), scratch.0);
    }
}

/// Applies an option that concerns the client's TCP connection: the agent forwards it to the proxy. `scratch`
/// has the TCP options, and the Unix socket `fd` the SOL_SOCKET options.
fn forward(fd: c_int, index: usize, (level, name): (c_int, c_int), scratch: c_int) {
    let of = |level| if level == libc::SOL_SOCKET { fd } else { scratch };
    let value = |level, name| sockets::option_value::<c_int>(of(level), level, name);
    let Some((option, value)) = options::forwarded(level, name, value) else { return };
    let found = ENGINE.with(|engine| match engine.descriptions.get(index)?.kind {
        Kind::Carried { ticket, .. } => Some((ticket, engine.link.as_ref().and_then(|link| link.agent))),
        _ => None,
    });
    if let Some((ticket, session)) = found {
        attach::set_carried_option(session, &CarriedOption { ticket, option, value });
    }
}

/// The options, all ints, that are read from a connection's placeholder before the agent carries it.
const KEPT: [(c_int, c_int); 9] = [
    zerocopy::OPTION,
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// Whether the value of an option is stored here.
pub fn keeps(level: c_int, name: c_int) -> bool {
    matches!(level, libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6)
        || (level, name) == zerocopy::OPTION
}

/// Returns the options of a connection whose mark contains SO_ZEROCOPY.
pub fn with_zero_copy() -> Arc<Vec<SetOption>> {
    let (level, name) = zerocopy::OPTION;
    let mut value = [0; OPTION_LEN_MAX];
    value[..size_of::<c_int>()].copy_from_slice(&c_int::to_ne_bytes(1));
    Arc::new(vec![SetOption { level, name, value, len: size_of::<c_int>() as u8 }])
}

/// Reads the options of a connection from its placeholder `fd`.
pub fn options_of(fd: c_int) -> Arc<Vec<SetOption>> {
    let known = KEPT.into_iter().filter_map(|(level, name)| {
        let (mut value, mut len) = ([0; OPTION_LEN_MAX], size_of::<c_int>() as socklen_t);
        let at = value.as_mut_ptr();
        // SAFETY: `value` has `len` writable bytes.
        unsafe { syscall!(libc::SYS_getsockopt, fd, level, name, at, &raw mut len) }.ok()?;
        Some(SetOption { level, name, value, len: len as u8 })
    });
    Arc::new(known.collect())
}

/// Returns a temporary TCP socket with the stored options of a connection.
fn scratch(family: c_int, options: &[SetOption]) -> Result<Scratch, Errno> {
    let scratch = Scratch::new(family)?;
    options::apply(scratch.0, options);
    Ok(scratch)
}

/// Options of SOL_SOCKET whose value on a Unix socket differs. The peer's credentials are those of the
/// process that created the socket, and do not describe the client: a program could mistake the client for a
/// local one.
const OF_TCP: [c_int; 7] = [
    libc::SO_DOMAIN,
    libc::SO_PROTOCOL,
    libc::SO_PEERCRED,
    libc::SO_PEERSEC,
    libc::SO_PEERNAME,
    libc::SO_PEERGROUPS,
    SO_PEERPIDFD,
];
const SO_PEERPIDFD: c_int = 77;

/// Family and options of a connection.
fn known(index: usize) -> Result<(c_int, Arc<Vec<SetOption>>), Errno> {
    if lock::inside() {
        return Err(libc::EAGAIN);
    }
    ENGINE
        .with(|engine| engine.descriptions.get(index).map(|d| (d.family, Arc::clone(&d.options))))
        .ok_or(libc::EBADF)
}

/// getsockopt() of an option that is stored here, or whose value on a Unix socket differs. Returns `None` if
/// the socket's own answer is correct.
///
/// # Safety
/// `value` must have `*len` writable bytes, `len` be readable and writable.
pub unsafe fn get(
    index: usize,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Result<usize, Errno>> {
    if !(keeps(level, name) || level == libc::SOL_SOCKET && OF_TCP.contains(&name)) {
        return None;
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
        return Some(Err(libc::EOPNOTSUPP));
    }
    Some(known(index).and_then(|(family, options)| {
        let scratch = scratch(family, &options)?;
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
        unsafe { syscall!(libc::SYS_getsockopt, scratch.0, level, name, value, len) }
    }))
}

/// setsockopt() of an option that is stored here. Refused if the kernel refuses it for TCP.
///
/// # Safety
/// `value` must have `len` readable bytes.
pub unsafe fn set(
    fd: c_int,
    index: usize,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<usize, Errno> {
    let (family, kept) = known(index)?;
    let scratch = scratch(family, &kept)?;
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    unsafe { syscall!(libc::SYS_setsockopt, scratch.0, level, name, value, len) }?;
    forward(fd, index, (level, name), scratch.0);
    if (level, name) == zerocopy::OPTION {
        set_zero_copy(fd, index, sockets::option_value::<c_int>(scratch.0, level, name) != 0);
    }
    drop(scratch);
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    if let Some(option) = unsafe { options::copied(level, name, value, len) } {
        ENGINE.with(|engine| {
            let Some(d) = engine.descriptions.get_mut(index) else { return };
            options::put(Arc::make_mut(&mut d.options), option);
        });
    }
    Ok(0)
}

/// Records SO_ZEROCOPY, also on the Unix socket for the processes to which the connection passes.
fn set_zero_copy(fd: c_int, index: usize, on: bool) {
    zerocopy::set(fd, on);
    ENGINE.with(|engine| {
        let Some(d) = engine.descriptions.get(index) else { return };
        if let Kind::Carried { local, remote, ticket } = d.kind {
            let mark = Mark::Carried { family: d.family, local, remote, ticket, zero_copy: on };
            // If this fails, only this process has the option.
            let _ = mark.put(fd);
        }
    });
}
