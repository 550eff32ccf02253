//! Supplied eBPF objects: what is accepted of one, and the kernel's verdict.
//!
//! ```text
//!   bytes ─ read: sections, programs, maps ─▶ ObjectDeclaration ─ verify: maps made, program loaded, all dropped ─▶ accepted
//! ```
//! What helpers a program calls is the kernel's to allow: objects are administrators'.

use std::io;
use std::path::Path;

use aya::maps::MapError;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use aya_obj::generated::bpf_map_type;
use aya_obj::maps::PinningType;
use aya_obj::programs::XdpAttachType;
use aya_obj::{Map, Object, ProgramSection};
use csp_plugins::{OUTPUTS_MAX, ObjectDeclaration};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionKind, SymbolKind};

use crate::maps::RawParameters;

/// Largest object in bytes.
pub const OBJECT_LEN_MAX: usize = 1 << 20;
/// Largest number of maps of an object, including its data sections.
pub const OBJECT_MAPS_MAX: usize = 16;
/// Largest total size of an object's maps in bytes. A per-processor map counts once for each processor.
pub const OBJECT_MAPS_LEN_MAX: u64 = 16 << 20;
/// Largest number of an object's counters that are shown.
pub const OBJECT_COUNTERS_MAX: u32 = 64;
/// Largest part of the verifier's log in an error, in bytes, taken from its end.
const LOG_LEN_MAX: usize = 700;
/// Largest part of the library's message in an error, in bytes. The message may quote the object.
const WORDS_LEN_MAX: usize = 700;
const NAME_LEN_MAX: usize = 64;
/// Version of the ABI in `include/csp_xdp.h`.
const ABI: u32 = 1;
const DECLARATION_LEN: usize = 24;
/// The kernel's overhead per map entry beside key and value, in bytes.
const ENTRY_OVERHEAD: u64 = 64;

pub(crate) const CONTINUE: &str = "csp_continue";
pub(crate) const PARAMETERS: &str = "csp_parameters";
pub(crate) const COUNTERS: &str = "csp_counters";
/// Elements of the map of parameters: two sets of parameters, and the index of the one in force.
pub(crate) const PARAMETERS_ENTRIES: u32 = 3;
/// Number of verdicts of a supplied program: one for each output, and drop.
pub(crate) const VERDICTS: u32 = OUTPUTS_MAX as u32 + 1;

/// BPF_F_NO_PREALLOC, BPF_F_RDONLY_PROG, BPF_F_MMAPABLE.
const FLAGS_ALLOWED: u32 = 1 | 1 << 7 | 1 << 10;

/// Why an object is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It is too long.
    #[error("it has {0} bytes; {OBJECT_LEN_MAX} are the most")]
    Long(usize),
    /// It cannot be parsed.
    #[error("it is no eBPF object: {0}")]
    Unreadable(String),
    /// Its declaration is missing or invalid.
    #[error("{0}; an object says CSP_XDP(OUTPUTS), of csp_xdp.h")]
    Declaration(String),
    /// Its programs are not as required.
    #[error("it has {0}; an object has one program, in the section `xdp`")]
    Programs(String),
    /// One of its maps is not allowed.
    #[error("map {name}: {reason}")]
    Map {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Its maps exceed a common limit.
    #[error("its {0}")]
    Maps(String),
    /// The kernel does not let this process load programs.
    #[error("BPF is not permitted here: {0} (needed: CAP_BPF and CAP_NET_ADMIN)")]
    NotPermitted(String),
    /// The verifier rejected it: the error, and the end of its log.
    #[error("the kernel's verifier refuses the program: {error}\n{log}")]
    Refused {
        /// The error of the system call.
        error: String,
        /// The end of the log.
        log: String,
    },
    /// The kernel rejected it for another reason.
    #[error("it was not loaded: {0}")]
    Load(String),
}

/// Bytes at an address with the alignment that ELF parsers need.
struct Aligned(Vec<u64>, usize);

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        };
        Aligned(bytes.chunks(8).map(word).collect(), bytes.len())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the words are initialised memory of at least `self.1` bytes, which live as long as `self`;
        // every byte is a value.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }
}

/// Parses an object's declaration, and checks the object as far as that is possible without the kernel.
///
/// # Errors
/// A description of what is wrong.
pub fn read(bytes: &[u8]) -> Result<ObjectDeclaration, ObjectError> {
    let bytes = aligned(bytes)?;
    contained(|| check(bytes.bytes()))
}

/// Checks an object, and makes the kernel verify its program with the capabilities of the calling thread.
/// Everything created is removed again. Takes milliseconds, or seconds for a program with many paths.
///
/// # Errors
/// A description of what is wrong, with the end of the verifier's log.
pub fn verify(bytes: &[u8]) -> Result<ObjectDeclaration, ObjectError> {
    let declaration = read(bytes)?;
    contained(|| load(bytes, None))?;
    Ok(declaration)
}

/// Calls `read`, and turns a panic of the ELF library, which contradictory debug information can cause, into
/// an error. In a process that ends on a panic, such as a daemon, the caller has to prevent that for this
/// call (`csp_telemetry::without_abort`).
pub(crate) fn contained<T>(read: impl FnOnce() -> Result<T, ObjectError>) -> Result<T, ObjectError> {
    let failed = |_| Err(ObjectError::Unreadable("its tables contradict themselves".to_owned()));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(failed)
}

/// Loads an object that was checked before. Its map of continuations is the pinned one.
pub(crate) fn load(bytes: &[u8], continuations: Option<&Path>) -> Result<Ebpf, ObjectError> {
    let bytes = aligned(bytes)?;
    check(bytes.bytes())?;
    let mut loader = EbpfLoader::new();
    if let Some(path) = continuations {
        loader.map_pin_path(CONTINUE, path);
    }
    let mut ebpf = loader.load(bytes.bytes()).map_err(refused_object)?;
    program_of(&mut ebpf)?.load().map_err(refused_program)?;
    Ok(ebpf)
}

/// Returns the single program of a checked object.
pub(crate) fn program_of(ebpf: &mut Ebpf) -> Result<&mut Xdp, ObjectError> {
    let program = ebpf.programs_mut().next().map(|(_, program)| program.try_into());
    program.and_then(Result::ok).ok_or_else(|| ObjectError::Programs("none".to_owned()))
}

fn aligned(bytes: &[u8]) -> Result<Aligned, ObjectError> {
    match bytes.len() {
        len if len > OBJECT_LEN_MAX => Err(ObjectError::Long(len)),
        _ => Ok(Aligned::new(bytes)),
    }
}

fn check(bytes: &[u8]) -> Result<ObjectDeclaration, ObjectError> {
    let unreadable = |error: &dyn core::fmt::Display| ObjectError::Unreadable(start_of(&error.to_string()));
    let file = object::File::parse(bytes).map_err(|error| unreadable(&error))?;
    check_sections(&file)?;
    let (outputs, numbers) = declaration(&file)?;
    let parsed = Object::parse(bytes).map_err(|error| unreadable(&error))?;
    check_programs(&parsed)?;
    let cpus = aya::util::nr_cpus().map_or(1, |cpus| cpus as u64);
    let mut len = 0u64;
    for (name, map) in &parsed.maps {
        check_map(name, map)
            .map_err(|reason| ObjectError::Map { name: name.escape_debug().take(80).collect(), reason })?;
        len = len.saturating_add(map_len(map, cpus));
    }
    if parsed.maps.len() > OBJECT_MAPS_MAX {
        let count = parsed.maps.len();
        return Err(ObjectError::Maps(format!("{count} maps; {OBJECT_MAPS_MAX} are the most")));
    }
    if len > OBJECT_MAPS_LEN_MAX {
        let text = format!("maps need {len} bytes on {cpus} processors; {OBJECT_MAPS_LEN_MAX} are the most");
        return Err(ObjectError::Maps(text));
    }
    Ok(ObjectDeclaration { outputs, has_parameters: parsed.maps.contains_key(PARAMETERS), numbers })
}

/// Rejects what the loader does not check: a relocation of code against something that is neither code, a
/// section nor data.
fn check_sections(file: &object::File<'_>) -> Result<(), ObjectError> {
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(ObjectError::Unreadable(format!("a relocation at {at} names no symbol")));
            };
            let known = file.symbol_by_index(symbol).ok().filter(|symbol| {
                let kinds = [SymbolKind::Text, SymbolKind::Section, SymbolKind::Data];
                kinds.contains(&symbol.kind()) && symbol.section_index().is_some()
            });
            if known.is_none() {
                return Err(ObjectError::Unreadable(format!("the relocation at {at} leads nowhere")));
            }
        }
    }
    Ok(())
}

/// The declaration of an object: number of outputs, and range of its numeric parameters.
type Declared = (u8, Option<(u64, u64)>);

fn declaration(file: &object::File<'_>) -> Result<Declared, ObjectError> {
    let wrong = |text: String| ObjectError::Declaration(text);
    let section = file.section_by_name("csp").ok_or_else(|| wrong("it has no section `csp`".to_owned()))?;
    let data = section.data().map_err(|error| wrong(format!("the section `csp` is unreadable: {error}")))?;
    let Some(data) = data.first_chunk::<DECLARATION_LEN>().filter(|_| data.len() == DECLARATION_LEN) else {
        return Err(wrong(format!("the section `csp` has {} bytes, not {DECLARATION_LEN}", data.len())));
    };
    let number = |at: usize, len: usize| {
        data[at..at + len].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (abi, outputs, least, most) = (number(0, 4), number(4, 4), number(8, 8), number(16, 8));
    if abi != u64::from(ABI) {
        return Err(wrong(format!("it is of version {abi} of csp_xdp.h, and this node runs version {ABI}")));
    }
    if outputs == 0 || outputs > OUTPUTS_MAX as u64 {
        return Err(wrong(format!("it declares {outputs} outputs; 1 to {OUTPUTS_MAX} are possible")));
    }
    if least > most {
        return Err(wrong(format!("it declares parameters from {least} to {most}")));
    }
    Ok((outputs as u8, (most > 0).then_some((least, most))))
}

fn check_programs(parsed: &Object) -> Result<(), ObjectError> {
    let mut programs = parsed.programs.iter();
    let (Some((name, program)), None) = (programs.next(), programs.next()) else {
        return Err(ObjectError::Programs(format!("{} programs", parsed.programs.len())));
    };
    let is_xdp = matches!(
        program.section,
        ProgramSection::Xdp { frags: false, attach_type: XdpAttachType::Interface }
    );
    if !is_xdp {
        return Err(ObjectError::Programs("a program of another section".to_owned()));
    }
    if !parsed.functions.contains_key(&program.function_key()) {
        return Err(ObjectError::Unreadable("its program is not where its symbol is".to_owned()));
    }
    if !is_name(name) {
        return Err(ObjectError::Programs("a program whose name is none".to_owned()));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

fn check_map(name: &str, map: &Map) -> Result<(), String> {
    use bpf_map_type::*;
    if !is_name(name) {
        return Err(format!("the name is not 1 to {NAME_LEN_MAX} printable characters"));
    }
    if map.pinning() != PinningType::None {
        return Err("it is pinned by name, which reaches maps of others".to_owned());
    }
    let kind = bpf_map_type::try_from(map.map_type()).map_err(|_| "of unknown type".to_owned())?;
    let shape = (kind, map.key_size(), map.value_size(), map.max_entries());
    match name {
        CONTINUE if shape == (BPF_MAP_TYPE_PROG_ARRAY, 4, 4, VERDICTS) => return Ok(()),
        CONTINUE => return Err("it is not as csp_xdp.h declares it".to_owned()),
        PARAMETERS
            if shape != (BPF_MAP_TYPE_ARRAY, 4, size_of::<RawParameters>() as u32, PARAMETERS_ENTRIES) =>
        {
            return Err("it is not as csp_xdp.h declares it (CSP_PARAMETERS)".to_owned());
        }
        COUNTERS => {
            let of_array = matches!(kind, BPF_MAP_TYPE_ARRAY | BPF_MAP_TYPE_PERCPU_ARRAY);
            let count = map.max_entries();
            if !of_array || (shape.1, shape.2) != (4, 8) || count > OBJECT_COUNTERS_MAX {
                return Err(format!(
                    "it is an array, also by processor, of at most {OBJECT_COUNTERS_MAX} numbers of 64 bits"
                ));
            }
        }
        _ => {}
    }
    if map.map_flags() & !FLAGS_ALLOWED != 0 {
        return Err(format!(
            "flags {:#x}; BPF_F_NO_PREALLOC, _RDONLY_PROG and _MMAPABLE are allowed",
            map.map_flags()
        ));
    }
    match kind {
        BPF_MAP_TYPE_ARRAY
        | BPF_MAP_TYPE_PERCPU_ARRAY
        | BPF_MAP_TYPE_HASH
        | BPF_MAP_TYPE_PERCPU_HASH
        | BPF_MAP_TYPE_LRU_HASH
        | BPF_MAP_TYPE_LRU_PERCPU_HASH
        | BPF_MAP_TYPE_LPM_TRIE => Ok(()),
        _ => {
            Err("its type is none of array, hash, lru_hash (each also by processor) and lpm_trie".to_owned())
        }
    }
}

/// Returns the approximate size of a map in bytes.
fn map_len(map: &Map, cpus: u64) -> u64 {
    use bpf_map_type::*;
    let kind = bpf_map_type::try_from(map.map_type());
    let by_processor = matches!(
        kind,
        Ok(BPF_MAP_TYPE_PERCPU_ARRAY | BPF_MAP_TYPE_PERCPU_HASH | BPF_MAP_TYPE_LRU_PERCPU_HASH)
    );
    let is_array = matches!(kind, Ok(BPF_MAP_TYPE_ARRAY | BPF_MAP_TYPE_PERCPU_ARRAY));
    let value = u64::from(map.value_size()).next_multiple_of(8) * if by_processor { cpus } else { 1 };
    let key = if is_array { 0 } else { u64::from(map.key_size()) + ENTRY_OVERHEAD };
    value.saturating_add(key).saturating_mul(map.max_entries().into())
}

fn refused_object(error: EbpfError) -> ObjectError {
    match &error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) if is_denied(io_error) => {
            ObjectError::NotPermitted(io_error.to_string())
        }
        EbpfError::MapError(MapError::CreateError { io_error, name, .. }) => {
            ObjectError::Map { name: start_of(name), reason: format!("the kernel refuses it: {io_error}") }
        }
        _ => ObjectError::Load(start_of(&error.to_string())),
    }
}

fn refused_program(error: ProgramError) -> ObjectError {
    match &error {
        ProgramError::LoadError { io_error, .. } if is_denied(io_error) => {
            ObjectError::NotPermitted(io_error.to_string())
        }
        ProgramError::LoadError { io_error, verifier_log } => {
            ObjectError::Refused { error: io_error.to_string(), log: end_of(&verifier_log.to_string()) }
        }
        _ => ObjectError::Load(start_of(&error.to_string())),
    }
}

/// Returns the start of the library's message, which may quote the object's debug information.
fn start_of(words: &str) -> String {
    match words.char_indices().map(|(at, _)| at).take_while(|at| *at <= WORDS_LEN_MAX).last() {
        Some(end) if words.len() > WORDS_LEN_MAX => format!("{}…", &words[..end]),
        _ => words.to_owned(),
    }
}

/// Returns whether the error is EPERM. The verifier returns EACCES or EINVAL.
fn is_denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// Returns the last lines of a log that fit, without the verifier's statistics.
fn end_of(log: &str) -> String {
    let is_statistic = |line: &&str| {
        let words = ["verification time", "stack depth", "processed "];
        line.is_empty() || words.iter().any(|word| line.starts_with(word))
    };
    let behind: usize =
        log.split_inclusive('\n').rev().take_while(|line| is_statistic(&line.trim_end())).map(str::len).sum();
    let log = log[..log.len() - behind].trim_end();
    let from = log.char_indices().map(|(at, _)| at).find(|at| log.len() - at <= LOG_LEN_MAX).unwrap_or(0);
    match log.get(from..) {
        Some(end) if from > 0 => end.split_once('\n').map_or(end, |(_, lines)| lines).to_owned(),
        _ => log.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_says_is_cut_between_characters() {
        assert_eq!(start_of("short"), "short");
        let cut = start_of(&"é".repeat(5_000));
        assert!(cut.ends_with('…') && cut.len() <= WORDS_LEN_MAX + 3, "{}", cut.len());
    }

    #[test]
    fn the_end_of_a_log_has_whole_lines() {
        assert_eq!(end_of("a\nb\n\n"), "a\nb");
        assert_eq!(
            end_of("processed 1\nR1 is bad\nverification time 5 usec\nprocessed 9 insns"),
            "processed 1\nR1 is bad"
        );
        let long = format!("{}\nlast line é", "x".repeat(LOG_LEN_MAX - 5));
        assert_eq!(end_of(&long), "last line é");
        assert!(end_of(&"y\n".repeat(5_000)).len() <= LOG_LEN_MAX);
    }
}
