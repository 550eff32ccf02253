//! Determines whether the dynamic loader will load the filter into a program that is about to be started.
//!
//! posix_spawn needs this: its child must not get a connection in the agent's custody unless it has the
//! filter, and cannot be given a seal (`seal`), since other threads of the parent may be using the
//! descriptor. exec needs to know whether the program's loader is that of another C library, since such a
//! program does not start with the filter preloaded.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::c_int;

use crate::sys::{self, syscall};

/// Largest number of nested script interpreters, as in the kernel.
const SCRIPTS_MAX: usize = 4;
/// Bytes of a file that are examined: a script's first line, or an ELF header with its program headers.
const START_LEN: u64 = 4096;
const ELF64_X86_64: (u8, u16) = (2, 62);
const PT_INTERP: u32 = 3;
const HEADER_LEN: usize = 56;
/// Prefixes of the names of glibc's loaders, in any directory.
const LOADERS: [&[u8]; 2] = [b"ld-linux-x86-64.so", b"ld-lsb-x86-64.so"];
/// Longest first line of a script, as in the kernel, and longest path of a loader that is examined.
const LINE_MAX: usize = 256;

fn is_of_glibc(loader: &[u8]) -> bool {
    let name = loader.rsplit(|b| *b == b'/').next().unwrap_or(&[]);
    LOADERS.iter().any(|start| name.starts_with(start))
}

/// Whether the loader will preload into this program, which is executed in `folder` (empty: this process's).
/// `false` also if that cannot be determined.
pub fn reaches(program: &Path, folder: &Path) -> bool {
    let mut path = program.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        match kind(&path) {
            Some(Kind::Program { loader }) => return is_of_glibc(&loader),
            Some(Kind::Script(interpreter)) => path = folder.join(interpreter),
            None => return false,
        }
    }
    false
}

enum Kind {
    /// An ELF file without privileges of its own, with the path of its loader.
    Program { loader: Vec<u8> },
    /// A script, with its interpreter.
    Script(PathBuf),
}

fn kind(path: &Path) -> Option<Kind> {
    const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() {
        return None;
    }
    let mut start = Vec::new();
    Read::by_ref(&mut file).take(START_LEN).read_to_end(&mut start).ok()?;
    if let Some(line) = start.strip_prefix(b"#!") {
        // The set-user-id bits of a script have no effect.
        let line = line.split(|b| *b == b'\n').next()?.trim_ascii();
        let interpreter = line.split(|b| b.is_ascii_whitespace()).next()?;
        return Some(Kind::Script(PathBuf::from(std::ffi::OsStr::from_bytes(interpreter))));
    }
    if metadata.mode() & SET_ID != 0 || has_capabilities(&file) {
        return None;
    }
    loader(&mut file, &start).map(|loader| Kind::Program { loader })
}

/// Whether the file has capabilities, which make the loader ignore LD_PRELOAD.
fn has_capabilities(file: &File) -> bool {
    let (name, nothing) = (c"security.capability", core::ptr::null_mut::<u8>());
    // SAFETY: the name is a C string; without room the kernel returns the length of the value.
    unsafe { syscall!(libc::SYS_fgetxattr, file.as_raw_fd(), name.as_ptr(), nothing, 0) }.is_ok()
}

/// Where an ELF file for this machine names its loader: offset and length of the path.
fn loader_place(start: &[u8]) -> Option<(u64, u64)> {
    let half = |at: usize| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?));
    if !start.starts_with(b"\x7fELF") || (*start.get(4)?, half(18)?) != ELF64_X86_64 {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let (table, size, count) =
        (usize::try_from(word(32)?).ok()?, usize::from(half(54)?), usize::from(half(56)?));
    if size < HEADER_LEN {
        return None;
    }
    let entries = start.get(table..)?.chunks_exact(size).take(count);
    let header = entries.into_iter().find(|e| e.starts_with(&PT_INTERP.to_le_bytes()))?;
    let at = |from: usize| header.get(from..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    Some((at(8)?, at(32)?))
}

/// The loader that an ELF file names.
fn loader(file: &mut File, start: &[u8]) -> Option<Vec<u8>> {
    let (at, len) = loader_place(start)?;
    let mut name = Vec::new();
    file.seek(SeekFrom::Start(at)).ok()?;
    file.take(len.min(libc::PATH_MAX as u64)).read_to_end(&mut name).ok()?;
    Some(CStr::from_bytes_until_nul(&name).ok()?.to_bytes().to_owned())
}

/// Whether a program, or the interpreter of a script, names the loader of another C library (musl): with the
/// filter preloaded it would not start. Returns `false` if that cannot be determined. Allocates nothing,
/// since it runs in children of vfork and in signal handlers.
pub fn is_foreign(folder: c_int, path: &CStr) -> bool {
    open(folder, path).is_some_and(|fd| {
        let foreign = is_foreign_file(fd);
        sys::close(fd);
        foreign
    })
}

/// Like [`is_foreign`], for the file that a descriptor refers to.
pub fn is_foreign_file(file: c_int) -> bool {
    let mut line = [0; LINE_MAX];
    let mut opened = None;
    for _ in 0..=SCRIPTS_MAX {
        let found = examine(opened.unwrap_or(file), &mut line);
        opened.into_iter().for_each(sys::close);
        match found {
            Some(Found::Loader(len)) => return line.get(..len).is_some_and(|loader| !is_of_glibc(loader)),
            Some(Found::Interpreter(len)) => {
                line[len] = 0;
                let Ok(path) = CStr::from_bytes_until_nul(&line) else { return false };
                opened = open(libc::AT_FDCWD, path);
                if opened.is_none() {
                    return false;
                }
            }
            None => return false,
        }
    }
    false
}

fn open(folder: c_int, path: &CStr) -> Option<c_int> {
    // O_NONBLOCK avoids waiting for the writer of a FIFO.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the path is a C string.
    unsafe { syscall!(libc::SYS_openat, folder, path.as_ptr(), flags, 0) }.ok().map(|fd| fd as c_int)
}

/// What the start of a file names: the bytes are in the buffer that was passed, always fewer than
/// [`LINE_MAX`].
enum Found {
    Loader(usize),
    Interpreter(usize),
}

fn examine(fd: c_int, line: &mut [u8; LINE_MAX]) -> Option<Found> {
    let mut start = [0u8; START_LEN as usize];
    let read = |into: &mut [u8], at: u64| {
        // SAFETY: the bytes are writable.
        unsafe { syscall!(libc::SYS_pread64, fd, into.as_mut_ptr(), into.len(), at) }.ok()
    };
    let len = read(&mut start, 0)?;
    let start = start.get(..len)?;
    if let Some(rest) = start.strip_prefix(b"#!") {
        let rest = rest.split(|b| *b == b'\n').next()?.trim_ascii();
        let interpreter = rest.split(|b| b.is_ascii_whitespace()).next()?;
        line.get_mut(..interpreter.len()).filter(|to| to.len() < LINE_MAX)?.copy_from_slice(interpreter);
        return Some(Found::Interpreter(interpreter.len()));
    }
    let (at, len) = loader_place(start)?;
    let room = line.get_mut(..usize::try_from(len).ok()?).filter(|room| room.len() < LINE_MAX)?;
    let len = read(room, at)?;
    Some(Found::Loader(room.get(..len)?.split(|b| *b == 0).next()?.len()))
}

/// Calls `is` for the files that a program of this name could be, in the order of PATH, as execvp(3) looks it
/// up, until one exists and can be executed; returns the answer for that one.
pub fn ask_in_path(program: &CStr, is: impl Fn(&CStr) -> bool) -> bool {
    if program.to_bytes().contains(&b'/') {
        return is(program);
    }
    // SAFETY: the name is a C string; the caller of exec does not change its environment meanwhile.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a value of the environment is a C string.
    let path = if path.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(path) } };
    let mut file = [0; libc::PATH_MAX as usize];
    for folder in path.to_bytes().split(|b| *b == b':') {
        let parts = [folder, if folder.is_empty() { &b""[..] } else { b"/" }, program.to_bytes_with_nul()];
        let mut len = 0;
        let fits = parts.iter().all(|part| {
            let room = file.get_mut(len..len + part.len());
            len += part.len();
            room.map(|room| room.copy_from_slice(part)).is_some()
        });
        let Ok(candidate) = CStr::from_bytes_until_nul(&file) else { continue };
        // SAFETY: the name is a C string.
        let allowed =
            || unsafe { syscall!(libc::SYS_faccessat, libc::AT_FDCWD, candidate.as_ptr(), libc::X_OK) };
        if fits && allowed().is_ok() {
            return is(candidate);
        }
    }
    false
}

/// The file of a program that is executed in `folder` (empty: this process's): by its path, or looked up in
/// PATH as execvp(3) does.
pub fn find(program: &CStr, by_path: bool, folder: &Path) -> Option<PathBuf> {
    let named = Path::new(std::ffi::OsStr::from_bytes(program.to_bytes()));
    if !by_path || program.to_bytes().contains(&b'/') {
        return Some(folder.join(named));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|entry| folder.join(entry).join(named)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: the name is a C string.
    let allowed = unsafe { syscall!(libc::SYS_faccessat, libc::AT_FDCWD, name.as_ptr(), libc::X_OK) };
    allowed.is_ok() && file.is_file()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_loader_reaches_ordinary_programs_and_scripts_only() {
        let folder = std::env::temp_dir().join(format!("csp-preload-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, content: &[u8], mode: u32| {
            let path = folder.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let shell = fs::read("/bin/sh").unwrap();
        let at = shell.windows(LOADERS[0].len()).position(|w| w == LOADERS[0]).unwrap();
        let mut musl = shell.clone();
        musl[at..at + LOADERS[0].len()].copy_from_slice(b"ld-musl-x86_64.so\0");
        let reaches = |path: &Path| reaches(path, Path::new(""));
        assert!(reaches(Path::new("/bin/sh")));
        assert!(reaches(&file("plain", &shell, 0o755)));
        assert!(reaches(&file("script", b"#!/bin/sh -e\necho\n", 0o4755)));
        assert!(!reaches(&file("set-user-id", &shell, 0o4755)));
        assert!(!reaches(&file("set-group-id", &shell, 0o2755)));
        assert!(!reaches(&file("musl", &musl, 0o755)));
        assert!(!reaches(&file("static", &[&b"\x7fELF\x02\x01\x01"[..], &[0; 120]].concat(), 0o755)));
        assert!(!reaches(&file("text", b"nothing", 0o755)) && !reaches(&folder.join("none")));
        let itself = folder.join("loop");
        file("loop", format!("#!{}\n", itself.display()).as_bytes(), 0o755);
        assert!(!reaches(&itself));
        let foreign =
            |path: &Path| is_foreign(libc::AT_FDCWD, &CString::new(path.as_os_str().as_bytes()).unwrap());
        assert!(foreign(&folder.join("musl")) && !foreign(Path::new("/bin/sh")));
        let script =
            file("musl-script", format!("#! {} -e\n", folder.join("musl").display()).as_bytes(), 0o755);
        assert!(foreign(&script) && !reaches(&script));
        for other in ["script", "static", "text", "loop", "none", "set-user-id"] {
            assert!(!foreign(&folder.join(other)), "{other}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn programs_are_found_as_exec_and_posix_spawn_find_them() {
        let own = Path::new("");
        let sh = find(c"sh", true, own).unwrap();
        assert!(sh.is_absolute() && sh.ends_with("sh"));
        assert!(ask_in_path(c"sh", |file| file.to_bytes() == sh.as_os_str().as_bytes()));
        assert!(!ask_in_path(c"no-such-program", |_| true));
        assert!(ask_in_path(c"./sh", |file| file == c"./sh"));
        for (name, by_path, folder, expected) in [
            (c"./x/y", true, "", "./x/y"),
            (c"./x/y", false, "/tmp", "/tmp/./x/y"),
            (c"sh", false, "", "sh"),
            (c"sh", false, "/tmp", "/tmp/sh"),
            (c"/bin/sh", true, "/tmp", "/bin/sh"),
        ] {
            assert_eq!(find(name, by_path, Path::new(folder)), Some(PathBuf::from(expected)), "{name:?}");
        }
    }
}
