//! The C programs of `tests/c`: as they are, and under the address and undefined-behaviour sanitizers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::Command;

use common::{compile, here, run, scratch};

/// Runs a program of `tests/c` whose channels have a folder of their own.
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

/// The first program of docs/libcsp.md does what the page says.
#[test]
fn the_first_program_says_hello() {
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
