//! eBPF objects of C programs, for tests of supplied ones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Compiles a program that includes `csp_xdp.h`, as docs/plugins.md says. `root` is the workspace's folder.
///
/// # Panics
/// clang refuses it.
#[must_use]
pub fn bpf_object(root: &Path, source: &Path) -> Vec<u8> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let object = std::env::temp_dir().join(format!("csp-object-{}-{number}.o", std::process::id()));
    let triplet = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let include = format!("-I{}", root.join("network-node/xdp/include").display());
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(clang)
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
            &triplet,
            &include,
        ])
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "clang did not compile {}", source.display());
    let bytes = std::fs::read(&object).unwrap_or_default();
    let _ = std::fs::remove_file(object);
    bytes
}

/// The same of a program's text behind the header.
///
/// # Panics
/// As above.
#[must_use]
pub fn bpf_object_of(root: &Path, text: &str) -> Vec<u8> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let source: PathBuf = std::env::temp_dir().join(format!("csp-object-{}-{number}.c", std::process::id()));
    let license = "char module_license[] SEC(\"license\") = \"Dual MIT/GPL\";\n";
    let written = std::fs::write(&source, format!("#include \"csp_xdp.h\"\n{text}\n{license}"));
    assert!(written.is_ok(), "{}: cannot be written", source.display());
    let bytes = bpf_object(root, &source);
    let _ = std::fs::remove_file(source);
    bytes
}
