//! The C programs of `tests/c`: as they are, and under the address and undefined-behaviour sanitizers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::Command;

use common::{compile, here, run, scratch};

/// Runs a program of `tests/c` with a folder of its own for channels.
fn program(name: &str, arguments: &[&str], flags: &[&str]) {
    let source = here().join(format!("tests/c/{name}.c"));
    let kind = if flags.is_empty() { "plain" } else { "sanitized" };
    let program = compile("gcc", &format!("{name}-{kind}"), &[&source], &[&["-std=c11"], flags].concat());
    let channels = std::env::temp_dir().join(format!("csp-capi-{name}-{kind}-{}", std::process::id()));
    let mut command = Command::new("timeout");
    command.arg("120").arg(&program).args(arguments);
    command.env("CSP_CHANNELS", &channels).env("CSP_AGENT", scratch().join("no-agent.sock"));
    let output = run(&mut command);
    fs::remove_dir_all(channels).unwrap();
    fs::remove_file(program).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("{name}: good")), "{text}");
}

const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn messages() {
    program("messages", &[], &[]);
}

#[test]
fn messages_sanitized() {
    program("messages", &[], &SANITIZED);
}

#[test]
fn every_misuse_has_its_code() {
    program("misuse", &[], &[]);
}

#[test]
fn every_misuse_has_its_code_sanitized() {
    program("misuse", &[], &SANITIZED);
}

#[test]
fn a_thousand_contexts_leave_nothing() {
    program("leaks", &["1000"], &[]);
}

#[test]
fn contexts_leave_nothing_sanitized() {
    program("leaks", &["100", "sanitized"], &SANITIZED);
}

/// Seeded storms of random calls. CSP_SEEDS=1 CSP_STORM=42 replays seed 42.
#[test]
fn random_calls_lose_no_buffer_and_no_order() {
    let seeds = std::env::var("CSP_SEEDS").ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(20).min(100);
    let first = std::env::var("CSP_STORM").ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(1);
    for seed in first..first + seeds {
        program("storm", &[&seed.to_string(), "20000"], &[]);
    }
    program("storm", &[&first.to_string(), "40000"], &SANITIZED);
}

#[test]
fn the_examples_build_by_both_compilers_and_messages_go_back_and_forth() {
    for compiler in ["gcc", "clang"] {
        for example in ["echo_server", "http_server", "pingpong"] {
            let source = here().join(format!("examples/{example}.c"));
            let built = compile(compiler, example, &[&source], &["-std=c11"]);
            if example != "pingpong" {
                continue;
            }
            let channels = std::env::temp_dir().join(format!("csp-capi-ping-{}", std::process::id()));
            for arguments in [["poll", "copy"], ["poll", "inplace"], ["wait", "copy"]] {
                let mut command = Command::new("timeout");
                command
                    .arg("60")
                    .arg(&built)
                    .args(arguments)
                    .args(["64", "200"])
                    .env("CSP_CHANNELS", &channels);
                let text = String::from_utf8(run(&mut command).stdout).unwrap();
                assert!(text.contains("half round trip"), "{text}");
            }
            fs::remove_dir_all(channels).unwrap();
        }
    }
}

/// The first program of docs/libcsp.md does what the page describes.
#[test]
fn the_first_program_prints_hello() {
    let page = fs::read_to_string(here().join("../../docs/libcsp.md")).unwrap();
    let code = page.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let source = scratch().join("first.c");
    fs::write(&source, code).unwrap();
    let program = compile("gcc", "first", &[&source], &["-std=c99"]);
    let channels = std::env::temp_dir().join(format!("csp-capi-first-{}", std::process::id()));
    let output = run(Command::new("timeout").arg("20").arg(program).env("CSP_CHANNELS", &channels));
    fs::remove_dir_all(channels).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\n");
}
