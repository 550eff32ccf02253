//! posix_spawn and pidfd_spawn: their children get the connections that stay open over exec, and those that file
//! actions duplicate.

use core::ffi::{c_char, c_void};

use libc::c_int;

use super::exec::{Environment, Strings, before_exec};
use crate::handover::{self, Which};
use crate::next::Next;
use crate::spawned::ACTIONS;

static INIT: Next = Next::new("posix_spawn_file_actions_init\0");
static DESTROY: Next = Next::new("posix_spawn_file_actions_destroy\0");
static ADD_DUP2: Next = Next::new("posix_spawn_file_actions_adddup2\0");
static SPAWN: Next = Next::new("posix_spawn\0");
static SPAWN_BY_PATH: Next = Next::new("posix_spawnp\0");
static PIDFD_SPAWN: Next = Next::new("pidfd_spawn\0");
static PIDFD_SPAWN_BY_PATH: Next = Next::new("pidfd_spawnp\0");

/// Resolves all functions.
pub(super) fn resolve() {
    for next in [&INIT, &DESTROY, &ADD_DUP2, &SPAWN, &SPAWN_BY_PATH] {
        next.get();
    }
    // Available in glibc 2.39 and later.
    for next in [&PIDFD_SPAWN, &PIDFD_SPAWN_BY_PATH] {
        next.find();
    }
}

/// posix_spawn_file_actions_init(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int {
    ACTIONS.release(actions as usize);
    call_next!(INIT, fn(*mut c_void) -> c_int, (actions))
}

/// posix_spawn_file_actions_destroy(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
    ACTIONS.release(actions as usize);
    call_next!(DESTROY, fn(*mut c_void) -> c_int, (actions))
}

/// posix_spawn_file_actions_adddup2(3). A connection that cannot be recorded until the child is created leaves at once.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    let result = call_next!(ADD_DUP2, fn(*mut c_void, c_int, c_int) -> c_int, (actions, fd, new));
    if result == 0 && !ACTIONS.remember(actions as usize, fd) {
        handover::leave(Which::Of(fd));
    }
    result
}

/// Makes the child's connections leave; returns whether the child gets a socket that is useless without the filter.
fn before_spawn(actions: *const c_void) -> bool {
    before_exec();
    let mut any = handover::any_over_exec();
    for fd in ACTIONS.of(actions as usize) {
        handover::leave(Which::Of(fd));
        any |= handover::is_placeholder(fd);
    }
    any
}

macro_rules! spawn {
    ($($name:ident: $next:ident;)*) => {
        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            child: *mut c_int,
            program: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            environment: Strings,
        ) -> c_int {
            // The result of a C library that has the function on a kernel that lacks it: programs then use another way.
            if $next.find().is_null() {
                return libc::ENOSYS;
            }
            let any = before_spawn(actions);
            // SAFETY: `environment` is null or an array of C strings that ends with a null pointer, as the function requires.
            let kept = unsafe { Environment::of(environment, || any) };
            call_next!(
                $next,
                fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int,
                (child, program, actions, attributes, arguments, kept.pointer())
            )
        })*
    };
}

spawn! {
    posix_spawn: SPAWN;
    posix_spawnp: SPAWN_BY_PATH;
    pidfd_spawn: PIDFD_SPAWN;
    pidfd_spawnp: PIDFD_SPAWN_BY_PATH;
}
