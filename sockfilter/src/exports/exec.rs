//! exec and its variants. Before the call, connections that stay open over it are handed to the agent. A
//! program that inherits a listener or a connection keeps the filter, even if the caller passes an
//! environment without it.
//!
//! Every function ends in one of four functions of the next library, which take the arguments as an array and
//! the environment as a parameter. Functions with a list of arguments first copy it into an array.

use core::ffi::{CStr, c_char};
use core::ptr::null;
use std::ffi::CString;

use libc::c_int;

use crate::handover::{self, Selection};
use crate::next::Next;
use crate::{bootstrap, preload, seal};

/// An array of C strings that ends with a null pointer.
pub(super) type Strings = *const *const c_char;

/// Called before exec and posix_spawn: hands the connections that stay open over it to the agent.
pub(super) extern "C" fn before_exec() {
    handover::leave(Selection::OverExec);
}

/// Defines functions that take an environment: they hand connections to the agent, and add the variables that
/// load the filter to the environment if needed.
macro_rules! with_environment {
    ($($name:ident($($argument:ident: $type:ty),*; $environment:ident $(, $last:ident: $last_type:ty)?) $foreign:expr;)*) => {
        mod next {
            $(#[allow(non_upper_case_globals)]
            pub static $name: super::Next = super::Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Resolves all functions.
        pub(super) fn resolve() {
            $(next::$name.get();)*
        }

        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $type,)* $environment: Strings $(, $last: $last_type)?) -> c_int {
            before_exec();
            // SAFETY: `$environment` is null or an array of C strings that ends with a null pointer, as the
            // function requires.
            let kept = unsafe { Environment::of($environment, handover::any_over_exec, || $foreign) };
            seal::before_exec();
            let failed = call_next!(
                next::$name,
                fn($($type,)* Strings $(, $last_type)?) -> c_int,
                ($($argument,)* kept.pointer() $(, $last)?)
            );
            seal::after_failed_exec();
            failed
        })*
    };
}

with_environment! {
    execve(path: *const c_char, arguments: Strings; environment) is_foreign(libc::AT_FDCWD, path);
    execvpe(file: *const c_char, arguments: Strings; environment) is_foreign_in_path(file);
    fexecve(fd: c_int, arguments: Strings; environment) preload::is_foreign_file(fd);
    execveat(folder: c_int, path: *const c_char, arguments: Strings; environment, flags: c_int) is_foreign(folder, path);
}

/// Whether the program cannot start with the filter preloaded. Returns `false` for an invalid path, which the
/// kernel rejects, and for an empty one (AT_EMPTY_PATH), since the program is then the descriptor.
fn is_foreign(folder: c_int, path: *const c_char) -> bool {
    if crate::memory::is_unmappable(path) {
        return false;
    }
    // SAFETY: exec requires a C string.
    let path = unsafe { CStr::from_ptr(path) };
    if path.is_empty() { preload::is_foreign_file(folder) } else { preload::is_foreign(folder, path) }
}

/// Like [`is_foreign`], for a program that is looked up in PATH.
fn is_foreign_in_path(file: *const c_char) -> bool {
    if crate::memory::is_unmappable(file) {
        return false;
    }
    // SAFETY: exec requires a C string.
    preload::ask_in_path(unsafe { CStr::from_ptr(file) }, |file| preload::is_foreign(libc::AT_FDCWD, file))
}

unsafe extern "C" {
    /// The environment of this process, environ(7).
    static mut environ: Strings;
}

/// The environment of this process.
pub(super) fn environment() -> Strings {
    // SAFETY: a plain read of a pointer, as in `execv`.
    unsafe { environ }
}

/// execv(3): the environment is the process's own, which it may have cleared (Dovecot's master does).
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller passes what execve requires; `environ` is such an array, or null.
    unsafe { execve(path, arguments, environ) }
}

/// execvp(3), likewise.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller passes what execvpe requires; `environ` is an array that ends with a null pointer,
    // or null.
    unsafe { execvpe(file, arguments, environ) }
}

/// Arguments in registers (System V AMD64 ABI §3.2.3).
const REGISTERS: usize = 6;
/// Arguments of a list that are copied without an allocation, which a child of vfork could not free.
const LIST_INLINE: usize = 256;

/// The arguments of a variadic call, all of them pointers: the first six were in registers, the others are on
/// the caller's stack.
struct List {
    registers: Strings,
    stack: Strings,
}

impl List {
    /// Argument `at`.
    ///
    /// # Safety
    /// The call must have had that many.
    unsafe fn at(&self, at: usize) -> *const c_char {
        // SAFETY: the entry point saved six registers; the ABI defines the place of the others, and the call
        // had that many by this function's contract.
        unsafe {
            match at.checked_sub(REGISTERS) {
                None => self.registers.add(at).read(),
                Some(at) => self.stack.add(at).read(),
            }
        }
    }

    /// Calls `then` with the path, the arguments after it up to the null pointer, and the index of that
    /// pointer.
    ///
    /// # Safety
    /// The list must end with a null pointer after the path.
    unsafe fn with(&self, then: impl FnOnce(*const c_char, Strings, usize) -> c_int) -> c_int {
        let mut end = 1;
        // SAFETY: the list extends to its null pointer, by this function's contract.
        while !unsafe { self.at(end) }.is_null() {
            end += 1;
        }
        let (mut inline, mut longer) = ([null(); LIST_INLINE], Vec::new());
        let array = match inline.get_mut(..end) {
            Some(array) => array,
            None => {
                longer.resize(end, null());
                &mut longer[..]
            }
        };
        for (at, argument) in array.iter_mut().enumerate() {
            // SAFETY: arguments 1 to `end` are part of the list, whose null pointer is at `end`.
            *argument = unsafe { self.at(at + 1) };
        }
        // SAFETY: the path is the first argument.
        then(unsafe { self.at(0) }, array.as_ptr(), end)
    }
}

/// execl(3)
unsafe extern "C" fn execute(registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's list ends with a null pointer, and is what execve requires.
    unsafe { List { registers, stack }.with(|path, arguments, _| execve(path, arguments, environ)) }
}

/// execlp(3)
unsafe extern "C" fn execute_by_path(registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's list ends with a null pointer, and is what execvpe requires.
    unsafe { List { registers, stack }.with(|file, arguments, _| execvpe(file, arguments, environ)) }
}

/// execle(3): the environment follows the list's null pointer.
unsafe extern "C" fn execute_in(registers: Strings, stack: Strings) -> c_int {
    let list = List { registers, stack };
    // SAFETY: the caller's list ends with a null pointer; the argument after it is an array of C strings that
    // ends with a null pointer.
    unsafe { list.with(|path, arguments, end| execve(path, arguments, list.at(end + 1).cast())) }
}

/// Entry points with a list of arguments: they pass on the addresses of the saved registers and of the stack.
macro_rules! with_list {
    ($($name:ident: $run:ident;)*) => {
        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "lea rsi, [rbp + 16]",
                "call {run}",
                "leave",
                "ret",
                run = sym $run,
            )
        })*
    };
}

with_list! {
    execl: execute;
    execlp: execute_by_path;
    execle: execute_in;
}

/// An environment of `count` variables without LD_PRELOAD. A child of vfork that executes the program does
/// not free it.
///
/// # Safety
/// `given` must have `count` elements before its null pointer.
unsafe fn without_preload(given: Strings, count: usize) -> Environment {
    let mut kept = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: by this function's contract the array has an element at `at`, a C string.
        let (text, pointer) = unsafe { (text_at(given, at), given.add(at).read()) };
        if text.is_some_and(|text| !text.to_bytes().starts_with(bootstrap::INHERITED[0])) {
            kept.push(pointer);
        }
    }
    kept.push(null());
    Environment { given, kept, added: Vec::new() }
}

/// Whether an environment that lacks the filter is the process's own, which the process has cleared while it
/// has accelerated sockets. Dovecot's master gives its listeners to some of its processes, and these pass
/// connections to others, which could not open them without the filter.
fn is_cleared(given: Strings) -> bool {
    given == environment() && handover::any_accelerated()
}

/// The environment of a program that is about to be executed. A program that inherits an accelerated listener
/// or connection keeps the filter, since a placeholder without it is useless (nginx passes a new environment
/// to a new binary, Dovecot clears the environment).
pub(super) struct Environment {
    given: Strings,
    kept: Vec<*const c_char>,
    /// The variables that `kept` has in addition.
    added: Vec<CString>,
}

impl Environment {
    /// The environment for a program. `needs_us` returns whether it needs the filter; it is called only if
    /// the environment lacks one of the variables. `foreign` returns whether it cannot start with the filter
    /// preloaded: then the environment has no LD_PRELOAD, except in strict mode, where the loader's error is
    /// better than kernel sockets. An environment with another LD_PRELOAD is returned unchanged.
    ///
    /// # Safety
    /// `given` must be null or an array of C strings that ends with a null pointer.
    pub(super) unsafe fn of(
        given: Strings,
        needs_us: impl FnOnce() -> bool,
        foreign: impl FnOnce() -> bool,
    ) -> Environment {
        let as_given = Environment { given, kept: Vec::new(), added: Vec::new() };
        let (mut count, mut has) = (0, [false; bootstrap::INHERITED.len()]);
        // SAFETY: the array extends to its null pointer, by this function's contract.
        while let Some(text) = unsafe { text_at(given, count) } {
            if bootstrap::is_another_preload(text) {
                return as_given;
            }
            for (has, name) in has.iter_mut().zip(bootstrap::INHERITED) {
                *has |= text.to_bytes().starts_with(name);
            }
            count += 1;
        }
        // Nothing is allocated before this point: a signal handler may execute a program while the filter's
        // allocator is in use.
        let lacks_some = !has.iter().all(|has| *has);
        let adds = lacks_some && (needs_us() || is_cleared(given));
        if !(has[0] || adds) {
            return as_given;
        }
        if !bootstrap::is_strict() && foreign() {
            // SAFETY: the array has `count` elements before its null pointer.
            return if has[0] { unsafe { without_preload(given, count) } } else { as_given };
        }
        if !adds {
            return as_given;
        }
        let lacks = |text: &CString| {
            has.iter().zip(bootstrap::INHERITED).all(|(has, name)| !has || !text.as_bytes().starts_with(name))
        };
        let texts: Vec<CString> = bootstrap::inheritance().into_iter().filter(lacks).collect();
        let mut kept = Vec::with_capacity(count + texts.len() + 1);
        // SAFETY: the array has `count` elements before its null pointer.
        kept.extend((0..count).map(|at| unsafe { given.add(at).read() }));
        kept.extend(texts.iter().map(|text| text.as_ptr()));
        kept.push(null());
        Environment { given, kept, added: texts }
    }

    /// Whether the loader of a program in this environment loads the filter, and the filter is on.
    pub(super) fn has_filter(&self) -> bool {
        let (mut loads, mut on) = (false, true);
        // SAFETY: the environment is null or an array of C strings that ends with a null pointer, by the
        // contract of `of`.
        for text in (0..).map_while(|at| unsafe { text_at(self.pointer(), at) }) {
            loads |=
                text.to_bytes().starts_with(bootstrap::INHERITED[0]) && !bootstrap::is_another_preload(text);
            on &= text != c"CSP_MODE=off";
        }
        loads && on
    }

    /// The variables that were added to load the filter.
    pub(super) fn added(&self) -> &[CString] {
        &self.added
    }

    /// The environment to pass to the program.
    pub(super) fn pointer(&self) -> Strings {
        if self.kept.is_empty() { self.given } else { self.kept.as_ptr() }
    }
}

/// An element of an array of C strings; `None` for the null pointer at its end, or if there is no array.
///
/// # Safety
/// `strings` must be null, or an array with at least `at` elements before its null pointer.
unsafe fn text_at<'a>(strings: Strings, at: usize) -> Option<&'a CStr> {
    if crate::memory::is_unmappable(strings) {
        return None;
    }
    // SAFETY: by this function's contract the array has an element at `at`, which may be its null pointer.
    let text = unsafe { strings.add(at).read() };
    // SAFETY: an element that is not the null pointer is a C string.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
