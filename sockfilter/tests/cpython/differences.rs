//! The known differences and their reasons: `differences-VERSION.txt`.

use std::fs;
use std::path::Path;

/// The file's lines.
///
/// ```text
/// # a comment
/// differs: MODULE Class.test | WAY | OUTCOME | reason
/// varies: MODULE Class.test | reason
/// not run: MODULE PATTERN | reason
/// ```
///
/// `differs`: the outcome of a test in that mode, where it differs from the outcome without the filter.
/// `varies`: its outcome is not the same at each run even without the filter. `not run`: left out in all
/// three modes.
#[derive(Debug, Default)]
pub struct Known {
    pub differences: Vec<Difference>,
    varying: Vec<(String, String)>,
    not_run: Vec<(String, String, String)>,
}

#[derive(Debug)]
pub struct Difference {
    pub module: String,
    pub test: String,
    pub mode: String,
    pub outcome: String,
    pub reason: String,
}

impl Known {
    pub fn read(file: &Path) -> Known {
        let mut known = Known::default();
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (kind, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}: no kind"));
            let parts: Vec<&str> = rest.split(" | ").collect();
            let (module, test) = parts[0].split_once(' ').unwrap_or_else(|| panic!("{line}: no test"));
            let (module, test) = (module.to_owned(), test.to_owned());
            match (kind, parts.as_slice()) {
                ("differs", [_, mode, outcome, reason]) => known.differences.push(Difference {
                    module,
                    test,
                    mode: (*mode).to_owned(),
                    outcome: (*outcome).to_owned(),
                    reason: (*reason).to_owned(),
                }),
                ("varies", [_, _]) => known.varying.push((module, test)),
                ("not run", [_, reason]) => known.not_run.push((module, test, (*reason).to_owned())),
                _ => panic!("{line}: see differences.rs for the form"),
            }
        }
        known
    }

    /// The patterns that a module is run without.
    pub fn not_run<'a>(&'a self, module: &'a str) -> impl Iterator<Item = &'a str> {
        self.not_run.iter().filter(move |n| n.0 == module).map(|n| n.1.as_str())
    }

    pub fn varies(&self, module: &str, test: &str) -> bool {
        self.varying.iter().any(|(m, t)| m == module && t == test)
    }

    pub fn left_out(&self) -> impl Iterator<Item = String> {
        self.not_run.iter().map(|(module, test, reason)| format!("{module} {test}: {reason}"))
    }
}
