//! Comparison of the filter's exports with the C library's: every function that takes a descriptor is
//! exported, or listed in `left_to_libc.txt` with the reason why it need not be. Most problems of comparable
//! projects are missing functions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::stage::filter;

/// Defined names by address, of those that programs can be linked to.
fn symbols(file: &Path) -> Vec<(String, String)> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = *words.get(2)?;
        let public = !name.ends_with("GLIBC_PRIVATE");
        public.then(|| (name.split('@').next().unwrap().to_owned(), words[0].to_owned()))
    };
    text.lines().filter_map(row).collect()
}

fn libc_symbols() -> Vec<(String, String)> {
    let places = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
    symbols(places.iter().map(Path::new).find(|p| p.exists()).expect("no glibc"))
}

fn exported() -> BTreeSet<String> {
    symbols(&filter()).into_iter().map(|(name, _)| name).collect()
}

/// `reason: name name …`, a line for each reason.
fn left_to_libc() -> BTreeMap<String, String> {
    let lines = include_str!("left_to_libc.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let each = lines.flat_map(|line| {
        let (reason, names) = line.split_once(": ").unwrap_or_else(|| panic!("{line}: no reason"));
        names.split(' ').map(|name| (name.to_owned(), reason.to_owned()))
    });
    each.collect()
}

/// The declarations in the C library's headers, without the preprocessor's directives.
fn declarations() -> String {
    let folders = ["/usr/include/x86_64-linux-gnu/sys", "/usr/include/sys"];
    let mut source = String::from("#define _GNU_SOURCE 1\n#define _FORTIFY_SOURCE 2\n");
    let top = [
        "aio", "dirent", "fcntl", "grp", "mqueue", "netdb", "poll", "pty", "pwd", "resolv", "spawn", "stdio",
        "stdlib", "syslog", "termios", "unistd", "utmp", "wchar",
    ];
    for name in top {
        source.push_str(&format!("#if __has_include(<{name}.h>)\n#include <{name}.h>\n#endif\n"));
    }
    // Not for programs, or not beside the others.
    let left_out = ["debugreg.h", "elf.h", "kd.h", "perm.h", "ultrasound.h", "vm86.h"];
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        for name in names.iter().filter(|n| n.ends_with(".h") && !left_out.contains(&n.as_str())) {
            source.push_str(&format!("#include <sys/{name}>\n"));
        }
    }
    let mut compiler = Command::new("gcc");
    compiler.args(["-E", "-P", "-O2", "-x", "c", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = compiler.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the headers cannot be read");
    String::from_utf8(output.stdout).unwrap()
}

/// Functions with a parameter that names a descriptor, or is an array of what poll and pipe take.
fn with_descriptors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for declaration in text.split(';').filter(|d| d.contains("extern")) {
        let declaration = declaration.rsplit("extern").next().unwrap().replace('\n', " ");
        let Some((head, parameters)) = declaration.split_once('(') else { continue };
        let name =
            head.trim_end().split(|c: char| !c.is_alphanumeric() && c != '_').next_back().unwrap_or("");
        let parameters = parameters.split("__attribute__").next().unwrap();
        let descriptor = |parameter: &str| {
            let parameter = parameter.trim().trim_end_matches(')').trim_end();
            let word = parameter.rsplit([' ', '*']).next().unwrap_or("").trim_start_matches('_');
            let named =
                ["fd", "fildes", "filedes", "sock"].iter().any(|part| word.contains(part)) || word == "s";
            parameter.contains("struct pollfd") || (parameter.starts_with("int ") && named)
        };
        if !name.is_empty() && parameters.split(',').any(descriptor) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// Functions of later C libraries than this one may be.
const NEWER: [&str; 5] = [
    "pidfd_getpid",
    "pidfd_spawn",
    "posix_spawn_file_actions_addchdir",
    "posix_spawn_file_actions_addfchdir",
    "pidfd_spawnp",
];

/// Functions of liburing, which are refused.
const RINGS: [&str; 6] = [
    "io_uring_get_probe",
    "io_uring_queue_init",
    "io_uring_queue_init_mem",
    "io_uring_queue_init_params",
    "io_uring_queue_init_try_nosqarr",
    "io_uring_setup",
];

#[test]
fn every_name_of_an_exported_function_is_exported() {
    let (there, ours) = (libc_symbols(), exported());
    let mut missing = BTreeSet::new();
    let taken: BTreeSet<&String> = there.iter().filter(|(n, _)| ours.contains(n)).map(|(_, at)| at).collect();
    for (name, address) in &there {
        let variants =
            [name.strip_suffix("64"), name.strip_prefix("__").and_then(|n| n.strip_suffix("_chk"))];
        let of_ours = taken.contains(address) || variants.into_iter().flatten().any(|n| ours.contains(n));
        if of_ours && !ours.contains(name) {
            missing.insert(name);
        }
    }
    assert!(missing.is_empty(), "also known as: {missing:?}");
    let names: BTreeSet<&String> = there.iter().map(|(name, _)| name).collect();
    let known = |name: &&String| {
        names.contains(name) || NEWER.contains(&name.as_str()) || RINGS.contains(&name.as_str())
    };
    let strange: Vec<_> = ours.iter().filter(|name| !known(name)).collect();
    assert!(
        strange.is_empty(),
        "exported into programs, and no function of the C library or liburing: {strange:?}"
    );
}

#[test]
fn every_function_with_a_descriptor_is_taken_over_or_left_for_a_reason() {
    let names: BTreeSet<String> = libc_symbols().into_iter().map(|(name, _)| name).collect();
    let (ours, left, declared) = (exported(), left_to_libc(), with_descriptors(&declarations()));
    assert!(declared.len() > 150, "the headers were not understood: {declared:?}");
    for name in ["read", "sendmsg", "epoll_ctl", "splice", "poll", "__read_chk"] {
        assert!(declared.contains(name), "{name} was not found in the headers");
    }
    let here: BTreeSet<_> = declared.intersection(&names).collect();
    let open: Vec<_> = here.iter().filter(|n| !ours.contains(**n) && !left.contains_key(**n)).collect();
    assert!(open.is_empty(), "neither exported nor in left_to_libc.txt: {open:?}");
    let both: Vec<_> = left.keys().filter(|n| ours.contains(*n)).collect();
    assert!(both.is_empty(), "exported, and listed as left to the C library: {both:?}");
    let newer = |name: &&String| NEWER.contains(&name.as_str());
    let unknown: Vec<_> = left.keys().filter(|n| !names.contains(*n) && !newer(n)).collect();
    assert!(unknown.is_empty(), "no functions of the C library: {unknown:?}");
}
