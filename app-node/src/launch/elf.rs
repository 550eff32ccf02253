//! As much of ELF as is needed to determine whether the loader will preload into a program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest number of program headers read; no linker writes more.
const HEADERS_MAX: u16 = 256;
/// Number of bytes that the kernel reads of a script's first line.
const LINE_LEN_MAX: u64 = 256;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
/// Longest path of a loader.
const LOADER_LEN_MAX: u64 = 4096;
/// Starts of the file names of glibc's loaders.
const GLIBC_LOADERS: [&[u8]; 2] = [b"ld-linux", b"ld-lsb"];
/// Largest number of bytes of code that are searched for system calls.
const CODE_SEARCH: u64 = 1 << 26;
/// `mov eax, 425`: the number of io_uring_setup is loaded for a system call.
const RING_NUMBER: &[u8] = b"\xb8\xa9\x01\x00\x00";
/// `syscall`, which follows within this number of bytes.
const SYSCALL: &[u8] = b"\x0f\x05";
const SYSCALL_WITHIN: usize = 48;
/// The mark that the Go linker puts near the start of a program's data, aligned to 16 bytes.
const GO_MAGIC: &[u8] = b"\xff Go buildinf:";
/// Number of bytes of the data that are searched for it: linkers put relocations in front.
const GO_SEARCH: u64 = 1 << 20;
const ELFCLASS64: u8 = 2;
/// Length of a program header of a 64-bit file.
const HEADER_LEN: usize = 56;

/// How a program is linked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// It names a loader, which will preload.
    Dynamic {
        /// Its own code creates io_uring instances by a system call.
        rings: bool,
    },
    /// As `Dynamic`, but a Go program: its runtime makes system calls itself.
    Go,
    /// It names the loader of another C library, which cannot load the filter.
    OtherLibrary,
    /// It names no loader.
    Static,
    /// Its first line names an interpreter.
    Script(PathBuf),
    /// Built for another machine or word size.
    Foreign,
    /// None of these; the kernel may be able to execute it.
    Unknown,
}

/// Examines the start of a file.
pub fn inspect(path: &Path) -> io::Result<Linkage> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    Read::by_ref(&mut file).take(LINE_LEN_MAX).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let name = line.trim_ascii().split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
        return Ok(Linkage::Script(PathBuf::from(OsStr::from_bytes(name))));
    }
    match start.get(..64) {
        Some(header) if header.starts_with(b"\x7fELF") => inspect_elf(&mut file, header),
        _ => Ok(Linkage::Unknown),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

fn inspect_elf(file: &mut File, header: &[u8]) -> io::Result<Linkage> {
    let own_machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if header.get(4) != Some(&ELFCLASS64) || u16_at(header, 18) != own_machine {
        return Ok(Linkage::Foreign);
    }
    let offset = u64_at(header, 32);
    let (size, count) = (u16_at(header, 54), u16_at(header, 56).min(HEADERS_MAX));
    let mut table = vec![0; usize::from(size) * usize::from(count)];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut table)?;
    let headers = || table.chunks_exact(usize::from(size).max(HEADER_LEN));
    let Some(loader) = headers().find(|entry| u32_at(entry, 0) == PT_INTERP) else {
        return Ok(Linkage::Static);
    };
    if is_of_another_library(&part(file, loader, LOADER_LEN_MAX)?) {
        return Ok(Linkage::OtherLibrary);
    }
    let data = headers().filter(|entry| u32_at(entry, 0) == PT_LOAD && u32_at(entry, 4) & PF_W != 0);
    for entry in data {
        let start = part(file, entry, GO_SEARCH)?;
        if start.chunks(16).any(|part| part.starts_with(GO_MAGIC)) {
            return Ok(Linkage::Go);
        }
    }
    for entry in headers().filter(|entry| u32_at(entry, 0) == PT_LOAD && u32_at(entry, 4) & PF_X != 0) {
        if creates_rings(&part(file, entry, CODE_SEARCH)?) {
            return Ok(Linkage::Dynamic { rings: true });
        }
    }
    Ok(Linkage::Dynamic { rings: false })
}

/// Reads the part of the file that a program header describes, at most `len_max` bytes.
fn part(file: &mut File, header: &[u8], len_max: u64) -> io::Result<Vec<u8>> {
    let (offset, len) = (u64_at(header, 8), u64_at(header, 32));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    Read::by_ref(file).take(len.min(len_max)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns whether the loader of this path, which ends with a zero byte, is not glibc's.
fn is_of_another_library(path: &[u8]) -> bool {
    let path = path.split(|b| *b == 0).next().unwrap_or_default();
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    !name.is_empty() && !GLIBC_LOADERS.iter().any(|start| name.starts_with(start))
}

/// Returns whether code contains the system call that creates an io_uring instance, as liburing linked
/// statically does.
fn creates_rings(code: &[u8]) -> bool {
    let follows = |at: usize| {
        let rest = code.get(at + RING_NUMBER.len()..).unwrap_or_default();
        rest.get(..SYSCALL_WITHIN.min(rest.len()))
            .unwrap_or_default()
            .windows(SYSCALL.len())
            .any(|w| w == SYSCALL)
    };
    code.windows(RING_NUMBER.len()).enumerate().any(|(at, window)| window == RING_NUMBER && follows(at))
}
