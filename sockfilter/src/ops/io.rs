//! Reading and writing, in all variants.

use core::slice;

use csp_app::{AppError, AppSide, FlowId, Handle, Readiness};
use libc::{c_int, iovec};

use super::{PASS, now, zerocopy};
use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine, errno_of};
use crate::sys::{self, Errno, syscall};
use crate::wait::{Attempt, Deadline, blocking};
use crate::{lock, memory};

/// Parts of a gather list written at a time; longer lists are written in several steps.
const PARTS: usize = 64;
/// Bytes of a file or pipe that are moved at a time.
pub const FILE_CHUNK: usize = 16 * 1024;

/// The direction whose time-out applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// SO_RCVTIMEO
    Receive,
    /// SO_SNDTIMEO
    Send,
}

/// Prepares an operation on an accelerated connection: returns its description and the deadline. `None`: the
/// descriptor is served by the kernel.
pub fn prepare(
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
    if count > libc::UIO_MAXIOV as usize {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if memory::is_unmappable(parts) {
        return Err(libc::EFAULT);
    }
    // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for the
    // call.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    if parts.iter().any(|p| isize::try_from(p.iov_len).is_err()) { Err(libc::EINVAL) } else { Ok(parts) }
}

/// How a receive operation treats the bytes.
#[derive(Clone, Copy)]
struct ReceiveMode {
    /// They are not consumed (MSG_PEEK).
    peek: bool,
    /// They are discarded (MSG_TRUNC).
    discard: bool,
    /// The call waits until all of them are received (MSG_WAITALL).
    all: bool,
    /// Whether the destination of the bytes is invalid: the call fails with EFAULT once there are bytes.
    faults: bool,
    wanted: usize,
}

/// recv and its variants on an accelerated connection; `None`: the call is passed to the kernel.
///
/// # Safety
/// `parts` must describe writable memory.
pub unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Result<usize, Errno>> {
    let (id, deadline) = match prepare(fd, flags, Direction::Receive) {
        Ok(Some(found)) => found,
        Ok(None) => return None,
        Err(errno) => return Some(Err(errno)),
    };
    if parts.iter().any(|part| memory::is_kernel_address(part.iov_base)) {
        return Some(Err(libc::EFAULT));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return zerocopy::receive(fd, flags);
    }
    if flags & libc::MSG_OOB != 0 {
        return Some(Err(libc::EINVAL));
    }
    let mode = ReceiveMode {
        peek: flags & libc::MSG_PEEK != 0,
        discard: flags & libc::MSG_TRUNC != 0,
        all: flags & libc::MSG_WAITALL != 0,
        faults: flags & libc::MSG_TRUNC == 0 && parts.iter().any(is_unmappable),
        wanted: parts.iter().map(|p| p.iov_len).sum(),
    };
    let mut done = 0;
    let result = blocking(id, deadline, |engine| {
        // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call.
        let taken = unsafe { take(engine, id, parts, &mut done, mode) };
        match taken {
            Ok(()) if !mode.all || done == mode.wanted => Attempt::Done(Ok(done)),
            Ok(()) if deadline.is_over() => Attempt::Done(Ok(done)),
            Ok(()) if done > 0 => Attempt::Partly,
            Ok(()) => Attempt::WouldBlock,
            Err(Some(errno)) if errno != libc::EAGAIN && done == 0 => Attempt::Done(Err(errno)),
            Err(Some(libc::EAGAIN)) if done == 0 => Attempt::WouldBlock,
            Err(Some(libc::EAGAIN)) if mode.all && !deadline.is_over() => Attempt::Partly,
            // The end of the stream, or an error after bytes: the next call reports it.
            Err(_) => Attempt::Done(Ok(done)),
        }
    });
    if done == 0 && result == Err(PASS) {
        return None;
    }
    // A call interrupted by a timeout or a signal returns the number of bytes already transferred.
    Some(if done > 0 { Ok(done) } else { result })
}

/// Whether a part lies outside the addresses of any program.
fn is_unmappable(part: &iovec) -> bool {
    part.iov_len > 0 && memory::is_unmappable(part.iov_base)
}

/// Consumes (or peeks at) the available bytes, into `parts` from byte `done` on. `Err(None)` is the end of
/// the stream.
///
/// # Safety
/// `parts` must describe writable memory, unless the bytes are thrown away.
unsafe fn take(
    engine: &mut Engine,
    id: DescriptionId,
    parts: &[iovec],
    done: &mut usize,
    mode: ReceiveMode,
) -> Result<(), Option<Errno>> {
    let flow = engine.flow(id).map_err(Some)?;
    let app = &mut engine.link.as_mut().ok_or(libc::EBADF)?.app;
    if mode.faults {
        return Err(if app.unread(flow) > 0 { Some(libc::EFAULT) } else { why_none(app, flow) });
    }
    if mode.peek {
        // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call.
        return unsafe { look_at(app, flow, parts, done, mode) };
    }
    if mode.wanted == 0 {
        return app.read(now(), flow, &mut [], false).map(drop).map_err(|e| Some(errno_of(e)));
    }
    let mut skip = *done;
    for part in parts {
        let from = skip.min(part.iov_len);
        skip -= from;
        while *done < mode.wanted && from < part.iov_len {
            let len = part.iov_len - from;
            let (asked, read) = if mode.discard {
                let mut discarded = [0; FILE_CHUNK];
                let asked = (mode.wanted - *done).min(FILE_CHUNK);
                (asked, app.read(now(), flow, discarded.get_mut(..asked).unwrap_or(&mut []), false))
            } else {
                // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call.
                // `from` lies within the part.
                let into = unsafe { slice::from_raw_parts_mut(part.iov_base.cast::<u8>().add(from), len) };
                (len, app.read(now(), flow, into, false))
            };
            match read {
                Ok(0) => return Err(None),
                Ok(n) => {
                    *done += n;
                    if n < asked {
                        return Ok(());
                    }
                }
                Err(error) => return Err(Some(errno_of(error))),
            }
            if !mode.discard {
                break;
            }
        }
    }
    Ok(())
}

/// Why a connection has no unread bytes: an error, or `None` at the end of the stream.
fn why_none(app: &mut AppSide, flow: FlowId) -> Option<Errno> {
    app.read(now(), flow, &mut [0], true).err().map(errno_of)
}

/// Copies the available bytes without consuming them. With MSG_WAITALL the call is repeated until all are
/// available.
///
/// # Safety
/// `parts` must describe writable memory.
unsafe fn look_at(
    app: &mut AppSide,
    flow: FlowId,
    parts: &[iovec],
    done: &mut usize,
    mode: ReceiveMode,
) -> Result<(), Option<Errno>> {
    *done = 0;
    if app.unread(flow) == 0 {
        return Err(why_none(app, flow));
    }
    for part in parts {
        if mode.discard {
            *done = app.unread(flow).min(mode.wanted);
            break;
        }
        if part.iov_len > 0 {
            // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call.
            let into = unsafe { slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len) };
            *done += app.peek(flow, *done, into);
        }
    }
    let over = app.readiness(Handle::Flow(flow)).contains(Readiness::PEER_SHUTDOWN);
    if over && *done < mode.wanted { Err(None) } else { Ok(()) }
}

/// send and its variants on an accelerated connection; `None`: the call is passed to the kernel.
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
    if parts.iter().any(is_unmappable) {
        return Some(Err(libc::EFAULT));
    }
    let wanted: usize = parts.iter().map(|p| p.iov_len).sum();
    let mut done = 0;
    let result = blocking(id, deadline, |engine| {
        loop {
            // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call.
            match unsafe { write_some(engine, id, parts, done) } {
                Ok(n) => done += n,
                Err(AppError::WouldBlock) if done > 0 => return Attempt::Partly,
                Err(AppError::WouldBlock) => return Attempt::WouldBlock,
                Err(error) => return Attempt::Done(Err(errno_of(error))),
            }
            if done == wanted {
                return Attempt::Done(Ok(done));
            }
        }
    });
    if done > 0 {
        if flags & libc::MSG_ZEROCOPY != 0 {
            zerocopy::sent(id);
        }
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
pub unsafe fn write_some(
    engine: &mut Engine,
    id: DescriptionId,
    parts: &[iovec],
    mut skip: usize,
) -> Result<usize, AppError> {
    let flow = match engine.flow(id) {
        Ok(flow) => flow,
        // A listener has no peer.
        Err(libc::ENOTCONN) => return Err(AppError::Pipe),
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
            // SAFETY: by the caller's contract each of `parts` names memory that is lent for the call. `from`
            // lies within the part.
            *slot =
                unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>().add(from), part.iov_len - from) };
            used += 1;
        }
    }
    link.app.write(now(), flow, slices.get(..used).unwrap_or(&[]))
}

pub fn raise_sigpipe() {
    // SAFETY: the calls take no pointers; the signal is sent to this thread, as the kernel does.
    unsafe {
        let thread = syscall!(libc::SYS_gettid).unwrap_or(0);
        let _ = syscall!(libc::SYS_tgkill, sys::getpid(), thread, libc::SIGPIPE);
    }
}
