//! Compiles the program of level 1 for the kernel's virtual machine, and the one that measures it.

use std::path::Path;
use std::process::{Command, exit};

const MISSING: &str = "clang compiles the program of packet plug-ins in the driver; `make packages-build` installs it \
                       (Debian packages clang, libbpf-dev and linux-libc-dev)";

fn main() {
    println!("cargo::rerun-if-changed=src/program");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let triplet =
        format!("/usr/include/{}-linux-gnu", std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it"));
    for name in ["level1", "bench"] {
        let (source, object) =
            (format!("src/program/{name}.bpf.c"), Path::new(&out).join(format!("{name}.bpf.o")));
        let mut command = Command::new(&clang);
        command.args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
        ]);
        command.arg(format!("-I{triplet}")).args(["-c", &source, "-o"]).arg(&object);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(_) => fail(&format!("{clang} did not compile {source}. If a header is missing: {MISSING}")),
            Err(error) => fail(&format!("{clang}: {error}. {MISSING}")),
        }
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1);
}
