//! clone(2) as the C library's function: a child with memory of its own is a fork.

use core::ffi::c_void;

use libc::c_int;

use crate::handover::{self, Selection};
use crate::next::Next;
use crate::{bootstrap, fork};

type Body = extern "C" fn(*mut c_void) -> c_int;

static CLONE: Next = Next::new("clone\0");

/// Resolves the function.
pub(super) fn resolve() {
    CLONE.get();
}

/// The function of a child and its argument.
#[repr(C)]
struct Start {
    body: Body,
    argument: *mut c_void,
}

/// Bytes of the stack on which the child's copy of the filter is prepared: the program's own may be small.
const STACK: usize = 64 * 1024;

#[repr(C, align(16))]
struct Stack(core::cell::UnsafeCell<[u8; STACK]>);

// SAFETY: only a child before its function begins uses it, in its own copy of the memory and with one thread.
unsafe impl Sync for Stack {}

static PREPARING: Stack = Stack(core::cell::UnsafeCell::new([0; STACK]));

/// The first function of a child: prepares the filter, then continues in the program's function.
#[unsafe(naked)]
extern "C" fn begin(start: *mut c_void) -> c_int {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "lea rsp, [rip + {stack} + {len}]",
        "call {child}",
        "lea rsp, [rbp - 8]",
        "pop rax",
        "pop rbp",
        "mov rdi, [rax + 8]",
        "jmp qword ptr [rax]",
        stack = sym PREPARING,
        len = const STACK,
        child = sym fork::child,
    )
}

/// clone(2). The arguments after the fourth are present only if a flag requires them; others are passed on as
/// they are.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn clone(
    body: Option<Body>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: usize,
    thread_area: usize,
    child_id: usize,
) -> c_int {
    let next = |body: Option<Body>, argument: *mut c_void| {
        call_next!(
            CLONE,
            fn(Option<Body>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int,
            (body, stack, flags, argument, parent_id, thread_area, child_id)
        )
    };
    // Flags that exclude a fork: a thread; a child that shares this process's descriptors; a child with other
    // thread-local variables, which would lack the filter's state.
    const NEITHER: c_int = libc::CLONE_THREAD | libc::CLONE_FILES | libc::CLONE_SETTLS;
    let Some(of_child) = body else { return next(body, argument) };
    if !bootstrap::is_on() || stack.is_null() || flags & NEITHER != 0 {
        return next(body, argument);
    }
    if flags & libc::CLONE_VM != 0 {
        // The child cannot hand over connections itself, so they become kernel sockets before.
        handover::leave(Selection::ForChild);
        return next(body, argument);
    }
    let start = Start { body: of_child, argument };
    fork::prepare();
    let child = next(Some(begin), (&raw const start).cast_mut().cast());
    fork::parent();
    child
}
