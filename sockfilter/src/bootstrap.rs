//! Start-up: settings from the environment, the next library's functions, fork handlers.
//!
//! Before [`start`] has run, every call is a raw system call. Afterwards calls that are passed on go to the
//! next library. An attachment to the agent is made only when the program first listens or connects, or is
//! passed listeners.

use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use csp_types::limits::VI_POOL_MAX;
use csp_types::spin::{SpinPolicy, SpinSetting, SpinWorth};
use csp_types::{PROGRAM_NAME_LEN_MAX, ProgramName};

use crate::engine::ENGINE;
use crate::ops::listen;
use crate::sys::syscall;
use crate::{cancel, fork, inherit, panics, real, sys};

/// The agent's socket, unless `CSP_AGENT` names another.
const AGENT_PATH: &CStr = c"/run/csp/agent.sock";

const OFF: u8 = 0;
const ON: u8 = 1;
const STRICT: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(OFF);
static PID: AtomicI32 = AtomicI32::new(0);
static POOL: AtomicU8 = AtomicU8::new(POOL_DEFAULT);

/// Links to each proxy worker, unless `CSP_POOL` sets another number.
const POOL_DEFAULT: u8 = 2;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded.
pub extern "C" fn start() {
    panics::abort_on_panic();
    real::resolve();
    cancel::resolve();
    PID.store(sys::getpid(), Ordering::Relaxed);
    let mode = match variable(c"CSP_MODE").map(CStr::to_bytes) {
        Some(b"off") => OFF,
        Some(b"strict") => STRICT,
        None | Some(b"on") => ON,
        Some(_) => {
            sys::log_line("CSP_MODE must be on, off or strict; taking it as on");
            ON
        }
    };
    let spin = SpinPolicy::new(spin_setting(), SpinWorth::APPLICATION);
    ENGINE.with(|engine| engine.spin = spin);
    let pool = number(c"CSP_POOL").unwrap_or(POOL_DEFAULT.into()).clamp(1, VI_POOL_MAX as u64);
    POOL.store(pool as u8, Ordering::Relaxed);
    keep_texts(mode != OFF);
    #[cfg(not(test))]
    crate::exports::processes::resolve();
    if mode != OFF {
        fork::register();
    }
    MODE.store(mode, Ordering::Release);
    refuse_rings();
    inherit::scan();
    handed_listeners();
}

/// Makes the kernel refuse new io_uring instances to this process and its children, with ENOSYS: a program
/// may create them by system calls in its own code, and would read and write placeholders. Done in strict
/// mode, and where csp-run found such code, since it costs every system call some time. Needs CAP_SYS_ADMIN
/// or no_new_privs; the latter is never set here, since children would lose the rights of set-user-id
/// programs (decision 0075).
fn refuse_rings() {
    let found = variable(c"CSP_IO_URING").map(CStr::to_bytes) == Some(b"refuse");
    let wanted = is_strict() || (is_on() && found);
    if !wanted {
        return;
    }
    // SAFETY: the kernel has no parameters to read and creates nothing. The call only shows whether io_uring
    // is available.
    if unsafe { syscall!(libc::SYS_io_uring_setup, 0, 0) } != Err(libc::EFAULT) {
        // The kernel lacks io_uring, or refuses it already.
        return;
    }
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Set in the numbers of the x32 ABI; all other ABIs have the same number.
    const X32: u32 = 0x4000_0000;
    const SETUP: u32 = libc::SYS_io_uring_setup as u32;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        step(LOAD_NUMBER, 0, 0),
        step(JUMP_EQUAL, 2, SETUP),
        step(JUMP_EQUAL, 1, SETUP | X32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    // SAFETY: the kernel reads `filter` and its instructions.
    let done = unsafe { syscall!(libc::SYS_seccomp, operation, flags, &raw const filter) };
    if let (Err(errno), true) = (done, found) {
        sys::log_line(&format!(
            "io_uring cannot be refused (error {errno}: no CAP_SYS_ADMIN and no no_new_privs); accelerated sockets \
             fail in a ring"
        ));
    }
}

/// Handles listeners that systemd, or a program with the same protocol, created for this process
/// (sd_listen_fds(3)). The process page or the log shows at start how they are carried, before the program
/// uses them.
fn handed_listeners() {
    const FIRST: i32 = 3;
    const LISTENERS_MAX: u64 = 1024;
    if is_on() && number(c"LISTEN_PID") == Some(sys::getpid() as u64) {
        let count = number(c"LISTEN_FDS").unwrap_or(0).min(LISTENERS_MAX) as i32;
        // In strict mode accept() also reports it to the program.
        (FIRST..FIRST + count).for_each(|fd| _ = listen::external_listener(fd));
    }
}

/// The busy-poll time of a blocking call before it sleeps: `auto`, or microseconds.
fn spin_setting() -> SpinSetting {
    let Some(text) = variable(c"CSP_SPIN_US") else { return SpinSetting::Auto };
    text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        sys::log_line("CSP_SPIN_US must be auto, or 0 to 1000 microseconds; taking it as auto");
        SpinSetting::Auto
    })
}

fn number(name: &CStr) -> Option<u64> {
    variable(name)?.to_str().ok()?.parse().ok()
}

unsafe extern "C" {
    /// secure_getenv(3), which the libc crate does not declare for Linux.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// An environment variable. It is read at start only, since programs clear and overwrite their environment
/// (nginx keeps its process title there). It is ignored in a program with more rights than its caller
/// (AT_SECURE: setuid, file capabilities), since the caller must not choose the program's agent.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: `name` is a C string. The result is used at once, before the program can change its
    // environment.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a non-null result is a C string of the environment.
    if found.is_null() { None } else { Some(unsafe { CStr::from_ptr(found) }) }
}

/// Whether sockets may be accelerated.
#[inline]
pub fn is_on() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// Whether a socket that cannot be accelerated is refused instead of being left to the kernel.
pub fn is_strict() -> bool {
    MODE.load(Ordering::Relaxed) == STRICT
}

/// Links to each proxy worker.
pub fn pool() -> u8 {
    POOL.load(Ordering::Relaxed)
}

/// Whether this process owns the filter's tables: a vfork child shares its parent's tables and does not.
pub fn owns_tables() -> bool {
    sys::getpid() == PID.load(Ordering::Relaxed)
}

/// Makes a forked child the owner of its copy of the tables.
pub fn adopt_tables() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// A text copied at start, since programs overwrite their arguments and environment.
struct Kept<const N: usize>([AtomicU8; N]);

impl<const N: usize> Kept<N> {
    const fn new() -> Self {
        Kept([const { AtomicU8::new(0) }; N])
    }

    /// Copies as many bytes as fit.
    fn keep(&self, text: impl Iterator<Item = u8>) {
        for (kept, byte) in self.0.iter().zip(text) {
            kept.store(byte, Ordering::Relaxed);
        }
    }

    /// Whether `text` equals the copied text.
    fn is(&self, text: &[u8]) -> bool {
        let kept = self.0.iter().map(|b| b.load(Ordering::Relaxed)).take_while(|b| *b != 0);
        kept.eq(text.iter().copied())
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|b| b.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect()
    }
}

/// Longest path of a Unix socket, without its terminating zero.
const AGENT_PATH_MAX: usize = 107;
static AGENT: Kept<AGENT_PATH_MAX> = Kept::new();
static PROGRAM: Kept<PROGRAM_NAME_LEN_MAX> = Kept::new();
/// Longest LD_PRELOAD that is passed on.
const PRELOAD_MAX: usize = 1024;
static PRELOAD: Kept<PRELOAD_MAX> = Kept::new();

fn keep_texts(on: bool) {
    let path = variable(c"CSP_AGENT").unwrap_or(AGENT_PATH).to_bytes();
    if path.len() > AGENT_PATH_MAX {
        sys::log_line("CSP_AGENT is too long for the path of a Unix socket");
    }
    AGENT.keep(path.iter().copied());
    let preload = variable(c"LD_PRELOAD").unwrap_or(c"").to_bytes();
    // A truncated list would be harmful, so it is copied only if it fits.
    PRELOAD.keep(preload.iter().copied().filter(|_| preload.len() <= PRELOAD_MAX));
    if on {
        PROGRAM.keep(own_name().as_bytes().iter().copied());
    }
}

/// The name by which the program was started; if that is not a valid name, the name of its executable file.
fn own_name() -> ProgramName {
    // SAFETY: the C library sets this pointer to null or a C string before any constructor runs.
    let started_as = unsafe {
        let pointer = program_invocation_short_name;
        if pointer.is_null() { c"" } else { CStr::from_ptr(pointer) }
    };
    ProgramName::parse(started_as.to_bytes()).unwrap_or_else(|error| {
        let name = executable_name();
        sys::log_line(&format!("argv[0]: {error}; rules of policy for {name} apply"));
        name
    })
}

fn executable_name() -> ProgramName {
    let mut path = [0u8; libc::PATH_MAX as usize];
    let (link, room) = (c"/proc/self/exe".as_ptr(), path.len());
    // SAFETY: the link's name is a C string, and `path` has `room` writable bytes.
    let len = unsafe { syscall!(libc::SYS_readlink, link, path.as_mut_ptr(), room) }.unwrap_or(0);
    ProgramName::of_executable(path.get(..len).unwrap_or(&[])).unwrap_or(ProgramName::UNKNOWN)
}

/// The variables that load the filter into a program, each with its `=`.
pub const INHERITED: [&[u8]; 3] = [b"LD_PRELOAD=", b"CSP_AGENT=", b"CSP_MODE="];

/// Whether an environment entry is an LD_PRELOAD that differs from this process's own.
pub fn is_another_preload(text: &CStr) -> bool {
    let value = text.to_bytes().strip_prefix(INHERITED[0]);
    value.is_some_and(|value| !PRELOAD.is(value))
}

/// The variables that load the filter into a program, with their values at start, for an environment that
/// lacks them.
pub fn inheritance() -> Vec<CString> {
    let mode: &[u8] = if is_strict() { b"strict" } else { b"on" };
    let texts = [PRELOAD.bytes(), AGENT.bytes(), mode.to_vec()];
    let set = INHERITED.into_iter().zip(texts).filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, value)| CString::new([name, &value].concat()).ok()).collect()
}

/// The path of the agent's socket, from the environment at start.
pub fn agent_path() -> PathBuf {
    PathBuf::from(OsString::from_vec(AGENT.bytes()))
}

/// The program's name at start.
pub fn program_name() -> ProgramName {
    ProgramName::parse(&PROGRAM.bytes()).unwrap_or(ProgramName::UNKNOWN)
}

unsafe extern "C" {
    static program_invocation_short_name: *const libc::c_char;
}
