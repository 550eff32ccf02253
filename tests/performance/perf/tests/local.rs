//! The command, as a user runs it, on one host.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::process::Command;

fn csp_perf(words: &str) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_csp-perf")).args(words.split(' ')).output().unwrap()
}

#[test]
fn every_test_is_measured_over_every_transport_and_reported_as_json() {
    let words = "local shm --vs unix,tcp --test latency,transaction,bandwidth --sizes 1,16Ki --wait block \
                 --seconds 0.02 --output json";
    let output = csp_perf(words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let records: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let records = records.as_array().unwrap();
    assert_eq!(records.len(), 3 * 3 * 2);
    for record in records {
        let number = |name: &str| record[name].as_f64().unwrap();
        assert!(number("messages") > 0.0 && number("bytes_per_second") > 0.0, "{record}");
        assert!(number("client_cpu_ns") > 0.0 && number("server_cpu_ns") > 0.0, "{record}");
        let timed = record["test"] == "transactions";
        assert_eq!(record["half_round_trip_ns"].as_f64().is_some_and(|ns| ns > 0.0), timed, "{record}");
    }
}

#[test]
fn what_is_impossible_is_reported_with_a_code_of_its_own() {
    for (words, code, expected) in [
        ("local carrier-pigeon", 1, "allowed are shm, vi-tcp, ucx, tcp, unix"),
        ("run tcp:127.0.0.1:1", 1, "cannot connect to tcp:127.0.0.1:1"),
        ("run nowhere", 2, "allowed are shm:PATH"),
        ("local shm --sizes 65Ki", 1, "the longest message has 65536"),
    ] {
        let output = csp_perf(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(expected), "{words}: {text}");
    }
}
