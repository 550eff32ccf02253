//! The next library's functions, resolved once at start. Before that, and in a thread that is inside the
//! filter, raw system calls are used: in its first call an allocator may open and read files, inside `dlsym`.

use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::engine::ENGINE;
use crate::next::Next;
use crate::{lock, sys};

/// A raw result in the C library's form.
fn c_result(result: isize) -> isize {
    match sys::checked(result) {
        Ok(value) => value as isize,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// Whether this thread may hold the engine's lock: the C library's functions would be cancellation points
/// there. The lock is checked first, since access to a thread-local variable costs more.
#[inline]
fn may_hold_the_lock() -> bool {
    ENGINE.is_taken() && lock::inside()
}

/// Whether the C library's function does more than its system call: checks a size, preserves the timeout,
/// packs a mask, corrects the number of a process group. Inside the filter only signal handlers call these.
const fn does_more(name: &str) -> bool {
    let names = [
        "__read_chk",
        "__recv_chk",
        "__recvfrom_chk",
        "__poll_chk",
        "__ppoll_chk",
        "ppoll",
        "pselect",
        "fcntl",
        "fcntl64",
    ];
    let mut at = 0;
    while at < names.len() {
        if same(names[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

macro_rules! word {
    ($a:expr) => {
        $a as usize
    };
}

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = [$number:expr; $($raw:expr),*];)*) => {
        #[allow(non_upper_case_globals)]
        mod pointers {
            $(pub static $name: super::Next = super::Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Resolves all functions.
        pub fn resolve() {
            $(pointers::$name.find();)*
        }

        $(
            /// The next library's function, or the system call.
            ///
            /// # Safety
            /// As the function of this name.
            pub unsafe fn $name($($arg: $type),*) -> $ret {
                const BY_NUMBER: bool = !does_more(stringify!($name));
                let pointer = pointers::$name.known();
                if pointer.is_null() || (BY_NUMBER && may_hold_the_lock()) {
                    let mut words = [0usize; 6];
                    let given = [$(word!($raw)),*];
                    words[..given.len()].copy_from_slice(&given);
                    // SAFETY: the words are the arguments of this system call, valid by the caller's contract
                    // as for the C library's function.
                    return c_result(unsafe { sys::raw6($number, words) }) as $ret;
                }
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $ret;
                // SAFETY: the C library's function of this name has this signature (variadic ones take their
                // integer argument the same way on x86-64).
                let function = unsafe { core::mem::transmute::<*mut c_void, Function>(pointer) };
                // SAFETY: by the caller's contract the arguments are what the C library's function takes.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

/// Bytes of the kernel's signal set.
const MASK_LEN: usize = 8;

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = [libc::SYS_socket; domain, kind, protocol];
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = [libc::SYS_bind; fd, address, len];
    listen(fd: c_int, backlog: c_int) -> c_int = [libc::SYS_listen; fd, backlog];
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = [libc::SYS_accept; fd, address, len];
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        = [libc::SYS_accept4; fd, address, len, flags];
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = [libc::SYS_connect; fd, address, len];
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        = [libc::SYS_getsockname; fd, address, len];
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        = [libc::SYS_getpeername; fd, address, len];
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int
        = [libc::SYS_getsockopt; fd, level, name, value, len];
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
        = [libc::SYS_setsockopt; fd, level, name, value, len];
    shutdown(fd: c_int, how: c_int) -> c_int = [libc::SYS_shutdown; fd, how];
    close(fd: c_int) -> c_int = [libc::SYS_close; fd];
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = [libc::SYS_close_range; first, last, flags];
    dup(fd: c_int) -> c_int = [libc::SYS_dup; fd];
    dup2(old: c_int, new: c_int) -> c_int = [libc::SYS_dup2; old, new];
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int = [libc::SYS_dup3; old, new, flags];
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int = [libc::SYS_fcntl; fd, command, argument];
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int = [libc::SYS_fcntl; fd, command, argument];
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int = [libc::SYS_ioctl; fd, request, argument];
    read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t = [libc::SYS_read; fd, into, len];
    __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t = [libc::SYS_read; fd, into, len];
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = [libc::SYS_readv; fd, parts, count];
    recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        = [libc::SYS_recvfrom; fd, into, len, flags, 0, 0];
    __recv_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
        = [libc::SYS_recvfrom; fd, into, len, flags, 0, 0];
    recvfrom(fd: c_int, into: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t)
        -> ssize_t = [libc::SYS_recvfrom; fd, into, len, flags, address, alen];
    __recvfrom_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr,
        alen: *mut socklen_t) -> ssize_t = [libc::SYS_recvfrom; fd, into, len, flags, address, alen];
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = [libc::SYS_recvmsg; fd, message, flags];
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        = [libc::SYS_recvmmsg; fd, messages, count, flags, timeout];
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = [libc::SYS_write; fd, from, len];
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = [libc::SYS_writev; fd, parts, count];
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t
        = [libc::SYS_sendto; fd, from, len, flags, 0, 0];
    sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, alen: socklen_t)
        -> ssize_t = [libc::SYS_sendto; fd, from, len, flags, address, alen];
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = [libc::SYS_sendmsg; fd, message, flags];
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = [libc::SYS_sendmmsg; fd, messages, count, flags];
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        = [libc::SYS_sendfile; to, from, offset, count];
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: size_t, flags: c_uint) -> ssize_t
        = [libc::SYS_splice; from, from_offset, to, to_offset, len, flags];
    preadv2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        = [libc::SYS_preadv2; fd, parts, count, at, 0, flags];
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        = [libc::SYS_pwritev2; fd, parts, count, at, 0, flags];
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        = [libc::SYS_preadv2; fd, parts, count, at, 0, flags];
    pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        = [libc::SYS_pwritev2; fd, parts, count, at, 0, flags];
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = [libc::SYS_poll; fds, count, timeout];
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int
        = [libc::SYS_poll; fds, count, timeout];
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        = [libc::SYS_ppoll; fds, count, timeout, mask, MASK_LEN];
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t)
        -> c_int = [libc::SYS_ppoll; fds, count, timeout, mask, MASK_LEN];
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int
        = [libc::SYS_select; count, read, write, except, timeout];
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int = [libc::SYS_pselect6; count, read, write, except, timeout, 0];
    epoll_create(size: c_int) -> c_int = [libc::SYS_epoll_create; size];
    epoll_create1(flags: c_int) -> c_int = [libc::SYS_epoll_create1; flags];
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int
        = [libc::SYS_epoll_ctl; epoll, operation, fd, event];
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int
        = [libc::SYS_epoll_wait; epoll, events, count, timeout];
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int
        = [libc::SYS_epoll_pwait; epoll, events, count, timeout, mask, MASK_LEN];
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int = [441; epoll, events, count, timeout, mask, MASK_LEN];
}
