//! The examples of docs/plugins.md do what it says, and its table names every module.
#![allow(missing_docs)]

mod fixture;

use csp_plugins::builtin::MODULES;
use fixture::{WorkerLevel, run};

const DOCUMENT: &str = include_str!("../../../docs/plugins.md");

#[test]
fn examples_run() {
    let examples: Vec<&str> = DOCUMENT
        .split("```fixture\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        run(example, WorkerLevel::new);
    }
}

#[test]
fn every_module_is_described_with_its_settings_and_operations() {
    for module in MODULES {
        let row = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{}` |", module.name)));
        let row = row.unwrap_or_else(|| panic!("{} is not in docs/plugins.md", module.name));
        let names = module.parameters.iter().map(|parameter| parameter.name);
        for name in names.chain(module.operations.iter().map(|operation| operation.name)) {
            assert!(row.contains(&format!("`{name}")), "{}: {name} is not described", module.name);
        }
    }
}
