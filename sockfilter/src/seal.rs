//! Seals: the form in which a connection that the agent carries passes to another program, over exec or
//! through a Unix socket.
//!
//! A carried connection is a Unix socket. A program without the filter (set-user-id, static, of another C
//! library, or with an LD_PRELOAD of its own) would take its client for a local process: servers trust a peer
//! that getpeername does not name. So the descriptor that leaves is one of a seal, which holds the
//! connection:
//!
//! ```text
//!  descriptor ─▶ seal (SOCK_SEQPACKET) ─ queue: an empty message with the connection's descriptor
//! ```
//! The filter of the receiving program opens it. A program without the filter reads the end of the stream and
//! gets EPIPE when it writes. Nothing here allocates, since a child of vfork seals and could not free.

use libc::{c_int, msghdr};

use crate::fdtable::{self, Entry};
use crate::inherit::{self, Mark};
use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, handover};

/// A new seal that holds the connection of `fd`. It is closed over exec.
pub fn of(fd: c_int) -> Result<c_int, Errno> {
    let mut pair = [0 as c_int; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `pair` has room for two descriptors.
    unsafe { syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }?;
    let [seal, sender] = pair;
    let made = handover::send_with(sender, &[], fd).and_then(|()| Mark::Sealed.put(seal));
    sys::close(sender);
    if let Err(errno) = made {
        sys::close(seal);
        return Err(errno);
    }
    Ok(seal)
}

/// Returns a descriptor of the connection in a seal. The seal keeps it, since several descriptors may refer
/// to the same seal.
fn content(seal: c_int) -> Result<c_int, Errno> {
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    // Room for one descriptor.
    // SAFETY: no pointers; `control` has that many bytes.
    message.msg_controllen = unsafe { libc::CMSG_LEN(4) } as usize;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header and what it points to are writable and outlive the call.
    unsafe { syscall!(libc::SYS_recvmsg, seal, &raw mut message, flags) }?;
    // SAFETY: the kernel filled the header in; the macros stay within `control`.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_descriptor = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len >= libc::CMSG_LEN(4) as usize;
        if is_descriptor {
            Ok(libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
        } else {
            Err(libc::EBADF)
        }
    }
}

/// Replaces `fd` by `by`, and closes `by`. The close-on-exec flag of `fd` is kept.
fn replace(fd: c_int, by: c_int) -> Result<(), Errno> {
    // SAFETY: no pointers.
    let flags = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_GETFD) }.unwrap_or(0);
    let flags = if flags as c_int & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
    // SAFETY: no pointers.
    let done = unsafe { syscall!(libc::SYS_dup3, by, fd, flags) };
    sys::close(by);
    done.map(drop)
}

/// Opens a seal: from now on its descriptor refers to the connection. A seal within a seal is refused with
/// EBADF: the filter creates none, and a peer could send one that contains itself.
pub fn open(fd: c_int) -> Result<(), Errno> {
    let content = content(fd)?;
    if Mark::of(content) == Some(Mark::Sealed) {
        sys::close(content);
        return Err(libc::EBADF);
    }
    replace(fd, content)
}

/// Calls `then` for the descriptors with this mark that stay open over exec. The tables of a vfork child are
/// its parent's, whose descriptors may differ.
fn each_leaving(is: impl Fn(&Mark) -> bool, mut then: impl FnMut(c_int)) {
    let mut one = |fd: c_int| {
        if handover::stays_open(fd) && Mark::of(fd).is_some_and(|mark| is(&mark)) {
            then(fd);
        }
    };
    if bootstrap::owns_tables() {
        (0..=fdtable::highest()).filter(|fd| matches!(fdtable::entry(*fd), Entry::Carried(_))).for_each(one);
    } else {
        inherit::each_descriptor(&mut one);
    }
}

/// Seals the connections that stay open over exec. A connection that cannot be sealed is closed over exec.
pub fn before_exec() {
    if !bootstrap::is_on() || fdtable::highest() <= 0 {
        return;
    }
    each_leaving(
        |mark| matches!(mark, Mark::Carried { .. }),
        |fd| {
            if of(fd).and_then(|seal| replace(fd, seal)).is_err() {
                // SAFETY: no pointers.
                let _ = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        },
    );
}

/// Opens the seals again after an exec that failed.
pub fn after_failed_exec() {
    if bootstrap::is_on() && fdtable::highest() > 0 {
        each_leaving(|mark| *mark == Mark::Sealed, |fd| _ = open(fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(kind: c_int) -> [c_int; 2] {
        let mut pair = [0; 2];
        // SAFETY: `pair` has room for two descriptors.
        unsafe {
            syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
        }
        .unwrap();
        pair
    }

    fn read(fd: c_int) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0u8; 100];
        // SAFETY: `buffer` has that many writable bytes.
        let len = unsafe { syscall!(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) }?;
        buffer.truncate(len);
        Ok(buffer)
    }

    fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the bytes are readable.
        unsafe { syscall!(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0, 0) }
    }

    #[test]
    fn a_program_that_does_not_open_the_seal_reads_the_end_and_writes_nowhere() {
        let [near, far] = pair(libc::SOCK_STREAM);
        write(far, b"from the client").unwrap();
        let seal = of(near).unwrap();
        sys::close(near);
        assert_eq!(read(seal).unwrap(), b"");
        assert_eq!(write(seal, b"to the client"), Err(libc::EPIPE));
        sys::close(seal);
        // The connection was closed with its seal, unread.
        assert_eq!(read(far), Err(libc::ECONNRESET));
        sys::close(far);
    }

    #[test]
    fn a_seal_that_holds_itself_stays_closed() {
        let [seal, sender] = pair(libc::SOCK_SEQPACKET);
        Mark::Sealed.put(seal).unwrap();
        handover::send_with(sender, &[], seal).unwrap();
        assert_eq!(open(seal), Err(libc::EBADF));
        assert_eq!(Mark::of(seal), Some(Mark::Sealed));
        [seal, sender].into_iter().for_each(sys::close);
    }

    #[test]
    fn every_descriptor_of_a_seal_opens_it() {
        let [near, far] = pair(libc::SOCK_STREAM);
        write(far, b"one two").unwrap();
        let seal = of(near).unwrap();
        // SAFETY: no pointers.
        let again = unsafe { syscall!(libc::SYS_dup, seal) }.unwrap() as c_int;
        sys::close(near);
        for fd in [seal, again] {
            assert_eq!(Mark::of(fd), Some(Mark::Sealed));
            open(fd).unwrap();
            assert_eq!(write(fd, b"x"), Ok(1));
        }
        assert_eq!(read(seal).unwrap(), b"one two");
        assert_eq!(read(far).unwrap(), b"xx");
        [seal, again, far].into_iter().for_each(sys::close);
    }
}
