//! Whether the dynamic loader will load the filter into a program that is about to be started.
//!
//! Only posix_spawn needs to know: its child must not get a connection that the agent carries unless it has the filter,
//! and cannot be given a seal (`seal`), since other threads of the parent may be using the descriptor.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::sys::syscall;

/// Largest number of nested script interpreters, as in the kernel.
const SCRIPTS_MAX: usize = 4;
/// Bytes of a file that are examined: a script's first line, or an ELF header with its program headers.
const START_LEN: u64 = 4096;
const ELF64_X86_64: (u8, u16) = (2, 62);
const PT_INTERP: u32 = 3;
const HEADER_LEN: usize = 56;
/// The loaders of glibc have this name, in every folder.
const LOADER: &[u8] = b"ld-linux-x86-64.so";

/// Whether the loader will preload into this program. `false` also if that cannot be determined.
pub fn reaches(program: &Path) -> bool {
    let mut path = program.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        match kind(&path) {
            Some(Kind::Program { loader }) => {
                let name = loader.rsplit(|b| *b == b'/').next().unwrap_or(&[]);
                return name.starts_with(LOADER);
            }
            Some(Kind::Script(interpreter)) => path = interpreter,
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

/// The loader that an ELF file names.
fn loader(file: &mut File, start: &[u8]) -> Option<Vec<u8>> {
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
    let mut name = Vec::new();
    file.seek(SeekFrom::Start(at(8)?)).ok()?;
    file.take(at(32)?.min(libc::PATH_MAX as u64)).read_to_end(&mut name).ok()?;
    Some(CStr::from_bytes_until_nul(&name).ok()?.to_bytes().to_owned())
}

/// The file of a program that is looked up in PATH, as execvp(3) does.
pub fn find(program: &CStr) -> Option<PathBuf> {
    let named = Path::new(std::ffi::OsStr::from_bytes(program.to_bytes()));
    if program.to_bytes().contains(&b'/') {
        return Some(named.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(named)).find(|file| is_executable(file))
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
        let at = shell.windows(LOADER.len()).position(|w| w == LOADER).unwrap();
        let mut musl = shell.clone();
        musl[at..at + LOADER.len()].copy_from_slice(b"ld-musl-x86_64.so\0");
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
        assert_eq!(find(c"sh"), find(c"sh").filter(|path| path.ends_with("sh")));
        assert_eq!(find(c"./x/y"), Some(PathBuf::from("./x/y")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
