//! Trials: a separate process first does the work that the daemon is about to do with untrusted bytes, such
//! as compiling a module.
//!
//! ```text
//!   daemon ── bytes (memfd) ─▶ the same program, `compile-module KIND`
//!                                 ├── done, or an error, within its bounds ───────────▶ daemon does it too, or refuses
//!                                 └── panic, endless recursion, too much memory or time ─▶ the bytes are refused
//! ```
//! The process's output is not used otherwise: the same work on the same bytes runs the same way in the
//! daemon, so that the process need not be trusted (decision 0078). It sets its own bounds before it reads
//! the bytes.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use csp_control::exit_code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The argument that makes a daemon's program run as the process of a trial.
const ARGUMENT: &str = "compile-module";
/// The process's output when the work is complete.
const DONE: &str = "done";
/// Prefix of the process's output when it refuses the bytes; the reason follows.
const REFUSED: &str = "refused: ";
/// Exit code of a process that could not start the work.
const NOT_STARTED: u8 = exit_code::UNAVAILABLE;
/// Largest part of the process's output that is kept, in bytes.
const OUTPUT_LEN_MAX: usize = 4096;
/// Largest input of the process, in bytes.
const INPUT_LEN_MAX: u64 = 64 << 20;
/// Stack of the thread that does the work, in bytes: less than the 2 MiB of a daemon's threads.
const STACK_LEN: usize = 1 << 20;
/// Messages of Rust's runtime and of the operating system about a failed allocation.
const OUT_OF_MEMORY: [&str; 2] = ["memory allocation of ", "Cannot allocate memory"];

/// Bounds of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Memory of the process in bytes, besides its program.
    pub memory_max: u64,
    /// Processor time in seconds.
    pub processor_s_max: u64,
    /// Elapsed time, on a machine that may be busy.
    pub time_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { memory_max: 256 << 20, processor_s_max: 20, time_max: Duration::from_secs(50) }
    }
}

/// Runs the work of a kind on bytes in a process of its own, as [`Trial::run`] does.
pub type Run = dyn Fn(&str, &[u8]) -> Result<(), String> + Send + Sync;

/// Starts trials in processes of a program.
#[derive(Clone, Debug)]
pub struct Trial {
    program: PathBuf,
    bounds: Bounds,
}

impl Default for Trial {
    /// Returns trials that run this daemon's own program, even after its file was replaced.
    fn default() -> Self {
        Trial::of(Path::new("/proc/self/exe"), Bounds::default())
    }
}

/// A child process that is killed and reaped when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

impl Trial {
    /// Returns trials that run a program whose main function calls [`child`].
    #[must_use]
    pub fn of(program: &Path, bounds: Bounds) -> Self {
        Trial { program: program.to_owned(), bounds }
    }

    /// Runs the work of a kind on the bytes in a process of its own. Blocks the calling thread.
    ///
    /// # Errors
    /// Why the daemon must not do the work: the work's error, the bound that was exceeded, or that the
    /// process could not be started.
    pub fn run(&self, kind: &str, bytes: &[u8]) -> Result<(), String> {
        let begun = Instant::now();
        let process = self.start(kind, bytes);
        let mut process =
            process.map_err(|error| format!("the compiler's process could not be started: {error}"))?;
        let output = process.0.stderr.take().and_then(|pipe| read(pipe, begun + self.bounds.time_max));
        let Some(output) = output else {
            return Err(format!("the compiler had not finished after {:?}", self.bounds.time_max));
        };
        let ended = process.0.wait();
        let ended = ended.map_err(|error| format!("the compiler's process was lost: {error}"))?;
        self.judge(ended, &output)
    }

    /// Returns the function that engines of modules call.
    #[must_use]
    pub fn shared(&self) -> Arc<Run> {
        let trial = self.clone();
        Arc::new(move |kind, bytes| trial.run(kind, bytes))
    }

    fn start(&self, kind: &str, bytes: &[u8]) -> std::io::Result<KillOnDrop> {
        let mut input = std::fs::File::from(memfd_create("module", MemfdFlags::CLOEXEC)?);
        input.write_all(bytes)?;
        input.rewind()?;
        let Bounds { memory_max, processor_s_max, .. } = self.bounds;
        let started = Command::new(&self.program)
            .args([ARGUMENT, kind, &memory_max.to_string(), &processor_s_max.to_string()])
            .env_clear()
            .stdin(Stdio::from(input))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        started.map(KillOnDrop)
    }

    fn judge(&self, ended: ExitStatus, output: &str) -> Result<(), String> {
        let Bounds { memory_max, processor_s_max, .. } = self.bounds;
        let output = output.trim();
        match output.strip_prefix(REFUSED) {
            Some(why) if !OUT_OF_MEMORY.iter().any(|text| why.contains(text)) => return Err(why.to_owned()),
            _ if ended.success() && output == DONE => return Ok(()),
            _ => {}
        }
        // The kernel ends it by SIGXCPU, and by SIGKILL a second later.
        if ended.signal() == Some(rustix::process::Signal::XCPU.as_raw()) {
            return Err(format!(
                "the compiler needed more than {processor_s_max} s of processor time for the module"
            ));
        }
        if OUT_OF_MEMORY.iter().any(|text| output.contains(text)) {
            return Err(format!(
                "the compiler needed more than {} MiB of memory for the module",
                memory_max >> 20
            ));
        }
        if ended.code() == Some(NOT_STARTED.into()) {
            return Err(format!("the compiler's process could not begin: {output}"));
        }
        Err(format!("the compiler failed on the module ({ended}): {}", output.replace('\n', " ")))
    }
}

/// Reads a pipe to its end. Returns `None` if the time has passed or an error occurred.
fn read(mut pipe: ChildStderr, until: Instant) -> Option<String> {
    let (mut output, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok()?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        match pipe.read(&mut chunk) {
            Ok(0) => return Some(String::from_utf8_lossy(&output).into_owned()),
            Ok(len) => {
                let room = OUTPUT_LEN_MAX.saturating_sub(output.len()).min(len);
                output.extend_from_slice(&chunk[..room]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Does the work of a trial if this process was started for one. Called first in the main function of a
/// daemon; `None` means that the process is the daemon.
#[must_use]
pub fn child(work: fn(&str, &[u8]) -> Result<(), String>) -> Option<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).take(4).collect();
    if arguments.first()? != OsStr::new(ARGUMENT) {
        return None;
    }
    let mut texts = arguments.iter().skip(1).filter_map(|text| text.to_str());
    let kind = texts.next()?;
    let (memory, seconds) = (texts.next()?.parse().ok()?, texts.next()?.parse().ok()?);
    let done = bounded(memory, seconds).and_then(|()| {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(INPUT_LEN_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = match done {
        Ok(bytes) => bytes,
        Err(error) => {
            eprintln!("{error}");
            return Some(NOT_STARTED.into());
        }
    };
    let kind = kind.to_owned();
    let thread = std::thread::Builder::new().stack_size(STACK_LEN).spawn(move || work(&kind, &bytes));
    Some(match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => {
            eprint!("{DONE}");
            ExitCode::SUCCESS
        }
        Ok(Ok(Err(why))) => {
            eprint!("{REFUSED}{why}");
            exit_code::INTERNAL.into()
        }
        // The panic hook has reported it.
        Ok(Err(_)) => exit_code::INTERNAL.into(),
        Err(error) => {
            eprintln!("{error}");
            NOT_STARTED.into()
        }
    })
}

/// Limits the resources of this process for the rest of its life.
fn bounded(memory_max: u64, processor_s_max: u64) -> std::io::Result<()> {
    let most = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    // The process itself writes private memory only. Address space that is merely reserved does not count.
    setrlimit(Resource::Data, most(memory_max))?;
    setrlimit(Resource::Cpu, Rlimit { current: Some(processor_s_max), maximum: Some(processor_s_max + 1) })?;
    setrlimit(Resource::Core, most(0))?;
    setrlimit(Resource::Fsize, most(0))?;
    // If the machine runs out of memory, this process is killed before a daemon is.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}
