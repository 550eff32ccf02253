//! Requirements of tests: programs and privileges that a machine may lack.
//!
//! On a developer's machine a test whose requirement is missing prints a note and passes. CI sets
//! `CSP_NO_SKIP=1`; the test then fails, so that every test that CI reports as passed has run. A test that CI
//! can never run (it needs an RDMA device, or KVM) is `#[ignore]`d instead and has its own make target.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The environment variable that turns skips into failures.
const NO_SKIP: &str = "CSP_NO_SKIP";

/// Reports that the calling test does not run on this machine, for `reason`. The caller returns afterwards.
/// The line reaches standard error although the test passes: the harness holds back what `eprintln!` prints.
///
/// # Panics
/// When `CSP_NO_SKIP=1`.
#[track_caller]
pub fn skip(reason: impl Display) {
    assert!(!refused(std::env::var_os(NO_SKIP).as_deref()), "skipped, and {NO_SKIP}=1: {reason}");
    // Nothing is lost but the note when standard error is closed.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// Whether `program`, a path or a name on PATH, is installed; skips the calling test otherwise and names the
/// Debian `package` that has it.
///
/// # Panics
/// When the program is missing and `CSP_NO_SKIP=1`.
#[track_caller]
pub fn installed(program: &str, package: &str) -> bool {
    let found = has(program);
    if !found {
        skip(format_args!("{program} is not installed (Debian package {package})"));
    }
    found
}

/// Whether `program`, a path or a name on PATH, is installed.
#[must_use]
pub fn has(program: &str) -> bool {
    is_installed(program, std::env::var_os("PATH").as_deref())
}

/// Whether the test runs as root; skips it otherwise. `purpose` states why root is needed.
///
/// # Panics
/// When the user is not root and `CSP_NO_SKIP=1`.
#[track_caller]
pub fn is_root(purpose: &str) -> bool {
    let root = running_as_root();
    if !root {
        skip(format_args!("needs root: {purpose}"));
    }
    root
}

/// Whether the effective user is root.
#[must_use]
pub fn running_as_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn refused(no_skip: Option<&OsStr>) -> bool {
    no_skip.is_some_and(|value| !value.is_empty() && value != "0")
}

fn is_installed(program: &str, path: Option<&OsStr>) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    path.is_some_and(|path| std::env::split_paths(path).any(|folder| folder.join(program).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_set_variable_refuses_skips() {
        for (value, expected) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
            assert_eq!(refused(value.map(OsStr::new)), expected, "{value:?}");
        }
    }

    #[test]
    fn a_program_is_found_by_path_or_on_path() {
        let path = Some(OsStr::new("/nonexistent:/bin"));
        assert!(is_installed("/bin/sh", None) && is_installed("sh", path));
        assert!(!is_installed("/bin/no-such-program", path) && !is_installed("no-such-program", path));
        assert!(!is_installed("sh", None));
    }
}
