//! System calls, by number.
//!
//! The provider also runs inside applications whose libc symbols (socket, read, close, poll, …) are
//! interposed by the socket filter. Nothing here binds to those symbols: every call goes through
//! `syscall(2)`. All descriptors created here are close-on-exec, all sockets non-blocking.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::RawFd;
use std::path::Path;

use libc::{c_int, c_long, c_void};

use crate::ViError;

/// The `errno` of a failed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Errno(pub c_int);

impl Errno {
    fn last() -> Self {
        // Reads the thread's errno; no system call.
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    pub(super) fn text(self) -> String {
        std::io::Error::from_raw_os_error(self.0).to_string()
    }

    pub(super) fn of(self, call: &'static str) -> ViError {
        ViError::System { call, reason: self.text() }
    }
}

fn checked(result: c_long) -> Result<c_long, Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        checked(libc::syscall($number $(, $argument as c_long)*))
    };
}

/// A descriptor owned by this provider, closed when dropped.
#[derive(Debug)]
pub(super) struct Fd(RawFd);

impl Fd {
    pub(super) fn raw(&self) -> RawFd {
        self.0
    }

    /// Moves the file to a descriptor of at least `floor`, or returns it unchanged where the process's limit
    /// does not allow that.
    pub(super) fn lifted(self, floor: RawFd) -> Fd {
        if self.0 >= floor {
            return self;
        }
        // SAFETY: no pointers are passed.
        match unsafe { syscall!(libc::SYS_fcntl, self.0, libc::F_DUPFD_CLOEXEC, floor) } {
            Ok(fd) => Fd(fd as RawFd),
            Err(_) => self,
        }
    }
}

#[cfg(test)]
impl From<std::os::fd::OwnedFd> for Fd {
    fn from(fd: std::os::fd::OwnedFd) -> Self {
        use std::os::fd::IntoRawFd;
        Fd(fd.into_raw_fd())
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: no pointers are passed. This value owns the descriptor, so nothing else uses its number.
        unsafe { libc::syscall(libc::SYS_close, c_long::from(self.0)) };
    }
}

fn sockaddr(path: &Path) -> Result<(libc::sockaddr_un, usize), Errno> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((address, size_of::<libc::sa_family_t>() + bytes.len() + 1))
}

fn socket() -> Result<Fd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_socket, libc::AF_UNIX, kind, 0) }.map(|fd| Fd(fd as RawFd))
}

/// Returns a socket connected to the listener at `path`. Unix sockets connect at once or not at all (EAGAIN:
/// backlog full).
pub(super) fn connect(path: &Path) -> Result<Fd, Errno> {
    let (address, len) = sockaddr(path)?;
    let fd = socket()?;
    // SAFETY: `address` is a local with at least `len` readable bytes that outlives the call.
    unsafe { syscall!(libc::SYS_connect, fd.raw(), &raw const address, len) }?;
    Ok(fd)
}

/// Returns a socket that listens at `path`, open to every user.
pub(super) fn listen(path: &Path) -> Result<Fd, Errno> {
    let (address, len) = sockaddr(path)?;
    let fd = socket()?;
    // SAFETY: `address` is a local with at least `len` readable bytes that outlives both calls; a zero byte
    // within them ends its path.
    unsafe {
        syscall!(libc::SYS_bind, fd.raw(), &raw const address, len)?;
        syscall!(libc::SYS_fchmodat, libc::AT_FDCWD, &raw const address.sun_path, 0o666)?;
    }
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_listen, fd.raw(), 4096) }?;
    Ok(fd)
}

/// Returns device and inode of the file at `path`, which distinguish it from a later file of the same name.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let (address, _) = sockaddr(path).ok()?;
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `address` is a local whose path ends with a zero byte. `stat` has the size of the kernel's
    // struct stat on 64-bit targets and is initialised by zeroing.
    let stat = unsafe {
        let path = &raw const address.sun_path;
        syscall!(libc::SYS_newfstatat, libc::AT_FDCWD, path, stat.as_mut_ptr(), 0).ok()?;
        stat.assume_init()
    };
    Some((stat.st_dev, stat.st_ino))
}

pub(super) fn unlink(path: &Path) {
    let Ok((address, _)) = sockaddr(path) else { return };
    // SAFETY: `address` is a local whose path ends with a zero byte, and outlives the call.
    unsafe {
        libc::syscall(libc::SYS_unlinkat, c_long::from(libc::AT_FDCWD), &raw const address.sun_path, 0)
    };
}

pub(super) fn accept(listener: &Fd) -> Result<Fd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address pointers are null, which accept4 permits.
    unsafe { syscall!(libc::SYS_accept4, listener.raw(), 0, 0, flags) }.map(|fd| Fd(fd as RawFd))
}

/// Returns the user id of the process that connected.
pub(super) fn peer_uid(socket: &Fd) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (option, value, size) = (libc::SO_PEERCRED, &raw mut credentials, &raw mut len);
    // SAFETY: `value` points to a local of `len` writable bytes, `size` to a local socklen_t; both outlive
    // the call.
    unsafe { syscall!(libc::SYS_getsockopt, socket.raw(), libc::SOL_SOCKET, option, value, size) }.ok()?;
    Some(credentials.uid)
}

/// Shuts the socket down for all processes that have it open.
pub(super) fn shutdown(socket: &Fd) {
    // SAFETY: no pointers are passed.
    unsafe {
        libc::syscall(libc::SYS_shutdown, c_long::from(socket.raw()), c_long::from(libc::SHUT_RDWR));
    }
}

/// Buffer for the control message of one descriptor, aligned as cmsghdr.
#[repr(align(8))]
#[expect(dead_code, reason = "read and written through msghdr only")]
struct Control([u8; 24]);

/// Sends one packet, with a descriptor if given.
pub(super) fn send(socket: &Fd, packet: &[u8], descriptor: Option<&Fd>) -> Result<(), Errno> {
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        message.msg_control = (&raw mut control).cast();
        // SAFETY: `msg_control` points to the 24 bytes of `control` and `msg_controllen` is CMSG_SPACE of one
        // descriptor, 24; the CMSG_* functions compute addresses within it, and the first header is therefore
        // not null.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor.raw());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` points to `part`, `packet` and `control`, which outlive the call.
    unsafe { syscall!(libc::SYS_sendmsg, socket.raw(), &raw const message, flags) }?;
    Ok(())
}

/// Receives one packet into `packet`. No room for descriptors is given, so the kernel drops those that a peer
/// attaches, and a daemon never owns (or has to close) a foreign file. Returns 0 when the peer has hung up.
pub(super) fn receive(socket: &Fd, packet: &mut [u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let (bytes, len) = (packet.as_mut_ptr(), packet.len());
    // SAFETY: `bytes` points to `len` writable bytes of `packet`, which outlive the call; the address
    // pointers are null.
    let got = unsafe { syscall!(libc::SYS_recvfrom, socket.raw(), bytes, len, flags, 0, 0) }?;
    Ok(got as usize)
}

/// Receives one packet with at most one descriptor. A packet with more descriptors, or longer than `packet`,
/// is an error (EBADMSG); so is one whose descriptor does not fit the process's descriptor table (EMFILE).
pub(super) fn receive_with_descriptor(socket: &Fd, packet: &mut [u8]) -> Result<(usize, Option<Fd>), Errno> {
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `part`, `packet` and `control`, all writable, which outlive the call.
    let got = unsafe { syscall!(libc::SYS_recvmsg, socket.raw(), &raw mut message, flags) }?;
    let mut descriptors = [None, None];
    // SAFETY: the kernel has filled `control` up to `msg_controllen`, at most 24 bytes. CMSG_FIRSTHDR returns
    // null or a header within it, and `cmsg_len` counts only descriptors that the kernel wrote there; at most
    // two fit. Each is new and owned by nothing else.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            // 24 bytes hold the header and at most two descriptors.
            let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            for (i, place) in descriptors.iter_mut().enumerate().take(bytes / size_of::<c_int>()) {
                *place = Some(Fd(libc::CMSG_DATA(header).cast::<c_int>().add(i).read_unaligned()));
            }
        }
    }
    let [first, second] = descriptors;
    if first.is_none() && message.msg_flags & libc::MSG_CTRUNC != 0 {
        // The buffer had room for the descriptor: the descriptor table is full, or (rarely) a security module
        // withheld it.
        return Err(Errno(libc::EMFILE));
    }
    if second.is_some() || message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0 {
        return Err(Errno(libc::EBADMSG));
    }
    Ok((got as usize, first))
}

/// Creates a memfd of `len` bytes that can neither shrink nor grow.
pub(super) fn sealed_memory(len: usize) -> Result<Fd, Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a static string that ends with a zero byte.
    let fd = unsafe { syscall!(libc::SYS_memfd_create, c"csp-vi".as_ptr(), flags) }?;
    let fd = Fd(fd as RawFd);
    // SAFETY: no pointers are passed.
    unsafe {
        syscall!(libc::SYS_ftruncate, fd.raw(), len)?;
        syscall!(libc::SYS_fcntl, fd.raw(), libc::F_ADD_SEALS, SEALS)?;
    }
    Ok(fd)
}

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Returns whether a received descriptor is memory of exactly `len` bytes that cannot be truncated (which
/// would raise SIGBUS here) and is not made of huge pages (which may run out).
pub(super) fn is_sealed_memory(fd: &Fd, len: usize) -> bool {
    // SAFETY: no pointers are passed.
    let seals = unsafe { syscall!(libc::SYS_fcntl, fd.raw(), libc::F_GET_SEALS, 0) }.unwrap_or(0);
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `system` has the size of the kernel's struct statfs on 64-bit targets, outlives the call and is
    // initialised by zeroing.
    let kind = unsafe {
        libc::syscall(libc::SYS_fstatfs, c_long::from(fd.raw()), system.as_mut_ptr());
        system.assume_init().f_type
    };
    // SAFETY: no pointers are passed. Nothing depends on the position of a memfd.
    let end = unsafe { syscall!(libc::SYS_lseek, fd.raw(), 0, libc::SEEK_END) }.unwrap_or(-1);
    seals as c_int & SEALS == SEALS && kind == libc::TMPFS_MAGIC && usize::try_from(end) == Ok(len)
}

/// Maps `len` bytes of `fd`: shared, readable and writable.
pub(super) fn map(fd: &Fd, len: usize) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the address argument is 0, so the kernel chooses a free range and replaces no mapping.
    let at = unsafe { syscall!(libc::SYS_mmap, 0, len, protection, libc::MAP_SHARED, fd.raw(), 0) }?;
    Ok(at as *mut u8)
}

/// Unmaps a mapping of [`map`].
///
/// # Safety
/// `at` and `len` are those of one call of [`map`]; no pointer into the mapping is used afterwards.
pub(super) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller guarantees that the range is one whole mapping of `map` and no longer used.
    unsafe { libc::syscall(libc::SYS_munmap, at, len) };
}

pub(super) fn epoll() -> Result<Fd, Errno> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }.map(|fd| Fd(fd as RawFd))
}

/// Adds `fd` to the epoll set under `token`, for reading and hang-up, level-triggered.
pub(super) fn watch(epoll: &Fd, fd: &Fd, token: u64) -> Result<(), Errno> {
    let event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: token };
    // SAFETY: `event` is a local that outlives the call.
    unsafe { syscall!(libc::SYS_epoll_ctl, epoll.raw(), libc::EPOLL_CTL_ADD, fd.raw(), &raw const event) }?;
    Ok(())
}

/// Removes `fd` from the epoll set. Needed before closing it, since a forked child may keep the file open.
pub(super) fn unwatch(epoll: &Fd, fd: &Fd) {
    let event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: `event` is a local that outlives the call.
    let _ = unsafe {
        syscall!(libc::SYS_epoll_ctl, epoll.raw(), libc::EPOLL_CTL_DEL, fd.raw(), &raw const event)
    };
}

/// Largest number of events that one call of [`ready`] returns.
pub(super) const READY_MAX: usize = 32;

/// Writes the tokens of the ready descriptors to `tokens` and returns their number. Blocks for at most
/// `timeout_ms`; 0 does not block.
pub(super) fn ready(epoll: &Fd, tokens: &mut [u64; READY_MAX], timeout_ms: c_int) -> usize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
    let (at, max) = (events.as_mut_ptr(), READY_MAX);
    // SAFETY: `events` is a local array of READY_MAX writable entries that outlives the call; the signal mask
    // is null.
    let count = unsafe { syscall!(libc::SYS_epoll_pwait, epoll.raw(), at, max, timeout_ms, 0, 8) };
    let count = (count.unwrap_or(0) as usize).min(READY_MAX);
    for (token, event) in tokens.iter_mut().zip(&events[..count]) {
        *token = event.u64;
    }
    count
}

/// Opens a descriptor to keep in reserve; closing it makes room to accept and close a connection when the
/// table is full.
pub(super) fn reserve() -> Result<Fd, Errno> {
    // SAFETY: no pointers are passed.
    unsafe { syscall!(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC) }.map(|fd| Fd(fd as RawFd))
}

/// Returns CLOCK_MONOTONIC in milliseconds.
pub(super) fn monotonic_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local of the type that the kernel writes, and outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_clock_gettime,
            c_long::from(libc::CLOCK_MONOTONIC),
            &raw mut time as *mut c_void,
        )
    };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
