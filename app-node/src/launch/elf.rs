//! Just enough of ELF to tell whether the loader will preload into a program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Program headers that are looked at; more than any linker makes.
const HEADERS_MAX: u16 = 256;
/// What the kernel reads of a script's first line.
const LINE_LEN_MAX: u64 = 256;
const PT_INTERP: u32 = 3;
const ELFCLASS64: u8 = 2;

/// How a program is linked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// It names a loader, which preloads.
    Dynamic,
    /// It names none.
    Static,
    /// Its first line names an interpreter.
    Script(PathBuf),
    /// Another machine's or word size's.
    Foreign,
    /// None of these; the kernel may know it.
    Unknown,
}

/// Looks at the start of a file.
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

fn inspect_elf(file: &mut File, header: &[u8]) -> io::Result<Linkage> {
    let own_machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if header.get(4) != Some(&ELFCLASS64) || u16_at(header, 18) != own_machine {
        return Ok(Linkage::Foreign);
    }
    let offset = header.get(32..40).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b));
    let (size, count) = (u16_at(header, 54), u16_at(header, 56).min(HEADERS_MAX));
    let mut table = vec![0; usize::from(size) * usize::from(count)];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut table)?;
    let kinds = table.chunks_exact(usize::from(size).max(4));
    let dynamic = kinds
        .into_iter()
        .any(|entry| entry.first_chunk::<4>().is_some_and(|kind| u32::from_le_bytes(*kind) == PT_INTERP));
    Ok(if dynamic { Linkage::Dynamic } else { Linkage::Static })
}
