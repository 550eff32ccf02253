//! C library streams (FILE) whose descriptor becomes an accelerated connection because the program duplicates
//! the connection over it. The C library reads and writes without calling the filter, so the connection is
//! passed to the agent, and is a kernel socket from then on.

use core::ffi::c_void;

use libc::c_int;

use crate::handover::{self, Selection};
use crate::next::Next;
use crate::{bootstrap, fdtable, lock, sys};

/// The descriptors of stdin, stdout and stderr.
const STANDARD: core::ops::RangeInclusive<c_int> = 0..=2;

static LIST_LOCK: Next = Next::new("_IO_list_lock\0");
static LIST_UNLOCK: Next = Next::new("_IO_list_unlock\0");
static BEGIN: Next = Next::new("_IO_iter_begin\0");
static END: Next = Next::new("_IO_iter_end\0");
static NEXT: Next = Next::new("_IO_iter_next\0");
static FILE: Next = Next::new("_IO_iter_file\0");

/// Resolves the C library's functions that list its streams.
pub fn resolve() {
    for next in [&LIST_LOCK, &LIST_UNLOCK, &BEGIN, &END, &NEXT, &FILE] {
        next.find();
    }
}

/// Called after a descriptor was duplicated to the number `new`.
pub fn duplicated(new: c_int) {
    if fdtable::is_ours(new) && !lock::inside() && bootstrap::owns_tables() && has_stream(new) {
        handover::leave(Selection::Of(new));
    }
}

/// Called after a socket, perhaps duplicated before, was connected.
pub fn connected(fd: c_int) {
    let of = fdtable::entry(fd);
    if fdtable::is_ours(fd) && STANDARD.into_iter().any(|standard| fdtable::entry(standard) == of) {
        handover::leave(Selection::Of(fd));
    }
}

/// Whether the C library has a stream of a descriptor.
fn has_stream(fd: c_int) -> bool {
    // The standard streams exist in every program.
    STANDARD.contains(&fd) || is_listed(fd)
}

fn is_listed(fd: c_int) -> bool {
    if [&LIST_LOCK, &LIST_UNLOCK, &BEGIN, &END, &NEXT, &FILE].iter().any(|next| next.known().is_null()) {
        return false;
    }
    type Void = unsafe extern "C" fn();
    type Edge = unsafe extern "C" fn() -> *mut c_void;
    type Step = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let errno = sys::errno();
    let mut found = false;
    // SAFETY: the C library's functions of these names have these signatures. The list does not change while
    // it is locked, and the lock can be taken again by the thread that has it.
    unsafe {
        let call = |next: &Next| core::mem::transmute::<*mut c_void, Void>(next.known())();
        let bound = |next: &Next| core::mem::transmute::<*mut c_void, Edge>(next.known())();
        let step = |next: &Next, at| core::mem::transmute::<*mut c_void, Step>(next.known())(at);
        call(&LIST_LOCK);
        let (mut at, end) = (bound(&BEGIN), bound(&END));
        while at != end && !found {
            found = libc::fileno(step(&FILE, at).cast()) == fd;
            at = step(&NEXT, at);
        }
        call(&LIST_UNLOCK);
    }
    sys::set_errno(errno);
    found
}
