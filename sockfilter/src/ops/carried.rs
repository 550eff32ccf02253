//! Options of connections that the agent carries: a Unix socket has none of TCP's, the connection behind it has.

use libc::{c_int, c_void, socklen_t};

use super::options::write_int;
use crate::engine::ENGINE;
use crate::lock;
use crate::sys::Errno;

/// Whether setting an option of this level succeeds without the kernel: there is nothing to set it on here.
pub fn takes(level: c_int) -> bool {
    matches!(level, libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6)
}

/// getsockopt(); `None`: the Unix socket's own answer is right.
///
/// # Safety
/// `value` must have `*len` writable bytes, `len` be readable and writable.
pub unsafe fn option(
    index: usize,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Result<usize, Errno>> {
    if lock::inside() {
        return None;
    }
    let family = ENGINE.with(|engine| engine.descriptions.get(index).map(|d| d.family))?;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => family,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        // No options of IP were received: programs that ask refuse source routes.
        (libc::IPPROTO_IP, libc::IP_OPTIONS) => {
            // SAFETY: the caller's promise.
            unsafe { *len = 0 };
            return Some(Ok(0));
        }
        // Small writes leave at once.
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => 1,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return Some(Err(libc::EOPNOTSUPP)),
        (level, _) if takes(level) => 0,
        _ => return None,
    };
    // SAFETY: the caller's promise.
    unsafe { write_int(number, value, len) };
    Some(Ok(0))
}
