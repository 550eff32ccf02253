//! Trials, with this program in the place of a daemon's: whatever the work does to its process, the caller
//! gets an error that says what it was.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use csp_daemon::trial::{self, Bounds, Trial};

/// What a compiler may do with a module.
fn work(kind: &str, bytes: &[u8]) -> Result<(), String> {
    match kind {
        "works" => Ok(()),
        "refuses" => Err(format!("the module has {} bytes", bytes.len())),
        "panics" => panic!("a rule of the compiler\nis broken"),
        "aborts" => std::process::abort(),
        "loops" => loop {
            std::hint::spin_loop();
        },
        "sleeps" => loop {
            std::thread::park();
        },
        "recurses" => Err(recurse(bytes, 0).to_string()),
        "allocates" => {
            let mut kept = Vec::new();
            loop {
                kept.push(vec![1u8; 1 << 20]);
                std::hint::black_box(&mut kept);
            }
        }
        _ => Err(format!("{kind} is unknown")),
    }
}

fn recurse(bytes: &[u8], depth: u64) -> u64 {
    let kept = std::hint::black_box([depth; 64]);
    // Never reached: the stack ends before.
    let below = if depth == u64::MAX { 0 } else { recurse(bytes, depth + 1) };
    below + kept[bytes.len() % 64]
}

fn main() -> ExitCode {
    if let Some(code) = trial::child(work) {
        return code;
    }
    let bounds = Bounds { memory_max: 64 << 20, processor_s_max: 1, time_max: Duration::from_secs(60) };
    let this = Path::new("/proc/self/exe");
    let run = |kind: &str| Trial::of(this, bounds).run(kind, &[7; 100_000]);
    assert_eq!(run("works"), Ok(()));
    let check = |kind: &str, expected: &[&str]| {
        let error = run(kind).expect_err(kind);
        assert!(expected.iter().all(|part| error.contains(part)), "{kind}: {error}");
        assert!(!error.contains('\n'), "{kind}: {error}");
        println!("{kind}: {error}");
    };
    check("refuses", &["the module has 100000 bytes"]);
    check("panics", &["the compiler failed on the module", "a rule of the compiler is broken"]);
    check("aborts", &["the compiler failed on the module (signal: 6"]);
    check("loops", &["the compiler needed more than 1 s of processor time for the module"]);
    check("recurses", &["the compiler failed on the module", "overflowed its stack"]);
    check("allocates", &["the compiler needed more than 64 MiB of memory for the module"]);
    // Real time is the bound here: a process that waits uses no processor time.
    let short = Bounds { time_max: Duration::from_millis(200), ..bounds };
    let error = Trial::of(this, short).run("sleeps", b"").expect_err("it ends never");
    assert_eq!(error, "the compiler had not finished after 200ms");
    // A program that knows nothing of trials has not tried anything, whatever its exit code.
    let error = Trial::of(Path::new("/bin/true"), bounds).run("works", b"").expect_err("it compiles nothing");
    assert!(error.starts_with("the compiler failed on the module (exit status: 0)"), "{error}");
    let error = Trial::of(Path::new("/nowhere"), bounds).run("works", b"").expect_err("there is no program");
    assert!(error.starts_with("the compiler's process could not be started: "), "{error}");
    ExitCode::SUCCESS
}
