//! Runs every script under `tcp/`, one test each.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the run

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};

/// Scripts that the engine does not pass yet: `<rfc>/<name>.pkt reason`.
const KNOWN_GAPS: &str = "known-gaps.txt";

fn main() {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tcp");
    let gaps = known_gaps(&root);
    let scripts = scripts(&root);
    let mut trials: Vec<Trial> = scripts
        .iter()
        .map(|(name, path)| {
            let (path, gap) = (path.clone(), gaps.get(name).cloned());
            Trial::test(name.clone(), move || play(&path, gap.as_deref()))
        })
        .collect();
    let unknown: Vec<String> = gaps.into_keys().filter(|name| !scripts.contains_key(name)).collect();
    trials.push(Trial::test(KNOWN_GAPS, move || match unknown.as_slice() {
        [] => Ok(()),
        unknown => Err(format!("these scripts do not exist: {}", unknown.join(", ")).into()),
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

fn play(path: &Path, gap: Option<&str>) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let place = path.display();
    let script = csp_conformance::parse(&text).map_err(|error| format!("{place}:{}: {error}", error.line))?;
    match (csp_conformance::run(&script), gap) {
        (Ok(timeline), None) => {
            if std::env::var_os("CSP_SHOW").is_some() {
                println!("{place}\n{timeline}");
            }
            Ok(())
        }
        (Ok(_), Some(reason)) => {
            Err(format!("{place} passes: remove it from {KNOWN_GAPS} (its reason was: {reason})").into())
        }
        (Err(_), Some(_)) => Ok(()),
        (Err(failure), None) => Err(format!("{place}:{}: {failure}", failure.line).into()),
    }
}

/// Returns every script by its name, `<rfc>/<name>.pkt`.
fn scripts(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for folder in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            assert!(name.ends_with(".pkt"), "{name} is no .pkt file");
            found.insert(name, path);
        }
    }
    found
}

fn known_gaps(root: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(root.join(KNOWN_GAPS)).unwrap();
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let gap = |line: &str| {
        let (name, reason) = line.split_once(' ').expect("a name and a reason");
        (name.to_owned(), reason.trim().to_owned())
    };
    lines.map(gap).collect()
}
