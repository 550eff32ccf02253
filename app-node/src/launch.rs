//! csp-run: starts a program with the socket filter preloaded, or reports why that is not possible.

mod elf;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use elf::Linkage;

/// File name of the socket filter.
pub const FILTER_NAME: &str = "libcsp_sockfilter.so";

/// Mode of the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Mode {
    /// Accelerate what can be accelerated; leave the rest to the kernel, and everything if there is no agent.
    #[default]
    On,
    /// Leave everything to the kernel.
    Off,
    /// Refuse what should be accelerated and cannot be.
    Strict,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Mode::On => "on",
            Mode::Off => "off",
            Mode::Strict => "strict",
        }
    }
}

/// The program to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Mode of the filter.
    pub mode: Mode,
    /// The agent's socket, if not the default.
    pub agent: Option<PathBuf>,
    /// The program, as the user named it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program does not exist.
    #[error("{}: not found", .0.display())]
    NotFound(PathBuf),
    /// The file cannot be executed.
    #[error("{}: {reason}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The filter's library was not found.
    #[error("the socket filter {FILTER_NAME} was not found (looked at: {0}); set CSP_SOCKFILTER to its path")]
    NoFilter(String),
    /// The filter's path cannot be part of LD_PRELOAD.
    #[error("{}: LD_PRELOAD cannot hold a path with spaces or colons", .0.display())]
    FilterPath(PathBuf),
    /// Strict mode, and the program cannot be accelerated.
    #[error("{}: {obstacle}", path.display())]
    NotAccelerated {
        /// The program.
        path: PathBuf,
        /// The reason for which it is not accelerated.
        obstacle: Obstacle,
    },
}

impl LaunchError {
    /// Returns the exit code: 127 not found, 126 not executable (as shells do), 78 for what the operator has
    /// to correct.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound(_) => 127,
            LaunchError::NotExecutable { .. } => 126,
            LaunchError::NoFilter(_) | LaunchError::FilterPath(_) | LaunchError::NotAccelerated { .. } => 78,
        }
    }
}

/// Why preloading does not affect a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// It is linked statically (as most Go programs are), so that nothing is preloaded.
    Static,
    /// It changes user or group when started; the loader ignores LD_PRELOAD.
    Setuid,
    /// It is a Go program; its runtime makes system calls without the C library.
    Go,
    /// It has file capabilities; the loader ignores LD_PRELOAD.
    Capabilities,
    /// It is built for another machine.
    Foreign,
    /// It is linked with another C library than glibc; its loader would fail to load the filter.
    OtherLibrary,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Static => "is linked statically: the loader preloads nothing into it, its sockets stay in the kernel",
            Obstacle::Setuid => "is set-user-id or set-group-id: the loader ignores LD_PRELOAD, its sockets stay in the kernel",
            Obstacle::Go => {
                "is a Go program: its runtime makes system calls without the C library, its sockets stay in the kernel"
            }
            Obstacle::Capabilities => "has file capabilities: the loader ignores LD_PRELOAD, its sockets stay in the kernel",
            Obstacle::Foreign => "is made for another machine or word size than the socket filter",
            Obstacle::OtherLibrary => {
                "is linked with another C library than glibc: its loader cannot load the socket filter, its sockets stay in the kernel"
            }
        })
    }
}

/// The result of checking a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The file that would be executed.
    pub path: PathBuf,
    /// For a script: its interpreter, which determines the result.
    pub interpreter: Option<PathBuf>,
    /// The reason for which it is not accelerated.
    pub obstacle: Option<Obstacle>,
    /// Its own code creates io_uring instances by a system call; the filter then makes the kernel refuse
    /// them.
    pub rings: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(interpreter) = &self.interpreter {
            write!(f, " (script of {})", interpreter.display())?;
        }
        match self.obstacle {
            Some(obstacle) => write!(f, " {obstacle}"),
            None if self.rings => f.write_str(
                " can be accelerated; its code calls io_uring_setup itself, which is refused with ENOSYS if it has CAP_SYS_ADMIN or no_new_privs",
            ),
            None => f.write_str(" can be accelerated"),
        }
    }
}

/// Largest number of nested script interpreters, as in the kernel.
const SCRIPT_DEPTH_MAX: usize = 4;

impl Launch {
    /// Looks the program up and determines whether it can be accelerated.
    pub fn check(&self) -> Result<Verdict, LaunchError> {
        let path = find(&self.program)?;
        let (mut file, mut interpreter) = (path.clone(), None);
        for _ in 0..SCRIPT_DEPTH_MAX {
            let linkage = elf::inspect(&file).map_err(|error| not_executable(&file, error))?;
            let obstacle = match &linkage {
                Linkage::Script(next) => {
                    interpreter = Some(next.clone());
                    file = next.clone();
                    continue;
                }
                Linkage::Static => Some(Obstacle::Static),
                Linkage::Foreign => Some(Obstacle::Foreign),
                Linkage::OtherLibrary => Some(Obstacle::OtherLibrary),
                Linkage::Go => Some(Obstacle::Go),
                Linkage::Dynamic { .. } if changes_user(&file) => Some(Obstacle::Setuid),
                Linkage::Dynamic { .. } if has_capabilities(&file) => Some(Obstacle::Capabilities),
                Linkage::Dynamic { .. } | Linkage::Unknown => None,
            };
            let rings = linkage == Linkage::Dynamic { rings: true };
            return Ok(Verdict { path, interpreter, obstacle, rings });
        }
        Err(not_executable(&path, "too many interpreters"))
    }

    /// Replaces this process by the program. Returns only on an error.
    pub fn exec(&self) -> LaunchError {
        match self.prepare() {
            Ok(mut command) => {
                let error = command.exec();
                not_executable(Path::new(&self.program), error)
            }
            Err(error) => error,
        }
    }

    /// Returns the command with its environment.
    pub fn prepare(&self) -> Result<Command, LaunchError> {
        let verdict = self.check()?;
        if let Some(obstacle) = verdict.obstacle {
            match self.mode {
                Mode::Strict => return Err(LaunchError::NotAccelerated { path: verdict.path, obstacle }),
                Mode::On => eprintln!("csp-run: {} {obstacle}", verdict.path.display()),
                Mode::Off => {}
            }
        }
        let mut command = Command::new(&verdict.path);
        command.arg0(&self.program).args(&self.arguments).env("CSP_MODE", self.mode.as_str());
        if let Some(agent) = &self.agent {
            command.env("CSP_AGENT", agent);
        }
        if self.mode == Mode::Off {
            return Ok(command);
        }
        let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        // The loader of another library ends a program whose preloaded library it cannot load.
        match preload(&filter()?, &before, verdict.obstacle != Some(Obstacle::OtherLibrary))? {
            list if list.is_empty() => command.env_remove("LD_PRELOAD"),
            list => command.env("LD_PRELOAD", list),
        };
        if verdict.rings {
            command.env("CSP_IO_URING", "refuse");
        }
        Ok(command)
    }
}

/// Returns the program's file, looked up as execvp(3) does.
fn find(program: &OsStr) -> Result<PathBuf, LaunchError> {
    let named = PathBuf::from(program);
    if program.as_bytes().contains(&b'/') {
        return executable(&named).map(|()| named);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let mut denied = None;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(program);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error @ LaunchError::NotExecutable { .. }) => denied = Some(error),
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or(LaunchError::NotFound(named)))
}

fn not_executable(path: &Path, reason: impl fmt::Display) -> LaunchError {
    LaunchError::NotExecutable { path: path.to_owned(), reason: reason.to_string() }
}

fn executable(path: &Path) -> Result<(), LaunchError> {
    match std::fs::metadata(path) {
        Err(_) => Err(LaunchError::NotFound(path.to_owned())),
        Ok(m) if !m.is_file() => Err(not_executable(path, "not a file")),
        Ok(m) if m.permissions().mode() & 0o111 == 0 => Err(not_executable(path, "permission denied")),
        Ok(_) => Ok(()),
    }
}

fn changes_user(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o6000 != 0)
}

fn has_capabilities(path: &Path) -> bool {
    // Only its existence matters; a value longer than the buffer gives ERANGE.
    rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok_and(|len| len > 0)
}

/// Returns the filter's path: CSP_SOCKFILTER, else beside this program, else in ../lib.
fn filter() -> Result<PathBuf, LaunchError> {
    let mut places = Vec::new();
    if let Some(path) = std::env::var_os("CSP_SOCKFILTER") {
        places.push(PathBuf::from(path));
    } else if let Ok(own) = std::env::current_exe() {
        let folder = own.parent().unwrap_or(Path::new("/"));
        places.push(folder.join(FILTER_NAME));
        places.push(folder.join("../lib").join(FILTER_NAME));
        places.push(folder.join("../lib/csp").join(FILTER_NAME));
    }
    let found = places.iter().find_map(|place| place.canonicalize().ok().filter(|p| p.is_file()));
    found.ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        LaunchError::NoFilter(looked.join(", "))
    })
}

/// Returns LD_PRELOAD, with the filter in front if the program can load it; existing entries of the filter
/// are removed.
fn preload(filter: &Path, before: &OsStr, loads: bool) -> Result<OsString, LaunchError> {
    if filter.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) {
        return Err(LaunchError::FilterPath(filter.to_owned()));
    }
    let filter = filter.as_os_str().as_bytes();
    let others = before.as_bytes().split(|b| b" :".contains(b)).filter(|e| !e.is_empty() && *e != filter);
    let entries: Vec<&[u8]> = loads.then_some(filter).into_iter().chain(others).collect();
    Ok(OsStr::from_bytes(&entries.join(&b':')).to_owned())
}

#[cfg(test)]
mod tests;
