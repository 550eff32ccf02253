//! Ways past the preloaded library: libraries that bind to the C library first, streams of C++, io_uring by a
//! program's own system calls, and programs of another C library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::*;

/// Compiles a source with these flags; returns the result's path.
fn compile(stage: &Stage, compiler: &str, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (from, to) = (stage.write(name, source.as_bytes()), stage.folder.join(name).with_extension("out"));
    let done = Command::new(compiler).arg("-o").arg(&to).arg(&from).args(flags).status().unwrap();
    assert!(done.success(), "{compiler} {name}");
    to
}

/// Accepts on a port and lets a library serve the connection.
const PLUGGED: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **arguments) {
    int deep = !strncmp(arguments[2], "deep", 4) ? RTLD_DEEPBIND : 0;
    void *library = !strcmp(arguments[2], "deep in the base")
        ? dlmopen(LM_ID_BASE, arguments[1], RTLD_NOW | deep)
        : dlopen(arguments[1], RTLD_LAZY | deep);
    if (!library) return puts(dlerror()), 1;
    int (*serve)(int) = (int (*)(int))dlsym(library, "serve");
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(18140)};
    int l = socket(AF_INET, SOCK_STREAM, 0), c;
    if (bind(l, (void *)&a, sizeof a) || listen(l, 5) || (c = accept(l, NULL, NULL)) < 0) return 2;
    return serve(c);
}
"#;

const PLUG_IN: &str = r#"
#include <unistd.h>
int serve(int fd) { char b[100]; long n = read(fd, b, sizeof b); return n <= 0 || write(fd, b, n) != n; }
"#;

#[test]
fn a_library_that_binds_deeply_reads_and_writes_a_connection() {
    for how in ["plainly", "deep", "deep in the base"] {
        let mut stage = Stage::new();
        let library = compile(&stage, "gcc", "plug.c", PLUG_IN, &["-shared", "-fPIC"]);
        let program = compile(&stage, "gcc", "main.c", PLUGGED, &[]);
        let mut command = stage.command(program.to_str().unwrap());
        command.arg(&library).arg(how);
        let program = stage.start(command);
        let label = stage.proxy.open(18140, b"through a library", false);
        stage.proxy.until("the end", |p| p.flow(label).closed);
        assert_eq!(stage.proxy.flow(label).received, b"through a library", "{how}");
        stage.succeeds(program);
    }
}

/// Opens a library by its name alone, from a library whose search path (DT_RUNPATH) names the folder.
const OPENS_BESIDE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int beside(void) { void *h = dlopen("beside.out", RTLD_NOW | RTLD_DEEPBIND); if (!h) puts(dlerror()); return h != 0; }
"#;

#[test]
fn the_search_path_of_a_library_that_opens_another_applies() {
    let mut stage = Stage::new();
    let folder = stage.folder.join("libraries");
    std::fs::create_dir_all(&folder).unwrap();
    let beside = compile(&stage, "gcc", "libraries/beside.c", PLUG_IN, &["-shared", "-fPIC"]);
    let path = format!("-Wl,--enable-new-dtags,-rpath,{}", folder.display());
    let opens = compile(&stage, "gcc", "opens.c", OPENS_BESIDE, &["-shared", "-fPIC", &path]);
    assert!(beside.exists());
    let script = format!("import ctypes; print(ctypes.CDLL({opens:?}).beside())");
    let program = stage.python(&script, &[]);
    assert_eq!(stage.succeeds(program), "1\n");
}

#[test]
fn a_library_in_a_namespace_of_its_own_is_reported() {
    let mut stage = Stage::new();
    let library = compile(&stage, "gcc", "plug.c", PLUG_IN, &["-shared", "-fPIC"]);
    let script = format!(
        "import ctypes; c = ctypes.CDLL(None); c.dlmopen.restype = ctypes.c_void_p\n\
         for _ in range(2): print(c.dlmopen(ctypes.c_long(-1), {:?}.encode(), 2) is not None, flush=True)",
        library
    );
    let program = stage.python(&script, &[]);
    let output = stage.succeeds(program);
    assert_eq!(output.matches("True").count(), 2, "{output}");
    assert_eq!(output.matches("dlmopen").count(), 1, "{output}");
}

/// The streams of C++ on a connection.
const STREAMS: &str = r#"
#include <cstdlib>
#include <iostream>
#include <string>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **arguments) {
    if (count > 1) std::ios::sync_with_stdio(false);
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_port = htons(18141);
    int l = socket(AF_INET, SOCK_STREAM, 0), c;
    if (bind(l, (sockaddr *)&a, sizeof a) || listen(l, 5) || (c = accept(l, nullptr, nullptr)) < 0) return 2;
    dup2(c, 0), dup2(c, 1), close(c);
    std::string line;
    while (std::getline(std::cin, line)) std::cout << "cout " << line << std::endl;
    close(0), close(1);
}
"#;

#[test]
fn the_standard_streams_of_cxx_read_and_write_a_connection() {
    for synchronised in [true, false] {
        let mut stage = Stage::new();
        let program = compile(&stage, "g++", "streams.cc", STREAMS, &[]);
        let mut command = stage.command(program.to_str().unwrap());
        command.args((!synchronised).then_some("alone"));
        let program = stage.start(command);
        let label = stage.proxy.open(18141, b"one\ntwo\n", true);
        stage.proxy.until("the end", |p| p.flow(label).closed);
        assert_eq!(stage.proxy.flow(label).received, b"cout one\ncout two\n", "{synchronised}");
        stage.succeeds(program);
    }
}

/// A shell answers on a connection that it has opened itself.
const SHELL: &str = "
exec 3<>/dev/tcp/10.76.0.9/18142
printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3
echo more >&3
read -r line <&3
echo \"$line\" | tr a-z A-Z
";

#[test]
fn a_shell_prints_to_a_connection() {
    let mut stage = Stage::new();
    let mut command = stage.command("/bin/bash");
    command.args(["-c", SHELL]);
    let program = stage.start(command);
    stage.proxy.until("a CONNECT", |p| !p.asked.is_empty());
    let asked = stage.proxy.asked.remove(0);
    let label = stage.proxy.connected(asked);
    stage.proxy.until("the request", |p| p.flow(label).received.ends_with(b"more\n"));
    assert_eq!(stage.proxy.flow(label).received, b"GET / HTTP/1.0\r\n\r\nmore\n");
    stage.proxy.write(label, b"an answer\n");
    assert_eq!(stage.succeeds(program), "AN ANSWER\n");
}

/// liburing as a library, and linked statically: its system call is in its own code.
const RINGS: &str = r#"
static long setup(unsigned entries, void *params) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(425), "D"((long)entries), "S"(params) : "rcx", "r11", "memory");
    return result;
}
int io_uring_queue_init_params(unsigned entries, void *ring, void *params) { return setup(entries, params); }
"#;

const USES_RINGS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int io_uring_queue_init_params(unsigned, void *, void *);
int main(void) { int r = io_uring_queue_init_params(8, malloc(1024), calloc(1, 1024)); printf("%d\n", r > 0 ? 1 : r); }
"#;

/// Whether this kernel has io_uring and lets the test use it.
fn has_rings() -> bool {
    // SAFETY: no parameters are read, and nothing is created.
    unsafe {
        libc::syscall(libc::SYS_io_uring_setup, 0, 0) == -1 && *libc::__errno_location() == libc::EFAULT
    }
}

#[test]
fn rings_of_liburing_are_refused_also_where_it_makes_the_system_call_itself() {
    if !has_rings() {
        return csp_support::skip("the kernel has no io_uring");
    }
    let mut stage = Stage::passive();
    let library = compile(&stage, "gcc", "libring.c", RINGS, &["-shared", "-fPIC"]);
    let linked = compile(&stage, "gcc", "linked.c", USES_RINGS, &[library.to_str().unwrap()]);
    let both = format!("{RINGS}{USES_RINGS}");
    let alone = compile(&stage, "gcc", "alone.c", &both, &["-Wl,-z,now"]);
    let mut prints = |program: &Path, settings: &[(&str, &str)]| {
        let mut command = stage.command(program.to_str().unwrap());
        command.envs(settings.iter().copied()).env("LD_LIBRARY_PATH", stage.folder.as_os_str());
        let program = stage.start(command);
        stage.succeeds(program)
    };
    assert_eq!(prints(&linked, &[("CSP_MODE", "off")]), "1\n", "plain");
    assert_eq!(prints(&linked, &[]), "-38\n", "the library's function is the filter's");
    assert_eq!(prints(&alone, &[("CSP_MODE", "off")]), "1\n", "plain");
    // In these the kernel refuses the system call; root may install the filter.
    assert_eq!(prints(&alone, &[("CSP_IO_URING", "refuse")]), "-38\n");
    assert_eq!(prints(&alone, &[("CSP_MODE", "strict")]), "-38\n");
}

/// Prints what the loader was asked to preload.
const PRELOADED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) { return printf("%s\n", getenv("LD_PRELOAD") ? "with" : "without") < 0; }
"#;

/// Executes a program in each way.
const EXECUTES: &str = "
import os, subprocess, sys
program = sys.argv[1]
environment, name = dict(os.environ), os.path.basename(program)
environment['PATH'] = os.environ['PATH'] = os.path.dirname(program) + ':' + os.environ['PATH']
def child(execute):
    pid = os.fork()
    if pid == 0:
        try: execute()
        finally: os._exit(99)
    return pid
def by_shell():
    os.execv('/bin/sh', ['sh', '-c', 'exec ' + name])
for way in [
    lambda: child(lambda: os.execve(program, [name], environment)),
    lambda: child(lambda: os.execv(program, [name])),
    lambda: child(lambda: os.execve(os.open(program, os.O_RDONLY), [name], environment)),
    lambda: child(by_shell),
    lambda: os.posix_spawn(program, [name], environment),
    lambda: os.posix_spawnp(name, [name], environment),
    lambda: child(lambda: os._exit(subprocess.run([program]).returncode)),
]:
    sys.stdout.flush()
    assert os.waitpid(way(), 0)[1] == 0
";

#[test]
fn a_program_of_another_c_library_starts_without_the_filter() {
    let mut stage = Stage::passive();
    // The loader has another library's name and is glibc's, so that it starts either way.
    let loader = stage.folder.join("ld-musl-x86_64.so.1");
    std::fs::copy("/lib64/ld-linux-x86-64.so.2", &loader).unwrap();
    let own = compile(&stage, "gcc", "own.c", PRELOADED, &[]);
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    let foreign = compile(&stage, "gcc", "foreign.c", PRELOADED, &[&flag]);
    for (program, strict, expected) in
        [(&own, false, "with\n"), (&foreign, false, "without\n"), (&foreign, true, "with\n")]
    {
        let script = stage.write("executes.py", EXECUTES.as_bytes());
        let mut command = stage.command("/usr/bin/python3");
        command.arg(script).arg(program);
        if strict {
            command.env("CSP_MODE", "strict");
        }
        let executing = stage.start(command);
        assert_eq!(stage.succeeds(executing), expected.repeat(7), "{}", program.display());
    }
}
