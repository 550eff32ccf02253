//! How a connection in the agent's custody has ended. Its Unix socket reports the end of the stream when the
//! client has ended it, but also when the agent has exited, or has closed the socket because the client reset
//! the connection. A truncated upload must not look complete.
//!
//! A regular end is signed: before it, the agent binds its socket to a name (autobind, unix(7)), which every
//! process with a descriptor of the other socket can see. A name of this process's own socket means that no
//! reset is to be reported any more: the program shut down reading, or the reset was reported.

use core::ffi::c_void;

use libc::{c_int, c_long, ssize_t};

use super::c_result;
use crate::fdtable::{self, Entry};
use crate::inherit::Mark;
use crate::sys::{self, syscall};

/// The result of recv and its variants: `received`, or ECONNRESET for an end of the stream that is not
/// signed. `wanted`: whether the program requested any bytes.
#[inline]
pub fn or_reset(fd: c_int, received: ssize_t, wanted: bool) -> ssize_t {
    if received == 0 && wanted && matches!(fdtable::entry(fd), Entry::Carried(_)) && was_cut(fd) {
        return c_result(Err(libc::ECONNRESET));
    }
    received
}

/// Whether the stream ended without a signature. Returns `true` only once, as the kernel reports a reset
/// once.
#[cold]
fn was_cut(fd: c_int) -> bool {
    // The descriptor may have been closed without the filter's notice, and now refer to another file.
    if !matches!(Mark::of(fd), Some(Mark::Carried { .. })) {
        return false;
    }
    let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
    // SAFETY: one entry; it does not wait.
    let polled = unsafe { syscall!(libc::SYS_poll, fds.as_mut_ptr(), 1, 0) };
    // The agent still holds its end: the client has shut down. Sandboxed programs usually get no further.
    if polled != Ok(1) || fds[0].revents & libc::POLLHUP == 0 {
        return false;
    }
    if is_named(libc::SYS_getpeername, fd) || is_named(libc::SYS_getsockname, fd) {
        return false;
    }
    sign(fd);
    true
}

/// Called before shutdown(): after ending its reading direction a program sees the end of the stream.
pub fn before_shutdown(fd: c_int, how: c_int) {
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) && matches!(fdtable::entry(fd), Entry::Carried(_)) {
        sign(fd);
    }
}

/// Gives a Unix socket a name that the kernel chooses, if it has none.
pub fn sign(fd: c_int) {
    let family = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: an address that is the family only; the kernel reads its two bytes.
    let signed = unsafe { syscall!(libc::SYS_bind, fd, &raw const family, size_of_val(&family)) };
    if let Err(errno) = signed {
        sys::log_line(&format!("the end of a connection could not be signed (error {errno})"));
    }
}

/// Whether getsockname or getpeername returns a name.
fn is_named(call: c_long, fd: c_int) -> bool {
    let mut address = [0u64; 16];
    let mut len = size_of_val(&address) as libc::socklen_t;
    let into = address.as_mut_ptr().cast::<c_void>();
    // SAFETY: `address` has `len` writable bytes.
    let known = unsafe { syscall!(call, fd, into, &raw mut len) };
    known.is_ok() && len as usize > size_of::<libc::sa_family_t>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [c_int; 2] {
        let mut pair = [0; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: `pair` has room for two descriptors.
        unsafe { syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }.unwrap();
        let (local, remote) = ("10.76.0.100:80".parse().unwrap(), "10.76.0.1:40000".parse().unwrap());
        let ticket = csp_wire::channel::Ticket([0; csp_wire::channel::TICKET_LEN]);
        Mark::Carried { family: libc::AF_INET, local, remote, ticket, zero_copy: false }
            .put(pair[0])
            .unwrap();
        pair
    }

    #[test]
    fn an_end_without_its_sign_is_reported_once() {
        let [near, far] = pair();
        assert!(!was_cut(near), "it goes on");
        sys::close(far);
        assert!(was_cut(near));
        assert!(!was_cut(near), "once");
        sys::close(near);
    }

    #[test]
    fn a_socket_that_the_agent_does_not_carry_just_ends() {
        let [near, far] = pair();
        sys::close(near);
        assert!(!was_cut(far));
        sys::close(far);
    }

    #[test]
    fn a_signed_end_is_the_end() {
        let [near, far] = pair();
        sign(far);
        sys::close(far);
        assert!(!was_cut(near));
        sys::close(near);
    }

    #[test]
    fn no_reset_is_reported_after_reading_has_ended() {
        let [near, far] = pair();
        sign(near);
        sys::close(far);
        assert!(!was_cut(near));
        sys::close(near);
    }
}
