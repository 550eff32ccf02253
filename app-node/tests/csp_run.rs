//! csp-run as users run it: its output and its exit codes. The C library's libm takes the place of the
//! filter: any library that can be preloaded will do, and none of these programs uses sockets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LIBRARY: &str = "/lib/x86_64-linux-gnu/libm.so.6";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("csp-run-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn copy_of(&self, program: &str, mode: u32) -> PathBuf {
        let path = self.0.join("copy");
        // Copied by another process: if this one had the copy open for writing, a child that another test
        // starts meanwhile would inherit the descriptor until it executes, and executing the copy would fail
        // (ETXTBSY).
        assert!(Command::new("cp").arg(program).arg(&path).status().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &[&str], program: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csp-run"));
    command.env("CSP_SOCKFILTER", LIBRARY).env_remove("CSP_MODE").args(arguments).arg(program);
    command.output().unwrap()
}

/// Returns the exit code and the output on both streams.
fn output(arguments: &[&str], program: &Path) -> (Option<i32>, String) {
    let output = run(arguments, program);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_program_that_can_be_accelerated_is_reported_and_run() {
    let program = Path::new("/bin/true");
    assert_eq!(output(&["--check"], program), (Some(0), "/bin/true can be accelerated\n".to_owned()));
    for mode in ["on", "off", "strict"] {
        assert_eq!(output(&["--mode", mode], program), (Some(0), String::new()), "{mode}");
    }
    assert_eq!(run(&["sh", "-c", "exit 7"], Path::new("")).status.code(), Some(7), "the program's own");
}

/// A program that cannot be accelerated is reported with the reason, runs nevertheless, and is refused in
/// strict mode.
fn cannot(program: &Path, why: &str) {
    let (code, text) = output(&["--check"], program);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.starts_with(program.to_str().unwrap()) && text.contains(why), "{text}");
    assert_eq!(output(&["--mode", "off"], program), (Some(0), String::new()));
    assert_eq!(output(&["--mode", "on"], program).0, Some(0));
    let (code, text) = output(&["--mode", "strict"], program);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.starts_with("csp-run: ") && text.contains(why), "{text}");
}

#[test]
fn a_static_program_is_reported() {
    let folder = Folder::new("static");
    let (source, program) = (folder.0.join("static.c"), folder.0.join("static"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let built = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status().unwrap();
    assert!(built.success());
    cannot(&program, "static");
}

#[test]
fn a_setuid_program_is_reported() {
    let folder = Folder::new("setuid");
    cannot(&folder.copy_of("/bin/true", 0o4755), "set-user-id");
}

#[test]
fn a_program_with_capabilities_is_reported() {
    let folder = Folder::new("capabilities");
    let program = folder.copy_of("/bin/true", 0o755);
    // vfs_cap_data of revision 2, effective, CAP_NET_BIND_SERVICE (capabilities(7)).
    let script = "import os, struct, sys
os.setxattr(sys.argv[1], 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))";
    let set = Command::new("/usr/bin/python3").args(["-c", script]).arg(&program).status().unwrap();
    assert!(set.success(), "only root may set capabilities");
    cannot(&program, "capabilities");
}

/// Compiles a C program in the folder.
fn compiled(folder: &Folder, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (from, program) = (folder.0.join(format!("{name}.c")), folder.0.join(name));
    fs::write(&from, source).unwrap();
    let built = Command::new("cc").arg("-o").args([&program, &from]).args(flags).status().unwrap();
    assert!(built.success());
    program
}

#[test]
fn a_program_of_another_c_library_is_reported_and_runs_without_the_filter() {
    let folder = Folder::new("musl");
    // glibc's loader under musl's name: the program runs on any machine.
    let loader = folder.0.join("ld-musl-x86_64.so.1");
    std::os::unix::fs::symlink("/lib64/ld-linux-x86-64.so.2", &loader).unwrap();
    let source = "#include <stdlib.h>\nint main(void) { return getenv(\"LD_PRELOAD\") != 0; }";
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    cannot(&compiled(&folder, "program", source, &[&flag]), "another C library");
    let plain = compiled(&folder, "plain", source, &[]);
    assert_eq!(output(&["--mode", "on"], &plain).0, Some(1), "others are preloaded");
}

#[test]
fn a_program_that_creates_rings_in_its_own_code_has_them_refused() {
    let folder = Folder::new("rings");
    let source = "#include <stdlib.h>\n#include <string.h>
        long ring(void *p) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(425), \"D\"(8L), \"S\"(p) : \"rcx\", \"r11\", \"memory\"); return r; }
        int main(int n, char **a) { char *is = getenv(\"CSP_IO_URING\"); if (n > 9) return ring(a); return !is || strcmp(is, \"refuse\"); }";
    let program = compiled(&folder, "program", source, &["-O1"]);
    let (code, text) = output(&["--check"], &program);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("io_uring_setup"), "{text}");
    for (mode, code) in [("on", 0), ("strict", 0), ("off", 1)] {
        assert_eq!(output(&["--mode", mode], &program), (Some(code), String::new()), "{mode}");
    }
}

#[test]
fn what_is_missing_or_wrong_has_its_exit_code() {
    assert_eq!(output(&[], Path::new("/no/such/program")).0, Some(127));
    assert_eq!(output(&[], Path::new("/etc/passwd")).0, Some(126));
    assert_eq!(output(&["--mode", "sometimes"], Path::new("/bin/true")).0, Some(64));
    let mut command = Command::new(env!("CARGO_BIN_EXE_csp-run"));
    let output = command.env("CSP_SOCKFILTER", "/no/such/filter.so").arg("/bin/true").output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/no/such/filter.so"));
}
