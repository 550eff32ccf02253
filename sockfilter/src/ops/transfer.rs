//! sendfile and splice between accelerated connections and files or pipes, by copying.

use core::mem::MaybeUninit;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};

use csp_app::{AppError, Place};
use libc::{c_int, c_uint, iovec, off_t};

use super::io::{Direction, FILE_CHUNK, prepare, raise_sigpipe, receive, write_some};
use super::{PASS, c_result, now};
use crate::description::DescriptionId;
use crate::engine::errno_of;
use crate::memory::is_wrong;
use crate::signals::{self, Effect};
use crate::sys::{Errno, syscall};
use crate::wait::{self, Attempt, Deadline, Sleeper, blocking};

/// sendfile() to an accelerated connection; `None`: the call is passed to the kernel.
///
/// # Safety
/// `offset` must be null or point to a readable and writable offset.
pub unsafe fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> Option<isize> {
    let (id, deadline) = match prepare(to, 0, Direction::Send) {
        Ok(Some(found)) => found,
        Ok(None) => return None,
        Err(errno) => return Some(c_result(Err(errno))),
    };
    if is_wrong(offset) {
        return Some(c_result(Err(libc::EFAULT)));
    }
    // SAFETY: by the caller's contract `offset` is null or points to an offset. Without an offset the file's
    // own position counts, and moves.
    let start = if offset.is_null() {
        // SAFETY: no pointers.
        match unsafe { syscall!(libc::SYS_lseek, from, 0, libc::SEEK_CUR) } {
            Ok(at) => at as off_t,
            Err(errno) => return Some(c_result(Err(errno))),
        }
    } else {
        // SAFETY: by the caller's contract `offset` is null or points to an offset.
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
        // SAFETY: by the caller's contract `offset` is null or points to an offset.
        unsafe { *offset = end };
    }
    if sent == 0 && result == Err(libc::EPIPE) {
        raise_sigpipe();
    }
    Some(c_result(if sent > 0 { Ok(sent) } else { result.map(|()| 0) }))
}

/// Copies from a file until `count` bytes, its end, or an error. What the kernel has in memory goes straight
/// into the ring; what has to be fetched first is read without the lock, as much as can be written.
fn copy_file(
    id: DescriptionId,
    deadline: Deadline,
    from: c_int,
    start: off_t,
    count: usize,
) -> (usize, Result<(), Errno>) {
    let mut sent = 0;
    while sent < count {
        let at = start + sent as off_t;
        let step = match fill(id, deadline, (from, at, count - sent), sent > 0) {
            Ok(Filled::Unready) => chunk(id, deadline, (from, at, count - sent), sent > 0),
            Ok(Filled::End) => Ok(0),
            Ok(Filled::Bytes(len)) => Ok(len),
            // The end of the file takes precedence over the connection's error.
            Err(errno) => Err(errno).or_else(|errno| if is_end(from, at)? { Ok(0) } else { Err(errno) }),
        };
        match step {
            Ok(0) => break,
            Ok(len) => sent += len,
            Err(errno) => return (sent, Err(errno)),
        }
    }
    (sent, Ok(()))
}

/// Whether a file ends at this offset.
fn is_end(from: c_int, at: off_t) -> Result<bool, Errno> {
    let mut byte = 0u8;
    // SAFETY: one byte is writable.
    unsafe { syscall!(libc::SYS_pread64, from, &raw mut byte, 1, at) }.map(|len| len == 0)
}

/// What came of an attempt to read from a file into the ring.
enum Filled {
    /// This many bytes were sent, at least one.
    Bytes(usize),
    /// The file has ended.
    End,
    /// The kernel would have to wait, or cannot say whether it would.
    Unready,
}

/// Sends bytes of a file, (descriptor, offset, most bytes), that the kernel reads into their place in the
/// ring. `partly`: bytes were sent before.
fn fill(
    id: DescriptionId,
    deadline: Deadline,
    (from, at, most): (c_int, off_t, usize),
    partly: bool,
) -> Result<Filled, Errno> {
    // preadv2 takes -1 for the file's own position.
    if at < 0 || !NoWait::is_worth_a_try() {
        return Ok(Filled::Unready);
    }
    blocking(id, deadline, |engine| {
        let flow = match engine.flow(id) {
            Ok(flow) => flow,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Some(link) = &mut engine.link else { return Attempt::Done(Err(libc::EBADF)) };
        if !link.app.can_fill() {
            return Attempt::Done(Ok(Filled::Unready));
        }
        let mut read = Ok(Filled::End);
        let mut fill = |place: &Place<'_>| {
            read = NoWait::read(from, at, place);
            if let Ok(Filled::Bytes(len)) = read { len } else { 0 }
        };
        match link.app.write_filled(now(), flow, most, &mut fill) {
            Ok(_) => Attempt::Done(read),
            Err(AppError::WouldBlock) if partly => Attempt::Partly,
            Err(AppError::WouldBlock) => Attempt::WouldBlock,
            Err(error) => Attempt::Done(Err(errno_of(error))),
        }
    })
}

/// Reading without waiting (RWF_NOWAIT, preadv2(2)), which not every file system can.
struct NoWait;

/// Calls for which reading without waiting is not tried, after a file system could not.
static UNTRIED: AtomicU32 = AtomicU32::new(0);
const UNTRIED_CALLS: u32 = 256;

impl NoWait {
    fn is_worth_a_try() -> bool {
        let left = UNTRIED.load(Ordering::Relaxed);
        if left > 0 {
            UNTRIED.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Reads from `at` on into a place, as much as the kernel has in memory.
    fn read(from: c_int, at: off_t, place: &Place<'_>) -> Result<Filled, Errno> {
        let Some(start) = place.at(0, place.len()) else { return Ok(Filled::Unready) };
        let part = iovec { iov_base: start.cast(), iov_len: place.len() };
        // SAFETY: the part describes the place, which is writable. On a 64-bit system the lower half of the
        // offset is all of it.
        let read = unsafe { syscall!(libc::SYS_preadv2, from, &raw const part, 1, at, 0, libc::RWF_NOWAIT) };
        match read {
            Ok(0) => Ok(Filled::End),
            Ok(len) => Ok(Filled::Bytes(len)),
            Err(libc::EAGAIN) => Ok(Filled::Unready),
            Err(libc::EOPNOTSUPP | libc::ENOSYS) => {
                UNTRIED.store(UNTRIED_CALLS, Ordering::Relaxed);
                Ok(Filled::Unready)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Sends bytes of a file that may have to be fetched; as [`fill`].
fn chunk(
    id: DescriptionId,
    deadline: Deadline,
    (from, at, most): (c_int, off_t, usize),
    partly: bool,
) -> Result<usize, Errno> {
    // Not initialised: only bytes that the kernel has written are read.
    let mut chunk = MaybeUninit::<[u8; FILE_CHUNK]>::uninit();
    let room = match room(id, deadline, partly) {
        Ok(room) => room.min(FILE_CHUNK).min(most),
        Err(errno) => return if is_end(from, at)? { Ok(0) } else { Err(errno) },
    };
    // SAFETY: `room` bytes of the chunk are writable.
    let len = unsafe { syscall!(libc::SYS_pread64, from, chunk.as_mut_ptr(), room, at) }?;
    // SAFETY: the kernel wrote `len` bytes of the chunk.
    let bytes = unsafe { slice::from_raw_parts(chunk.as_ptr().cast::<u8>(), len) };
    match write_all(id, deadline, bytes) {
        (0, Err(errno)) => Err(errno),
        // The next step meets what stopped the rest.
        (written, _) => Ok(written),
    }
}

/// Waits until at least one byte can be written. Returns how many can be written. `partly`: bytes were
/// written before.
fn room(id: DescriptionId, deadline: Deadline, partly: bool) -> Result<usize, Errno> {
    blocking(id, deadline, |engine| {
        let flow = match engine.flow(id) {
            Ok(flow) => flow,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Some(link) = &mut engine.link else { return Attempt::Done(Err(libc::EBADF)) };
        match link.app.write_room(flow) {
            Ok(room) => Attempt::Done(Ok(room)),
            Err(AppError::WouldBlock) if partly => Attempt::Partly,
            Err(AppError::WouldBlock) => Attempt::WouldBlock,
            Err(error) => Attempt::Done(Err(errno_of(error))),
        }
    })
}

/// Writes bytes for which there was room. Returns the number written, and the error that stopped the rest.
fn write_all(id: DescriptionId, deadline: Deadline, bytes: &[u8]) -> (usize, Result<(), Errno>) {
    let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut written = 0;
    let wrote = blocking(id, deadline, |engine| {
        // SAFETY: the part describes `bytes`.
        match unsafe { write_some(engine, id, slice::from_ref(&part), written) } {
            Ok(n) => {
                written += n;
                if written == bytes.len() { Attempt::Done(Ok(())) } else { Attempt::WouldBlock }
            }
            Err(AppError::WouldBlock) => Attempt::WouldBlock,
            Err(error) => Attempt::Done(Err(errno_of(error))),
        }
    });
    (written, wrote)
}

/// Bytes that a write to a writable pipe accepts without blocking.
const PIPE_CHUNK: usize = 4096;

/// The arguments of splice(), one end being an accelerated connection.
#[derive(Clone, Copy)]
pub struct Splice {
    /// The source.
    pub from: c_int,
    /// The destination.
    pub to: c_int,
    /// Largest number of bytes.
    pub len: usize,
    /// SPLICE_F_*
    pub flags: c_uint,
    /// Whether offsets were passed, for each end.
    pub offsets: [bool; 2],
}

/// splice() between a pipe and an accelerated connection: the bytes are copied. `None`: the call is passed to
/// the kernel.
pub fn splice(splice: Splice) -> Option<Result<usize, Errno>> {
    let known = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let outward = crate::fdtable::is_ours(splice.to);
    let (socket, other) = if outward { (splice.to, splice.from) } else { (splice.from, splice.to) };
    let access = if outward { libc::O_RDONLY } else { libc::O_WRONLY };
    if splice.len == 0 {
        return Some(Ok(0));
    }
    if splice.flags & known != splice.flags {
        return Some(Err(libc::EINVAL));
    }
    // SAFETY: no pointers.
    let mode = match unsafe { syscall!(libc::SYS_fcntl, other, libc::F_GETFL) } {
        Ok(mode) => mode as c_int,
        Err(errno) => return Some(Err(errno)),
    };
    if mode & libc::O_ACCMODE != access && mode & libc::O_ACCMODE != libc::O_RDWR {
        return Some(Err(libc::EBADF));
    }
    let pipe_end = usize::from(!outward);
    if !is_pipe(other) || splice.offsets[1 - pipe_end] {
        return Some(Err(if splice.offsets[pipe_end] && is_pipe(other) {
            libc::ESPIPE
        } else {
            libc::EINVAL
        }));
    }
    if splice.offsets[pipe_end] {
        return Some(Err(libc::ESPIPE));
    }
    // The flag applies to the pipe only. Whether the socket waits depends on its own flags.
    let pipe_waits = splice.flags & libc::SPLICE_F_NONBLOCK == 0 && mode & libc::O_NONBLOCK == 0;
    let result = if outward {
        pipe_to_socket(other, socket, splice.len, pipe_waits)
    } else {
        socket_to_pipe(socket, other, splice.len, pipe_waits)
    };
    if result == Err(PASS) {
        return None;
    }
    if result == Err(libc::EPIPE) {
        raise_sigpipe();
    }
    Some(result)
}

fn is_pipe(fd: c_int) -> bool {
    // SAFETY: all-zero is a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is writable.
    let known = unsafe { syscall!(libc::SYS_fstat, fd, &raw mut stat) };
    known.is_ok() && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// Waits for an end of a pipe. Returns `false` if nothing can be done now.
fn pipe_ready(pipe: c_int, events: libc::c_short, waits: bool) -> Result<bool, Errno> {
    let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
    let limit = if waits { None } else { Some(0) };
    loop {
        let mut sleeper = Sleeper { descriptions: &[], waiter: -1, mask: None, call: None };
        // SAFETY: no mask.
        match unsafe { wait::ppoll(&mut fds, limit, core::ptr::null(), &mut sleeper) } {
            Err(libc::EINTR) if signals::effect() == Effect::Restart => {}
            result => return result.map(|n| n > 0),
        }
    }
}

fn socket_to_pipe(socket: c_int, pipe: c_int, len: usize, waits: bool) -> Result<usize, Errno> {
    let mut chunk = [0u8; PIPE_CHUNK];
    let mut moved = 0;
    while moved < len {
        let part = iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: (len - moved).min(PIPE_CHUNK) };
        let flags = libc::MSG_PEEK | if moved > 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the part describes the chunk.
        let there = match unsafe { receive(socket, slice::from_ref(&part), flags) }.unwrap_or(Err(PASS)) {
            Ok(there) if there > 0 => there,
            other => return if moved > 0 { Ok(moved) } else { other },
        };
        match pipe_ready(pipe, libc::POLLOUT, waits && moved == 0) {
            Ok(true) => {}
            Ok(false) => return if moved > 0 { Ok(moved) } else { Err(libc::EAGAIN) },
            Err(errno) => return if moved > 0 { Ok(moved) } else { Err(errno) },
        }
        // SAFETY: `there` bytes of the chunk are readable.
        match unsafe { syscall!(libc::SYS_write, pipe, chunk.as_ptr(), there) } {
            Ok(wrote) => {
                let part = iovec { iov_base: core::ptr::null_mut(), iov_len: wrote };
                // SAFETY: nothing is written with MSG_TRUNC.
                let _ =
                    unsafe { receive(socket, slice::from_ref(&part), libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
                moved += wrote;
            }
            // The kernel has already raised SIGPIPE.
            Err(errno) => return if moved > 0 { Ok(moved) } else { Err(errno) },
        }
    }
    Ok(moved)
}

fn pipe_to_socket(pipe: c_int, socket: c_int, len: usize, waits: bool) -> Result<usize, Errno> {
    let (id, deadline) = prepare(socket, 0, Direction::Send)?.ok_or(PASS)?;
    let mut chunk = [0u8; FILE_CHUNK];
    let mut moved = 0;
    while moved < len {
        if !pipe_ready(pipe, libc::POLLIN, waits && moved == 0)? {
            return if moved > 0 { Ok(moved) } else { Err(libc::EAGAIN) };
        }
        let room = match room(id, deadline, moved > 0) {
            Ok(room) => room.min(FILE_CHUNK).min(len - moved),
            Err(errno) => return if moved > 0 { Ok(moved) } else { Err(errno) },
        };
        // SAFETY: `room` bytes of the chunk are writable.
        let there = unsafe { syscall!(libc::SYS_read, pipe, chunk.as_mut_ptr(), room) }?;
        if there == 0 {
            break;
        }
        let (written, result) = write_all(id, deadline, chunk.get(..there).unwrap_or(&[]));
        moved += written;
        if let (0, Err(errno)) = (moved, result) {
            return Err(errno);
        }
    }
    Ok(moved)
}
