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
