//! One small C program per behaviour of sockets, run plain and accelerated: the outputs must be equal.
//!
//! A program in `programs/` is its own server and client on loopback. Lines of this form in it state known
//! differences and their reasons, and document them:
//!
//! ```text
//! // differs: <plain line> | <accelerated line> | <reason>
//! // not accelerated: <reason>
//! ```
//!
//! Programs in which the compiler finds lengths to check are run once more with the C library's checks.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_types,
    reason = "test code owns clocks and sockets"
)]

#[path = "../accelerated/proxy.rs"]
mod proxy;
#[path = "../accelerated/stage.rs"]
mod stage;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use stage::Stage;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/programs")
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Most of a program's time is waiting.
    arguments.test_threads.get_or_insert(8);
    let sources = fs::read_dir(programs()).unwrap().map(|e| e.unwrap().path());
    let mut sources: Vec<_> = sources.filter(|p| p.extension().is_some_and(|e| e == "c")).collect();
    sources.sort();
    let name = |source: &Path| source.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut trials = Vec::new();
    for source in sources {
        let name = name(&source);
        if FORTIFIED.contains(&name.as_str()) {
            let source = source.clone();
            trials.push(Trial::test(format!("{name}_fortified"), move || check(&source, FORTIFY)));
        }
        if name != "fortified" {
            trials.push(Trial::test(name, move || check(&source, &["-O1"])));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Programs that call functions whose names end in `_chk` when they are compiled so.
const FORTIFIED: [&str; 3] = ["close_polled", "fortified", "print_to_socket"];
const FORTIFY: &[&str] = &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wno-unused-result"];

/// A known difference.
struct Difference {
    plain: String,
    accelerated: String,
}

fn differences(text: &str) -> Vec<Difference> {
    let lines = text.lines().filter_map(|l| l.trim().strip_prefix("// differs: "));
    let one = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").collect();
        assert_eq!(parts.len(), 3, "{line}: plain | accelerated | reason");
        Difference { plain: parts[0].to_owned(), accelerated: parts[1].to_owned() }
    };
    lines.map(one).collect()
}

fn compile(source: &Path, program: &Path, flags: &[&str]) -> Result<(), Failed> {
    let mut command = Command::new("gcc");
    command.args(["-Wall", "-Wno-unused", "-pthread"]).args(flags).arg("-o").arg(program).arg(source);
    let output = command.output().map_err(|e| Failed::from(format!("gcc: {e}")))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).as_ref().into())
    }
}

fn check(source: &Path, flags: &[&str]) -> Result<(), Failed> {
    let text = fs::read_to_string(source)?;
    let mut stage = Stage::loopback();
    let program = stage.folder.join("program");
    compile(source, &program, flags)?;
    let plain = Command::new(&program)
        .current_dir(&stage.folder)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()?;
    if plain.status.signal() == Some(libc::SIGALRM) {
        return Err("the plain run did not end in time".into());
    }
    let mut expected = String::from_utf8_lossy(&plain.stdout).into_owned();
    for difference in differences(&text) {
        let line = format!("{}\n", difference.plain);
        if !expected.contains(&line) {
            return Err(format!("the plain run does not print {line:?}:\n{expected}").into());
        }
        expected = expected.replace(&line, &format!("{}\n", difference.accelerated));
    }
    let command = stage.command(program.to_str().unwrap());
    let child = stage.start(command);
    let (status, found) = stage.wait_status(child);
    if found != expected || status != plain.status {
        let plain = plain.status;
        return Err(format!("{plain}, expected:\n{expected}\naccelerated, {status}:\n{found}").into());
    }
    if stage.proxy.pairs_asked() == 0 && !text.contains("// not accelerated: ") {
        return Err("the accelerated run was not accelerated".into());
    }
    Ok(())
}
