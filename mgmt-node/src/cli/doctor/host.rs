//! What checks look at: files below a root, and what only system calls and programs report.
//!
//! Every file is read through [`Host`], bounded in bytes, so that a check sees a fabricated tree in its tests
//! as it sees `/`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};

use super::interfaces::{self, Interface};
use super::programs::{self, Part, Ran};

/// Longest text read of a file, in bytes.
const TEXT_LEN_MAX: u64 = 1 << 20;
/// Most names read of a folder.
const NAMES_MAX: usize = 65_536;

/// Why a program has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRun {
    /// It is not there.
    #[error("{0} is not installed")]
    Missing(String),
    /// It did not end in time, or could not be started.
    #[error("{0} does not run: {1}")]
    Failed(String, String),
    /// `--root` names another tree than the running host's.
    #[error("files below another root are looked at, not the running host")]
    Elsewhere,
}

/// Room of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the file system.
    pub total: u64,
    /// Bytes that an unprivileged user can still write.
    pub free: u64,
    /// Inodes of the file system; 0 where it counts none.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// What files do not have.
pub trait Calls: std::fmt::Debug {
    /// Runs a program to its end, bounded in time and in bytes.
    fn run(&self, program: &str, arguments: &[&str], part: Part) -> Result<Ran, NotRun>;
    /// Returns the room of the file system that holds `path`.
    fn space(&self, path: &Path) -> Result<Space, NotRun>;
    /// Returns the limit of locked memory of this process, in bytes; `Some(None)` if there is none.
    fn memlock(&self) -> Option<Option<u64>>;
    /// Opens a TCP connection and closes it; `None` where that says nothing.
    fn connect(&self, to: &str) -> Option<Result<(), String>>;
}

/// The running host.
#[derive(Debug)]
pub struct Running;

impl Calls for Running {
    fn run(&self, program: &str, arguments: &[&str], part: Part) -> Result<Ran, NotRun> {
        programs::run(program, arguments, part)
    }

    fn space(&self, path: &Path) -> Result<Space, NotRun> {
        let stat = rustix::fs::statvfs(path)
            .map_err(|error| NotRun::Failed("statvfs".into(), format!("{}: {error}", path.display())))?;
        Ok(Space {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            inodes: stat.f_files,
            inodes_free: stat.f_favail,
        })
    }

    fn memlock(&self) -> Option<Option<u64>> {
        Some(rustix::process::getrlimit(rustix::process::Resource::Memlock).current)
    }

    fn connect(&self, to: &str) -> Option<Result<(), String>> {
        Some(programs::connect(to))
    }
}

/// A tree of files that is not the running host's, such as a mounted image.
#[derive(Debug)]
pub struct Elsewhere;

impl Calls for Elsewhere {
    fn run(&self, _: &str, _: &[&str], _: Part) -> Result<Ran, NotRun> {
        Err(NotRun::Elsewhere)
    }

    fn space(&self, _: &Path) -> Result<Space, NotRun> {
        Err(NotRun::Elsewhere)
    }

    fn memlock(&self) -> Option<Option<u64>> {
        None
    }

    fn connect(&self, _: &str) -> Option<Result<(), String>> {
        None
    }
}

/// A host, or a tree of files that stands for one.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    calls: Box<dyn Calls>,
}

impl Host {
    /// The files below `root`; with `/` the running host.
    pub fn new(root: &Path) -> Host {
        let calls: Box<dyn Calls> =
            if root == Path::new("/") { Box::new(Running) } else { Box::new(Elsewhere) };
        Host { root: root.to_owned(), calls }
    }

    /// The files below `root` with these calls, for tests.
    #[cfg(test)]
    pub fn with(root: &Path, calls: impl Calls + 'static) -> Host {
        Host { root: root.to_owned(), calls: Box::new(calls) }
    }

    /// Returns whether the tree can be looked into.
    pub fn opens(&self) -> bool {
        self.open(Path::new("/"), OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// Opens a file of the host. Below another root than `/`, absolute links and `..` stay below it.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        if self.root == Path::new("/") {
            return Ok(openat(CWD, self.root.join(path), flags, Mode::empty())?);
        }
        let root = openat(CWD, &self.root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }

    /// Returns where a file of the host is; below another root than `/` its links are followed for that.
    pub fn path(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        if self.root == Path::new("/") {
            return Ok(self.root.join(path));
        }
        let file = self.open(path, OFlags::PATH)?;
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// Returns a file's text without surrounding white space; `None` if it cannot be read. What is longer
    /// than 1 MiB is cut.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.bytes(path.as_ref(), TEXT_LEN_MAX).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the beginning of a regular file.
    pub fn bytes(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        // A pipe would keep the reader waiting.
        let file = File::from(self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns a file's number; `None` if it has none.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns the names in a folder in order; empty if it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let folder = self.open(folder.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY);
        let Some(entries) = folder.ok().and_then(|folder| Dir::new(folder).ok()) else { return Vec::new() };
        let names = entries.take(NAMES_MAX).flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let mut names: Vec<String> = names.filter(|name| name != "." && name != "..").collect();
        names.sort();
        names
    }

    /// Returns whether there is something at `path`; an error if that cannot be known.
    pub fn has(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.open(path.as_ref(), OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether something is seen at `path`.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.has(path).unwrap_or(false)
    }

    /// Returns where a symbolic link leads to.
    pub fn link(&self, path: &str) -> Option<PathBuf> {
        let link = self.open(Path::new(path), OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let to = readlinkat(link, "", Vec::new()).ok()?;
        Some(OsString::from_vec(to.into_bytes()).into())
    }

    /// Returns the permission bits of a file.
    pub fn mode(&self, path: impl AsRef<Path>) -> Option<u32> {
        let file = File::from(self.open(path.as_ref(), OFlags::PATH).ok()?);
        file.metadata().ok().map(|metadata| metadata.mode() & 0o7777)
    }

    /// Runs a program, see [`Calls::run`].
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<Ran, NotRun> {
        self.calls.run(program, arguments, Part::Beginning)
    }

    /// Runs a program of whose output the end counts, see [`Calls::run`].
    pub fn run_to_end(&self, program: &str, arguments: &[&str]) -> Result<Ran, NotRun> {
        self.calls.run(program, arguments, Part::End)
    }

    /// Returns the room of a file system, see [`Calls::space`].
    pub fn space(&self, path: &Path) -> Result<Space, NotRun> {
        self.calls.space(&self.path(path).map_err(|_| NotRun::Elsewhere)?)
    }

    /// Returns the limit of locked memory, see [`Calls::memlock`].
    pub fn memlock(&self) -> Option<Option<u64>> {
        self.calls.memlock()
    }

    /// Opens a connection, see [`Calls::connect`].
    pub fn connect(&self, to: &str) -> Option<Result<(), String>> {
        self.calls.connect(to)
    }

    /// Returns the interfaces with their addresses, by `ip`.
    pub fn interfaces(&self) -> Result<Vec<Interface>, String> {
        let ran = self.run("ip", &["-json", "address", "show"]).map_err(|error| error.to_string())?;
        interfaces::parse(&ran.out)
    }

    /// Returns the interface that has an address.
    pub fn interface_of(&self, address: IpAddr) -> Result<Option<Interface>, String> {
        Ok(self.interfaces()?.into_iter().find(|interface| interface.has(address)))
    }

    /// Returns the host's name.
    pub fn name(&self) -> String {
        self.text("/proc/sys/kernel/hostname").or_else(|| self.text("/etc/hostname")).unwrap_or_default()
    }
}
