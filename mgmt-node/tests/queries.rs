//! `cspctl formats`, `queries`, `query explain` and `path explain` on a policy file: what the documentation
//! shows.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::path::PathBuf;
use std::process::Command;

use csp_support::yaml_blocks;

const FORMATS: &str = include_str!("../../docs/formats.md");
const QUERIES: &str = include_str!("../../docs/queries.md");

/// The policy of the documentation, in a file of its own.
struct File(PathBuf);

impl File {
    fn new(name: &str, more: &str) -> File {
        let path = std::env::temp_dir().join(format!("csp-{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, format!("{}{more}{}", yaml_blocks(FORMATS)[0], yaml_blocks(QUERIES)[0]))
            .unwrap();
        File(path)
    }

    /// Exit code, standard output and standard error of `cspctl`.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cspctl"));
        let done = command.args(arguments).arg("--policy").arg(&self.0).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_query_is_explained_as_in_the_documentation() {
    let file = File::new("explain", "");
    let (code, out, error) = file.run(&["query", "explain", "windy"]);
    assert_eq!((code, error.as_str()), (0, ""));
    let shown = QUERIES.split("$ cspctl query explain windy --policy policy.yaml\n").nth(1).unwrap();
    assert_eq!(out, shown.split("```").next().unwrap());
    let (_, json, _) = file.run(&["query", "explain", "late", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["output"], &json["reads"][0]["channel"]), (&"json".into(), &"flights".into()));
    assert!(json["schema"].as_str().unwrap().contains("<sbe:message name=\"Row\""));
    let (_, out, _) = file.run(&["query", "explain", "--sql", "SELECT wind * 2 AS twice FROM winds"]);
    assert!(out.contains("2 emit      wind * 2 AS twice"), "{out}");
}

#[test]
fn what_is_wrong_has_a_place_or_a_nearest_name() {
    let file = File::new("wrong", "");
    let (code, _, error) = file.run(&["query", "explain", "--sql", "SELECT orgin FROM flights"]);
    assert_eq!(code, 64);
    assert!(
        error.contains("line 1, column 8: there is no column \"orgin\"; the nearest is \"origin\""),
        "{error}"
    );
    let (code, _, error) = file.run(&["query", "explain", "wndy"]);
    assert_eq!(code, 1);
    assert!(error.contains("the nearest is \"windy\""), "{error}");
    let bad = File::new("bad", "  - {name: flights, vip: 10.76.0.100, port: 5603, formats: [fligth]}\n");
    let (code, _, error) = bad.run(&["queries"]);
    assert_eq!(code, 65);
    assert!(error.contains("there is no format \"fligth\"; the nearest is \"flight\""), "{error}");
}

#[test]
fn formats_queries_and_paths_are_listed() {
    let path = "[{handler: project, parameters: \"origin, delay\"}, {handler: select, context: c1, parameters: delay > 5}]";
    let more =
        format!("  - {{name: apart, vip: 10.76.0.100, port: 5603, formats: [flight], path: {path}}}\n");
    let file = File::new("lists", &more);
    let (_, out, _) = file.run(&["formats"]);
    assert!(out.contains("flights as 1, apart as 1") && out.contains("Weather"), "{out}");
    let (_, out, _) = file.run(&["queries"]);
    assert!(out.contains("10.76.0.100:5612") && out.contains("flights winds"), "{out}");
    let (code, out, error) = file.run(&["path", "explain", "apart"]);
    assert_eq!((code, error.as_str()), (0, ""));
    let (select, project) =
        (out.find("select delay > 5 on c1").unwrap(), out.find("project origin, delay on c0").unwrap());
    assert!(select < project, "the reduction goes first\n{out}");
    assert!(
        out.contains("-> Row") && out.contains("messages of none of the formats pass the handlers by"),
        "{out}"
    );
}
