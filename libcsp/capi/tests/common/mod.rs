//! The library as a C program gets it: linked from the archive next to this test, with the header of the
//! tree.
#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The crate's folder.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder for what this test makes.
pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The archive as cargo built it last: `cargo test` leaves it beside this test's own binary, with a hash in
/// its name; `cargo build` above, as libcsp.a.
pub fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let hashed = fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcsp-") && name.ends_with(".a")
    });
    let all = hashed.chain([deps.parent().unwrap().join("libcsp.a")]);
    let newest = all.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).max();
    newest.expect("libcsp.a was not built").1
}

/// The folder with libcsp.so, linked once for each test binary.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = scratch().join(format!("so-{}", std::process::id()));
        run(Command::new(here().join("link.sh")).arg(archive()).arg(&folder));
        folder
    })
}

/// Runs a command to its end, which must be good.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// Warnings that no C of ours may have.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Compiles C sources to a program in the scratch folder that finds the library by itself.
pub fn compile(compiler: &str, name: &str, sources: &[&Path], flags: &[&str]) -> PathBuf {
    let program = scratch().join(format!("{name}-{compiler}-{}", std::process::id()));
    let mut command = Command::new(compiler);
    command.args(["-g", "-O1"]).args(STRICT).arg("-I").arg(here().join("include"));
    command.args(flags).arg("-o").arg(&program).args(sources);
    // DT_RPATH goes before LD_LIBRARY_PATH, which cargo sets to a folder where `make build` may have left an
    // older library.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", library().display());
    command.arg("-L").arg(library()).arg(rpath);
    run(command.args(["-lcsp", "-lpthread"]));
    program
}
