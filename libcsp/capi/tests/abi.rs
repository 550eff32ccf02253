//! What a program links against: symbols and their version, the header in every language it promises,
//! layouts, the manual.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use csp_support::installed;

use common::{STRICT, archive, compile, here, library, run, scratch};

/// The words of `text` that start with `csp_` and stand before `(`.
fn called(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_(".contains(c)));
    words
        .filter_map(|w| w.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("csp_"))
        .map(str::to_owned)
        .collect()
}

/// C without its comments.
fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |code, part| code + part.split_once("*/").unwrap().1)
}

fn declared() -> BTreeSet<String> {
    called(&without_comments(&fs::read_to_string(here().join("include/csp.h")).unwrap()))
}

#[test]
fn exactly_what_the_header_declares_is_exported_and_versioned() {
    let output = run(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library().join("libcsp.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    let defined = text.lines().filter(|line| line.contains("GLOBAL") && !line.contains(" UND "));
    let names: BTreeSet<&str> = defined.filter_map(|line| line.split_whitespace().nth(7)).collect();
    let wanted = declared().iter().map(|name| format!("{name}@@CSP_0.1")).collect::<BTreeSet<_>>();
    assert!(wanted.len() > 20);
    let found: BTreeSet<String> =
        names.iter().filter(|name| **name != "CSP_0.1").map(|n| (*n).to_owned()).collect();
    assert_eq!(found, wanted);
    let output = run(Command::new("readelf").arg("-d").arg(library().join("libcsp.so.0")));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("soname: [libcsp.so.0]"), "{text}");
}

#[test]
fn the_header_is_good_c99_c11_and_cpp17() {
    let source = scratch().join("empty.c");
    fs::write(&source, "#include <csp.h>\n#include <csp.h>\nint main(void) { return csp_version() == 0; }\n")
        .unwrap();
    for (compiler, standard, language) in [
        ("gcc", "-std=c99", "c"),
        ("gcc", "-std=c11", "c"),
        ("g++", "-std=c++17", "c++"),
        ("clang", "-std=c99", "c"),
        ("clang", "-std=c11", "c"),
        ("clang", "-std=c++17", "c++"),
    ] {
        if !installed(compiler, compiler) {
            continue;
        }
        let mut command = Command::new(compiler);
        command.args([standard, "-x", language, "-fsyntax-only"]).args(STRICT);
        run(command.arg("-I").arg(here().join("include")).arg(&source));
    }
}

#[test]
fn structures_and_constants_match_the_header() {
    let expected = csp::layout::expected();
    let mut text = "#include <csp.h>\n#include <stdio.h>\nint main(void)\n{\n".to_owned();
    for (expression, _) in &expected {
        writeln!(text, "\tprintf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    text += "\treturn 0;\n}\n";
    let source = scratch().join("layout.c");
    fs::write(&source, text).unwrap();
    let output = run(&mut Command::new(compile("gcc", "layout", &[&source], &["-std=c11"])));
    let found = String::from_utf8(output.stdout).unwrap();
    let found: Vec<i64> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((expression, value), found) in expected.iter().zip(found) {
        assert_eq!(found, *value, "{expression}");
    }
}

/// The manual's pages with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let all = fs::read_dir(here().join("man")).unwrap().map(|entry| entry.unwrap().path());
    all.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn the_manual_is_well_formed_and_complete() {
    if installed("mandoc", "mandoc") {
        for (path, _) in pages() {
            run(Command::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(path));
        }
    }
    let text: String = pages().into_iter().map(|(_, text)| text).collect();
    let synopses = text.lines().filter_map(|l| l.strip_prefix(".Fn ").or_else(|| l.strip_prefix(".Fo ")));
    let described: BTreeSet<String> = synopses
        .filter_map(|l| l.split(' ').next())
        .filter(|n| n.starts_with("csp_"))
        .map(str::to_owned)
        .collect();
    assert_eq!(described, declared());
    for (name, _) in csp::layout::expected() {
        let internal = name.contains('(') || ["CSP_OK", "CSP_LENT_MAX"].contains(&&*name);
        assert!(internal || text.contains(&name), "{name} is not in the manual");
    }
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_man() {
    if !installed("pkg-config", "pkgconf") {
        return;
    }
    let root = scratch().join(format!("root-{}", std::process::id()));
    run(Command::new(here().join("install.sh")).arg(archive()).arg(&root).arg("/opt/csp"));
    let installed = root.join("opt/csp");
    let mut command = Command::new("pkg-config");
    command.args([
        "--define-variable",
        &format!("prefix={}", installed.display()),
        "--cflags",
        "--libs",
        "csp",
    ]);
    let output = run(command.env("PKG_CONFIG_PATH", installed.join("lib/pkgconfig")));
    let flags = String::from_utf8(output.stdout).unwrap();
    let program = root.join("echo_server");
    let mut command = Command::new("gcc");
    command.arg("-o").arg(&program).arg(here().join("examples/echo_server.c")).args(flags.split_whitespace());
    run(&mut command);
    let output = Command::new(&program).env("LD_LIBRARY_PATH", installed.join("lib")).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "its usage: {output:?}");
    for function in declared() {
        let page = installed.join(format!("share/man/man3/{function}.3"));
        assert!(fs::read_to_string(page).unwrap().contains(&function), "{function}");
    }
    fs::remove_dir_all(root).unwrap();
}
