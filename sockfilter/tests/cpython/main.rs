//! CPython's own test suite, as Debian ships it, in three modes: without the filter; with the filter and
//! nothing accelerated; with everything on loopback accelerated, application to application. Prints a table
//! and every difference.
//!
//! `make test-cpython [CPYTHON="[MODULE ...] [--only PATTERN] [--keep FOLDER]"]`. Known differences are
//! listed in `differences-VERSION.txt` with their reasons; the exit code is 1 if any other difference occurs,
//! or a listed one does not.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "test code owns clocks and sockets"
)]

mod differences;
mod outcomes;
#[path = "../accelerated/proxy.rs"]
mod proxy;
mod report;
#[path = "../accelerated/stage.rs"]
mod stage;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use differences::Known;
use outcomes::Run;
use report::Comparison;
use stage::Stage;

/// The versions of Debian 12 and 13.
const VERSIONS: [&str; 2] = ["3.11", "3.13"];

/// The modules that use sockets, waits, descriptors and processes.
const MODULES: [&str; 11] = [
    "test_socket",
    "test_selectors",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_asyncio",
    "test_socketserver",
    "test_ftplib",
    "test_httplib",
    "test_subprocess",
    "test_multiprocessing_fork",
];

/// Time limit of a module; regrtest then ends it and prints the stack of every thread.
const MODULE_MAY_TAKE: Duration = Duration::from_secs(600);
/// Where it does not.
const KILLED_AFTER: Duration = Duration::from_secs(660);

/// How a module is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Without the filter.
    Plain,
    /// With the filter, attached to an agent; every socket stays in the kernel.
    Kernel,
    /// With the filter; sockets on loopback are accelerated.
    Loopback,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Plain, Mode::Kernel, Mode::Loopback];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Kernel => "kernel",
            Mode::Loopback => "loopback",
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let Some(version) = VERSIONS.into_iter().find(|version| has_suite(version)) else {
        println!(
            "SKIPPED test-cpython: neither of libpython3.11-testsuite and libpython3.13-testsuite is installed"
        );
        return ExitCode::SUCCESS;
    };
    let file = format!("tests/cpython/differences-{version}.txt");
    let known = Known::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    let python = python(version);
    let compared: Vec<_> = options.modules.iter().map(|m| compare(&python, m, &known, &options)).collect();
    report::print(&compared, &known)
}

/// Returns Debian's program of a version; another may come first in PATH.
fn python(version: &str) -> String {
    format!("/usr/bin/python{version}")
}

/// Returns whether a version is installed with its test suite.
fn has_suite(version: &str) -> bool {
    let mut command = Command::new(python(version));
    command.args(["-c", "import test.test_socket"]).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

struct Options {
    modules: Vec<String>,
    /// Where what the modules print is kept.
    keep: Option<PathBuf>,
    /// Only tests whose names match this pattern of the shell.
    only: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Options {
        let mut options = Options { modules: Vec::new(), keep: None, only: None };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--keep" => options.keep = Some(value().into()),
                "--only" => options.only = Some(value()),
                _ if argument.starts_with("test_") => options.modules.push(argument),
                _ => panic!("{argument}: expected [test_MODULE ...] [--keep FOLDER] [--only PATTERN]"),
            }
        }
        if options.modules.is_empty() {
            options.modules = MODULES.map(str::to_owned).to_vec();
        }
        options
    }
}

fn compare(python: &str, module: &str, known: &Known, options: &Options) -> Comparison {
    let runs = Mode::ALL.map(|mode| {
        eprint!("{module}, {}: ", mode.name());
        let (run, output) = run(python, module, mode, known, options.only.as_deref());
        eprintln!("{}", run.summary());
        if let Some(folder) = &options.keep {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(format!("{module}.{}.log", mode.name())), output).unwrap();
        }
        run
    });
    Comparison::new(module, runs, known, options.only.is_some())
}

fn run(python: &str, module: &str, mode: Mode, known: &Known, only: Option<&str>) -> (Run, String) {
    let mut stage = if mode == Mode::Loopback { Stage::loopback() } else { Stage::passive() };
    let mut command = stage.command(python);
    if mode == Mode::Plain {
        command.env_remove("LD_PRELOAD").env_remove("CSP_AGENT");
    }
    command.args(["-m", "test", "-v", "--timeout"]).arg(MODULE_MAY_TAKE.as_secs().to_string());
    for pattern in known.not_run(module) {
        command.args(["-i", pattern]);
    }
    if let Some(pattern) = only {
        command.args(["-m", pattern]);
    }
    // The module asks for it, though it stays on loopback.
    if module == "test_socketserver" {
        command.args(["-u", "network"]);
    }
    command.arg(module).process_group(0);
    let child = stage.start(command);
    let (status, output) = stage.wait_at_most(child, KILLED_AFTER);
    (Run::parse(status, &output, stage.proxy.pairs_asked()), output)
}
