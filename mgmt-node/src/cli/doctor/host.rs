//! What checks look at: files below a root, and what only system calls and programs report.
//!
//! Every file is read through [`Host`], bounded in bytes, so that a check sees a fabricated tree in its tests
//! as it sees `/`.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::interfaces::{self, Interface};

/// Longest text read of a file, in bytes.
const TEXT_LEN_MAX: u64 = 1 << 20;
/// Most names read of a folder.
const NAMES_MAX: usize = 65_536;
/// Longest output read of a program, in bytes.
const OUTPUT_LEN_MAX: u64 = 16 << 20;
/// Longest errors read of a program, in bytes.
const ERRORS_LEN_MAX: u64 = 64 << 10;
/// How long a program may run.
const RUN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Where programs are looked for, whatever PATH the caller has.
const PROGRAMS: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// What a program has written, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

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
    fn run(&self, program: &str, arguments: &[&str]) -> Result<Ran, NotRun>;
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
    fn run(&self, program: &str, arguments: &[&str]) -> Result<Ran, NotRun> {
        run(program, arguments)
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
        Some(connect(to))
    }
}

/// A tree of files that is not the running host's, such as a mounted image.
#[derive(Debug)]
pub struct Elsewhere;

impl Calls for Elsewhere {
    fn run(&self, _: &str, _: &[&str]) -> Result<Ran, NotRun> {
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

fn connect(to: &str) -> Result<(), String> {
    let mut addresses = to.to_socket_addrs().map_err(|error| error.to_string())?;
    let first: SocketAddr = addresses.next().ok_or("it has no address")?;
    TcpStream::connect_timeout(&first, CONNECT_TIMEOUT).map(drop).map_err(|error| error.to_string())
}

/// Starts a program with an empty environment, reads what it writes, and kills it when it takes too long.
fn run(program: &str, arguments: &[&str]) -> Result<Ran, NotRun> {
    let path = find(program).ok_or_else(|| NotRun::Missing(program.to_owned()))?;
    let failed = |why: String| NotRun::Failed(program.to_owned(), why);
    let mut child = Command::new(path)
        .args(arguments)
        .env_clear()
        .env("PATH", PROGRAMS)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let (send, receive) = mpsc::channel();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || err.map(|pipe| read_text(pipe, ERRORS_LEN_MAX)));
    std::thread::spawn(move || send.send(out.map(|pipe| read_text(pipe, OUTPUT_LEN_MAX))));
    let Ok(out) = receive.recv_timeout(RUN_TIMEOUT) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(format!("no end within {} s", RUN_TIMEOUT.as_secs())));
    };
    // A program that writes more than is read waits for a reader: it ends here. One that has closed its
    // output is about to end.
    if out.as_ref().is_some_and(|text| text.len() as u64 >= OUTPUT_LEN_MAX) {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let err = errors.join().ok().flatten().unwrap_or_default();
    Ok(Ran { code: status.code().unwrap_or(-1), out: out.unwrap_or_default(), err })
}

/// Returns where a program is; one with a path is there or nowhere.
fn find(program: &str) -> Option<PathBuf> {
    let candidates = PROGRAMS.split(':').map(|folder| Path::new(folder).join(program));
    candidates.into_iter().find(|path| path.is_file())
}

fn read_text(pipe: impl Read, most: u64) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.take(most).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
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

    /// Returns where a file of the host is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns a file's text without surrounding white space; `None` if it cannot be read. What is longer
    /// than 1 MiB is cut.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.bytes(path.as_ref(), TEXT_LEN_MAX).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the beginning of a regular file.
    pub fn bytes(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        let path = self.path(path);
        // A pipe would keep the reader waiting.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns a file's number; `None` if it has none.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns the names in a folder in order; empty if it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let names =
            entries.take(NAMES_MAX).flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Returns whether there is something at `path`.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// Returns where a symbolic link leads to.
    pub fn link(&self, path: &str) -> Option<PathBuf> {
        std::fs::read_link(self.path(path)).ok()
    }

    /// Returns the permission bits of a file.
    pub fn mode(&self, path: impl AsRef<Path>) -> Option<u32> {
        self.path(path).metadata().ok().map(|metadata| metadata.mode() & 0o7777)
    }

    /// Runs a program, see [`Calls::run`].
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<Ran, NotRun> {
        self.calls.run(program, arguments)
    }

    /// Returns the room of a file system, see [`Calls::space`].
    pub fn space(&self, path: &Path) -> Result<Space, NotRun> {
        self.calls.space(&self.path(path))
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
