//! testssl: protocols, ciphers, server defaults, known weaknesses, handshakes as browsers and libraries do.

use std::fs;

use anyhow::{Context as _, Result, bail};
use csp_cluster::VIP;
use serde_json::Value;

use super::stage::{SECURE, Stage};

/// Findings that may be: lines `ID | FINDING | REASON`.
const MAY_DIFFER: &str = include_str!("testssl.txt");
/// What a report has at least, in checks.
const CHECKS: usize = 60;

fn may_differ(id: &str, finding: &str) -> bool {
    let lines = MAY_DIFFER.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.into_iter().any(|line| {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [known, text, _reason] = columns[..] else { panic!("testssl.txt: {line}") };
        known == id && finding.contains(text)
    })
}

fn one(stage: &Stage) -> Result<String> {
    let report = stage.path("testssl.json");
    let target = format!("https://{VIP}:{SECURE}/1KiB");
    // -p protocols, -s categories of ciphers, -f forward secrecy, -P preferences, -S defaults, -U weaknesses,
    // -c clients.
    let options = [
        "--quiet",
        "--color",
        "0",
        "--warnings",
        "off",
        "--nodns",
        "none",
        "-p",
        "-s",
        "-f",
        "-P",
        "-S",
        "-U",
        "-c",
    ];
    let said = stage.output("testssl", &[&options[..], &["--jsonfile", &report, &target]].concat())?;
    let text =
        fs::read_to_string(&report).with_context(|| String::from_utf8_lossy(&said.stdout).into_owned())?;
    let all: Vec<Value> = serde_json::from_str(&text).context("the report")?;
    let (mut well, mut excused, mut faults) = (0, 0, Vec::new());
    for found in &all {
        let column = |name| found[name].as_str().unwrap_or_default();
        let (id, severity, finding) = (column("id"), column("severity"), column("finding"));
        match severity {
            "OK" | "INFO" => well += 1,
            _ if may_differ(id, finding) => excused += 1,
            _ => faults.push(format!("{id} | {severity} | {finding}")),
        }
    }
    let connected = all.iter().filter(|found| {
        let column = |name| found[name].as_str().unwrap_or_default();
        column("id").starts_with("clientsimulation-") && column("finding").starts_with("TLSv1")
    });
    let summary = format!("{well} checks, {} clients connect, {excused} may differ", connected.count());
    println!("  testssl: {summary}");
    if well < CHECKS || !faults.is_empty() {
        bail!("{summary}\n{}", faults.join("\n"));
    }
    Ok(summary)
}

/// All checks.
pub fn run(stage: &mut Stage) {
    let result = one(stage);
    stage.row("testssl", result);
}
