//! Reading and writing, in all their forms.

use core::mem::MaybeUninit;
use core::slice;

use csp_transport::app::AppError;
use libc::{c_int, iovec, off_t};

use super::{PASS, c_result, now};
use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine, errno_of};
use crate::lock;
use crate::sys::{self, Errno, syscall};
use crate::wait::{Attempt, Deadline, blocking};

/// Parts of a gather list handed on at once; longer lists are written in turns.
const PARTS: usize = 64;
/// Bytes of a file that sendfile moves at a time.
const FILE_CHUNK: usize = 16 * 1024;

/// Which direction's time-out counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Receive,
    Send,
}

/// What is asked for before an operation on a connection of ours: who it is and how long it may take. `None`: the
/// descriptor is the kernel's after all.
fn prepare(
    fd: c_int,
    flags: c_int,
    direction: Direction,
) -> Result<Option<(DescriptionId, Deadline)>, Errno> {
    if lock::inside() {
        return Err(libc::EAGAIN);
    }
    ENGINE.with(|engine| {
        let Some(id) = engine.of_fd(fd) else { return Ok(None) };
        if engine.is_epoll(id.index) {
            return Ok(None);
        }
        let d = engine.descriptions.get(id.index).ok_or(libc::EBADF)?;
        let timeout = if direction == Direction::Receive { d.receive_timeout } else { d.send_timeout };
        let wait = if d.nonblocking || flags & libc::MSG_DONTWAIT != 0 { Some(0) } else { timeout };
        Ok(Some((id, Deadline::after(wait))))
    })
}

/// The program's buffers.
///
/// # Safety
/// `parts` must point to `count` readable entries that describe writable memory.
pub unsafe fn iovecs<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    if count > libc::UIO_MAXIOV as usize || (parts.is_null() && count > 0) {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(parts, count) })
}

/// recv and its kin on a descriptor of ours; `None`: the kernel's affair.
///
/// # Safety
/// `parts` must describe writable memory.
pub unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Result<usize, Errno>> {
    let (id, deadline) = match prepare(fd, flags, Direction::Receive) {
        Ok(Some(found)) => found,
        Ok(None) => return None,
        Err(errno) => return Some(Err(errno)),
    };
    if flags & libc::MSG_OOB != 0 {
        return Some(Err(libc::EINVAL));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Some(Err(libc::EAGAIN));
    }
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let wanted: usize = parts.iter().map(|p| p.iov_len).sum();
    let mut done = 0;
    let result = blocking(id, deadline, |engine| {
        let flow = match engine.flow(id) {
            Ok(flow) => flow,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Some(link) = &mut engine.link else { return Attempt::Done(Err(libc::EBADF)) };
        let mut skip = done;
        for part in parts {
            let from = skip.min(part.iov_len);
            skip -= from;
            if from == part.iov_len && wanted > 0 {
                continue;
            }
            // SAFETY: the caller's promise; `from` lies within the part.
            let into = unsafe {
                slice::from_raw_parts_mut(part.iov_base.cast::<u8>().add(from), part.iov_len - from)
            };
            match link.app.read(now(), flow, into, peek) {
                Ok(0) => return Attempt::Done(Ok(done)),
                Ok(n) => {
                    done += n;
                    if n < into.len() || peek {
                        break;
                    }
                }
                Err(AppError::WouldBlock) if done > 0 && (!all || deadline.is_over()) => {
                    return Attempt::Done(Ok(done));
                }
                Err(AppError::WouldBlock) => return Attempt::WouldBlock,
                Err(_) if done > 0 => return Attempt::Done(Ok(done)),
                Err(error) => return Attempt::Done(Err(errno_of(error))),
            }
        }
        if done == wanted || !all || peek { Attempt::Done(Ok(done)) } else { Attempt::WouldBlock }
    });
    if done == 0 && result == Err(PASS) {
        return None;
    }
    // What a time-out or a signal cut short is told as far as it went.
    Some(if done > 0 { Ok(done) } else { result })
}

/// send and its kin on a descriptor of ours; `None`: the kernel's affair.
///
/// # Safety
/// `parts` must describe readable memory.
pub unsafe fn send(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Result<usize, Errno>> {
    let (id, deadline) = match prepare(fd, flags, Direction::Send) {
        Ok(Some(found)) => found,
        Ok(None) => return None,
        Err(errno) => return Some(Err(errno)),
    };
    if flags & libc::MSG_OOB != 0 {
        return Some(Err(libc::EOPNOTSUPP));
    }
    let wanted: usize = parts.iter().map(|p| p.iov_len).sum();
    let mut done = 0;
    let result = blocking(id, deadline, |engine| {
        loop {
            // SAFETY: the caller's promise.
            match unsafe { write_some(engine, id, parts, done) } {
                Ok(n) => done += n,
                Err(AppError::WouldBlock) => return Attempt::WouldBlock,
                Err(error) => return Attempt::Done(Err(errno_of(error))),
            }
            if done == wanted {
                return Attempt::Done(Ok(done));
            }
        }
    });
    if done > 0 {
        return Some(Ok(done));
    }
    if result == Err(PASS) {
        return None;
    }
    if result == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        raise_sigpipe();
    }
    Some(result)
}

/// Writes bytes of `parts` from `skip` on.
///
/// # Safety
/// `parts` must describe readable memory.
unsafe fn write_some(
    engine: &mut Engine,
    id: DescriptionId,
    parts: &[iovec],
    mut skip: usize,
) -> Result<usize, AppError> {
    let flow = match engine.flow(id) {
        Ok(flow) => flow,
        Err(errno) => return Err(AppError::Broken(errno)),
    };
    let link = engine.link.as_mut().ok_or(AppError::Unknown)?;
    let mut slices: [&[u8]; PARTS] = [&[]; PARTS];
    let mut used = 0;
    for part in parts {
        let from = skip.min(part.iov_len);
        skip -= from;
        let Some(slot) = slices.get_mut(used) else { break };
        if part.iov_len > from {
            // SAFETY: the caller's promise; `from` lies within the part.
            *slot =
                unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>().add(from), part.iov_len - from) };
            used += 1;
        }
    }
    link.app.write(now(), flow, slices.get(..used).unwrap_or(&[]))
}

fn raise_sigpipe() {
    // SAFETY: no pointers; the signal goes to this thread, as the kernel sends it.
    unsafe {
        let thread = syscall!(libc::SYS_gettid).unwrap_or(0);
        let _ = syscall!(libc::SYS_tgkill, sys::getpid(), thread, libc::SIGPIPE);
    }
}

/// sendfile() to a descriptor of ours; `None`: the kernel's affair.
///
/// # Safety
/// `offset` must be null or point to a readable and writable offset.
pub unsafe fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> Option<isize> {
    let (id, deadline) = match prepare(to, 0, Direction::Send) {
        Ok(Some(found)) => found,
        Ok(None) => return None,
        Err(errno) => return Some(c_result(Err(errno))),
    };
    // SAFETY: the caller's promise. Without an offset the file's own position counts, and moves.
    let start = if offset.is_null() {
        // SAFETY: no pointers.
        match unsafe { syscall!(libc::SYS_lseek, from, 0, libc::SEEK_CUR) } {
            Ok(at) => at as off_t,
            Err(errno) => return Some(c_result(Err(errno))),
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { *offset }
    };
    let (sent, result) = copy_file(id, deadline, from, start, count);
    if sent == 0 && result == Err(PASS) {
        return None;
    }
    let end = start + sent as off_t;
    if offset.is_null() {
        // SAFETY: no pointers.
        let _ = unsafe { syscall!(libc::SYS_lseek, from, end, libc::SEEK_SET) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { *offset = end };
    }
    if sent == 0 && result == Err(libc::EPIPE) {
        raise_sigpipe();
    }
    Some(c_result(if sent > 0 { Ok(sent) } else { result.map(|()| 0) }))
}

/// Copies from a file until `count` bytes, its end, or an obstacle. Nothing is read that there is no room for.
fn copy_file(
    id: DescriptionId,
    deadline: Deadline,
    from: c_int,
    start: off_t,
    count: usize,
) -> (usize, Result<(), Errno>) {
    // Not cleared: the kernel writes what is read of it.
    let mut chunk = MaybeUninit::<[u8; FILE_CHUNK]>::uninit();
    let mut sent = 0;
    while sent < count {
        let room = blocking(id, deadline, |engine| {
            let flow = match engine.flow(id) {
                Ok(flow) => flow,
                Err(errno) => return Attempt::Done(Err(errno)),
            };
            let Some(link) = &mut engine.link else { return Attempt::Done(Err(libc::EBADF)) };
            match link.app.write_room(flow) {
                Ok(room) => Attempt::Done(Ok(room)),
                Err(AppError::WouldBlock) => Attempt::WouldBlock,
                Err(error) => Attempt::Done(Err(errno_of(error))),
            }
        });
        let room = match room {
            Ok(room) => room.min(FILE_CHUNK).min(count - sent),
            Err(errno) => return (sent, Err(errno)),
        };
        let at = start + sent as off_t;
        // SAFETY: `room` bytes of the chunk are writable.
        let len = match unsafe { syscall!(libc::SYS_pread64, from, chunk.as_mut_ptr(), room, at) } {
            Ok(0) => return (sent, Ok(())),
            Ok(len) => len,
            Err(errno) => return (sent, Err(errno)),
        };
        let part = iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: len };
        let mut written = 0;
        let wrote = blocking(id, deadline, |engine| {
            // SAFETY: the part describes `len` bytes of the chunk.
            match unsafe { write_some(engine, id, slice::from_ref(&part), 0) } {
                Ok(n) => {
                    written = n;
                    Attempt::Done(Ok(()))
                }
                Err(AppError::WouldBlock) => Attempt::WouldBlock,
                Err(error) => Attempt::Done(Err(errno_of(error))),
            }
        });
        sent += written;
        if wrote.is_err() {
            return (sent, wrote);
        }
    }
    (sent, Ok(()))
}
