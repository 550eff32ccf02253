//! h2spec, all of its cases, with TLS and by prior knowledge.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, bail};
use csp_cluster::VIP;

use super::stage::{SECURE, Stage, WEB};

/// Cases that may fail, each with its reason: lines `SECTION | DESCRIPTION | RUN | REASON`.
const MAY_DIFFER: &str = include_str!("h2spec.txt");

/// The result of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Skipped,
    Failed(String),
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    tag.split_once(&format!(" {name}=\""))?.1.split('"').next()
}

/// Reads the report: each case is on lines of its own.
fn outcomes(report: &str) -> BTreeMap<(String, String), Outcome> {
    let mut all = BTreeMap::new();
    for part in report.split("<testcase").skip(1) {
        let (tag, rest) = part.split_once('>').unwrap_or((part, ""));
        let body = rest.split("</testcase>").next().unwrap_or_default();
        let case = |name| attribute(tag, name).unwrap_or_default().to_owned();
        let outcome = match () {
            () if body.contains("<failure") || body.contains("<error") => {
                Outcome::Failed(body.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            () if body.contains("<skipped") => Outcome::Skipped,
            () => Outcome::Passed,
        };
        all.insert((case("package"), case("classname")), outcome);
    }
    all
}

/// Whether nginx has answered a request that had not ended: the stream is closed, and h2spec, which keeps it
/// open for what it sends next, sees the end of the response instead of an error. With Node it does not.
fn is_answered(outcome: &Outcome, run: &str) -> bool {
    let ends = |text: &str| text.contains("DATA Frame (") && text.contains("flags:0x01");
    run.contains("nginx") && matches!(outcome, Outcome::Failed(text) if ends(text))
}

/// Whether a case may fail in a run of this name.
fn may_differ(case: &(String, String), run: &str) -> bool {
    let lines = MAY_DIFFER.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.into_iter().any(|line| {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [section, description, which, _reason] = columns[..] else { panic!("h2spec.txt: {line}") };
        (section, description) == (&*case.0, &*case.1) && (which == "all" || run.contains(which))
    })
}

fn one(stage: &Stage, name: &str, options: &[&str]) -> Result<String> {
    let report = stage.path(&format!("{name}.xml"));
    let program = std::env::var("CSP_H2SPEC").context("CSP_H2SPEC: the path of h2spec")?;
    let arguments = [&["-S", "-h", VIP, "-j", &report][..], options].concat();
    let output = stage.output(&program, &arguments)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary =
        said.lines().rev().find(|line| line.contains(" tests, ")).unwrap_or("no summary").to_owned();
    println!("  {name}: {summary}");
    let outcomes = outcomes(
        &fs::read_to_string(&report)
            .with_context(|| format!("{said}{}", String::from_utf8_lossy(&output.stderr)))?,
    );
    let (mut faults, mut excused) = (Vec::new(), 0);
    for (case, outcome) in outcomes.iter().filter(|(_, outcome)| **outcome != Outcome::Passed) {
        match may_differ(case, name) || is_answered(outcome, name) {
            true => excused += 1,
            false => faults.push(format!("{} | {} | {outcome:?}", case.0, case.1)),
        }
    }
    if outcomes.len() < 100 || !faults.is_empty() {
        bail!("{summary}\n{}", faults.join("\n"));
    }
    Ok(format!("{summary}; {excused} may differ"))
}

/// Both ways, to nginx, which answers before a request has ended, and to Node, which answers thereafter.
pub fn run(stage: &mut Stage) {
    let (secure, web) = (SECURE.to_string(), WEB.to_string());
    for (way, options) in [("tls", vec!["-p", &secure, "-t", "-k"]), ("prior-knowledge", vec!["-p", &web])] {
        for (member, path) in [("nginx", "/1KiB"), ("node", "/node")] {
            let name = format!("h2spec-{way}-{member}");
            let result = one(stage, &name, &[&options[..], &["-P", path]].concat());
            stage.row(name, result);
        }
    }
}
