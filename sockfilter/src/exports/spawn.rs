//! posix_spawn and pidfd_spawn. Their children get the connections that stay open over exec, and those that
//! file actions duplicate. Actions that change the working directory determine which file a relative path
//! names.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libc::c_int;

use super::exec::{Environment, Strings, before_exec};
use crate::handover::{self, Selection};
use crate::next::Next;
use crate::preload;
use crate::spawned::{ACTIONS, Folder};
use crate::sys::{self, syscall};

static INIT: Next = Next::new("posix_spawn_file_actions_init\0");
static DESTROY: Next = Next::new("posix_spawn_file_actions_destroy\0");
static ADD_DUP2: Next = Next::new("posix_spawn_file_actions_adddup2\0");
static ADD_CHDIR_NP: Next = Next::new("posix_spawn_file_actions_addchdir_np\0");
static ADD_FCHDIR_NP: Next = Next::new("posix_spawn_file_actions_addfchdir_np\0");
static ADD_CHDIR: Next = Next::new("posix_spawn_file_actions_addchdir\0");
static ADD_FCHDIR: Next = Next::new("posix_spawn_file_actions_addfchdir\0");
static SPAWN: Next = Next::new("posix_spawn\0");
static SPAWN_BY_PATH: Next = Next::new("posix_spawnp\0");
static PIDFD_SPAWN: Next = Next::new("pidfd_spawn\0");
static PIDFD_SPAWN_BY_PATH: Next = Next::new("pidfd_spawnp\0");

/// Resolves all functions.
pub(super) fn resolve() {
    for next in [&INIT, &DESTROY, &ADD_DUP2, &SPAWN, &SPAWN_BY_PATH] {
        next.get();
    }
    // Not available in every glibc.
    for next in [&PIDFD_SPAWN, &PIDFD_SPAWN_BY_PATH, &ADD_CHDIR_NP, &ADD_FCHDIR_NP, &ADD_CHDIR, &ADD_FCHDIR] {
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

/// posix_spawn_file_actions_adddup2(3). A connection that cannot be recorded until the child is created is
/// handed over at once.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    let result = call_next!(ADD_DUP2, fn(*mut c_void, c_int, c_int) -> c_int, (actions, fd, new));
    if result == 0 && !ACTIONS.remember(actions as usize, fd) {
        handover::leave(Selection::Of(fd));
    }
    result
}

/// Functions that add a change of the folder, which `$folder` names.
macro_rules! add_folder {
    ($($name:ident: $next:ident($argument:ident: $type:ty) $folder:expr;)*) => {
        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(actions: *mut c_void, $argument: $type) -> c_int {
            if $next.find().is_null() {
                return libc::ENOSYS;
            }
            let result = call_next!($next, fn(*mut c_void, $type) -> c_int, (actions, $argument));
            if result == 0 {
                ACTIONS.remember_folder(actions as usize, $folder);
            }
            result
        })*
    };
}

/// The path of a folder that the C library has accepted.
///
/// # Safety
/// `path` must be a C string.
unsafe fn folder_at<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by this function's contract.
    Some(unsafe { CStr::from_ptr(path) })
}

add_folder! {
    // SAFETY: the function requires a C string.
    posix_spawn_file_actions_addchdir_np: ADD_CHDIR_NP(path: *const c_char) unsafe { folder_at(path) };
    // SAFETY: likewise.
    posix_spawn_file_actions_addchdir: ADD_CHDIR(path: *const c_char) unsafe { folder_at(path) };
    posix_spawn_file_actions_addfchdir_np: ADD_FCHDIR_NP(fd: c_int) None;
    posix_spawn_file_actions_addfchdir: ADD_FCHDIR(fd: c_int) None;
}

/// Hands over the child's connections. Returns whether the child gets a socket that is useless without the
/// filter.
fn before_spawn(actions: *const c_void) -> bool {
    before_exec();
    let mut any = handover::any_over_exec();
    for fd in ACTIONS.of(actions as usize) {
        handover::leave(Selection::Of(fd));
        any |= handover::is_placeholder(fd);
    }
    any
}

/// Connections that a child without the filter must not inherit. They are closed over exec while this value
/// lives.
struct Withheld(Vec<c_int>);

impl Withheld {
    /// Withholds connections that the agent carries from a child that will not have the filter. Error: EPERM
    /// if the child would have one as a standard stream, or by its file actions: it could not work without.
    fn from(has_filter: impl FnOnce() -> bool, actions: *const c_void) -> Result<Self, c_int> {
        let inherited: Vec<c_int> = handover::carried_over_exec().collect();
        let mut named = ACTIONS.of(actions as usize).filter(|fd| handover::is_carried(*fd));
        let first_named = named.next();
        if (inherited.is_empty() && first_named.is_none()) || has_filter() {
            return Ok(Withheld(Vec::new()));
        }
        if first_named.is_some() || inherited.iter().any(|fd| *fd <= libc::STDERR_FILENO) {
            sys::log_line("a client's connection is not given to a program without the filter");
            return Err(libc::EPERM);
        }
        inherited.iter().for_each(|fd| close_over_exec(*fd, libc::FD_CLOEXEC));
        Ok(Withheld(inherited))
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.0.iter().for_each(|fd| close_over_exec(*fd, 0));
    }
}

fn close_over_exec(fd: c_int, flag: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, flag) };
}

/// The file that a child executes, and the folder in which it does; `None` if that cannot be determined.
///
/// # Safety
/// `program` must be a C string.
unsafe fn executed(
    program: *const c_char,
    by_path: bool,
    actions: *const c_void,
) -> Option<(PathBuf, PathBuf)> {
    // SAFETY: by this function's contract `program` is a C string.
    let program = unsafe { CStr::from_ptr(program) };
    match ACTIONS.folder(actions as usize) {
        Folder::At(folder) => Some((preload::find(program, by_path, &folder)?, folder)),
        // An absolute path is the same in every folder; its interpreter, if relative, is found in none.
        Folder::Unknown if program.to_bytes().starts_with(b"/") => {
            Some((preload::find(program, false, Path::new(""))?, PathBuf::from("/dev/null")))
        }
        Folder::Unknown => None,
    }
}

/// Whether the file's loader would not start it with the filter preloaded.
fn is_foreign(file: &Path) -> bool {
    let file = CString::new(file.as_os_str().as_bytes());
    file.is_ok_and(|file| preload::is_foreign(libc::AT_FDCWD, &file))
}

macro_rules! spawn {
    ($($name:ident: $next:ident, $by_path:expr;)*) => {
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
            // The result of a C library that has the function on a kernel that lacks it, so that programs use
            // an alternative.
            if $next.find().is_null() {
                return libc::ENOSYS;
            }
            let any = before_spawn(actions);
            // SAFETY: `program` is a C string, as the function requires.
            let executed = unsafe { executed(program, $by_path, actions) };
            let foreign = || executed.as_ref().is_some_and(|(file, _)| is_foreign(file));
            // SAFETY: `environment` is null or an array of C strings that ends with a null pointer, as the
            // function requires.
            let kept = unsafe { Environment::of(environment, || any, foreign) };
            let reached = || executed.as_ref().is_some_and(|(file, folder)| preload::reaches(file, folder));
            let withheld = Withheld::from(|| kept.has_filter() && reached(), actions);
            let _withheld = match withheld {
                Ok(withheld) => withheld,
                Err(errno) => return errno,
            };
            call_next!(
                $next,
                fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int,
                (child, program, actions, attributes, arguments, kept.pointer())
            )
        })*
    };
}

spawn! {
    posix_spawn: SPAWN, false;
    posix_spawnp: SPAWN_BY_PATH, true;
    pidfd_spawn: PIDFD_SPAWN, false;
    pidfd_spawnp: PIDFD_SPAWN_BY_PATH, true;
}
