//! Builds modules from source as their authors would: Rust for wasm32-unknown-unknown, C with clang and
//! wasm-ld.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `csp-sandbox`; tests of other crates use this file too.
pub fn crate_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../libcsp/sandbox"))
}

fn out_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn rustc() -> String {
    std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned())
}

fn sysroot() -> PathBuf {
    let output = Command::new(rustc()).args(["--print", "sysroot"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().into()
}

const TARGET: &str = "wasm32-unknown-unknown";

/// Whether the toolchain has the target, or could get it.
pub fn has_target() -> bool {
    let has = || sysroot().join("lib/rustlib").join(TARGET).exists();
    if !has() {
        _ = Command::new("rustup").args(["target", "add", TARGET]).output();
    }
    if !has() {
        csp_support::skip(format_args!("the {TARGET} target is not installed and cannot be fetched"));
    }
    has()
}

/// Builds a module of Rust, whose memory may grow to so many bytes.
pub fn rust(source: &Path, memory_max: u32) -> Vec<u8> {
    let dir = out_dir(source.file_stem().unwrap().to_str().unwrap());
    let (guest, module) = (dir.join("libcsp_guest.rlib"), dir.join("module.wasm"));
    let rustc = |kind: &str, name: &str, from: &Path, to: &Path| {
        let mut command = Command::new(rustc());
        command.args(["--edition", "2024", "--target", TARGET, "-C", "opt-level=2", "-C", "panic=abort"]);
        command.args(["--crate-type", kind, "--crate-name", name, "-o"]).arg(to).arg(from);
        command
    };
    run(&mut rustc("rlib", "csp_guest", &crate_dir().join("guest/src/lib.rs"), &guest));
    let mut command = rustc("cdylib", "module", source, &module);
    command.arg("--extern").arg(format!("csp_guest={}", guest.display()));
    let link = ["-C", "link-arg=-zstack-size=16384", "-C", &format!("link-arg=--max-memory={memory_max}")];
    run(command.args(link).args(["-C", "strip=symbols"]));
    std::fs::read(module).unwrap()
}

/// Builds a module of C, whose memory may grow to so many bytes. The linker is wasm-ld of the package lld, or
/// the same one as it comes with Rust.
pub fn c(source: &Path, memory_max: u32) -> Option<Vec<u8>> {
    if !csp_support::installed("clang", "clang") {
        return None;
    }
    let dir = out_dir(source.file_stem().unwrap().to_str().unwrap());
    let (object, module) = (dir.join("module.o"), dir.join("module.wasm"));
    let mut clang = Command::new("clang");
    clang.args([
        "--target=wasm32",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-nostdlib",
        "-ffreestanding",
        "-c",
        "-I",
    ]);
    run(clang.arg(crate_dir().join("include")).arg("-o").arg(&object).arg(source));
    let mut link = match csp_support::has("wasm-ld") {
        true => Command::new("wasm-ld"),
        false => {
            let host =
                sysroot().join("lib/rustlib").join(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
            let mut link = Command::new(host.join("bin/rust-lld"));
            link.args(["-flavor", "wasm"]);
            link
        }
    };
    let bound = format!("--max-memory={memory_max}");
    run(link.args(["--no-entry", "-z", "stack-size=16384", &bound, "-o"]).arg(&module).arg(object));
    Some(std::fs::read(module).unwrap())
}
